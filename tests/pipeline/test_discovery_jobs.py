"""The audit of discovery on Spark finds what one process finds, row for row, in either shape."""

import json
from pathlib import Path
from random import Random

import msgspec
import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession
from random_domains import nonsense

from orderwire.cli.audit import command
from orderwire.pipeline.audit_jobs import SparkAudit, audit_files, audit_frame, audit_source
from orderwire.trace.events import Event
from orderwire.trace.reader import write_trace
from orderwire.trace.schema import table_from_events
from orderwire.verify.audit import AuditOptions, audit
from orderwire.verify.discovery_audit import discovery_pairs, open_domain
from orderwire.verify.discovery_synthetic import DomainFaults, DomainSettings, synthetic_domain
from orderwire.verify.kernels.discovery_measures import PAIRS
from orderwire.verify.kernels.survey import SURVEYED, survey
from orderwire.verify.kernels.violations import VIOLATIONS, merge
from orderwire.verify.report import Report
from orderwire.verify.source import TableSource, settings_of
from orderwire.verify.synthetic import Faults, SyntheticSettings, synthetic_table

pytestmark = pytest.mark.spark

SHARED_OUT = AuditOptions(slice_events=60)
PAIR_KEY = [(name, "ascending") for name in ("run_id", "process", "boot_ns", "of", "of_boot_ns")]


def rows(found: SparkAudit) -> list[dict[str, object]]:
    return merge([found.violations.toArrow().cast(VIOLATIONS)]).to_pylist()


def pairs(found: SparkAudit) -> list[dict[str, object]]:
    return found.pairs.toArrow().cast(PAIRS).sort_by(PAIR_KEY).to_pylist()


def pairs_here(table: pa.Table) -> list[dict[str, object]]:
    source = TableSource(table)
    starts = source.starts()
    found = [PAIRS.empty_table()]
    for surveyed in survey(source.batches(SURVEYED, None)).values():
        settings, _ = settings_of(starts, surveyed.run_id)
        domain = open_domain(source, surveyed, settings)
        if domain is not None:
            found.append(discovery_pairs(source, domain))
    return pa.concat_tables(found).sort_by(PAIR_KEY).to_pylist()


def mixed_run(seed: int) -> list[Event]:
    """Nonsense whose settings name an order, so that its trace is judged as one of order too."""
    events, run = nonsense(Random(seed), f"mixed-{seed}")
    ordered = msgspec.json.encode(msgspec.structs.replace(run, algorithm="fifo")).decode()
    return [
        msgspec.structs.replace(event, detail=ordered) if event.detail else event
        for event in events
    ]


@pytest.fixture(scope="module")
def runs() -> pa.Table:
    """Domains right and wrong, nonsense alone and with order, and a run of order only."""
    faults = DomainFaults(unheard=0.05, outdated=0.1, immortal=0.1, risen=0.3, stale=0.05)
    tables = [
        synthetic_domain(DomainSettings(participants=9, run_id="clean", heartbeats=1)),
        synthetic_domain(
            DomainSettings(participants=14, run_id="faulty", crash_ratio=0.3, faults=faults)
        ),
        synthetic_table(
            SyntheticSettings(events=1_500, members=5, faults=Faults(delayed=0.01, lost=0.01))
        ),
    ]
    for seed in range(12):
        tables.append(table_from_events(nonsense(Random(seed), f"nonsense-{seed:02}")[0]))
        tables.append(table_from_events(mixed_run(seed)))
    return pa.concat_tables(tables)


@pytest.fixture(scope="module")
def expected(runs: pa.Table) -> tuple[Report, list[dict[str, object]], list[dict[str, object]]]:
    report, violations = audit(TableSource(runs))
    kinds = {(row["check"], row["kind"]) for row in violations.to_pylist()}
    assert len([kind for kind in kinds if kind[0].startswith("D")]) >= 12, kinds
    assert {run.discovery is None for run in report.runs} == {True, False}
    return report, violations.to_pylist(), pairs_here(runs)


def test_shares_that_read_files_find_what_one_process_finds(
    spark: SparkSession,
    tmp_path: Path,
    runs: pa.Table,
    expected: tuple[Report, list[dict[str, object]], list[dict[str, object]]],
) -> None:
    half = runs.num_rows // 2
    files = [str(tmp_path / name) for name in ("a.parquet", "b.parquet")]
    write_trace(files[0], runs.slice(0, half))
    write_trace(files[1], runs.slice(half))
    with audit_files(spark, files, SHARED_OUT) as found:
        assert found.report == expected[0]
        assert rows(found) == expected[1]
        assert pairs(found) == expected[2]
    with audit_files(spark, files) as found:  # short enough for one task
        assert found.report == expected[0]
        assert pairs(found) == expected[2]


def test_shuffled_shares_find_what_one_process_finds(
    spark: SparkSession,
    runs: pa.Table,
    expected: tuple[Report, list[dict[str, object]], list[dict[str, object]]],
) -> None:
    frame = spark.createDataFrame(runs.replace_schema_metadata(None)).repartition(3)
    with audit_frame(frame, SHARED_OUT) as found:
        assert found.report == expected[0]
        assert rows(found) == expected[1]
        assert pairs(found) == expected[2]


def test_ids_above_two_to_the_63_come_through_as_decimals(
    spark: SparkSession, expected: tuple[Report, list[dict[str, object]], list[dict[str, object]]]
) -> None:
    ids = {int(str(row["peer_id"])) for row in expected[2]}
    assert max(ids) >= 2**63
    assert min(ids) < 2**63


def test_the_command_line_tells_what_spark_finds(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "domain.arrow"
    broken = DomainSettings(participants=9, faults=DomainFaults(unheard=0.1))
    write_trace(path, synthetic_domain(broken))
    result = CliRunner().invoke(command, [str(path), "--json"])
    assert result.exit_code == 1, result.output
    told = json.loads(result.stdout)
    with audit_source(spark, str(path)) as found:
        assert told == json.loads(msgspec.json.encode(found.report))
    assert told["verdict"] == "INVALID"
    checks = {check["id"]: check for check in told["checks"]}
    assert set(checks) == {"W1", "D1", "D3", "D4"}
    assert checks["D1"]["violations"] > 0
    assert checks["D1"]["examples"][0]["kind"] == "missing"
    measured = told["runs"][0]["discovery"]
    assert measured["learnt"] == measured["pairs"] - checks["D1"]["violations"]
    shown = " ".join(CliRunner().invoke(command, [str(path)]).output.split())
    assert "discovery: fdp, 9 participants" in shown
    assert "missing at the end" in shown
