"""Idempotent producers: what each wrote last, so that a retry is recognised.

Everything here follows from the batches' headers; snapshots only save time and outlive retention.
"""

from collections import deque

import msgspec

from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.log.model import Appended, Refused
from orderwire.broker.log.sealed import seal, unseal

BATCHES_KEPT = 5
"""A producer has at most this many requests in flight, so a retry is one of the last five."""


class ProducerBatch(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One batch as it was written."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int


class _Producer:
    """One producer id."""

    __slots__ = ("batches", "epoch", "gap", "seen_ms")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: deque[ProducerBatch] = deque(maxlen=BATCHES_KEPT)
        self.seen_ms = 0
        self.gap: int | None = None
        """Something of it may be lost: the least sequence that it has sent since; −1: none."""


def _is_older(producer: _Producer, epoch: int, batch: ProducerBatch) -> bool:
    """Whether the producer has written something later; sequences wrap at 2³¹."""
    if epoch != producer.epoch:
        return epoch < producer.epoch
    newest = producer.batches[-1].last_sequence
    return (batch.first_sequence - newest - 1) & 0x7FFF_FFFF >= 1 << 30


class _ProducerRow(msgspec.Struct, array_like=True):
    producer_id: int
    epoch: int
    seen_ms: int
    batches: list[ProducerBatch]


class _ProducerFile(msgspec.Struct, array_like=True):
    offset: int
    rows: list[_ProducerRow]


class ProducerTable:
    """Producers by id, the longest silent first."""

    def __init__(self) -> None:
        self._producers: dict[int, _Producer] = {}

    def __len__(self) -> int:
        return len(self._producers)

    def __contains__(self, producer_id: int) -> bool:
        return producer_id in self._producers

    def adopt(self, producer_id: int, other: "ProducerTable") -> None:
        """Begin with what another table knows of this producer."""
        known = other._producers.get(producer_id)
        if known is not None:
            mine = self._producers[producer_id] = _Producer(known.epoch)
            mine.batches.extend(known.batches)
            mine.seen_ms = known.seen_ms
            mine.gap = known.gap

    def forget(self, producer_id: int) -> None:
        """Know nothing of this producer any more."""
        self._producers.pop(producer_id, None)

    def check(
        self, producer_id: int, epoch: int, first: int, last: int
    ) -> Appended | Refused | None:
        """Judge a batch: None means write it, Appended that it was written before.

        An unknown producer (new, or expired) may begin with any sequence.
        """
        producer = self._producers.get(producer_id)
        if producer is None or not producer.batches:
            return None
        if epoch < producer.epoch:
            return Refused(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {producer_id} has epoch {producer.epoch}; {epoch} is fenced",
            )
        if epoch > producer.epoch:
            if first == 0:
                return None
            return Refused(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {producer_id} begins epoch {epoch} with sequence {first}, not 0",
            )
        newest = producer.batches[-1]
        expected = (newest.last_sequence + 1) & 0x7FFF_FFFF
        if first == expected:
            return None
        if producer.gap is not None and self._goes_on(producer, expected, first):
            return None
        for batch in producer.batches:
            if batch.first_sequence == first and batch.last_sequence == last:
                return Appended(batch.base_offset, batch.last_offset, duplicate=True)
        return Refused(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {producer_id} sent sequence {first}; expected {expected}",
        )

    def may_lack(self) -> None:
        """What producers were told of may be lost: each may go on behind that.  [S004:4.8]

        A client sends what it has again, in order: so the least sequence that comes, when it comes
        a second time, is where it goes on.
        """
        for producer in self._producers.values():
            producer.gap = -1

    def _goes_on(self, producer: _Producer, expected: int, first: int) -> bool:
        ahead = (first - expected) & 0x7FFF_FFFF
        if ahead >= 1 << 30:
            return False
        if producer.gap == first:
            return True
        assert producer.gap is not None
        if producer.gap < 0 or ahead < (producer.gap - expected) & 0x7FFF_FFFF:
            producer.gap = first
        return False

    def note(self, producer_id: int, epoch: int, batch: ProducerBatch, now_ms: int) -> None:
        """Remember a batch that was written.

        An old one that is published again does not take the producer back.  [S004:R8]
        """
        producer = self._producers.get(producer_id)
        if producer is not None and producer.batches and _is_older(producer, epoch, batch):
            return
        self._producers.pop(producer_id, None)
        if producer is None:
            producer = _Producer(epoch)
        elif producer.epoch != epoch:
            producer.epoch = epoch
            producer.batches.clear()
        self._producers[producer_id] = producer
        producer.gap = None
        producer.batches.append(batch)
        producer.seen_ms = now_ms

    def expire(self, before_ms: int, producers_max: int) -> None:
        """Forget producers that were last seen before this time, and the oldest beyond a number."""
        while self._producers:
            producer_id, producer = next(iter(self._producers.items()))
            if producer.seen_ms >= before_ms and len(self._producers) <= producers_max:
                return
            del self._producers[producer_id]

    def to_bytes(self, offset: int) -> bytes:
        """As a snapshot of everything before this offset."""
        rows = [
            _ProducerRow(producer_id, producer.epoch, producer.seen_ms, list(producer.batches))
            for producer_id, producer in self._producers.items()
        ]
        return seal(_ProducerFile(offset, rows))

    @classmethod
    def from_bytes(cls, data: bytes | None, offset: int) -> "ProducerTable | None":
        """Read a snapshot back; None when it is missing, damaged, or of another offset."""
        file = unseal(data, _ProducerFile)
        if file is None or file.offset != offset:
            return None
        table = cls()
        for row in file.rows:
            producer = table._producers[row.producer_id] = _Producer(row.epoch)
            producer.seen_ms = row.seen_ms
            producer.batches.extend(row.batches)
        return table
