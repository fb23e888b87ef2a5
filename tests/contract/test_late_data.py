"""A sample that is older than its lifetime is never handed over, however it got late.

int2DDS 235, eclipse-cyclonedds 1835, OpenDDS 5279: expired samples were returned.  Here they are
late in the sender's queue, on the wire, in an order's hold, between the pieces of a large message,
in a reader's queue, and in a process that was stopped.
"""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec
import pytest
from field import start
from loopback import free_members

from orderwire import (
    Counters,
    DeltaCausal,
    Fifo,
    Order,
    Participant,
    Published,
    Reader,
    Sample,
    Topic,
    Unordered,
    Writer,
)
from orderwire.kernel import ProcessId
from orderwire.participant import DATA_BYTES_MAX

pytestmark = [pytest.mark.network, pytest.mark.timeout(120)]

MS = 1_000_000
LIFETIME_MS = 300
JITTER_NS = 100 * MS
"""How long a busy machine may stop us between the last look at the clock and the callback's."""
LATE_S = 1.5 * LIFETIME_MS / 1e3
ORDERS: list[Order] = [
    DeltaCausal(lifetime_ms=LIFETIME_MS),
    Fifo(lifetime_ms=LIFETIME_MS),
    Unordered(lifetime_ms=LIFETIME_MS),
    Published(algorithm="rodrigues-deadline", lifetime_ms=LIFETIME_MS),
]


def label(order: Order) -> str:
    return order.label


every_order = pytest.mark.parametrize("order", ORDERS, ids=label)


class Network:
    """Loses the datagrams with a mark in them and delays the others, as it is told."""

    def __init__(self) -> None:
        self.delay_ns = 0
        self.lost = b"<lost>"
        self.late: dict[bytes, int] = {}
        """Mark → delay."""

    def fate(self, to: ProcessId, data: bytes) -> Sequence[int]:
        if self.lost in data:
            return ()
        return (max([self.delay_ns, *(ns for mark, ns in self.late.items() if mark in data)]),)


@asynccontextmanager
async def group(*names: str, network: Network | None = None) -> AsyncIterator[list[Participant]]:
    """Members in this process; the network is the first one's."""
    members = free_members(*names)
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                Participant(
                    name,
                    members=members,
                    restarted=False,
                    impairment=network if name == names[0] else None,
                )
            )
            for name in names
        ]


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 100))


def accounted_for(counted: Counters) -> int:
    return counted.delivered + counted.late + counted.lost + counted.refused


class Ages:
    """Reads by every way at once and notes how old each sample was when it was handed over."""

    def __init__(self, member: Participant, topic: Topic) -> None:
        self.member = member
        self.clock = member._opened().clock
        self.ages: dict[str, list[int]] = {
            by: [] for by in ("callback", "thread", "coroutine", "iterator")
        }

        async def coroutine(sample: Sample) -> None:
            self.note("coroutine", sample)

        self.readers: list[Reader] = [
            member.reader(topic, callback=lambda sample: self.note("callback", sample)),
            member.reader(
                topic, callback=lambda sample: self.note("thread", sample), in_thread=True
            ),
            member.reader(topic, callback=coroutine),
            member.reader(topic),
        ]
        self.task = asyncio.create_task(self.iterate())

    def note(self, by: str, sample: Sample) -> None:
        self.ages[by].append(self.clock.now() - sample.stamp)

    async def iterate(self) -> None:
        async for sample in self.readers[-1]:
            self.note("iterator", sample)

    async def nothing_until_fresh(self, author: Participant, writer: Writer, late: int) -> None:
        """All that was written so far is too late; then write until something is handed over.

        Every reader has handed over only what is in time, and every copy is accounted for.
        """
        fresh = 0
        await author.flush(timeout_s=20)
        await self.member.drain(timeout_s=20)
        assert self.handed_over() == [0] * 4
        while not all(self.handed_over()):  # more than once on a busy machine
            writer.write(b"fresh")
            fresh += 1
            await author.flush(timeout_s=20)
            await asyncio.sleep(0.01)
            await self.member.drain(timeout_s=20)
        counted = self.member.counters
        async with asyncio.timeout(20):
            while accounted_for(counted) < late + fresh:
                await asyncio.sleep(0.01)
                counted = self.member.counters
        assert accounted_for(counted) == late + fresh
        assert counted.late + counted.lost > 0
        await self.member.drain(timeout_s=20)
        for reader, given in zip(self.readers, self.handed_over(), strict=True):
            assert given <= fresh
            assert reader.counters.handed_over == given
            assert given + reader.counters.expired == reader.counters.delivered == counted.delivered
        assert all(age <= LIFETIME_MS * MS + JITTER_NS for age in self.every_age())

    def every_age(self) -> list[int]:
        return [age for ages in self.ages.values() for age in ages]

    def handed_over(self) -> list[int]:
        return [len(ages) for ages in self.ages.values()]


@asynccontextmanager
async def ana_to_ben(
    order: Order, *, network: Network | None = None, heard_by: type[Ages] = Ages
) -> AsyncIterator[tuple[Participant, Writer, Ages]]:
    """Ana, her writer, and what Ben reads of it."""
    async with group("ana", "ben", network=network) as (ana, ben):
        topic = Topic("t", order)
        heard = heard_by(ben, topic)
        writer = ana.writer(topic)
        await writer.wait_matched(4, timeout_s=20)
        yield ana, writer, heard


@every_order
def test_late_in_the_senders_queue(order: Order) -> None:
    """The window is full: what cannot be sent in time is dropped where it waits, and counted."""
    network = Network()

    async def test() -> None:
        async with ana_to_ben(order, network=network) as (ana, writer, heard):
            network.lost = b""  # in every datagram: nothing comes through, nothing is confirmed
            count = 1_000
            for _ in range(count):
                writer.write(bytes(1_000))
            time.sleep(LATE_S)  # what does not fit the window waits for the loop's turn
            network.lost = b"<lost>"
            await heard.nothing_until_fresh(ana, writer, count)
            assert ana.counters.unsent > 0

    run(test)


@every_order
def test_late_on_the_wire(order: Order) -> None:
    network = Network()

    async def test() -> None:
        async with ana_to_ben(order, network=network) as (ana, writer, heard):
            network.delay_ns = round(LATE_S * 1e9)
            for _ in range(5):
                writer.write(b"slow")
                await asyncio.sleep(0)
            await asyncio.sleep(LATE_S)
            network.delay_ns = 0
            await heard.nothing_until_fresh(ana, writer, 5)

    run(test)


class SlowOnes(Ages):
    """Each way of reading takes a third of a lifetime for a sample, and blocks if it can."""

    def note(self, by: str, sample: Sample) -> None:
        super().note(by, sample)
        if by in ("callback", "thread"):
            time.sleep(LIFETIME_MS / 3e3)

    async def iterate(self) -> None:
        async for sample in self.readers[-1]:
            self.note("iterator", sample)
            await asyncio.sleep(LIFETIME_MS / 3e3)


@every_order
def test_late_in_a_readers_queue(order: Order) -> None:
    """Ten samples that take a third of a lifetime each: most outlive it in the queue."""

    async def test() -> None:
        async with ana_to_ben(order, heard_by=SlowOnes) as (ana, writer, heard):
            for _ in range(10):
                writer.write(b"at once")
            await ana.flush(timeout_s=20)
            await heard.member.drain(timeout_s=20)
            delivered = heard.member.counters.delivered
            for reader, ages in zip(heard.readers, heard.ages.values(), strict=True):
                counted = reader.counters
                assert counted.delivered == counted.handed_over + counted.expired == delivered
                assert counted.handed_over == len(ages)
                assert reader.pending == 0
            assert all(age <= LIFETIME_MS * MS + JITTER_NS for age in heard.every_age())
            # In the loop and in the thread they take a third each; a coroutine's queue too.
            slow = [heard.ages[by] for by in ("callback", "thread", "iterator")]
            assert all(len(ages) <= 4 for ages in slow)

    run(test)


@pytest.mark.parametrize(
    "order", [each for each in ORDERS if each.algorithm != "unordered"], ids=label
)
def test_late_in_an_orders_hold(order: Order) -> None:
    """A message waits for a lost one; the process is busy until the lifetime of both is over."""
    network = Network()

    async def test() -> None:
        async with ana_to_ben(order, network=network) as (ana, writer, heard):
            writer.write(b"<lost>")
            await asyncio.sleep(0)
            writer.write(b"held")
            await asyncio.sleep(0.01)  # it comes
            time.sleep(LATE_S)  # nobody gets the loop's turn
            await heard.nothing_until_fresh(ana, writer, 2)

    run(test)


def test_late_in_a_process_that_was_stopped_and_between_the_pieces_of_large_messages() -> None:
    """Stopped for longer than a lifetime while small and large messages come; then it goes on."""
    ways = ("callback", "thread", "coroutine", "iterator")

    async def test() -> None:
        members = free_members("ana", "ben")
        async with AsyncExitStack() as stack:
            ben = await start(stack, "ben", members)
            ana = await stack.enter_async_context(
                Participant("ana", members=members, restarted=False)
            )
            writers: dict[str, Writer] = {}
            for order in ORDERS:
                for way in ways:
                    name = f"{order.label}/{way}"
                    await ben.do("read", order, topic=name, by=way)
                    writers[name] = ana.writer(Topic(name, order))
            for writer in writers.values():
                await writer.wait_matched(1, timeout_s=20)

            async def write_all(size: int) -> None:
                for writer in writers.values():
                    writer.write(bytes(size))
                    await asyncio.sleep(0)

            await write_all(10)  # some of these wait in queues when it stops
            ben.process.send_signal(signal.SIGSTOP)
            for size in (100, DATA_BYTES_MAX // 2, 100):
                await write_all(size)
            await asyncio.sleep(LATE_S)
            ben.process.send_signal(signal.SIGCONT)
            await ana.flush(timeout_s=30)
            await ben.do("drain")
            told = await ben.tell()
            seen = {name: len(heard) for name, heard in told.heard.items()}
            for name, heard in told.heard.items():
                assert all(age <= LIFETIME_MS * MS + JITTER_NS for *_, age in heard), name
                assert len(heard) <= 1, "what came while it was stopped was handed over"
            counted = told.counters
            accounted = sum(counted[each] for each in ("delivered", "late", "lost", "refused"))
            assert accounted == ana.counters.copies == 4 * len(writers)
            assert counted["lost"] + counted["late"] > 0
            for _ in range(20):  # what is written now comes in time, but for a busy machine
                await write_all(100)
                await ana.flush(timeout_s=30)
                told = await ben.tell()
                if all(len(heard) > seen[name] for name, heard in told.heard.items()):
                    break
            else:
                raise AssertionError("nothing is heard after it went on")

    run(test)


@every_order
def test_both_sides_must_name_the_same_lifetime(order: Order) -> None:
    """Which side sets it?  Both: writers and readers that differ do not match, and say why."""
    other = msgspec.structs.replace(order, lifetime_ms=LIFETIME_MS + 1)

    async def test() -> None:
        async with group("ana", "ben") as (ana, ben):
            writer, reader = ana.writer(Topic("t", order)), ben.reader("t", order=other)
            with pytest.raises(TimeoutError, match=f"lifetime_ns={LIFETIME_MS * MS}"):
                await reader.wait_matched(1, timeout_s=0.1)
            assert len(reader.incompatible) == 1
            assert writer.write(b"nobody") is None
            assert ana.counters.unread == 1

    run(test)
