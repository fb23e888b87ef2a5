"""The metrics job against the same figures worked out one event after the other."""

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from orderwire.pipeline.event_source import open_events
from orderwire.pipeline.lake import Lake, spark_schema
from orderwire.pipeline.metrics import count_destinations, event_steps, run_metrics, window_totals
from orderwire.pipeline.metrics_model import (
    Counts,
    RunMetrics,
    Spread,
    as_json,
    metric_rows,
    nice_window_ns,
)
from orderwire.pipeline.metrics_stream import start_window_metrics
from orderwire.pipeline.tables import TABLES
from orderwire.trace.errors import TraceError
from orderwire.trace.reader import write_trace
from orderwire.verify.synthetic import Faults, SyntheticSettings, synthetic_table

FAULTS = Faults(
    delayed=0.05, lost=0.03, vanished=0.02, late=0.04, doubled=0.02, expired=0.03, overtaken=0.02
)
MS = 1_000_000


@pytest.fixture(scope="module")
def trace() -> pa.Table:
    """Two runs of ten members with every fault."""
    made = [
        synthetic_table(
            SyntheticSettings(events=4_000, members=10, seed=seed, run_id=f"r{seed}", faults=FAULTS)
        )
        for seed in (1, 2)
    ]
    return pa.concat_tables(made)


@pytest.fixture(scope="module")
def measured(
    spark: SparkSession, trace: pa.Table, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, RunMetrics]:
    file = tmp_path_factory.mktemp("trace") / "trace.parquet"
    write_trace(file, trace)
    runs = run_metrics(open_events(spark, str(file)), window_ns=20 * MS, waiting=True)
    return {run.run_id: run for run in runs}


def members_in(mask: bytes) -> list[int]:
    number = int.from_bytes(mask, "little")
    return [bit for bit in range(number.bit_length()) if number >> bit & 1]


def by_hand(trace: pa.Table, run_id: str, member: int | None) -> dict[str, int]:
    """Counts of one member, or of the run when None."""
    counts: Counter[str] = Counter()
    seen = set()
    for row in trace.to_pylist():
        if row["run_id"] != run_id:
            continue
        if row["kind"] == "send":
            meant = members_in(row["destinations"])
            counts["written"] += sum(member in (None, m) for m in meant)
        if member not in (None, row["process"]):
            continue
        match row["kind"]:
            case "send":
                counts["messages"] += 1
                counts["copies"] += len(meant)
                counts["control_bytes_sent"] += row["control_bytes"]
                counts["payload_bytes_sent"] += row["payload_bytes"] * len(meant)
            case "deliver":
                copy = (row["process"], row["source"], row["number"])
                counts["delivered" if copy not in seen else "delivered_again"] += 1
                counts["held"] += row["clock_ns"] - row["arrived_ns"] >= 1_000
                seen.add(copy)
            case "discard":
                counts[row["reason"]] += 1
            case "lost":
                counts["lost_reported"] += row["number"]
    settled = ("delivered", "late", "expired", "overtaken")
    counts["lost"] = counts["written"] - sum(counts[name] for name in settled)
    return counts


def delays_us(trace: pa.Table, run_id: str, process: int | None = None) -> np.ndarray:
    return np.array(
        [
            (row["clock_ns"] - row["stamp_ns"]) // 1_000
            for row in trace.to_pylist()
            if row["run_id"] == run_id
            and row["kind"] == "deliver"
            and process in (None, row["process"])
        ]
    )


@pytest.mark.spark
def test_counts_of_runs_and_members(measured: dict[str, RunMetrics], trace: pa.Table) -> None:
    for run_id, run in measured.items():
        cases: list[tuple[int | None, Counts]] = [(None, run.total), *run.members.items()]
        for member, counts in cases[:4]:
            expected = by_hand(trace, run_id, member)
            assert {name: getattr(counts, name) for name in expected} == expected
            assert counts.late * counts.expired * counts.overtaken > 0
        assert run.total.delivered_again > 0
        assert run.total.lost_reported > 0
        assert run.total.written == run.total.copies
        assert sorted(run.members) == list(range(10))
        assert (run.algorithm, run.lifetime_ms) == ("jang-delta", 60.0)


@pytest.mark.spark
def test_percentiles_are_exact(measured: dict[str, RunMetrics], trace: pa.Table) -> None:
    for member in (None, 3):
        values = delays_us(trace, "r1", member)
        run = measured["r1"]
        spread = (run.total if member is None else run.members[member]).delay_ms
        assert spread == Spread(
            samples=len(values),
            min=values.min() / 1_000,
            p50=round(float(np.quantile(values, 0.5)) / 1_000, 6),
            p90=round(float(np.quantile(values, 0.9)) / 1_000, 6),
            p99=round(float(np.quantile(values, 0.99)) / 1_000, 6),
            max=values.max() / 1_000,
            mean=round(float(values.mean()) / 1_000, 6),
        )


@pytest.mark.spark
def test_windows_add_up_to_the_run(measured: dict[str, RunMetrics]) -> None:
    for run in measured.values():
        assert len(run.windows) > 5
        for name in ("messages", "copies", "delivered", "late", "expired", "overtaken"):
            whole = getattr(run.total, name) + (name == "delivered") * run.total.delivered_again
            assert sum(getattr(window, name) for window in run.windows) == whole
        assert sum(w.control_bytes for w in run.windows) == run.total.control_bytes_sent
        assert sum(w.payload_bytes for w in run.windows) == run.total.payload_bytes_sent
        assert all(window.start_ns % run.window_ns == 0 for window in run.windows)
        middle = run.windows[len(run.windows) // 2]
        assert middle.delay_p50_ms is not None
        assert 15 <= middle.delay_p50_ms <= 40


@pytest.mark.spark
def test_sketches_of_windows_merge_to_the_run(spark: SparkSession, trace: pa.Table) -> None:
    one = trace.filter(pa.compute.equal(trace.column("run_id"), "r1"))
    windows = window_totals(event_steps(spark.createDataFrame(one)), 20 * MS)
    merged = windows.where("delays > 0").selectExpr(
        "kll_sketch_get_quantile_bigint(kll_merge_agg_bigint(sketch), 0.9) AS p90",
        "sum(delays) AS delays",
    )
    (row,) = merged.collect()
    values = delays_us(trace, "r1")
    rank = float(np.mean(values <= row.p90))
    assert row.delays == len(values)
    assert 0.87 <= rank <= 0.96 or row.p90 == np.quantile(values, 0.9)


@pytest.mark.spark
def test_waiting_tells_needed_from_needless(measured: dict[str, RunMetrics]) -> None:
    waiting = measured["r1"].waiting
    assert waiting is not None
    assert waiting.deliveries > 1_000
    assert waiting.premature > 0  # the trace delivers at arrival, also what was overtaken
    assert waiting.forced_max_ms > 0


@pytest.mark.spark
def test_result_is_a_table_and_a_document(measured: dict[str, RunMetrics], tmp_path: Path) -> None:
    rows = metric_rows(list(measured.values()))
    assert rows.schema.equals(TABLES["metrics"].schema)
    lake = Lake(tmp_path)
    lake.append_table("metrics", rows, "metrics", 0)
    kept = lake.read_arrow("metrics").to_pylist()
    (p99,) = [
        row["value"]
        for row in kept
        if (row["run_id"], row["metric"], row["member"]) == ("r1", "delay_p99", None)
        and row["window_ns"] is None
    ]
    run = measured["r1"]
    assert run.total.delay_ms is not None
    assert p99 == run.total.delay_ms.p99
    document = as_json([run])["runs"]
    assert isinstance(document, list)
    assert document[0]["held_share"] == run.total.held_share
    assert document[0]["members"][3]["member"] == 3
    assert "sketch" not in document[0]["windows"][0]


@pytest.mark.spark
def test_every_place_of_a_trace_gives_the_same_events(
    spark: SparkSession, trace: pa.Table, tmp_path: Path
) -> None:
    small = trace.slice(0, 500)
    folder = tmp_path / "folder"
    folder.mkdir()
    write_trace(folder / "a.arrow", small.slice(0, 200))
    write_trace(folder / "b.parquet", small.slice(150))  # 50 events in both
    lake = Lake(tmp_path / "lake")
    lake.append_table("events", small, "job", 0)
    assert {
        open_events(spark, str(p)).count() for p in (folder, lake.root, lake.path("events"))
    } == {500}
    for nothing in (tmp_path / "no.parquet", lake.path("dests"), tmp_path / "lake" / "_none"):
        with pytest.raises(TraceError):
            open_events(spark, str(nothing))


@pytest.mark.spark
def test_a_stream_keeps_each_closed_window_once(
    spark: SparkSession, trace: pa.Table, tmp_path: Path
) -> None:
    one = trace.filter(pa.compute.equal(trace.column("run_id"), "r1")).sort_by("time_ns")
    source = tmp_path / "source"
    source.mkdir()
    write_trace(source / "a.parquet", one.slice(0, 1_500))
    write_trace(source / "b.parquet", one.slice(1_200))  # 300 events twice
    lake, checkpoint = Lake(tmp_path / "lake"), tmp_path / "checkpoint"
    files = spark.readStream.schema(spark_schema("events")).option("maxFilesPerTrigger", 1)
    for _ in range(2):  # the second time there is nothing new
        query = start_window_metrics(
            files.parquet(str(source)),
            lake,
            checkpoint,
            window="2 milliseconds",
            lateness="10 milliseconds",
        )
        query.awaitTermination()
    kept = {
        (row["window_start_ns"], row["metric"]): row
        for row in lake.read_arrow("metrics").to_pylist()
    }
    assert len(kept) == lake.rows("metrics")
    expected = window_totals(event_steps(spark.createDataFrame(one)), 2 * MS).collect()
    last = max(row.window_start_ns for row in expected)
    closed = [row for row in expected if row.window_start_ns < last - 100 * MS]
    assert len(closed) > 10
    for row in closed:
        for metric in ("messages", "copies", "delivered", "late", "expired", "overtaken"):
            assert kept[row.window_start_ns, metric]["value"] == row[metric]
        if row.delays:
            found = kept[row.window_start_ns, "delay_p50"]
            assert (found["value"], found["samples"]) == (row.delay_p50_us, row.delays)
            assert found["sketch"]


def test_destinations_are_counted_in_bulk() -> None:
    batch = pa.record_batch(
        {"run_id": ["a", "b", "a"], "destinations": [b"\x03", b"\x01", b"\x81"]}
    )
    (made,) = count_destinations([batch])
    assert {(r["run_id"], r["process"]): r["written"] for r in made.to_pylist()} == {
        ("a", 0): 2,
        ("a", 1): 1,
        ("a", 7): 1,
        ("b", 0): 1,
    }
    empty = pa.record_batch({"run_id": ["a"], "destinations": [b""]})
    assert list(count_destinations([empty])) == []


@pytest.mark.parametrize(
    ("duration", "window"), [(0, MS), (60 * MS, MS), (61 * MS, 2 * MS), (120_000 * MS, 2_000 * MS)]
)
def test_windows_are_round(duration: int, window: int) -> None:
    assert nice_window_ns(duration) == window
