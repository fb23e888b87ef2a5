"""The audit: CPU an event in the kernels, in one process, and on Spark, from 10⁵ to 10⁷ events.

`kernel` is all checks of a slice that is in memory; `one_process` reads the same Parquet file slice
by slice; `spark` is the default shape (tasks read their own slices), `shuffled` the one for tables
without files.  Spark's CPU is that of the JVM and of Python's workers and of what the driver does,
in a session that has audited before; what its first audit costs is told by itself.
`discovery` is the same for traces of domains: one process and Spark.
Every contestant must find the same violations.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from harness import arguments, report
from pyspark.sql import SparkSession

from orderwire.pipeline.audit_jobs import audit_files, audit_frame
from orderwire.pipeline.session import SessionSettings, spark_session
from orderwire.trace.schema import arrow_schema, spark_ddl
from orderwire.verify.audit import audit, plan_run
from orderwire.verify.discovery_synthetic import (
    DomainFaults,
    DomainSettings,
    synthetic_domain_batches,
)
from orderwire.verify.group_synthetic import GroupTraceSettings, synthetic_group_batches
from orderwire.verify.kernels.slices import audit_slice
from orderwire.verify.kernels.survey import SURVEYED, survey
from orderwire.verify.report import Report
from orderwire.verify.source import ParquetSource, settings_of
from orderwire.verify.synthetic import Faults, SyntheticSettings, synthetic_batches

SIZES = (100_000, 1_000_000, 2_000_000, 10_000_000)
QUICK_SIZES = (20_000, 100_000)
MEMBERS = (5, 20, 100, 200)
PARTICIPANTS = (128, 256, 512)
QUICK_PARTICIPANTS = (32, 64)
HEARTBEATS = 2
"""Of each participant: most events of a domain are broadcasts that say nothing new."""
DOMAIN_FAULTS = DomainFaults(unheard=0.0001, outdated=0.0001, immortal=0.001)
MEMBERS_EVENTS = 400_000
WARM_EVENTS = 500_000
"""The session's first audit, told by itself: enough events for a worker on each core."""
SHUFFLED_EVENTS_MAX = 1_000_000
ROW_GROUP_EVENTS = 131_072
FAULTS = Faults(delayed=0.0001, lost=0.001, vanished=0.00001, late=0.001, doubled=0.00001)
TARGETS = {
    "kernel_us_per_event_max": 2.0,
    "spark_cpu_over_one_process_max": 1.5,
    "doubling_cpu_max": 2.2,
}
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """One audit of one trace."""

    wall_s: float
    cpu_s: float
    driver_s: float
    """Of it, this process."""


def make_trace(
    path: Path, settings: SyntheticSettings | DomainSettings | GroupTraceSettings
) -> None:
    """Write a trace in the order of time."""
    match settings:
        case SyntheticSettings():
            batches = synthetic_batches(settings)
        case DomainSettings():
            batches = synthetic_domain_batches(settings)
        case GroupTraceSettings():
            batches = synthetic_group_batches(settings)
    with pq.ParquetWriter(path, arrow_schema(), compression="zstd") as writer:
        for batch in batches:
            writer.write_table(pa.Table.from_batches([batch]), row_group_size=ROW_GROUP_EVENTS)


def children_cpu_s() -> float:
    """CPU of all processes below this one, their finished children included."""
    parents: dict[int, list[int]] = {}
    cpu: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents.setdefault(int(fields[1]), []).append(int(entry.name))
        cpu[int(entry.name)] = sum(int(value) for value in fields[11:15])
    total, todo = 0, list(parents.get(os.getpid(), ()))
    while todo:
        process = todo.pop()
        total += cpu[process]
        todo += parents.get(process, ())
    return total / _TICKS_PER_S


def measured(work: Callable[[], Report]) -> tuple[Cost, Report]:
    """Run an audit; CPU of this process and of all below it."""
    wall, own, below = time.perf_counter(), time.process_time(), children_cpu_s()
    found = work()
    driver_s = time.process_time() - own
    below_s = children_cpu_s() - below
    wall_s = time.perf_counter() - wall
    return Cost(wall_s=wall_s, cpu_s=driver_s + below_s, driver_s=driver_s), found


def kernel_cpu_s(path: Path) -> float:
    """CPU of the kernels alone: all slices of a trace, each read before its time is taken."""
    source = ParquetSource([str(path)])
    (surveyed,) = survey(source.batches(SURVEYED, None)).values()
    settings, _ = settings_of(source.starts(), surveyed.run_id)
    assert settings is not None
    total = 0.0
    for piece in plan_run(surveyed, settings):
        table = source.read(piece.run_id, piece.view_low, piece.view_high)
        before = time.process_time()
        audit_slice(table, piece, settings)
        total += time.process_time() - before
    return total


def one_process(path: Path) -> Report:
    """Audit without an engine."""
    return audit(ParquetSource([str(path)]))[0]


def on_spark(spark: SparkSession, path: Path) -> Report:
    """Audit in the default shape."""
    with audit_files(spark, [str(path)]) as found:
        return found.report


def shuffled(spark: SparkSession, path: Path) -> Report:
    """Audit in the shape for tables without files."""
    frame = spark.read.schema(spark_ddl()).parquet(str(path))
    with audit_frame(frame) as found:
        return found.report


def compare(
    spark: SparkSession, path: Path, repeats: int, *, ordered: bool
) -> tuple[dict[str, Any], dict[str, float]]:
    """Audit one trace with every contestant, in turn; kernels alone where it is of order."""
    events = pq.read_metadata(path).num_rows
    contestants: dict[str, Callable[[], Report]] = {
        "one_process": lambda: one_process(path),
        "spark": lambda: on_spark(spark, path),
    }
    if events <= SHUFFLED_EVENTS_MAX:
        contestants["shuffled"] = lambda: shuffled(spark, path)
    costs: dict[str, list[Cost]] = {name: [] for name in contestants}
    kernels, reports = [], []
    for _ in range(repeats):
        for name, work in contestants.items():
            cost, found = measured(work)
            costs[name].append(cost)
            reports.append(found)
        if ordered:
            kernels.append(kernel_cpu_s(path))
    assert all(found == reports[0] for found in reports), "contestants differ in what they found"
    count = reports[0].runs[0].events
    row: dict[str, Any] = {
        "events": count,
        "violations": {check.id: check.violations for check in reports[0].checks},
    }
    if kernels:
        row["kernel_us_per_event"] = round(1e6 * statistics.median(kernels) / count, 3)
    for name, runs in costs.items():
        cpu = statistics.median(run.cpu_s for run in runs)
        row[name] = {
            "cpu_s": round(cpu, 2),
            "cpu_us_per_event": round(1e6 * cpu / count, 3),
            "driver_cpu_s": round(statistics.median(run.driver_s for run in runs), 2),
            "wall_s": round(statistics.median(run.wall_s for run in runs), 2),
        }
    ratios = {
        name: round(
            statistics.median(
                run.cpu_s / base.cpu_s
                for run, base in zip(costs[name], costs["one_process"], strict=True)
            ),
            3,
        )
        for name in costs
        if name != "one_process"
    }
    return row, ratios


def by_members(folder: Path, events: int) -> dict[str, float]:
    """Kernel CPU an event for groups of several sizes."""
    found = {}
    for members in MEMBERS:
        path = folder / f"members-{members}.parquet"
        settings = SyntheticSettings(events=events, members=members, faults=FAULTS)
        make_trace(path, settings)
        found[str(members)] = round(1e6 * min(kernel_cpu_s(path) for _ in range(2)) / events, 3)
        path.unlink()
    return found


def main() -> int:
    """Run the benchmark."""
    options = arguments(__doc__, repeats=3).parse_args()
    sizes = QUICK_SIZES if options.quick else SIZES
    rows: dict[str, Any] = {}
    ratios: dict[str, float] = {}
    one: dict[int, float] = {}
    settings = SessionSettings(name="orderwire-benchmark")
    with tempfile.TemporaryDirectory() as name, spark_session(settings) as spark:
        folder = Path(name)
        warm = folder / "warm.parquet"
        make_trace(warm, SyntheticSettings(events=WARM_EVENTS))
        first, _ = measured(lambda: on_spark(spark, warm))
        shuffled(spark, warm)
        for events in sizes:
            path = folder / f"{events}.parquet"
            make_trace(path, SyntheticSettings(events=events, faults=FAULTS))
            repeats = 1 if events > 2_000_000 else options.repeats
            row, over = compare(spark, path, repeats, ordered=True)
            path.unlink()
            rows[str(events)], one[events] = row, row["one_process"]["cpu_s"]
            ratios |= {f"{k}_cpu_over_one_process_{events}": value for k, value in over.items()}
        members = by_members(folder, MEMBERS_EVENTS if not options.quick else 40_000)
        domains: dict[str, Any] = {}
        for participants in QUICK_PARTICIPANTS if options.quick else PARTICIPANTS:
            path = folder / f"domain-{participants}.parquet"
            settings_of_domain = DomainSettings(
                participants=participants, heartbeats=HEARTBEATS, faults=DOMAIN_FAULTS
            )
            make_trace(path, settings_of_domain)
            row, over = compare(spark, path, options.repeats, ordered=False)
            path.unlink()
            domains[str(participants)] = row
            ratios |= {
                f"{k}_cpu_over_one_process_domain_{participants}": value
                for k, value in over.items()
            }
    for events in sizes:
        if 2 * events in one:
            ratios[f"one_process_cpu_doubling_{events}"] = round(one[2 * events] / one[events], 3)
    report(
        "audit",
        ours={
            "by_events": rows,
            "kernel_us_per_event_by_members": members,
            "discovery_by_participants": domains,
            "first_audit_of_a_session": {"events": WARM_EVENTS, **msgspec.to_builtins(first)},
            "targets": TARGETS,
        },
        rivals={},
        ratios=ratios,
        repeats=options.repeats,
        as_json=options.json,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
