"""A partition's life with drawn delays and drawn faults, judged as it goes.

`run_replication(…, seed)` is a function: the same arguments give the same history.  After the
faults the partition has `settle_ns` to become whole: everything acknowledged committed, everybody
in sync.  [S004:4.5]
"""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any

import msgspec

from orderwire.broker.replication.effects import Replace
from orderwire.broker.replication.settings import ReplicationSettings
from orderwire.broker.replication.view import BrokerId
from orderwire.kernel import NS_PER_MS, NS_PER_S, NS_PER_US, Instant, stream
from orderwire.sim.replication_cluster import NOON, MakeReplica, Step, WorldSettings
from orderwire.sim.replication_world import ReplicationWorld
from orderwire.verify.replication import Breach, Event, Judge

DELAYS_NS: dict[str, tuple[int, int]] = {
    "deliver": (50 * NS_PER_US, 800 * NS_PER_US),
    "zk": (200 * NS_PER_US, 4 * NS_PER_MS),
    "read": (100 * NS_PER_US, 5 * NS_PER_MS),
    "view": (100 * NS_PER_US, 2 * NS_PER_MS),
    "sync_end_seen": (100 * NS_PER_US, 5 * NS_PER_MS),
    "locked": (100 * NS_PER_US, 5 * NS_PER_MS),
    "begin": (1 * NS_PER_MS, 10 * NS_PER_MS),
    "session_end": (1 * NS_PER_MS, 300 * NS_PER_MS),
    "told_lost": (1 * NS_PER_MS, 200 * NS_PER_MS),
    "connect": (1 * NS_PER_MS, 10 * NS_PER_MS),
    "up": (20 * NS_PER_US, 500 * NS_PER_US),
    "down": (20 * NS_PER_US, 5 * NS_PER_MS),
    "sync_begin": (10 * NS_PER_US, 50 * NS_PER_US),
    "sync_run": (100 * NS_PER_US, 3 * NS_PER_MS),
    "sync_end": (10 * NS_PER_US, 200 * NS_PER_US),
    "send": (200 * NS_PER_US, 8 * NS_PER_MS),
    "answer": (50 * NS_PER_US, 1 * NS_PER_MS),
    "lose": (100 * NS_PER_US, 5 * NS_PER_MS),
    "start": (5 * NS_PER_MS, 400 * NS_PER_MS),
}
"""Least and largest delay of each kind of step; one in fifty takes ten times as long."""
AT_BROKER = frozenset(
    {"view", "read", "sync_end_seen", "locked", "up", "down", "sync_begin", "sync_run"}
    | {"sync_end", "wake", "told_lost", "begin"}
)
IMPATIENCE_NS = 3 * NS_PER_S
"""A client that has waited so long for an answer connects anew."""
EVENTS_MAX = 300_000
WAKES_MAX = 1_000
"""Wakes of one replica in one instant; beyond it a deadline is not taken back."""


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """How many of each befall the partition, at drawn times and brokers."""

    crashes: int = 0
    torn_crashes: int = 0
    """Crashes in the middle of a call: between one write and the next."""
    power_failures: int = 0
    expiries: int = 0
    """Sessions of living brokers that end."""
    suspensions: int = 0
    """Brokers that only fear so."""
    link_breaks: int = 0
    partings: int = 0
    pauses: int = 0
    """Processes that stand still for a while, their sessions ending meanwhile or not."""
    slow_spans: int = 0
    client_breaks: int = 0
    deletions: int = 0
    """Moves of the log's start."""
    hand_overs: int = 0
    """Originals that give their office to another, the preferred one where there is one."""
    blackouts: int = 0
    """Power failures of all brokers at once: each disk keeps what it does."""
    ruins: int = 0
    """Times that the whole in-sync set is gone, and another replica is put in its place."""


class RunSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One run but for its seed."""

    world: WorldSettings = WorldSettings()
    replication: ReplicationSettings = ReplicationSettings()
    faults: Faults = Faults()
    faults_ns: int = 3 * NS_PER_S
    """Faults fall into this span."""
    settle_ns: int = 20 * NS_PER_S
    """Within so long after the last fault the partition has to be whole."""
    looks: int = 8
    deliver_factor: int = 1
    """How many times slower messages between brokers are than usual: watches overtake them."""
    acks_one_lost: bool = False
    """Whether what acks=1 acknowledged may be nowhere in the end."""
    acks_one_committed: bool = True
    """Whether it has to be committed in the end: orphans are not left where they are."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of it."""

    breaches: list[Breach]
    settled_ns: int | None
    """How long after the last fault everything was whole; None: it never was."""
    events: int
    committed: int
    """Messages."""
    acknowledged: int
    unsent: int
    """Batches that no producer got rid of."""
    refused: list[str]
    """Answers that clients do not try again after."""
    history: list[Event]
    elections: int


class ReplicationRun:
    """Draws what comes next."""

    def __init__(self, make_replica: MakeReplica, settings: RunSettings, seed: int | str) -> None:
        self.settings = settings
        self.judge = Judge()
        self.history: list[Event] = []
        self._heap: list[tuple[int, int, Callable[..., None], Any]] = []
        self._sequence = count().__next__
        self._delay = stream(seed, "delays")
        self._fault = stream(seed, "faults")
        self._client = stream(seed, "clients")
        self._paused: dict[int, int] = {}
        self._slow: dict[int, int] = {}
        """Broker → until when it is slow."""
        self._wake_at: dict[int, int] = {}
        self._wakes: dict[int, tuple[int, int]] = {}
        self._quiet_from = NOON + settings.faults_ns
        self.world = ReplicationWorld(
            make_replica, settings.replication, settings.world, on_event=self._event
        )
        self.world.on_offer = self._offered
        self.world.on_deadline = self._deadline
        for step in list(self.world.pending):
            self._offered(step)
        for broker in self.world.brokers:
            if broker.replica is not None:
                self._deadline(broker.number, broker.replica.next_deadline())
        self.world.begin_clients()
        self._plan()

    def _event(self, event: Event) -> None:
        self.history.append(event)
        self.judge.take(event)

    def _at(self, time_ns: int, act: Callable[..., None], what: Any = None) -> None:
        heappush(self._heap, (time_ns, self._sequence(), act, what))

    # Delays.

    def _offered(self, step: Step) -> None:
        least, most = DELAYS_NS[step[0]]
        delay = self._delay.randint(least, most)
        if step[0] == "deliver":
            delay *= self.settings.deliver_factor
        if self._delay.random() < 0.02:
            delay *= 10
        if self._slow.get(self._place(step), 0) > self.world.now:
            delay *= 20
        self._at(self.world.now + delay, self._take, step)

    def _place(self, step: Step) -> int:
        """At which broker a step happens; −1: at none."""
        kind, who, other = step
        if kind in AT_BROKER:
            return who
        if kind == "deliver":
            return other
        if kind == "send":
            broker = self.world.producers[who].broker
            return -1 if broker is None else broker
        return -1

    def _take(self, step: Step) -> None:
        until = self._paused.get(self._place(step), 0)
        if until > self.world.now:
            self._at(until, self._take, step)
            return
        if step not in self.world.pending:
            return
        if step[0] == "send":
            self._watch(step[1])
        self.world.take(step)

    def _watch(self, who: int) -> None:
        """A client loses its patience, should the request that it sends now stay unanswered."""
        producer = self.world.producers[who]

        def impatient(connection: int) -> None:
            if producer.connection == connection and producer.flight:
                self.world.offer("lose", who)

        if producer.ready:
            self._at(self.world.now + IMPATIENCE_NS, impatient, producer.connection)

    def _deadline(self, who: BrokerId, deadline: Instant | None) -> None:
        if deadline is None:
            return
        due = max(deadline, self.world.now)
        if self._wake_at.get(who, due + 1) > due or self._wake_at[who] < self.world.now:
            self._wake_at[who] = due
            self._at(due, self._wake, who)

    def _wake(self, who: int) -> None:
        until = self._paused.get(who, 0)
        now = self.world.now
        if until > now:
            self._wake_at[who] = until
            self._at(until, self._wake, who)
            return
        self._wake_at.pop(who, None)
        replica = self.world.brokers[who].replica
        if replica is None:
            return
        deadline = replica.next_deadline()
        if deadline is None:
            return
        if deadline > now:
            self._deadline(BrokerId(who), deadline)
            return
        at, times = self._wakes.get(who, (now, 0))
        times = times + 1 if at == now else 1
        assert times < WAKES_MAX, f"replica {who} is woken and woken at {now}: {deadline}"
        self._wakes[who] = (now, times)
        self.world.wake(who)

    # Faults.

    def _plan(self) -> None:
        faults = self.settings.faults
        draw = self._fault
        for name in faults.__struct_fields__:
            for _ in range(getattr(faults, name)):
                at = NOON + draw.randint(0, self.settings.faults_ns)
                self._at(at, getattr(self, "_do_" + name))
        for _ in range(self.settings.looks):
            at = NOON + draw.randint(0, self.settings.faults_ns)
            self._at(at, lambda _: self._look())
        for consumer in self.world.consumers:
            self._at(NOON, self._poll, consumer.number)

    def _who(self) -> int:
        """A broker, the original more often than others."""
        original = self.world.znodes.original
        if original is not None and self._fault.random() < 0.5:
            return original
        return self._fault.randrange(len(self.world.brokers))

    def _pair(self) -> tuple[int, int]:
        a, b = self._fault.sample(range(len(self.world.brokers)), 2)
        return a, b

    def _do_crashes(self, _: Any) -> None:
        self.world.crash(self._who())

    def _do_power_failures(self, _: Any) -> None:
        self.world.crash(self._who(), Random(self._fault.random()))

    def _do_blackouts(self, _: Any) -> None:
        for broker in self.world.brokers:
            self.world.crash(broker.number, Random(self._fault.random()))

    def _do_ruins(self, _: Any) -> None:
        """Who is in sync ends: some get empty disks, others come back when it is too late."""
        world, draw = self.world, self._fault
        others = [each for each in world.brokers if each.number not in world.znodes.isr]
        lives = any(not each.held_back for each in others)
        for who in world.znodes.isr:
            world.crash(who)
            if draw.random() < 0.6 or not lives:
                lives = True
                world.replace_disk(who)
            else:
                world.hold_back(who)
        self._at(world.now + draw.randint(20, 600) * NS_PER_MS, self._find_successor)

    def _find_successor(self, _: Any) -> None:
        world, draw = self.world, self._fault
        wish = world.successor()
        if wish is not None:
            self._at(world.now + draw.randint(1, 60) * NS_PER_MS, self._put_in_place, wish)
            return
        original = world.znodes.original
        if original is not None and world.brokers[original].session == world.znodes.owner:
            self._let_all_start()
        else:
            self._at(world.now + 50 * NS_PER_MS, self._find_successor)

    def _put_in_place(self, wish: Replace) -> None:
        if self.world.put_in_place(wish):
            self._let_all_start()
        else:
            self._find_successor(None)

    def _let_all_start(self) -> None:
        for broker in self.world.brokers:
            self.world.let_start(broker.number)

    def _do_torn_crashes(self, _: Any) -> None:
        broker = self.world.brokers[self._who()]
        disk = broker.storage.disk
        disk.crash_at_write = disk.writes + self._fault.randint(0, 4)
        if self.settings.faults.power_failures and self._fault.random() < 0.5:
            broker.doom = Random(self._fault.random())

    def _do_expiries(self, _: Any) -> None:
        self.world.expire(self._who())

    def _do_suspensions(self, _: Any) -> None:
        self.world.suspend(self._who())

    def _do_link_breaks(self, _: Any) -> None:
        self.world.break_link(*self._pair())

    def _do_partings(self, _: Any) -> None:
        pair = self._pair()
        self.world.part(*pair)
        until = self.world.now + self._fault.randint(0, 500) * NS_PER_MS
        self._at(min(until, self._quiet_from), lambda _: self.world.mend(*pair))

    def _do_pauses(self, _: Any) -> None:
        who = self._who()
        until = self.world.now + self._fault.randint(1, 800) * NS_PER_MS
        self._paused[who] = min(until, self._quiet_from)
        if self._fault.random() < 0.6:
            self._at(self.world.now + 100 * NS_PER_MS, lambda _: self.world.expire(who))

    def _do_slow_spans(self, _: Any) -> None:
        until = self.world.now + self._fault.randint(1, 800) * NS_PER_MS
        self._slow[self._who()] = min(until, self._quiet_from)

    def _do_client_breaks(self, _: Any) -> None:
        if self.world.producers:
            self.world.offer("lose", self._fault.randrange(len(self.world.producers)))

    def _do_deletions(self, _: Any) -> None:
        highs = [each.high_watermark for each in self.world.brokers]
        self.world.delete_records(self._fault.randint(0, max(highs)))

    def _do_hand_overs(self, _: Any) -> None:
        preferred = self.world.znodes.preferred
        if preferred is None or preferred == self.world.znodes.original:
            preferred = BrokerId(self._fault.randrange(len(self.world.brokers)))
        self.world.hand_over(preferred)

    # Consumers.

    def _poll(self, who: int) -> None:
        draw = self._client
        at = draw.randrange(len(self.world.brokers))
        if self._paused.get(at, 0) <= self.world.now:
            self.world.fetch(who, at)
        if draw.random() < 0.01:
            self.world.consumers[who].position = 0
        self._at(self.world.now + draw.randint(1, 30) * NS_PER_MS, self._poll, who)

    # The run.

    def run(self) -> Outcome:
        """Let it happen until everything is whole, or time is up."""
        world = self.world
        end = self._quiet_from + self.settings.settle_ns
        events = 0
        settled: int | None = None
        check = self._quiet_from
        while self._heap and self._heap[0][0] <= end:
            at, _, act, what = heappop(self._heap)
            world.now = Instant(at)
            events += 1
            assert events < EVENTS_MAX, "something feeds itself"
            act(what)
            if at >= check:
                if check == self._quiet_from:
                    for broker in world.brokers:
                        broker.storage.disk.crash_at_write = None
                check = at + 10 * NS_PER_MS
                if self._whole():
                    settled = at - self._quiet_from
                    break
        self._look()
        world.settled(acks_one_lost=self._forgiven)
        unsent = sum(len(each.settings.batches) - len(each.done) for each in world.producers)
        refused = [
            f"p{producer.number}-{number}: {result}"
            for producer in world.producers
            for number, result in producer.done.items()
            if producer.settings.retries and hasattr(result, "error")
        ]
        return Outcome(
            breaches=self.judge.breaches,
            settled_ns=settled,
            events=events,
            committed=len(self.judge.committed_messages()),
            acknowledged=self.judge.acknowledged,
            unsent=unsent,
            refused=refused,
            history=self.history,
            elections=world.znodes.epoch + 1,
        )

    def _whole(self) -> bool:
        world = self.world
        ids = tuple(broker.number for broker in world.brokers)
        return (
            world.znodes.isr == ids
            and world.znodes.original is not None
            and all(broker.up for broker in world.brokers)
            and all(producer.finished for producer in world.producers)
            and world.agreed_end() == self.judge.end
            and all(consumer.position == self.judge.end for consumer in world.consumers)
            and not [each for each in self.judge.uncommitted() if not self._given_up(each)]
        )

    def _look(self) -> None:
        self.world.look(acks_one_lost=self.settings.acks_one_lost)

    @property
    def _forgiven(self) -> bool:
        settings = self.settings
        return settings.acks_one_lost or not settings.acks_one_committed or self.world.power_failed

    def _given_up(self, message: str) -> bool:
        return self._forgiven and self.judge.acks_of(message) == 1


def run_replication(make_replica: MakeReplica, settings: RunSettings, seed: int | str) -> Outcome:
    """One partition's life."""
    return ReplicationRun(make_replica, settings, seed).run()
