"""Replicas of one partition moved by hand: what is sent stays on its way until it is let through.

The smallest world in which one rule can be looked at; faults are what a test does not let happen.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
from tests.support.counting_storage import CountingStorage

from orderwire.broker.log import Appended, LogConfig, MemoryStorage, Refused
from orderwire.broker.replication import effects as asked
from orderwire.broker.replication.active_active import ActiveActiveReplica
from orderwire.broker.replication.settings import ReplicationSettings
from orderwire.broker.replication.view import BrokerId, PartitionView
from orderwire.broker.wire.batch import CONTROL, BatchHeader
from orderwire.broker.wire.records import Record, build_batch
from orderwire.kernel import NS_PER_MS, Instant
from orderwire.sim.replication_zookeeper import PartitionZnodes

Make = Callable[
    [BrokerId, MemoryStorage, LogConfig, ReplicationSettings, Instant], ActiveActiveReplica
]
T0 = Instant(1_700_000_000_000 * NS_PER_MS)


class ReplicaGroup:
    """Some replicas, their files, ZooKeeper, and the links between them."""

    def __init__(
        self,
        count: int = 3,
        *,
        make: Make = ActiveActiveReplica,
        elect: bool = True,
        **settings: Any,
    ) -> None:
        self.now = T0
        self.make = make
        self.settings = ReplicationSettings(**settings)
        self.ids = tuple(BrokerId(each) for each in range(count))
        self.znodes = PartitionZnodes(self.ids)
        self.sessions: dict[BrokerId, int] = {}
        self.files = {each: CountingStorage() for each in self.ids}
        self.replicas: dict[BrokerId, ActiveActiveReplica] = {}
        self.queues: dict[tuple[BrokerId, BrokerId], deque[msgspec.Struct]] = {
            (a, b): deque() for a in self.ids for b in self.ids if a != b
        }
        self.held: set[tuple[BrokerId, BrokerId]] = set()
        """Links whose messages stay on their way."""
        self.slow: set[BrokerId] = set()
        """Whose disk does not get ready."""
        self.sent: list[tuple[BrokerId, BrokerId, msgspec.Struct]] = []
        self.answers: dict[int, Appended | Refused] = {}
        self.events: list[tuple[BrokerId, asked.Event]] = []
        self.asked: list[tuple[BrokerId, asked.Effect]] = []
        """What went to ZooKeeper."""
        self._token = 0
        self._to_sync: set[BrokerId] = set()
        for each in self.ids:
            self.start(each)
        if elect:
            self.pass_time(5)
            assert self.original is not None
            assert self.at(self.original).takes_produce

    @property
    def original(self) -> BrokerId | None:
        return self.znodes.original

    @property
    def others(self) -> list[BrokerId]:
        return [each for each in self.ids if each != self.original]

    def at(self, broker: int) -> ActiveActiveReplica:
        return self.replicas[BrokerId(broker)]

    # Processes.

    def start(self, broker: int) -> None:
        me = BrokerId(broker)
        self.replicas[me] = self.make(me, self.files[me], LogConfig(), self.settings, self.now)
        self.sessions[me] = self.znodes.begin_session(me)
        for other in self.replicas:
            if other != me:
                self._do(me, self.at(me).connected(other, self.now))
                self._do(other, self.at(other).connected(me, self.now))
        self.look()

    def crash(self, broker: int, *, known: bool = False) -> None:
        """The process ends, which the others may know; files stay; its session goes at once."""
        me = BrokerId(broker)
        del self.replicas[me]
        self._to_sync.discard(me)
        for other in self.replicas:
            self.queues[me, other].clear()
            self.queues[other, me].clear()
            self._do(other, self.at(other).disconnected(me, self.now))
            if known:
                self._do(other, self.at(other).ended(me, self.now))
        self.expire(me)

    def expire(self, broker: int) -> None:
        """ZooKeeper ends its session; it does not hear of it."""
        self.znodes.end_session(self.sessions[BrokerId(broker)])
        self.look()

    def break_link(self, a: int, b: int) -> None:
        one, other = BrokerId(a), BrokerId(b)
        self.queues[one, other].clear()
        self.queues[other, one].clear()
        self._do(one, self.at(one).disconnected(other, self.now))
        self._do(other, self.at(other).disconnected(one, self.now))

    def connect(self, a: int, b: int) -> None:
        one, other = BrokerId(a), BrokerId(b)
        self._do(one, self.at(one).connected(other, self.now))
        self._do(other, self.at(other).connected(one, self.now))

    # ZooKeeper.

    def look(self, *brokers: int) -> None:
        """Brokers (all whose session holds) read the view."""
        for each in [BrokerId(one) for one in brokers] or list(self.replicas):
            if self.sessions[each] in self.znodes.sessions and each in self.replicas:
                self._do(each, self.at(each).viewed(self.znodes.view(), self.now))

    def view(self, broker: int, view: PartitionView) -> None:
        self._do(BrokerId(broker), self.at(broker).viewed(view, self.now))

    # What happens.

    def _do(self, me: BrokerId, effects: asked.Effects) -> None:
        for effect in effects:
            match effect:
                case asked.Tell(to, message):
                    self.sent.append((me, to, message))
                    if to in self.replicas:
                        self.queues[me, to].append(message)
                case asked.Answer(token, result):
                    assert token not in self.answers
                    self.answers[token] = result
                case asked.Note(event):
                    self.events.append((me, event))
                case asked.Sync():
                    self._to_sync.add(me)
                case asked.Advance():
                    pass
                case _:
                    self.asked.append((me, effect))
                    if self.znodes.apply(self.sessions[me], effect):
                        self.look()
                    elif not isinstance(effect, asked.SetSync | asked.Lock | asked.Unlock):
                        self.look(me)

    def deliver(self, source: int, to: int) -> msgspec.Struct:
        """Let the next message through."""
        a, b = BrokerId(source), BrokerId(to)
        message = self.queues[a, b].popleft()
        self._do(b, self.at(b).receive(a, message, self.now))
        return message

    def sync(self, broker: int) -> None:
        """The disk gets ready."""
        me = BrokerId(broker)
        self._to_sync.discard(me)
        work = self.at(me).begin_sync(self.now)
        if work is not None:
            work.run()
            self._do(me, self.at(me).end_sync(work, self.now))

    def run(self) -> None:
        """Let everything through that is not held back, without time passing."""
        for _ in range(100_000):
            ready = [
                (a, b)
                for (a, b), queue in self.queues.items()
                if queue and (a, b) not in self.held and b in self.replicas
            ]
            if ready:
                self.deliver(*ready[0])
                continue
            disks = sorted(self._to_sync - self.slow)
            if not disks:
                return
            self.sync(disks[0])
        raise AssertionError("it does not come to rest")

    def pass_time(self, ms: float, *, run: bool = True) -> None:
        """Time passes; each replica is woken at every deadline on the way."""
        end = Instant(self.now + int(ms * NS_PER_MS))
        if run:
            self.run()
        while True:
            due = [
                (deadline, each)
                for each, replica in self.replicas.items()
                if (deadline := replica.next_deadline()) is not None and deadline <= end
            ]
            if not due:
                break
            deadline, me = min(due)
            self.now = max(self.now, deadline)
            self._do(me, self.at(me).wake(self.now))
            if run:
                self.run()
        self.now = end

    # Clients.

    def produce(
        self,
        *values: bytes,
        acks: int = -1,
        connection: int = 1,
        producer: tuple[int, int, int] | None = None,
        at: int | None = None,
    ) -> int:
        """Send one batch; returns the token of the answer."""
        self._token += 1
        who = self.original if at is None else BrokerId(at)
        assert who is not None
        identity = producer or (-1, -1, -1)
        records = build_batch(
            [Record(value) for value in values or (b"v",)],
            producer_id=identity[0],
            producer_epoch=identity[1],
            base_sequence=identity[2],
        )
        effects = self.at(who).produce(self._token, connection, memoryview(records), acks, self.now)
        self._do(who, effects)
        return self._token

    def wanted(self, broker: int) -> None:
        self._do(BrokerId(broker), self.at(broker).wanted(self.now))

    # What can be seen.

    def log(self, broker: int) -> list[BatchHeader]:
        return list(self.at(broker).log.batches(0))

    def seals(self, broker: int) -> list[tuple[int, int]]:
        return [
            (each.base_offset, each.last_offset)
            for each in self.log(broker)
            if each.attributes & CONTROL
        ]

    def noted(self, kind: type) -> list[Any]:
        return [event for _, event in self.events if isinstance(event, kind)]

    def said(self, kind: type, source: int | None = None) -> list[Any]:
        return [
            message
            for a, _, message in self.sent
            if isinstance(message, kind) and source in (None, a)
        ]

    def watermarks(self) -> list[int]:
        return [replica.high_watermark for replica in self.replicas.values()]
