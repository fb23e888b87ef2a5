"""The audit of a DataFrame without files: events are copied to their slices and shuffled."""

from collections.abc import Collection, Sequence
from functools import partial
from itertools import pairwise

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from orderwire.kernel import GROUP_SIZE_MAX
from orderwire.pipeline.audit_rounds import PAIRS_DDL, VIOLATIONS_DDL, Plan, Round, round_of
from orderwire.pipeline.audit_tasks import (
    FOUND_DDL,
    VIOLATIONS_PART,
    Found,
    Task,
    audit_from_rows,
    pairs_from_rows,
    rows_of,
)
from orderwire.trace.events import EventKind, RunSettings
from orderwire.trace.schema import arrow_schema
from orderwire.verify.audit import AuditOptions
from orderwire.verify.discovery_audit import Domain, is_alone
from orderwire.verify.kernels.columns import I64, NEEDED, TIME_MAX, TIME_MIN, integers
from orderwire.verify.kernels.discovery_columns import DISCOVERY_NEEDED
from orderwire.verify.kernels.discovery_cuts import TOLD_KINDS, cuts_of
from orderwire.verify.kernels.discovery_share import ALL_NEEDED, share_kinds
from orderwire.verify.kernels.lives import lined_up, lives_of
from orderwire.verify.kernels.slices import LENGTH_WINDOWS_MIN, Extent, Slice, events_target
from orderwire.verify.kernels.survey import JUSTIFIED, OF_DISCOVERY, window_of
from orderwire.verify.kernels.total_columns import GROUP_NEEDED
from orderwire.verify.source import STARTS, settings_of
from orderwire.verify.total_audit import GROUP_PARTS, has_total_order

PARTITIONS_MAX = 2_000
TRUTH = pa.schema([arrow_schema().field(name) for name in DISCOVERY_NEEDED])


class ShuffledRounds:
    """Runs tasks on the events of a DataFrame."""

    def __init__(self, events: DataFrame) -> None:
        self._events = events
        self._cached: list[DataFrame] = []

    def __call__(self, tasks: Sequence[Task]) -> Round:
        """Audit these slices."""
        found = self._gathered(tasks).mapInArrow(
            partial(audit_from_rows, tasks=dict(enumerate(tasks))), FOUND_DDL
        )
        found = found.persist()
        self._cached.append(found)
        small = found.where(F.col("part") != VIOLATIONS_PART).toArrow().to_pylist()
        slices: dict[tuple[str, int], dict[str, bytes]] = {}
        for row in small:
            slices.setdefault((row["run_id"], row["low"]), {})[row["part"]] = row["payload"]

        def violations(runs: Collection[str]) -> DataFrame:
            mine = found.where((F.col("part") == VIOLATIONS_PART) & F.col("run_id").isin(*runs))
            return mine.select("payload").mapInArrow(rows_of, VIOLATIONS_DDL)

        return round_of((Found(*key, parts) for key, parts in slices.items()), violations)

    def pairs(self, tasks: Sequence[Task]) -> DataFrame:
        """Return when participants first listed each other, from these tasks of shares."""
        return self._gathered(tasks).mapInArrow(
            partial(pairs_from_rows, tasks=dict(enumerate(tasks))), PAIRS_DDL
        )

    def close(self) -> None:
        """Let go of the findings."""
        for frame in self._cached:
            frame.unpersist()

    def _gathered(self, tasks: Sequence[Task]) -> DataFrame:
        """Bring the events of each task together; column `slice` is its number."""
        first = tasks[0]
        copied = _sliced(self._events, tasks)
        if first.share is not None:
            copied = _shared_out(self._events, tasks)
        elif first.group is not None:
            copied = _parted(self._events, tasks)
        return copied.repartitionById(min(len(tasks), PARTITIONS_MAX), F.col("slice").cast("int"))


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
            F.max("process").alias("participant"),
            F.count_if(kind.isin(*OF_DISCOVERY)).alias("discovery"),
            F.count_if(kind == EventKind.INSTALL.value).alias("views"),
        )
        .toArrow()
        .sort_by("run_id")  # here, and not by a shuffle
        .to_pylist()
    )
    starts = events.where(kind == EventKind.START.value).select(*STARTS).toArrow()
    truth = TRUTH.empty_table()
    if any(row["discovery"] for row in extents):
        told = events.where(kind.isin(*TOLD_KINDS)).select(*DISCOVERY_NEEDED).toArrow()
        truth = told.cast(TRUTH)
    plans = {}
    for row in extents:
        window = window_of(*(TIME_MIN if row[name] is None else row[name] for name in _WINDOW))
        run_id = row["run_id"]
        extent = Extent(run_id, row["events"], row["first"], row["last"], window)
        settings, odd = settings_of(starts, run_id)
        assumed = settings or RunSettings(algorithm="", members=max(0, row["process"] or 0) + 1)
        slices = _regular(extent, settings, options)
        lives = lives_of(starts, run_id)
        domain = None
        if row["discovery"] or is_alone(settings):
            mine = lined_up(truth.filter(pa.compute.equal(truth.column("run_id"), run_id)), lives)
            domain = Domain(
                run_id=run_id,
                settings=settings,
                assumed=assumed,
                truth=mine,
                first_ns=row["first"],
                last_ns=row["last"],
                events=row["events"],
                discovery=row["discovery"],
                participant=max(0, row["participant"]),
                share_events=options.slice_events,
                lives=lives,
                cuts=cuts_of(mine, partial(_times_of, events, run_id)),
            )
        total = has_total_order(settings, row["views"], options.expect)
        plans[run_id] = Plan(extent, settings, assumed, odd, slices, domain, lives, total)
    return plans


def _times_of(events: DataFrame, run_id: str, process: int) -> I64:
    """Return the times of all events of one process of a run."""
    mine = events.where((F.col("run_id") == run_id) & (F.col("process") == process))
    return integers(mine.select("time_ns").toArrow(), "time_ns")


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


def _shared_out(events: DataFrame, tasks: Sequence[Task]) -> DataFrame:
    """Give every event of discovery to the share that its process belongs to."""
    rows = []
    for number, task in enumerate(tasks):
        assert task.share is not None
        share, kinds = task.share, list(share_kinds(task.settings))
        row = {"run_id": share.run_id, "low": share.low, "high": share.high, "kinds": kinds}
        rows.append({**row, "slice": number})
    plan = F.broadcast(events.sparkSession.createDataFrame(pa.Table.from_pylist(rows)))
    mine = "process >= low and process < high and array_contains(kinds, kind)"
    return events.select(*ALL_NEEDED).join(plan, "run_id").where(mine).select(*ALL_NEEDED, "slice")


def _parted(events: DataFrame, tasks: Sequence[Task]) -> DataFrame:
    """Give every event to the parts of the total order that need its kind."""
    rows = []
    for number, task in enumerate(tasks):
        assert task.group is not None
        kinds = list(GROUP_PARTS[task.group])
        rows.append({"run_id": task.piece.run_id, "kinds": kinds, "slice": number})
    plan = F.broadcast(events.sparkSession.createDataFrame(pa.Table.from_pylist(rows)))
    mine = events.select(*GROUP_NEEDED).join(plan, "run_id").where("array_contains(kinds, kind)")
    return mine.select(*GROUP_NEEDED, "slice")


def _sliced(events: DataFrame, tasks: Sequence[Task]) -> DataFrame:
    """Copy every event to the slices that must see it."""
    spark = events.sparkSession
    runs: dict[str, dict[str, int | str]] = {}
    for number, task in enumerate(tasks):
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
    return (
        events.select(*NEEDED)
        .join(plan, "run_id")
        .selectExpr(*NEEDED, f"explode(sequence(base + {first}, base + {last})) as slice")
    )
