"""Participants of other domains: what gateways tell, merged, and who of them can be called."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from orderwire.discovery.domains import with_entrance
from orderwire.discovery.map_codec import encode_map
from orderwire.discovery.maps import EndpointData, EndpointKind, ForeignData, Map, ParticipantData
from orderwire.participant.foreign import Foreigners
from orderwire.participant.peers import Offers, address_of, entrance_text, means

READER, WRITER = EndpointKind


def whole(*endpoints: tuple[EndpointKind, str], data: str | None = None) -> Map:
    addresses = () if data is None else (("data", data),)
    listed = [EndpointData(key, kind, topic) for key, (kind, topic) in enumerate(endpoints)]
    return Map.of(ParticipantData("guid", "far", addresses), listed)


def entry(of: Map, *, inc: int = 1, ver: int = 1, identity: int = 7) -> ForeignData:
    return ForeignData("east", identity, inc, ver, encode_map(of))


def offers(*endpoints: tuple[EndpointKind, str]) -> Offers:
    return Offers(whole(*endpoints).endpoints)


def test_topics_are_shared_in_both_directions() -> None:
    mine = offers((READER, "a/*"), (WRITER, "b"), (READER, "c"), (WRITER, "d"))
    theirs = offers((WRITER, "a/x"), (WRITER, "a/y"), (READER, "b"), (READER, "c"), (WRITER, "e"))
    assert mine.shared_with(theirs) == theirs.shared_with(mine) == ["a/x", "a/y", "b"]
    assert mine.meets(theirs)
    assert offers((READER, "a")).shared_with(offers((READER, "a"))) == []


def test_a_peers_pattern_that_is_none_matches_nothing() -> None:
    assert means("a/*", "a/b")
    assert means("a", "a")
    assert not means("a//*", "a/b")
    assert not means("a/**/**", "a/b")


@pytest.mark.parametrize(
    ("way", "entrance"),
    [
        (entrance_text("h:1", (), None), {"domain": "east", "bootstrap": "h:1"}),
        (entrance_text(None, ("h:1", "i:2"), None), {"domain": "east", "seeds": ("h:1", "i:2")}),
        (entrance_text(None, (), "h:1,i:2"), {"domain": "east", "zookeeper": "h:1,i:2"}),
        ("", {}),
        ("by foot", {}),
        ("seeds", {}),
    ],
)
def test_an_entry_says_how_its_domain_is_entered(way: str, entrance: dict[str, str]) -> None:
    data = with_entrance(ParticipantData("guid", "far"), way)
    known = Foreigners()
    known.tell("one", (entry(Map.of(data, whole((READER, "a")).endpoints)),))
    (peer,) = known.peers.values()
    assert peer.entrance == entrance
    assert with_entrance(data, "x" * 513) == data


def test_an_address_is_a_number_and_a_port() -> None:
    assert address_of(whole()) is None
    assert address_of(whole(data="10.0.0.1:7")) == ("10.0.0.1", 7)


def test_what_gateways_tell_is_merged_and_goes_with_the_last_of_them() -> None:
    known = Foreigners()
    old, new = entry(whole((READER, "a"))), entry(whole((READER, "b")), ver=2)
    known.tell("one", (old,))
    assert [each.name for each in known.peers.values()] == ["far"]
    known.tell("two", (new,))
    known.tell("two", (new,))
    (peer,) = known.peers.values()
    assert (peer.domain, peer.id, [each.topic for each in peer.map.endpoints]) == ("east", 7, ["b"])
    known.tell("two", ())
    (peer,) = known.peers.values()
    assert [each.topic for each in peer.map.endpoints] == ["a"]
    known.tell("nobody", ())
    known.tell("one", (entry(whole((READER, "a")), identity=8),))
    assert list(known.peers) == [("east", 8)]
    known.tell("one", ())
    assert known.peers == {}


@pytest.mark.parametrize(
    "data",
    [
        b"noise",
        encode_map(whole((READER, "a"), data="host:1")),
        encode_map(whole((READER, "a"), data="10.0.0.1:0")),
        encode_map(whole((READER, "a//*"))),
    ],
)
def test_what_cannot_be_read_is_counted_and_left_out(data: bytes) -> None:
    known = Foreigners()
    good = entry(whole((READER, "a")), identity=1)
    known.tell("one", (good, ForeignData("east", 2, 1, 1, data)))
    assert list(known.peers) == [("east", 1)]
    assert known.malformed == 1


def in_a_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    return lambda: asyncio.run(asyncio.wait_for(test(), 60))


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.002)


async def _asked_who_is_reachable() -> None:
    listener = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    known = Foreigners()
    known.call_from("127.0.0.1")
    known.tell("one", (entry(whole((READER, "a"), data=f"127.0.0.1:{port}")),))
    (peer,) = known.peers.values()
    await asyncio.sleep(0.01)
    assert peer.reachable is None  # it shares nothing with us
    known.offer(offers((WRITER, "a")))
    await until(lambda: peer.reachable is True)
    listener.close()
    await listener.wait_closed()
    # A new entry at the same address is not called anew at once; another life at another one is.
    known.tell("one", (entry(whole((READER, "*"), data=f"127.0.0.1:{port}"), ver=2),))
    (peer,) = known.peers.values()
    assert peer.reachable is True
    known.tell("one", (entry(whole((READER, "a"), data=f"127.0.0.1:{port}"), inc=2),))
    (peer,) = known.peers.values()
    assert peer.reachable is None
    await until(lambda: peer.reachable is False)
    known.offer(offers())
    assert peer.reachable is None
    known.close()


test_who_shares_a_topic_is_called = in_a_loop(_asked_who_is_reachable)
