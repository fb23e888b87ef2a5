"""The audit of replication: CPU a row, in one process and on Spark, to a million rows of history.

Histories are those of simulated partitions, the real cores of all three modes under drawn faults,
with their producers' batches multiplied.  A size is made of such histories, repeated under other
runs' names; beside it, one partition alone is made longer and longer.  Broken twins are among them,
and every contestant has to say the same sentences.  Spark's CPU is that of the JVM, of Python's
workers and of the driver, in a session that has audited before.
"""

import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from harness import arguments, report
from pyspark.sql import SparkSession

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from audit import Cost, measured
from replication_cores import CORES
from replication_histories import broken, history
from replication_shapes import drawn_run

from orderwire.broker.replication.settings import Mode
from orderwire.pipeline.replication_audit import findings_of, history_frame, report_of
from orderwire.pipeline.replication_source import read_histories
from orderwire.pipeline.session import SessionSettings, spark_session
from orderwire.sim.replication_run import run_replication
from orderwire.trace.replication_schema import history_schema
from orderwire.verify.replication import Event
from orderwire.verify.replication_audit import TITLES, HistoryReport, audit_table
from orderwire.verify.replication_history import batches_from

SIZES = (250_000, 1_000_000)
QUICK_SIZES = (10_000, 20_000)
SEEDS = range(3)
TIMES = 40
"""How many times as many batches as usual the producers of a partition have."""
LONG_TIMES = (40, 160)
QUICK_TIMES = (5, 10)
LONG_SEED = 3
ROW_GROUP_ROWS = 16_384
TARGETS = {"spark_cpu_over_one_process_max": 1.5, "cpu_a_row_larger_over_smaller_max": 1.1}


def simulated(mode: Mode, seed: int, times: int) -> list[Event]:
    """A partition's history, with so many times as many batches."""
    shape = drawn_run(seed, mode)
    producers = tuple(
        msgspec.structs.replace(each, batches=each.batches * times)
        for each in shape.world.producers
    )
    world = msgspec.structs.replace(shape.world, producers=producers)
    settings = msgspec.structs.replace(shape, world=world)
    return run_replication(CORES[mode], settings, f"{seed}").history


def tables(times: int, seeds: range) -> list[pa.Table]:
    """Histories of all modes, and one broken twin for each invariant."""
    found: list[pa.Table] = []

    def add(run: str, partition: int, events: list[Event]) -> None:
        batches = list(batches_from(run, "t", partition, events))
        found.append(pa.Table.from_batches(batches, history_schema()))

    for mode in Mode:
        for seed in seeds:
            add(mode.value, seed, simulated(mode, seed, times))
    whole = history(Random(1))
    for number, invariant in enumerate(TITLES):
        add(f"broken {invariant}", number, broken(invariant, whole, Random(1)))
    return found


def pieces(base: list[pa.Table], rows: int) -> Iterator[pa.Table]:
    """The same histories under other names, until there are so many rows."""
    written, turn = 0, 0
    while True:
        for table in base:
            name = pa.array([f"{table.column('run_id')[0]}/{turn}"] * table.num_rows, pa.string())
            yield table.set_column(0, history_schema().field("run_id"), name)
            written += table.num_rows
            if written >= rows:
                return
        turn += 1


def write(path: Path, found: Iterator[pa.Table]) -> int:
    """Write a file; returns its rows."""
    rows = 0
    with pq.ParquetWriter(path, history_schema(), compression="zstd") as writer:
        for table in found:
            writer.write_table(table.cast(history_schema()), row_group_size=ROW_GROUP_ROWS)
            rows += table.num_rows
    return rows


def one_process(path: Path) -> HistoryReport:
    """Audit without an engine."""
    return audit_table(read_histories(str(path)))


def on_spark(spark: SparkSession, path: Path) -> HistoryReport:
    """Audit on Spark."""
    with history_frame(spark, str(path)) as frame:
        return report_of(findings_of(frame))


def compare(spark: SparkSession, path: Path, rows: int, repeats: int) -> dict[str, Any]:
    """Both, in turn."""
    contestants: dict[str, Callable[[], HistoryReport]] = {
        "one_process": lambda: one_process(path),
        "spark": lambda: on_spark(spark, path),
    }
    costs: dict[str, list[Cost]] = {name: [] for name in contestants}
    reports: list[Any] = []
    for _ in range(repeats):
        for name, work in contestants.items():
            cost, found = measured(work)
            costs[name].append(cost)
            reports.append(found)
    assert all(found == reports[0] for found in reports), "contestants differ in what they found"
    row: dict[str, Any] = {
        "rows": rows,
        "partitions": len(reports[0].partitions),
        "violations": {check.id: check.violations for check in reports[0].checks},
    }
    for name, runs in costs.items():
        cpu = statistics.median(run.cpu_s for run in runs)
        row[name] = {
            "cpu_s": round(cpu, 2),
            "cpu_us_per_row": round(1e6 * cpu / rows, 2),
            "driver_cpu_s": round(statistics.median(run.driver_s for run in runs), 2),
            "wall_s": round(statistics.median(run.wall_s for run in runs), 2),
            "rows_per_s": round(rows / statistics.median(run.wall_s for run in runs)),
        }
    print(row, file=sys.stderr, flush=True)
    return row


def main() -> int:
    """Run the benchmark."""
    options = arguments(__doc__, repeats=1).parse_args()
    sizes = QUICK_SIZES if options.quick else SIZES
    by_rows: dict[str, Any] = {}
    by_length: dict[str, Any] = {}
    base = tables(2 if options.quick else TIMES, range(2) if options.quick else SEEDS)
    settings = SessionSettings(name="orderwire-benchmark", memory_mib=1_024)
    with tempfile.TemporaryDirectory() as name, spark_session(settings) as spark:
        folder = Path(name)
        warm = folder / "warm.parquet"
        write(warm, pieces(base, sizes[0] // 2))
        on_spark(spark, warm)
        for size in sizes:
            path = folder / f"{size}.parquet"
            rows = write(path, pieces(base, size))
            by_rows[str(size)] = compare(spark, path, rows, options.repeats)
            path.unlink()
        for times in QUICK_TIMES if options.quick else LONG_TIMES:
            path = folder / f"long-{times}.parquet"
            events = simulated(Mode.ACTIVE_ACTIVE, LONG_SEED, times)
            batches = list(batches_from("long", "t", 0, events))
            rows = write(path, iter([pa.Table.from_batches(batches, history_schema())]))
            by_length[str(times)] = compare(spark, path, rows, options.repeats)
            path.unlink()
    ratios = {
        f"spark_cpu_over_one_process_{size}": round(
            row["spark"]["cpu_s"] / row["one_process"]["cpu_s"], 3
        )
        for size, row in by_rows.items()
    }
    for kind, found in (("", by_rows), ("one_partition_", by_length)):
        for smaller, larger in zip(list(found.values()), list(found.values())[1:], strict=False):
            for engine in ("one_process", "spark"):
                more = larger["rows"] / smaller["rows"]
                ratios[f"{kind}{engine}_cpu_a_row_{larger['rows']}_over_{smaller['rows']}"] = round(
                    larger[engine]["cpu_s"] / smaller[engine]["cpu_s"] / more, 3
                )
    report(
        "replication_audit",
        ours={"by_rows": by_rows, "one_partition": by_length, "targets": TARGETS},
        rivals={},
        ratios=ratios,
        repeats=options.repeats,
        as_json=options.json,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
