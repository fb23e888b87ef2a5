"""What users of other systems have reported about slow readers and silent drops.

Members are processes of their own where one must not slow the others down.
"""

import asyncio
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from field import Field, field, percentile
from loopback import free_members

from orderwire import (
    DeltaCausal,
    Dropped,
    Fifo,
    Order,
    Overflow,
    Participant,
    ReaderCounters,
    Sample,
    Topic,
)
from orderwire.kernel import ProcessId
from orderwire.participant.drops import COPIES_DROPPED, SAMPLES_DROPPED

pytestmark = [pytest.mark.network, pytest.mark.timeout(120)]

MS = 1_000_000


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 100))


# eclipse-zenoh/zenoh 2585, zenoh-pico 1309: a slow subscriber delayed the fast ones; BLOCK dropped.

PACED = 100
PACE_MS = 5
SLOW_MS = 100
UNDISTURBED_NS = 40 * MS
"""Of twice the p99: what a busy machine adds by itself.  One turn of the slow reader is more."""


def test_2585_a_slow_reader_slows_nobody_down_and_loses_nothing() -> None:
    """One member sleeps 100 ms a sample, in its loop; the others' p99 stays within twice."""
    orders: dict[str, Order] = {"fifo": Fifo(), "Δ": DeltaCausal(lifetime_ms=30_000)}

    async def pace(ana: Field) -> None:
        for topic, order in orders.items():
            ana.say("write", order, topic=topic, count=PACED, gap_ms=PACE_MS, readers=3)
        for _ in orders:
            await ana.answer()

    async def test() -> None:
        async with field("ana", "ben", "carl", "dora") as (ana, ben, carl, dora):
            for reader in (ben, carl, dora):
                for topic, order in orders.items():
                    await reader.do("read", order, topic=topic, by="callback")
            await pace(ana)  # the first round pays for everything that is done once
            before = {each: (await each.tell()).heard for each in (ben, carl)}
            await pace(ana)
            usual = {each: (await each.tell()).heard for each in (ben, carl)}
            for topic in orders:
                await dora.do("sleep", topic=topic, ms=SLOW_MS)
            await pace(ana)
            for topic in orders:
                dora.say("sleep", topic=topic, ms=0)
            disturbed = {each: (await each.tell()).heard for each in (ben, carl)}
            for each in (ben, carl):
                for topic in orders:
                    start, middle = len(before[each][topic]), len(usual[each][topic])
                    ages = [age for *_, age in disturbed[each][topic]]
                    quick = percentile(ages[start:middle], 99)
                    assert percentile(ages[middle:], 99) <= 2 * quick + UNDISTURBED_NS
            for _ in orders:
                await dora.answer()
            await ana.do("drain")
            await dora.do("drain")
            told = await dora.tell()
            for topic in orders:
                counted = told.readers[topic]
                assert counted["handed_over"] == counted["delivered"] == 3 * PACED
                numbers = [number for _, number, *_ in told.heard[topic]]
                assert numbers == list(range(3 * PACED))
            assert told.drops == (await ana.tell()).drops == []

    run(test)


# gazebosim/gz-transport 955: 200 ms of work a callback, in the receive thread, lost data.

BUSY_MS = 200
QUEUE = 4
POLICIES = [Overflow.DROP_OLDEST, Overflow.DROP_NEWEST]


def test_955_a_busy_callback_fills_its_queue_and_then_its_policy_counts() -> None:
    """50 samples a second, 200 ms each: in the loop, in a thread, in a coroutine."""
    ways = ("callback", "thread", "coroutine")
    count = 40
    orders = {each.value: Fifo(domain=each.value) for each in POLICIES} | {
        "quick": Fifo(domain="quick")
    }

    async def test() -> None:
        async with field("ana", *ways) as (ana, *readers):
            for way, reader in zip(ways, readers, strict=True):
                for policy in POLICIES:
                    topic = policy.value
                    await reader.do("sleep", topic=topic, ms=BUSY_MS)
                    await reader.do(
                        *("read", orders[topic]), topic=topic, by=way, queue=QUEUE, overflow=topic
                    )
                await reader.do("read", orders["quick"], topic="quick", by="callback")
            for topic, order in orders.items():
                ana.say("write", order, topic=topic, count=count, gap_ms=20, readers=3)
            for _ in orders:
                await ana.answer()
            # Acknowledgements go on: all is confirmed although the callbacks still have work.
            await ana.do("drain")
            assert (await ana.tell()).drops == []
            for reader in readers:
                await reader.do("drain")
                told = await reader.tell()
                assert told.connected == ["ana", *sorted(set(ways) - {told_me(told, ways)})]
                for topic in orders:
                    counted, heard = told.readers[topic], told.heard[topic]
                    numbers = [number for _, number, *_ in heard]
                    assert counted["delivered"] == count
                    assert counted["handed_over"] + counted["dropped"] == count
                    assert counted["handed_over"] == len(heard)
                    assert counted["pending"] == 0
                    assert numbers == sorted(set(numbers))
                    match topic:
                        case "quick":
                            assert numbers == list(range(count))
                        case Overflow.DROP_OLDEST.value:
                            assert counted["dropped"] > count // 2
                            assert numbers[-QUEUE:] == list(range(count))[-QUEUE:]
                        case Overflow.DROP_NEWEST.value:
                            assert counted["dropped"] > count // 2
                            assert numbers[:QUEUE] == list(range(QUEUE))
                dropped = sum(each["dropped"] for each in told.readers.values())
                assert told.dropped("dropped") == dropped
                assert {each["reason"] for each in told.drops} == {"dropped"}

    def told_me(told: Any, ways: Sequence[str]) -> str:
        [me] = set(ways) - set(told.connected)
        return me

    run(test)


# nats-io/nats.py 372: "slow consumer" although all was processed.  nats-server 217: lost, no error.


def books_are_right(counted: ReaderCounters, pending: int) -> bool:
    return counted.delivered == pending + sum(
        getattr(counted, each) for each in ("handed_over", *SAMPLES_DROPPED)
    )


@pytest.mark.parametrize("in_thread", [False, True], ids=["loop", "thread"])
@pytest.mark.parametrize("overflow", POLICIES, ids=lambda each: each.value)
def test_372_who_keeps_up_is_not_called_slow(in_thread: bool, overflow: Overflow) -> None:
    """A queue for one sample, and a thread that takes it while the next one comes."""
    count = 3_000

    async def test() -> None:
        async with Participant("me", members={"me": "127.0.0.1:0"}) as me:
            failed: list[dict[str, Any]] = []
            asyncio.get_running_loop().set_exception_handler(lambda _, what: failed.append(what))
            topic = Topic("t", order=Fifo())
            heard: list[int] = []
            reader = me.reader(
                topic,
                callback=lambda sample: heard.append(sample.number),
                in_thread=in_thread,
                queue_samples_max=1,
                overflow=overflow,
            )
            writer = me.writer(topic)
            for number in range(count):
                writer.write(b"")
                if number % 3 == 0:
                    await reader.drain()
            await me.drain(timeout_s=20)
            assert reader.pending == 0
            assert books_are_right(reader.counters, 0)
            assert len(heard) == reader.counters.handed_over
            assert heard == sorted(set(heard))
            dropped = reader.counters.dropped
            for _ in range(50):
                writer.write(b"")
                await reader.drain()
            assert reader.counters.dropped == dropped
            assert reader.pending == 0
            assert failed == []

    switching_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # between any two steps
    try:
        run(test)
    finally:
        sys.setswitchinterval(switching_s)


class Loses:
    """A network that loses the datagrams with a mark in them and delays the others."""

    def __init__(self) -> None:
        self.delay_ns = 0

    def fate(self, to: ProcessId, data: bytes) -> Sequence[int]:
        return () if b"<lost>" in data else (self.delay_ns,)


def decode(data: bytes) -> bytes:
    if data == b"bad":
        raise ValueError("bad")
    return data


def test_217_every_drop_is_told_with_its_count() -> None:
    """The counts of all events of a reason add up to its counter, wherever it was dropped."""

    async def test() -> None:
        members = free_members("ana", "ben")
        network = Loses()
        told: dict[str, list[Dropped]] = {"ana": [], "ben": []}
        short = DeltaCausal(lifetime_ms=400, domain="short")
        plain = Fifo(domain="plain")
        release = threading.Event()
        async with (
            Participant(
                "ana",
                members=members,
                impairment=network,
                restarted=False,
                on_drop=told["ana"].append,
            ) as ana,
            Participant("ben", members=members, restarted=False, on_drop=told["ben"].append) as ben,
        ):

            def block(sample: Sample) -> None:
                release.wait(20)

            readers = {
                "full": ben.reader("full", order=plain, queue_samples_max=3),
                "old": ben.reader("old", order=short),
                "bad": ben.reader("bad", order=plain, decode=decode),
                "lost": ben.reader("lost", order=short),
                "gone": ben.reader("gone", order=plain),
                "left": ben.reader("left", order=plain, callback=block, in_thread=True),
            }
            writers = {
                name: ana.writer(Topic(name, short if name in ("old", "lost") else plain))
                for name in readers
            }
            for writer in writers.values():
                await writer.wait_matched(1, timeout_s=20)
            for _ in range(10):
                writers["full"].write(b"")
            writers["old"].write(b"")
            await ana.flush(timeout_s=20)
            writers["lost"].write(b"<lost>")
            for data in (b"bad", b"good", b"bad"):
                writers["bad"].write(data)
            await ana.flush(timeout_s=20)
            assert (await readers["bad"].read(timeout_s=20)).data == b"good"
            assert readers["bad"].read_nowait() is None
            for _ in range(3):
                await readers["full"].read(timeout_s=20)
            # Nobody reads what is old: it expires, and a drain does not wait for a reader.
            await asyncio.wait_for(readers["old"].drain(), 20)
            network.delay_ns = 50 * MS
            writers["gone"].write(b"")
            readers["gone"].close()
            while ben.counters.unclaimed == 0:
                await asyncio.sleep(0.01)
            network.delay_ns = 0
            for _ in range(5):
                writers["left"].write(b"")
            await ana.flush(timeout_s=20)
            while readers["left"].pending != 4:
                await asyncio.sleep(0.001)
            # Ana leaves without a word from ben about the last one.
            writers["full"].write(b"<lost>")
            await ana.close(linger_s=0.05)
            closing = asyncio.create_task(ben.close(linger_s=0.05))
            await asyncio.sleep(0.2)
            release.set()
            await closing
            for reader in readers.values():
                assert reader.pending == 0
                assert books_are_right(reader.counters, 0)
        for me, participant in (("ana", ana), ("ben", ben)):
            counted = participant.counters
            sums = Counter[tuple[str, str | None]]()
            for each in told[me]:
                sums[each.reason, each.pattern] += each.count
                assert each.total == sums[each.reason, each.pattern] or each.pattern is None
            for reason in COPIES_DROPPED:
                assert sums[reason, None] == getattr(counted, reason), reason
            if me == "ben":
                for name, reader in readers.items():
                    for reason in SAMPLES_DROPPED:
                        assert sums[reason, name] == getattr(reader.counters, reason)
                        del sums[reason, name]
                assert {reason for (reason, _), count in sums.items() if count} == {
                    *("lost", "unclaimed"),
                }
        assert ana.counters.unconfirmed == 1
        assert readers["full"].counters.dropped == 7
        assert readers["old"].counters.expired == 1
        assert readers["bad"].counters.undecodable == 2
        assert readers["left"].counters.abandoned == 4

    run(test)
