"""Messages with lifetimes of their own, on real sockets, from the writer to the audit."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from loopback import free_members

from orderwire import (
    DeltaCausal,
    Impairment,
    LocalProtocolError,
    Participant,
    Published,
    Sample,
    Topic,
    Trace,
)
from orderwire.cli.main import main
from orderwire.kernel import NS_PER_S, ms
from orderwire.participant.lifetimes import delivered_within_ns
from orderwire.participant.recording import Recorder, Recording
from orderwire.trace import events_from_table, read_trace
from orderwire.trace.events import EventKind
from orderwire.verify.audit import AuditOptions, audit
from orderwire.verify.source import TableSource
from orderwire.verify.verdict import Verdict

pytestmark = [pytest.mark.network, pytest.mark.timeout(120)]

ORDER = Published(algorithm="rodrigues-deadline", lifetime_ms=2_000)
TOPIC = Topic("t", order=ORDER)
SHORT_MS = 40
SLOW = Impairment(seed=3, delay_ms=5, jitter_mean_ms=20, loss_ratio=0.05)


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 100))


def test_no_message_is_handed_over_after_its_own_deadline_and_the_audit_agrees(
    tmp_path: Path,
) -> None:
    """Over a slow network, where many short lives end on the way or by waiting for others."""
    names = ("ana", "ben", "carl")
    samples: list[Sample] = []

    async def test() -> None:
        members = free_members(*names)
        trace = Trace(run="own", path=tmp_path / "trace", timer_slack_ms=2_000)
        async with AsyncExitStack() as stack:
            people = [
                await stack.enter_async_context(
                    Participant(name, members=members, trace=trace, impairment=SLOW)
                )
                for name in names
            ]

            def on_sample(sample: Sample) -> None:
                samples.append(sample)

            for each in people:
                each.reader(TOPIC, callback=on_sample, own=False)
            writers = [each.writer(TOPIC) for each in people]
            for writer in writers:
                await writer.wait_matched(2, timeout_s=30)
            for number in range(150):
                for writer in writers:
                    writer.write(b"%d" % number, lifetime_ms=SHORT_MS if number % 2 else None)
                await asyncio.sleep(0.004)
            for each in people:
                await each.flush(timeout_s=20)
            for each in people:
                await each.drain(timeout_s=20)
            assert sum(each.counters.late for each in people) > 0

    run(test)
    for sample in samples:
        short = int(sample.data) % 2
        assert sample.lifetime_ns == (ms(SHORT_MS) if short else None)
        assert sample.delivered - sample.stamp <= ms(2_000)
    shorts = [sample for sample in samples if sample.lifetime_ns]
    assert 0 < len(shorts) < len(samples) / 2

    table = read_trace(tmp_path / "trace")
    sent = [e for e in events_from_table(table) if e.kind is EventKind.SEND]
    own = {e.lifetime_ns for e in sent if e.number % 2}
    assert own == {delivered_within_ns(ms(SHORT_MS))}
    assert {e.lifetime_ns for e in sent if e.number % 2 == 0} == {None}
    report, _ = audit(TableSource(table), AuditOptions(waiting=True, waiting_slack_ns=ms(2_000)))
    assert report.verdict is Verdict.VALID, report.checks
    accounting = report.runs[0].accounting
    assert accounting["expired"] + accounting["overtaken"] > 0
    assert accounting["written"] == 3 * 150 * 2


def test_what_waits_in_a_queue_past_its_own_deadline_is_not_handed_over() -> None:
    async def test() -> None:
        async with Participant("me", members={"me": "127.0.0.1:0"}) as me:
            reader, writer = me.reader(TOPIC), me.writer(TOPIC)
            await writer.wait_matched(1, timeout_s=30)
            writer.write(b"short", lifetime_ms=1)
            written = writer.write(b"long")
            assert written is not None
            while me._domains[ORDER.key].clock.now() <= written.stamp + ms(1):
                await asyncio.sleep(0.001)
            assert (await reader.read(timeout_s=30)).data == b"long"
            assert reader.counters.expired == 1
            many = writer.write_many([b"a", b"b"], lifetime_ms=1_999)
            assert len(many) == 1
            for data in (b"a", b"b"):
                sample = await reader.read(timeout_s=30)
                assert (sample.data, sample.lifetime_ns) == (data, ms(1_999))

    run(test)


def test_a_lifetime_without_effect_or_out_of_bounds_is_refused_by_the_writer() -> None:
    async def test() -> None:
        async with Participant("me", members={"me": "127.0.0.1:0"}) as me:
            causal = me.writer(Topic("c", order=DeltaCausal(lifetime_ms=250)))
            for write in (causal.write, causal.write_many):
                with pytest.raises(LocalProtocolError, match="lifetime_ms=100 has no effect"):
                    write([b"x"][0] if write == causal.write else [b"x"], lifetime_ms=100)
            own = me.writer(TOPIC)
            with pytest.raises(LocalProtocolError, match="must be at most 2000, its order's"):
                own.write(b"x", lifetime_ms=2_001)
            with pytest.raises(LocalProtocolError, match="lifetime_ms=0 must be above 0"):
                own.write(b"x", lifetime_ms=0)
            assert me.counters.written == 0

    run(test)


def replayed(
    file: Path, *order: str, count: int
) -> tuple[list[dict[str, object]], "subprocess.CompletedProcess[str]"]:
    """Write a recording again, to a member that reads; return what it read."""
    members = [f"--member={n}={a}" for n, a in free_members("ana", "ben").items()]
    program = (sys.executable, "-m", "orderwire")
    options = order or ("--order=rodrigues-deadline", "--lifetime-ms=20000")
    reading = subprocess.Popen(
        [
            *(*program, "participant", "--me=ben", *members, *options),
            *("--read=**", f"--count={count}", "--json"),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    writing = subprocess.run(
        [*program, "replay", str(file), "--me=ana", *members, "--speed=0", *order],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    out, _ = reading.communicate(timeout=60)
    return [json.loads(line) for line in out.splitlines()][:-1], writing


def test_a_recording_keeps_lifetimes_and_is_replayed_with_them(tmp_path: Path) -> None:
    order = Published(algorithm="rodrigues-deadline", lifetime_ms=20_000)
    file = tmp_path / "talk.arrow"

    async def record() -> None:
        topic = Topic("t", order=order)
        async with Participant("me", members={"me": "127.0.0.1:0"}) as me:
            reader, writer = me.reader(topic), me.writer(topic)
            await writer.wait_matched(1, timeout_s=30)
            with Recorder(file, order) as recorder:
                for lifetime_ms in (None, 15_000, 19_999.999):
                    writer.write(b"x", lifetime_ms=lifetime_ms)
                    recorder.add(await reader.read(timeout_s=30))

    run(record)
    lives = [None, ms(15_000), ms(20_000) - 1_000]
    assert Recording(file).table.column("lifetime_ns").to_pylist() == lives
    samples, writing = replayed(file, count=3)
    assert [s.get("lifetime_ms") for s in samples] == [None, 15_000, 19_999.999]
    assert "lifetimes of their own" not in writing.stderr
    samples, writing = replayed(file, "--order=delta-causal", "--lifetime-ms=20000", count=3)
    assert [s.get("lifetime_ms") for s in samples] == [None] * 3
    assert "2 samples had lifetimes of their own that bounded-jang(" in writing.stderr


def test_a_recording_without_lifetimes_still_reads(tmp_path: Path) -> None:
    file = tmp_path / "new.arrow"
    with Recorder(file, ORDER) as recorder:
        recorder.add(Sample("t", b"x", "ana", 0, 1, 2, 3))  # type: ignore[arg-type]
    table = Recording(file).table
    metadata = dict(table.schema.metadata) | {b"orderwire.recording.version": b"1"}
    old = table.drop_columns(["lifetime_ns"]).replace_schema_metadata(metadata)
    with pa.ipc.new_file(tmp_path / "old.arrow", old.schema) as writer:
        writer.write_table(old)
    read = Recording(tmp_path / "old.arrow")
    assert read.order == ORDER
    assert read.table.column("lifetime_ns").to_pylist() == [None]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--write=t", "--message-lifetime-ms=5"), "has no effect: all messages of bounded-jang"),
        (("--read=t", "--message-lifetime-ms=5"), "has no effect without --write"),
        (
            (
                *("--write=t", "--order=rodrigues-deadline", "--lifetime-ms=100"),
                "--message-lifetime-ms=101",
            ),
            "must be at most 100",
        ),
    ],
)
def test_the_command_refuses_lifetimes_that_cannot_be(options: tuple[str, ...], why: str) -> None:
    member = ("participant", "--me=a", "--member=a=127.0.0.1:0")
    result = CliRunner().invoke(main, [*member, *options])
    assert result.exit_code == 2
    assert why in " ".join(result.output.replace("│", " ").split())


TRACED = """
import asyncio, sys
from orderwire import Participant, Published, Topic, Trace

async def main():
    topic = Topic("t", order=Published(algorithm="rodrigues-deadline", lifetime_ms=2_000))
    trace = Trace(run="killed", path=sys.argv[1])
    async with Participant("me", members={"me": "127.0.0.1:0"}, trace=trace) as me:
        me.reader(topic, callback=lambda sample: None)
        writer = me.writer(topic)
        await writer.wait_matched(1)
        while True:
            print(writer.write(b"x", lifetime_ms=500).stamp, flush=True)
            await asyncio.sleep(0.002)

asyncio.run(main())
"""


def test_a_killed_member_loses_less_than_a_second_of_its_trace(tmp_path: Path) -> None:
    """Events wait for their batch to fill, but not longer than the flush interval."""
    member = subprocess.Popen(
        [sys.executable, "-c", TRACED, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert member.stdout is not None
    first = last = int(member.stdout.readline())
    while last - first < 2 * NS_PER_S:
        last = int(member.stdout.readline())
    os.kill(member.pid, signal.SIGKILL)
    rest, _ = member.communicate(timeout=30)
    last = max(last, *(int(line) for line in rest.splitlines()[:-1] or [last]))
    events = events_from_table(read_trace(tmp_path))
    kept = max(event.stamp_ns for event in events)
    assert last - kept < NS_PER_S
    assert [event.position for event in events] == list(range(len(events)))
    assert {e.lifetime_ns for e in events if e.kind is EventKind.SEND} == {ms(480)}
