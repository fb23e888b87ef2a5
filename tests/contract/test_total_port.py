"""A member's end of the channel: what does not increase is dropped, and so is another relay's."""

import asyncio
import socket
from typing import Any

import pytest
from discovered import in_a_loop, until

from orderwire.aio.total_frames import (
    HELLO,
    UP,
    UP_HEAD_BYTES,
    Welcome,
    decode_call,
    decode_pdus,
    decode_up,
    encode_down,
    encode_pdu,
    encode_welcome,
    kind_of,
)
from orderwire.aio.total_port import ChannelPort, PortSettings, monotonic_now
from orderwire.aio.total_relay import ChannelRelay
from orderwire.kernel import Instant, ProcessId, ms

pytestmark = [pytest.mark.network, pytest.mark.timeout(60)]

RELAY = 5


class Ends:
    """A port, and a socket in place of its relay."""

    def __init__(self, wanted: int | None = RELAY, **settings: Any) -> None:
        self.found: list[tuple[int, bytes, int]] = []
        self.relay = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.relay.bind(("127.0.0.1", 0))
        self.relay.settimeout(30)
        self.port = ChannelPort.open(
            ("127.0.0.1", 0),
            ProcessId(1),
            7,
            PortSettings(repeats=False, **settings),
            received=self._received,
            drained=lambda: None,
            told=lambda: None,
            now=monotonic_now,
        )
        self.port.use(self.relay.getsockname(), wanted)

    def _received(self, source: ProcessId, pdu: bytes, csn: int, _: Instant) -> None:
        self.found.append((source, pdu, csn))

    async def welcome(self, relay: int = RELAY) -> None:
        """Answer its call."""
        data = await asyncio.to_thread(self.relay.recv, 2_000)
        assert kind_of(data) == HELLO
        assert (decode_call(data).member, decode_call(data).incarnation) == (1, 7)
        self.say(encode_welcome(Welcome(relay, None, 0.0, 0, 0b10)))
        await asyncio.sleep(0.05)

    def say(self, data: bytes) -> None:
        self.relay.sendto(data, self.port.address)

    def down(self, first: int, *pdus: bytes, relay: int = RELAY) -> None:
        self.say(encode_down(relay, first) + b"".join(encode_pdu(0, pdu) for pdu in pdus))

    def close(self) -> None:
        self.port.close()
        self.relay.close()


@in_a_loop
async def test_what_is_overtaken_is_lost() -> None:
    ends = Ends()
    await ends.welcome()
    ends.down(1, b"a")
    ends.down(3, b"c", b"d")
    ends.down(2, b"b")
    ends.down(3, b"c", b"d")
    ends.down(4, b"d", b"e")
    await until(lambda: len(ends.found) == 4, 30)
    assert [(pdu, csn) for _, pdu, csn in ends.found] == [
        (b"a", 1),
        (b"c", 3),
        (b"d", 4),
        (b"e", 5),
    ]
    assert ends.port.counters["copies"] == 4
    assert ends.port.counters["missed"] == 1
    ends.close()


@in_a_loop
async def test_a_relay_that_begins_again_at_one_is_another_and_is_not_heard() -> None:
    ends = Ends()
    await ends.welcome()
    ends.down(10, b"a")
    ends.down(1, b"x", relay=RELAY + 1)
    ends.down(11, b"y", relay=RELAY + 1)
    ends.say(encode_welcome(Welcome(RELAY + 1, None, 0.0, 0, 0b10)))
    ends.down(11, b"b")
    await until(lambda: len(ends.found) == 2, 30)
    assert [pdu for _, pdu, _ in ends.found] == [b"a", b"b"]
    assert ends.port.counters["of another relay"] == 3
    # Once a view names it, it is the only one that is heard, from whatever number on.
    ends.port.use(ends.relay.getsockname(), RELAY + 1)
    await ends.welcome(RELAY + 1)
    ends.down(12, b"old")
    ends.down(1, b"new", relay=RELAY + 1)
    await until(lambda: len(ends.found) == 3, 30)
    assert ends.found[-1] == (0, b"new", 1)
    ends.close()


@in_a_loop
async def test_a_fixed_group_is_told_that_its_relay_was_started_anew() -> None:
    ends = Ends(wanted=None)
    await ends.welcome()
    ends.say(encode_welcome(Welcome(RELAY - 1, None, 0.0, 0, 0b10)))
    ends.down(1, b"a")
    await until(lambda: bool(ends.found), 30)
    assert ends.port.replaced is None
    ends.say(encode_welcome(Welcome(RELAY + 1, None, 0.0, 0, 0b10)))
    await until(lambda: ends.port.replaced is not None, 30)
    assert "started anew" in str(ends.port.replaced)
    ends.close()


def test_a_relay_that_falls_silent_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    @in_a_loop
    async def run() -> None:
        ends = Ends(silence_ns=ms(100), hello_ns=ms(20))
        await ends.welcome()
        await until(lambda: "has not answered for" in caplog.text, 30)
        await asyncio.sleep(0.3)
        assert caplog.text.count("has not answered for") == 1
        ends.down(1, b"a")
        await until(lambda: "answers again" in caplog.text, 30)
        ends.close()

    run()


@in_a_loop
async def test_multicasts_that_cannot_be_received_are_told() -> None:
    ends = Ends(wanted=None, multicast_interface="203.0.113.1")
    ends.say(encode_welcome(Welcome(RELAY, ("239.77.1.2", 7_501), 0.0, 0, 0b10)))
    await until(lambda: ends.port.refused is not None, 30)
    assert "interface 203.0.113.1" in str(ends.port.refused)
    assert ends.port.relay is None
    ends.close()


@in_a_loop
async def test_what_is_cut_off_is_counted_and_nothing_of_it_taken() -> None:
    ends = Ends()
    await ends.welcome()
    whole = encode_down(RELAY, 1) + encode_pdu(0, b"abc")
    for size in range(len(whole)):
        ends.say(whole[:size])
    ends.down(1, b"abc")
    await until(lambda: bool(ends.found), 30)
    assert [pdu for _, pdu, _ in ends.found] == [b"abc"]
    assert ends.port.counters["malformed"] > 15
    ends.close()


@in_a_loop
async def test_its_pdus_are_numbered_one_after_the_other() -> None:
    ends = Ends()
    ends.port.send(b"before there is a relay")
    await ends.welcome()
    for pdu in (b"a", b"b", b"c"):
        ends.port.send(pdu)
    ends.port.flush()
    data = await asyncio.to_thread(ends.relay.recv, 2_000)
    while kind_of(data) != UP:
        data = await asyncio.to_thread(ends.relay.recv, 2_000)
    up = decode_up(data)
    assert (up.relay, up.member, up.incarnation, up.first) == (RELAY, 1, 7, 1)
    assert [data[a:b] for _, a, b in decode_pdus(data, UP_HEAD_BYTES)] == [b"a", b"b", b"c"]
    assert ends.port.counters["unsent"] == 1
    ends.close()


@in_a_loop
async def test_a_relay_that_is_renewed_numbers_from_one_and_knows_nobody() -> None:
    relay = await ChannelRelay.open(("127.0.0.1", 0), incarnation=3)
    found: list[int] = []
    port = ChannelPort.open(
        ("127.0.0.1", 0),
        ProcessId(0),
        1,
        received=lambda source, pdu, csn, arrived: found.append(csn),
        drained=lambda: None,
        told=lambda: None,
        now=monotonic_now,
    )
    port.use(relay.address, 3)
    await until(lambda: port.relay is not None, 30)
    port.send(b"a")
    port.flush()
    await until(lambda: found == [1], 30)
    relay.renew(4)
    assert relay.present == 0
    port.use(relay.address, 4)
    await until(lambda: port.relay is not None, 30)
    port.send(b"b")
    port.flush()
    await until(lambda: found == [1, 1], 30)
    port.close()
    await relay.close()
