"""The host of a discovery core: messages, timers, effects in order, faults of peers."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from discovery_net import DOMAIN, Place, in_virtual_time, until

from orderwire.aio.discovery_host import DiscoveryHost, is_urgent
from orderwire.aio.discovery_transport import DiscoveryTransport
from orderwire.discovery.effects import DiscoveryEffects, Post
from orderwire.discovery.messages import JoinAck, LeaveAck, Pull, encode
from orderwire.kernel import Indicate, Instant, LocalProtocolError, RemoteProtocolError, ms

pytestmark = pytest.mark.network


class Tell(msgspec.Struct, frozen=True, tag=True):
    number: int


class Talk(msgspec.Struct, frozen=True):
    to: str
    number: int


class Broken(msgspec.Struct, frozen=True):
    address: str


class Echo:
    """Answers even numbers with the next one; asks again every 20 ms until answered."""

    def __init__(self) -> None:
        self.asked: tuple[str, int] | None = None
        self.due: Instant | None = None
        self.times: list[int] = []

    def submit(self, command: Talk | Broken, now: Instant) -> DiscoveryEffects:
        self.times.append(now)
        if isinstance(command, Broken):
            return [Indicate(command)]
        self.asked = command.to, command.number
        return self._ask(now)

    def receive(self, source: str, message: Tell, now: Instant) -> DiscoveryEffects:
        self.times.append(now)
        if message.number < 0:
            raise RemoteProtocolError("a negative number")
        if message.number % 2 == 0:
            return [Indicate(message.number), Post(source, Tell(message.number + 1))]
        self.due = None
        return [Indicate(message.number)]

    def wake(self, now: Instant) -> DiscoveryEffects:
        assert self.due is not None
        assert now >= self.due
        self.times.append(now)
        return self._ask(now)

    def _ask(self, now: Instant) -> DiscoveryEffects:
        assert self.asked is not None
        self.due = Instant(now + ms(20))
        to, number = self.asked
        return [Indicate("asked"), Post(to, Tell(number))]

    def next_deadline(self) -> Instant | None:
        return self.due


async def host(tell: Callable[[Any], None]) -> "DiscoveryHost[Any, Any]":
    transport = await DiscoveryTransport.open("127.0.0.1:0", domain=DOMAIN)
    return DiscoveryHost(
        Echo(),
        transport,
        tell,
        unreachable=Broken,
        encode=msgspec.json.encode,
        decode=decode,
        urgent=lambda message: False,
    )


def decode(data: bytes | bytearray) -> Tell:
    try:
        return msgspec.json.decode(data, type=Tell)
    except msgspec.MsgspecError as error:
        raise RemoteProtocolError(str(error)) from None


def test_a_question_is_answered_and_told() -> None:
    async def work() -> None:
        told: list[Any] = []
        asker, other = await host(told.append), await host(lambda _: None)
        asker.submit(Talk(other.address, 4))
        await until(lambda: told == ["asked", 5])
        assert asker.posted == {"Tell": 1}
        assert other.received == {"Tell": 1}
        await asker.close()
        await other.close()
        with pytest.raises(LocalProtocolError, match="closed"):
            asker.submit(Talk(other.address, 6))

    in_virtual_time(work)


@pytest.mark.slow
def test_the_core_is_woken_when_it_is_due_and_its_time_never_goes_back() -> None:
    async def work() -> None:
        told: list[Any] = []
        asker, mute = await host(told.append), await Place.open()
        core = asker._core
        assert isinstance(core, Echo)
        asker.submit(Talk(mute.address, 4))
        await until(lambda: told.count("asked") >= 4)  # the monotonic clock is the real one
        assert core.times == sorted(core.times)
        await asker.close()
        await mute.transport.close()

    in_virtual_time(work)


def test_an_address_that_fails_becomes_a_command() -> None:
    async def work() -> None:
        told: list[Any] = []
        asker, gone = await host(told.append), await Place.open()
        await gone.transport.close()
        asker.submit(Talk(gone.address, 4))
        await until(lambda: Broken(gone.address) in told)
        await asker.close()

    in_virtual_time(work)


def test_what_a_peer_should_not_have_sent_is_dropped_and_counted() -> None:
    async def work() -> None:
        told: list[Any] = []
        receiver, peer = await host(told.append), await Place.open()
        for data in (b"\xff", b'{"type":"Tell","number":-1}', b'{"type":"Tell","number":1}'):
            peer.post(receiver.address, data)
        await until(lambda: told == [1])
        assert receiver.malformed == {peer.address: 2}
        assert receiver.received == {"Tell": 1}
        await receiver.close()
        await peer.transport.close()

    in_virtual_time(work)


def test_commands_given_while_told_come_after_the_effects_being_applied() -> None:
    async def work() -> None:
        told: list[Any] = []
        peer = await Place.open()

        def tell(indication: Any) -> None:
            told.append(indication)
            if len(told) == 1:
                asker.submit(Talk(peer.address, 8))
                raise ValueError("the application's bug")

        asker = await host(tell)
        failures: list[dict[str, Any]] = []
        asker._loop.set_exception_handler(lambda _, context: failures.append(context))
        asker.submit(Talk(peer.address, 6))
        await until(lambda: len(peer.got) == 2)
        assert peer.messages() == [encode_tell(6), encode_tell(8)]
        assert told == ["asked", "asked"]
        assert [type(failure["exception"]) for failure in failures] == [ValueError]
        await asker.close()
        await peer.transport.close()

    in_virtual_time(work)


def encode_tell(number: int) -> bytes:
    return msgspec.json.encode(Tell(number))


def test_only_what_carries_no_map_is_urgent() -> None:
    assert is_urgent(LeaveAck(1, 2, 3, 4, 5, 1))
    assert is_urgent(JoinAck(1, 2, 3, 4, 5, 1, None))
    assert not is_urgent(JoinAck(1, 2, 3, 4, 5, 1, ()))
    assert not is_urgent(Pull(1, 2, ()))
    assert encode(Pull(1, 2, ()))
