"""Messages between addresses: one connection a pair, in order, once, and what cannot be reached."""

import asyncio
from random import Random

import pytest
from discovery_net import DOMAIN, Place, RawPeer, in_virtual_time, until

from orderwire.aio.discovery_frames import CONTENT_BYTES_MAX, FrameKind, Hello, frame
from orderwire.aio.discovery_transport import DiscoveryTransport
from orderwire.kernel import NS_PER_MS, NS_PER_S, LocalProtocolError

pytestmark = pytest.mark.network


async def pair(**limits: int) -> tuple[Place, Place]:
    """Two places, the one with the smaller address first: it chooses connections."""
    places = [await Place.open(**limits) for _ in range(2)]
    first, second = sorted(places, key=lambda place: place.address)
    return first, second


async def close(*places: Place) -> None:
    await asyncio.gather(*(place.transport.close() for place in places))


@pytest.mark.parametrize("who", [0, 1])
def test_messages_come_in_order_whoever_connects(who: int) -> None:
    async def work() -> None:
        places = await pair()
        sender, receiver = places[who], places[1 - who]
        sent = [b"a", bytes(3 * CONTENT_BYTES_MAX), b"b"]
        for message in sent:
            sender.post(receiver, message)
        await until(lambda: len(receiver.got) == 3)
        assert receiver.got == [(sender.address, message) for message in sent]
        receiver.post(sender, b"back")
        await until(lambda: len(sender.got) == 1)
        assert sender.transport.connections == [receiver.address]
        assert receiver.transport.open_sockets == 1
        assert not sender.unreachable
        assert not receiver.unreachable
        await close(*places)

    in_virtual_time(work)


@pytest.mark.parametrize("attempt_ms", [0, 100])
def test_of_connections_opened_at_once_one_stays_and_nothing_is_doubled(attempt_ms: int) -> None:
    async def work() -> None:
        first, second = await pair(attempt_ns=attempt_ms * NS_PER_MS)
        for number in range(20):
            first.post(second, b"%d" % number)
            second.post(first, b"%d" % number)
        await until(lambda: len(first.got) == len(second.got) == 20)
        expected = [b"%d" % number for number in range(20)]
        assert first.messages() == second.messages() == expected
        await until(lambda: first.transport.open_sockets == second.transport.open_sockets == 1)
        assert not first.unreachable
        assert not second.unreachable
        await close(first, second)
        assert (first.refused, second.refused) == (0, 0)

    in_virtual_time(work)


def test_one_write_carries_what_was_posted_together() -> None:
    async def work() -> None:
        first, second = await pair()
        first.post(second, b"hello")
        await until(lambda: len(second.got) == 1)
        (link,) = first.transport._links.values()
        assert link.chosen is not None
        before = link.chosen.written_bytes
        writes = []
        write = link.chosen.write
        link.chosen.write = lambda frames: (writes.append(len(frames)), write(frames))[1]  # type: ignore[method-assign]
        for _ in range(10):
            first.post(second, b"m")
        await until(lambda: len(second.got) == 11)
        assert writes == [10]
        assert link.chosen.written_bytes == before + 10 * 4
        await close(first, second)

    in_virtual_time(work)


def test_an_address_that_refuses_is_unreachable_at_once_and_once() -> None:
    async def work() -> None:
        first, second = await pair()
        await close(second)
        for _ in range(3):
            first.post(second, b"m")
        await until(lambda: bool(first.unreachable), seconds=1)
        assert first.unreachable == [second.address]
        assert first.transport.dropped == {second.address: 3}
        first.post(second, b"m")
        await until(lambda: len(first.unreachable) == 2, seconds=1)
        await close(first)

    in_virtual_time(work)


@pytest.mark.parametrize("address", ["nobody", "evil.example:1", "127.0.0.1:0", "127.0.0.1:x"])
def test_what_is_no_address_is_unreachable(address: str) -> None:
    async def work() -> None:
        place = await Place.open()
        place.post(address, b"m")
        await until(lambda: place.unreachable == [address])
        await close(place)

    in_virtual_time(work)


def test_our_own_address_is_unreachable() -> None:
    async def work() -> None:
        place = await Place.open()
        place.post(place, b"m")
        assert place.unreachable == []
        await until(lambda: place.unreachable == [place.address])
        await close(place)

    in_virtual_time(work)


@pytest.mark.parametrize("who", [0, 1])
def test_a_broken_connection_is_told_once_to_either_side(who: int) -> None:
    async def work() -> None:
        places = await pair()
        places[0].post(places[1], b"m")
        await until(lambda: len(places[1].got) == 1)
        (link,) = places[who].transport._links.values()
        assert link.chosen is not None
        link.chosen.abort()
        await until(lambda: all(place.unreachable for place in places))
        assert [len(place.unreachable) for place in places] == [1, 1]
        places[0].post(places[1], b"again")
        await until(lambda: len(places[1].got) == 2)
        await close(*places)

    in_virtual_time(work)


@pytest.mark.parametrize("old_is_first", [False, True])
@pytest.mark.parametrize("said_bye", [False, True])
def test_a_process_that_took_its_place_is_heard_at_once(old_is_first: bool, said_bye: bool) -> None:
    async def work() -> None:
        first, second = await pair()
        old, other = (first, second) if old_is_first else (second, first)
        old.post(other, b"old")
        await until(lambda: len(other.got) == 1)
        if said_bye:
            (link,) = other.transport._links.values()
            link.leave()
        # The old process is frozen: its connection stands and says nothing.
        for stream in old.transport._streams:
            assert stream._transport is not None
            stream._transport.pause_reading()
        await old.transport._listener.close()
        new = await Place.open(old.address)
        new.post(other, b"new")
        await until(lambda: len(other.got) == 2, seconds=1)
        assert other.got[1] == (old.address, b"new")
        assert other.unreachable == [old.address]
        other.post(new, b"answer")
        await until(lambda: new.messages() == [b"answer"], seconds=1)
        await close(new, other, old)

    in_virtual_time(work)


def test_idle_connections_are_closed_and_nobody_is_unreachable() -> None:
    async def work() -> None:
        first, second = await pair(idle_ns=5 * NS_PER_S)
        for number in range(3):
            first.post(second, b"%d" % number)
            await until(lambda: len(second.got) == number + 1)  # noqa: B023
            assert first.transport.open_sockets == 1
            await until(lambda: first.transport.open_sockets == 0)
            await until(lambda: second.transport.open_sockets == 0)
        assert not first.unreachable
        assert not second.unreachable
        await close(first, second)

    in_virtual_time(work)


def test_a_message_posted_while_the_connection_is_being_closed_takes_the_next() -> None:
    async def work() -> None:
        first, second = await pair()
        first.post(second, b"a")
        await until(lambda: len(second.got) == 1)
        for leaver, other in ((first, second), (second, first)):
            (link,) = leaver.transport._links.values()
            link.leave()
            leaver.post(other, b"b")
            other.post(leaver, b"c")
            await until(lambda: other.messages()[-1] == b"b")  # noqa: B023
            await until(lambda: leaver.messages()[-1] == b"c")  # noqa: B023
        assert not first.unreachable
        assert not second.unreachable
        await close(first, second)

    in_virtual_time(work)


def test_closing_writes_what_was_posted_even_to_who_is_not_connected() -> None:
    async def work() -> None:
        first, second = await pair()
        third = await Place.open()
        first.post(second, b"m")
        await until(lambda: len(second.got) == 1)
        first.post(second, bytes(4 << 20))
        first.post(third, b"last")
        await close(first)
        await until(lambda: len(second.got) == 2)
        assert third.messages() == [b"last"]
        # Whoever ends says so.
        await until(lambda: second.unreachable == third.unreachable == [first.address])
        first.post(second, b"too late")
        assert first.transport.dropped == {second.address: 1}
        await close(second, third)

    in_virtual_time(work)


@pytest.mark.parametrize("who", [0, 1])
def test_who_ends_is_unreachable_at_once_and_what_waits_for_it_is_dropped(who: int) -> None:
    async def work() -> None:
        places = await pair()
        ends, stays = places[who], places[1 - who]
        ends.post(stays, b"m")
        await until(lambda: len(stays.got) == 1)
        for _ in range(16):
            stays.post(ends, bytes(1 << 20))
        await close(ends)
        await until(lambda: stays.unreachable == [ends.address], seconds=1)
        await until(lambda: stays.transport.open_sockets == 0)
        assert 0 < stays.transport.dropped[ends.address] <= 16
        await close(stays)

    in_virtual_time(work)


def test_what_waits_is_bounded_and_the_oldest_goes_first() -> None:
    async def work() -> None:
        first = await Place.open(waiting_bytes_max=30, waiting_total_bytes_max=50)
        second, third = await Place.open(), await Place.open()
        for number in range(5):
            first.post(second, b"%010d" % number)
        assert first.transport.dropped == {second.address: 2}
        for number in range(3):
            first.post(third, b"%010d" % number)
        # Together too much: the longer queue gives way.
        assert first.transport.dropped.total() == 3
        await until(lambda: len(second.got) + len(third.got) == 5)
        assert second.messages()[-1] == b"%010d" % 4
        await close(first, second, third)

    in_virtual_time(work)


def test_a_message_longer_than_any_receiver_takes_is_refused() -> None:
    async def work() -> None:
        place = await Place.open(message_bytes_max=1_000)
        with pytest.raises(LocalProtocolError, match="1001 bytes"):
            place.post("127.0.0.1:1", bytes(1_001))
        await close(place)

    in_virtual_time(work)


def test_a_peer_that_reads_nothing_is_unreachable() -> None:
    async def work() -> None:
        place = await Place.open(stuck_ns=5 * NS_PER_S)
        peer = await RawPeer.call(place)
        smallest = "127.0.0.1:1"  # It chooses, being smaller.
        peer.send(peer.hello(place, address=smallest))
        assert (await peer.frame())[0] is FrameKind.HELLO
        peer.send(frame(FrameKind.CHOSEN))
        await until(lambda: place.transport.connections == [smallest])
        for _ in range(16):
            place.post(smallest, bytes(1 << 20))
        await until(lambda: place.unreachable == [smallest])
        assert place.refused == 1
        await close(place)
        await peer.close()

    in_virtual_time(work)


def test_urgent_messages_overtake_long_ones() -> None:
    async def work() -> None:
        first, second = await pair()
        first.post(second, b"hello")
        await until(lambda: len(second.got) == 1)
        first.post(second, bytes(8 << 20))
        first.post(second, b"urgent", urgent=True)
        await until(lambda: len(second.got) == 3)
        assert second.messages()[1] == b"urgent"
        await close(first, second)

    in_virtual_time(work)


@pytest.mark.parametrize("seed", range(4))
def test_whatever_breaks_nothing_is_doubled_and_every_loss_is_told(seed: int) -> None:
    """Connections are cut and left at random while all three post to each other."""

    async def work() -> None:
        chance = Random(seed)
        places = [await Place.open(attempt_ns=NS_PER_MS) for _ in range(3)]
        posted: dict[tuple[str, str], int] = {}
        told: dict[tuple[str, str], int] = {}
        """How many had been posted when the sender was last told that there was a failure."""

        def note(place: Place, address: str) -> None:
            told[place.address, address] = posted.get((place.address, address), 0)

        for place in places:
            place.transport._unreachable = lambda address, place=place: note(place, address)
        for _ in range(300):
            sender, receiver = chance.sample(places, 2)
            for _ in range(chance.randrange(4)):
                key = sender.address, receiver.address
                posted[key] = posted.get(key, 0) + 1
                sender.post(receiver, b"%d" % posted[key] + bytes(chance.choice([0, 200_000])))
            streams = sorted(sender.transport._streams, key=lambda each: each.opened)
            links = [each for each in sender.transport._links.values() if each.chosen]
            fate = chance.random()
            if streams and fate < 0.1:
                chance.choice(streams).abort()
            elif links and fate < 0.2:
                link = chance.choice(links)
                assert link.chosen is not None
                if not link.chosen.said_bye and not link.outgoing:
                    link.leave()
            for _ in range(chance.randrange(4)):
                await asyncio.sleep(0)
        await asyncio.sleep(1)  # Then it is quiet, and all can talk again.
        for sender in places:
            for receiver in places:
                if sender is not receiver:
                    sender.post(receiver, b"0end")
        await until(
            lambda: all(sum(data == b"0end" for _, data in place.got) == 2 for place in places)
        )
        await until(lambda: all(place.transport.open_sockets == 2 for place in places))
        for receiver in places:
            for sender in places:
                numbers = [
                    int(data.rstrip(b"\0"))
                    for source, data in receiver.got
                    if source == sender.address and data != b"0end"
                ]
                assert numbers == sorted(set(numbers)), "doubled or out of order"
                key = sender.address, receiver.address
                missing = set(range(1, posted.get(key, 0) + 1)) - set(numbers)
                assert max(missing, default=0) <= told.get(key, 0), "lost and not told"
        assert [place.refused for place in places] == [0, 0, 0]
        assert sum(told.values()) > 0, "nothing broke"
        await close(*places)

    in_virtual_time(work)


def test_only_loopback_without_protection() -> None:
    async def work() -> None:
        with pytest.raises(LocalProtocolError, match="reachable from other machines"):
            await DiscoveryTransport.open("0.0.0.0:0", domain=DOMAIN)
        with pytest.raises(LocalProtocolError, match="say with advertise"):
            await DiscoveryTransport.open("0.0.0.0:0", domain=DOMAIN, insecure=True)
        for advertise in ("0.0.0.0:1", "127.0.0.1:0", "0.0.0.0"):
            with pytest.raises(LocalProtocolError, match="no address that others can call"):
                await DiscoveryTransport.open("127.0.0.1:0", domain=DOMAIN, advertise=advertise)
        with pytest.raises(LocalProtocolError, match="1 to 255"):
            await DiscoveryTransport.open("127.0.0.1:0", domain="")
        transport = await DiscoveryTransport.open(
            "0.0.0.0:0", domain=DOMAIN, insecure=True, advertise="127.0.0.1:7400"
        )
        assert (transport.address, transport.source) == ("127.0.0.1:7400", "127.0.0.1")
        transport.start(lambda source, data: None, lambda address: None)
        await transport.close()

    in_virtual_time(work)


def test_hello_round_trip() -> None:
    hello = Hello(1, "d", "[::1]:1", "[::1]:2", 3, 4)
    assert Hello.decode(hello.encode()) == hello
