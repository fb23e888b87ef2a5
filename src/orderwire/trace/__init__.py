"""What happened, as typed records with units in names."""

from orderwire.trace.background import BackgroundSink
from orderwire.trace.events import Event, EventKind, RunSettings
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
    sort_trace,
    spark_ddl,
    table_from_events,
)
from orderwire.trace.sinks import IpcFileSink, MemorySink, ParquetFileSink, Sink, open_sink
from orderwire.trace.writer import Tracer

__all__ = [
    "SCHEMA_VERSION",
    "BackgroundSink",
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
    "sort_trace",
    "spark_ddl",
    "table_from_events",
    "write_trace",
]
