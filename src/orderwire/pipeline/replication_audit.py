"""The audit of replication histories on Spark: grouped by partition, judged there.

Only counts and a few sentences come back; the kernel is that of `verify`.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from orderwire.pipeline.ingest import TopicSource
from orderwire.pipeline.named_source import Named, NamedTopic, named_source
from orderwire.pipeline.replication_source import one_run
from orderwire.trace.errors import TraceError
from orderwire.trace.replication_schema import (
    PARTITION_COLUMNS,
    history_ddl,
    history_schema,
    read_history_record,
)
from orderwire.verify.replication_audit import Counted, HistoryReport, conclude, judge_rows
from orderwire.verify.replication_history import history_files, read_history_file
from orderwire.verify.report import EXAMPLES_MAX

_FINDINGS = pa.schema(
    [
        ("run_id", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("invariant", pa.string()),
        ("examined", pa.int64()),
        ("promised", pa.bool_()),
        ("sentences", pa.list_(pa.string())),
        ("missing", pa.list_(pa.string())),
    ]
)
_FINDINGS_DDL = (
    "run_id string, topic string, partition int, invariant string, examined bigint,"
    " promised boolean, sentences array<string>, missing array<string>"
)
_DDL = history_ddl().replace(" NOT NULL", "")
_ROWS_MAX = 512
"""Rows in an Arrow batch on their way to the judge: each may hold thousands of messages."""


def findings_of(frame: DataFrame) -> DataFrame:
    """Judge each partition of a frame of history rows; one row for each invariant."""

    def judge(table: pa.Table) -> pa.Table:
        found = judge_rows(table)
        return pa.Table.from_pylist([msgspec.structs.asdict(each) for each in found], _FINDINGS)

    return frame.groupBy(*PARTITION_COLUMNS).applyInArrow(judge, _FINDINGS_DDL)


def report_of(findings: DataFrame) -> HistoryReport:
    """Count, and put the verdicts together."""
    rows = findings.select(
        *PARTITION_COLUMNS,
        "invariant",
        "examined",
        "promised",
        F.size("sentences").alias("violations"),
        F.slice("sentences", 1, EXAMPLES_MAX).alias("examples"),
        "missing",
    ).collect()
    return conclude(
        sorted(
            (Counted(*row) for row in rows),
            key=lambda each: (each.run_id, each.topic, each.partition),
        )
    )


def violations_of(findings: DataFrame) -> DataFrame:
    """One row for each breach."""
    return findings.select(
        *PARTITION_COLUMNS, "invariant", F.explode("sentences").alias("sentence")
    )


@contextmanager
def history_frame(
    spark: SparkSession, source: str | Named, clients: str | Named | None = None
) -> Iterator[DataFrame]:
    """The rows of a source, while the context lasts, with those of `clients` as `read_histories`
    joins them.  Raises TraceError."""
    with ExitStack() as stack:
        frame = stack.enter_context(_frame(spark, source))
        if clients is None:
            yield frame
            return
        own = stack.enter_context(_frame(spark, clients))
        run_id = one_run(
            [row[0] for row in own.select("run_id").distinct().limit(2).collect()], clients
        )
        told = [row[0] for row in own.select("topic").distinct().collect()]
        frame = frame.where(F.col("topic").isin(told)).withColumn("run_id", F.lit(run_id))
        yield frame.unionByName(own)


@contextmanager
def _frame(spark: SparkSession, source: str | Named) -> Iterator[DataFrame]:
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(_ROWS_MAX))
    match named_source(source):
        case NamedTopic() as named:
            yield _from_topic(spark, named)
        case Path() as path:
            with TemporaryDirectory(prefix="orderwire-history-") as scratch:
                files = [
                    _as_parquet(file, Path(scratch) / f"{number}.parquet")
                    for number, file in enumerate(history_files(path))
                ]
                yield spark.read.schema(_DDL).parquet(*files)
        case lake:
            raise TraceError(f"{lake.root} is a lake: it holds no history of replication")


def _from_topic(spark: SparkSession, named: NamedTopic) -> DataFrame:
    topic = named.topic
    reader = TopicSource(bootstrap=named.servers, client=named.more)
    records = reader.batch(spark, topic).select("value")
    nullable = pa.schema([field.with_nullable(True) for field in history_schema()])

    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for value in batch.column(0):
                table = read_history_record(value.as_buffer(), f"a record of {topic}")
                yield from table.cast(nullable).to_batches()

    return records.mapInArrow(decode, _DDL)


def _as_parquet(file: Path, copy: Path) -> str:
    """Spark reads no Arrow files: copy such a one."""
    if file.suffix == ".parquet":
        return str(file)
    pq.write_table(read_history_file(file), copy)
    return str(copy)
