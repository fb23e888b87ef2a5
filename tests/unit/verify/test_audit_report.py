"""What a run promised decides its verdict; the rest informs."""

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orderwire.trace.errors import TraceError, TraceVersionError
from orderwire.trace.events import RunSettings
from orderwire.trace.schema import arrow_schema
from orderwire.verify.audit import AuditOptions, audit
from orderwire.verify.kernels.slices import Extent, Slice, plan_slices
from orderwire.verify.kernels.survey import SURVEYED, survey
from orderwire.verify.report import promised
from orderwire.verify.source import ParquetSource, TableSource
from orderwire.verify.synthetic import Faults, SyntheticSettings, synthetic_table
from orderwire.verify.verdict import Verdict

SETTINGS = SyntheticSettings(events=4_000, members=6, fan_out=3, faults=Faults(delayed=0.02))


def verdict_of(algorithm: str, expect: str | None = None) -> tuple[Verdict, dict[str, Verdict]]:
    made = msgspec.structs.replace(SETTINGS, algorithm=algorithm)
    report, _ = audit(TableSource(synthetic_table(made)), AuditOptions(expect=expect))
    return report.verdict, {check.id: check.verdict for check in report.checks}


@pytest.mark.parametrize("algorithm", ["jang-delta", "fifo", "one-of-next-year"])
def test_who_promises_order_is_held_to_it(algorithm: str) -> None:
    verdict, checks = verdict_of(algorithm)
    assert verdict is Verdict.INVALID
    assert checks["O1"] is checks["O2"] is Verdict.INVALID


def test_a_control_group_is_valid_and_its_disorder_is_told() -> None:
    verdict, checks = verdict_of("unordered")
    assert verdict is Verdict.VALID
    assert checks["O1"] is checks["O2"] is Verdict.INVALID


def test_a_run_can_be_held_to_more_than_it_promised() -> None:
    assert verdict_of("unordered", expect="jang-delta")[0] is Verdict.INVALID


def test_promises_of_each_kind() -> None:
    timely = RunSettings(algorithm="fifo", members=2, lifetime_ns=1)
    assert promised(timely) == {"W1", "C1", "S1", "C2", "O2"}
    assert promised(RunSettings(algorithm="unordered", members=2)) == {"W1", "C1", "S1"}
    assert promised(None) == {"W1", "C1", "S1", "O1", "O2"}


def test_runs_of_one_source_count_where_they_promise() -> None:
    control = msgspec.structs.replace(SETTINGS, algorithm="unordered", run_id="control")
    ordered = msgspec.structs.replace(SETTINGS, faults=Faults(), run_id="ordered")
    both = pa.concat_tables([synthetic_table(control), synthetic_table(ordered)])
    report, rows = audit(TableSource(both))
    assert report.verdict is Verdict.VALID
    assert {check.id: check.violations for check in report.checks}["O1"] == 0
    assert set(rows.column("run_id").to_pylist()) == {"control"}
    assert [run.run_id for run in report.runs] == ["control", "ordered"]


def test_plan_cuts_long_runs_at_multiples_of_the_window() -> None:
    extent = Extent("r", 1_000, 0, 99_999, 100)
    settings = RunSettings(algorithm="fifo", members=2)
    buckets, counts = np.arange(0, 100_000, 1_000), np.full(100, 10)
    slices = plan_slices(extent, settings, buckets, counts, 200)
    assert [piece.low for piece in slices[1:]] == [20_000, 40_000, 60_000, 80_000]
    assert slices[1].view_low == 19_900
    local = msgspec.structs.replace(settings, clock="local")
    assert plan_slices(extent, local, buckets, counts, 200) == [Slice(run_id="r")]


def test_window_bounds_the_longest_latency() -> None:
    made = msgspec.structs.replace(SETTINGS, faults=Faults())
    source = TableSource(synthetic_table(made))
    (found,) = survey(source.batches(SURVEYED, None)).values()
    assert found.extent().window_ns == made.latency_ns


def test_unknown_versions_and_other_files_are_refused(tmp_path: object) -> None:
    path = f"{tmp_path}/other.parquet"
    schema = arrow_schema().with_metadata({b"orderwire.trace.version": b"9"})
    pq.write_table(schema.empty_table(), path)
    with pytest.raises(TraceVersionError, match="version '9'"):
        ParquetSource([path])
    pq.write_table(pa.table({"a": [1]}), path)
    with pytest.raises(TraceError, match="no Orderwire trace"):
        ParquetSource([path])
    with pytest.raises(TraceError, match="no file"):
        ParquetSource([])
