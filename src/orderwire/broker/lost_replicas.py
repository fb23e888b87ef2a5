"""Replicas whose files do not read as they were written: given up, and opened anew without.  [R8]

What is damaged is set aside as at a start of the broker: the replica is blank, leaves the in-sync
set, and copies what is committed from its original.  Before, every link to other brokers is broken:
what is on its way was meant for the replica that is no more, and what that had promised, the new
one does not know.  [R3]
"""

from collections import Counter
from typing import TYPE_CHECKING

from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.log import BesideDamaged, LogDamaged, Refused
from orderwire.broker.partitions import Partition
from orderwire.kernel import Instant

if TYPE_CHECKING:
    from orderwire.broker.node import Broker
    from orderwire.broker.replicas import Replicas

_GONE = Refused(
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, "this replica's files are damaged: it begins anew"
)
Key = tuple[bytes, int]


class LostReplicas:
    """Those of one broker."""

    def __init__(self, broker: "Broker", replicas: "Replicas") -> None:
        self._broker = broker
        self._replicas = replicas
        self._reasons: dict[Key, str | None] = {}
        """What is wrong with the log; None when only something beside it is, which is left out."""
        self._ready: set[Key] = set()
        """Of those: nothing is on its way to them any more."""
        self._syncing: Counter[Key] = Counter()
        """What is being put on disk in another thread, and how often."""
        self.count = 0
        """So many were given up since the start."""

    def give_up(self, partition: Partition, damage: LogDamaged) -> None:
        """Let go of a replica; it is opened anew as soon as nothing is under way for it."""
        self.count += 1
        beside = isinstance(damage, BesideDamaged)
        self._reasons[_key(partition)] = None if beside else str(damage)
        self._broker.let_go(partition)
        self._replicas.refuse_asked(partition, _GONE)
        self._replicas.cluster.break_links()

    def waits(self, topic_id: bytes, index: int) -> bool:
        """Whether it cannot be opened yet."""
        key = (topic_id, index)
        return key in self._reasons and (key not in self._ready or self._syncing[key] > 0)

    def take_reason(self, topic_id: bytes, index: int) -> str | None:
        """Why it was given up, once: it is being opened."""
        self._ready.discard((topic_id, index))
        return self._reasons.pop((topic_id, index), None)

    def links_broken(self, now: Instant) -> None:
        """Nothing comes any more that was sent to those that are given up by now."""
        self._ready.update(self._reasons)
        self._open(now)

    def syncing(self, partition: Partition) -> None:
        """Another thread is at work with its files."""
        self._syncing[_key(partition)] += 1

    def synced(self, partition: Partition, now: Instant) -> None:
        """It is done."""
        key = _key(partition)
        self._syncing[key] -= 1
        if not self._syncing[key]:
            del self._syncing[key]
            if key in self._ready:
                self._open(now)

    def _open(self, now: Instant) -> None:
        for key in sorted(self._ready):
            topic = self._broker.topics.by_id(key[0])
            if topic is None or key[1] >= topic.partitions:  # deleted meanwhile
                self.take_reason(*key)
            elif not self.waits(*key):
                self._broker.open_partitions(topic, now)


def _key(partition: Partition) -> Key:
    return partition.of.topic_id, partition.index
