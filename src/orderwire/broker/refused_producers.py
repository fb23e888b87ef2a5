"""Idempotent producers whose batch was refused here, and has to come again before a later one.

A log that does not know a producer takes any sequence: it may be new, or expired.  Clients send
several requests at once.  When the first is refused, because nobody is original yet or the replica
is not open, and the second comes a moment later and is taken, a client believes, rightly, that the
first is stored as well: it would be lost.
"""

from struct import Struct
from typing import TypeAlias

from orderwire.broker.log import PartitionLog
from orderwire.broker.wire.parts import Buffer
from orderwire.kernel import NS_PER_S, Instant

REFUSED_MAX = 10_000
"""Producers that are remembered; the oldest go."""
PATIENCE_NS = 60 * NS_PER_S
"""A client that has tried so long to go on without the refused batch has given it up."""
_WHO = Struct(">qhi")
_WHO_AT = 43
Topic: TypeAlias = bytes | str
"""Its id; of one that is not known here yet, what a client named it by."""
Batch = tuple[int, int, int]
"""Producer id, epoch, first sequence."""


class RefusedProducers:
    """One broker's memory of them, for all partitions."""

    def __init__(self) -> None:
        self._waits: dict[tuple[Topic, int, int], tuple[int, int]] = {}
        """Topic, partition, producer → epoch and first sequence that have to come."""
        self._tried: dict[tuple[Topic, int, int], Instant] = {}
        """When the producer first tried to go on without."""

    @staticmethod
    def batch_of(records: Buffer) -> Batch | None:
        """Who sent this; None: nobody that counts."""
        if len(records) < _WHO_AT + _WHO.size:
            return None
        producer_id, epoch, sequence = _WHO.unpack_from(records, _WHO_AT)
        return (producer_id, epoch, sequence) if producer_id >= 0 and sequence >= 0 else None

    def refused(self, topic: Topic, index: int, batch: Batch) -> None:
        """Remember the first of its batches that was not taken."""
        producer_id, epoch, sequence = batch
        key = topic, index, producer_id
        known = self._waits.get(key)
        if known is not None and known[0] == epoch:
            return
        self._forget(key)
        self._waits[key] = epoch, sequence
        while len(self._waits) > REFUSED_MAX:
            self._forget(next(iter(self._waits)))

    def absent(self, topic: Topic, index: int, records: Buffer | None) -> None:
        """The same of what came for a partition that is not here, or not yet."""
        batch = None if records is None else self.batch_of(records)
        if batch is not None:
            self.refused(topic, index, batch)

    def _forget(self, key: tuple[Topic, int, int]) -> None:
        self._waits.pop(key, None)
        self._tried.pop(key, None)

    def is_too_early(
        self, topic: Topic, index: int, batch: Batch, log: PartitionLog, now: Instant
    ) -> bool:
        """Whether a refused one has to come before this."""
        if not self._waits:
            return False
        producer_id, epoch, sequence = batch
        key = topic, index, producer_id
        known = self._waits.get(key)
        if known is None:
            return False
        # The log's own check is as good once it knows the producer; a new epoch begins anew.
        if known == (epoch, sequence) or epoch != known[0] or producer_id in log.producers:
            self._forget(key)
            return False
        if now - self._tried.setdefault(key, now) > PATIENCE_NS:
            self._forget(key)
            return False
        return True
