"""The host: effects in order, one timer, punctual wakes, peers' faults counted."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from endpoints import endpoints, run, until
from virtual_loop import VirtualLoop

from orderwire.aio.clock import GroupClock
from orderwire.aio.endpoint import Endpoint
from orderwire.aio.frames import HEAD, Kind, Range
from orderwire.aio.host import Host
from orderwire.kernel import (
    NS_PER_S,
    Broadcast,
    Effects,
    Indicate,
    Input,
    Instant,
    LocalProtocolError,
    ProcessId,
    Received,
    RemoteProtocolError,
    Send,
    Submitted,
    Via,
    Woken,
    destinations,
    ms,
    us,
)
from orderwire.ordering.catalog import ALGORITHMS, OrderingSettings
from orderwire.ordering.pdu import Delivered, Discarded, Multicast

pytestmark = pytest.mark.network

A, B = ProcessId(0), ProcessId(1)


class Say(msgspec.Struct, frozen=True, tag=True):
    """Command: send this text and wake me so much later."""

    text: str
    after_ns: int = 0
    via: Via = Via.DATAGRAM


class Gone(msgspec.Struct, frozen=True, tag=True):
    source: int
    first: int
    last: int


class Codec:
    def encode(self, pdu: str) -> bytes:
        return pdu.encode()

    def decode(self, data: bytes | memoryview) -> str:
        text = bytes(data).decode()
        if text == "garbage":
            raise RemoteProtocolError("garbage")
        return text


class Echo:
    """Sends what it is told, indicates what it gets, and wakes when it was asked to."""

    def __init__(self) -> None:
        self.deadlines: list[Instant] = []
        self.wakes: list[tuple[Instant, Instant]] = []

    def submit(self, command: Say | Gone, now: Instant) -> Effects:
        if isinstance(command, Gone):
            return [Indicate(command)]
        if command.text == "nonsense":
            raise LocalProtocolError("nonsense")
        if command.after_ns:
            self.deadlines.append(Instant(now + command.after_ns))
            self.deadlines.sort()
        return [
            Indicate(f"before {command.text}"),
            Send(B, command.text, command.via),
            Broadcast(f"all {command.text}"),
            Indicate(f"after {command.text}"),
        ]

    def receive(self, source: ProcessId, pdu: str, now: Instant) -> Effects:
        if pdu == "refused":
            raise RemoteProtocolError("refused")
        return [Indicate((source, pdu, now))]

    def wake(self, now: Instant) -> Effects:
        due = [each for each in self.deadlines if each <= now]
        self.deadlines = [each for each in self.deadlines if each > now]
        self.wakes += [(each, now) for each in due]
        return [Indicate(f"woken {len(due)}")]

    def next_deadline(self) -> Instant | None:
        return self.deadlines[0] if self.deadlines else None


class Pair:
    """Two hosts and what they told."""

    def __init__(self, members: Any, lifetime_ns: int | None = None) -> None:
        self.cores = [Echo(), Echo()]
        self.told: list[list[Any]] = [[], []]
        self.recorded: list[list[Input]] = [[], []]
        self.channels = [each.channel(1, lifetime_ns) for each in members]
        self.hosts: list[Host[Any, str, Any]] = [
            Host(
                core,
                Codec(),
                channel,
                member.clock,
                told.append,
                lost=Gone,
                record=recorded.append,
            )
            for core, channel, member, told, recorded in zip(
                self.cores, self.channels, members, self.told, self.recorded, strict=True
            )
        ]


def test_effects_are_applied_in_order_and_inputs_recorded() -> None:
    async def test() -> None:
        async with endpoints(2) as members:
            pair = Pair(members)
            pair.hosts[0].submit(Say("hello"))
            pair.hosts[0].submit(Say("again", via=Via.STREAM))
            assert pair.told[0] == [
                "before hello", "after hello", "before again", "after again",
            ]  # fmt: skip
            await until(lambda: len(pair.told[1]) == 4, "all PDUs are there")
            texts = [text for _, text, _ in pair.told[1]]
            assert sorted(texts) == ["again", "all again", "all hello", "hello"]
            assert texts.index("hello") < texts.index("all hello") < texts.index("all again")
            kinds = [type(each) for each in pair.recorded[0]]
            assert kinds == [Submitted, Submitted]
            assert [type(each) for each in pair.recorded[1]] == [Received] * 4
            assert [each.now for each in pair.recorded[1]] == [now for *_, now in pair.told[1]]

    run(test())


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_wakes_come_at_every_deadline_and_never_before(loop: str) -> None:
    async def test() -> None:
        async with endpoints(2) as members:
            pair = Pair(members)
            core = pair.cores[0]
            for after in (ms(30), ms(5), ms(5), ms(12), ms(1)):
                pair.hosts[0].submit(Say("x", after))
            await until(lambda: len(core.wakes) == 5, "all deadlines were met")
            assert [due for due, _ in core.wakes] == sorted(due for due, _ in core.wakes)
            assert all(due <= now for due, now in core.wakes)
            woken = [each for each in pair.recorded[0] if isinstance(each, Woken)]
            assert 1 <= len(woken) <= 5  # a late one serves several deadlines

    run(test(), loop)


def test_a_command_from_inside_tell_follows_what_is_being_applied() -> None:
    async def test() -> None:
        async with endpoints(2) as members:
            pair = Pair(members)
            told: list[str] = []

            def tell(indication: str) -> None:
                told.append(indication)
                if indication == "before first":
                    host.submit(Say("second"))

            pair.hosts[0].close()
            host: Host[Any, str, str] = Host(
                Echo(), Codec(), pair.channels[0], members[0].clock, tell, lost=Gone
            )
            host.submit(Say("first"))
            assert told == ["before first", "after first", "before second", "after second"]
            await until(lambda: len(pair.told[1]) == 4, "all PDUs are there")
            texts = [text for _, text, _ in pair.told[1]]
            assert texts == ["first", "all first", "second", "all second"]

    run(test())


def test_a_lifetime_is_that_of_what_the_command_sends_alone() -> None:
    """What is written while its effects are applied has its own, or the channel's."""

    async def test() -> None:
        async with endpoints(2) as members:
            channel = members[0].channel(1, ms(60_000))

            def tell(indication: str) -> None:
                if indication == "before first":
                    host.submit(Say("second"))
                    host.submit(Say("third"), lifetime_ns=ms(30_000))

            host: Host[Any, str, str] = Host(
                Echo(), Codec(), channel, members[0].clock, tell, lost=Gone
            )
            host.submit(Say("first"), lifetime_ns=ms(20_000))
            flight = members[0].link(B).lanes[1].outbound.flight
            await until(lambda: len(flight) == 4, "all is under way")
            left_s = [(packet.deadline - host.now) / NS_PER_S for packet in flight]
            assert [round(seconds, -1) for seconds in left_s] == [20, 60, 60, 30]

    run(test())


def test_faults_of_peers_are_counted_and_of_callers_raised() -> None:
    async def test() -> None:
        async with endpoints(2) as members:
            pair = Pair(members)
            for text in ("garbage", "refused", "fine"):
                pair.channels[0].send(B, text.encode())
            await until(lambda: bool(pair.told[1]), "the good one is there")
            assert [text for _, text, _ in pair.told[1]] == ["fine"]
            assert pair.hosts[1].malformed == {A: 2}
            with pytest.raises(LocalProtocolError, match="nonsense"):
                pair.hosts[0].submit(Say("nonsense"))
            pair.channels[0].full = True
            with pytest.raises(LocalProtocolError, match=r"await drain\(\)"):
                pair.hosts[0].submit(Say("more"))
            pair.hosts[0].close()
            with pytest.raises(LocalProtocolError, match="closed"):
                pair.hosts[0].submit(Say("late"))

    run(test())


class LoseFirstData:
    def __init__(self) -> None:
        self.lost = 0

    def fate(self, to: ProcessId, data: bytes) -> tuple[int, ...]:
        if to == B and data[0] == 0xD1 and data[6] and self.lost < 1_000:
            self.lost += 1
            return ()
        return (0,)


def test_what_the_link_gives_up_becomes_a_command() -> None:
    async def test() -> None:
        async with endpoints(2, fates=lambda me: LoseFirstData()) as members:
            pair = Pair(members, ms(10))
            pair.hosts[0].submit(Say("unheard"))
            await until(lambda: bool(pair.told[1]), "the loss was told")
            assert pair.told[1] == [Gone(0, 0, 1)]

    run(test())


def test_nothing_is_told_before_it_arrived() -> None:
    """What was received together is taken one by one, and a loss in between reads the clock.

    The core's time does not go back: what it says came then must not be told of an instant before.
    """

    async def test() -> None:
        async with endpoints(2) as members:
            settings = OrderingSettings(members=2, lifetime_ns=ms(60_000))
            entry = ALGORITHMS["fifo"]
            told: list[tuple[Instant, Any]] = []
            sender = entry.create(A, settings)
            clock, channel = members[1].clock, members[1].channel(1)
            host: Host[Any, Any, Any] = Host(
                entry.create(B, settings),
                entry.codec(B, settings),
                channel,
                clock,
                lambda indication: told.append((host.now, indication)),
            )
            sent = clock.now()
            effects = sender.submit(Multicast(b"", destinations([B])), sent)
            assert isinstance(effects[0], Send)
            data = memoryview(entry.codec(A, settings).encode(effects[0].pdu))
            channel.lose(A, [Range(0, 0)])
            channel.take(A, [data], sent)
            channel.settle()
            ((now, delivered),) = told
            assert isinstance(delivered, Delivered)
            assert sent < delivered.arrived <= now

    run(test())


class FirstCopyHeldUp:
    """Nothing of the first copy comes through for a while; all else does."""

    def __init__(self, loop: VirtualLoop, until_ns: int) -> None:
        self._loop = loop
        self._until_ns = until_ns

    def fate(self, to: ProcessId, data: bytes) -> Sequence[int]:
        kind, _, _, _, count, _, _, first, _ = HEAD.unpack_from(data)
        is_first = kind == Kind.DATA and count > 0 and first == 0
        return () if is_first and self._loop.now_ns < self._until_ns else (us(100),)


def test_fifo_without_a_lifetime_waits_as_long_as_the_link_repairs() -> None:
    """On a busy machine it may take long; what the link still brings must not be late."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualLoop)
        assert runner.run(_held_up(loop, ms(20_000))) == [b"first", b"second"]


async def _held_up(loop: VirtualLoop, until_ns: int) -> list[bytes]:
    clock = GroupClock(wall_ns=lambda: loop.now_ns, monotonic_ns=lambda: loop.now_ns)
    members = [
        await Endpoint.open(
            me, {me: ("127.0.0.1", 0)}, clock=clock, impairment=FirstCopyHeldUp(loop, until_ns)
        )
        for me in (A, B)
    ]
    for each, other in (members, members[::-1]):
        await each.add_peer(other.me, other.address)
    await until(lambda: all(each.has_met_all for each in members))
    loop.settling = False
    settings = OrderingSettings(members=2)
    told: list[list[Any]] = [[], []]
    entry = ALGORITHMS["fifo"]
    hosts: list[Host[Any, Any, Any]] = [
        Host(
            entry.create(each.me, settings),
            entry.codec(each.me, settings),
            each.channel(1),
            clock,
            told[each.me].append,
        )
        for each in members
    ]
    for payload in (b"first", b"second"):
        hosts[A].submit(Multicast(payload, destinations([B])))
        await asyncio.sleep(0.001)
    await asyncio.sleep(until_ns / 1e9 + 1)
    loop.settling = True
    for each, host in zip(members, hosts, strict=True):
        host.close()
        await each.close()
    assert not [what for what in told[B] if isinstance(what, Discarded)]
    return [what.payload for what in told[B] if isinstance(what, Delivered)]
