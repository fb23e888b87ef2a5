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

from orderwire.broker.replication.effects import Elect, Replace
from orderwire.broker.replication.settings import ReplicationSettings
from orderwire.broker.replication.view import BrokerId
from orderwire.kernel import NS_PER_MS, NS_PER_S, Instant, stream
from orderwire.sim.replication_clients import WorldSettings
from orderwire.sim.replication_cluster import NOON, MakeReplica, Step
from orderwire.sim.replication_delays import AT_BROKER, DELAYS_NS
from orderwire.sim.replication_moments import DISK, FETCH, PRODUCE, Aim, Strike, kind_of, work_at
from orderwire.sim.replication_world import ReplicationWorld
from orderwire.verify.replication import Breach, Delivered, Event, Judge

SCRUB_NS = (5 * NS_PER_MS, 60 * NS_PER_MS)
"""How long it takes, least and most, until a scrub comes by a bit that has flipped."""
AGAIN_NS = 5 * NS_PER_MS
"""A fault that cannot come now is tried again then."""
NEEDS_PEERS = frozenset({"link_breaks", "partings", "pauses", "slow_spans", "splits", "blackouts"})
"""Faults that may leave a damaged replica alone in the in-sync set; then nobody has what it was."""
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
    splits: int = 0
    """Brokers that reach one other only, and not ZooKeeper: their sessions end, and they do not
    hear of it."""
    flips: int = 0
    """Single bits of one stored log that turn over."""


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
    aim: tuple[str, ...] = ()
    """Kinds of work that faults wait for and interrupt, one fault after another; none: they come at
    drawn times."""


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
    faults: list[tuple[str, frozenset[str]]]
    """Each fault that came, and the kinds of work that it met where it did."""

    @property
    def met(self) -> int:
        """How many faults met work."""
        return sum(bool(work) for _, work in self.faults)


class ReplicationRun:
    """Draws what comes next."""

    def __init__(self, make_replica: MakeReplica, settings: RunSettings, seed: int | str) -> None:
        self.settings = settings
        self.judge = Judge()
        self.history: list[Event] = []
        self.faults: list[tuple[str, frozenset[str]]] = []
        self._aim: Aim | None = None
        self._split: tuple[int, int] | None = None
        """Who does not know that its session has ended, and the one that it reaches."""
        self._struck: tuple[int, int] | None = None
        """Whom the fault that comes now befalls, where that is not drawn."""
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
        if self._aim is not None and isinstance(event, Delivered):
            self._happened(FETCH, event.broker, event.broker)

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
        if self._aim is not None and step[0] in ("send", "sync_run"):
            who = self._place(step)
            if who >= 0:
                self._happened(PRODUCE if step[0] == "send" else DISK, who, who)

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
        names = [name for name in faults.__struct_fields__ for _ in range(getattr(faults, name))]
        if self.settings.aim:
            draw.shuffle(names)
            self._aim = Aim(names, self.settings.aim, draw, NOON)
            self.world.on_effect = self._asked
            self._at(self._quiet_from, lambda _: self._strike_rest())
        else:
            for name in names:
                at = NOON + draw.randint(0, self.settings.faults_ns)
                self._at(at, self._strike_any, name)
        for _ in range(self.settings.looks):
            at = NOON + draw.randint(0, self.settings.faults_ns)
            self._at(at, lambda _: self._look())
        for consumer in self.world.consumers:
            self._at(NOON, self._poll, consumer.number)

    def _asked(self, who: int, effect: Any) -> None:
        if isinstance(effect, Elect) and self._split is not None and who != self._split[0]:
            # It makes itself known again to the one that it reaches, which is about to follow
            # another.
            pair, self._split = self._split, None
            self._at(self.world.now, lambda _: self.world.break_link(*pair))
        kind = kind_of(effect)
        if kind is not None:
            self._happened(kind, who, getattr(effect, "to", who))

    def _happened(self, kind: str, who: int, other: int) -> None:
        assert self._aim is not None
        now = self.world.now
        if now >= self._quiet_from:
            return
        strike = self._aim.happened(kind, who, other, now)
        if strike is not None:
            self._at(now + strike.delay_ns, self._strike, strike)

    def _strike_any(self, name: str) -> None:
        if name in NEEDS_PEERS and self._flipped is not None:
            if self.world.now < self._quiet_from:
                self._at(self.world.now + AGAIN_NS, self._strike_any, name)
            return
        getattr(self, "_do_" + name)(None)

    def _strike(self, strike: Strike) -> None:
        self._struck = strike.who, strike.other
        self._strike_any(strike.fault)
        self._struck = None

    @property
    def _flipped(self) -> int | None:
        """Whose log is damaged."""
        return next((each.number for each in self.world.brokers if each.flipped), None)

    def _strike_rest(self) -> None:
        """Whatever no moment came for."""
        assert self._aim is not None
        for name in self._aim.left:
            self._strike_any(name)
        self._aim.left.clear()

    def _befalls(self, fault: str, *brokers: int) -> None:
        self.faults.append((fault, work_at(self.world, *brokers)))

    def _who(self, fault: str) -> int:
        """A broker, the original more often than others."""
        who = self._draw_who()
        self._befalls(fault, who)
        return who

    def _draw_who(self) -> int:
        flipped = self._flipped
        if flipped is not None:  # one fault at a time
            return flipped
        if self._struck is not None:
            return self._struck[0]
        original = self.world.znodes.original
        if original is not None and self._fault.random() < 0.5:
            return original
        return self._fault.randrange(len(self.world.brokers))

    def _pair(self, fault: str) -> tuple[int, int]:
        if self._struck is not None and self._struck[0] != self._struck[1]:
            a, b = self._struck
        else:
            a, b = self._fault.sample(range(len(self.world.brokers)), 2)
        self._befalls(fault, a, b)
        return a, b

    def _do_crashes(self, _: Any) -> None:
        self.world.crash(self._who("crashes"))

    def _do_power_failures(self, _: Any) -> None:
        self.world.crash(self._who("power_failures"), Random(self._fault.random()))

    def _do_blackouts(self, _: Any) -> None:
        self._befalls("blackouts", *(broker.number for broker in self.world.brokers))
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
        broker = self.world.brokers[self._who("torn_crashes")]
        disk = broker.storage.disk
        disk.crash_at_write = disk.writes + self._fault.randint(0, 4)
        if self.settings.faults.power_failures and self._fault.random() < 0.5:
            broker.doom = Random(self._fault.random())

    def _do_expiries(self, _: Any) -> None:
        self.world.expire(self._who("expiries"))

    def _do_suspensions(self, _: Any) -> None:
        self.world.suspend(self._who("suspensions"))

    def _do_link_breaks(self, _: Any) -> None:
        self.world.break_link(*self._pair("link_breaks"))

    def _do_partings(self, _: Any) -> None:
        pair = self._pair("partings")
        self.world.part(*pair)
        until = self.world.now + self._fault.randint(0, 500) * NS_PER_MS
        self._at(min(until, self._quiet_from), lambda _: self.world.mend(*pair))

    def _do_splits(self, _: Any) -> None:
        original = self.world.znodes.original
        who = self._draw_who() if original is None else original
        self._befalls("splits", who)
        others = [each.number for each in self.world.brokers if each.number != who]
        reached = self._fault.choice(others)
        until = min(self.world.now + self._fault.randint(50, 500) * NS_PER_MS, self._quiet_from)
        for other in others:
            if other != reached:
                self.world.part(who, other)
                self._at(until, lambda _, other=other: self.world.mend(who, other))
        self.world.expire(who)
        if self._fault.random() < 0.5:  # what reaches it is late, and so is what it says to that
            self._slow[who] = until
        self._split = who, reached

    def _do_pauses(self, _: Any) -> None:
        who = self._who("pauses")
        until = self.world.now + self._fault.randint(1, 800) * NS_PER_MS
        self._paused[who] = min(until, self._quiet_from)
        if self._fault.random() < 0.6:
            self._at(self.world.now + 100 * NS_PER_MS, lambda _: self.world.expire(who))

    def _do_slow_spans(self, _: Any) -> None:
        until = self.world.now + self._fault.randint(1, 800) * NS_PER_MS
        self._slow[self._who("slow_spans")] = min(until, self._quiet_from)

    def _do_client_breaks(self, _: Any) -> None:
        if self.world.producers:
            who = self._fault.randrange(len(self.world.producers))
            asked = self.world.producers[who].flight
            self.faults.append(("client_breaks", frozenset({PRODUCE} if asked else ())))
            self.world.offer("lose", who)

    def _do_deletions(self, _: Any) -> None:
        highs = [each.high_watermark for each in self.world.brokers]
        original = self.world.znodes.original
        self._befalls("deletions", *(() if original is None else (original,)))
        self.world.delete_records(self._fault.randint(0, max(highs)))

    def _do_hand_overs(self, _: Any) -> None:
        preferred = self.world.znodes.preferred
        if preferred is None or preferred == self.world.znodes.original:
            preferred = BrokerId(self._fault.randrange(len(self.world.brokers)))
        original = self.world.znodes.original
        self._befalls("hand_overs", *(() if original is None else (original,)))
        self.world.hand_over(preferred)

    def _do_flips(self, _: Any) -> None:
        who = self._struck[0] if self._struck is not None else self._draw_who()
        now = self.world.now
        if now >= self._quiet_from:
            return
        if not self._others_are_well(who) or not self.world.flip(who, self._fault):
            self._at(now + AGAIN_NS, self._strike_any, "flips")
            return
        self._befalls("flips", who)
        self._at(now + self._fault.randint(*SCRUB_NS), self._scrub, who)

    def _others_are_well(self, who: int) -> bool:
        """Whether all are in sync, and nothing keeps the others from staying so."""
        world = self.world
        return (
            len(world.znodes.isr) == len(world.brokers)
            and self._flipped is None
            and not world.cut
            and len(world.open) == len(world.queues) // 2
            and all(
                broker.replica is not None
                and not broker.replica.status().get("is_blank")
                and broker.session is not None
                and broker.storage.disk.crash_at_write is None
                and max(self._paused.get(broker.number, 0), self._slow.get(broker.number, 0))
                <= world.now
                for broker in world.brokers
                if broker.number != who
            )
        )

    def _scrub(self, who: int) -> None:
        self.world.scrub(who)
        self.world.look_for_flips()
        if self.world.brokers[who].flipped:
            self._at(self.world.now + SCRUB_NS[1], self._scrub, who)

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
            faults=self.faults,
        )

    def _whole(self) -> bool:
        world = self.world
        ids = tuple(broker.number for broker in world.brokers)
        return (
            world.znodes.isr == ids
            and self._flipped is None
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
