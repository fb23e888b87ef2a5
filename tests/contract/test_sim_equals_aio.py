"""The two runtimes: one schedule through `sim` and through `aio` has the same outcome.

`aio` runs on real sockets, with every algorithm of the catalog.  In the first half its loop has a
virtual time and its network the simulator's delays: then every delivery and every discard happens
at the same instant in both.  In the second half time is real and a fifth of all datagrams is lost:
the audit's verdict is the simulator's.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import cache
from random import Random
from typing import Any

import msgspec
import pytest
from endpoints import run, until
from loopback import free_members
from virtual_loop import VirtualLoop

from orderwire import (
    Counters,
    Fifo,
    Impairment,
    LocalProtocolError,
    Order,
    Participant,
    Published,
    Reader,
    Sample,
    Topic,
    Trace,
    Unordered,
    Writer,
)
from orderwire.aio.clock import GroupClock
from orderwire.aio.endpoint import Endpoint
from orderwire.aio.host import Host
from orderwire.kernel import (
    InputsHeader,
    Instant,
    ProcessId,
    Received,
    Submitted,
    Woken,
    destinations,
    ms,
    read_inputs,
    us,
    write_input,
)
from orderwire.ordering.catalog import ALGORITHMS, OrderingSettings
from orderwire.ordering.pdu import Delivered, Discarded, Multicast, OrderingCommand
from orderwire.sim.delays import Constant
from orderwire.sim.network import LinkDelay, NetworkSettings
from orderwire.sim.run import simulate
from orderwire.sim.scenario import Liveness, Scenario, ScriptedSend, Workload
from orderwire.trace import MemorySink
from orderwire.verify.audit import audit
from orderwire.verify.source import TableSource

pytestmark = pytest.mark.network

MEMBERS = 4
GRAIN_NS = us(1 << 20)
"""Floors are rounded to a power of two of ticks: runs that begin at a multiple round alike."""
Happened = tuple[int, str, int, int, bytes]
"""Instant since the run's start, what, source, number, payload."""
Timelines = list[list[Happened]]
"""Of each member."""


class Case(msgspec.Struct, frozen=True):
    """An algorithm and its settings."""

    algorithm: str
    lifetime_ns: int | None = ms(25)
    more: tuple[tuple[str, int], ...] = ()

    @property
    def name(self) -> str:
        lifetime = "∞" if self.lifetime_ns is None else f"{self.lifetime_ns // ms(1)}ms"
        return "-".join([self.algorithm, lifetime, *(f"{name}={n}" for name, n in self.more)])


def needs_a_lifetime(name: str) -> bool:
    try:
        ALGORITHMS[name].create(ProcessId(0), OrderingSettings(members=MEMBERS))
    except ValueError:
        return True
    return False


CASES = [
    *(Case(name) for name in ALGORITHMS),
    *(Case(name, None) for name in ALGORITHMS if not needs_a_lifetime(name)),
    Case("jang-delta", ms(1_000)),
    Case("bounded-jang", ms(25), (("floor_cap", 1),)),
    Case("bounded-jang", ms(25), (("tag_bytes_max", 8),)),
    Case("yoshimoto-maxcb", ms(25), (("max_cb", 1),)),
    Case("yoshimoto-maxcb-oldest", ms(25), (("max_cb", 1),)),
]


def scenario(case: Case, seed: int) -> Scenario:
    """Draw a script and a delay for every link, some of them longer than Δ: the same for all."""
    chance = Random(seed)
    script = []
    at_ns = ms(1)
    for index in range(60):
        at_ns += chance.randrange(us(100), ms(6))
        source = chance.randrange(MEMBERS)
        others = [each for each in range(MEMBERS) if each != source]
        script.append(
            ScriptedSend(
                at_ns=at_ns,
                source=source,
                destinations=tuple(sorted(chance.sample(others, chance.randint(1, MEMBERS - 1)))),
                payload=b"%d from %d" % (index, source),
            )
        )
    links = tuple(
        LinkDelay(source=source, to=to, delay=Constant(delay_ns=chance.randrange(us(300), ms(35))))
        for source in range(MEMBERS)
        for to in range(MEMBERS)
        if source != to
    )
    return Scenario(
        name=f"contract-{case.name}-{seed}",
        algorithm=case.algorithm,
        settings=OrderingSettings(
            members=MEMBERS, lifetime_ns=case.lifetime_ns, **dict[str, Any](case.more)
        ),
        workload=Workload(messages=0, script=tuple(script)),
        network=NetworkSettings(links=links),
        liveness=Liveness(rounds=0),
        safety_ns=at_ns + ms(200),
    )


def event(at_ns: int, indication: Any) -> Happened | None:
    if isinstance(indication, Delivered):
        return at_ns, "delivered", indication.source, indication.number, indication.payload
    if isinstance(indication, Discarded):
        return at_ns, indication.reason.value, indication.source, indication.number, b""
    return None


def simulated(of: Scenario, seed: int) -> Timelines:
    happened: Timelines = [[] for _ in range(MEMBERS)]
    for at_ns, me, indication in simulate(of, seed).indications:
        each = event(at_ns, indication)
        if each is not None:
            happened[me].append(each)
    return happened


class LinkDelays:
    """The scenario's delays at the socket boundary of one process."""

    def __init__(self, of: Scenario, me: ProcessId) -> None:
        self._delays = {
            each.to: each.delay.delay_ns
            for each in of.network.links
            if each.source == me and isinstance(each.delay, Constant)
        }

    def fate(self, to: ProcessId, data: bytes) -> Sequence[int]:
        return (self._delays[to],)


async def on_sockets(
    scenarios: Sequence[Scenario], loop: VirtualLoop, recorded: list[list[Any]]
) -> list[Timelines]:
    """Run scenarios of one network on sockets, in virtual time, each on a channel of its own.

    `recorded` gets each member's inputs of the first.
    """
    clock = GroupClock(wall_ns=lambda: loop.now_ns, monotonic_ns=lambda: loop.now_ns)
    network = scenarios[0]
    assert all(each.network == network.network for each in scenarios)
    members = [
        await Endpoint.open(
            me, {me: ("127.0.0.1", 0)}, clock=clock, impairment=LinkDelays(network, me)
        )
        for me in map(ProcessId, range(MEMBERS))
    ]
    for each in members:
        for other in members:
            if other is not each:
                await each.add_peer(other.me, other.address)
    await until(lambda: all(len(each.peers) == MEMBERS - 1 for each in members))
    await until(lambda: all(each.is_connected(p) for each in members for p in each.peers))
    loop.settling = False
    start = loop.now_ns + 2 * GRAIN_NS
    start -= start % GRAIN_NS
    outcome: list[Timelines] = [[[] for _ in range(MEMBERS)] for _ in scenarios]
    hosts: list[Host[OrderingCommand, Any, Any]] = []

    def host(of: Scenario, index: int, member: Endpoint) -> Host[OrderingCommand, Any, Any]:
        def tell(indication: Any) -> None:
            what = event(loop.now_ns - start, indication)
            if what is not None:
                outcome[index][member.me].append(what)

        entry = ALGORITHMS[of.algorithm]
        return Host(
            entry.create(member.me, of.settings),
            entry.codec(member.me, of.settings),
            member.channel(index, of.settings.lifetime_ns),
            clock,
            tell,
            record=None if index else recorded[member.me].append,
        )

    for index, of in enumerate(scenarios):
        mine = [host(of, index, member) for member in members]
        for send in of.workload.script:
            command = Multicast(send.payload, destinations(send.destinations))
            loop.call_at((start + send.at_ns) / 1e9, mine[send.source].submit, command)
        hosts += mine
    ends_ns = max(each.safety_ns or 0 for each in scenarios)
    await asyncio.sleep((start + ends_ns - loop.now_ns) / 1e9)
    loop.settling = True
    for each in hosts:
        each.close()
    for member in members:
        await member.close()
    return outcome


def run_on_sockets(scenarios: Sequence[Scenario]) -> tuple[list[Timelines], list[list[Any]]]:
    recorded: list[list[Any]] = [[] for _ in range(MEMBERS)]
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualLoop)
        return runner.run(on_sockets(scenarios, loop, recorded)), recorded


@cache
def all_cases(seed: int) -> dict[str, Timelines]:
    """What happened on sockets, all cases side by side."""
    outcome, _ = run_on_sockets([scenario(case, seed) for case in CASES])
    return {case.name: happened for case, happened in zip(CASES, outcome, strict=True)}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_same_events_at_the_same_instants(case: Case, seed: int) -> None:
    """Per process: the same deliveries and discards, in the same order, within a microsecond."""
    expected = simulated(scenario(case, seed), seed)
    happened = all_cases(seed)[case.name]
    for me in range(MEMBERS):
        assert [each[1:] for each in happened[me]] == [each[1:] for each in expected[me]]
        for ours, theirs in zip(happened[me], expected[me], strict=True):
            assert abs(ours[0] - theirs[0]) <= us(1)
    kinds = {what for timeline in happened for _, what, *_ in timeline}
    assert "delivered" in kinds
    assert ("late" in kinds) == (case.lifetime_ns == ms(25)), "the scenario tries nothing"


def test_recorded_inputs_replay_to_the_same_deliveries() -> None:
    """What a host recorded, fed to a new core, gives what the host told."""
    of = scenario(Case("jang-delta"), 1)
    [happened], recorded = run_on_sockets([of])
    entry = ALGORITHMS["jang-delta"]
    for me in map(ProcessId, range(MEMBERS)):
        header = InputsHeader(family="ordering", protocol="jang-delta", me=me)
        lines = [write_input(header), *(write_input(each) for each in recorded[me])]
        _, inputs = read_inputs(lines)
        core = entry.create(me, of.settings)
        codec = entry.codec(me, of.settings)
        again: list[Any] = []
        for each in inputs:
            match each:
                case Submitted(now, command):
                    decoded = msgspec.json.decode(command, type=OrderingCommand)
                    effects = core.submit(decoded, Instant(now))
                case Received(now, source, data):
                    effects = core.receive(ProcessId(source), codec.decode(data), Instant(now))
                case Woken(now):
                    effects = core.wake(Instant(now))
            again += [effect.indication for effect in effects if hasattr(effect, "indication")]
        told = [what[1:] for each in again if (what := event(0, each)) is not None]
        assert told == [each[1:] for each in happened[me]]


# Real time, real loss.

PATIENT_MS = 1_000
"""Δ of the second half: what a busy machine does not make late."""
SLACK_MS = 30_000
"""How late a busy machine may run the timers of all these groups in one process."""
TIMED = {
    "adelstein-singhal",
    "baldoni-broadcast",
    "fixed-delay",
    "rodrigues-deadline",
    "yoshimoto-maxcb",
    "yoshimoto-maxcb-oldest",
}
"""Those that the API refuses without a lifetime."""
LOSSY = Impairment(seed=2, loss_ratio=0.2, delay_ms=0.5, jitter_mean_ms=2, duplicate_ratio=0.1)


def order_of(name: str, lifetime_ms: float | None) -> Order | None:
    """Return the order, or None if there is none without a lifetime."""
    match name:
        case "unordered":
            return Unordered(lifetime_ms=lifetime_ms, domain=name)
        case "fifo":
            return Fifo(lifetime_ms=lifetime_ms, domain=name)
    try:
        return Published(algorithm=name, lifetime_ms=lifetime_ms, domain=name)
    except LocalProtocolError:
        return None


def in_time(order: Order) -> Callable[[Sample], None]:
    """Fail when a sample was delivered behind its lifetime, or before it was written."""
    lifetime_ns = order.lifetime_ns

    def look(sample: Sample) -> None:
        assert sample.delivered >= sample.stamp
        assert lifetime_ns is None or sample.delivered <= sample.stamp + lifetime_ns

    return look


async def converse(
    of: Scenario, orders: Sequence[Order], sink: MemorySink
) -> dict[str, list[Counters]]:
    """Run the script through participants, in all orders at once; return each member's counters.

    A topic for each set of destinations: its readers are the members of the set.
    """
    names = [f"p{index}" for index in range(MEMBERS)]
    addresses = free_members(*names)
    topics = sorted({send.destinations for send in of.workload.script})
    async with AsyncExitStack() as stack:
        members = [
            await stack.enter_async_context(
                Participant(
                    name,
                    members=addresses,
                    trace=Trace(run="lossy", sink=sink, timer_slack_ms=SLACK_MS),
                    impairment=LOSSY,
                    restarted=False,
                )
            )
            for name in names
        ]
        written: dict[tuple[int, str, tuple[int, ...]], Writer] = {}
        readers: dict[str, list[Reader]] = {order.label: [] for order in orders}
        for order in orders:
            for topic in topics:
                name = "/".join(map(str, topic))
                for me in topic:
                    readers[order.label].append(
                        members[me].reader(Topic(name, order), callback=in_time(order), own=False)
                    )
                for source in range(MEMBERS):
                    if source not in topic:
                        writer = members[source].writer(Topic(name, order))
                        written[source, order.label, topic] = writer
        for (_, _, topic), writer in written.items():
            await writer.wait_matched(len(topic), timeout_s=30)
        loop = asyncio.get_running_loop()
        begin = loop.time()
        for send in of.workload.script:
            await asyncio.sleep(max(0.0, begin + send.at_ns / 1e9 - loop.time()))
            for order in orders:
                done = written[send.source, order.label, send.destinations].write(send.payload)
                assert done is not None
                assert done.members == len(send.destinations)
        for member in members:
            await member.drain(timeout_s=30)
        ends = loop.time() + max(order.lifetime_ns or 0 for order in orders) / 1e9
        await asyncio.sleep(ends - loop.time())  # nothing waits in an order any more
        counters = {
            order.label: [member.counters_of(order) for member in members] for order in orders
        }
        for order in orders:
            counted = [reader.counters for reader in readers[order.label]]
            given = sum(each.handed_over + each.expired for each in counted)
            assert given == sum(each.delivered for each in counters[order.label])
            assert sum(each.handed_over for each in counted) > 0, order.label
            assert [each.failed for each in counted] == [0] * len(counted)
    return counters


@pytest.mark.parametrize(("loop", "lifetime_ms"), [("asyncio", PATIENT_MS), ("uvloop", None)])
def test_verdicts_are_the_simulators_although_a_fifth_of_all_datagrams_is_lost(
    loop: str, lifetime_ms: int | None
) -> None:
    """Every algorithm, chosen from the API: what the simulator's judge says, the audit says."""
    orders = [order for name in ALGORITHMS if (order := order_of(name, lifetime_ms)) is not None]
    names = [order.algorithm for order in orders]
    assert set(ALGORITHMS) - set(names) == (TIMED if lifetime_ms is None else set())
    of = scenario(Case("jang-delta"), 7)
    sink = MemorySink()
    counters = run(converse(of, orders, sink), loop)
    report, _ = audit(TableSource(sink.table()))
    runs = {each.run_id.removeprefix("lossy/"): each for each in report.runs}
    assert set(runs) == set(names)
    copies = sum(len(send.destinations) for send in of.workload.script)
    for name in names:
        judged = simulate(lossy(Case(name, lifetime_ms and ms(lifetime_ms))), 7).judgement
        found = [each for check in runs[name].checks if check.violations for each in check.examples]
        assert judged.verdict.value == runs[name].verdict.value == "VALID", (name, found)
        broken = {check.id for check in runs[name].checks if check.violations}
        assert broken <= {"unordered": {"O1", "O2"}, "fifo": {"O1"}}.get(name, set()), (name, found)
        mine = counters[name]
        accounted = sum(each.delivered + each.late + each.lost + each.refused for each in mine)
        assert accounted == copies == sum(each.copies for each in mine)
        assert sum(each.retransmitted for each in mine) > 0, name
        if lifetime_ms is None:
            assert sum(each.delivered for each in mine) == copies, name
    tried = {check.id for check in runs["unordered"].checks if check.violations}
    assert tried >= {"O1", "O2"}, "the schedule tries nothing"


def lossy(case: Case) -> Scenario:
    """The same schedule in the simulator; what is lost comes again if nothing is given up."""
    of = scenario(case, 7)
    loss = 0.0 if case.lifetime_ns is None else LOSSY.loss_ratio
    return msgspec.structs.replace(of, network=msgspec.structs.replace(of.network, loss_ratio=loss))
