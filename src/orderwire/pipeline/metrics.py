"""The metrics job: delay, waiting, control bytes and loss of runs, from their traces.

Percentiles of runs and members are exact; those of windows are read off mergeable KLL sketches.
[specs/pipeline.md:6]
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from orderwire.kernel.parsing import UNREADABLE
from orderwire.pipeline.metrics_model import (
    Counts,
    RunMetrics,
    Spread,
    Waiting,
    Window,
    nice_window_ns,
)
from orderwire.pipeline.trace_records import set_bits
from orderwire.trace.events import RunSettings
from orderwire.verify.kernels.columns import NEEDED, columns_of
from orderwire.verify.kernels.matching import match
from orderwire.verify.kernels.waiting import waits
from orderwire.verify.kernels.wellformed import drop_repeats

QUANTILES = (0.5, 0.9, 0.99)
_US_PER_MS = 1_000
_NS_PER_MS = 1_000_000

DROPS = ("late", "expired", "overtaken")
"""Reasons for which a copy that came is never delivered, however often it comes."""
_SUMS = (
    "messages", "copies", "deliveries", "lost_reported", "duplicates", "future", "full",
    "control_bytes_sent", "payload_bytes_sent", "payload_bytes", "control_bytes_received",
    "payload_bytes_received", "held",
)  # fmt: skip


def run_metrics(
    events: DataFrame, *, window_ns: int | None = None, waiting: bool = False
) -> list[RunMetrics]:
    """Measure every run of a trace; `window_ns` None chooses about 60 windows.

    `waiting` also measures how much waiting causal order needed; that reads each run in one piece.
    """
    steps = event_steps(events).persist()
    try:
        return _measure(events, steps, window_ns, waiting)
    finally:
        steps.unpersist()


def event_steps(events: DataFrame, *keep: str) -> DataFrame:
    """The columns that metrics are made of, one row an event that counts, and those to keep."""
    kind, others = F.col("kind"), F.col("source") != F.col("process")
    delivery = (kind == "deliver") & others
    return events.where(kind.isin("send", "deliver", "discard", "lost")).select(
        *keep,
        "run_id",
        "process",
        "kind",
        "reason",
        "time_ns",
        "source",
        "number",
        "stamp_ns",
        "control_bytes",
        "payload_bytes",
        bit_count(F.col("destinations")).alias("copies"),
        F.when(delivery & (F.col("stamp_ns") >= 0), F.expr("(clock_ns - stamp_ns) div 1000"))
        .alias("delay_us"),
        F.when(delivery & (F.col("arrived_ns") >= 0), F.expr("(clock_ns - arrived_ns) div 1000"))
        .alias("hold_us"),
    )  # fmt: skip


def bit_count(mask: Column) -> Column:
    """How many bits are set in a binary column."""
    weights = F.translate(F.hex(mask), "0123456789ABCDEF", "0112122312232334")
    total = F.lit(0)
    for weight in (1, 2, 3, 4):
        found = F.length(weights) - F.length(F.replace(weights, F.lit(str(weight)), F.lit("")))
        total = total + found * weight
    return total


def totals(steps: DataFrame) -> DataFrame:
    """Sums and exact percentiles of each run (`process` null) and of each member."""
    kind, reason = F.col("kind"), F.col("reason")
    sent, delivered, dropped = kind == "send", kind == "deliver", kind == "discard"

    def add(when: Column, value: Column) -> Column:
        return F.coalesce(F.sum(F.when(when, value.cast("bigint"))), F.lit(0))

    control, payload, copies = F.col("control_bytes"), F.col("payload_bytes"), F.col("copies")
    sums = {
        "messages": F.count_if(sent),
        "copies": add(sent, copies),
        "deliveries": F.count_if(delivered),
        "duplicates": F.count_if(dropped & (reason == "duplicate")),
        "future": F.count_if(dropped & (reason == "future")),
        "full": F.count_if(dropped & (reason == "full")),
        "lost_reported": add(kind == "lost", F.col("number")),
        "control_bytes_sent": add(sent, control),
        "payload_bytes_sent": add(sent, payload.cast("bigint") * copies),
        "payload_bytes": add(sent, payload),
        "control_bytes_received": add(delivered | dropped, control),
        "payload_bytes_received": add(delivered, payload),
        "held": F.count_if(F.col("hold_us") > 0),
        "first_ns": F.min("time_ns"),
        "last_ns": F.max("time_ns"),
    }
    columns = [column.alias(name) for name, column in sums.items()]
    for name in ("delay", "hold"):
        column = F.col(f"{name}_us")
        columns += [
            F.count(column).alias(f"{name}_samples"),
            F.min(column).alias(f"{name}_min"),
            F.max(column).alias(f"{name}_max"),
            F.avg(column).alias(f"{name}_mean"),
            F.percentile(column, list(QUANTILES)).alias(f"{name}_quantiles"),
        ]
    sets = [[F.col("run_id"), F.col("process")], [F.col("run_id")]]
    return steps.groupingSets(sets, "run_id", "process").agg(*columns)


def settled_copies(steps: DataFrame) -> DataFrame:
    """How many different copies each member delivered, and only dropped, by the first reason."""
    delivery = F.col("kind") == "deliver"
    return (
        steps.where(delivery | ((F.col("kind") == "discard") & F.col("reason").isin(*DROPS)))
        .groupBy("run_id", "process", "source", "number", "stamp_ns")
        .agg(F.bool_or(delivery).alias("given"), F.min_by("reason", "time_ns").alias("drop"))
        .groupBy("run_id", "process")
        .agg(
            F.count_if("given").alias("delivered"),
            *(F.count_if(~F.col("given") & (F.col("drop") == drop)).alias(drop) for drop in DROPS),
        )
    )


def written_copies(events: DataFrame) -> DataFrame:
    """How many copies were meant for each member of each run."""
    sends = events.where((F.col("kind") == "send") & (F.length("destinations") > 0))
    parts = sends.select("run_id", "destinations").mapInArrow(
        count_destinations, "run_id string, process int, written bigint"
    )
    return parts.groupBy("run_id", "process").agg(F.sum("written").alias("written"))


def count_destinations(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Count the members named in masks, a row for each run and member in a batch."""
    for batch in batches:
        runs = batch.column("run_id").dictionary_encode()
        row, member = set_bits(batch.column("destinations"))
        if not len(row):
            continue
        members = int(member.max()) + 1
        codes = runs.indices.to_numpy(zero_copy_only=False)[row].astype(np.int64)
        counts = np.bincount(codes * members + member)
        found = np.flatnonzero(counts)
        yield pa.RecordBatch.from_arrays(
            [
                runs.dictionary.take(pa.array(found // members)),
                pa.array((found % members).astype(np.int32)),
                pa.array(counts[found]),
            ],
            names=["run_id", "process", "written"],
        )


def window_totals(steps: DataFrame, window_ns: int) -> DataFrame:
    """Sums of each run over windows of time, with a sketch of the delays."""
    start = F.col("time_ns") - F.pmod(F.col("time_ns"), F.lit(window_ns))
    return with_quantiles(
        steps.groupBy("run_id", start.alias("window_start_ns")).agg(*window_columns())
    )


def window_columns() -> list[Column]:
    """What is summed over a window; sums and sketches of windows add up to those of longer ones."""
    sent = F.col("kind") == "send"
    copies = F.col("copies").cast("bigint")

    def add(value: Column) -> Column:
        return F.coalesce(F.sum(F.when(sent, value)), F.lit(0).cast("bigint"))

    return [
        F.count_if(sent).alias("messages"),
        add(copies).alias("copies"),
        add(F.col("control_bytes").cast("bigint")).alias("control_bytes"),
        add(F.col("payload_bytes").cast("bigint") * copies).alias("payload_bytes"),
        F.count("delay_us").alias("delays"),
        F.count_if(F.col("kind") == "deliver").alias("delivered"),
        *(
            F.count_if((F.col("kind") == "discard") & (F.col("reason") == drop)).alias(drop)
            for drop in DROPS
        ),
        F.kll_sketch_agg_bigint("delay_us").alias("sketch"),
    ]


def with_quantiles(windows: DataFrame) -> DataFrame:
    """Add the quantiles of each window's sketch, in microseconds; null where it is empty."""
    for name, rank in (("delay_p50_us", 0.5), ("delay_p99_us", 0.99)):
        quantile = F.kll_sketch_get_quantile_bigint("sketch", F.lit(rank))
        windows = windows.withColumn(name, F.when(F.col("delays") > 0, quantile))
    return windows


def run_waiting(events: DataFrame) -> DataFrame:
    """How much each run's deliveries waited, and how much of it they had to; one row a run."""
    columns = list(dict.fromkeys((*NEEDED, "detail")))
    return (
        events.select(*columns)
        .groupBy("run_id")
        .applyInArrow(
            measure_waiting,
            "run_id string, deliveries bigint, forced_mean double, forced_max bigint, "
            "avoidable_mean double, avoidable_max bigint, premature bigint",
        )
    )


def measure_waiting(table: pa.Table) -> pa.Table:
    """Measure one run; times in nanoseconds."""
    run_id = table.column("run_id")[0].as_py()
    details = [d for d in table.column("detail").to_pylist() if d]
    settings = _settings(details)
    if settings is None:
        members = int(max(table.column("process").to_pylist())) + 1
        settings = RunSettings(algorithm="", members=members)
    columns, _ = drop_repeats(run_id, columns_of(table.select(list(NEEDED))))
    found = waits(columns, match(columns, settings.members), settings)
    avoidable = np.maximum(found.avoidable, 0)
    count = len(found.rows)
    return pa.Table.from_pylist(
        [
            {
                "run_id": run_id,
                "deliveries": count,
                "forced_mean": float(found.forced.mean()) if count else 0.0,
                "forced_max": int(found.forced.max(initial=0)),
                "avoidable_mean": float(avoidable.mean()) if count else 0.0,
                "avoidable_max": int(avoidable.max(initial=0)),
                "premature": int(np.count_nonzero(found.avoidable < 0)),
            }
        ]
    )


def _measure(
    events: DataFrame, steps: DataFrame, window_ns: int | None, waiting: bool
) -> list[RunMetrics]:
    rows = totals(steps).collect()
    of_run = {row.run_id: row for row in rows if row.process is None}
    written: dict[str, dict[int, int]] = {}
    for row in written_copies(events).collect():
        written.setdefault(row.run_id, {})[row.process] = row.written
    settled: dict[str, dict[int, Counter[str]]] = {run_id: {} for run_id in of_run}
    for row in settled_copies(steps).collect():
        counts = Counter({name: row[name] for name in ("delivered", *DROPS)})
        settled[row.run_id][row.process] = counts
    members: dict[str, dict[int, Counts]] = {run_id: {} for run_id in of_run}
    for row in rows:
        if row.process is not None:
            meant = written.get(row.run_id, {}).pop(row.process, 0)
            became = settled[row.run_id].get(row.process, Counter())
            members[row.run_id][row.process] = _counts(row, meant, became)
    settings = {
        row.run_id: _settings([row.detail])
        for row in events.where("kind = 'start'").select("run_id", "detail").distinct().collect()
    }
    longest = max((row.last_ns - row.first_ns for row in of_run.values()), default=0)
    window_ns = window_ns or nice_window_ns(longest)
    windows: dict[str, list[Window]] = {run_id: [] for run_id in of_run}
    for row in window_totals(steps, window_ns).orderBy("window_start_ns").collect():
        windows[row.run_id].append(_window(row))
    waited = {row.run_id: _waiting(row) for row in run_waiting(events).collect()} if waiting else {}
    return [
        RunMetrics(
            run_id=run_id,
            algorithm=known.algorithm if (known := settings.get(run_id)) else "",
            lifetime_ms=known.lifetime_ns / _NS_PER_MS if known and known.lifetime_ns else None,
            first_ns=row.first_ns,
            last_ns=row.last_ns,
            total=_counts(
                row,
                sum(counts.written for counts in members[run_id].values())
                + sum(written.get(run_id, {}).values()),  # members that left no trace
                sum(settled[run_id].values(), Counter()),
            ),
            members=members[run_id]
            | {member: _silent(meant) for member, meant in written.get(run_id, {}).items()},
            window_ns=window_ns,
            windows=windows[run_id],
            waiting=waited.get(run_id),
        )
        for run_id, row in sorted(of_run.items())
    ]


def _counts(row: Row, written: int, settled: Counter[str]) -> Counts:
    return Counts(
        **{name: row[name] for name in _SUMS if name != "deliveries"},
        **{name: settled[name] for name in ("delivered", *DROPS)},
        written=written,
        delivered_again=row.deliveries - settled["delivered"],
        lost=written - settled.total(),
        delay_ms=_spread(row, "delay"),
        hold_ms=_spread(row, "hold"),
    )


def _silent(written: int) -> Counts:
    """A member to which copies were written and which has no trace."""
    zero: dict[str, Any] = dict.fromkeys(Counts.__struct_fields__, 0)
    return Counts(**zero | {"written": written, "lost": written, "delay_ms": None, "hold_ms": None})


def _spread(row: Row, name: str) -> Spread | None:
    if not row[f"{name}_samples"]:
        return None
    ms = partial(_ms, per=_US_PER_MS)
    p50, p90, p99 = (ms(value) for value in row[f"{name}_quantiles"])
    return Spread(
        samples=row[f"{name}_samples"],
        min=ms(row[f"{name}_min"]),
        p50=p50,
        p90=p90,
        p99=p99,
        max=ms(row[f"{name}_max"]),
        mean=ms(row[f"{name}_mean"]),
    )


def _window(row: Row) -> Window:
    return Window(
        start_ns=row.window_start_ns,
        messages=row.messages,
        copies=row.copies,
        control_bytes=row.control_bytes,
        payload_bytes=row.payload_bytes,
        delivered=row.delivered,
        late=row.late,
        expired=row.expired,
        overtaken=row.overtaken,
        delay_p50_ms=None if row.delay_p50_us is None else _ms(row.delay_p50_us, _US_PER_MS),
        delay_p99_ms=None if row.delay_p99_us is None else _ms(row.delay_p99_us, _US_PER_MS),
        sketch=bytes(row.sketch) if row.delays else None,
    )


def _waiting(row: Row) -> Waiting:
    ms = partial(_ms, per=_NS_PER_MS)
    return Waiting(
        deliveries=row.deliveries,
        forced_mean_ms=ms(row.forced_mean),
        forced_max_ms=ms(row.forced_max),
        avoidable_mean_ms=ms(row.avoidable_mean),
        avoidable_max_ms=ms(row.avoidable_max),
        premature=row.premature,
    )


def _ms(value: float, per: int) -> float:
    return round(float(value) / per, 6)


def _settings(details: Iterable[str]) -> RunSettings | None:
    for detail in details:
        try:
            return msgspec.json.decode(detail, type=RunSettings)
        except UNREADABLE:
            continue
    return None
