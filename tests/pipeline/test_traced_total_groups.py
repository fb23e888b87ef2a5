"""A member and the relay of a real group are killed under load; Spark audits the traces.  [S003]"""

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession
from total_groups import swapped
from view_cluster import QUICK, busy, rest, until, view_cluster

from orderwire.aio.zookeeper_server import managed_zookeeper
from orderwire.pipeline.audit_jobs import audit_source
from orderwire.trace.reader import read_trace, write_trace
from orderwire.verify.audit import audit
from orderwire.verify.kernels.violations import VIOLATIONS, merge
from orderwire.verify.report import TOTAL_ORDER_CHECKS, Report
from orderwire.verify.source import open_source
from orderwire.verify.verdict import Verdict

pytestmark = [pytest.mark.spark, pytest.mark.network, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run in which a member and then the active relay die, by kill -9."""
    folder = tmp_path_factory.mktemp("group")
    with (
        managed_zookeeper(settings=QUICK) as server,
        view_cluster(server.address, "killed", folder) as cluster,
    ):
        relay = cluster.add_relay("--loss", "0.01")
        cluster.add_relay()
        one, other, victim = (cluster.add_member(3) for _ in range(3))
        busy(one)
        victim.kill()
        gone = victim.events("entered")[0]["me"]
        until(lambda: all(gone not in m.events("view")[-1]["members"] for m in (one, other)))
        busy(other)
        before = max(member.events("view")[-1]["number"] for member in (one, other))
        relay.kill()
        until(lambda: all(m.events("view")[-1]["number"] > before for m in (one, other)))
        busy(one)
        rest(one, other)
        assert all(member.delivered() for member in cluster.members)
        return cluster.trace


def _on_spark(spark: SparkSession, source: Path) -> tuple[Report, pa.Table]:
    with audit_source(spark, str(source)) as found:
        return found.report, merge([found.violations.toArrow().cast(VIOLATIONS)])


def test_a_member_and_the_relay_die_and_the_order_holds(spark: SparkSession, traces: Path) -> None:
    report, violations = _on_spark(spark, traces)
    assert violations.to_pylist() == []
    assert report.verdict is Verdict.VALID
    assert {c.id for c in report.checks if c.promised} >= {"W1", "C1", "O2", *TOTAL_ORDER_CHECKS}
    assert report == audit(open_source(traces))[0]
    table = read_trace(traces)
    incarnations = pc.unique(table.column("incarnation").drop_null())
    assert len(incarnations) == 2, "both relays have carried something"
    ended = table.filter(pc.equal(table.column("kind"), "end")).column("process").to_pylist()
    assert len(ended) == len(set(table.column("process").to_pylist())) - 1 == 2


def test_one_swap_in_that_run_is_a_violation(
    spark: SparkSession, traces: Path, tmp_path: Path
) -> None:
    table = read_trace(traces)
    ended = table.filter(pc.equal(table.column("kind"), "end")).column("process").to_pylist()
    write_trace(tmp_path / "swapped.parquet", swapped(table, *ended))
    report, violations = _on_spark(spark, tmp_path)
    assert report.verdict is Verdict.INVALID
    assert "T1" in violations.column("check").to_pylist()
    expected, rows = audit(open_source(tmp_path))
    assert report == expected
    assert violations.to_pylist() == rows.to_pylist()
