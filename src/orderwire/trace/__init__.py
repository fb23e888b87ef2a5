"""What happened, as typed records with units in names."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orderwire.trace.background import BackgroundSink
    from orderwire.trace.discovery_events import DiscoveryTimeline
    from orderwire.trace.errors import TraceError, TraceVersionError
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

_WHERE = {
    "BackgroundSink": "background",
    "DISCOVERY_KINDS": "events",
    "DiscoveryRun": "events",
    "DiscoveryTimeline": "discovery_events",
    "Event": "events",
    "EventKind": "events",
    "IpcFileSink": "sinks",
    "MemorySink": "sinks",
    "NO_ORDER": "events",
    "ParquetFileSink": "sinks",
    "RunSettings": "events",
    "SCHEMA_VERSION": "schema",
    "Sink": "sinks",
    "TraceError": "errors",
    "TraceVersionError": "errors",
    "Tracer": "writer",
    "arrow_schema": "schema",
    "check_schema": "schema",
    "events_from_table": "schema",
    "open_processes": "reader",
    "open_sink": "sinks",
    "read_record": "reader",
    "read_trace": "reader",
    "record_bytes": "reader",
    "signed": "schema",
    "sort_trace": "schema",
    "spark_ddl": "schema",
    "table_from_events": "schema",
    "unsigned": "schema",
    "write_trace": "reader",
}


def __getattr__(name: str) -> Any:
    """Import what is used when it is: Arrow and NumPy cost a process half a second and 40 MB."""
    if name in _WHERE:
        return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
