"""Strangers: silent, slow, malformed, oversized, too many, of another domain.  All are counted."""

import asyncio
import socket
from random import Random
from typing import Any

import pytest
from discovery_net import Place, RawPeer, in_virtual_time, until

from orderwire.aio.addresses import split_address
from orderwire.aio.discovery_faults import Fault
from orderwire.aio.discovery_frames import HELLO_BYTES_MAX, FrameKind, frame
from orderwire.kernel import NS_PER_S

pytestmark = pytest.mark.network

LOOPBACK = "127.0.0.1"


async def still_works(place: Place) -> None:
    """A correct peer reaches this place."""
    peer = await Place.open()
    before = len(place.got)
    peer.post(place, b"fine")
    await until(lambda: len(place.got) == before + 1)
    await peer.transport.close()


@pytest.mark.parametrize(
    "changes",
    [
        {"domain": "other"},
        {"to": "127.0.0.1:2"},
        {"address": "127.0.0.9:1"},
        {"address": "somewhere:1"},
        {"address": "nothing"},
        {"version": 2},
    ],
)
def test_a_hello_that_is_not_for_us_gets_nothing_but_a_close(changes: dict[str, Any]) -> None:
    fault = Fault.MALFORMED if "version" in changes else Fault.STRANGER

    async def work() -> None:
        place = await Place.open()
        peer = await RawPeer.call(place)
        peer.send(peer.hello(place, **changes))
        assert await peer.rest() == b""
        await until(lambda: place.transport.refusals == {LOOPBACK: 1})
        assert place.transport.faults == {fault: 1}
        await still_works(place)
        await peer.close()
        await place.transport.close()

    in_virtual_time(work)


def test_who_says_that_it_is_us_is_refused() -> None:
    async def work() -> None:
        place = await Place.open()
        peer = await RawPeer.call(place)
        peer.send(peer.hello(place, address=place.address))
        assert await peer.rest() == b""
        await until(lambda: place.refused == 1)
        assert place.transport.faults == {Fault.STRANGER: 1}
        await peer.close()
        await place.transport.close()

    in_virtual_time(work)


def test_a_silent_connection_is_closed_in_time() -> None:
    async def work() -> None:
        place = await Place.open(hello_ns=2 * NS_PER_S)
        peer = await RawPeer.call(place)
        assert await peer.rest() == b""
        assert 2 <= asyncio.get_running_loop().time() < 4
        await until(lambda: place.refused == 1)
        assert place.transport.faults == {Fault.SILENT: 1}
        await peer.close()
        await place.transport.close()

    in_virtual_time(work)


def test_who_says_hello_and_never_chooses_is_closed_in_time() -> None:
    async def work() -> None:
        place = await Place.open(hello_ns=2 * NS_PER_S)
        peer = await RawPeer.call(place)
        peer.send(peer.hello(place, address="127.0.0.1:1"))
        assert (await peer.frame())[0] is FrameKind.HELLO
        await peer.rest()
        await until(lambda: place.refused == 1 and not place.transport._links)
        assert place.transport.faults == {Fault.SILENT: 1}
        await peer.close()
        await place.transport.close()

    in_virtual_time(work)


@pytest.mark.parametrize("seed", range(5))
def test_random_bytes(seed: int) -> None:
    async def work() -> None:
        place = await Place.open()
        peer = await RawPeer.call(place)
        peer.send(Random(seed).randbytes(10_000))
        assert await peer.rest() == b""
        await until(lambda: place.refused == 1)
        assert place.transport.faults == {Fault.MALFORMED: 1}
        await still_works(place)
        await peer.close()
        await place.transport.close()

    in_virtual_time(work)


async def chosen(place: Place) -> RawPeer:
    """A raw peer with a connection that carries messages; it has the smallest address."""
    peer = await RawPeer.call(place)
    peer.send(peer.hello(place, address="127.0.0.1:1"))
    assert (await peer.frame())[0] is FrameKind.HELLO
    peer.send(frame(FrameKind.CHOSEN))
    await until(lambda: bool(place.transport.connections))
    return peer


@pytest.mark.parametrize(
    "data",
    [
        frame(FrameKind.HELLO, bytes(HELLO_BYTES_MAX)),
        frame(FrameKind.CHOSEN),
        b"\x00\x00\x00",
        frame(FrameKind.FIRST, b"\xff\xff\xff\xff" + b"m"),
        frame(FrameKind.NEXT, b"m"),
        frame(FrameKind.BYE) + frame(FrameKind.MESSAGE, b"m"),
        frame(FrameKind.BYE) + frame(FrameKind.BYE),
    ],
)
def test_a_peer_that_breaks_the_rules_is_cut_off(data: bytes) -> None:
    fault = Fault.OVERSIZED if b"\xff" in data else Fault.MALFORMED

    async def work() -> None:
        place = await Place.open()
        peer = await chosen(place)
        # So much that BYE is not answered at once.
        place.transport._links["127.0.0.1:1"].outgoing.add(bytes(16 << 20))
        peer.send(data)
        await until(lambda: place.unreachable == ["127.0.0.1:1"])
        assert place.refused == 1
        assert place.transport.faults == {fault: 1}
        assert not place.got
        await peer.close()
        await still_works(place)
        await place.transport.close()

    in_virtual_time(work)


@pytest.mark.parametrize("chooses", [False, True])
def test_a_message_before_the_connection_is_chosen_is_refused(chooses: bool) -> None:
    async def work() -> None:
        place = await Place.open()
        peer = await RawPeer.call(place)
        peer.send(peer.hello(place, address="127.0.0.1:1") + frame(FrameKind.MESSAGE, b"m"))
        await peer.rest()
        await until(lambda: place.refused == 1)
        assert not place.got
        await peer.close()
        await place.transport.close()

    in_virtual_time(work)


def test_a_message_that_does_not_end_is_cut_off_in_time() -> None:
    async def work() -> None:
        place = await Place.open(frame_ns=2 * NS_PER_S)
        peer = await chosen(place)
        peer.send(frame(FrameKind.FIRST, b"\x00\x00\x01\x00" + bytes(1_000)))
        await until(lambda: place.transport.held_bytes == 1_000)
        await until(lambda: place.unreachable == ["127.0.0.1:1"])
        assert place.refused == 1
        assert place.transport.faults == {Fault.SLOW: 1}
        assert place.transport.held_bytes == 0
        await peer.close()
        await place.transport.close()

    in_virtual_time(work)


def test_a_frame_that_comes_byte_by_byte_is_cut_off_in_time() -> None:
    async def work() -> None:
        place = await Place.open(frame_ns=2 * NS_PER_S)
        peer = await chosen(place)
        begun = asyncio.get_running_loop().time()
        while not place.unreachable:
            peer.send(b"\x00" if asyncio.get_running_loop().time() > begun else b"\xff\xff\xe3")
            await asyncio.sleep(0.5)
        assert asyncio.get_running_loop().time() - begun < 5
        assert place.refused == 1
        assert place.transport.faults == {Fault.SLOW: 1}
        await peer.close()
        await place.transport.close()

    in_virtual_time(work)


def test_a_long_message_that_arrives_steadily_is_waited_for() -> None:
    async def work() -> None:
        place = await Place.open(frame_ns=2 * NS_PER_S, frame_bytes_per_s_min=1_000)
        peer = await chosen(place)
        size = 20_000
        peer.send(frame(FrameKind.FIRST, size.to_bytes(4, "little") + bytes(2_000)))
        for _ in range(9):
            await asyncio.sleep(1.5)
            peer.send(frame(FrameKind.NEXT, bytes(2_000)))
        await until(lambda: place.messages() == [bytes(size)])
        await peer.close()
        await place.transport.close()

    in_virtual_time(work)


def test_unfinished_messages_of_all_together_are_bounded() -> None:
    async def work() -> None:
        place = await Place.open(held_bytes_max=100_000)
        peer = await chosen(place)
        whole = frame(FrameKind.FIRST, b"\x00\x00\x10\x00" + bytes(60_000))
        peer.send(whole + frame(FrameKind.NEXT, bytes(60_000)))
        await until(lambda: place.refused == 1)
        assert place.transport.faults == {Fault.OVERSIZED: 1}
        assert place.transport.held_bytes == 0
        await still_works(place)
        await peer.close()
        await place.transport.close()

    in_virtual_time(work)


def test_of_many_that_say_nothing_the_oldest_make_room() -> None:
    async def work() -> None:
        place = await Place.open(unknown_max=5)
        silent = [await RawPeer.call(place) for _ in range(20)]
        await until(lambda: place.refused == 15)
        assert place.transport.faults == {Fault.SILENT: 15}
        await still_works(place)
        for peer in silent:
            await peer.close()
        await until(lambda: place.transport.open_sockets == 0)
        await place.transport.close()

    in_virtual_time(work)


def test_those_that_come_at_once_are_counted_once_each() -> None:
    async def work() -> None:
        place = await Place.open(unknown_max=5)
        where = split_address(place.address)
        silent = [socket.create_connection(where) for _ in range(20)]
        await until(lambda: place.refused >= 15)
        await asyncio.sleep(1)
        assert place.refused == 15
        assert asyncio.get_running_loop().time() >= 3 * 0.2, "they had time to speak"
        assert place.transport.open_sockets == 5
        await still_works(place)
        for each in silent:
            each.close()
        await place.transport.close()

    in_virtual_time(work)


def test_more_than_are_taken_at_once_are_all_heard_when_they_speak() -> None:
    async def work() -> None:
        place = await Place.open(unknown_max=3)
        peers = [await Place.open() for _ in range(20)]
        for peer in peers:
            peer.post(place, b"m")
        await until(lambda: len(place.got) == 20)
        assert place.refused == 0
        assert [peer.unreachable for peer in peers] == [[]] * 20
        await asyncio.gather(*(each.transport.close() for each in (place, *peers)))

    in_virtual_time(work)


def test_so_many_connections_and_no_more() -> None:
    async def work() -> None:
        place = await Place.open(inbound_max=3)
        silent = [await RawPeer.call(place) for _ in range(5)]
        await until(lambda: place.refused == 2)
        assert place.transport.faults == {Fault.TOO_MANY: 2}
        for peer in silent:
            await peer.close()
        await until(lambda: place.transport.open_sockets == 0)
        await still_works(place)
        await place.transport.close()

    in_virtual_time(work)


def test_sources_beyond_so_many_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orderwire.aio.discovery_listener._KEYS_MAX", 2)

    async def work() -> None:
        place = await Place.open()
        for number in range(1, 5):
            peer = await RawPeer.call(place, local_addr=(f"127.0.0.{number}", 0))
            peer.send(b"no hello at all")
            await peer.rest()
            await peer.close()
        await until(lambda: place.refused == 4)
        assert place.transport.refusals == {"127.0.0.1": 1, "127.0.0.2": 1, "others": 2}
        await place.transport.close()

    in_virtual_time(work)


def test_who_answers_a_call_with_nonsense_is_unreachable() -> None:
    async def work() -> None:
        place = await Place.open()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            await reader.read()
            writer.close()

        server = await asyncio.start_server(answer, LOOPBACK, 0, family=socket.AF_INET)
        host, port = server.sockets[0].getsockname()
        place.post(f"{host}:{port}", b"m")
        await until(lambda: place.unreachable == [f"{host}:{port}"])
        assert place.refused == 1
        server.close()
        await place.transport.close()

    in_virtual_time(work)


def test_who_accepts_and_says_nothing_is_unreachable_after_one_time_out() -> None:
    async def work() -> None:
        place = await Place.open(hello_ns=5 * NS_PER_S)
        with socket.create_server((LOOPBACK, 0)) as silent:
            host, port = silent.getsockname()
            place.post(f"{host}:{port}", b"m")
            await until(lambda: place.unreachable == [f"{host}:{port}"])
            assert 5 <= asyncio.get_running_loop().time() < 7
            assert place.transport.dropped == {f"{host}:{port}": 1}
            await until(lambda: place.transport.open_sockets == 0)
        await place.transport.close()

    in_virtual_time(work)
