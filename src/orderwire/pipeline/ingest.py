"""Topics into the lake, exactly once.

Every topic has its own query, checkpoint and application id, so that any set of topics may be
ingested together, one after the other, or again.  A batch is committed under (application, batch):
one that Spark repeats after a crash changes nothing.

A trace is also written at least once by those who trace, so events are told apart by (run, process,
position, time): what the lake has, it does not take again.
"""

import os
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from orderwire.pipeline.lake import Lake, spark_schema
from orderwire.pipeline.options import CLIENT_PREFIX
from orderwire.pipeline.trace_records import decode_trace_records, destination_rows
from orderwire.trace.schema import IDENTITY_COLUMNS

CHECKPOINTS = "_checkpoints"
OWN_FORMAT = "orderwire"

Land = Callable[[DataFrame, int], None]


class TopicSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where topics are read."""

    bootstrap: str
    """HOST:PORT,… of the broker."""
    format: str = OWN_FORMAT
    """`orderwire`, or `kafka` where Spark's own connector is installed."""
    starting: str = "earliest"
    """`startingOffsets` of a query without a checkpoint."""
    rows_max: int | None = None
    """`maxOffsetsPerTrigger`: bounds the memory of a micro-batch."""
    client: Mapping[str, str] = {}
    """More settings of the source's client: `kafka.…` of its options."""

    def _given(self, topic: str) -> dict[str, str]:
        given = {
            "kafka.bootstrap.servers": self.bootstrap,
            "subscribe": topic,
            "startingOffsets": self.starting,
        }
        return given | {CLIENT_PREFIX + name: value for name, value in self.client.items()}

    def batch(self, spark: SparkSession, topic: str) -> DataFrame:
        """All of a topic, as it is now."""
        return spark.read.format(self.format).options(**self._given(topic)).load()

    def stream(self, spark: SparkSession, topic: str) -> DataFrame:
        """A topic as a stream."""
        given = self._given(topic)
        if self.rows_max is not None:
            given["maxOffsetsPerTrigger"] = str(self.rows_max)
        return spark.readStream.format(self.format).options(**given).load()


class Ingested(msgspec.Struct, frozen=True):
    """What a run of the ingest added to the lake, in rows."""

    raw_messages: int
    events: int
    dests: int


def landed_messages(spark: SparkSession, lake: Lake, topic: str) -> DataFrame:
    """The messages of a topic that are in the lake, as rows of `raw_messages`."""
    return lake.read(spark, "raw_messages").where(F.col("topic") == topic)


def raw_rows(messages: DataFrame) -> DataFrame:
    """Messages of a topic as rows of `raw_messages`."""
    return messages.select(
        "topic",
        "partition",
        "offset",
        F.unix_millis("timestamp").alias("timestamp_ms"),
        F.col("timestampType").alias("timestamp_type"),
        "key",
        "value",
    )


def decoded_events(messages: DataFrame) -> DataFrame:
    """Records of a trace topic as rows of `events`, as often as they were written."""
    records = messages.select("topic", "partition", "offset", "value")
    return records.mapInArrow(decode_trace_records, spark_schema("events"))


def event_rows(messages: DataFrame) -> DataFrame:
    """Records of a trace topic as rows of `events`, each event once."""
    return decoded_events(messages).dropDuplicates(list(IDENTITY_COLUMNS))


def dest_rows(events: DataFrame) -> DataFrame:
    """The intended copies of the sends among these events."""
    sends = events.where((F.col("kind") == "send") & (F.length("destinations") > 0))
    masks = sends.select("run_id", "source", "number", "destinations")
    return masks.mapInArrow(destination_rows, spark_schema("dests"))


def new_events(lake: Lake, events: DataFrame) -> DataFrame:
    """The events that the lake does not have.

    Looks only into files that may hold such keys, by their statistics: in the usual case, where
    positions grow, there are few or none.
    """
    lowest = {
        row.run_id: row.lowest
        for row in events.groupBy("run_id").agg(F.min("position").alias("lowest")).collect()
    }

    def may_hold(file: dict[str, Any]) -> bool:
        return any(
            file["min.run_id"] <= run <= file["max.run_id"] and file["max.position"] >= position
            for run, position in lowest.items()
        )

    files = lake.files_where("events", may_hold)
    if not files:
        return events
    known = lake.read(events.sparkSession, "events", files=files).select(*IDENTITY_COLUMNS)
    return events.join(known, list(IDENTITY_COLUMNS), "left_anti")


def land_raw(lake: Lake, application: str) -> Land:
    """Make the function that puts a micro-batch of messages into `raw_messages`."""

    def land(messages: DataFrame, batch: int) -> None:
        lake.append_batch("raw_messages", raw_rows(messages), application, batch)

    return land


def land_trace(lake: Lake, application: str) -> Land:
    """Make the function that puts a micro-batch of trace records into `events` and `dests`.

    `dests` is derived from the events as they were committed, so a crash between the two commits
    is made good by the replay.
    """

    def land(messages: DataFrame, batch: int) -> None:
        last = lake.recorded("events", application)
        if last is None or last < batch:
            events = event_rows(messages)
            if lake.files("events"):
                events = events.persist()
                lake.append_batch("events", new_events(lake, events), application, batch)
                events.unpersist()
            else:
                lake.append_batch("events", events, application, batch)
        landed = lake.read(
            messages.sparkSession,
            "events",
            files=lake.batch_files("events", application, batch),
        )
        lake.append_batch("dests", dest_rows(landed), application, batch)

    return land


class _Job(msgspec.Struct, frozen=True):
    """What one query does with its topic."""

    purpose: str
    tables: tuple[str, ...]
    land: Callable[[Lake, str], Land]


_RAW = _Job("raw", ("raw_messages",), land_raw)
_TRACE = _Job("trace", ("events", "dests"), land_trace)


def start_ingest(
    spark: SparkSession,
    source: TopicSource,
    lake: Lake,
    *,
    topics: Iterable[str] = (),
    trace_topics: Iterable[str] = (),
    every: str | None = None,
) -> list[StreamingQuery]:
    """Start one query for each topic: to the end of what is there, or for ever.

    `every` is the interval between micro-batches (`"1 second"`) of queries that go on; None ends
    each when it has read what was there at its start.
    """
    jobs = [(_RAW, topic) for topic in dict.fromkeys(topics)]
    jobs += [(_TRACE, topic) for topic in dict.fromkeys(trace_topics)]
    queries = []
    for job, topic in jobs:
        checkpoint = lake.root / CHECKPOINTS / f"{job.purpose}.{topic}"
        application = application_of(checkpoint)
        for table in job.tables:
            lake.clean(table, application)
        writer = (
            source.stream(spark, topic)
            .writeStream.queryName(f"ingest {job.purpose} {topic}")
            .foreachBatch(job.land(lake, application))
            .option("checkpointLocation", str(checkpoint))
        )
        if every is None:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=every)
        queries.append(writer.start())
    return queries


def ingest(
    spark: SparkSession,
    source: TopicSource,
    lake: Lake,
    *,
    topics: Iterable[str] = (),
    trace_topics: Iterable[str] = (),
) -> Ingested:
    """Bring everything that the topics hold now into the lake.

    Raises StreamingQueryException; its message ends with the source's own error.
    """
    tables = ("raw_messages", "events", "dests")
    before = [lake.rows(table) for table in tables]
    # One after the other: every query starts a Python process, and Spark gives each ten seconds.
    for topic in dict.fromkeys(topics):
        _await(start_ingest(spark, source, lake, topics=[topic]))
    for topic in dict.fromkeys(trace_topics):
        _await(start_ingest(spark, source, lake, trace_topics=[topic]))
    return Ingested(*(lake.rows(t) - had for t, had in zip(tables, before, strict=True)))


def _await(queries: list[StreamingQuery]) -> None:
    for query in queries:
        try:
            query.awaitTermination()
        finally:
            query.stop()


def application_of(checkpoint: Path) -> str:
    """The application id that belongs to a checkpoint, made with it.

    A new checkpoint starts at batch 0 again, so it must not go by the name of an old one, whose
    batches would make its own look like replays.
    """
    file = checkpoint / "application"
    if file.exists():
        return file.read_text()
    checkpoint.mkdir(parents=True, exist_ok=True)
    application = f"{checkpoint.name}.{uuid.uuid4().hex[:12]}"
    scratch = checkpoint / "application.new"
    scratch.write_text(application)
    os.replace(scratch, file)
    return application
