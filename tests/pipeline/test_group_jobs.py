"""The audit of total order on Spark finds what one process finds, row for row, in either shape."""

from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from drawn_groups import FAULTS, DrawnGroup, broken
from pyspark.sql import SparkSession

from orderwire.pipeline import audit_jobs
from orderwire.pipeline.audit_jobs import SparkAudit, audit_files, audit_frame
from orderwire.sim.selective_total_run import GENERATORS, run
from orderwire.trace.reader import write_trace
from orderwire.trace.schema import table_from_events
from orderwire.trace.sinks import MemorySink
from orderwire.verify.audit import AuditOptions, audit
from orderwire.verify.kernels.violations import VIOLATIONS, merge
from orderwire.verify.report import Report
from orderwire.verify.source import TableSource
from orderwire.verify.synthetic import Faults, SyntheticSettings, synthetic_table

pytestmark = pytest.mark.spark

SLICED = AuditOptions(slice_events=60)
Expected = tuple[Report, list[dict[str, object]]]


def rows(found: SparkAudit) -> list[dict[str, object]]:
    return merge([found.violations.toArrow().cast(VIOLATIONS)]).to_pylist()


@pytest.fixture(scope="module")
def runs() -> pa.Table:
    """Drawn groups right and wrong, simulated ones with crashes, a run without a total order."""
    sink = MemorySink()
    for name in ("deaf-crash", "lossy-start"):
        for seed in range(3):
            run(GENERATORS[name](seed), seed, sink=sink, run_id=f"{name}-{seed}")
    tables = [sink.table()]
    for seed in range(16):
        chance = Random(seed)
        events = DrawnGroup(chance, f"group-{seed:02}").run(30)
        for fault in chance.sample(FAULTS, seed % 4):
            events = broken(events, fault, chance)
        tables.append(table_from_events(events))
    plain = SyntheticSettings(events=1_000, members=5, faults=Faults(delayed=0.02, lost=0.01))
    return pa.concat_tables([*tables, synthetic_table(plain)])


@pytest.fixture(scope="module")
def expected(runs: pa.Table) -> Expected:
    report, violations = audit(TableSource(runs))
    checks = {row["check"] for row in violations.to_pylist()}
    assert checks >= {"T1", "T2", "T3", "T4", "T5"}, f"only {checks}: the faults are too tame"
    return report, violations.to_pylist()


def test_parts_that_read_files_find_what_one_process_finds(
    spark: SparkSession,
    tmp_path: Path,
    runs: pa.Table,
    expected: Expected,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = str(tmp_path / "runs.parquet")
    write_trace(path, runs)
    with audit_files(spark, [path], SLICED) as found:
        assert found.report == expected[0]
        assert rows(found) == expected[1]
    monkeypatch.setattr(audit_jobs, "VIOLATIONS_KEPT_BYTES", 0)  # found again when asked for
    with audit_files(spark, [path], SLICED) as found:
        assert rows(found) == expected[1]


def test_shuffled_parts_find_what_one_process_finds(
    spark: SparkSession, runs: pa.Table, expected: Expected
) -> None:
    frame = spark.createDataFrame(runs.replace_schema_metadata(None)).repartition(3)
    with audit_frame(frame, SLICED) as found:
        assert found.report == expected[0]
        assert rows(found) == expected[1]


def test_a_run_without_views_can_be_held_to_a_total_order(
    spark: SparkSession, tmp_path: Path
) -> None:
    delayed = SyntheticSettings(events=3_000, members=6, faults=Faults(delayed=0.05))
    table = synthetic_table(delayed)
    options = AuditOptions(expect="tachikawa-st", slice_events=800)
    report, violations = audit(TableSource(table), options)
    assert {"T1", "T2"} <= {check.id for check in report.checks if check.violations}
    path = str(tmp_path / "causal.parquet")
    write_trace(path, table)
    with audit_files(spark, [path], options) as found:
        assert found.report == report
        assert rows(found) == violations.to_pylist()
