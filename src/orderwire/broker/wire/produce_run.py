"""Many small Produce requests in a row that differ in nothing but their records.

That is what a client sends that does not batch: the same head again and again.  A shape holds what
they share, and one struct call reads a request up to the end of its batch's header.
"""

from functools import lru_cache
from struct import Struct

from orderwire.broker.wire.codec import uvarint
from orderwire.broker.wire.single_produce import (
    ACKS_WITH_REPLY,
    BASE_OFFSET_BYTES,
    FLEXIBLE_FROM,
    base_offset_at,
    read_single_produce,
    single_produce_frame,
)

_CORRELATION_END = 8
"""Where the correlation id ends in a request; a shape's prefix begins there."""
_KEY_BYTES = 4
_LENGTH_BYTES = 4
_TAGS_BYTES = 3
_SHAPES_MAX = 1_024


@lru_cache(_SHAPES_MAX)
def _request_head(prefix_bytes: int, length_bytes: int) -> Struct:
    return Struct(f">i4si{prefix_bytes}s{length_bytes}sqiibIhiqqqhii")


@lru_cache(_SHAPES_MAX)
def _answer(middle_bytes: int, rest_bytes: int) -> Struct:
    return Struct(f">4si{middle_bytes}sq{rest_bytes}s")


class ProduceShape:
    """One topic, one partition, one client, one version: what the requests of a run share."""

    __slots__ = (
        "acks",
        "around",
        "flexible",
        "head",
        "index",
        "key",
        "prefix",
        "tags_bytes",
        "timeout_ms",
        "topic",
        "version",
    )

    def __init__(
        self,
        request: memoryview,
        version: int,
        acks: int,
        timeout_ms: int,
        topic: bytes,
        index: int,
        records_bytes: int,
    ) -> None:
        """Take the shape of a request, its frame's length left out, that names this partition."""
        self.version = version
        self.acks = acks
        self.timeout_ms = timeout_ms
        self.flexible = version >= FLEXIBLE_FROM
        self.topic = topic
        """Its name, or its id from version 13 on."""
        self.index = index
        self.tags_bytes = _TAGS_BYTES if self.flexible else 0
        """Zeros that follow the records."""
        self.around = len(request) - records_bytes
        """Bytes of a request that are no records."""
        length_bytes = len(self.length_field(records_bytes))
        prefix_end = self.around - self.tags_bytes - length_bytes
        self.key = bytes(request[:_KEY_BYTES])
        self.prefix = bytes(request[_CORRELATION_END:prefix_end])
        self.head = _request_head(len(self.prefix), length_bytes)
        """Frame length, key and version, correlation id, prefix, length of the records, header."""

    def fits(self, data: memoryview, at: int) -> bool:
        """Whether the frame that begins here, length first, has this shape."""
        at += _LENGTH_BYTES
        start = at + _CORRELATION_END
        return (
            data[at : at + _KEY_BYTES] == self.key
            and data[start : start + len(self.prefix)] == self.prefix
        )

    def length_field(self, records_bytes: int) -> bytes:
        """How the length of the records is written."""
        if self.flexible:
            return uvarint(records_bytes + 1)
        return records_bytes.to_bytes(_LENGTH_BYTES, "big")

    def answers(self, stored: list[tuple[int, int]], log_start: int) -> bytes:
        """The response frames of requests that were stored: correlation id and base offset each."""
        frame = single_produce_frame(self.version, 0, self.topic, self.index, 0, log_start)
        at = base_offset_at(self.version, self.topic)
        head = frame[:_LENGTH_BYTES]
        middle = frame[_CORRELATION_END:at]
        rest = frame[at + BASE_OFFSET_BYTES :]
        pack = _answer(len(middle), len(rest)).pack
        return b"".join(
            [pack(head, correlation, middle, base, rest) for correlation, base in stored]
        )


def produce_shape(request: memoryview, at: int, version: int) -> ProduceShape | None:
    """Take the shape of a request whose body begins at this offset.

    None when it is not of the simple kind, or its acks are not ones that are answered.
    """
    found = read_single_produce(request, at, version)
    if found is None or found[0] not in ACKS_WITH_REPLY:
        return None
    acks, timeout_ms, topic, index, records = found
    return ProduceShape(request, version, acks, timeout_ms, bytes(topic), index, len(records))
