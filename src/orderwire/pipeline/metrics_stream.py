"""Metrics over windows while a run goes on: one row a metric and closed window, into the lake.

Of each window the lake keeps sums and a KLL sketch, so that any union of windows can be merged:
means from sums, spreads from sums of squares, quantiles from sketches.  [specs/pipeline.md:6]
"""

from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from orderwire.pipeline.ingest import application_of
from orderwire.pipeline.lake import Lake
from orderwire.pipeline.metrics import event_steps, window_columns, with_quantiles
from orderwire.trace.schema import IDENTITY_COLUMNS

_METRICS = (
    ("messages", "1", "messages", "messages"),
    ("copies", "1", "copies", "messages"),
    ("control_bytes", "B", "control_bytes", "messages"),
    ("payload_bytes", "B", "payload_bytes", "messages"),
    ("delivered", "1", "delivered", "delivered"),
    ("late", "1", "late", "late"),
    ("expired", "1", "expired", "expired"),
    ("overtaken", "1", "overtaken", "overtaken"),
    ("delay_sum", "us", "delay_sum", "delays"),
    ("delay_squares", "us²", "delay_squares", "delays"),
    ("delay_min", "us", "delay_min", "delays"),
    ("delay_max", "us", "delay_max", "delays"),
    ("delay_p50", "us", "delay_p50_us", "delays"),
    ("delay_p99", "us", "delay_p99_us", "delays"),
)
"""Metric, unit, column of the value, column of the number of samples."""
_SKETCHED = "delay_p50"
"""The metric whose row carries the window's sketch."""


def closed_windows(events: DataFrame, *, window: str, lateness: str) -> DataFrame:
    """Sums of each run over windows of a stream of events, every event once.

    A window closes when events `lateness` younger than its end have come; an event that comes
    later still is dropped.  The state is what is open, and keys as old as that.
    """
    once = (
        events.withColumn("at", F.timestamp_micros(F.expr("time_ns div 1000")))
        .withWatermark("at", lateness)
        .dropDuplicatesWithinWatermark(list(IDENTITY_COLUMNS))
    )
    delay = F.col("delay_us")
    delays = [
        F.sum(delay).alias("delay_sum"),
        F.sum(delay.cast("double") * delay).alias("delay_squares"),
        F.min(delay).alias("delay_min"),
        F.max(delay).alias("delay_max"),
    ]
    sums = (
        event_steps(once, "at")
        .groupBy("run_id", F.window("at", window).alias("window"))
        .agg(*window_columns(), *delays)
    )
    return with_quantiles(sums)


def window_rows(windows: DataFrame) -> DataFrame:
    """Closed windows as rows of the lake's table `metrics`."""
    values = F.array(
        *(
            F.struct(
                F.lit(metric).alias("metric"),
                F.lit(unit).alias("unit"),
                F.col(value).cast("double").alias("value"),
                F.col(samples).alias("samples"),
                (F.col("sketch") if metric == _SKETCHED else F.lit(None).cast("binary")).alias(
                    "sketch"
                ),
            )
            for metric, unit, value, samples in _METRICS
        )
    )
    start_us, end_us = F.unix_micros("window.start"), F.unix_micros("window.end")
    return (
        windows.select(
            "run_id",
            F.lit(None).cast("int").alias("member"),
            (start_us * 1_000).alias("window_start_ns"),
            ((end_us - start_us) * 1_000).alias("window_ns"),
            F.inline(values),
        )
        .where(F.col("value").isNotNull())
        .select(
            "run_id", "member", "window_start_ns", "window_ns",
            "metric", "unit", "value", "samples", "sketch",
        )
    )  # fmt: skip


def start_window_metrics(
    events: DataFrame,
    lake: Lake,
    checkpoint: Path,
    *,
    window: str = "1 second",
    lateness: str = "5 seconds",
    every: str | None = None,
) -> StreamingQuery:
    """Start the query that puts closed windows into the lake, each once.

    `every` is the interval between micro-batches; None ends it when it has read what was there.
    """
    application = application_of(checkpoint)
    lake.clean("metrics", application)

    def land(windows: DataFrame, batch: int) -> None:
        lake.append_batch("metrics", window_rows(windows), application, batch)

    writer = (
        closed_windows(events, window=window, lateness=lateness)
        .writeStream.queryName("window metrics")
        .foreachBatch(land)
        .outputMode("append")
        .option("checkpointLocation", str(checkpoint))
    )
    if every is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=every).start()
