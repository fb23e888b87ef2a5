"""What happened, as typed records with units in names."""

from orderwire.trace.background import BackgroundSink
from orderwire.trace.discovery_events import DiscoveryTimeline
from orderwire.trace.events import (
    DISCOVERY_KINDS,
    NO_ORDER,
    DiscoveryRun,
    Event,
    EventKind,
    RunSettings,
)
from orderwire.trace.reader import (
    open_processes,
    read_record,
    read_trace,
    record_bytes,
    write_trace,
)
from orderwire.trace.schema import (
    SCHEMA_VERSION,
    TraceError,
    TraceVersionError,
    arrow_schema,
    check_schema,
    events_from_table,
    signed,
    sort_trace,
    spark_ddl,
    table_from_events,
    unsigned,
)
from orderwire.trace.sinks import IpcFileSink, MemorySink, ParquetFileSink, Sink, open_sink
from orderwire.trace.writer import Tracer

__all__ = [
    "DISCOVERY_KINDS",
    "NO_ORDER",
    "SCHEMA_VERSION",
    "BackgroundSink",
    "DiscoveryRun",
    "DiscoveryTimeline",
    "Event",
    "EventKind",
    "IpcFileSink",
    "MemorySink",
    "ParquetFileSink",
    "RunSettings",
    "Sink",
    "TraceError",
    "TraceVersionError",
    "Tracer",
    "arrow_schema",
    "check_schema",
    "events_from_table",
    "open_processes",
    "open_sink",
    "read_record",
    "read_trace",
    "record_bytes",
    "signed",
    "sort_trace",
    "spark_ddl",
    "table_from_events",
    "unsigned",
    "write_trace",
]
