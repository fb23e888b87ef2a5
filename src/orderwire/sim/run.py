"""`simulate(scenario, seed)`: one run, always the same."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import msgspec

from orderwire.kernel import Destinations, Input, ProcessId, ms, probe, stream
from orderwire.kernel.probes import hits
from orderwire.ordering.catalog import ALGORITHMS, Algorithm
from orderwire.ordering.pdu import Delivered, Multicast, OrderingIndication
from orderwire.sim.clocks import Clock, TrueClock, clocks
from orderwire.sim.delays import longest_ns
from orderwire.sim.group import OrderingGroup
from orderwire.sim.host import ChargedHost, Host
from orderwire.sim.judge import Judgement, judge
from orderwire.sim.network import Counts, Network
from orderwire.sim.replay import replay_line
from orderwire.sim.scenario import Crash, Join, Partition, Scenario
from orderwire.sim.scenarios import SCENARIOS
from orderwire.sim.swarm import drawn
from orderwire.sim.workload import Applications
from orderwire.sim.world import COMMAND, FAULT, World
from orderwire.trace.events import Event
from orderwire.verify.verdict import Verdict

STEP_NS = ms(100)
"""How far a run goes before it looks whether a phase is over."""
PHASE_NS_MAX = 1_000_000 * STEP_NS


@dataclass(frozen=True, kw_only=True)
class Run:
    """What came of it."""

    scenario: Scenario
    """With everything that the seed drew."""
    seed: int
    called: str
    """What the command line calls the scenario: its name, or its file."""
    events: list[Event]
    """The trace, in the order in which things happened."""
    indications: list[tuple[int, ProcessId, OrderingIndication]]
    """True time in ns, process, indication."""
    probes: Counter[str]
    """Probes passed, and how often."""
    judgement: Judgement
    counts: Counts
    """What the network did to copies."""
    world_events: int
    """How many simulated events happened."""
    end_ns: int
    digest: str

    @property
    def verdict(self) -> Verdict:
        """Whether the promises were kept."""
        return self.judgement.verdict

    @property
    def replay_line(self) -> str:
        """The command that repeats this run."""
        return _replay_line(self.scenario, self.seed, self.called)


def simulate(
    scenario: Scenario,
    seed: int,
    *,
    record: Callable[[ProcessId, Input], None] | None = None,
    algorithm: Algorithm | None = None,
    called: str | None = None,
) -> Run:
    """Run the scenario with this seed: first with faults, then healed.

    `called` is its file for the line that replays the run, unless its name will do.  `record` gets
    every input of every core.  `algorithm` replaces the catalog's entry: a test's broken twin, for
    example.  Raises ValueError for settings that exclude each other.
    """
    before = Counter(hits)
    try:
        simulation = _Simulation(drawn(scenario, seed), seed, called, record, algorithm)
        simulation.safety_phase()
        simulation.liveness_phase()
        return simulation.finish(before)
    except Exception as error:
        error.add_note(_replay_line(scenario, seed, called or scenario.name))
        raise


def _replay_line(scenario: Scenario, seed: int, called: str) -> str:
    named = SCENARIOS.get(called)
    usual = named is not None and named.algorithm == scenario.algorithm
    return replay_line(called, seed, algorithm=None if usual else scenario.algorithm)


def digest(events: Sequence[Event]) -> str:
    """Return the fingerprint of a trace: equal if and only if every field of every event is."""
    encoder = msgspec.msgpack.Encoder()
    state = blake2b(digest_size=16)
    for event in events:
        state.update(encoder.encode(event))
    return state.hexdigest()


class _Simulation:
    """The parts of one run, put together."""

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        called: str | None,
        record: Callable[[ProcessId, Input], None] | None,
        algorithm: Algorithm | None,
    ) -> None:
        members = scenario.settings.members
        self._scenario = scenario
        self._seed = seed
        self._called = called or scenario.name
        self._algorithm = algorithm or ALGORITHMS[scenario.algorithm]
        self._world = world = World()
        self._clocks: list[Clock] = clocks(scenario.clocks, members, stream(seed, "clocks"))
        self._group = group = OrderingGroup(
            world,
            f"{scenario.name}/{seed}",
            self._algorithm,
            scenario.settings,
            self._read_clock,
            timer_slack_ns=self._timer_slack_ns(),
            trace_receives=scenario.trace_receives,
            quarantine=scenario.faults.quarantine,
            on_delivered=self._delivered,
        )
        self._network = network = Network(
            world,
            members,
            scenario.network,
            stream(seed, "network"),
            on_lost=group.copy_lost,
            tell_lost=self._tell_lost,
        )
        self._hosts = [self._host(ProcessId(me), record) for me in range(members)]
        for host in self._hosts:
            network.attach(host.arrive)
        self._plan_faults()
        late = {join.process for join in scenario.faults.joins}
        for host in self._hosts:
            if host.me not in late:
                host.start()
        self._applications = Applications(
            world,
            scenario.workload,
            scenario.settings,
            seed,
            self._submit,
            grid_ns=scenario.network.grid_ns,
            until_ns=scenario.safety_ns,
        )
        self._healed_from = len(group.messages)
        self._bound_ns = 0

    def safety_phase(self) -> None:
        """Let the faults happen until every message has been sent."""
        world = self._world
        faults_end_ns = max(
            [cut.end_ns for cut in self._scenario.faults.partitions]
            + [c.restart_ns or c.at_ns for c in self._scenario.faults.crashes]
            + [join.at_ns for join in self._scenario.faults.joins]
            + [self._scenario.safety_ns or 0]
        )
        while self._applications.open or world.now_ns < faults_end_ns:
            next_ns = world.next_ns()
            if next_ns is None:
                break
            assert next_ns < PHASE_NS_MAX, f"safety phase has no end: {next_ns} ns"
            world.run(next_ns + STEP_NS)

    def liveness_phase(self) -> None:
        """Heal everything, wait until the past is settled, then demand delivery."""
        scenario, world = self._scenario, self._world
        rounds = scenario.liveness.rounds
        settings = scenario.settings
        if not rounds:
            self._settle()
            return
        longest = longest_ns(scenario.liveness.delay)
        if longest is None:
            raise ValueError(
                f"the delay of the liveness phase has no longest value: {scenario.liveness.delay}"
            )
        if (
            settings.lifetime_ns is not None
            and longest > settings.lifetime_ns - settings.epsilon_ns
        ):
            raise ValueError(
                f"the healed network's longest delay of {longest} ns is beyond Δ − ε = "
                f"{settings.lifetime_ns - settings.epsilon_ns} ns: nothing need be delivered"
            )
        self._network.calm(scenario.liveness.delay)
        self._settle()
        self._applications.live_alike()
        self._healed_from = len(self._group.messages)
        self._bound_ns = (
            longest
            + scenario.clocks.timer_granularity_ns
            + settings.epsilon_ns
            + self._lag_ns()
            + scenario.liveness.bound_ns
        )
        if self._algorithm.expectation not in (None, "exact"):
            # It may wait for what it does not need, until the deadline.
            self._bound_ns += settings.lifetime_ns or 0
        # Nothing sent before may still be alive, nor its sender be quiet.
        start_ns = world.now_ns + (settings.lifetime_ns or 0) + 2 * settings.epsilon_ns + 2
        running = [host.me for host in self._hosts if host.running]
        everyone = Destinations(sum(1 << me for me in running))
        for turn in range(rounds):
            for place, me in enumerate(running):
                at_ns = start_ns + (turn * len(running) + place) * scenario.liveness.gap_ns
                world.at(at_ns, COMMAND, self._send_healed, me, everyone)
        world.run(start_ns + rounds * len(running) * scenario.liveness.gap_ns)
        self._settle()

    def finish(self, before: Counter[str]) -> Run:
        """Close the books and judge."""
        scenario, group = self._scenario, self._group
        group.finish()
        messages = list(group.messages.values())
        running = sum(1 << host.me for host in self._hosts if host.running)
        judgement = judge(
            self._algorithm,
            group.events,
            findings=group.findings,
            healed=messages[self._healed_from :] if scenario.liveness.rounds else [],
            running=running,
            bound_ns=self._bound_ns,
            timer_slack_ns=self._timer_slack_ns(),
            crashes=bool(scenario.faults.crashes or scenario.faults.joins),
        )
        return Run(
            scenario=scenario,
            seed=self._seed,
            called=self._called,
            events=group.events,
            indications=group.indications,
            probes=hits - before,
            judgement=judgement,
            counts=self._network.counts,
            world_events=self._world.events,
            end_ns=self._world.now_ns,
            digest=digest(group.events),
        )

    def _settle(self) -> None:
        """Run until nothing is under way any more."""
        world = self._world
        while (next_ns := world.next_ns()) is not None:
            assert next_ns < PHASE_NS_MAX, f"the run has no end: {next_ns} ns"
            world.run(next_ns + STEP_NS)

    def _timer_slack_ns(self) -> int:
        """How late a timer may be by the clock that set it."""
        clocks_ = self._scenario.clocks
        # A drifting clock may step over the very nanosecond that a timer was set to.
        drift_ns = 2 if clocks_.drift_ppm_max else 0
        return clocks_.timer_granularity_ns - 1 + drift_ns + self._lag_ns()

    def _lag_ns(self) -> int:
        """How much later than its cause an effect may come, by the cost of computation."""
        computation = self._scenario.computation
        return 0 if computation is None else computation.lag_max_ns

    def _host(self, me: ProcessId, record: Callable[[ProcessId, Input], None] | None) -> Host:
        scenario = self._scenario
        clock = self._clocks[me]
        members = scenario.settings.members
        granularity_ns = scenario.clocks.timer_granularity_ns
        if scenario.computation is not None:
            return ChargedHost(
                me,
                self._world,
                self._network,
                clock,
                self._group,
                members=members,
                timer_granularity_ns=granularity_ns,
                record=record,
                computation=scenario.computation,
            )
        return Host(
            me,
            self._world,
            self._network,
            clock,
            self._group,
            members=members,
            timer_granularity_ns=granularity_ns,
            record=record,
        )

    def _read_clock(self, me: ProcessId) -> int:
        clock = self._clocks[me]
        now_ns = self._world.now_ns
        return now_ns if isinstance(clock, TrueClock) else clock.read(now_ns)

    def _submit(self, me: ProcessId, command: Multicast) -> bool:
        host = self._hosts[me]
        if not host.running or host.now() < self._group.quiet_until[me]:
            return False
        self._group.submitted[me].append(command)
        host.submit(command)
        return True

    def _delivered(self, me: ProcessId, delivered: Delivered) -> None:
        self._applications.delivered(me)

    def _send_healed(self, me: ProcessId, everyone: Destinations) -> None:
        to = Destinations(everyone & ~(1 << me) or everyone)
        assert self._submit(me, Multicast(self._applications.payload(), to)), "must not be quiet"

    def _tell_lost(self, source: int, to: int, incarnation: int, copy: int) -> None:
        host = self._hosts[to]
        if host.running:
            self._group.note_loss_told(ProcessId(to), ProcessId(source))
            host.submit(self._group.loss_report(ProcessId(source), copy))

    def _plan_faults(self) -> None:
        world, faults = self._world, self._scenario.faults
        for cut in faults.partitions:
            world.at(cut.start_ns, FAULT, self._cut, cut)
            world.at(cut.end_ns, FAULT, self._heal, cut)
        for join in faults.joins:
            world.at(join.at_ns, FAULT, self._join, join)
        for crash in faults.crashes:
            world.at(crash.at_ns, FAULT, self._crash, crash)
            if crash.restart_ns is not None:
                world.at(crash.restart_ns, FAULT, self._restart, crash)

    def _directions(self, cut: Partition) -> list[tuple[int, int]]:
        inside = sorted(set(cut.side))
        outside = [p for p in range(self._scenario.settings.members) if p not in inside]
        out = [(a, b) for a in inside for b in outside]
        return out if cut.one_way else out + [(b, a) for a, b in out]

    def _cut(self, cut: Partition, _: None) -> None:
        for source, to in self._directions(cut):
            self._network.cut(source, to)

    def _heal(self, cut: Partition, _: None) -> None:
        for source, to in self._directions(cut):
            self._network.heal(source, to)

    def _join(self, join: Join, _: None) -> None:
        if not self._hosts[join.process].running:
            probe("sim: process joined")
            self._hosts[join.process].start()

    def _crash(self, crash: Crash, _: None) -> None:
        if self._hosts[crash.process].running:
            self._hosts[crash.process].crash()

    def _restart(self, crash: Crash, _: None) -> None:
        if not self._hosts[crash.process].running:
            self._hosts[crash.process].start()
