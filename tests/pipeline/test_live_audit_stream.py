"""The streaming audit: over a real broker, restarted, replayed, and ending by itself."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from orderwire.cli.audit import command
from orderwire.pipeline.errors import PipelineError
from orderwire.pipeline.ingest import TopicSource
from orderwire.pipeline.live_audit import LiveAudit, start_live_audit
from orderwire.trace.reader import record_bytes
from orderwire.verify.audit import AuditOptions, audit
from orderwire.verify.report import Report
from orderwire.verify.source import TableSource
from orderwire.verify.synthetic import Faults, SyntheticSettings, synthetic_table
from orderwire.verify.verdict import Verdict

pytestmark = pytest.mark.spark

FAULTS = Faults(delayed=0.005, lost=0.005, vanished=0.0005, late=0.003, doubled=0.0005)
RECORD_EVENTS = 60


class TracedRuns:
    """Two synthetic runs, one of them a control group, and their trace topic."""

    def __init__(self, servers: str, topic: str) -> None:
        self.topic = topic
        self.source = TopicSource(bootstrap=servers, rows_max=60)
        self._producer = Producer({"bootstrap.servers": servers, "log_level": 0})
        self.tables = [
            synthetic_table(
                SyntheticSettings(
                    events=4_000,
                    members=5,
                    fan_out=3,
                    interval_ns=1_000_000,
                    run_id=name,
                    algorithm=name,
                    faults=faults,
                    seed=seed,
                )
            )
            for seed, (name, faults) in enumerate(
                {"jang-delta": Faults(lost=0.01), "unordered": FAULTS}.items()
            )
        ]

    @property
    def whole(self) -> pa.Table:
        return pa.concat_tables(self.tables)

    def write(self, first: float, last: float) -> None:
        """Send this part of the runs' time of every process, as its tracer would."""
        for table in self.tables:
            ends = pc.min_max(table.column("time_ns")).as_py()
            for process in range(5):
                mine = table.filter(pc.equal(table.column("process"), process))
                start, stop = (_before(mine, first, ends), _before(mine, last, ends))
                part = mine.slice(start, stop - start).combine_chunks()
                for batch in part.to_batches(max_chunksize=RECORD_EVENTS):
                    key = f"{batch.column('run_id')[0]}/{process}"
                    self._producer.produce(self.topic, record_bytes(batch), key)
        assert self._producer.flush(30) == 0

    def read(self, spark: SparkSession, live: LiveAudit) -> None:
        """Audit what the topic holds now."""
        start_live_audit(self.source.stream(spark, self.topic), live).finish(120)


def _before(timeline: pa.Table, ratio: float, ends: dict[str, int]) -> int:
    """Count the events in this part of the time between `min` and `max`."""
    until = ends["min"] + ratio * (ends["max"] + 1 - ends["min"])
    return int(pc.sum(pc.less(timeline.column("time_ns"), until)).as_py())


@pytest.fixture
def traced(servers: str, new_topic: Callable[..., str]) -> TracedRuns:
    return TracedRuns(servers, new_topic("trace", 2))


def check(live: LiveAudit, traced: TracedRuns) -> None:
    """All has been found, once."""
    report, violations = audit(TableSource(traced.whole))
    assert live.violations().to_pylist() == violations.to_pylist()
    told = live.report()
    assert told.verdict is report.verdict is Verdict.VALID
    for mine, theirs in zip(told.runs, report.runs, strict=True):
        assert mine.accounting == theirs.accounting
        assert [(c.id, c.verdict, c.violations) for c in mine.checks] == [
            (c.id, c.verdict, c.violations) for c in theirs.checks
        ]
    order = {c.id: c for run in told.runs if run.run_id == "unordered" for c in run.checks}["O1"]
    assert order.verdict is Verdict.INVALID
    assert not order.promised


def test_a_restarted_audit_goes_on_and_keeps_little(
    spark: SparkSession, traced: TracedRuns, tmp_path: Path
) -> None:
    # The control group promises C1 too, so its vanished copies would decide; leave them out.
    traced.tables[1] = synthetic_table(
        SyntheticSettings(
            events=4_000,
            members=5,
            fan_out=3,
            interval_ns=1_000_000,
            run_id="unordered",
            algorithm="unordered",
            faults=Faults(delayed=0.01, lost=0.005, late=0.003),
        )
    )
    folder = tmp_path / "audit"
    held = []
    for part in range(2):
        traced.write(part / 2, (part + 1) / 2)
        live = LiveAudit(folder, runs_expected=2)
        traced.read(spark, live)
        held += [about.held for about in live.progress().runs.values()]
        if part == 0:
            assert not live.ended
            assert live.report().verdict is Verdict.UNKNOWN
    assert live.ended
    assert max(held) < 2_000, f"{held}: of 4,000 events of each run"
    assert len(list((folder / "states").iterdir())) <= 2
    check(live, traced)

    # The last batch again, as after a crash behind the audit's own commit: nothing changes.
    before = live.progress()
    again = LiveAudit(folder, runs_expected=2)
    again.take(traced.source.batch(spark, traced.topic), before.batch)
    assert again.progress() == before
    check(again, traced)


def test_a_batch_that_died_before_its_commit_is_done_again(
    spark: SparkSession, traced: TracedRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traced.tables = [traced.tables[0]]
    folder = tmp_path / "audit"
    traced.write(0, 1)

    class Killed(Exception):
        pass

    forget, deaths = LiveAudit._write_violations, [2]

    def dying(self: LiveAudit, batch: int, found: list[pa.Table]) -> None:
        forget(self, batch, found)
        deaths[0] -= 1
        if deaths[0] == 0:
            raise Killed

    monkeypatch.setattr(LiveAudit, "_write_violations", dying)
    live = LiveAudit(folder)
    with pytest.raises(Exception, match="Killed"):
        traced.read(spark, live)
    assert live.progress().batch == 0
    traced.read(spark, LiveAudit(folder))
    report, violations = audit(TableSource(traced.whole))
    found = LiveAudit(folder)
    assert found.ended
    assert found.violations().to_pylist() == violations.to_pylist()
    assert found.report().verdict is report.verdict


def test_a_live_audit_ends_by_itself_when_the_runs_have_ended(
    spark: SparkSession, traced: TracedRuns, tmp_path: Path
) -> None:
    live = LiveAudit(tmp_path / "audit", runs_expected=2)
    running = start_live_audit(
        traced.source.stream(spark, traced.topic), live, every="100 milliseconds"
    )
    traced.write(0, 0.5)
    traced.write(0.5, 1)
    report = running.finish(120)
    assert not running.query.isActive
    expected, violations = audit(TableSource(traced.whole))
    assert report.verdict is expected.verdict is Verdict.INVALID
    assert live.violations().to_pylist() == violations.to_pylist()


def test_a_killed_member_does_not_keep_the_audit_from_ending(
    spark: SparkSession, traced: TracedRuns, tmp_path: Path
) -> None:
    killed = traced.tables[0]
    time_ns = killed.column("time_ns")
    middle = (pc.min(time_ns).as_py() + pc.max(time_ns).as_py()) // 2
    gone = pc.and_(pc.equal(killed.column("process"), 2), pc.greater(time_ns, middle))
    traced.tables[0] = killed.filter(pc.invert(gone))
    live = LiveAudit(
        tmp_path / "audit", AuditOptions(silence_ns=100_000_000), runs_expected=len(traced.tables)
    )
    stream = traced.source.stream(spark, traced.topic)
    running = start_live_audit(stream, live, every="100 milliseconds")
    for part in range(20):  # a member's trace may be ahead of another's by less than the silence
        traced.write(part / 20, (part + 1) / 20)
    report = running.finish(120)
    assert not running.query.isActive
    assert live.ended
    expected, violations = audit(TableSource(traced.whole))
    assert live.violations().to_pylist() == violations.to_pylist()
    assert live.progress().runs["jang-delta"].silent == [2]
    told = report.runs[0]
    assert told.verdict is expected.runs[0].verdict is Verdict.UNKNOWN
    assert told.incomplete == [2]
    assert told.accounting == expected.runs[0].accounting


def test_a_run_without_an_end_is_told_and_the_query_is_stopped(
    spark: SparkSession, traced: TracedRuns, tmp_path: Path
) -> None:
    live = LiveAudit(tmp_path / "audit", runs_expected=2)
    stream = traced.source.stream(spark, traced.topic)
    running = start_live_audit(stream, live, every="100 milliseconds")
    with pytest.raises(PipelineError, match="has not ended within"):
        running.finish(1)
    assert not running.query.isActive


def test_the_command_reads_a_topic_without_spark(servers: str, traced: TracedRuns) -> None:
    traced.write(0, 1)
    told = CliRunner().invoke(command, [f"{traced.topic}@{servers}", "--json"])
    expected, _ = audit(TableSource(traced.whole))
    assert told.exit_code == 1
    assert msgspec.json.decode(told.stdout, type=Report) == expected
    missing = CliRunner().invoke(command, [f"no-such-topic@{servers}"])
    assert missing.exit_code == 2
    assert "no topic 'no-such-topic'" in missing.stderr


def test_checks_that_need_the_whole_trace_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="need a whole trace"):
        LiveAudit(tmp_path, AuditOptions(waiting=True))
