"""Histories of replicated partitions as an Arrow table, with a version of its own.

A row is an event of one partition, or a part of one: what an event holds of batches and messages is
a list, and a long list goes over several rows with the same position.  `verify.replication_history`
says which event fills which columns.

    1   as `verify.replication` has its events
    2   + writer, time_ns: several write about one partition, each with positions of its own
"""

import pyarrow as pa

from orderwire.trace.errors import TraceError, TraceVersionError

HISTORY_VERSION = "2"
"""What this release writes."""
READABLE_HISTORIES = ("1", HISTORY_VERSION)
_SINCE_2 = ("writer", "time_ns")
HISTORY_KEY = b"orderwire.replication.version"
PARTITION_COLUMNS = ("run_id", "topic", "partition")
"""Together they name a partition's history: sorted by position, then part, of each writer."""
LISTS: dict[str, pa.DataType] = {
    "messages": pa.string(),
    "offsets": pa.int64(),
    "firsts": pa.int64(),
    "lasts": pa.int64(),
    "epochs": pa.int32(),
    "digests": pa.int64(),
    "seals": pa.bool_(),
    "counts": pa.int32(),
    "members": pa.int32(),
    "replicas": pa.int32(),
}
"""Columns that hold lists; `counts` has the number of messages of each batch."""

_SCHEMA = pa.schema(
    [
        pa.field("run_id", pa.string(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("position", pa.int64(), nullable=False),
        pa.field("part", pa.int32(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("who", pa.string()),
        pa.field("broker", pa.int32()),
        pa.field("life", pa.int64()),
        pa.field("acks", pa.int32()),
        pa.field("epoch", pa.int32()),
        pa.field("known_epoch", pa.int32()),
        pa.field("start", pa.int64()),
        pa.field("end", pa.int64()),
        pa.field("high_watermark", pa.int64()),
        pa.field("flag", pa.bool_()),
        pa.field("writer", pa.string()),
        pa.field("time_ns", pa.int64()),
        *(pa.field(name, pa.list_(kind)) for name, kind in LISTS.items()),
    ],
    metadata={HISTORY_KEY: HISTORY_VERSION.encode()},
)


def history_schema() -> pa.Schema:
    """Return the Arrow schema, with its version in the metadata."""
    return _SCHEMA


def is_history(schema: pa.Schema) -> bool:
    """Whether a file or record with this schema claims to be such a history."""
    return HISTORY_KEY in (schema.metadata or {})


def check_history(schema: pa.Schema, origin: str) -> None:
    """Refuse what is no history that this release reads.

    Raises TraceVersionError on an unknown version and TraceError on other columns.
    """
    told = (schema.metadata or {}).get(HISTORY_KEY)
    if told is None:
        raise TraceError(
            f"{origin} is no history of replication: it lacks {HISTORY_KEY.decode()!r}"
        )
    version = told.decode(errors="replace")
    if version not in READABLE_HISTORIES:
        raise TraceVersionError(
            f"{origin} is a history of replication of version {version!r}; this release reads"
            f" {', '.join(READABLE_HISTORIES)}"
        )
    for field in _SCHEMA:
        if version == "1" and field.name in _SINCE_2:
            continue
        at = schema.get_field_index(field.name)
        if at < 0 or schema.field(at).type != field.type:
            raise TraceError(f"{origin}: column {field.name!r} is missing or not {field.type}")


def as_current(table: pa.Table) -> pa.Table:
    """The rows of a checked history of any version, as this release writes them."""
    columns = [
        table.column(field.name)
        if field.name in table.schema.names
        else pa.nulls(table.num_rows, field.type)
        for field in _SCHEMA
    ]
    return pa.Table.from_arrays(columns, schema=_SCHEMA)


def read_history_record(value: pa.Buffer, origin: str) -> pa.Table:
    """The rows in one record of a topic.  Raises TraceError, TraceVersionError."""
    try:
        with pa.ipc.open_stream(value) as reader:
            check_history(reader.schema, origin)
            return as_current(reader.read_all())
    except pa.ArrowInvalid as error:
        raise TraceError(f"{origin} is no Arrow stream: {error}") from None


def history_ddl() -> str:
    """Return the same columns as a Spark schema."""
    names = {
        pa.string(): "STRING",
        pa.int32(): "INT",
        pa.int64(): "BIGINT",
        pa.bool_(): "BOOLEAN",
    }
    columns = []
    for field in _SCHEMA:
        if field.name in LISTS:
            columns.append(f"{field.name} ARRAY<{names[field.type.value_type]}>")
        else:
            need = "" if field.nullable else " NOT NULL"
            columns.append(f"{field.name} {names[field.type]}{need}")
    return ", ".join(columns)
