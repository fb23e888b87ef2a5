"""Which of several connections is used, seen by a peer that does only what it is told."""

import asyncio
import struct

import pytest
from discovery_net import Place, RawPeer, in_virtual_time, until

from orderwire.aio.discovery_frames import FrameKind, Hello, frame

pytestmark = pytest.mark.network

PORT = 9
PEER = f"127.0.0.1:{PORT}"
"""Larger than all addresses that the kernel gives: the place chooses."""

MESSAGE = frame(FrameKind.MESSAGE, b"m")
BYE = frame(FrameKind.BYE)


async def call(place: Place, *, turn: int = 1, nonce: int = 5) -> RawPeer:
    peer = await RawPeer.call(place)
    peer.send(peer.hello(place, port=PORT, turn=turn, nonce=nonce))
    return peer


async def chosen(peer: RawPeer) -> None:
    assert [(await peer.frame())[0] for _ in range(2)] == [FrameKind.HELLO, FrameKind.CHOSEN]


async def close(place: Place, *peers: RawPeer) -> None:
    for peer in peers:
        await peer.close()
    await until(lambda: place.transport.open_sockets == 0)
    await place.transport.close()


def test_a_second_connection_of_the_same_turn_is_closed_without_a_word() -> None:
    async def work() -> None:
        place = await Place.open()
        first = await call(place)
        await chosen(first)
        second = await call(place)
        assert await second.rest() == b""
        first.send(MESSAGE)
        await until(lambda: place.messages() == [b"m"])
        assert place.unreachable == []
        await close(place, first, second)

    in_virtual_time(work)


@pytest.mark.parametrize("change", [{"turn": 2}, {"nonce": 6}])
def test_a_later_turn_or_another_process_takes_the_place_and_gets_what_waits_whole(
    change: dict[str, int],
) -> None:
    async def work() -> None:
        place = await Place.open()
        first = await call(place)
        await chosen(first)
        long = bytes(8 << 20)
        place.post(PEER, b"before")
        place.post(PEER, long)  # It does not fit into what the kernel takes.
        assert await first.frame() == (FrameKind.MESSAGE, b"before")
        second = await call(place, **change)
        await chosen(second)
        assert place.unreachable == [PEER]
        size = 0
        while size < len(long):
            size += len(await second.piece())
        assert size == len(long)
        second.send(MESSAGE)
        await until(lambda: place.messages() == [b"m"])
        await close(place, first, second)

    in_virtual_time(work)


def test_an_older_turn_is_closed() -> None:
    async def work() -> None:
        place = await Place.open()
        first = await call(place, turn=2)
        await chosen(first)
        second = await call(place, turn=1)
        assert await second.rest() == b""
        assert place.unreachable == []
        await close(place, first, second)

    in_virtual_time(work)


def test_what_a_connection_that_ends_still_brings_comes_before_the_next_one() -> None:
    async def work() -> None:
        place = await Place.open()
        first = await call(place)
        await chosen(first)
        (link,) = place.transport._links.values()
        link.leave()
        assert (await first.frame())[0] is FrameKind.BYE
        second = await call(place, turn=2)
        await until(lambda: len(link.candidates) == 1)
        first.send(MESSAGE + BYE)
        await chosen(second)
        assert place.messages() == [b"m"]
        assert place.unreachable == []
        await close(place, first, second)

    in_virtual_time(work)


def test_who_says_bye_and_breaks_before_it_has_taken_all_is_unreachable() -> None:
    async def work() -> None:
        place = await Place.open()
        peer = await call(place)
        await chosen(peer)
        place.post(PEER, bytes(16 << 20))
        peer.send(BYE)
        (link,) = place.transport._links.values()
        await until(lambda: link.chosen is not None and link.chosen.got_bye)
        await peer.close()
        await until(lambda: place.unreachable == [PEER])
        assert place.transport.dropped == {PEER: 1}
        await close(place)

    in_virtual_time(work)


def test_who_says_bye_and_breaks_afterwards_is_not() -> None:
    async def work() -> None:
        place = await Place.open()
        peer = await call(place)
        await chosen(peer)
        peer.send(BYE)
        assert (await peer.frame())[0] is FrameKind.BYE
        await peer.close()
        await until(lambda: not place.transport._links)
        assert place.unreachable == []
        await close(place)

    in_virtual_time(work)


def test_whoever_calls_again_says_a_later_turn() -> None:
    async def work() -> None:
        place = await Place.open()
        turns = []

        async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            length, _ = struct.unpack("<HB", await reader.readexactly(3))
            turns.append(Hello.decode(await reader.readexactly(length)).turn)
            writer.transport.abort()

        server = await asyncio.start_server(hear, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        for count in range(1, 4):
            place.post(f"{host}:{port}", b"m")
            await until(lambda: len(place.unreachable) == count)  # noqa: B023
        assert len(turns) == 3
        assert turns == sorted(set(turns))
        server.close()
        await close(place)

    in_virtual_time(work)


def test_the_larger_side_may_not_choose() -> None:
    async def work() -> None:
        place = await Place.open()
        peer = await call(place)
        peer.send(frame(FrameKind.CHOSEN))
        await until(lambda: place.refused == 1)
        await close(place, peer)

    in_virtual_time(work)
