"""The audit on Spark: slices go out, findings come back; the kernels are those of `verify`.

Default shape: a list of slices, and tasks that read their own time range from Parquet files, so
that no event passes through the JVM.  For DataFrames without files: events are copied to the
slices that must see them and shuffled by slice.  Both find exactly what one process finds.
"""

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from orderwire.pipeline.audit_source import find_source
from orderwire.pipeline.audit_tasks import (
    EXAMPLES_PART,
    EXTRA_COUNTS_PART,
    FOUND_DDL,
    VIOLATIONS_PART,
    Task,
    audit_from_files,
    audit_from_rows,
    examples_of,
    task_rows,
    unpack,
    violations_of,
)
from orderwire.trace.events import EventKind, RunSettings
from orderwire.trace.schema import arrow_schema, spark_ddl
from orderwire.verify.audit import AuditOptions, contradictions
from orderwire.verify.kernels.columns import NEEDED, TIME_MAX, TIME_MIN
from orderwire.verify.kernels.slices import (
    LENGTH_WINDOWS_MIN,
    Extent,
    Slice,
    bucket_ns,
    events_target,
    plan_slices,
)
from orderwire.verify.kernels.violations import merge
from orderwire.verify.report import (
    EXAMPLES_MAX,
    Found,
    Report,
    RunReport,
    combine,
    conclude,
    example_rows,
)
from orderwire.verify.settle import Settled, join_parts, settle
from orderwire.verify.source import ParquetSource, TraceSource, settings_of, window_of

VIOLATIONS_DDL = (
    "run_id string, check string, kind string, process int, position bigint, time_ns bigint, "
    "source int, number bigint, witness_source int, witness_number bigint, "
    "witness_position bigint, detail string"
)
TASKS_PER_CORE = 4
"""Tasks to each core: enough to even out slices of different cost."""
PARTITIONS_MAX = 2_000


@dataclass(frozen=True, slots=True)
class SparkAudit:
    """What an audit found; `violations` is lazy and reads cached findings."""

    report: Report
    violations: DataFrame
    """One row a violation, columns as in the lake's table of that name."""


@contextmanager
def audit_source(
    spark: SparkSession, text: str, options: AuditOptions | None = None
) -> Iterator[SparkAudit]:
    """Audit what `orderwire audit` names: a file, a folder, a lake, or TOPIC@HOST:PORT.

    What is no Parquet yet is written as Parquet to a temporary folder first.
    """
    source = find_source(text)
    with tempfile.TemporaryDirectory(prefix="orderwire-audit-") as folder:
        if isinstance(source, ParquetSource):
            files, versioned = source.files, source.versioned
        else:
            files, versioned = [_as_parquet(source, Path(folder))], True
        with audit_files(spark, files, options, versioned=versioned) as found:
            yield found


@contextmanager
def audit_files(
    spark: SparkSession,
    files: Sequence[str],
    options: AuditOptions | None = None,
    *,
    versioned: bool = True,
) -> Iterator[SparkAudit]:
    """Audit a trace in Parquet files that every worker can read: the default shape."""
    options = options or AuditOptions()
    events = spark.read.schema(spark_ddl()).parquet(*files)
    plans = _plan(events, options)
    work = partial(audit_from_files, files=tuple(files), versioned=versioned)

    def run(tasks: Sequence[Task]) -> DataFrame:
        cores = spark.sparkContext.defaultParallelism
        partitions = min(len(tasks), TASKS_PER_CORE * cores)
        rows = spark.createDataFrame(task_rows(tasks))
        return rows.repartition(partitions).mapInArrow(work, FOUND_DDL)

    with _audited(spark, plans, options, run) as found:
        yield found


@contextmanager
def audit_frame(events: DataFrame, options: AuditOptions | None = None) -> Iterator[SparkAudit]:
    """Audit a trace in any DataFrame with the trace's columns, by a shuffle."""
    options = options or AuditOptions()
    if options.waiting or options.clocks:
        raise ValueError("waiting and clocks need files: write the trace to Parquet first")
    spark = events.sparkSession
    plans = {run: _regular(plan, options) for run, plan in _plan(events, options).items()}

    def run(tasks: Sequence[Task]) -> DataFrame:
        return _shuffled(events, tasks)

    with _audited(spark, plans, options, run) as found:
        yield found


@dataclass(frozen=True, slots=True)
class _Plan:
    """How to audit one run."""

    extent: Extent
    settings: RunSettings | None
    assumed: RunSettings
    odd: pa.Table
    slices: list[Slice]

    def tasks(self) -> list[Task]:
        return [Task(piece=piece, settings=self.assumed) for piece in self.slices]

    def whole(self) -> Task:
        return Task(piece=Slice(run_id=self.extent.run_id), settings=self.assumed)


def _plan(events: DataFrame, options: AuditOptions) -> dict[str, _Plan]:
    """Scan the trace for what the plans of all its runs need."""
    age = F.col("time_ns") - F.col("stamp_ns")
    kind = F.col("kind")
    extents = (
        events.groupBy("run_id")
        .agg(
            F.count("*").alias("events"),
            F.min("time_ns").alias("first"),
            F.max("time_ns").alias("last"),
            F.max(F.when(kind == EventKind.DELIVER.value, age)).alias("age"),
            F.max(F.when(kind == EventKind.SEND.value, -age)).alias("ahead"),
            F.max(F.when(F.col("process") < 4096, F.col("process"))).alias("process"),
        )
        .toArrow()
        .sort_by("run_id")  # here, and not by a shuffle
        .to_pylist()
    )
    starts = (
        events.where(kind == EventKind.START.value)
        .select("run_id", "process", "position", "detail")
        .toArrow()
    )
    known = {}
    for row in extents:
        window = window_of(*(TIME_MIN if row[name] is None else row[name] for name in _WINDOW))
        run_id = row["run_id"]
        extent = Extent(run_id, row["events"], row["first"], row["last"], window)
        settings, odd = settings_of(starts, run_id)
        assumed = settings or RunSettings(algorithm="", members=max(0, row["process"] or 0) + 1)
        known[run_id] = _Plan(extent, settings, assumed, odd, [Slice(run_id=run_id)])
    return known | _cut(events, known, options)


_WINDOW = ("age", "ahead")


def _cut(events: DataFrame, plans: Mapping[str, _Plan], options: AuditOptions) -> dict[str, _Plan]:
    """Cut the long runs among these, by counting their events in buckets of time."""
    targets = {
        run: options.slice_events or events_target(plan.assumed.members)
        for run, plan in plans.items()
        if plan.settings is not None and plan.settings.clock == "shared"
    }
    long = [run for run, target in targets.items() if plans[run].extent.events >= 2 * target]
    if not long:
        return {}
    extents = [plans[run].extent for run in long]
    widths = pa.table(
        {
            "run_id": long,
            "first": [extent.first_ns for extent in extents],
            "width": [bucket_ns(extent) for extent in extents],
        }
    )
    bucket = F.expr("(time_ns - first) div width").alias("bucket")
    counted = (
        events.select("run_id", "time_ns")
        .join(F.broadcast(events.sparkSession.createDataFrame(widths)), "run_id")
        .groupBy("run_id", bucket)
        .count()
        .toArrow()
        .sort_by("bucket")
    )
    cut = {}
    for run, extent in zip(long, extents, strict=True):
        mine = counted.filter(pa.compute.equal(counted.column("run_id"), run))
        buckets = mine.column("bucket").to_numpy() * bucket_ns(extent) + extent.first_ns
        counts = mine.column("count").to_numpy()
        slices = plan_slices(extent, plans[run].settings, buckets, counts, targets[run])
        cut[run] = replace(plans[run], slices=slices)
    return cut


def _regular(plan: _Plan, options: AuditOptions) -> _Plan:
    """Cut the run into slices of equal length, so that SQL can tell an event's slices."""
    if len(plan.slices) < 2:
        return plan
    extent, settings = plan.extent, plan.assumed
    length = extent.last_ns - extent.first_ns + 1
    target = options.slice_events or events_target(settings.members)
    shortest = LENGTH_WINDOWS_MIN * (extent.window_ns + 2 * settings.epsilon_ns)
    step = max(shortest, -(-length * target // extent.events), 1)
    cuts = list(range(extent.first_ns + step, extent.last_ns + 1, step))
    edges = [TIME_MIN, *cuts, TIME_MAX]
    slices = [
        Slice(
            run_id=extent.run_id,
            low=low,
            high=high,
            window_ns=extent.window_ns,
            epsilon_ns=settings.epsilon_ns,
        )
        for low, high in pairwise(edges)
    ]
    return replace(plan, slices=slices)


def _shuffled(events: DataFrame, tasks: Sequence[Task]) -> DataFrame:
    """Copy every event to the slices that must see it, bring each slice together, audit it."""
    spark = events.sparkSession
    numbered = dict(enumerate(tasks))
    runs: dict[str, dict[str, int | str]] = {}
    for number, task in numbered.items():
        piece = task.piece
        row = runs.setdefault(
            piece.run_id,
            {"run_id": piece.run_id, "base": number, "count": 0, "origin": 0, "step": 1},
        )
        row["count"] = number - int(row["base"]) + 1
        row["back"], row["ahead"] = piece.epsilon_ns, piece.window_ns + piece.epsilon_ns
        if row["count"] == 2:  # the second slice is the first with two real ends, or the last
            row["origin"] = piece.low
            row["step"] = piece.high - piece.low if piece.high != TIME_MAX else TIME_MAX
    plan = F.broadcast(spark.createDataFrame(pa.Table.from_pylist(list(runs.values()))))
    # Slice 0 ends at `origin`; slice k > 0 begins at origin + (k − 1) · step.
    since = "(time_ns {} - origin)"
    floor = f"(({since} - pmod({since}, step)) div step)"
    index = f"least(count - 1, greatest(0, 1 + {floor}))"
    first, last = index.replace("{}", "- back"), index.replace("{}", "+ ahead")
    copied = (
        events.select(*NEEDED)
        .join(plan, "run_id")
        .selectExpr(*NEEDED, f"explode(sequence(base + {first}, base + {last})) as slice")
    )
    partitions = min(len(tasks), PARTITIONS_MAX)
    gathered = copied.repartitionById(partitions, F.col("slice").cast("int"))
    return gathered.mapInArrow(partial(audit_from_rows, tasks=numbered), FOUND_DDL)


@contextmanager
def _audited(
    spark: SparkSession,
    plans: Mapping[str, _Plan],
    options: AuditOptions,
    run: Callable[[Sequence[Task]], DataFrame],
) -> Iterator[SparkAudit]:
    """Run all tasks, settle what they hand on, do again in one piece what must be."""
    cached = []

    def rounds(tasks: Sequence[Task]) -> tuple[DataFrame, dict[str, list[dict[str, pa.Table]]]]:
        found = run(tasks).persist()
        cached.append(found)
        return found, _collected(found)

    try:
        if not plans:
            empty = spark.createDataFrame([], VIOLATIONS_DDL)
            yield SparkAudit(combine([]), empty)
            return
        found, parts = rounds([task for plan in plans.values() for task in plan.tasks()])
        settled = {name: _settle(plan, parts[name]) for name, plan in plans.items()}
        again = [name for name, result in settled.items() if not result.slices_suffice]
        frames = [found.where(~F.col("run_id").isin(again)) if again else found]
        if again:
            found, redone = rounds([plans[name].whole() for name in again])
            frames.append(found)
            for name in again:
                parts[name] = redone[name]
                settled[name] = settle(
                    name, plans[name].assumed, join_parts(redone[name]), whole=True
                )
        extra: dict[str, list[dict[str, pa.Table]]] = {}
        if options.waiting or options.clocks:
            found, extra = rounds(
                [
                    Task(piece=Slice(run_id=name), settings=plan.assumed, extra=options)
                    for name, plan in plans.items()
                ]
            )
            frames.append(found)
        own = merge(
            [settled[name].violations for name in plans]
            + [contradictions(name, plan.odd) for name, plan in plans.items()]
        )
        reports = [
            _report(plan, settled[name], [*parts[name], *extra.get(name, [])], own, options)
            for name, plan in plans.items()
        ]
        violations = spark.createDataFrame(own.cast(_nullable(own.schema)))
        for frame in frames:
            packed = frame.where(F.col("part") == VIOLATIONS_PART).select("payload")
            violations = violations.unionByName(packed.mapInArrow(violations_of, VIOLATIONS_DDL))
        yield SparkAudit(combine(reports), violations)
    finally:
        for frame in cached:
            frame.unpersist()


def _collected(found: DataFrame) -> dict[str, list[dict[str, pa.Table]]]:
    """Bring the small parts of all findings to the driver: everything but the violations."""
    slices: dict[tuple[str, int], dict[str, pa.Table]] = {}
    small = found.where(F.col("part") != VIOLATIONS_PART).toArrow()
    columns = (small.column(name) for name in ("run_id", "low", "part", "payload"))
    for run_id, low, part, payload in zip(*columns, strict=True):
        key = (run_id.as_py(), low.as_py())
        slices.setdefault(key, {})[part.as_py()] = unpack(payload.as_buffer())
    runs: dict[str, list[dict[str, pa.Table]]] = {}
    for (run_id, _), parts in sorted(slices.items()):
        runs.setdefault(run_id, []).append(parts)
    return runs


def _settle(plan: _Plan, parts: Sequence[dict[str, pa.Table]]) -> Settled:
    whole = len(plan.slices) == 1 and plan.slices[0].whole
    return settle(plan.extent.run_id, plan.assumed, join_parts(parts), whole=whole)


def _report(
    plan: _Plan,
    settled: Settled,
    parts: Iterable[Mapping[str, pa.Table]],
    own: pa.Table,
    options: AuditOptions,
) -> RunReport:
    """Add up the counts of all slices and keep the first examples of each check."""
    run_id = plan.extent.run_id
    mine = own.filter(pa.compute.equal(own.column("run_id"), run_id))
    tables = [examples_of(mine)]
    checked: dict[str, int] = {}
    for part in parts:
        if EXAMPLES_PART in part:
            tables.append(part[EXAMPLES_PART])
        if EXTRA_COUNTS_PART in part:
            checked |= dict(zip(*part[EXTRA_COUNTS_PART].to_pydict().values(), strict=True))
    counts: dict[str, int] = {}
    rows: dict[str, list[pa.Table]] = {}
    for table in tables:
        for check in pa.compute.unique(table.column("check")).to_pylist():
            some = table.filter(pa.compute.equal(table.column("check"), check))
            counts[check] = counts.get(check, 0) + some.column("count")[0].as_py()
            rows.setdefault(check, []).append(some.drop_columns("count"))
    found = {
        check: Found(count, example_rows(merge(rows[check]).slice(0, EXAMPLES_MAX)))
        for check, count in counts.items()
    }
    return conclude(run_id, plan.settings, settled, found, checked, options.expect)


def _as_parquet(source: TraceSource, folder: Path) -> str:
    """Write a trace to a Parquet file in the order of time."""
    schema = arrow_schema()
    table = pa.Table.from_batches(source.batches(schema.names, None)).cast(schema)
    path = folder / "trace.parquet"
    ordered = table.sort_by([("run_id", "ascending"), ("time_ns", "ascending")])
    pq.write_table(ordered, path, row_group_size=131_072, compression="zstd")
    return str(path)


def _nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(field.name, field.type) for field in schema])
