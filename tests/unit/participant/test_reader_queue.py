"""Readers: bounded queues, lifetimes in them, callbacks of every kind.  One member, no peers."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from orderwire import (
    DeltaCausal,
    Fifo,
    LocalProtocolError,
    Overflow,
    Participant,
    Published,
    Sample,
    Topic,
    Unordered,
)
from orderwire.aio.clock import GroupClock
from orderwire.participant import DATA_BYTES_MAX

pytestmark = pytest.mark.network

ROOM = Topic("chat/room", order=DeltaCausal(lifetime_ms=250))
MS = 1_000_000


class ManualClock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.ns = 1_000_000_000

    def group_clock(self) -> GroupClock:
        return GroupClock(wall_ns=lambda: self.ns, monotonic_ns=lambda: self.ns)


def alone(test: Callable[[Participant, ManualClock], Awaitable[None]]) -> None:
    """Run a test with a participant that is the only member."""

    async def run() -> None:
        time = ManualClock()
        clock = time.group_clock()
        async with Participant("me", members={"me": "127.0.0.1:0"}, clock=clock) as me:
            await test(me, time)

    asyncio.run(run())


def test_a_sample_says_where_it_comes_from() -> None:
    async def test(me: Participant, time: ManualClock) -> None:
        reader, writer = me.reader(ROOM), me.writer(ROOM)
        time.ns += 7 * MS
        first = writer.write(b"one")
        second = writer.write(bytearray(b"two"))
        assert first is not None
        assert second is not None
        assert (first.number, second.number, first.members) == (0, 1, 1)
        assert first.stamp < second.stamp
        sample = await reader.read()
        assert sample == Sample(
            topic="chat/room",
            data=b"one",
            source="me",
            number=0,
            stamp=first.stamp,
            arrived=sample.arrived,
            delivered=sample.delivered,
        )
        assert sample.held_ms == 0
        assert (await anext(aiter(reader))).data == b"two"
        assert reader.read_nowait() is None
        assert (reader.pending, reader.counters.handed_over) == (0, 2)

    alone(test)


def test_what_outlives_its_lifetime_in_the_queue_is_never_handed_over() -> None:
    async def test(me: Participant, time: ManualClock) -> None:
        reader, writer = me.reader(ROOM), me.writer(ROOM)
        time.ns = 2_000 * MS
        writer.write(b"old")
        time.ns += 1 * MS
        writer.write(b"younger")
        time.ns = (2_000 + 250) * MS + 1
        sample = await reader.read()
        assert (sample.data, sample.dropped_before) == (b"younger", 1)
        assert reader.counters.expired == 1
        writer.write(b"exact")
        time.ns += 250 * MS - 1
        sample = await reader.read()
        time.ns = sample.stamp + 250 * MS
        assert (sample.data, sample.dropped_before) == (b"exact", 0)

    alone(test)


def test_what_nobody_reads_expires_by_its_own_lifetime_and_holds_up_no_drain() -> None:
    async def test(me: Participant, time: ManualClock) -> None:
        topic = Topic("t", order=Published(algorithm="rodrigues-deadline", lifetime_ms=250))
        reader, writer = me.reader(topic), me.writer(topic)
        time.ns = 2_000 * MS
        writer.write(b"short", lifetime_ms=50)
        writer.write(b"long")
        time.ns += 50 * MS
        reader.expire()
        assert (reader.pending, reader.counters.expired) == (2, 0)
        time.ns += 1
        reader.expire()
        assert (reader.pending, reader.counters.expired) == (1, 1)
        drained = asyncio.create_task(me.drain())
        await asyncio.sleep(0)
        assert not drained.done()
        time.ns += 250 * MS
        await asyncio.wait_for(drained, 20)
        assert (reader.pending, reader.counters.expired) == (0, 2)

    alone(test)


@pytest.mark.parametrize(("limit", "in_one_turn"), [(100, 1), (11, 6)])
def test_a_reader_whose_queue_fills_up_gets_a_longer_turn(limit: int, in_one_turn: int) -> None:
    async def test(me: Participant, time: ManualClock) -> None:
        seen: list[bytes] = []

        def slow(sample: Sample) -> None:
            seen.append(sample.data)
            time.ns += 6 * MS

        me.reader(ROOM, callback=slow, queue_samples_max=limit)
        me.writer(ROOM).write_many([b"x"] * 6)
        await asyncio.sleep(0)
        assert len(seen) == in_one_turn
        await me.drain()
        assert len(seen) == 6

    alone(test)


def test_data_written_at_once_are_read_one_by_one() -> None:
    async def test(me: Participant, time: ManualClock) -> None:
        reader, writer = me.reader(ROOM), me.writer(ROOM)
        (written,) = writer.write_many([b"one", bytearray(b"two"), memoryview(b"three")])
        after = writer.write(b"four")
        assert after is not None
        assert (written.number, after.number) == (0, 1)
        samples = [await reader.read() for _ in range(4)]
        assert [sample.data for sample in samples] == [b"one", b"two", b"three", b"four"]
        assert [(sample.number, sample.place) for sample in samples] == [
            (0, 0), (0, 1), (0, 2), (1, 0)
        ]  # fmt: skip
        assert {sample.stamp for sample in samples[:3]} == {written.stamp}
        assert (me.counters.written, me.counters.payload_bytes) == (2, 15)
        assert (me.counters.delivered, reader.counters.delivered) == (2, 4)

    alone(test)


def test_data_written_at_once_outlive_their_lifetime_one_by_one() -> None:
    async def test(me: Participant, time: ManualClock) -> None:
        reader, writer = me.reader(ROOM), me.writer(ROOM)
        (written,) = writer.write_many([b"one", b"two"])
        time.ns = written.stamp + 250 * MS
        assert (await reader.read()).data == b"one"
        time.ns += 1
        assert reader.read_nowait() is None
        assert reader.counters.expired == 1

    alone(test)


def test_writing_at_once_refuses_what_writing_does() -> None:
    async def test(me: Participant, time: ManualClock) -> None:
        writer = me.writer(ROOM)
        assert writer.write_many([]) == []
        assert writer.write_many([b"nobody reads"]) == []
        assert (me.counters.unread, me.counters.written) == (1, 0)
        me.reader(ROOM)
        for data, message in (
            ([b"a", "b"], "got str among the data"),
            ([bytes(DATA_BYTES_MAX), b"b"], "too large to be written at once"),
        ):
            with pytest.raises(LocalProtocolError, match=message):
                writer.write_many(data)
        assert me.counters.written == 0
        (written,) = writer.write_many([bytes(DATA_BYTES_MAX)])
        assert written.number == 0
        writer.close()
        with pytest.raises(LocalProtocolError, match="closed"):
            writer.write_many([b"late"])

    alone(test)


def test_a_topic_encodes_and_decodes_what_is_written_at_once() -> None:
    async def test(me: Participant, time: ManualClock) -> None:
        topic = Topic("text", order=Fifo(), encode=str.encode, decode=bytes.decode)
        seen: list[Any] = []
        me.reader(topic, callback=lambda sample: seen.append(sample.data))
        me.writer(topic).write_many(["one", "two"])
        await me.drain()
        assert seen == ["one", "two"]

    alone(test)


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize(
    ("overflow", "kept"),
    [(Overflow.DROP_OLDEST, [7, 8, 9]), (Overflow.DROP_NEWEST, [0, 1, 2])],
)
def test_a_full_queue_follows_its_policy(
    overflow: Overflow, kept: list[int], at_once: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(me: Participant, time: ManualClock) -> None:
        topic = Topic("numbers", order=Fifo())
        reader = me.reader(topic, queue_samples_max=3, overflow=overflow)
        writer = me.writer(topic)
        data = [bytes([number]) for number in range(10)]
        if at_once:
            writer.write_many(data)
        else:
            for each in data:
                writer.write(each)
        assert reader.pending == 3
        samples = [await reader.read() for _ in range(3)]
        assert [sample.data[0] for sample in samples] == kept
        assert (reader.counters.dropped, samples[0].dropped_before) == (7, 7)
        assert reader.counters.delivered == 10

    alone(test)
    assert "queue of 3 samples is full" in caplog.text


def test_iteration_ends_when_the_reader_is_closed() -> None:
    async def test(me: Participant, time: ManualClock) -> None:
        reader, writer = me.reader(ROOM), me.writer(ROOM)
        writer.write(b"last")
        reader.close()
        assert writer.write(b"unread") is None
        assert [sample.data async for sample in reader] == [b"last"]
        with pytest.raises(LocalProtocolError, match="is closed and has nothing left"):
            await reader.read()

        waiting = me.reader(ROOM)
        task = asyncio.create_task(waiting.read())
        await asyncio.sleep(0)
        waiting.close()
        with pytest.raises(LocalProtocolError, match="is closed"):
            await task

    alone(test)


def test_one_reader_has_one_consumer() -> None:
    async def test(me: Participant, time: ManualClock) -> None:
        reader = me.reader(ROOM)
        task = asyncio.create_task(reader.read())
        await asyncio.sleep(0)
        with pytest.raises(LocalProtocolError, match="read by another task already"):
            await reader.read()
        with pytest.raises(TimeoutError):
            await me.reader(ROOM).read(timeout_s=0.001)
        task.cancel()

    alone(test)


def test_a_callback_gets_all_in_order_and_may_write() -> None:
    async def test(me: Participant, time: ManualClock) -> None:
        seen: list[bytes] = []
        answers = Topic("chat/answers", order=ROOM.order)
        writer, answering = me.writer(ROOM), me.writer(answers)

        def on_sample(sample: Sample) -> None:
            seen.append(sample.data)
            if sample.topic == "chat/room":
                answering.write(b"re " + sample.data)

        me.reader("chat/*", order=ROOM.order, callback=on_sample)
        for number in range(200):
            writer.write(b"%d" % number)
        assert seen == []  # never from inside of write
        await me.drain()
        assert seen[:200] == [b"%d" % number for number in range(200)]
        assert seen[200:] == [b"re %d" % number for number in range(200)]

    alone(test)


def test_a_raising_callback_is_told_and_counted_and_stops_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(me: Participant, time: ManualClock) -> None:
        told: list[tuple[str, bytes]] = []

        def bad(sample: Sample) -> None:
            raise ValueError("no good")

        async def bad_later(sample: Sample) -> None:
            await asyncio.sleep(0)
            raise ValueError("no good")

        readers = [
            me.reader(ROOM, callback=callback, on_error=on_error)
            for callback in (bad, bad_later)
            for on_error in (None, lambda error, sample: told.append((str(error), sample.data)))
        ]
        writer = me.writer(ROOM)
        writer.write(b"1")
        writer.write(b"2")
        await me.drain()
        assert [reader.counters.failed for reader in readers] == [2, 2, 2, 2]
        assert sorted(told) == [("no good", b"1")] * 2 + [("no good", b"2")] * 2

    alone(test)
    assert caplog.text.count("callback of the reader of 'chat/room' failed") == 4


def test_a_blocking_callback_in_a_thread_leaves_the_loop_free() -> None:
    async def test(me: Participant, time: ManualClock) -> None:
        may_go_on, started = threading.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        seen: list[int] = []

        def blocking(sample: Sample) -> None:
            loop.call_soon_threadsafe(started.set)
            assert may_go_on.wait(30)
            seen.append(sample.data[0])

        topic = Topic("numbers", order=Fifo())
        slow = me.reader(topic, callback=blocking, in_thread=True, queue_samples_max=5)
        quick = me.reader(topic)
        writer = me.writer(topic)
        writer.write(bytes([0]))
        await started.wait()
        for number in range(1, 20):
            writer.write(bytes([number]))
        assert [(await quick.read()).data[0] for _ in range(20)] == list(range(20))
        assert slow.counters.dropped == 14
        may_go_on.set()
        await slow.drain()
        assert seen == [0, 15, 16, 17, 18, 19]
        assert slow.pending == 0

    alone(test)


def test_a_slow_coroutine_lets_the_queue_grow_to_its_limit() -> None:
    async def test(me: Participant, time: ManualClock) -> None:
        gate = asyncio.Semaphore(0)
        seen: list[int] = []

        async def slow(sample: Sample) -> None:
            await gate.acquire()
            seen.append(sample.data[0])

        topic = Topic("numbers", order=Unordered())
        reader = me.reader(topic, callback=slow, queue_samples_max=2)
        writer = me.writer(topic)
        writer.write(bytes([0]))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for number in range(1, 6):
            writer.write(bytes([number]))
        for _ in range(6):
            gate.release()
        await me.drain()
        assert (seen, reader.counters.dropped) == ([0, 4, 5], 3)

    alone(test)


def test_typed_topics_encode_and_decode(caplog: pytest.LogCaptureFixture) -> None:
    async def test(me: Participant, time: ManualClock) -> None:
        numbers = Topic("n", order=Fifo(), encode=lambda n: b"%d" % n, decode=int)
        typed, raw = me.reader(numbers), me.reader("n", order=Fifo())
        writer, raw_writer = me.writer(numbers), me.writer(Topic("n", order=Fifo()))
        writer.write(17)
        raw_writer.write(b"seventeen")
        writer.write(18)
        assert (await typed.read()).data == 17
        sample = await typed.read()
        assert (sample.data, sample.dropped_before, typed.counters.undecodable) == (18, 1, 1)
        assert (await raw.read()).data == b"17"

    alone(test)
    assert "cannot decode 9 bytes of topic 'n'" in caplog.text


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"pattern": "chat/*"}, "needs order=…, the same as its writers' topics have"),
        ({"pattern": ROOM, "order": Fifo()}, "have no effect, they come from the topic"),
        ({"pattern": ROOM, "in_thread": True}, "no effect without callback="),
        ({"pattern": ROOM, "on_error": print}, "no effect without callback="),
        ({"pattern": ROOM, "callback": 7}, "must be a function of one sample"),
        ({"pattern": ROOM, "queue_samples_max": 0}, "must be at least 1"),
        ({"pattern": "chat/", "order": Fifo()}, "has an empty level"),
    ],
)
def test_a_reader_that_makes_no_sense_is_refused(settings: dict[str, Any], sentence: str) -> None:
    async def test(me: Participant, time: ManualClock) -> None:
        with pytest.raises(LocalProtocolError, match=sentence):
            me.reader(**settings)

    alone(test)


def test_a_reader_with_a_callback_is_not_iterated() -> None:
    async def test(me: Participant, time: ManualClock) -> None:
        reader = me.reader(ROOM, callback=print)
        with pytest.raises(LocalProtocolError, match="leave the callback out to iterate"):
            async for _ in reader:
                pass
        with pytest.raises(LocalProtocolError, match="leave the callback out"):
            reader.read_nowait()

    alone(test)


def test_own_writes_can_be_left_out() -> None:
    async def test(me: Participant, time: ManualClock) -> None:
        others, all_of_them = me.reader(ROOM, own=False), me.reader(ROOM)
        writer = me.writer(ROOM)
        assert writer.matched == 1
        writer.write(b"x")
        assert (others.pending, all_of_them.pending) == (0, 1)
        assert (others.matched, all_of_them.matched) == (0, 1)

    alone(test)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ("text", "takes bytes, got str: encode it"),
        (None, "takes bytes, got NoneType"),
        (bytes(983_041), "data of 983041 bytes are too large for one message, at most 983040"),
    ],
)
def test_data_that_cannot_be_sent_are_refused(data: Any, sentence: str) -> None:
    async def test(me: Participant, time: ManualClock) -> None:
        me.reader(ROOM)
        writer = me.writer(ROOM)
        with pytest.raises(LocalProtocolError, match=sentence):
            writer.write(data)
        assert me.counters.written == 0

    alone(test)


def test_use_outside_of_async_with_is_refused() -> None:
    async def run() -> None:
        me = Participant("me", members={"me": "127.0.0.1:0"})
        with pytest.raises(LocalProtocolError, match="use it inside of `async with Participant"):
            me.writer(ROOM)
        with pytest.raises(LocalProtocolError, match="use it inside of `async with Participant"):
            await me.drain()
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(me)
            writer, reader = me.writer(ROOM), me.reader(ROOM)
            for count in (None, 0, 1.5):
                with pytest.raises(LocalProtocolError, match="number of readers, at least 1"):
                    await writer.wait_matched(count)  # type: ignore[arg-type]
            with pytest.raises(LocalProtocolError, match="needs a Topic"):
                me.writer("chat/room")  # type: ignore[arg-type]
            for wrong in (
                {"overflow": "drop-newest"},
                {"callback": print, "on_error": 3},
                {"order": ROOM.order, "decode": "utf-8"},
            ):
                name = "chat/room" if "order" in wrong else ROOM
                with pytest.raises(LocalProtocolError, match="must be"):
                    me.reader(name, **wrong)  # type: ignore[arg-type]
        with pytest.raises(LocalProtocolError, match="writer of 'chat/room' is closed"):
            writer.write(b"too late")
        with pytest.raises(LocalProtocolError, match="participant 'me' is closed: make a new one"):
            me.reader(ROOM)
        with pytest.raises(LocalProtocolError, match="is closed"):
            await me.flush()
        with pytest.raises(LocalProtocolError, match="make a new one"):
            await me.__aenter__()
        assert [sample async for sample in reader] == []

    asyncio.run(run())
