"""The events of a trace as a DataFrame, wherever the trace is."""

import re
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from orderwire.pipeline.ingest import TopicSource, decoded_events, event_rows
from orderwire.pipeline.lake import Lake, spark_schema
from orderwire.pipeline.trace_records import read_trace_files
from orderwire.trace.reader import TRACE_SUFFIXES
from orderwire.trace.schema import KEY_COLUMNS, TraceError

_TOPIC = re.compile(r"(?P<topic>[A-Za-z0-9._-]{1,249})@(?P<servers>[^@/]+:\d+(,[^@/]+:\d+)*)")


def open_events(spark: SparkSession, text: str) -> DataFrame:
    """Return the events of SOURCE, each once, in any order, with the columns of `events`.

    SOURCE is a trace file (.arrow, .parquet) or a folder of them, a lake or its table `events`, or
    TOPIC@HOST:PORT.  Raises TraceError when it is none of these.
    """
    path = Path(text)
    if not path.exists():
        found = _TOPIC.fullmatch(text)
        if found is None:
            raise TraceError(
                f"{text!r} is neither a file or folder that exists nor TOPIC@HOST:PORT"
            )
        source = TopicSource(bootstrap=found["servers"])
        return event_rows(source.batch(spark, found["topic"]))
    lake = lake_at(path)
    if lake is not None:
        if not lake.files("events"):
            raise TraceError(f"the lake {lake.root} holds no events yet")
        return lake.read(spark, "events")
    files = [path]
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix in TRACE_SUFFIXES)
        if not files:
            raise TraceError(
                f"no trace in {path}: it has no file that ends in {' or '.join(TRACE_SUFFIXES)}"
            )
    paths = spark.createDataFrame([(str(file.absolute()),) for file in files], "path string")
    events = paths.repartition(len(files)).mapInArrow(read_trace_files, spark_schema("events"))
    return events.dropDuplicates(list(KEY_COLUMNS)) if len(files) > 1 else events


def stream_events(spark: SparkSession, text: str) -> DataFrame:
    """Return the events of TOPIC@HOST:PORT as a stream, as often as they were written.

    Raises TraceError when it is no topic.
    """
    found = _TOPIC.fullmatch(text)
    if found is None:
        raise TraceError(f"{text!r} is not TOPIC@HOST:PORT: only a topic can be followed")
    messages = TopicSource(bootstrap=found["servers"]).stream(spark, found["topic"])
    return decoded_events(messages)


def lake_at(path: Path) -> Lake | None:
    """The lake whose root, or whose table `events`, this folder is; None when it is neither.

    Raises TraceError on another table of a lake.
    """
    if (path / "_delta_log").is_dir():
        if path.absolute().name != "events":
            raise TraceError(f"{path} is a table of a lake, but not 'events': it holds no trace")
        return Lake(path.absolute().parent)
    return Lake(path) if (path / "events" / "_delta_log").is_dir() else None
