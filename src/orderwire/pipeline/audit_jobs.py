"""The audit on Spark: slices go out, findings come back; the kernels are those of `verify`.

Default shape: a list of slices, and tasks that read their own time range from Parquet files, so
that no event passes through the JVM.  Such jobs need no query plan, so they are no queries but
plain tasks: Spark's share of an audit is then some 25 ms of CPU a task.  For DataFrames without
files: events are copied to the slices that must see them and shuffled by slice.  Both find exactly
what one process finds.
"""

import itertools
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from orderwire.pipeline.audit_rounds import (
    PAIRS_DDL,
    VIOLATIONS_DDL,
    Plan,
    Round,
    SparkAudit,
    audit_in_rounds,
    round_of,
    violations_frame,
)
from orderwire.pipeline.audit_shuffle import ShuffledRounds, plan_frame
from orderwire.pipeline.audit_source import find_source
from orderwire.pipeline.audit_tasks import (
    EXAMPLES_PART,
    VIOLATIONS_PART,
    Files,
    Found,
    Task,
    audit_from_files,
    audit_whole,
    pairs_from_files,
    rows_of,
    survey_groups,
    unpack,
    violations_from_files,
)
from orderwire.pipeline.named_source import Named
from orderwire.trace.schema import SINCE, arrow_schema
from orderwire.verify.audit import AuditOptions, plan_run
from orderwire.verify.discovery_audit import domain_of, times_in
from orderwire.verify.kernels.lives import lives_of
from orderwire.verify.kernels.slices import EVENTS_TARGET
from orderwire.verify.kernels.survey import Survey, join_surveys
from orderwire.verify.source import ParquetSource, RowGroup, TraceSource, settings_of
from orderwire.verify.total_audit import has_total_order

__all__ = ["SparkAudit", "audit_files", "audit_frame", "audit_source"]

TASKS_PER_CORE = 4
"""At most so many tasks to each core: enough to even out slices of different cost."""
EVENTS_PER_TASK = 250_000
"""A task audits at least so many events, else starting it would cost too much."""
EVENTS_PER_SURVEY = 1_000_000
VIOLATIONS_KEPT_BYTES = 16 * 2**20
"""Violations that an audit brings to the driver with its findings, packed, of all slices; larger
amounts stay where they are found."""
_audits = itertools.count()


@contextmanager
def audit_source(
    spark: SparkSession, source: str | Named, options: AuditOptions | None = None
) -> Iterator[SparkAudit]:
    """Audit what `orderwire audit` names: a file, a folder, a lake, or TOPIC@HOST:PORT.

    What is no Parquet yet is written as Parquet to a temporary folder first.
    """
    trace = find_source(source)
    with tempfile.TemporaryDirectory(prefix="orderwire-audit-") as folder:
        if isinstance(trace, ParquetSource):
            files, versioned = trace.files, trace.versioned
        else:
            files, versioned = [_as_parquet(trace, Path(folder))], True
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
    """Audit a trace in Parquet files that driver and workers can read: the default shape.

    A trace too short to be cut is one task.  Raises TraceError.
    """
    options = options or AuditOptions()
    groups = ParquetSource(files, versioned=versioned).groups()
    # Workers are where the session began, whatever folder the driver is in by now.
    names = tuple(str(Path(file).absolute()) for file in files)
    trace = Files(names, versioned, next(_audits))
    events = sum(group.events for group in groups)
    if events < 2 * (options.slice_events or EVENTS_TARGET):
        yield _whole(spark, trace, groups, options)
        return
    plans = _plan(spark, trace, groups, options)
    rounds = _FileRounds(spark, trace, events)
    try:
        yield audit_in_rounds(spark, plans, options, rounds)
    finally:
        rounds.close()


@contextmanager
def audit_frame(events: DataFrame, options: AuditOptions | None = None) -> Iterator[SparkAudit]:
    """Audit a trace in any DataFrame with the trace's columns, by a shuffle."""
    options = options or AuditOptions()
    if options.waiting or options.clocks:
        raise ValueError("waiting and clocks need files: write the trace to Parquet first")
    for name in SINCE:  # columns that an older trace does not have
        if name not in events.columns:
            events = events.withColumn(name, F.lit(None).cast("bigint"))
    rounds = ShuffledRounds(events)
    try:
        yield audit_in_rounds(events.sparkSession, plan_frame(events, options), options, rounds)
    finally:
        rounds.close()


class _FileRounds:
    """Runs tasks that read their slices from files."""

    def __init__(self, spark: SparkSession, trace: Files, events: int) -> None:
        self._spark = spark
        self._trace = trace
        self._events = events
        self._cached: list[DataFrame] = []

    def __call__(self, tasks: Sequence[Task]) -> Round:
        """Audit these slices."""
        context = self._spark.sparkContext
        keep_bytes = VIOLATIONS_KEPT_BYTES // len(tasks)
        found: list[Found] = (
            context.parallelize(tasks, self._partitions(tasks))
            .mapPartitions(partial(audit_from_files, files=self._trace, keep_bytes=keep_bytes))
            .collect()
        )
        left = {
            (slice_.run_id, slice_.low)
            for slice_ in found
            if EXAMPLES_PART in slice_.parts and VIOLATIONS_PART not in slice_.parts
        }

        def others(runs: Collection[str]) -> DataFrame | None:
            again = [
                task
                for task in tasks
                if task.piece.run_id in runs and (task.piece.run_id, task.piece.low) in left
            ]
            return self._violations(again) if again else None

        return round_of(found, others)

    def close(self) -> None:
        """Let go of the findings."""
        for frame in self._cached:
            frame.unpersist()

    def _violations(self, tasks: Sequence[Task]) -> DataFrame:
        payloads = self._spark.sparkContext.parallelize(
            tasks, self._partitions(tasks)
        ).mapPartitions(partial(violations_from_files, files=self._trace))
        packed = self._spark.createDataFrame(payloads, "payload binary")
        frame = packed.mapInArrow(rows_of, VIOLATIONS_DDL).persist()
        self._cached.append(frame)
        return frame

    def pairs(self, tasks: Sequence[Task]) -> DataFrame:
        """Return when participants first listed each other, from these tasks of shares."""
        payloads = self._spark.sparkContext.parallelize(
            tasks, self._partitions(tasks)
        ).mapPartitions(partial(pairs_from_files, files=self._trace))
        packed = self._spark.createDataFrame(payloads, "payload binary")
        return packed.mapInArrow(rows_of, PAIRS_DDL)

    def _partitions(self, tasks: Sequence[Task]) -> int:
        return min(len(tasks), _tasks(self._spark, self._events, EVENTS_PER_TASK))


def _whole(
    spark: SparkSession, trace: Files, groups: Sequence[RowGroup], options: AuditOptions
) -> SparkAudit:
    """Audit a small trace in one task."""
    ((report, violations),) = (
        spark.sparkContext.parallelize([None], 1)
        .mapPartitions(partial(audit_whole, files=trace, options=options))
        .collect()
    )

    def pairs() -> DataFrame:
        plans = _plan(spark, trace, groups, options)
        tasks = [task for plan in plans.values() for task in plan.share_tasks()]
        if not tasks:
            return spark.createDataFrame([], PAIRS_DDL)
        return _FileRounds(spark, trace, sum(group.events for group in groups)).pairs(tasks)

    return SparkAudit(report, lambda: violations_frame(spark, unpack(violations)), pairs)


def _plan(
    spark: SparkSession, trace: Files, groups: Sequence[RowGroup], options: AuditOptions
) -> dict[str, Plan]:
    """Survey the trace in parts, and cut its runs."""
    parts = _shares(groups, _tasks(spark, sum(group.events for group in groups), EVENTS_PER_SURVEY))
    found: list[tuple[list[Survey], bytes, bytes]] = (
        spark.sparkContext.parallelize(parts, len(parts))
        .mapPartitions(partial(survey_groups, files=trace))
        .collect()
    )
    starts = pa.concat_tables([unpack(packed) for _, packed, _ in found])
    truth = pa.concat_tables([unpack(packed) for _, _, packed in found])
    runs: dict[str, list[Survey]] = {}
    for surveys, _, _ in found:
        for surveyed in surveys:
            runs.setdefault(surveyed.run_id, []).append(surveyed)
    source = ParquetSource(trace.names, versioned=trace.versioned)
    plans = {}
    for run_id, surveys in sorted(runs.items()):
        surveyed = join_surveys(surveys)
        settings, odd = settings_of(starts, run_id)
        slices = plan_run(surveyed, settings, options.slice_events)
        assumed = settings or surveyed.assumed()
        lives = lives_of(starts, run_id)
        domain = domain_of(
            surveyed,
            settings,
            truth,
            options.slice_events,
            lives=lives,
            times_of=times_in(source, run_id),
        )
        total = has_total_order(settings, surveyed.views, options.expect)
        extent = surveyed.extent()
        plans[run_id] = Plan(extent, settings, assumed, odd, slices, domain, lives, total)
    return plans


def _tasks(spark: SparkSession, events: int, events_per_task: int) -> int:
    """Return how many tasks suit that many events: at least one for each core."""
    cores = spark.sparkContext.defaultParallelism
    return max(cores, min(TASKS_PER_CORE * cores, events // events_per_task))


def _shares(groups: Sequence[RowGroup], count: int) -> list[list[RowGroup]]:
    """Share out row groups, neighbours together, so that each share holds as many events."""
    target = sum(group.events for group in groups) / count
    shares: dict[int, list[RowGroup]] = {}
    before = 0
    for group in groups:
        shares.setdefault(int((before + group.events / 2) // target), []).append(group)
        before += group.events
    return list(shares.values())


def _as_parquet(source: TraceSource, folder: Path) -> str:
    """Write a trace to a Parquet file in the order of time."""
    schema = arrow_schema()
    table = pa.Table.from_batches(source.batches(schema.names, None)).cast(schema)
    path = folder / "trace.parquet"
    ordered = table.sort_by([("run_id", "ascending"), ("time_ns", "ascending")])
    pq.write_table(ordered, path, row_group_size=131_072, compression="zstd")
    return str(path)
