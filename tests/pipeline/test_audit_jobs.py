"""The audit on Spark finds what one process finds, row for row, in either shape."""

import json
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession
from random_runs import OWN_FAULTS, RandomRun, damage

from orderwire.cli.audit import command
from orderwire.pipeline import audit_jobs
from orderwire.pipeline.audit_jobs import SparkAudit, audit_files, audit_frame, audit_source
from orderwire.pipeline.lake import Lake
from orderwire.trace.reader import write_trace
from orderwire.trace.schema import arrow_schema, table_from_events
from orderwire.verify.audit import AuditOptions, audit
from orderwire.verify.kernels.violations import VIOLATIONS, merge
from orderwire.verify.report import Report
from orderwire.verify.source import TableSource
from orderwire.verify.synthetic import Faults, SyntheticSettings, synthetic_table
from orderwire.verify.verdict import Verdict

pytestmark = pytest.mark.spark

SLICED = AuditOptions(slice_events=60)


def damaged_runs(count: int) -> pa.Table:
    """Random runs, most of them with faults, and some clean ones; half with own lifetimes."""
    tables = []
    for seed in range(count):
        chance = Random(seed)
        run = RandomRun(chance, f"run-{seed:03}", own_lifetimes=seed % 2 == 0)
        events = run.run(chance.randint(1, 40))
        for _ in range(chance.randint(0, 3)):
            events = damage(events, chance.choice(OWN_FAULTS), chance)
        tables.append(table_from_events(events))
    return pa.concat_tables(tables)


def rows(found: SparkAudit) -> list[dict[str, object]]:
    return merge([found.violations.toArrow().cast(VIOLATIONS)]).to_pylist()


@pytest.fixture(scope="module")
def runs() -> pa.Table:
    return damaged_runs(24)


@pytest.fixture(scope="module")
def expected(runs: pa.Table) -> tuple[Report, list[dict[str, object]]]:
    report, violations = audit(TableSource(runs))
    kinds = {(row["check"], row["kind"]) for row in violations.to_pylist()}
    assert len(kinds) >= 7, f"only {kinds}: the faults are too tame for this test"
    own = {("C2", "rejected"), ("C2", "not-overtaken"), ("C2", "late-accepted")}
    assert own <= kinds, f"only {kinds}: no fault of own lifetimes"
    return report, violations.to_pylist()


def test_tasks_that_read_files_find_what_one_process_finds(
    spark: SparkSession,
    tmp_path: Path,
    runs: pa.Table,
    expected: tuple[Report, list[dict[str, object]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)  # the workers stay where they are
    half = runs.num_rows // 2
    files = ["a.parquet", "b.parquet"]
    write_trace(files[0], runs.slice(0, half))
    write_trace(files[1], runs.slice(half))
    with audit_files(spark, files, SLICED) as found:
        assert found.report == expected[0]
        assert rows(found) == expected[1]


def test_a_short_trace_is_one_task_and_is_read_anew_each_time(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "same-name.parquet"
    for count in (6, 3):
        table = damaged_runs(count)
        write_trace(path, table)
        report, violations = audit(TableSource(table))
        with audit_files(spark, [str(path)]) as found:
            assert found.report == report
            assert rows(found) == violations.to_pylist()


def test_violations_too_many_to_keep_are_found_again(
    spark: SparkSession,
    tmp_path: Path,
    runs: pa.Table,
    expected: tuple[Report, list[dict[str, object]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(audit_jobs, "VIOLATIONS_KEPT_BYTES", 0)
    path = tmp_path / "runs.parquet"
    write_trace(path, runs)
    with audit_files(spark, [str(path)], SLICED) as found:
        assert found.report == expected[0]
        assert rows(found) == expected[1]


def test_shuffled_rows_find_what_one_process_finds(
    spark: SparkSession, runs: pa.Table, expected: tuple[Report, list[dict[str, object]]]
) -> None:
    frame = spark.createDataFrame(runs.replace_schema_metadata(None)).repartition(3)
    with audit_frame(frame, SLICED) as found:
        assert found.report == expected[0]
        assert rows(found) == expected[1]


def test_a_long_run_is_cut_and_pruned(spark: SparkSession, tmp_path: Path) -> None:
    faults = Faults(delayed=0.002, lost=0.002, vanished=0.0002, late=0.002, doubled=0.0002)
    made = SyntheticSettings(events=60_000, interval_ns=1_000_000, faults=faults)
    table = synthetic_table(made)
    path = tmp_path / "long.parquet"
    write_trace(path, table)
    options = AuditOptions(slice_events=8_000)
    report, violations = audit(TableSource(table))
    assert {check.id for check in report.checks if check.violations} == {"C1", "O1", "O2"}
    with audit_files(spark, [str(path)], options) as found:
        assert found.report == report
        assert rows(found) == violations.to_pylist()
    with audit_frame(spark.createDataFrame(table.replace_schema_metadata(None)), options) as found:
        assert found.report == report
        assert rows(found) == violations.to_pylist()


def test_waiting_and_clocks_are_checked_in_one_piece(spark: SparkSession, tmp_path: Path) -> None:
    table = damaged_runs(4)
    path = tmp_path / "trace.arrow"
    write_trace(path, table)
    options = AuditOptions(waiting=True, waiting_slack_ns=0, clocks=True)
    report, violations = audit(TableSource(table), options)
    with audit_source(spark, str(path), options) as found:
        assert found.report == report
        assert rows(found) == violations.to_pylist()


def test_a_lake_is_audited_by_either_engine(spark: SparkSession, tmp_path: Path) -> None:
    table = damaged_runs(5)
    plain = table.cast(pa.schema([pa.field(f.name, f.type) for f in arrow_schema()]))
    Lake(tmp_path).append_table("events", plain, "test", 0)
    expected, _ = audit(TableSource(table))
    for place in (tmp_path, tmp_path / "events"):
        with audit_source(spark, str(place)) as found:
            assert found.report == expected
        told = CliRunner().invoke(command, [str(place), "--json"])
        assert told.exit_code == 1
        assert json.loads(told.stdout)["verdict"] == expected.verdict.value


def test_no_event_is_no_verdict(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "empty.parquet"
    write_trace(path, arrow_schema().empty_table())
    with audit_files(spark, [str(path)]) as found:
        assert found.report.verdict is Verdict.UNKNOWN
        assert rows(found) == []
