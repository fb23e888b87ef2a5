"""Real participants on sockets, one of them killed and restarted; Spark reads what they traced."""

import asyncio
import json
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from discovered import domain
from loopback import free_members
from pyspark.sql import SparkSession
from traced_member import ANSWERS, CHAT, RUN, SLACK_MS

from orderwire import Participant, Trace, Writer
from orderwire.pipeline.audit_jobs import audit_source
from orderwire.trace.events import Event, EventKind
from orderwire.trace.reader import read_trace, write_trace
from orderwire.trace.schema import events_from_table, table_from_events
from orderwire.verify.audit import audit
from orderwire.verify.live import LiveRun
from orderwire.verify.report import Report
from orderwire.verify.source import TableSource, open_source
from orderwire.verify.verdict import Verdict

pytestmark = [pytest.mark.spark, pytest.mark.network, pytest.mark.timeout(300)]

DOMAIN = "traced"
QUIET_S = 16.0
"""Longer than it takes until views must be right: then D1 has something to judge."""
SCRIPT = Path(__file__).parents[1] / "support" / "traced_member.py"


class Child:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @classmethod
    async def start(cls, **settings: Any) -> "Child":
        pipe = asyncio.subprocess.PIPE
        return cls(
            await asyncio.create_subprocess_exec(
                sys.executable, str(SCRIPT), json.dumps(settings), stdin=pipe, stdout=pipe
            )
        )

    async def read(self, what: str) -> Any:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            told = json.loads(line)
            if what in told:
                return told
        raise AssertionError(f"the member ended without saying {what!r}")

    async def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
            await self.process.communicate()

    async def leave(self) -> None:
        await self.process.communicate(b"")


async def talk(writer: Writer, child: Child) -> None:
    """Write until the child has heard some of it, and a little on."""
    hearing = asyncio.create_task(child.read("heard"))
    line = 0
    while line < 20 or not hearing.done():
        writer.write(b"%d" % line)
        line += 1
        await asyncio.sleep(0.02)
    await hearing


async def _hold(folder: Path, *, same_id: bool) -> None:
    """Two members stay, a third is killed amid what it says and comes back."""
    async with domain(DOMAIN, 256) as at:

        def member(name: str) -> Participant:
            trace = Trace(run=RUN, path=folder, flush_interval_ms=50, timer_slack_ms=SLACK_MS)
            return Participant(name, domain=DOMAIN, bootstrap=at, trace=trace)

        async with member("ana") as ana, member("carl") as carl, AsyncExitStack() as children:
            writer = ana.writer(CHAT)
            carl.reader(ANSWERS, callback=lambda sample: None)
            settings = {"name": "ben", "domain": DOMAIN, "bootstrap": at, "folder": str(folder)}
            (place,) = free_members("ben").values()  # free until it comes back
            first = await Child.start(**settings, listen=place, wish=None)
            children.push_async_callback(first.kill)
            there = await first.read("listens")
            await writer.wait_matched(1, timeout_s=60)
            await talk(writer, first)
            await first.kill()
            ana.trace_gone(there["id"])
            again_at = "127.0.0.1:0", None
            if same_id:  # Who comes back to its address frees the id that it had.
                again_at = there["listens"], there["id"]
            second = await Child.start(**settings, listen=again_at[0], wish=again_at[1])
            children.push_async_callback(second.kill)
            again = await second.read("listens")
            assert (again["id"] == there["id"]) == same_id
            while not any(peer.id == again["id"] for peer in ana.peers()):
                await asyncio.sleep(0.01)
            await writer.wait_matched(1, timeout_s=60)
            await talk(writer, second)
            await asyncio.sleep(QUIET_S)
            await second.leave()


@pytest.fixture(scope="module", params=[True, False], ids=["same id", "another id"])
def traces(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traces")
    asyncio.run(asyncio.wait_for(_hold(folder, same_id=request.param), 200))
    return folder


def test_a_kill_and_a_restart_leave_a_valid_trace(spark: SparkSession, traces: Path) -> None:
    assert len(list(traces.glob("ben*.arrow"))) == 2, "each life keeps its trace"
    with audit_source(spark, str(traces)) as found:
        report, violations = found.report, found.violations.toArrow()
    assert violations.to_pylist() == []
    assert report.verdict is Verdict.VALID
    assert all(run.incomplete == [] for run in report.runs)
    checks = {check.id: check for check in report.checks if check.promised}
    assert set(checks) == {"W1", "C1", "C2", "O1", "O2", "D1", "D3", "D4"}
    discovery = next(run for run in report.runs if run.discovery is not None)
    assert discovery.run_id == f"{RUN}/discovery"
    seen = discovery.discovery
    assert seen is not None
    assert (seen.lives, seen.series[-1].missing, seen.conflicts) == (4, 0, 0)
    assert seen.evidence.count > 0
    messages = {message.message: message for message in seen.messages}
    assert messages["Join"].hops
    assert messages["Sync"].heard_bytes > 0
    assert report == audit(open_source(traces))[0]


def test_the_streaming_audit_says_the_same(traces: Path) -> None:
    table = read_trace(traces)
    expected, _ = audit(TableSource(table))
    for run in expected.runs:
        live = LiveRun(run.run_id)
        mine = [e for e in events_from_table(table) if e.run_id == run.run_id]
        mine.sort(key=lambda event: event.time_ns)
        for start in range(0, len(mine), 50):
            live.feed(table_from_events(mine[start : start + 50]))
        if not live.finished:
            live.conclude()
        told = live.report()
        assert told.verdict is run.verdict is Verdict.VALID
        assert [(c.id, c.violations) for c in told.checks] == [
            (c.id, c.violations) for c in run.checks
        ]
        assert told.discovery == run.discovery


def _of_discovery(event: Event) -> bool:
    return event.run_id.endswith("/discovery")


def test_an_expiry_without_a_cause_is_caught(
    spark: SparkSession, traces: Path, tmp_path: Path
) -> None:
    """Carl no longer lists ana, who lives and tells of herself."""

    def change(events: list[Event]) -> list[Event]:
        mine = [e for e in events if _of_discovery(e)]
        learnt = next(e for e in mine if e.kind is EventKind.LEARN and _listed_to_the_end(e, mine))
        at = max(
            (e for e in mine if e.process == learnt.process and e.kind is EventKind.HEAR),
            key=lambda e: e.position,
        )
        middle = next(
            e
            for e in mine
            if e.process == learnt.process
            and e.kind is EventKind.HEAR
            and e.time_ns > (learnt.time_ns + at.time_ns) // 2
        )
        gone = msgspec.structs.replace(
            middle,
            kind=EventKind.EXPIRE,
            reason="silent",
            peer_id=learnt.peer_id,
            incarnation=learnt.incarnation,
            arrived_ns=middle.clock_ns - 10_000_000_000,
            number=-1,
            payload_bytes=0,
        )
        return [gone if e is middle else e for e in events]

    report = _spark_report(spark, traces, change, tmp_path)
    checks = {check.id: check for check in report.checks}
    assert report.verdict is Verdict.INVALID
    assert checks["D1"].examples[0]["kind"] == "missing"


def test_a_stale_view_at_quiet_is_caught(spark: SparkSession, traces: Path, tmp_path: Path) -> None:
    """What was learnt last of a peer is taken out: its older MAP stays listed."""

    def change(events: list[Event]) -> list[Event]:
        mine = [e for e in events if _of_discovery(e) and e.kind is EventKind.LEARN]
        newest = next(
            e
            for e in mine
            if e.number > 1
            and not any(
                o.process == e.process and o.peer_id == e.peer_id and o.position > e.position
                for o in mine
            )
            and any(
                o.process == e.process
                and (o.peer_id, o.incarnation) == (e.peer_id, e.incarnation)
                and o.number < e.number
                for o in mine
            )
        )
        heard = msgspec.structs.replace(
            newest, kind=EventKind.HEAR, reason="Sync", peer_id=None, incarnation=None
        )
        return [heard if e is newest else e for e in events]

    report = _spark_report(spark, traces, change, tmp_path)
    checks = {check.id: check for check in report.checks}
    assert report.verdict is Verdict.INVALID
    assert checks["D1"].examples[0]["kind"] == "outdated"


def _listed_to_the_end(learnt: Event, events: list[Event]) -> bool:
    """Whether the peer stays listed until the goodbyes."""
    later = [
        e
        for e in events
        if e.process == learnt.process
        and e.peer_id == learnt.peer_id
        and e.position > learnt.position
        and e.kind in (EventKind.LEARN, EventKind.EXPIRE)
    ]
    return all(e.kind is EventKind.EXPIRE and e.reason == "left" for e in later)


def _spark_report(
    spark: SparkSession, traces: Path, change: Callable[[list[Event]], list[Event]], folder: Path
) -> Report:
    path = folder / "doctored.parquet"
    events = change(events_from_table(read_trace(traces)))
    write_trace(path, events)
    with audit_source(spark, str(path)) as found:
        return found.report
