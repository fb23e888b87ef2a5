"""The audit of a DataFrame without files: events are copied to their slices and shuffled."""

from collections.abc import Collection, Sequence
from functools import partial
from itertools import pairwise

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from orderwire.kernel import GROUP_SIZE_MAX
from orderwire.pipeline.audit_rounds import VIOLATIONS_DDL, Plan, Round, round_of
from orderwire.pipeline.audit_tasks import (
    FOUND_DDL,
    VIOLATIONS_PART,
    Found,
    Task,
    audit_from_rows,
    violations_of,
)
from orderwire.trace.events import EventKind, RunSettings
from orderwire.verify.audit import AuditOptions
from orderwire.verify.kernels.columns import NEEDED, TIME_MAX, TIME_MIN
from orderwire.verify.kernels.slices import LENGTH_WINDOWS_MIN, Extent, Slice, events_target
from orderwire.verify.kernels.survey import JUSTIFIED, window_of
from orderwire.verify.source import settings_of

PARTITIONS_MAX = 2_000


class ShuffledRounds:
    """Runs tasks on the events of a DataFrame."""

    def __init__(self, events: DataFrame) -> None:
        self._events = events
        self._cached: list[DataFrame] = []

    def __call__(self, tasks: Sequence[Task]) -> Round:
        """Audit these slices."""
        found = _shuffled(self._events, tasks).persist()
        self._cached.append(found)
        small = found.where(F.col("part") != VIOLATIONS_PART).toArrow().to_pylist()
        slices: dict[tuple[str, int], dict[str, bytes]] = {}
        for row in small:
            slices.setdefault((row["run_id"], row["low"]), {})[row["part"]] = row["payload"]

        def violations(runs: Collection[str]) -> DataFrame:
            mine = found.where((F.col("part") == VIOLATIONS_PART) & F.col("run_id").isin(*runs))
            return mine.select("payload").mapInArrow(violations_of, VIOLATIONS_DDL)

        return round_of((Found(*key, parts) for key, parts in slices.items()), violations)

    def close(self) -> None:
        """Let go of the findings."""
        for frame in self._cached:
            frame.unpersist()


def plan_frame(events: DataFrame, options: AuditOptions) -> dict[str, Plan]:
    """Scan the events once for what the plans of all runs need, and once for their settings."""
    age = F.col("time_ns") - F.col("stamp_ns")
    kind = F.col("kind")
    judged = (kind == EventKind.DELIVER.value) | F.col("reason").isin(*JUSTIFIED)
    member = F.col("process") < GROUP_SIZE_MAX
    extents = (
        events.groupBy("run_id")
        .agg(
            F.count("*").alias("events"),
            F.min("time_ns").alias("first"),
            F.max("time_ns").alias("last"),
            F.max(F.when(judged, age)).alias("age"),
            F.max(F.when(kind == EventKind.SEND.value, -age)).alias("ahead"),
            F.max(F.when(member, F.col("process"))).alias("process"),
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
    plans = {}
    for row in extents:
        window = window_of(*(TIME_MIN if row[name] is None else row[name] for name in _WINDOW))
        run_id = row["run_id"]
        extent = Extent(run_id, row["events"], row["first"], row["last"], window)
        settings, odd = settings_of(starts, run_id)
        assumed = settings or RunSettings(algorithm="", members=max(0, row["process"] or 0) + 1)
        slices = _regular(extent, settings, options)
        plans[run_id] = Plan(extent, settings, assumed, odd, slices)
    return plans


_WINDOW = ("age", "ahead")


def _regular(extent: Extent, settings: RunSettings | None, options: AuditOptions) -> list[Slice]:
    """Cut the run into slices of equal length, so that SQL can tell an event's slices."""
    whole = Slice(run_id=extent.run_id)
    if settings is None or settings.clock != "shared":
        return [whole]
    target = options.slice_events or events_target(settings.members)
    if extent.events < 2 * target:
        return [whole]
    length = extent.last_ns - extent.first_ns + 1
    shortest = LENGTH_WINDOWS_MIN * (extent.window_ns + 2 * settings.epsilon_ns)
    step = max(shortest, -(-length * target // extent.events), 1)
    cuts = list(range(extent.first_ns + step, extent.last_ns + 1, step))
    edges = [TIME_MIN, *cuts, TIME_MAX]
    return [
        Slice(
            run_id=extent.run_id,
            low=low,
            high=high,
            window_ns=extent.window_ns,
            epsilon_ns=settings.epsilon_ns,
        )
        for low, high in pairwise(edges)
    ]


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
