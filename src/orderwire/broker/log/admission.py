"""Decides whether records may enter the log: shape, checksum, size, sequence."""

from typing import Protocol

import msgspec
from crc32c import crc32c

from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.log.model import Appended, LogConfig, Refused
from orderwire.broker.log.producers import ProducerBatch
from orderwire.broker.wire.batch import (
    BATCH_HEADER,
    CONTROL,
    CRC_FROM,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    MAGIC,
    MAGIC_AT,
    TRANSACTIONAL,
)

_unpack_header = BATCH_HEADER.unpack_from


Batch = tuple[int, int, int, int]
"""One batch of a request: the offset it will have, where it stands in the request's records, its
batchLength, its newest time in milliseconds."""

Sequenced = tuple[int, int, ProducerBatch]
"""An idempotent producer's id, its epoch and the batch to remember."""


class Sequences(Protocol):
    """What is known of idempotent producers."""

    def check(
        self, producer_id: int, epoch: int, first: int, last: int
    ) -> Appended | Refused | None:
        """Judge a batch: None means write it, Appended that it was written before."""
        ...


class Admitted(msgspec.Struct, frozen=True, gc=False):
    """What will be written."""

    batches: list[Batch]
    next_offset: int
    sequenced: list[Sequenced]


def admit(
    records: bytearray | memoryview,
    offset: int,
    config: LogConfig,
    producers: Sequences,
    *,
    internal: bool,
) -> Admitted | Appended | Refused:
    """Check records that would begin at this offset.  Appended means that they are there already.

    `internal` allows control batches, and batches that stand for more offsets than records.
    """
    size = len(records)
    at = 0
    batches: list[Batch] = []
    sequenced: list[Sequenced] = []
    while at < size:
        if size - at < HEADER_BYTES:
            return _not_a_batch(records, at)
        (
            _,
            length,
            _,
            magic,
            crc,
            attributes,
            delta,
            _,
            newest,
            producer_id,
            producer_epoch,
            sequence,
            count,
        ) = _unpack_header(records, at)
        end = at + length + LENGTH_OVERHEAD
        if magic != MAGIC or end > size or length < HEADER_BYTES - LENGTH_OVERHEAD:
            return _not_a_batch(records, at)
        if end - at > config.max_message_bytes:
            return Refused(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a batch of {end - at} bytes; at most {config.max_message_bytes} are taken",
            )
        if crc32c(records[at + CRC_FROM : end]) != crc:
            return Refused(
                ErrorCode.CORRUPT_MESSAGE, "the checksum of a batch does not match its content"
            )
        if not internal and (attributes & (CONTROL | TRANSACTIONAL) or delta != count - 1):
            return _unacceptable(attributes, count, delta)
        if count < 1 or delta < 0:
            return _unacceptable(attributes, count, delta)
        if producer_id >= 0 and sequence >= 0:
            if batches or end < size:
                return Refused(
                    ErrorCode.INVALID_RECORD,
                    "an idempotent producer sends one batch per request and partition",
                )
            last = (sequence + delta) & 0x7FFF_FFFF
            verdict = producers.check(producer_id, producer_epoch, sequence, last)
            if verdict is not None:
                return verdict
            noted = ProducerBatch(sequence, last, offset, offset + delta)
            sequenced.append((producer_id, producer_epoch, noted))
        batches.append((offset, at, length, newest))
        offset += delta + 1
        at = end
    if not 0 < len(batches) <= config.batches_per_append_max:
        return Refused(
            ErrorCode.INVALID_RECORD,
            f"{len(batches)} batches in one request; 1 to {config.batches_per_append_max} are"
            " taken",
        )
    return Admitted(batches, offset, sequenced)


def _not_a_batch(records: bytearray | memoryview, at: int) -> Refused:
    """Old formats get their own code; clients explain it to their users."""
    if at + MAGIC_AT < len(records) and records[at + MAGIC_AT] in {0, 1}:
        return Refused(
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            f"message format v{records[at + MAGIC_AT]} is not taken, only v2 (Kafka 0.11, 2017)",
        )
    return Refused(
        ErrorCode.CORRUPT_MESSAGE,
        f"no whole record batch of format v2 at byte {at} of {len(records)}",
    )


def _unacceptable(attributes: int, count: int, delta: int) -> Refused:
    if attributes & (CONTROL | TRANSACTIONAL):
        return Refused(ErrorCode.INVALID_RECORD, "control and transactional batches are not taken")
    return Refused(
        ErrorCode.INVALID_RECORD,
        f"a batch of {count} records with last offset delta {delta}; expected {count - 1}",
    )
