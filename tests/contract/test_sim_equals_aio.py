"""The two runtimes: one scenario through `sim` and through `aio` ends in the same deliveries.

`aio` runs on real sockets.  In the first half its loop has a virtual time and its network the
simulator's delays: then every delivery and every discard happens at the same instant in both.  In
the second half time is real and a fifth of all datagrams is lost: the link's repair makes up for
it, so that the same messages are delivered as in a simulation without loss, and in a valid order.
"""

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec
import pytest
from endpoints import endpoints, run, until
from virtual_loop import VirtualLoop

from orderwire.aio.clock import GroupClock
from orderwire.aio.endpoint import Endpoint
from orderwire.aio.host import Host
from orderwire.aio.impairment import Impairment
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
from orderwire.ordering.pdu import Delivered, Discarded, Multicast, OrderingCommand, Sent
from orderwire.sim.delays import Constant
from orderwire.sim.network import LinkDelay, NetworkSettings
from orderwire.sim.run import simulate
from orderwire.sim.scenario import Liveness, Scenario, ScriptedSend, Workload

pytestmark = pytest.mark.network

MEMBERS = 4
CHANNEL = 3
Happened = tuple[int, str, int, int, bytes]
"""Instant since the run's start, what, source, number, payload."""


def scenario(algorithm: str, seed: int, lifetime_ns: int | None) -> Scenario:
    """Draw a script and a delay for every link, some of them longer than Δ."""
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
        name=f"contract-{algorithm}-{seed}",
        algorithm=algorithm,
        settings=OrderingSettings(members=MEMBERS, lifetime_ns=lifetime_ns),
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


def simulated(of: Scenario, seed: int) -> list[list[Happened]]:
    happened: list[list[Happened]] = [[] for _ in range(MEMBERS)]
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
    of: Scenario, loop: VirtualLoop, recorded: list[list[Any]]
) -> list[list[Happened]]:
    """Run the scenario on sockets, in virtual time."""
    clock = GroupClock(wall_ns=lambda: loop.now_ns, monotonic_ns=lambda: loop.now_ns)
    members = [
        await Endpoint.open(me, {me: ("127.0.0.1", 0)}, clock=clock, impairment=LinkDelays(of, me))
        for me in map(ProcessId, range(MEMBERS))
    ]
    for each in members:
        for other in members:
            if other is not each:
                await each.add_peer(other.me, other.address)
    await until(lambda: all(len(each.peers) == MEMBERS - 1 for each in members))
    await until(lambda: all(each.is_connected(p) for each in members for p in each.peers))
    loop.settling = False
    start = loop.now_ns + ms(1_000)
    start -= start % ms(1)
    entry = ALGORITHMS[of.algorithm]
    happened: list[list[Happened]] = [[] for _ in range(MEMBERS)]
    hosts: list[Host[OrderingCommand, Any, Any]] = []
    for each in members:

        def tell(indication: Any, me: int = each.me) -> None:
            what = event(loop.now_ns - start, indication)
            if what is not None:
                happened[me].append(what)

        hosts.append(
            Host(
                entry.create(each.me, of.settings),
                entry.codec(each.me, of.settings),
                each.channel(CHANNEL, of.settings.lifetime_ns),
                clock,
                tell,
                record=recorded[each.me].append,
            )
        )
    for send in of.workload.script:
        command = Multicast(send.payload, destinations(send.destinations))
        loop.call_at((start + send.at_ns) / 1e9, hosts[send.source].submit, command)
    assert of.safety_ns is not None
    await asyncio.sleep((start + of.safety_ns - loop.now_ns) / 1e9)
    loop.settling = True
    for host in hosts:
        host.close()
    for each in members:
        await each.close()
    return happened


def run_on_sockets(of: Scenario) -> tuple[list[list[Happened]], list[list[Any]]]:
    recorded: list[list[Any]] = [[] for _ in range(MEMBERS)]
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualLoop)
        return runner.run(on_sockets(of, loop, recorded)), recorded


RIVALS = sorted(
    name
    for name, entry in ALGORITHMS.items()
    if entry.expectation and not entry.twin and name != "jang-delta"
)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("algorithm", "lifetime_ns"),
    [
        ("unordered", None),
        ("fifo", None),
        ("fifo", ms(25)),
        ("jang-delta", ms(25)),
        ("jang-delta", ms(1_000)),
        *((rival, ms(25)) for rival in RIVALS),
    ],
)
def test_same_events_at_the_same_instants(
    algorithm: str, lifetime_ns: int | None, seed: int
) -> None:
    """Per process: the same deliveries and discards, in the same order, within a microsecond."""
    of = scenario(algorithm, seed, lifetime_ns)
    expected = simulated(of, seed)
    happened, _ = run_on_sockets(of)
    for me in range(MEMBERS):
        assert [each[1:] for each in happened[me]] == [each[1:] for each in expected[me]]
        for ours, theirs in zip(happened[me], expected[me], strict=True):
            assert abs(ours[0] - theirs[0]) <= us(1)
    if lifetime_ns == ms(25):
        kinds = {what for timeline in happened for _, what, *_ in timeline}
        assert kinds == {"delivered", "late"}, "the scenario tries nothing"


def test_recorded_inputs_replay_to_the_same_deliveries() -> None:
    """What a host recorded, fed to a new core, gives what the host told."""
    of = scenario("jang-delta", 1, ms(25))
    happened, recorded = run_on_sockets(of)
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


@pytest.mark.parametrize("algorithm", ["fifo", "jang-delta"])
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_loss_is_made_up_for_and_order_kept(algorithm: str, loop: str) -> None:
    """The deliveries of a simulation without loss, although a fifth of all datagrams is lost."""
    lifetime_ns = ms(5_000) if algorithm == "jang-delta" else None
    of = scenario(algorithm, 7, lifetime_ns)
    expected = simulated(of, 7)
    worse = Impairment(seed=2, loss_ratio=0.2, delay_ms=0.5, jitter_mean_ms=2, duplicate_ratio=0.1)
    entry = ALGORITHMS[algorithm]

    async def test() -> None:
        delivered: list[list[Delivered]] = [[] for _ in range(MEMBERS)]
        past: list[set[tuple[int, int]]] = [set() for _ in range(MEMBERS)]
        pasts: dict[tuple[int, int], set[tuple[int, int]]] = {}
        aimed: dict[tuple[int, int], int] = {}

        async with endpoints(MEMBERS, impairment=worse) as members:

            def tell(indication: Any, me: int) -> None:
                if isinstance(indication, Sent):
                    key = (me, indication.number)
                    pasts[key] = set(past[me])
                    past[me].add(key)
                    aimed[key] = indication.destinations
                elif isinstance(indication, Delivered):
                    key = (indication.source, indication.number)
                    delivered[me].append(indication)
                    past[me] |= pasts[key] | {key}

            hosts = [
                Host(
                    entry.create(each.me, of.settings),
                    entry.codec(each.me, of.settings),
                    each.channel(CHANNEL, lifetime_ns),
                    each.clock,
                    lambda indication, me=each.me: tell(indication, me),
                )
                for each in members
            ]
            for send in of.workload.script:
                hosts[send.source].submit(Multicast(send.payload, destinations(send.destinations)))
                await asyncio.sleep(0)
            await until(
                lambda: [len(each) for each in delivered] == [len(each) for each in expected],
                "everything is delivered",
            )
            for host in hosts:
                host.close()
        for me in range(MEMBERS):
            assert sorted((each.source, each.number, each.payload) for each in delivered[me]) == (
                sorted(each[2:] for each in expected[me])
            )
            seen: set[tuple[int, int]] = set()
            for each in delivered[me]:
                key = (each.source, each.number)
                for before in pasts[key]:
                    mine = aimed[before] >> me & 1 and before[0] != me
                    if mine and (algorithm == "jang-delta" or before[0] == key[0]):
                        assert before in seen, f"{key} overtook {before} at {me}"
                seen.add(key)

    run(test(), loop)
