"""Looks at batches that are about to leave the log: are they what was written?  [S004:9.2, 9.4]"""

from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from orderwire.broker.log.epochs import EpochHistory
from orderwire.broker.log.producers import ProducerTable
from orderwire.broker.log.segment import LOG, Segment, segment_name
from orderwire.broker.log.storage import LogDamaged, LogFile
from orderwire.broker.wire.batch import CRC_FROM, HEADER_BYTES, LENGTH_OVERHEAD, MAGIC

PIECE_BYTES = 1 << 20
"""Read at once, but for a single larger batch."""
IN_MEMORY_BYTES = 32 << 10
"""So few are handed on as they were read: no file slice pays for them."""
_HOLE_BYTES = 512
"""What a disk writes, or does not, as a whole."""
_LEAST = HEADER_BYTES - LENGTH_OVERHEAD
_CHECKED = Struct(">qiibI2xi")
"""Base offset, length, epoch, magic, checksum, last offset delta."""


class Checked(NamedTuple):
    """What a look at some bytes has found."""

    data: bytes | None
    """The bytes, when they are no more than one piece."""
    fault: str | None
    """What is wrong, first."""
    position: int
    offset: int
    """The first batch that is not whole, or wrong, or follows."""


def checked(file: LogFile, position: int, end: int, offset: int, epochs: EpochHistory) -> Checked:
    """Check the whole batches between two positions, the first of this offset.

    What is cut off at the end, readers drop.  Raises StorageError.
    """
    unpack = _CHECKED.unpack_from
    epoch_now, epoch_until = epochs.at(offset), epochs.next_change(offset)
    wanted = PIECE_BYTES
    start = position
    while position < end:
        data = file.read(position, min(wanted, end - position))
        size = len(data)
        if size < min(wanted, end - position):
            said = f"at byte {position + size}, offset {offset}: the file ends early"
            return Checked(None, said, position, offset)
        at = 0
        wanted = PIECE_BYTES
        with memoryview(data) as view:
            while at + HEADER_BYTES <= size:
                base, length, epoch, magic, crc, delta = unpack(data, at)
                if base != offset or magic != MAGIC or length < _LEAST or delta < 0:
                    said = f"no batch of offset {offset} (offset {base}, length {length})"
                    said = f"at byte {position + at}: {said}"
                    return Checked(None, said, position + at, offset)
                behind = at + length + LENGTH_OVERHEAD
                if behind > size:
                    wanted = max(behind - at, PIECE_BYTES)
                    break
                if offset >= epoch_until:
                    epoch_now, epoch_until = epochs.at(offset), epochs.next_change(offset)
                if epoch != epoch_now:
                    said = f"epoch {epoch}, expected {epoch_now}"
                    said = f"at byte {position + at}, offset {offset}: {said}"
                    return Checked(None, said, position + at, offset)
                if crc32c(view[at + CRC_FROM : behind]) != crc:
                    said = f"at byte {position + at}: the batch at offset {offset} is damaged"
                    return Checked(None, said, position + at, offset)
                offset += delta + 1
                at = behind
        if position + size >= end:
            return Checked(data if position == start else None, None, position + at, offset)
        position += at
    return Checked(b"", None, position, offset)


def check_newest(
    segments: list[Segment], epochs: EpochHistory, interval_bytes: int, bytes_max: int
) -> None:
    """Check every batch of the newest segments, of so many bytes together or of one at least.

    Raises LogDamaged.
    """
    for segment in reversed(segments):
        found = segment.scan(
            epochs, ProducerTable(), epochs_known=True, interval_bytes=interval_bytes
        )
        reason = found.reason
        if reason is None and found.next_offset != segment.next_offset:
            reason = f"ends at offset {found.next_offset}, expected {segment.next_offset}"
        if reason is not None:
            raise LogDamaged(f"{segment_name(segment.base_offset, LOG)} {reason}")
        bytes_max -= segment.size
        if bytes_max <= 0:
            return


def good_behind(file: LogFile, position: int, offset: int, epoch: int) -> bool:
    """Whether a good batch follows the bad one that stands here, instead of the one of this offset.

    Then that is damage, and no torn tail: unless a hole is in it, as a power failure leaves of what
    was never synced, or what follows is of a later epoch than `epoch`, the last that is known: one
    is durable before its first batch is.  Raises StorageError.
    """
    head = file.read(position, HEADER_BYTES)
    if len(head) < HEADER_BYTES:
        return False
    length = _CHECKED.unpack_from(head)[1]
    behind = position + length + LENGTH_OVERHEAD
    if length < _LEAST or behind + HEADER_BYTES > file.size:
        return False
    if bytes(_HOLE_BYTES) in file.read(position, behind - position):
        return False
    base, length, later, magic, crc, delta = _CHECKED.unpack_from(file.read(behind, HEADER_BYTES))
    end = behind + length + LENGTH_OVERHEAD
    if (
        later > epoch
        or base <= offset
        or magic != MAGIC
        or delta < 0
        or length < _LEAST
        or end > file.size
    ):
        return False
    batch = file.read(behind, end - behind)
    return bool(crc32c(memoryview(batch)[CRC_FROM:]) == crc)
