"""`syncStart` and `syncEnd` of many partitions, written together and seldom.  [R6, S004:4.6]

A round's commit needs none of them: they tell who looks from outside how far a partition is.  So
the newest of each partition waits until the next flush, and one transaction takes those of many.
"""

import asyncio

from orderwire.aio.cluster_zookeeper_partition import FollowedPartition
from orderwire.aio.zookeeper_errors import (
    MultiRefused,
    NoZnode,
    ZookeeperRefused,
    ZookeeperUnavailable,
)
from orderwire.aio.zookeeper_scope import SessionScope, Worker
from orderwire.broker.coordination.commands import Operation
from orderwire.broker.replication.effects import SetSync

TOGETHER_MAX = 64
"""Partitions in one transaction, each with at most four operations that have other marks."""


class _Marks:
    """What one partition's original wants to be there."""

    __slots__ = ("end", "start")

    def __init__(self) -> None:
        self.start: SetSync | None = None
        """Whose `start` is the newest."""
        self.end: SetSync | None = None
        """Whose `end` is."""

    def take(self, effect: SetSync) -> None:
        """What comes later takes the place of what came before."""
        if effect.start is not None:
            self.start = effect
        if effect.end is not None:
            self.end = effect

    def behind(self, older: "_Marks") -> None:
        """Take from what could not be written what nothing newer replaces."""
        self.start = self.start or older.start
        self.end = self.end or older.end

    def wishes(self) -> list[SetSync]:
        """As few as say it."""
        start, end = self.start, self.end
        if start is not None and start is end:
            return [start]
        wishes = []
        if start is not None:
            wishes.append(SetSync(start.start, None, start.epoch, start.round))
        if end is not None:
            wishes.append(SetSync(None, end.end, end.epoch, end.round))
        return wishes


class LazyMarks(Worker):
    """The marks of all partitions of one broker."""

    def __init__(self, scope: SessionScope) -> None:
        super().__init__(scope)
        self.written = 0
        """Transactions."""
        self._marks: dict[FollowedPartition, _Marks] = {}
        self._due = 0
        """So many of them, in their order, are to be written now."""

    def take(self, partition: FollowedPartition, effect: SetSync) -> None:
        """Write it with the next flush, unless another takes its place."""
        self._marks.setdefault(partition, _Marks()).take(effect)

    def flush(self) -> None:
        """Write what waits."""
        self._due = len(self._marks)
        self.kick()

    def pending(self) -> bool:
        """Whether something is to be written now."""
        return self._due > 0 and bool(self._marks)

    def missed(self) -> None:
        """What was not written waits again, and is due."""
        self._due = len(self._marks)

    def abandon(self) -> None:
        """The session is over, and with it what we were original of."""
        super().abandon()
        self._marks.clear()
        self._due = 0

    async def step(self) -> None:
        """Write those of some partitions."""
        chosen = list(self._marks)[: min(self._due, TOGETHER_MAX)]
        taken = {partition: self._marks.pop(partition) for partition in chosen}
        self._due -= len(taken)
        try:
            await asyncio.gather(*(_learn(each, marks) for each, marks in taken.items()))
            while taken and not await self._write(taken):
                pass
        except (ZookeeperUnavailable, ZookeeperRefused):
            for partition, marks in taken.items():
                self._marks.setdefault(partition, _Marks()).behind(marks)
            raise

    async def _write(self, taken: dict[FollowedPartition, _Marks]) -> bool:
        """Write all of it at one moment; or leave out whose epoch is over, and say False."""
        operations: list[Operation] = []
        owners: list[FollowedPartition] = []
        for partition, marks in list(taken.items()):
            for wish in marks.wishes():
                mine = partition.marks(wish)
                if mine is None:
                    taken.pop(partition, None)
                else:
                    operations += mine
                    owners += [partition] * len(mine)
        if operations:
            try:
                self.written += 1
                await self.scope.client.multi(*operations)
            except MultiRefused as refused:
                partition = owners[refused.index]
                partition.refused += 1
                del taken[partition]
                return False
        for partition, marks in taken.items():
            for wish in marks.wishes():
                partition.marked(wish)
        return True


async def _learn(partition: FollowedPartition, marks: _Marks) -> None:
    for wish in marks.wishes():
        try:
            await partition.learn_sync_start(wish.epoch)
        except NoZnode:  # the topic has gone, and the transaction will say so
            return
