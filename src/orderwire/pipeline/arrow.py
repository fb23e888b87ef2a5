"""Records to Arrow record batches of the source's columns.

A binary column is one joined buffer with an array of offsets beside it: about five times cheaper
than handing the values to Arrow one by one.  [specs/pipeline.md:3.2]
"""

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from orderwire.pipeline.client import TIMESTAMP_NONE, Message
from orderwire.pipeline.errors import OptionError

HEADERS_TYPE = pa.list_(
    pa.field(
        "element",
        pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]),
    )
)
COLUMNS: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": HEADERS_TYPE,
}
"""The columns of Spark's Kafka connector, in its order."""

BINARY_BYTES_MAX = (1 << 31) - 1
"""Arrow's 32-bit offsets end here; a longer batch is cut in two."""


def check_columns(schema: pa.Schema, *, headers: bool) -> None:
    """Refuse a schema that the source cannot fill.  Raises OptionError.

    Any subset of the columns, in any order, will do: only those are built.
    """
    known = [name for name in COLUMNS if headers or name != "headers"]
    if not schema.names:
        raise OptionError(f"the schema has no column; choose from {', '.join(known)}")
    for field in schema:
        if field.name == "headers" and not headers:
            raise OptionError("column 'headers' needs the option includeHeaders=true")
        if field.name not in known:
            raise OptionError(f"unknown column {field.name!r}; known: {', '.join(known)}")
        if field.type != COLUMNS[field.name]:
            raise OptionError(
                f"column {field.name!r} is asked for as {field.type}; it is {COLUMNS[field.name]}"
            )


def record_batches(
    topic: str, partition: int, messages: Sequence[Message], schema: pa.Schema
) -> list[pa.RecordBatch]:
    """Build the columns of `schema` from these records, in one batch if 32-bit offsets allow it."""
    assert messages, f"no message of {topic}/{partition}"
    try:
        columns = [_BUILD[field.name](topic, partition, messages) for field in schema]
    except _TooLongError:
        half = len(messages) // 2
        assert half, f"{topic}/{partition}: one record of more than {BINARY_BYTES_MAX} bytes"
        return record_batches(topic, partition, messages[:half], schema) + record_batches(
            topic, partition, messages[half:], schema
        )
    return [pa.RecordBatch.from_arrays(columns, schema=schema)]


def binary_array(values: Sequence[bytes | None]) -> pa.Array:
    """A binary column of these values."""
    count = len(values)
    validity = None
    try:
        data = b"".join(values)  # type: ignore[arg-type]
        lengths = np.fromiter(map(len, values), np.int64, count)  # type: ignore[arg-type]
    except TypeError:  # there are nulls
        data = b"".join(v for v in values if v is not None)
        lengths = np.fromiter((0 if v is None else len(v) for v in values), np.int64, count)
        there = np.fromiter((v is not None for v in values), np.bool_, count)
        validity = pa.py_buffer(np.packbits(there, bitorder="little"))
    if len(data) > BINARY_BYTES_MAX:
        raise _TooLongError
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.Array.from_buffers(
        pa.binary(), count, [validity, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


class _TooLongError(Exception):
    """The values do not fit in one Arrow array."""


def _key(_topic: str, _partition: int, messages: Sequence[Message]) -> pa.Array:
    return binary_array([m.key() for m in messages])


def _value(_topic: str, _partition: int, messages: Sequence[Message]) -> pa.Array:
    return binary_array([m.value() for m in messages])


def _topic(topic: str, _partition: int, messages: Sequence[Message]) -> pa.Array:
    return pa.repeat(pa.scalar(topic, pa.string()), len(messages))


def _partition(_topic: str, partition: int, messages: Sequence[Message]) -> pa.Array:
    return pa.repeat(pa.scalar(partition, pa.int32()), len(messages))


def _offset(_topic: str, _partition: int, messages: Sequence[Message]) -> pa.Array:
    return pa.array(np.fromiter((m.offset() for m in messages), np.int64, len(messages)))


def _timestamp(_topic: str, _partition: int, messages: Sequence[Message]) -> pa.Array:
    told = np.array([m.timestamp() for m in messages], np.int64)
    return pa.array(told[:, 1] * 1_000, mask=told[:, 0] == TIMESTAMP_NONE).cast(
        COLUMNS["timestamp"]
    )


def _timestamp_type(_topic: str, _partition: int, messages: Sequence[Message]) -> pa.Array:
    return pa.array(np.fromiter((m.timestamp()[0] - 1 for m in messages), np.int32, len(messages)))


def _headers(_topic: str, _partition: int, messages: Sequence[Message]) -> pa.Array:
    rows = [
        [{"key": key, "value": value} for key, value in headers] if headers else None
        for headers in (m.headers() for m in messages)
    ]
    return pa.array(rows, HEADERS_TYPE)


_BUILD: dict[str, Callable[[str, int, Sequence[Message]], pa.Array]] = {
    "key": _key,
    "value": _value,
    "topic": _topic,
    "partition": _partition,
    "offset": _offset,
    "timestamp": _timestamp,
    "timestampType": _timestamp_type,
    "headers": _headers,
}
assert list(_BUILD) == list(COLUMNS)
