"""What users of other systems have reported about order and completeness does not happen here."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from loopback import free_members

from orderwire import (
    DeltaCausal,
    Fifo,
    Impairment,
    LocalProtocolError,
    Order,
    Participant,
    Published,
    Sample,
    Topic,
    Unordered,
)
from orderwire.kernel import ProcessId
from orderwire.ordering.catalog import ALGORITHMS
from orderwire.participant import DATA_BYTES_MAX

pytestmark = [pytest.mark.network, pytest.mark.timeout(120)]

LIFETIME_MS = 600
DOCS = Path(__file__).parents[2] / "docs"
FLOOD = 100_000
USUAL = [DeltaCausal(lifetime_ms=5_000), Fifo(), Unordered()]


def label(order: Order) -> str:
    return order.label


@asynccontextmanager
async def group(*names: str, **settings: Any) -> AsyncIterator[list[Participant]]:
    members = free_members(*names)
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                Participant(name, members=members, restarted=False, **settings)
            )
            for name in names
        ]


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 100))


def every_order(lifetime_ms: float | None) -> list[Order]:
    """One order for each algorithm of the catalog, those that need a lifetime only with one."""
    orders: list[Order] = [Unordered(lifetime_ms=lifetime_ms), Fifo(lifetime_ms=lifetime_ms)]
    for name in ALGORITHMS:
        try:
            orders.append(Published(algorithm=name, lifetime_ms=lifetime_ms))
        except LocalProtocolError:
            assert name in ("unordered", "fifo") or lifetime_ms is None
    return orders


# Atostek/RustDDS 344: a sample was lost for a while, a newer one sent, the old one sent again.


class LosesTwo:
    """A network that loses each datagram with message 2 in it: once, or for ever."""

    def __init__(self, comes_after_ns: int | None) -> None:
        self.comes_after_ns = comes_after_ns
        self.lost: set[bytes] = set()

    def fate(self, to: ProcessId, data: bytes) -> Sequence[int]:
        if b"<2>" not in data:
            return (0,)
        again = data in self.lost
        self.lost.add(data)
        if self.comes_after_ns is None:
            return (0,) if again else ()
        return () if again else (self.comes_after_ns,)


async def three_messages(
    orders: list[Order], network: LosesTwo
) -> tuple[dict[str, list[bytes]], dict[str, Any]]:
    """Write 1, 2 and 3 in every order; return what was handed over and counted."""
    members = free_members("ana", "ben")
    heard: dict[str, list[bytes]] = {}
    async with (
        Participant("ana", members=members, impairment=network, restarted=False) as ana,
        Participant("ben", members=members, restarted=False) as ben,
    ):
        writers = [ana.writer(Topic("t", order)) for order in orders]
        for order in orders:
            samples = heard[order.label] = []

            def note(sample: Sample, samples: list[bytes] = samples) -> None:
                samples.append(sample.data)

            ben.reader(Topic("t", order), callback=note)
        for writer in writers:
            await writer.wait_matched(1, timeout_s=20)
        for text, pause_s in ((b"<1>", 0.01), (b"<2>", 0.3), (b"<3>", 0.0)):
            for writer in writers:
                writer.write(text)
            await asyncio.sleep(pause_s)
        await ana.flush(timeout_s=20)
        if network.comes_after_ns is not None:
            await asyncio.sleep(LIFETIME_MS / 1e3)
        async with asyncio.timeout(20):  # some algorithms hold every message for a while
            while network.comes_after_ns is None and min(map(len, heard.values())) < 3:
                await asyncio.sleep(0.01)
        await ben.drain(timeout_s=20)
        counted = {order.label: ben.counters_of(order) for order in orders}
    assert len(network.lost) >= len(orders), "message 2 was not lost in every order"
    return heard, counted


def test_344_a_message_that_is_sent_again_comes_in_its_place() -> None:
    """Message 2 is lost once: 1, 2, 3, never 1, 3, 2, in every order that promises one."""

    async def test() -> None:
        orders = [*every_order(1_500), *every_order(None)]
        heard, counted = await three_messages(orders, LosesTwo(None))
        for order in orders:
            if order.algorithm == "unordered":
                heard[order.label].sort()
            assert heard[order.label] == [b"<1>", b"<2>", b"<3>"], order.label
            assert counted[order.label].lost == counted[order.label].late == 0

    run(test)


def test_344_a_message_that_comes_too_late_is_counted_and_holds_up_nothing() -> None:
    """Message 2 comes after its lifetime: 1, 3, and one that was late or lost."""

    async def test() -> None:
        orders = every_order(LIFETIME_MS)
        heard, counted = await three_messages(orders, LosesTwo((LIFETIME_MS + 100) * 1_000_000))
        for order in orders:
            mine = counted[order.label]
            # A busy machine may be late for another one, above all where all is held up to the end.
            assert heard[order.label] in ([], [b"<1>"], [b"<3>"], [b"<1>", b"<3>"]), order.label
            assert len(heard[order.label]) <= mine.delivered <= 2
            assert mine.delivered + mine.late + mine.lost == 3
            assert mine.duplicate == 0
        right = sum(each == [b"<1>", b"<3>"] for each in heard.values())
        assert right >= len(orders) // 2

    run(test)


# biyooon-ex/zenohex 216: in bursts neighbours came swapped.


@pytest.mark.parametrize("order", [DeltaCausal(lifetime_ms=20_000), Fifo()], ids=label)
def test_216_a_burst_has_no_inversion_whatever_reads_it(order: Order) -> None:
    """Back-to-back writes; a callback, a thread, a coroutine and an iterator; numbers only grow."""

    async def test() -> None:
        async with group("ana", "ben") as (ana, ben):
            topic = Topic("burst", order=order)
            heard: dict[str, list[int]] = {
                by: [] for by in ("callback", "thread", "coroutine", "iterator")
            }

            async def coroutine(sample: Sample) -> None:
                heard["coroutine"].append(sample.number)

            big = {"queue_samples_max": FLOOD}
            ben.reader(topic, callback=lambda s: heard["callback"].append(s.number), **big)
            ben.reader(
                topic, callback=lambda s: heard["thread"].append(s.number), in_thread=True, **big
            )
            ben.reader(topic, callback=coroutine, **big)
            reader = ben.reader(topic, **big)

            async def iterate() -> None:
                async for sample in reader:
                    heard["iterator"].append(sample.number)

            task = asyncio.create_task(iterate())
            writer = ana.writer(topic)
            await writer.wait_matched(4, timeout_s=20)
            data = bytes(64)
            for number in range(FLOOD):
                writer.write(data)
                if not number % 64:
                    await writer.drain()
                    await asyncio.sleep(0)
            await ana.drain(timeout_s=60)
            await ben.drain(timeout_s=60)
            reader.close()
            await task
            for by, numbers in heard.items():
                inversions = sum(b <= a for a, b in pairwise(numbers))
                assert inversions == 0, by
                if order.lifetime_ns is None:
                    assert len(numbers) == FLOOD, by
            counted = ben.counters
            assert counted.delivered + counted.late + counted.lost + counted.refused == FLOOD

    run(test)


# ros2/rmw_zenoh 696: large messages vanished.  eclipse-zenoh/zenoh 1734: the end overtook the data.


@pytest.mark.parametrize("order", USUAL, ids=label)
def test_696_what_is_too_large_is_refused_at_its_sender(order: Order) -> None:
    async def test() -> None:
        async with group("ana", "ben") as (ana, ben):
            topic = Topic("sizes", order=order)
            writer, reader = ana.writer(topic), ben.reader(topic)
            await writer.wait_matched(1, timeout_s=20)
            sizes = [1 << power for power in range(0, 27, 2)]  # 1 B to 64 MiB
            assert sizes[-1] == 64 << 20
            sent = [*(size for size in sizes if size <= DATA_BYTES_MAX), DATA_BYTES_MAX]
            for size in sent:
                writer.write(bytes(size))
            for size in sizes[len(sent) - 1 :]:
                with pytest.raises(LocalProtocolError, match="too large for one message"):
                    writer.write(bytes(size))
            got = [len((await reader.read(timeout_s=20)).data) for _ in sent]
            assert sorted(got) == sent
            assert ana.counters.written == len(sent)

    run(test)


@pytest.mark.parametrize("order", USUAL, ids=label)
def test_1734_large_and_small_and_the_end_keep_their_order(order: Order) -> None:
    """Large ones take another way than small ones, and the news of the end a third."""
    slow = Impairment(seed=3, delay_ms=20, loss_ratio=0.1)

    async def test() -> None:
        async with group("ana", "ben", impairment=slow) as (ana, ben):
            heard: list[int] = []
            topic = Topic("t", order=order)
            reader = ben.reader(topic, callback=lambda sample: heard.append(sample.number))
            for turn in range(3):
                writer = ana.writer(topic)
                await writer.wait_matched(1, timeout_s=20)
                for index in range(20):
                    writer.write(bytes(200_000 if index % 3 == turn else 20))
                writer.close()  # at once: nothing is confirmed yet
            await ana.flush(timeout_s=20)
            await ben.drain(timeout_s=20)
            assert ben.counters.unclaimed == 0
            assert sorted(heard) == list(range(60))
            if order.algorithm != "unordered":
                assert heard == sorted(heard)
            while reader.matched:
                await asyncio.sleep(0.001)

    run(test)


# eProsima/Fast-DDS 373, ros2/rmw 201: is order kept between two publishers?


@pytest.mark.parametrize("order", USUAL, ids=label)
def test_373_each_sample_carries_its_sender_and_number(order: Order) -> None:
    async def test() -> None:
        async with group("ana", "ben", "carl") as (ana, ben, carl):
            topic = Topic("t", order=order)
            reader = carl.reader(topic)
            writers = [ana.writer(topic), ben.writer(topic), ben.writer(topic)]
            for writer in writers:
                await writer.wait_matched(1, timeout_s=20)
            for _ in range(50):
                for writer in writers:
                    writer.write(b"")
            samples = [await reader.read(timeout_s=20) for _ in range(150)]
            numbers = {
                name: [each.number for each in samples if each.source == name]
                for name in ("ana", "ben")
            }
            assert Counter(each.source for each in samples) == {"ana": 50, "ben": 100}
            for name, written in (("ana", 50), ("ben", 100)):  # two writers of one member count on
                assert sorted(numbers[name]) == list(range(written))
                if order.algorithm != "unordered":
                    assert numbers[name] == sorted(numbers[name])
            identities = {(each.source, each.stamp) for each in samples}
            assert len(identities) == len(samples)

    run(test)


def test_201_one_page_states_for_each_order_what_is_ordered_with_what() -> None:
    page = (DOCS / "orders.md").read_text(encoding="utf-8")
    [head] = [line for line in page.splitlines() if line.startswith("| Two messages")]
    columns = [cell.strip(" `").partition("(")[0] for cell in head.strip("|").split("|")[1:]]
    assert columns == [kind.__name__ for kind in (Unordered, Fifo, DeltaCausal)]
    assert "`Published(algorithm=…)`" in page
    rows = [line for line in page.splitlines() if line.startswith("| of two participants")]
    assert all(line.count("|") == head.count("|") for line in rows)
    assert len(rows) == 2
