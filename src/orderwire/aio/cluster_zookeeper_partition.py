"""One partition's znodes: followed, and changed as its replica here asks.  [S004:4.6]"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Coroutine
from typing import Any, Protocol, TypeAlias, assert_never

import msgspec

from orderwire.aio.zookeeper_errors import (
    MultiRefused,
    NoZnode,
    ZnodeExists,
    ZookeeperRefused,
    ZookeeperUnavailable,
)
from orderwire.aio.zookeeper_scope import SessionScope, Worker
from orderwire.broker.coordination.commands import Operation, Znode
from orderwire.broker.coordination.layout import PartitionPaths, SyncMark, decode_broker_id
from orderwire.broker.coordination.partition import (
    Seen,
    change_isr,
    depose,
    elect,
    elected,
    lose,
    replace,
    resign,
    seen,
    set_sync,
)
from orderwire.broker.replication.effects import (
    ChangeIsr,
    Elect,
    Lock,
    Lose,
    Replace,
    Resign,
    SetSync,
    Unlock,
)
from orderwire.broker.replication.view import BrokerId, PartitionView
from orderwire.broker.topics import Topic
from orderwire.kernel import NS_PER_S

EFFECTS_MAX = 256
"""What one replica may have asked for that is not done yet."""
FIRST_TURN_S = 0.25
"""How long the others leave a new partition to the broker that is preferred as its original."""
_READS_MAX = 16
"""Readings in a row that are torn by changes before ZooKeeper is left in peace for a moment."""


class Depose(msgspec.Struct, frozen=True):
    """A broker's process of this incarnation has ended: it is original no longer."""

    broker: BrokerId
    incarnation: str


Coordinated: TypeAlias = (
    Elect | Resign | ChangeIsr | SetSync | Lose | Replace | Lock | Unlock | Depose
)


class Seer(Protocol):
    """Who is told of partitions."""

    def viewed(self, topic_id: bytes, index: int, view: PartitionView) -> None:
        """The view is new, has changed, or follows an attempt of ours."""
        ...

    def locked(self, topic_id: bytes, index: int) -> None:
        """Somebody made a child of `lock`."""
        ...

    def sync_end_seen(self, topic_id: bytes, index: int, end: int, epoch: int, round: int) -> None:
        """`syncEnd` was written."""
        ...


class FollowedPartition(Worker):
    """Keeps one view; a replica's effects are carried out one after the other."""

    def __init__(
        self,
        scope: SessionScope,
        seer: Seer,
        me: BrokerId,
        incarnation: str,
        topic: Topic,
        index: int,
        *,
        by_zookeeper: bool,
    ) -> None:
        """`by_zookeeper`: rounds are agreed on by `lock` and `syncEnd`, which are watched then."""
        super().__init__(scope)
        self.topic = topic
        self.paths = PartitionPaths(topic.name, index)
        self.view: PartitionView | None = None
        self.refused = 0
        """Attempts of ours that came too late."""
        self.dropped = 0
        """Effects that were more than can wait."""
        self._seer = seer
        self._me = me
        self._incarnation = incarnation
        self.index = index
        self._by_zookeeper = by_zookeeper
        self._seen: Seen | None = None
        self._gone = False
        self._view_due = True
        self._owed = False
        """The view is told even if it is the last again: an attempt of ours was made."""
        self._sync_due = self._lock_due = by_zookeeper
        self._sync_told: SyncMark | None = None
        self._locks_told: set[str] = set()
        self._effects: deque[Coordinated] = deque()
        self._sync_start = (-1, -1)
        """An epoch of ours, and the `syncStart` that is there in it: nobody else writes one."""

    def carry_out(self, effect: Coordinated) -> None:
        """Do it after what was asked for before."""
        if len(self._effects) >= EFFECTS_MAX:
            self.dropped += 1
            self.missed()
            return
        self._effects.append(effect)
        self.kick()

    def again(self) -> None:
        """Read everything again: nothing is watched any more."""
        self._gone = False
        self._view_due = True
        self._sync_due = self._lock_due = self._by_zookeeper
        self.kick()

    def abandon(self) -> None:
        """The session is over: what was asked for in it is forgotten."""
        super().abandon()
        self._effects.clear()
        self._seen = self.view = self._sync_told = None
        self._locks_told.clear()
        self.again()

    def close(self) -> None:
        """The topic is no more."""
        self.abandon()
        self._gone = True

    def pending(self) -> bool:
        """Whether there is something to read or to do."""
        return not self._gone and bool(
            self._view_due or self._effects or self._lock_due or self._sync_due
        )

    def missed(self) -> None:
        """Read again, and tell the view."""
        self._view_due = self._owed = True
        self._sync_due = self._lock_due = self._by_zookeeper

    async def step(self) -> None:
        """Read or do one thing.  Without its znodes the partition is left in peace: its topic has
        been deleted, which we shall be told."""
        try:
            await self._step()
        except NoZnode:
            self._gone = True

    async def _step(self) -> None:
        if self._view_due:
            self._view_due = False
            await self._read_view()
        elif self._effects and self._seen is not None:
            effect = self._effects.popleft()
            try:
                await self._do(effect, self._seen)
            except (ZookeeperUnavailable, ZookeeperRefused):
                if isinstance(effect, SetSync | Unlock):  # The rest is asked for by a view again.
                    self._effects.appendleft(effect)
                raise
        elif self._lock_due:
            self._lock_due = False
            await self._read_locks()
        elif self._sync_due:
            self._sync_due = False
            await self._read_sync_end()
        else:  # The epoch cannot be read: nothing of it can be changed.
            self._effects.clear()

    # -- what is there ----------------------------------------------------------------------

    async def _read_view(self) -> None:
        client, paths = self.scope.client, self.paths
        for _ in range(_READS_MAX):
            epoch, _, original, isr = await asyncio.gather(
                client.get(paths.epoch),
                client.exists(paths.original, self._view_hint),
                self._there(paths.original),
                client.get(paths.isr, self._view_hint),
            )
            mark, lost = await asyncio.gather(client.get(paths.sync_start), self._there(paths.lost))
            now = seen(paths, epoch, original, isr, mark, lost)
            if now is None:
                continue
            if now.original is not None and now.original.id == self._me and self._is_past(now):
                await self._remove_past()
                continue
            self._take(now)
            return
        self.missed()
        await asyncio.sleep(self.scope.limits.retry_min_ns / NS_PER_S)

    async def _there(self, path: str) -> Znode | None:
        try:
            return await self.scope.client.get(path)
        except NoZnode:
            return None

    def _is_past(self, now: Seen) -> bool:
        """Whether the original is us in a session that we gave up, or that a process before us had.

        As `brokers/<id>` is ours, whoever that was is no more.
        """
        key = self.scope.client.session_key
        if key is None:
            raise ZookeeperUnavailable("the connection broke")
        return now.owner != key[0]

    async def _remove_past(self) -> None:
        with contextlib.suppress(NoZnode):
            await self.scope.client.delete(self.paths.original)

    def _take(self, now: Seen) -> None:
        self._seen = now
        view = now.view(self.topic.replicas[self.index])
        if self._owed or view != self.view:
            self.view, self._owed = view, False
            self._seer.viewed(self.topic.topic_id, self.index, view)

    def _view_hint(self) -> None:
        self._view_due = True
        self.kick()

    async def _read_locks(self) -> None:
        self._tell_locks(await self.scope.client.children(self.paths.lock, self._lock_hint))

    def _tell_locks(self, names: list[str]) -> None:
        new = set(names) - self._locks_told
        self._locks_told = set(names)
        for name in names:
            decode_broker_id(self.paths.lock, name)
        if new:
            self._seer.locked(self.topic.topic_id, self.index)

    def _lock_hint(self) -> None:
        self._lock_due = True
        self.kick()

    async def _read_sync_end(self) -> None:
        znode = await self.scope.client.get(self.paths.sync_end, self._sync_hint)
        mark = SyncMark.decode(self.paths.sync_end, znode.data)
        if mark != self._sync_told and mark.epoch >= 0:
            self._sync_told = mark
            told = self._seer.sync_end_seen
            told(self.topic.topic_id, self.index, mark.offset, mark.epoch, mark.round)

    def _sync_hint(self) -> None:
        self._sync_due = True
        self.kick()

    # -- what is asked for ------------------------------------------------------------------

    async def _do(self, effect: Coordinated, now: Seen) -> None:
        client, paths = self.scope.client, self.paths
        match effect:
            case Elect(epoch):
                if epoch < 0 and self.topic.replicas[self.index][0] != self._me:
                    await asyncio.sleep(FIRST_TURN_S)
                self._owed = True
                wish = elect(paths, now, self._me, self._incarnation, epoch)
                done = await self._change(None if wish is None else wish[1])
                key = client.session_key
                if done is not None and wish is not None and key is not None:
                    self._take(elected(now, wish[0], key[0]))
                else:
                    self._view_due = True
            case ChangeIsr(isr):
                self._owed = True
                done = await self._change(change_isr(paths, now, self._me, effect))
                if done is not None:
                    version = done[-1]
                    assert isinstance(version, int)
                    members = tuple(sorted(isr))
                    self._take(msgspec.structs.replace(now, isr=members, isr_version=version))
                else:
                    self._view_due = True
            case Resign(epoch):
                await self._change(resign(paths, now, self._me, epoch))
                self._view_due = True
            case Depose(broker, incarnation):
                await self._change(depose(paths, now, broker, incarnation))
                self._view_due = True
            case Lose():
                self._owed = self._view_due = True
                self._sync_start = (-1, -1)
                await self._change(lose(paths, now, self._me, effect))
            case Replace():
                self._owed = self._view_due = True
                await self._change(replace(paths, now, effect))
            case SetSync():
                if not await self._set_sync(now, effect):
                    self._view_due = True
            case Lock():
                with contextlib.suppress(ZnodeExists):  # Then it is a heartbeat.
                    await client.create(paths.lock_of(self._me), ephemeral=True)
            case Unlock():
                await self._unlock()
            case _:
                assert_never(effect)

    async def _change(self, operations: tuple[Operation, ...] | None) -> list[Any] | None:
        """Do all of it; None when somebody was earlier."""
        if operations is not None:
            with contextlib.suppress(MultiRefused):
                return list(await self.scope.client.multi(*operations))
        self.refused += 1
        return None

    async def _unlock(self) -> None:
        client, paths = self.scope.client, self.paths
        names = await client.children(paths.lock)
        deletions: list[Coroutine[Any, Any, None]] = [
            self._delete(f"{paths.lock}/{name}") for name in names
        ]
        await asyncio.gather(*deletions)
        self._tell_locks(names)  # One that came last wants another round.
        self._locks_told.clear()

    async def _delete(self, path: str) -> None:
        with contextlib.suppress(NoZnode):
            await self.scope.client.delete(path)

    async def _set_sync(self, now: Seen, wish: SetSync) -> bool:
        """Write them, and never a `syncStart` below the one that is there; whether it was done."""
        await self.learn_sync_start(wish.epoch)
        done = await self._change(set_sync(self.paths, now, self._me, wish, self._least(wish)))
        if done is not None:
            self.marked(wish)
        return done is not None

    async def learn_sync_start(self, epoch: int) -> None:
        """Read the `syncStart` that is there, once an epoch: what is written in it, we write.

        Raises NoZnode.
        """
        if self._sync_start[0] != epoch:
            znode = await self.scope.client.get(self.paths.sync_start)
            self._sync_start = epoch, SyncMark.decode(self.paths.sync_start, znode.data).offset

    def marks(self, wish: SetSync) -> tuple[Operation, ...] | None:
        """What writes these as ours, of an epoch that was learnt; None when it is known to be over.
        `marked` follows when it is done."""
        if self._gone or self._seen is None or self._sync_start[0] != wish.epoch:
            return None
        return set_sync(self.paths, self._seen, self._me, wish, self._least(wish))

    def marked(self, wish: SetSync) -> None:
        """They are there."""
        if wish.start is not None:
            self._sync_start = wish.epoch, max(self._least(wish), wish.start)

    def _least(self, wish: SetSync) -> int:
        """The `syncStart` that is there in this epoch."""
        epoch, least = self._sync_start
        return least if epoch == wish.epoch else -1
