"""Records to Arrow record batches of the source's columns.

A binary column is one joined buffer with an array of offsets beside it: about five times cheaper
than handing the values to Arrow one by one.  [specs/pipeline.md:3.2]
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

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
    """Build the columns of `schema` from these records of one partition, ascending by offset.

    In one batch, if Arrow's 32-bit offsets allow it.
    """
    assert messages, f"no message of {topic}/{partition}"
    chunk = _Chunk(topic, partition, messages)
    try:
        columns = [_BUILD[field.name](chunk) for field in schema]
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


_STAMP = np.dtype([("kind", np.int32), ("ms", np.int64)])


class _Chunk:
    """Records of one partition, and what several columns share."""

    def __init__(self, topic: str, partition: int, messages: Sequence[Message]) -> None:
        self.topic = topic
        self.partition = partition
        self.messages = messages

    def __len__(self) -> int:
        return len(self.messages)

    def all(self, accessor: str) -> list[Any]:
        """Call one accessor of every message, without a step of Python for each."""
        return list(map(getattr(type(self.messages[0]), accessor), self.messages))

    @cached_property
    def stamps(self) -> tuple[np.ndarray, np.ndarray]:
        """Kinds and milliseconds of the timestamps."""
        told = np.fromiter(self.all("timestamp"), _STAMP, len(self))
        return told["kind"], told["ms"]


def _key(chunk: _Chunk) -> pa.Array:
    return binary_array(chunk.all("key"))


def _value(chunk: _Chunk) -> pa.Array:
    return binary_array(chunk.all("value"))


def _topic(chunk: _Chunk) -> pa.Array:
    return pa.repeat(pa.scalar(chunk.topic, pa.string()), len(chunk))


def _partition(chunk: _Chunk) -> pa.Array:
    return pa.repeat(pa.scalar(chunk.partition, pa.int32()), len(chunk))


def _offset(chunk: _Chunk) -> pa.Array:
    first, last = chunk.messages[0].offset(), chunk.messages[-1].offset()
    if last - first + 1 == len(chunk):  # ascending, so nothing is missing between
        return pa.array(np.arange(first, last + 1, dtype=np.int64))
    return pa.array(np.fromiter(chunk.all("offset"), np.int64, len(chunk)))


def _timestamp(chunk: _Chunk) -> pa.Array:
    kinds, times = chunk.stamps
    return pa.array(times * 1_000, mask=kinds == TIMESTAMP_NONE).cast(COLUMNS["timestamp"])


def _timestamp_type(chunk: _Chunk) -> pa.Array:
    return pa.array(chunk.stamps[0] - np.int32(1))


def _headers(chunk: _Chunk) -> pa.Array:
    rows = [
        [{"key": key, "value": value} for key, value in headers] if headers else None
        for headers in chunk.all("headers")
    ]
    return pa.array(rows, HEADERS_TYPE)


_BUILD: dict[str, Callable[[_Chunk], pa.Array]] = {
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
