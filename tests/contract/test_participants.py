"""The public API between real members on loopback: order, counters, sizes, coming and going."""

import asyncio
import gc
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
from loopback import free_members

from orderwire import (
    DeltaCausal,
    Fifo,
    Impairment,
    LocalProtocolError,
    Order,
    Participant,
    Sample,
    Topic,
    Trace,
    Unordered,
)
from orderwire.aio.binding import EndpointSettings
from orderwire.ordering.pdu import Delivered
from orderwire.participant import DATA_BYTES_MAX
from orderwire.participant.drops import LOOK_PAUSE_S
from orderwire.sim.replay import replay_inputs
from orderwire.trace import MemorySink, events_from_table, read_trace
from orderwire.trace.events import EventKind
from orderwire.verify.audit import audit
from orderwire.verify.source import TableSource
from orderwire.verify.verdict import Verdict

pytestmark = [pytest.mark.network, pytest.mark.timeout(120)]

ORDERED = DeltaCausal(lifetime_ms=2_000, domain="ordered")
CONTROL = Unordered(domain="control")
ROOM = Topic("room/a", order=CONTROL)
BAD_NETWORK = Impairment(
    seed=7, delay_ms=1, jitter_mean_ms=6, loss_ratio=0.03, duplicate_ratio=0.02
)


@asynccontextmanager
async def group(*names: str, **settings: Any) -> AsyncIterator[list[Participant]]:
    members = free_members(*names)
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(Participant(name, members=members, **settings))
            for name in names
        ]


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 100))


async def hold_conversation(
    people: list[Participant], orders: list[Order], utterances: int
) -> dict[str, list[Sample]]:
    """Everyone answers, at random, what it hears, on a topic of its own; return what all heard."""
    heard: dict[str, list[Sample]] = {}
    chance = random.Random(5)
    writers = [
        [person.writer(Topic(f"talk/{person.name}", order=order)) for order in orders]
        for person in people
    ]
    left = [utterances]
    done = asyncio.Event()

    def speak(person: int, text: bytes) -> None:
        if left[0] > 0:
            left[0] -= 1
            for writer in writers[person]:
                writer.write(text)
        else:
            done.set()

    def listener(person: int, order: Order) -> Callable[[Sample], None]:
        samples = heard.setdefault(f"{people[person].name}/{order.label}", [])

        def on_sample(sample: Sample) -> None:
            samples.append(sample)
            if order is orders[0] and chance.random() < 1.6 / (len(people) - 1):
                speak(person, b"%d" % left[0])

        return on_sample

    for person, participant in enumerate(people):
        for order in orders:
            participant.reader("talk/*", order=order, callback=listener(person, order), own=False)
    for person in writers:
        for writer in person:
            await writer.wait_matched(len(people) - 1, timeout_s=20)
    for person in range(len(people)):
        speak(person, b"start")
    await asyncio.wait_for(done.wait(), 60)
    for participant in people:
        await participant.flush(timeout_s=20)
    return heard


def test_a_conversation_over_a_bad_network_keeps_its_order_and_the_control_group_does_not() -> None:
    async def test() -> None:
        sink = MemorySink()
        trace = Trace(run="talk", sink=sink)
        async with group("ana", "ben", "carl", "dora", trace=trace, impairment=BAD_NETWORK) as all_:
            await hold_conversation(all_, [ORDERED, CONTROL], 3_000)
            counters = [person.counters_of(ORDERED) for person in all_]
            for person in all_:
                await person.drain(timeout_s=30)
            assert all(person.control_bytes > 0 for person in all_)
        # Every copy is accounted for: delivered, late or lost.
        copies = sum(each.copies for each in counters)
        accounted = sum(each.delivered + each.late + each.lost + each.refused for each in counters)
        assert accounted == copies
        assert sum(each.delivered for each in counters) > 0.95 * copies
        ordered, control = sorted(
            audit(TableSource(sink.table()))[0].runs, key=lambda each: each.run_id, reverse=True
        )
        assert (ordered.run_id, control.run_id) == ("talk/ordered", "talk/control")
        assert ordered.verdict is Verdict.VALID
        assert [check for check in ordered.checks if check.violations] == []
        assert sum(check.violations for check in control.checks if not check.promised) > 0

    run(test)


@pytest.mark.parametrize("order", [ORDERED, Fifo(), CONTROL], ids=lambda order: order.label)
def test_every_size_arrives_or_is_refused(order: Order) -> None:
    async def test() -> None:
        async with group("ana", "ben") as (ana, ben):
            topic = Topic("sizes", order=order)
            writer, reader = ana.writer(topic), ben.reader(topic)
            await writer.wait_matched(timeout_s=30)
            sizes = [0, 1, 2, 1_000, 1_400, 1_473, 9_000, 60_000, 65_536, 200_000, DATA_BYTES_MAX]
            for size in sizes:
                writer.write(bytes([size % 251]) * size)
            with pytest.raises(LocalProtocolError, match="too large for one message"):
                writer.write(bytes(DATA_BYTES_MAX + 1))
            got = [(await reader.read(timeout_s=30)).data for _ in sizes]
            if order is not CONTROL:
                assert [len(data) for data in got] == sizes
            assert Counter(got) == Counter(bytes([size % 251]) * size for size in sizes)
            await ana.drain(timeout_s=30)
            assert (reader.pending, ana.counters.lost, ben.counters.lost) == (0, 0, 0)

    run(test)


def test_an_answer_on_another_topic_never_overtakes_the_question() -> None:
    async def test() -> None:
        async with group("ana", "ben", "carl", impairment=BAD_NETWORK) as (ana, ben, carl):
            questions, answers = Topic("q", order=ORDERED), Topic("a", order=ORDERED)
            answering = ben.writer(answers)
            ben.reader(questions, callback=lambda sample: answering.write(sample.data) and None)
            everything = carl.reader("**", order=ORDERED)
            asking = ana.writer(questions)
            await asking.wait_matched(2, timeout_s=30)
            await answering.wait_matched(1, timeout_s=30)
            for number in range(300):
                asking.write(b"%d" % number)
            await ana.flush(timeout_s=30)
            await ben.drain(timeout_s=30)
            asked: set[bytes] = set()
            overtaking = answered = 0
            for _ in range(everything.pending):
                sample = everything.read_nowait()
                assert sample is not None
                if sample.topic == "q":
                    asked.add(sample.data)
                else:
                    answered += 1
                    overtaking += sample.data not in asked
            # A question may miss its deadline at carl; then its answer stands alone.
            assert answered > 250
            assert overtaking <= carl.counters.lost + carl.counters.late

    run(test)


def test_readers_come_and_go() -> None:
    async def test() -> None:
        async with group("ana", "ben", "carl") as (ana, ben, carl):
            topic = Topic("a/b", order=Fifo())
            writer = ana.writer(topic)
            assert writer.write(b"nobody reads") is None
            assert ana.counters.unread == 1
            first, second = ben.reader("a/*", order=Fifo()), ben.reader("a/**", order=Fifo())
            third = carl.reader(topic)
            await writer.wait_matched(3, timeout_s=30)
            await first.wait_matched(1, timeout_s=30)
            written = writer.write(b"to both")
            assert written is not None
            assert written.members == 2
            for reader in (first, second, third):
                assert (await reader.read(timeout_s=30)).data == b"to both"
            first.close()
            third.close()
            while writer.matched != 1:
                await asyncio.sleep(0)
            written = writer.write(b"to ben")
            assert written is not None
            assert written.members == 1
            assert (await second.read(timeout_s=30)).data == b"to ben"
            writer.close()
            while second.matched:
                await asyncio.sleep(0)

    run(test)


def test_closed_readers_and_writers_are_let_go() -> None:
    async def test() -> None:
        async with group("ana", on_drop=print) as (ana,):
            closed = []
            for _ in range(20):
                reader, writer = ana.reader("room/*", order=CONTROL), ana.writer(ROOM)
                writer.write(b"x")
                assert (await reader.read()).data == b"x"
                reader.close()
                writer.close()
                closed += [ref(reader), ref(writer)]
            ana.reader("room/*", order=CONTROL)
            ana.writer(ROOM)
            del reader, writer
            await ana.drain()
            await asyncio.sleep(2 * LOOK_PAUSE_S)
            gc.collect()
            assert sum(each() is not None for each in closed) == 0

    run(test)


@pytest.mark.parametrize(
    "order", [DeltaCausal(lifetime_ms=2_000), Fifo(), CONTROL], ids=lambda order: order.label
)
def test_a_member_leaves_and_comes_back(order: Order) -> None:
    """What was lost with the first incarnation holds the second one up for Δ at most."""

    async def test() -> None:
        members = free_members("ana", "ben")
        topic, back = Topic("news", order=order), Topic("back", order=order)
        async with Participant("ana", members=members) as ana:
            writer, answers = ana.writer(topic), ana.reader(back)
            for turn in (b"first", b"second"):
                async with Participant("ben", members=members) as ben:
                    reader, answering = ben.reader(topic), ben.writer(back)
                    await writer.wait_matched(1, timeout_s=30)
                    await answering.wait_matched(1, timeout_s=30)
                    for number in range(3):
                        writer.write(turn + b"%d" % number)
                        assert (await reader.read(timeout_s=30)).data == turn + b"%d" % number
                        answering.write(turn + b"%d" % number)
                        assert (await answers.read(timeout_s=30)).data == turn + b"%d" % number
                while writer.matched:
                    await asyncio.sleep(0)
                assert writer.write(b"nobody is there") is None

    run(test)


LONG = DeltaCausal(lifetime_ms=60_000)


def test_a_member_that_was_restarted_keeps_quiet_and_a_first_life_does_not() -> None:
    async def test() -> None:
        members = free_members("ana", "ben")
        topic = Topic("news", order=LONG)
        async with Participant("ana", members=members) as ana:
            reader, asking = ana.reader(topic), ana.writer(Topic("asked", order=LONG))
            async with Participant("ben", members=members) as ben:
                ben.reader("asked", order=LONG)
                writer = ben.writer(topic)
                await writer.wait_matched(1, timeout_s=30)  # long before Δ is over
                await asking.wait_matched(1, timeout_s=30)
                writer.write(b"first life")
                assert (await reader.read(timeout_s=30)).data == b"first life"
            async with Participant("ben", members=members) as ben:
                heard, own = ben.reader("asked", order=LONG), ben.reader(topic)
                writer = ben.writer(topic)
                await asking.wait_matched(1, timeout_s=30)
                asking.write(b"are you back?")  # who was not restarted may write
                assert (await heard.read(timeout_s=30)).data == b"are you back?"
                with pytest.raises(TimeoutError, match="may have been restarted and keeps quiet"):
                    await writer.wait_matched(2, timeout_s=0.2)
                assert writer.write(b"to myself") is not None
                assert (await own.read(timeout_s=30)).data == b"to myself"
                unordered = ben.writer(Topic("u", order=CONTROL))
                ana.reader("u", order=CONTROL)
                await unordered.wait_matched(1, timeout_s=30)
            async with Participant("ben", members=members, restarted=False) as ben:
                await ben.writer(topic).wait_matched(1, timeout_s=30)

    run(test)


def test_who_has_not_met_all_members_keeps_quiet_for_as_long_as_it_may_be_needed() -> None:
    short = DeltaCausal(lifetime_ms=300)

    async def test() -> None:
        members = free_members("ana", "ben", "carl")
        async with Participant("ana", members=members) as ana:
            ana.reader("**", order=short)
            reachable: list[tuple[str, bool]] = []
            async with Participant(
                "ben", members=members, on_member=lambda *what: reachable.append(what)
            ) as ben:
                started = ben._opened().started
                writer = ben.writer(Topic("news", order=short))
                await writer.wait_matched(1, timeout_s=30)
                written = writer.write(b"carl is not there")
                assert written is not None
                assert written.stamp > started + short.lifetime_ns + short.epsilon_ns
                assert reachable == [("ana", True)]
            async with Participant("ben", members=members, restarted=False) as ben:
                writer = ben.writer(Topic("news", order=short))
                await writer.wait_matched(1, timeout_s=30)

    run(test)


@pytest.mark.parametrize("order", [ORDERED, Fifo(), CONTROL], ids=lambda order: order.label)
def test_what_a_member_recorded_can_be_replayed(order: Order, tmp_path: Path) -> None:
    heard: list[Sample] = []

    async def test() -> None:
        folder = tmp_path / "inputs"
        async with group("ana", "ben", "carl", record=folder, impairment=BAD_NETWORK) as all_:
            samples = await hold_conversation(all_, [order], 200)
            for person in all_:
                await person.drain(timeout_s=30)
            heard.extend(samples[f"ben/{order.label}"])

    run(test)
    files = sorted(path.name for path in (tmp_path / "inputs").iterdir())
    assert files == [f"{name}-{order.label}.jsonl" for name in ("ana", "ben", "carl")]
    with (tmp_path / "inputs" / files[1]).open("rb") as lines:
        replayed = replay_inputs(lines)
    delivered = [
        (now, each.source, each.number, each.stamp, each.arrived)
        for now, each in replayed.indications
        if isinstance(each, Delivered)
    ]
    ids = {"ana": 0, "carl": 2}
    assert delivered == [
        (each.delivered, ids[each.source], each.number, each.stamp, each.arrived) for each in heard
    ]
    assert replayed.sends > 0


def test_recordings_are_kept_apart(tmp_path: Path) -> None:
    async def test() -> None:
        for _ in range(2):
            async with Participant("a/b", members={"a/b": "127.0.0.1:0"}, record=tmp_path) as me:
                me.reader("t", order=Fifo(domain="x"))
                me.reader("t", order=Unordered(domain="x"))

    run(test)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("a%2Fb-x.2.jsonl", "a%2Fb-x.3.jsonl", "a%2Fb-x.4.jsonl", "a%2Fb-x.jsonl"),
    ]


def test_what_cannot_match_is_explained() -> None:
    async def test() -> None:
        async with group("ana", "ben") as (ana, ben):
            writer = ana.writer(Topic("chat", order=DeltaCausal.conference()))
            reader = ben.reader(Topic("chat", order=DeltaCausal.playback()))
            with pytest.raises(TimeoutError, match=r"has 0 readers after 0.2 s.*same order"):
                await writer.wait_matched(1, timeout_s=0.2)
            with pytest.raises(TimeoutError, match=r"ana writes 'chat' as bounded-jang\(lifetime"):
                await reader.wait_matched(1, timeout_s=0.01)
            assert len(reader.incompatible) == 1

    run(test)


def test_members_that_disagree_on_who_is_there_do_not_mix(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test() -> None:
        addresses = free_members("ana", "ben", "carl")
        two = {name: addresses[name] for name in ("ana", "ben")}
        async with (
            Participant("ana", members=two) as ana,
            Participant("ben", members=addresses) as ben,
        ):
            writer = ana.writer(Topic("chat", order=Fifo()))
            ben.reader("chat", order=Fifo())
            while not (ana.malformed and ben.malformed):
                await asyncio.sleep(0.001)
            assert writer.matched == 0

    run(test)
    assert "counts other members than we do" in caplog.text


def test_tracing_leaves_one_complete_file_a_member(tmp_path: Path) -> None:
    async def test() -> None:
        trace = Trace(run="r1", path=tmp_path / "traces")
        async with group("ana", "ben", trace=trace) as (ana, ben):
            topic = Topic("t", order=ORDERED)
            writer, reader = ana.writer(topic), ben.reader(topic)
            await writer.wait_matched(1, timeout_s=30)
            for _ in range(50):
                writer.write(b"x" * 100)
                await reader.read(timeout_s=30)

    run(test)
    table = read_trace(tmp_path / "traces")
    assert sorted(path.name for path in (tmp_path / "traces").iterdir()) == [
        *("ana.arrow", "ben.arrow"),
    ]
    events = events_from_table(table)
    kinds = Counter((event.process, event.kind) for event in events)
    assert kinds == {
        (0, EventKind.START): 1,
        (0, EventKind.SEND): 50,
        (0, EventKind.END): 1,
        (1, EventKind.START): 1,
        (1, EventKind.DELIVER): 50,
        (1, EventKind.END): 1,
    }
    assert {event.run_id for event in events} == {"r1/ordered"}
    assert {event.destinations for event in events if event.kind is EventKind.SEND} == {b"\x02"}
    report, _ = audit(TableSource(table))
    assert report.verdict is Verdict.VALID


def test_a_trace_that_is_lost_is_told(tmp_path: Path) -> None:
    class Full(MemorySink):
        def write(self, batch: Any) -> None:
            raise OSError("no space left on device")

    async def test() -> None:
        trace = Trace(run="r1", sink=Full())
        async with Participant("me", members={"me": "127.0.0.1:0"}, trace=trace) as me:
            me.reader("t", order=Fifo())

    with pytest.raises(OSError, match="no space left"):
        run(test)


@pytest.mark.parametrize("order", [ORDERED, Fifo(domain="fifo"), CONTROL], ids=str)
def test_data_written_at_once_cross_a_bad_network_in_small_datagrams(order: Order) -> None:
    async def test() -> None:
        settings = EndpointSettings(datagram_bytes_max=1_472)
        async with group("a", "b", "c", impairment=BAD_NETWORK, settings=settings) as people:
            writer = people[0].writer(Topic("numbers", order=order))
            seen: dict[str, list[Sample]] = {person.name: [] for person in people[1:]}
            for person in people[1:]:
                person.reader("*", order=order, callback=seen[person.name].append)
            await writer.wait_matched(2, timeout_s=30)
            data = [f"{number:04}".encode() * (1 + number % 20) for number in range(2_000)]
            written = [
                each for at in range(0, 2_000, 200) for each in writer.write_many(data[at:][:200])
            ]
            assert 10 < len(written) < 200
            assert len({each.number for each in written}) == len(written)
            await people[0].flush(timeout_s=20)
            for person in people[1:]:
                await person.drain(timeout_s=20)
                samples = seen[person.name]
                if order is CONTROL:
                    samples = sorted(samples, key=lambda sample: (sample.number, sample.place))
                assert [sample.data for sample in samples] == data
                assert person.counters.delivered == len(written)

    run(test)
