"""Replicas whose steps take time: one processor and one disk a broker, links with a delay.

The replicas are the real ones, in the world that the searches use; here every step waits for its
broker's processor, and what a call stores before it returns keeps both waiting, as in a broker that
runs.  What may be stored aside only occupies the disk.  Several partitions share the brokers.
`TimedRun(…, seed)` is a function: the same arguments give the same times.  [S004:sec.4]
"""

from collections import defaultdict, deque
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Any

import msgspec

from orderwire.broker.replication import effects as asked
from orderwire.broker.replication.settings import Mode, ReplicationSettings
from orderwire.broker.replication.view import BrokerId
from orderwire.kernel import NS_PER_MS, NS_PER_S, Instant, stream
from orderwire.kernel.errors import LocalProtocolError
from orderwire.sim.replication_broker import Broker
from orderwire.sim.replication_clients import ProducerSettings, WorldSettings
from orderwire.sim.replication_cluster import (
    NOON,
    READ_BYTES,
    MakeReplica,
    Step,
)
from orderwire.sim.replication_costs import Costs, Meter, MeteredStorage, batches_in, make_replica
from orderwire.sim.replication_world import ReplicationWorld
from orderwire.verify.replication import Event

CLIENT, RELAY, COPY, CONTROL = "client", "relay", "copy", "control"
"""What a processor is busy with: clients' requests and answers, what the original hands over, what
makes the others' copies, and agreement."""
KINDS = {
    "RelayAppend": RELAY,
    "RelayStored": RELAY,
    "LaneForward": RELAY,
    "LaneForwarded": RELAY,
    "SyncPull": COPY,
    "Pulled": COPY,
    "Copied": COPY,
    "Records": COPY,
    "Stored": COPY,
    "LaneData": COPY,
}
"""Messages between brokers; the others are control."""
CALM_NS = 2 * NS_PER_S
"""After so long everybody is elected and connected."""
START_WITHIN_NS = 5 * NS_PER_MS
"""Clients start within this span."""
LONGEST_NS = 100_000 * NS_PER_S
"""Nothing takes longer; a run that does has come to a standstill."""


class TimedPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Who does what."""

    mode: Mode
    replication: ReplicationSettings
    costs: Costs = Costs()
    brokers: int = 2
    partitions: int = 1
    producers: int = 5
    messages: int = 1_524
    """Of each producer."""
    value_bytes: int = 100
    acks: int = 1
    consumers: int = 0
    """They read from the start, while producers write."""
    readers: int = 0
    """They read what is there once everything is committed."""
    spread_reads: bool = True
    """Whether clients read at any replica, in turn, or at the original only."""
    fetch_bytes: int = READ_BYTES


class TimedResult(msgspec.Struct, frozen=True, kw_only=True):
    """When everything was done, and what it took."""

    produce_ns: int
    """Until the last producer had its last answer."""
    commit_ns: int
    """Until everything was committed at every replica."""
    consume_ns: int
    """Until the last consumer had read all, from the producers' start; 0 without consumers."""
    read_ns: int
    """Until the last reader had; 0 without readers."""
    answer_ns: int
    """Mean time from a request to its answer."""
    rounds: int
    """Of synchronisation."""
    busy_ns: list[dict[str, int]]
    """Of each broker, up to `commit_ns`: `client`, `relay`, `copy`, `control`, `alone` and
    `together` (the disk's)."""
    stored: list[int]
    """Messages that each broker made durable."""
    moved: list[int]
    """Messages of producers that went into each broker or out of it, up to `commit_ns`."""
    events: int


class _Machine:
    """One broker's processor and disk, whatever it runs."""

    def __init__(self, number: int, costs: Costs) -> None:
        self.number = number
        self.meter = Meter(costs)
        self.queue: deque[_Task] = deque()
        self.running = False
        self.disk_free_ns = 0
        self.disk_queue: deque[TimedPartition] = deque()
        self.busy: dict[str, int] = defaultdict(int)
        self.moved = 0


class _Task(msgspec.Struct, gc=False):
    """What waits for a processor."""

    partition: "TimedPartition"
    act: Callable[[], object]
    cost_ns: int
    kind: str
    moved: int = 0
    """Messages of producers that come with it."""


class TimedPartition(ReplicationWorld):
    """One partition; tells its driver what a call has led to."""

    def __init__(
        self,
        number: int,
        make: MakeReplica,
        settings: ReplicationSettings,
        world: WorldSettings,
        on_event: Callable[[Event], None] | None,
    ) -> None:
        self.number = number
        self.offered: list[Step] = []
        self.sent: list[asked.Tell | asked.Answer] = []
        self.advanced: list[int] = []
        self.rounds = 0
        self.judged = on_event is not None
        super().__init__(make, settings, world, on_event=on_event or (lambda _: None))
        self.offered = list(self.pending)
        self.on_offer = self.offered.append
        self.on_deadline = None
        self.scheduled: dict[tuple[int, int], int] = dict.fromkeys(self.queues, 0)
        """Messages on each link whose arrival is planned."""

    def _do(self, broker: Broker, effect: asked.Effect) -> None:
        if isinstance(effect, asked.Tell | asked.Answer):
            self.sent.append(effect)
        elif isinstance(effect, asked.Note) and isinstance(effect.event, asked.RoundOpened):
            self.rounds += 1
        super()._do(broker, effect)
        self.notes.clear()

    def _advanced(self, broker: Broker, high_watermark: int) -> None:
        self.advanced.append(broker.number)
        if self.judged:
            super()._advanced(broker, high_watermark)
        else:
            broker.high_watermark = max(high_watermark, broker.high_watermark)


class TimedRun:
    """Lets a plan happen and counts."""

    def __init__(
        self,
        plan: TimedPlan,
        seed: int | str,
        *,
        on_event: Callable[[int, Event], None] | None = None,
    ) -> None:
        if not 1 <= plan.brokers <= 16 or not 1 <= plan.partitions <= 64:
            raise LocalProtocolError(
                f"{plan.brokers} brokers and {plan.partitions} partitions; expected 1 … 16, 1 … 64"
            )
        self.plan = plan
        self.costs = costs = plan.costs
        self._draw = stream(seed, "clients")
        self._heap: list[tuple[int, int, Callable[..., object], tuple[Any, ...]]] = []
        self._sequence = count().__next__
        self.now = int(NOON)
        self.machines = [_Machine(each, costs) for each in range(plan.brokers)]
        self._wakes: dict[tuple[int, int], int] = {}
        self._parked: dict[tuple[int, int], list[int]] = defaultdict(list)
        self._sent_at: dict[tuple[int, int], int] = {}
        self._answers: list[int] = []
        self._start_ns = 0
        self._goals: dict[tuple[int, int], int] = {}
        """Partition and consumer → the offset at which it has read all."""
        self._read_at = 0
        self._events = 0
        mine = [self._shares(plan.producers, each) for each in range(plan.partitions)]
        reading = max(plan.consumers, plan.readers)
        theirs = [self._shares(reading, each) for each in range(plan.partitions)]
        self.partitions = [
            TimedPartition(
                each,
                self._make,
                plan.replication,
                WorldSettings(
                    replicas=plan.brokers,
                    producers=tuple(self._producer(who) for who in mine[each]),
                    consumers=len(theirs[each]),
                ),
                None if on_event is None else partial(on_event, each),
            )
            for each in range(plan.partitions)
        ]

    def _shares(self, users: int, partition: int) -> range:
        return range(partition, users, self.plan.partitions)

    def _producer(self, who: int) -> ProducerSettings:
        plan = self.plan
        return ProducerSettings(
            acks=plan.acks,
            idempotent=False,
            batches=(1,) * plan.messages,
            any_replica=plan.mode is Mode.ACTIVE_ACTIVE_LANES,
            home=who,
            value_bytes=plan.value_bytes,
        )

    def _make(self, me: BrokerId, storage: Any, settings: ReplicationSettings, now: Instant) -> Any:
        metered = MeteredStorage(storage, self.machines[me].meter)
        return make_replica(self.plan.mode, me, metered, settings, now)

    # Time.

    def _at(self, time_ns: int, act: Callable[..., object], *what: Any) -> None:
        heappush(self._heap, (time_ns, self._sequence(), act, what))

    def _until(self, done: Callable[[], bool], what: str) -> int:
        """Let it happen until this is so; returns when."""
        while not done():
            if not self._heap or self.now > NOON + LONGEST_NS:
                raise AssertionError(f"a standstill before {what}, after {self._events} events")
            self.now, _, act, args = heappop(self._heap)
            self._events += 1
            act(*args)
        return self.now

    # Processors and disks.

    def _arrive(self, machine: _Machine, task: _Task) -> None:
        machine.queue.append(task)
        if not machine.running:
            self._serve(machine)

    def _serve(self, machine: _Machine) -> None:
        """Take the next step that waits for this processor."""
        if machine.disk_queue and machine.disk_free_ns <= self.now:
            self._use_disk(machine)
        machine.running = bool(machine.queue)
        if not machine.running:
            return
        task = machine.queue.popleft()
        partition = task.partition
        partition.now = Instant(self.now)
        partition.sent.clear()
        task.act()
        costs = self.costs
        machine.busy[task.kind] += task.cost_ns
        machine.moved += task.moved
        end = self.now + task.cost_ns
        for effect in partition.sent:
            kind, cost = CLIENT, costs.send_ns
            if isinstance(effect, asked.Tell):
                kind = KINDS.get(type(effect.message).__name__, CONTROL)
                carried = _carried(effect.message)
                cost = costs.of_message(carried)
                machine.moved += carried
            machine.busy[kind] += cost
            end += cost
        stored = machine.meter.take()
        if stored:
            end = max(end, machine.disk_free_ns) + stored
            machine.disk_free_ns = end
        self._follow(partition, end, machine.number)
        self._at(end, self._serve, machine)

    def _use_disk(self, machine: _Machine) -> None:
        """Make durable what has come together, aside."""
        if machine.disk_free_ns > self.now:
            self._at(machine.disk_free_ns, self._use_disk, machine)
            return
        if not machine.disk_queue:
            return
        partition = machine.disk_queue.popleft()
        partition.now = Instant(self.now)
        partition.take(("sync_begin", machine.number, 0))
        if partition.brokers[machine.number].work is not None:
            partition.take(("sync_run", machine.number, 0))
            machine.disk_free_ns = self.now + machine.meter.take()
        self._follow(partition, machine.disk_free_ns, machine.number)
        if machine.disk_queue:
            self._at(machine.disk_free_ns, self._use_disk, machine)

    # What follows from a step.

    def _follow(self, partition: TimedPartition, at_ns: int, who: int = -1) -> None:
        """Plan what has become possible, from this moment on."""
        offered, partition.offered = partition.offered, []
        partition.on_offer = partition.offered.append
        for step in offered:
            if step in partition.pending:
                self._plan_step(partition, step, at_ns)
        for (source, to), queue in partition.queues.items():
            if (to, source) in partition.believes:
                while partition.scheduled[source, to] < len(queue):
                    message = queue[partition.scheduled[source, to]]
                    partition.scheduled[source, to] += 1
                    self._at(
                        at_ns + self.costs.link_ns, self._deliver, partition, source, to, message
                    )
        for broker in dict.fromkeys(partition.advanced):
            for consumer in self._parked.pop((partition.number, broker), ()):
                self._at(at_ns, self._fetch, partition, consumer, broker, 0)
        partition.advanced.clear()
        if who >= 0:
            self._watch(partition, who)

    def _deliver(self, partition: TimedPartition, source: int, to: int, message: Any) -> None:
        def act() -> None:
            partition.scheduled[source, to] -= 1
            partition.take(("deliver", source, to))

        kind = KINDS.get(type(message).__name__, CONTROL)
        carried = _carried(message)
        cost = self.costs.of_message(carried)
        self._arrive(self.machines[to], _Task(partition, act, cost, kind, carried))

    def _plan_step(self, partition: TimedPartition, step: Step, at_ns: int) -> None:
        kind, who, _ = step
        costs = self.costs
        match kind:
            case "deliver" | "sync_run":
                pass  # planned where it happens
            case "send":
                if partition.producers[who].ready:
                    think = round(self._draw.expovariate(1.0) * costs.client_ns)
                    self._at(at_ns + think, self._send, partition, step)
                else:
                    del partition.pending[step]
            case "answer":
                self._at(at_ns + costs.link_ns, self._answer, partition, step)
            case "zk":
                self._at(at_ns + costs.zookeeper_ns, self._take, partition, step)
            case "read":
                self._at(at_ns + costs.zookeeper_ns // 2, self._take, partition, step)
            case "begin":
                # Each partition has another original.
                turn = (who - partition.number) % len(self.machines)
                self._at(at_ns + (1 + 10 * turn) * NS_PER_MS, self._take, partition, step)
            case "connect":
                self._at(at_ns + costs.link_ns, self._take, partition, step)
            case "view" | "up":
                self._at(at_ns, self._at_broker, partition, step, 0)
            case "sync_end_seen" | "locked":
                after = at_ns + costs.zookeeper_ns // 2
                self._at(after, self._at_broker, partition, step, costs.send_ns)
            case "sync_end":
                self._at(at_ns, self._at_broker, partition, step, 0)
            case "sync_begin":
                machine = self.machines[who]
                machine.disk_queue.append(partition)
                self._at(max(at_ns, machine.disk_free_ns), self._use_disk, machine)
            case _:
                raise AssertionError(f"nothing fails in a timed run, but {kind} at {who}")

    def _take(self, partition: TimedPartition, step: Step) -> None:
        """A step for which no processor of ours is needed."""
        partition.now = Instant(self.now)
        partition.take(step)
        self._follow(partition, self.now)

    def _at_broker(self, partition: TimedPartition, step: Step, cost_ns: int) -> None:
        task = _Task(partition, partial(partition.take, step), cost_ns, CONTROL)
        self._arrive(self.machines[step[1]], task)

    def _watch(self, partition: TimedPartition, who: int) -> None:
        """See to it that a replica is woken at its next deadline."""
        replica = partition.brokers[who].replica
        assert replica is not None
        deadline = replica.next_deadline()
        if deadline is None:
            return
        due = max(int(deadline), self.now)
        key = (partition.number, who)
        if due < self._wakes.get(key, LONGEST_NS + NOON):
            self._wakes[key] = due
            self._at(due, self._wake, partition, who, due)

    def _wake(self, partition: TimedPartition, who: int, due: int) -> None:
        if self._wakes.get((partition.number, who)) != due:
            return
        del self._wakes[partition.number, who]

        def act() -> None:
            replica = partition.brokers[who].replica
            assert replica is not None
            deadline = replica.next_deadline()
            if deadline is not None and deadline <= self.now:
                partition.wake(who)

        self._arrive(self.machines[who], _Task(partition, act, 0, CONTROL))

    # Clients.

    def _send(self, partition: TimedPartition, step: Step) -> None:
        who = step[1]
        producer = partition.producers[who]
        if producer.broker is None and not partition._find_broker(producer):
            raise AssertionError("nobody takes requests, although nothing fails")
        assert producer.broker is not None
        self._sent_at[partition.number, who] = self.now
        task = _Task(partition, partial(partition.take, step), self.costs.send_ns, CLIENT, 1)
        machine = self.machines[producer.broker]
        self._at(self.now + self.costs.link_ns, self._arrive, machine, task)

    def _answer(self, partition: TimedPartition, step: Step) -> None:
        self._answers.append(self.now - self._sent_at[partition.number, step[1]])
        self._take(partition, step)

    def _place(self, partition: TimedPartition, who: int) -> int:
        """Where a consumer reads."""
        original = partition.znodes.original
        assert original is not None
        number = who * len(self.partitions) + partition.number
        return number % len(self.machines) if self.plan.spread_reads else original

    def _fetch(self, partition: TimedPartition, who: int, at: int, cost_ns: int) -> None:
        consumer = partition.consumers[who]
        machine = self.machines[at]

        def act() -> None:
            before = consumer.position
            if not partition.fetch(who, at, self.plan.fetch_bytes):
                self._parked[partition.number, at].append(who)
                return
            cost = self.costs.of_message(consumer.position - before)
            task.cost_ns += cost
            after = self.now + task.cost_ns + self.costs.link_ns
            self._at(after, self._fetched, partition, who, at)

        task = _Task(partition, act, cost_ns, CLIENT)
        self._arrive(machine, task)

    def _fetched(self, partition: TimedPartition, who: int, at: int) -> None:
        key = (partition.number, who)
        if partition.consumers[who].position >= self._goals[key]:
            del self._goals[key]
            self._read_at = self.now
            return
        costs = self.costs
        think = round(self._draw.expovariate(1.0) * costs.client_ns)
        after = self.now + think + costs.link_ns
        self._at(after, self._fetch, partition, who, at, costs.send_ns)

    def _start_consumers(self, users: int) -> None:
        for partition in self.partitions:
            goal = self.plan.messages * len(partition.producers)
            for who in range(len(self._shares(users, partition.number))):
                if goal:
                    partition.consumers[who].position = 0
                    self._goals[partition.number, who] = goal
                    start = self.now + self._draw.randrange(START_WITHIN_NS)
                    at = self._place(partition, who)
                    send = self.costs.send_ns
                    self._at(start, self._fetch, partition, who, at, send)

    # The run.

    def run(self) -> TimedResult:
        """Let it happen.  Raises AssertionError when it comes to a standstill."""
        plan = self.plan
        for partition in self.partitions:
            self._follow(partition, self.now)
            for broker in range(plan.brokers):
                self._watch(partition, broker)
        self._at(NOON + CALM_NS, lambda: None)
        self._until(lambda: self.now >= NOON + CALM_NS, "everybody is elected")
        assert all(each.znodes.original is not None for each in self.partitions), "no original"
        for machine in self.machines:
            machine.busy.clear()
            machine.moved = 0
        rounds = sum(each.rounds for each in self.partitions)
        stored = [machine.meter.stored for machine in self.machines]
        disk = [(each.meter.alone_ns, each.meter.together_ns) for each in self.machines]
        start = self.now
        for partition in self.partitions:
            for producer in partition.producers:
                step = ("send", producer.number, 0)
                partition.pending[step] = None
                at = start + self._draw.randrange(START_WITHIN_NS)
                self._at(at, self._send, partition, step)
        self._start_consumers(plan.consumers)
        produced = self._until(self._all_produced, "everything is produced")
        committed = self._until(self._all_committed, "everything is committed")
        busy = [
            dict(each.busy)
            | {
                "alone": each.meter.alone_ns - before[0],
                "together": each.meter.together_ns - before[1],
            }
            for each, before in zip(self.machines, disk, strict=True)
        ]
        moved = [machine.moved for machine in self.machines]
        self._until(lambda: not self._goals, "everything is consumed")
        consumed = self._read_at - start if plan.consumers else 0
        read = 0
        if plan.readers:
            self._read_at = from_ns = self.now
            self._start_consumers(plan.readers)
            self._until(lambda: not self._goals, "everything is read")
            read = self._read_at - from_ns
        refused = [
            result
            for partition in self.partitions
            for producer in partition.producers
            for result in producer.done.values()
            if hasattr(result, "error")
        ]
        assert not refused, f"refused, although nothing fails: {refused[:3]}"
        return TimedResult(
            produce_ns=produced - start,
            commit_ns=committed - start,
            consume_ns=consumed,
            read_ns=read,
            answer_ns=sum(self._answers) // max(len(self._answers), 1),
            rounds=sum(each.rounds for each in self.partitions) - rounds,
            busy_ns=busy,
            stored=[
                machine.meter.stored - before
                for machine, before in zip(self.machines, stored, strict=True)
            ],
            moved=moved,
            events=self._events,
        )

    def _all_produced(self) -> bool:
        return len(self._answers) >= self.plan.producers * self.plan.messages

    def _all_committed(self) -> bool:
        return all(
            broker.high_watermark >= self.plan.messages * len(partition.producers)
            for partition in self.partitions
            for broker in partition.brokers
        )


def _carried(message: msgspec.Struct) -> int:
    """How many messages of producers a message between brokers carries."""
    for name in ("records", "data"):
        data = getattr(message, name, None)
        if data:
            return batches_in(data)
    return 0


def run_timed(plan: TimedPlan, seed: int | str) -> TimedResult:
    """One run."""
    return TimedRun(plan, seed).run()
