"""Small parts of a trace, for figures: a histogram of delays, the events around a moment."""

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from orderwire.trace.events import Event, EventKind
from orderwire.trace.schema import arrow_schema, events_from_table

BUCKET_US = 250
EVENTS_MAX = 20_000
"""Largest excerpt; a longer stretch of a trace is no excerpt."""


class DelayBucket(msgspec.Struct, frozen=True):
    """How many deliveries of others' messages took up to so long."""

    upper_ms: float
    count: int


def delay_histogram(events: DataFrame) -> dict[str, list[DelayBucket]]:
    """Count deliveries by their delay from stamp to delivery, per run, ascending."""
    delay_us = F.expr("(clock_ns - stamp_ns) div 1000")
    rows = (
        events.where((F.col("kind") == "deliver") & (F.col("source") != F.col("process")))
        .groupBy("run_id", F.floor(delay_us / BUCKET_US).alias("bucket"))
        .count()
        .orderBy("run_id", "bucket")
        .collect()
    )
    found: dict[str, list[DelayBucket]] = {}
    for row in rows:
        upper_ms = (row.bucket + 1) * BUCKET_US / 1_000
        found.setdefault(row.run_id, []).append(DelayBucket(upper_ms, row["count"]))
    return found


def news_of_discovery(events: DataFrame, run_id: str) -> pa.Table:
    """Return what participants of this run told of themselves and learnt: all but messages."""
    kinds = [kind.value for kind in (EventKind.POST, EventKind.HEAR)]
    mine = events.where((F.col("run_id") == run_id) & ~F.col("kind").isin(*kinds))
    return mine.toArrow().select(arrow_schema().names).cast(arrow_schema())


def excerpt(events: DataFrame, run_id: str, first_ns: int, last_ns: int) -> list[Event]:
    """Return the run's events from one instant to another, both in, at most EVENTS_MAX."""
    wanted = events.where(
        (F.col("run_id") == run_id) & F.col("time_ns").between(first_ns, last_ns)
    ).orderBy("time_ns", "process", "position")
    return events_from_table(wanted.limit(EVENTS_MAX).toArrow().cast(arrow_schema()))
