"""Reads a segment from its start and finds where the good part ends.

This is the loop that decides how long a restart after a crash takes: about 0.7 µs a batch, and
the checksum's speed for large ones.
"""

from struct import Struct

import msgspec
from crc32c import crc32c

from orderwire.broker.log.epochs import EpochHistory
from orderwire.broker.log.index import SparseIndex
from orderwire.broker.log.producers import ProducerBatch, ProducerTable
from orderwire.broker.log.storage import LogFile
from orderwire.broker.wire.batch import CRC_FROM, HEADER_BYTES, LENGTH_OVERHEAD, MAGIC

_CHUNK_BYTES = 4 << 20
_SCANNED = Struct(">qiibI2xi8xqqhi4x")
"""The header without attributes, base timestamp and record count."""
NO_TIME = -1


class Scan(msgspec.Struct, frozen=True):
    """What a scan found."""

    good_bytes: int
    """Everything before is whole and in place."""
    next_offset: int
    newest_ms: int
    """The largest timestamp; −1 when there is none."""
    reason: str | None
    """Why the scan stopped before the end."""
    index: SparseIndex


def scan(
    file: LogFile,
    behind: Scan,
    *,
    epochs: EpochHistory,
    epochs_known: bool,
    producers: ProducerTable,
    interval_bytes: int,
    now_ms: int,
) -> Scan:
    """Check every batch of a segment behind what is known to be good.

    Adds to that index, and brings producers up to date.

    A batch is good when it is all there, its checksum matches, its base offset is the one expected
    and its epoch the one the history names.  Behind what is known of a history the epochs must not
    decrease, and the history is rebuilt.
    """
    unpack = _SCANNED.unpack_from
    index = behind.index
    size = file.size
    position = behind.good_bytes
    buffer = bytearray(min(max(size - position, HEADER_BYTES), _CHUNK_BYTES))
    start = position  # the buffer's first byte in the file
    filled = at = 0
    expected = behind.next_offset
    newest = behind.newest_ms
    index_from = index.next_position
    epoch_now = epochs.at(expected)
    epoch_until = epochs.next_change(expected)
    reason: str | None = None
    view = memoryview(buffer)
    while position < size:
        if filled - at >= HEADER_BYTES:
            (
                base,
                length,
                epoch,
                magic,
                crc,
                delta,
                newest_of_batch,
                producer_id,
                producer_epoch,
                sequence,
            ) = unpack(buffer, at)
            end = at + length + LENGTH_OVERHEAD
            if base != expected:
                reason = f"base offset {base}, expected {expected}"
                break
            if length < HEADER_BYTES - LENGTH_OVERHEAD or magic != MAGIC or delta < 0:
                reason = f"no batch header (length {length}, magic {magic})"
                break
            if start + end > size:
                reason = f"batch of {end - at} bytes is cut off after {size - start - at}"
                break
        else:
            if size - position < HEADER_BYTES:
                reason = f"batch header is cut off after {size - position} bytes"
                break
            end = at + HEADER_BYTES
        if end > filled:
            need = end - at
            view[: filled - at] = view[at:filled]
            filled -= at
            start += at
            at = 0
            if need > len(buffer):
                view.release()
                buffer = buffer + bytearray(need - len(buffer))
                view = memoryview(buffer)
            came = file.read_into(start + filled, view[filled:])
            if came == 0:
                reason = "the file ends early"
                break
            filled += came
            continue
        if crc32c(view[at + CRC_FROM : end]) != crc:
            reason = "checksum does not match"
            break
        if expected >= epoch_until:
            epoch_now = epochs.at(expected)
            epoch_until = epochs.next_change(expected)
        if epoch != epoch_now:
            if epochs_known or epoch <= epochs.latest:
                reason = f"epoch {epoch}, expected {epoch_now}"
                break
            epochs.begin(epoch, expected)
            epoch_now = epoch
        if position >= index_from:
            index.add(expected, position, newest, interval_bytes)
            index_from = index.next_position
        if newest_of_batch > newest:
            newest = newest_of_batch
        if producer_id >= 0 and sequence >= 0:
            last = (sequence + delta) & 0x7FFF_FFFF
            noted = ProducerBatch(sequence, last, expected, expected + delta)
            producers.note(producer_id, producer_epoch, noted, now_ms)
        expected += delta + 1
        position += end - at
        at = end
    if reason is not None:
        reason = f"at byte {position}, offset {expected}: {reason}"
    return Scan(position, expected, newest, reason, index)
