"""The one Produce request that matters for speed: one topic, one partition, no transaction.

Hand-written twins of the generated codec, for small requests that come by the hundred thousand;
tests hold them to it byte by byte.  Anything else returns None and takes the general way.
"""

from struct import Struct

from orderwire.broker.wire.codec import read_uvarint

ACKS_WITH_REPLY = (-1, 1)
OLDEST = 3
NEWEST = 13
FLEXIBLE_FROM = 9
BY_ID_FROM = 13
_UUID_BYTES = 16

# Up to the topic's name or id, and from there to the records.
_OPEN = Struct(">hhiih")
_OPEN_FLEXIBLE = Struct(">BhiBB")
_OPEN_BY_ID = Struct(">BhiB")
_REST = Struct(">iii")
_REST_FLEXIBLE = Struct(">BiB")

_OK_3 = Struct(">iihqqi")
_OK_5 = Struct(">iihqqqi")
_OK_8 = Struct(">iihqqqihi")
_OK_9 = Struct(">BihqqqBBBBiB")
_HEAD = Struct(">iiih")
_HEAD_FLEXIBLE = Struct(">iiBBB")
_HEAD_BY_ID = Struct(">iiBB")

NO_TAGS = b"\x00\x00\x00"
"""Three empty sections of tags end a flexible request: the partition's, the topic's, its own."""

BASE_OFFSET_BYTES = 8
_PARTITION_BYTES = 10
_PARTITION_BYTES_FLEXIBLE = 7
"""Number of partitions, index and error code, which stand before the base offset."""

Single = tuple[int, int, memoryview, int, memoryview]
"""Acks, the time limit in ms, the topic's name (or its id, from version 13 on), the partition, the
records."""


def read_single_produce(data: memoryview, at: int, version: int) -> Single | None:
    """Read a request body that begins at this offset; None when it is not of the simple kind."""
    size = len(data)
    if not OLDEST <= version <= NEWEST:
        return None
    if version < FLEXIBLE_FROM:
        if at + _OPEN.size > size:
            return None
        transaction, acks, timeout_ms, topics, length = _OPEN.unpack_from(data, at)
        name_at = at + _OPEN.size
        at = name_at + length
        if transaction != -1 or topics != 1 or length < 0 or at + _REST.size > size:
            return None
        partitions, index, length = _REST.unpack_from(data, at)
        start = at + _REST.size
        if partitions != 1 or length < 0 or start + length != size:
            return None
        return acks, timeout_ms, data[name_at:at], index, data[start:]
    if version < BY_ID_FROM:
        if at + _OPEN_FLEXIBLE.size > size:
            return None
        transaction, acks, timeout_ms, topics, length = _OPEN_FLEXIBLE.unpack_from(data, at)
        name_at = at + _OPEN_FLEXIBLE.size
        at = name_at + length - 1
        if length == 0 or length > 127:
            return None
    else:
        if at + _OPEN_BY_ID.size > size:
            return None
        transaction, acks, timeout_ms, topics = _OPEN_BY_ID.unpack_from(data, at)
        name_at = at + _OPEN_BY_ID.size
        at = name_at + _UUID_BYTES
    if transaction or topics != 2 or at + _REST_FLEXIBLE.size > size:
        return None
    partitions, index, length = _REST_FLEXIBLE.unpack_from(data, at)
    start = at + _REST_FLEXIBLE.size
    if length > 127:
        try:
            length, start = read_uvarint(data, start - 1)
        except IndexError:
            return None
    end = start + length - 1
    if partitions != 2 or length == 0 or end + 3 != size or bytes(data[end:]) != NO_TAGS:
        return None
    return acks, timeout_ms, data[name_at:at], index, data[start:end]


def single_produce_frame(
    version: int, correlation_id: int, topic: bytes, index: int, base_offset: int, log_start: int
) -> bytes:
    """The whole response frame, length and header included, of a batch that was stored.

    `topic` is what the request named: shorter than 127 bytes, and 16 of them from version 13 on.
    """
    length = len(topic)
    if version >= FLEXIBLE_FROM:
        rest = _OK_9.pack(2, index, 0, base_offset, -1, log_start, 1, 0, 0, 0, 0, 0)
        if version < BY_ID_FROM:
            size = 7 + length + _OK_9.size
            return _HEAD_FLEXIBLE.pack(size, correlation_id, 0, 2, length + 1) + topic + rest
        return _HEAD_BY_ID.pack(6 + length + _OK_9.size, correlation_id, 0, 2) + topic + rest
    if version >= 8:
        rest = _OK_8.pack(1, index, 0, base_offset, -1, log_start, 0, -1, 0)
    elif version >= 5:
        rest = _OK_5.pack(1, index, 0, base_offset, -1, log_start, 0)
    else:
        rest = _OK_3.pack(1, index, 0, base_offset, -1, 0)
    return _HEAD.pack(10 + length + len(rest), correlation_id, 1, length) + topic + rest


def base_offset_at(version: int, topic: bytes) -> int:
    """Where the base offset stands in such a response frame."""
    if version < FLEXIBLE_FROM:
        return _HEAD.size + len(topic) + _PARTITION_BYTES
    head = _HEAD_FLEXIBLE if version < BY_ID_FROM else _HEAD_BY_ID
    return head.size + len(topic) + _PARTITION_BYTES_FLEXIBLE
