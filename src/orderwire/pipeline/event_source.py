"""The events of a trace as a DataFrame, wherever the trace is."""

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from orderwire.pipeline.ingest import TopicSource, decoded_events, event_rows
from orderwire.pipeline.lake import Lake, spark_schema
from orderwire.pipeline.named_source import EVENTS, Named, NamedTopic, named_source
from orderwire.pipeline.trace_records import read_trace_files
from orderwire.trace.errors import TraceError
from orderwire.trace.reader import TRACE_SUFFIXES
from orderwire.trace.schema import IDENTITY_COLUMNS


def open_events(spark: SparkSession, source: str | Named) -> DataFrame:
    """Return the events of a source, each once, in any order, with the columns of `events`.

    It is a trace file (.arrow, .parquet) or a folder of them, a lake or its table `events`, or
    TOPIC@HOST:PORT.  Raises TraceError when it is none of these.
    """
    match named_source(source):
        case NamedTopic() as named:
            return event_rows(_reader(named).batch(spark, named.topic))
        case Lake() as lake:
            return lake.read(spark, EVENTS)
        case path:
            return _file_events(spark, path)


def _file_events(spark: SparkSession, path: Path) -> DataFrame:
    files = [path]
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix in TRACE_SUFFIXES)
        if not files:
            raise TraceError(
                f"no trace in {path}: it has no file that ends in {' or '.join(TRACE_SUFFIXES)}"
            )
    paths = spark.createDataFrame([(str(file.absolute()),) for file in files], "path string")
    events = paths.repartition(len(files)).mapInArrow(read_trace_files, spark_schema("events"))
    return events.dropDuplicates(list(IDENTITY_COLUMNS)) if len(files) > 1 else events


def stream_events(spark: SparkSession, source: str | Named) -> DataFrame:
    """Return the events of TOPIC@HOST:PORT as a stream, as often as they were written.

    Raises TraceError when it is no topic.
    """
    named = named_source(source)
    if not isinstance(named, NamedTopic):
        raise TraceError(f"{source} is not TOPIC@HOST:PORT: only a topic can be followed")
    return decoded_events(_reader(named).stream(spark, named.topic))


def _reader(named: NamedTopic) -> TopicSource:
    return TopicSource(bootstrap=named.servers, client=named.more)
