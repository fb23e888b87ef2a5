"""Topics in one total order, `SelectiveTotal`, of participants on real sockets.  [S003]"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from discovered import domain, in_a_loop, until
from loopback import free_members
from view_cluster import views

from orderwire import (
    Fifo,
    LocalProtocolError,
    MemberChange,
    Overflow,
    Participant,
    Reader,
    SelectiveTotal,
    Topic,
)
from orderwire.aio.addresses import join_address
from orderwire.aio.total_relay import ChannelRelay, RelaySettings

pytestmark = [pytest.mark.network, pytest.mark.timeout(120)]

NAMES = ("ana", "ben", "carl")


@asynccontextmanager
async def fixed(*names: str, loss: float = 0.0, **order: Any) -> AsyncIterator[list[Any]]:
    """A relay and participants of a fixed group; yields the order and them."""
    relay = await ChannelRelay.open(("127.0.0.1", 0), RelaySettings(loss=loss, seed=5))
    members = free_members(*names)
    try:
        async with AsyncExitStack() as stack:
            people = [
                await stack.enter_async_context(Participant(name, members=members))
                for name in names
            ]
            yield [SelectiveTotal(relay=join_address(*relay.address), **order), *people]
    finally:
        await relay.close()


async def take(reader: Reader, count: int) -> list[tuple[str, str, bytes]]:
    """Read so many samples."""
    samples = [await reader.read(timeout_s=60) for _ in range(count)]
    return [(each.topic, each.source, each.data) for each in samples]


@in_a_loop
async def test_readers_of_several_topics_have_what_they_share_in_one_order() -> None:
    """Every topic has its own readers, each message goes to them alone, and losses change nothing.

    Ana reads a and b, Ben b and c, Carl all: what any two share they have in one order.
    """
    wants = {"ana": ("a", "b"), "ben": ("b", "c"), "carl": ("a", "b", "c")}
    async with fixed(*NAMES, loss=0.02) as (order, *people):
        readers = []
        for each in people:
            topics = wants[each.name]
            readers += [
                each.reader(f"book/{'**' if len(topics) == 3 else name}", order=order)
                for name in (topics if len(topics) < 3 else ("*",))
            ]
        writers = {
            (each.name, name): each.writer(Topic(f"book/{name}", order))
            for each in people
            for name in "abc"
        }
        for (_, name), writer in writers.items():
            await writer.wait_matched(sum(name in topics for topics in wants.values()), 60)
        for number in range(60):
            for writer in writers.values():
                writer.write(b"%d" % number)
            await asyncio.sleep(0.001)
        for each in people:
            await each.flush(60)
        whole = await take(readers[-1], 60 * 9)
        assert {source for _, source, _ in whole} == set(NAMES)
        for reader in readers[:-1]:
            mine = await take(reader, 60 * 3)
            assert mine == [each for each in whole if each[0] == reader.pattern.text]
        assert [reader.read_nowait() for reader in readers] == [None] * len(readers)
        assert [each.counters.delivered for each in people] == [360, 360, 540]


@in_a_loop
async def test_several_data_share_a_message_and_its_place() -> None:
    async with fixed("ana", "ben") as (order, ana, ben):
        writer, reader = ana.writer(Topic("t", order)), ben.reader("t", order=order)
        await writer.wait_matched(1, 60)
        (written,) = writer.write_many([b"one", b"two"])
        samples = [await reader.read(60) for _ in range(2)]
        assert [(each.data, each.place) for each in samples] == [(b"one", 0), (b"two", 1)]
        assert {(each.number, each.stamp) for each in samples} == {(written.number, written.stamp)}
        assert all(each.delay_ms >= 0 for each in samples)


@in_a_loop
async def test_a_reader_that_appears_gets_what_is_written_from_then_on() -> None:
    async with fixed("ana", "ben") as (order, ana, ben):
        writer = ana.writer(Topic("t", order))
        ben.writer(Topic("u", order))
        assert writer.write(b"too early") is None
        reader = ben.reader("*", order=order)
        await writer.wait_matched(1, 60)
        writer.write(b"in time")
        assert (await reader.read(60)).data == b"in time"
        reader.close()
        await until(lambda: not writer.matched)
        assert writer.write(b"too late") is None
        assert ana.counters.unread == 2


@in_a_loop
async def test_members_are_told_at_their_place_and_matching_counts_seats() -> None:
    async with fixed("ana", "ben") as (order, ana, ben):
        reader = ana.reader("t", order=order)
        events = reader.events()
        seen = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0.05)
        assert not reader.matched, "Ben is not in the group yet"
        assert not seen.done()
        writer = ben.writer(Topic("t", order))
        await reader.wait_matched(1, 60)
        changes = [await seen, await anext(events)]
        assert sorted(change.member for change in changes) == ["ana", "ben"]
        assert all(isinstance(change, MemberChange) and change.entered for change in changes)
        await writer.wait_matched(1, 60)
        writer.write(b"after both")
        assert (await anext(events)).data == b"after both"
        with pytest.raises(LocalProtocolError, match="with SelectiveTotal"):
            ana.reader("t", order=Fifo()).events()


@in_a_loop
async def test_a_full_reader_holds_the_writers_up_and_misses_nothing() -> None:
    async with fixed("ana", "ben") as (order, ana, ben):
        writer, reader = (
            ana.writer(Topic("t", order)),
            ben.reader("t", order=order, queue_samples_max=8),
        )
        await writer.wait_matched(1, 60)
        written = 0

        async def flood() -> None:
            nonlocal written
            while True:
                writer.write(b"%d" % written + bytes(4_000))
                written += 1
                if not written % 64:
                    await asyncio.sleep(0)

        with pytest.raises(LocalProtocolError, match=r"await writer.drain\(\)"):
            await flood()
        draining = asyncio.ensure_future(writer.drain())
        for number in range(written):
            assert (await reader.read(60)).data.rstrip(bytes(1)) == b"%d" % number
        await asyncio.wait_for(draining, 60)
        assert reader.counters.dropped == 0


@in_a_loop
async def test_another_order_does_not_match_and_is_named() -> None:
    async with fixed("ana", "ben") as (order, ana, ben):
        writer = ana.writer(Topic("t", order))
        reader = ben.reader("t", order=Fifo())
        ben.reader("t", order=order, own=False)
        await writer.wait_matched(1, 60)
        await until(lambda: bool(reader.incompatible))
        assert "selective-total(delivery=preack)/group" in reader.incompatible[0]
        assert (writer.matched, reader.matched) == (1, 0)


@in_a_loop
async def test_what_cannot_be_is_refused() -> None:
    async with fixed("ana", "ben", enter_ms=200) as (order, ana, _):
        writer = ana.writer(Topic("t", order))
        for wrong, sentence in (
            (lambda: writer.write(b"", lifetime_ms=5), "has no effect"),
            (lambda: writer.write(bytes(47_001)), "at most 47000"),
            (lambda: ana.reader("t", order=Fifo(), overflow=Overflow.HOLD), "SelectiveTotal"),
            (lambda: ana.writer(Topic("t", SelectiveTotal())), "already"),
            (lambda: ana.writer(Topic("t", SelectiveTotal(group="g"))), "who keeps the views"),
        ):
            with pytest.raises(LocalProtocolError, match=sentence):
                wrong()
        # Ben never takes part.
        with pytest.raises(LocalProtocolError, match=r"processes \[1\] have not come to the relay"):
            await writer.wait_matched(1, 60)
        with pytest.raises(LocalProtocolError, match="did not get into group"):
            writer.write(b"")


@in_a_loop
async def test_who_finds_the_others_needs_zookeeper_for_the_views() -> None:
    async with domain("d") as at, Participant("ana", domain="d", bootstrap=at) as ana:
        with pytest.raises(LocalProtocolError, match="let ZooKeeper keep the views"):
            ana.writer(Topic("t", SelectiveTotal(relay="127.0.0.1:7500")))


@in_a_loop
async def test_datagrams_stay_on_this_machine_unless_told_otherwise() -> None:
    members = free_members("ana")
    async with Participant("ana", members=members) as ana:
        reader = ana.reader("t", order=SelectiveTotal(relay="192.0.2.1:7500"))
        with pytest.raises(LocalProtocolError, match="leaves this machine"):
            await reader.read(60)


@in_a_loop
async def test_who_was_excluded_enters_again_with_new_writers_and_readers() -> None:
    order = SelectiveTotal(group="g", least=3)
    topic = Topic("t", order)
    async with (
        views("g") as at,
        Participant("ana", domain="d", zookeeper=at) as ana,
        Participant("ben", domain="d", zookeeper=at) as ben,
        Participant("carl", domain="d", zookeeper=at) as carl,
    ):
        writer, reader = ana.writer(topic), ben.reader(topic)
        carl.reader("u", order=order)
        changes: list[tuple[str, bool]] = []

        async def watch(watching: Reader) -> None:
            async for event in watching.events():
                if isinstance(event, MemberChange):
                    changes.append((event.member, event.entered))

        watching = asyncio.ensure_future(watch(ana.reader("u", order=order)))
        losing = asyncio.ensure_future(ben.lost())
        await writer.wait_matched(1, 60)
        group = ben._domains[order.key]._group
        group._exclude("the test says so")
        for waiting in (reader.read(60), losing):
            with pytest.raises(LocalProtocolError, match="out of group 'g': the test says so"):
                await waiting
        assert reader.closed
        await until(lambda: ("ben", False) in changes)
        again = ben.reader(topic)
        await until(lambda: changes[-1] == ("ben", True))
        await writer.wait_matched(1, 60)
        writer.write(b"once more")
        assert (await again.read(60)).data == b"once more"
        watching.cancel()


@in_a_loop
async def test_participants_of_another_domain_get_nothing() -> None:
    order = SelectiveTotal(group="g")
    topic = Topic("t", order)
    async with (
        views("g") as at,
        Participant("ana", domain="d", zookeeper=at) as ana,
        Participant("ben", domain="d", zookeeper=at) as ben,
        Participant("eve", domain="e", zookeeper=at) as eve,
    ):
        writer, reader, stranger = ana.writer(topic), ben.reader(topic), eve.reader(topic)
        await writer.wait_matched(1, 60)
        await until(lambda: len(ana._domains[order.key]._strangers) == 1)
        written = writer.write(b"ours")
        assert written is not None
        assert written.members == 1
        assert (await reader.read(60)).data == b"ours"
        assert stranger.read_nowait() is None
