"""Decides whether batches that have offsets and epochs already may follow a log's end.

They come from another replica or from a journal: sequences, sizes and kinds were judged by who
assigned the offsets.  What is checked is that they are whole and in place.
"""

import msgspec
from crc32c import crc32c

from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.log.admission import Admitted, Batch, Sequenced
from orderwire.broker.log.model import Refused
from orderwire.broker.log.producers import ProducerBatch
from orderwire.broker.wire.batch import (
    BATCH_HEADER,
    CRC_FROM,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    MAGIC,
)

_unpack_header = BATCH_HEADER.unpack_from
_LEAST_LENGTH = HEADER_BYTES - LENGTH_OVERHEAD


class Run(msgspec.Struct, frozen=True, gc=False):
    """Batches of one epoch that stand side by side."""

    epoch: int
    start: int
    """Where the run begins and ends in the caller's buffer, in bytes."""
    end: int
    admitted: Admitted
    """Positions count from the run's start."""


def admit_placed(view: memoryview, offset: int, epoch: int) -> list[Run] | Refused:
    """Check batches that must begin at this offset, in this epoch or a later one."""
    size = len(view)
    at = run_at = 0
    runs: list[Run] = []
    batches: list[Batch] = []
    sequenced: list[Sequenced] = []
    first = offset
    run_epoch = epoch
    while at < size:
        if size - at < HEADER_BYTES:
            return _torn(at, size)
        (
            base,
            length,
            batch_epoch,
            magic,
            crc,
            _,
            delta,
            _,
            newest,
            producer_id,
            producer_epoch,
            sequence,
            count,
        ) = _unpack_header(view, at)
        end = at + length + LENGTH_OVERHEAD
        if magic != MAGIC or length < _LEAST_LENGTH or end > size:
            return _torn(at, size)
        if count < 1 or delta < 0:
            return Refused(
                ErrorCode.INVALID_RECORD,
                f"a batch of {count} records with last offset delta {delta}",
            )
        if crc32c(view[at + CRC_FROM : end]) != crc:
            return Refused(
                ErrorCode.CORRUPT_MESSAGE,
                f"the checksum of the batch at offset {base} does not match",
            )
        if base != offset:
            return Refused(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"a batch with base offset {base} cannot stand at offset {offset}",
            )
        if batch_epoch < max(run_epoch, 0):
            return Refused(
                ErrorCode.FENCED_LEADER_EPOCH,
                f"a batch of epoch {batch_epoch} at offset {offset} cannot follow"
                f" epoch {run_epoch}",
            )
        if batch_epoch != run_epoch:
            if batches:
                runs.append(Run(run_epoch, run_at, at, Admitted(batches, offset, sequenced)))
            batches, sequenced = [], []
            run_at, run_epoch = at, batch_epoch
        if producer_id >= 0 and sequence >= 0:
            until = (sequence + delta) & 0x7FFF_FFFF
            noted = ProducerBatch(sequence, until, offset, offset + delta)
            sequenced.append((producer_id, producer_epoch, noted))
        batches.append((offset, at - run_at, length, newest))
        offset += delta + 1
        at = end
    if not batches:
        return Refused(ErrorCode.INVALID_RECORD, f"no batch to append at offset {first}")
    runs.append(Run(run_epoch, run_at, at, Admitted(batches, offset, sequenced)))
    return runs


def _torn(at: int, size: int) -> Refused:
    return Refused(ErrorCode.CORRUPT_MESSAGE, f"no whole record batch at byte {at} of {size}")
