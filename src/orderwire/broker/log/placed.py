"""Decides whether batches that have offsets and epochs already may follow a log's end.

They come from another replica or from a journal: sequences, sizes and kinds were judged by who
assigned the offsets.  What is checked is that they are whole and in place.
"""

import msgspec

from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.log.admission import Admitted, Batch, Sequenced
from orderwire.broker.log.model import Refused
from orderwire.broker.log.producers import ProducerBatch
from orderwire.broker.wire.batch import (
    HEADER_BYTES,
    MAGIC,
    crc_matches,
    read_header,
)
from orderwire.broker.wire.parts import Buffer


class Run(msgspec.Struct, frozen=True, gc=False):
    """Batches of one epoch that stand side by side."""

    epoch: int
    start: int
    """Where the run begins and ends in the caller's buffer, in bytes."""
    end: int
    admitted: Admitted
    """Positions count from the run's start."""


def admit_placed(records: Buffer, offset: int, epoch: int) -> list[Run] | Refused:
    """Check batches that must begin at this offset, in this epoch or a later one."""
    size = len(records)
    at = run_at = 0
    runs: list[Run] = []
    batches: list[Batch] = []
    sequenced: list[Sequenced] = []
    first = offset
    run_epoch = epoch
    while at < size:
        if size - at < HEADER_BYTES:
            return _torn(at, size)
        header = read_header(records, at)
        end = at + header.size_bytes
        if header.magic != MAGIC or header.size_bytes < HEADER_BYTES or end > size:
            return _torn(at, size)
        if header.count < 1 or header.last_offset_delta < 0:
            return Refused(
                ErrorCode.INVALID_RECORD,
                f"a batch of {header.count} records with last offset delta"
                f" {header.last_offset_delta}",
            )
        if not crc_matches(records, at, header.size_bytes, header.crc):
            return Refused(
                ErrorCode.CORRUPT_MESSAGE,
                f"the checksum of the batch at offset {header.base_offset} does not match",
            )
        if header.base_offset != offset:
            return Refused(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"a batch with base offset {header.base_offset} cannot stand at offset {offset}",
            )
        if header.leader_epoch < max(run_epoch, 0):
            return Refused(
                ErrorCode.FENCED_LEADER_EPOCH,
                f"a batch of epoch {header.leader_epoch} at offset {offset} cannot follow"
                f" epoch {run_epoch}",
            )
        if header.leader_epoch != run_epoch:
            if batches:
                runs.append(Run(run_epoch, run_at, at, Admitted(batches, offset, sequenced)))
            batches, sequenced = [], []
            run_at, run_epoch = at, header.leader_epoch
        if header.producer_id >= 0 and header.base_sequence >= 0:
            noted = ProducerBatch(
                header.base_sequence, header.last_sequence, offset, header.last_offset
            )
            sequenced.append((header.producer_id, header.producer_epoch, noted))
        batches.append((offset, at - run_at, header.batch_length, header.max_timestamp))
        offset = header.last_offset + 1
        at = end
    if not batches:
        return Refused(ErrorCode.INVALID_RECORD, f"no batch to append at offset {first}")
    runs.append(Run(run_epoch, run_at, at, Admitted(batches, offset, sequenced)))
    return runs


def _torn(at: int, size: int) -> Refused:
    return Refused(ErrorCode.CORRUPT_MESSAGE, f"no whole record batch at byte {at} of {size}")
