"""The header of a record batch, format v2: the only part of a batch that a broker reads.

Layout, 61 bytes: baseOffset i64, batchLength i32, partitionLeaderEpoch i32, magic i8, crc u32,
attributes i16, lastOffsetDelta i32, baseTimestamp i64, maxTimestamp i64, producerId i64,
producerEpoch i16, baseSequence i32, count i32.  The CRC-32C covers everything from `attributes`
on, so base offset and epoch can be set without touching it, and are not protected by it.
"""

from collections.abc import Iterator
from struct import Struct

import msgspec
from crc32c import crc32c

from orderwire.broker.wire.parts import Buffer
from orderwire.kernel.errors import RemoteProtocolError

BATCH_HEADER = Struct(">qiibIhiqqqhii")
HEADER_BYTES = BATCH_HEADER.size
LENGTH_AT = 8
"""Where batchLength stands; it counts the bytes behind itself."""
LENGTH_OVERHEAD = 12
"""Bytes of a batch that batchLength does not count."""
MAGIC_AT = 16
CRC_FROM = 21
"""The first byte that the CRC covers."""
MAGIC = 2

COMPRESSION_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20

NO_PRODUCER = -1

PLACE = Struct(">qii")
"""Base offset, batchLength and epoch: what the log sets in a batch that it takes."""


class BatchHeader(msgspec.Struct, frozen=True, gc=False):
    """One batch's header, field by field."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    """Milliseconds since 1970, as is `max_timestamp`."""
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int

    @property
    def size_bytes(self) -> int:
        """The whole batch, header included."""
        return self.batch_length + LENGTH_OVERHEAD

    @property
    def last_offset(self) -> int:
        """Offset of the last record."""
        return self.base_offset + self.last_offset_delta

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record; sequences wrap at 2³¹."""
        return (self.base_sequence + self.last_offset_delta) & 0x7FFF_FFFF


def read_header(data: Buffer, at: int = 0) -> BatchHeader:
    """Read the header at this offset.  Raises RemoteProtocolError when it is not all there."""
    if at + HEADER_BYTES > len(data):
        raise RemoteProtocolError(
            f"a batch header takes {HEADER_BYTES} bytes, but {len(data) - at} follow"
        )
    return BatchHeader(*BATCH_HEADER.unpack_from(data, at))


def place(
    data: bytearray | memoryview, at: int, batch_length: int, base_offset: int, leader_epoch: int
) -> None:
    """Set base offset and epoch of the batch at `at`; its length is written again as it is."""
    PLACE.pack_into(data, at, base_offset, batch_length, leader_epoch)


def crc_matches(data: Buffer, at: int, size_bytes: int, crc: int) -> bool:
    """Whether the batch's checksum is the one in its header."""
    with memoryview(data) as view:
        return crc32c(view[at + CRC_FROM : at + size_bytes]) == crc


def walk(data: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of every whole batch; a cut batch at the end is left out."""
    at = 0
    size = len(data)
    while at + HEADER_BYTES <= size:
        header = read_header(data, at)
        end = at + header.size_bytes
        if header.size_bytes < HEADER_BYTES:
            raise RemoteProtocolError(f"a batch of {header.size_bytes} bytes at {at} is too short")
        if end > size:
            return
        yield at, header
        at = end
