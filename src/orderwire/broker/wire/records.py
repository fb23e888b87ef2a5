"""The records inside a batch: a builder and a reader for tests, tools and exact time look-ups.

A broker stores and sends batches as they are and never comes here for that.
"""

from collections.abc import Iterator, Sequence

import msgspec
from crc32c import crc32c

from orderwire.broker.wire.batch import (
    BATCH_HEADER,
    CRC_FROM,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    MAGIC,
    NO_PRODUCER,
    BatchHeader,
    read_header,
    walk,
)
from orderwire.broker.wire.codec import MALFORMED
from orderwire.broker.wire.compression import Compression, compress, decompress
from orderwire.broker.wire.parts import Buffer
from orderwire.kernel.errors import RemoteProtocolError


class Record(msgspec.Struct, frozen=True):
    """One record as an application sees it."""

    value: bytes | None
    key: bytes | None = None
    timestamp: int = 0
    """Milliseconds since 1970."""
    headers: tuple[tuple[str, bytes | None], ...] = ()
    offset: int = 0
    """Ignored by the builder, which numbers records densely."""


def build_batch(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    leader_epoch: int = -1,
    compression: Compression = Compression.NONE,
    attributes: int = 0,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    first_delta: int = 0,
) -> bytearray:
    """Build one batch, checksum included.  `attributes` adds flags such as CONTROL.

    `first_delta` is how far the first record stands behind the base offset.
    """
    assert records, "a batch holds at least one record"
    base_timestamp = records[0].timestamp
    body = bytearray()
    for delta, record in enumerate(records, first_delta):
        _write_record(body, record, delta, base_timestamp)
    packed = compress(compression, bytes(body))
    batch = bytearray(HEADER_BYTES)
    batch += packed
    fields = (
        attributes | compression,
        first_delta + len(records) - 1,
        base_timestamp,
        max(record.timestamp for record in records),
        producer_id,
        producer_epoch,
        base_sequence,
        len(records),
    )
    length = len(batch) - LENGTH_OVERHEAD
    BATCH_HEADER.pack_into(batch, 0, base_offset, length, leader_epoch, MAGIC, 0, *fields)
    with memoryview(batch) as view:
        crc = crc32c(view[CRC_FROM:])
    BATCH_HEADER.pack_into(batch, 0, base_offset, length, leader_epoch, MAGIC, crc, *fields)
    return batch


def read_records(data: Buffer) -> Iterator[Record]:
    """Yield the records of every whole batch.  Raises RemoteProtocolError when malformed."""
    for at, _ in walk(data):
        yield from records_of_batch(data, at)


def records_of_batch(data: Buffer, at: int = 0) -> Iterator[Record]:
    """Yield the records of the batch at this offset, which must be all there."""
    header = read_header(data, at)
    packed = memoryview(data)[at + HEADER_BYTES : at + header.size_bytes]
    body = memoryview(decompress(header.attributes, packed))
    position = 0
    for _ in range(header.count):
        try:
            record, position = _read_record(body, position, header)
        except MALFORMED as error:
            raise RemoteProtocolError(f"malformed record at {position}: {error}") from error
        yield record
    if position != len(body):
        raise RemoteProtocolError(f"{len(body) - position} bytes follow the last record")


def _write_record(out: bytearray, record: Record, delta: int, base_timestamp: int) -> None:
    body = bytearray(b"\x00")
    _write_varlong(body, record.timestamp - base_timestamp)
    _write_varlong(body, delta)
    _write_bytes(body, record.key)
    _write_bytes(body, record.value)
    _write_varlong(body, len(record.headers))
    for key, value in record.headers:
        _write_bytes(body, key.encode())
        _write_bytes(body, value)
    _write_varlong(out, len(body))
    out += body


def _read_record(data: memoryview, at: int, header: BatchHeader) -> tuple[Record, int]:
    size, at = _read_varlong(data, at)
    end = at + size
    if size < 0 or end > len(data):
        raise RemoteProtocolError(f"a record of {size} bytes at {at} runs past {len(data)}")
    at += 1
    timestamp_delta, at = _read_varlong(data, at)
    offset_delta, at = _read_varlong(data, at)
    key, at = _read_bytes(data, at)
    value, at = _read_bytes(data, at)
    count, at = _read_varlong(data, at)
    if not 0 <= count <= end - at:
        raise RemoteProtocolError(f"a record announces {count} headers in {end - at} bytes")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        name, at = _read_bytes(data, at)
        if name is None:
            raise RemoteProtocolError("a record header has no name")
        content, at = _read_bytes(data, at)
        headers.append((str(name, "utf-8"), content))
    if at != end:
        raise RemoteProtocolError(f"a record ends at {at}, but its length says {end}")
    record = Record(
        value=value,
        key=key,
        timestamp=header.base_timestamp + timestamp_delta,
        headers=tuple(headers),
        offset=header.base_offset + offset_delta,
    )
    return record, end


def _write_bytes(out: bytearray, value: bytes | None) -> None:
    if value is None:
        _write_varlong(out, -1)
    else:
        _write_varlong(out, len(value))
        out += value


def _read_bytes(data: memoryview, at: int) -> tuple[bytes | None, int]:
    size, at = _read_varlong(data, at)
    if size < 0:
        return None, at
    end = at + size
    if end > len(data):
        raise RemoteProtocolError(f"{size} bytes at {at} run past the end ({len(data)})")
    return bytes(data[at:end]), end


def _write_varlong(out: bytearray, value: int) -> None:
    """Zigzag: 0, −1, 1, −2 … become 0, 1, 2, 3 …, seven bits a byte."""
    coded = (value << 1) ^ (value >> 63)
    while coded > 0x7F:
        out.append(coded & 0x7F | 0x80)
        coded >>= 7
    out.append(coded)


def _read_varlong(data: memoryview, at: int) -> tuple[int, int]:
    coded = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        coded |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (coded >> 1) ^ -(coded & 1), at
    raise RemoteProtocolError(f"varlong before {at} is longer than ten bytes")
