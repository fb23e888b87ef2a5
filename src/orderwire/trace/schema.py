"""The trace as an Arrow table: one column per field of `Event`, in its order.

The version is in the schema's metadata.  A reader refuses a version that it does not know, by name,
and fills in what an older one does not tell.

    1   without `lifetime_ns`: all messages of a run live as long
    2   without `peer_id`, `incarnation` and the kinds of discovery
    3   without `channel_number` and the kind `install`
    4   as `Event` says
"""

from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from orderwire.trace.errors import TraceError, TraceVersionError
from orderwire.trace.events import Event, EventKind

SCHEMA_VERSION = "4"
"""What this release writes."""
READABLE_VERSIONS = ("1", "2", "3", SCHEMA_VERSION)
VERSION_KEY = b"orderwire.trace.version"
KEY_COLUMNS = ("run_id", "process", "position")
"""A trace is sorted by them.  Unique together within one life of a process."""
IDENTITY_COLUMNS = (*KEY_COLUMNS, "time_ns")
"""Unique together: a process that is started again counts its positions from 0."""

_FIELDS: tuple[tuple[str, pa.DataType, bool], ...] = (
    ("run_id", pa.string(), False),
    ("process", pa.int32(), False),
    ("position", pa.int64(), False),
    ("kind", pa.string(), False),
    ("time_ns", pa.int64(), False),
    ("clock_ns", pa.int64(), False),
    ("source", pa.int32(), False),
    ("number", pa.int64(), False),
    ("stamp_ns", pa.int64(), False),
    ("arrived_ns", pa.int64(), False),
    ("destinations", pa.binary(), False),
    ("reason", pa.string(), False),
    ("control_bytes", pa.int32(), False),
    ("payload_bytes", pa.int32(), False),
    ("detail", pa.string(), False),
    ("vector_clock", pa.list_(pa.int64()), True),
    ("lifetime_ns", pa.int64(), True),
    ("peer_id", pa.int64(), True),
    ("incarnation", pa.int64(), True),
    ("channel_number", pa.int64(), True),
)
SINCE = {"lifetime_ns": "2", "peer_id": "3", "incarnation": "3", "channel_number": "4"}
"""Columns that older versions do not have, and the first that has: null before."""

_UNSIGNED = ("peer_id", "incarnation")
"""Columns that hold the 64 bits of a number from 0 to 2⁶⁴−1."""
_SIGN = 1 << 63
_WORD = 1 << 64

_SCHEMA = pa.schema(
    [pa.field(name, kind, nullable) for name, kind, nullable in _FIELDS],
    metadata={VERSION_KEY: SCHEMA_VERSION.encode()},
)


def arrow_schema() -> pa.Schema:
    """Return the trace's Arrow schema, with its version in the metadata."""
    return _SCHEMA


def signed(number: int) -> int:
    """Return the number from 0 to 2⁶⁴−1 as the signed one with the same 64 bits."""
    assert 0 <= number < _WORD, f"{number} is no unsigned number of 64 bits"
    return number - _WORD if number >= _SIGN else number


def unsigned(number: int) -> int:
    """Undo `signed`."""
    return number & (_WORD - 1)


def spark_ddl() -> str:
    """Return the same columns as a Spark schema, for readers that want one."""
    names = {
        pa.string(): "STRING",
        pa.int32(): "INT",
        pa.int64(): "BIGINT",
        pa.binary(): "BINARY",
        pa.list_(pa.int64()): "ARRAY<BIGINT>",
    }
    return ", ".join(
        f"{name} {names[kind]}{'' if nullable else ' NOT NULL'}" for name, kind, nullable in _FIELDS
    )


def check_schema(schema: pa.Schema, origin: str) -> None:
    """Refuse a schema that no release up to this one has written.

    Raises TraceVersionError on an unknown version and TraceError on missing or other columns; both
    name `origin`, the file or topic that it came from.
    """
    told = (schema.metadata or {}).get(VERSION_KEY)
    if told is None:
        raise TraceError(
            f"{origin} is no Orderwire trace: its Arrow metadata has no"
            f" {VERSION_KEY.decode()!r} (columns: {', '.join(schema.names[:6])} …)"
        )
    version = told.decode(errors="replace")
    if version not in READABLE_VERSIONS:
        raise TraceVersionError(
            f"{origin} is a trace of schema version {version!r}; this release reads versions"
            f" {', '.join(map(repr, READABLE_VERSIONS))}. Read it with the release that"
            " wrote it, or record the run again"
        )
    for name, kind, _ in _FIELDS:
        at = schema.get_field_index(name)
        if at < 0 and version < SINCE.get(name, ""):
            continue
        if at < 0:
            raise TraceError(f"{origin} claims version {version} but has no column {name!r}")
        if schema.field(at).type != kind:
            raise TraceError(
                f"{origin}: column {name!r} is {schema.field(at).type}, expected {kind}"
            )


def up_to_date(table: pa.Table, origin: str) -> pa.Table:
    """Return the trace's columns in this version, whatever readable version the table has.

    Raises TraceVersionError and TraceError as `check_schema`.
    """
    check_schema(table.schema, origin)
    for name, kind, _ in _FIELDS:
        if table.schema.get_field_index(name) < 0:
            table = table.append_column(pa.field(name, kind), pa.nulls(table.num_rows, kind))
    return table.select(_SCHEMA.names).cast(_SCHEMA)


def table_from_events(events: Iterable[Event]) -> pa.Table:
    """Return these events as a table of `arrow_schema()`, in their order."""
    rows = list(events)
    columns: dict[str, pa.Array] = {}
    for name, kind, _ in _FIELDS:
        if name == "kind":
            columns[name] = pa.array([event.kind.value for event in rows], kind)
        elif name in _UNSIGNED:
            numbers = [getattr(event, name) for event in rows]
            columns[name] = pa.array([None if n is None else signed(n) for n in numbers], kind)
        else:
            columns[name] = pa.array([getattr(event, name) for event in rows], kind)
    return pa.table(columns, schema=_SCHEMA)


def events_from_table(table: pa.Table | pa.RecordBatch) -> list[Event]:
    """Return the events of a table of a readable version, in its order.  Raises TraceError."""
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    table = up_to_date(table, "this table")
    names = [name for name, _, _ in _FIELDS]
    kinds = {kind.value: kind for kind in EventKind}
    columns: Sequence[list[object]] = [table.column(name).to_pylist() for name in names]
    events = []
    for row in zip(*columns, strict=True):
        fields = dict(zip(names, row, strict=True))
        kind = kinds.get(str(fields["kind"]))
        if kind is None:
            raise TraceError(
                f"unknown kind {fields['kind']!r} at process {fields['process']}, position"
                f" {fields['position']}; known are {', '.join(kinds)}"
            )
        fields["kind"] = kind
        for name in _UNSIGNED:
            number = fields[name]
            if isinstance(number, int):
                fields[name] = unsigned(number)
        events.append(Event(**fields))
    return events


def sort_trace(table: pa.Table) -> pa.Table:
    """Return the table sorted by run, process and position; the same object when it is already."""
    if table.num_rows < 2:
        return table
    order = pc.sort_indices(table, [(name, "ascending") for name in KEY_COLUMNS])
    return table.take(order)
