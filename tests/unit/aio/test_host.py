"""The host: effects in order, one timer, punctual wakes, peers' faults counted."""

from typing import Any

import msgspec
import pytest
from endpoints import endpoints, run, until

from orderwire.aio.host import Host
from orderwire.kernel import (
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
    ms,
)

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
