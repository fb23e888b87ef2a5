"""Where `orderwire audit` finds a trace: a file, a folder, a lake, or a topic.  No Spark."""

import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from orderwire.pipeline.client import ReadLimits
from orderwire.pipeline.errors import PipelineError, UnknownTopicError
from orderwire.pipeline.kafka_client import KafkaClient
from orderwire.pipeline.lake import Lake
from orderwire.pipeline.offsets import OffsetRange
from orderwire.trace.reader import read_record
from orderwire.trace.schema import TraceError, arrow_schema
from orderwire.verify.source import ParquetSource, TableSource, TraceSource, open_source

_TOPIC = re.compile(r"(?P<topic>[A-Za-z0-9._-]{1,249})@(?P<servers>[^@/]+:\d+(,[^@/]+:\d+)*)")
_EVENTS = "events"
_LOG = "_delta_log"


def find_source(text: str) -> TraceSource:
    """Open a trace: a file or folder, a lake or its table `events`, or TOPIC@HOST:PORT.

    Raises TraceError or PipelineError, with what was wrong.
    """
    path = Path(text)
    if path.exists():
        files = lake_files(path)
        return open_source(path) if files is None else ParquetSource(files, versioned=False)
    found = _TOPIC.fullmatch(text)
    if found is None:
        raise TraceError(f"{text!r} is neither a file or folder that exists nor TOPIC@HOST:PORT")
    return read_topic(found["topic"], found["servers"])


def lake_files(path: Path) -> list[str] | None:
    """Return the files of a lake's events, given its root or that table; None for no lake."""
    if (path / _LOG).is_dir():
        root = path.absolute().parent
        if path.absolute().name != _EVENTS:
            raise TraceError(f"{path} is a table of a lake, but not {_EVENTS!r}: it holds no trace")
    elif (path / _EVENTS / _LOG).is_dir():
        root = path
    else:
        return None
    files = Lake(root).files(_EVENTS)
    if not files:
        raise TraceError(f"the lake {root} holds no events yet")
    return files


def read_topic(topic: str, servers: str) -> TableSource:
    """Read all of a trace topic, as it is now, into memory."""
    client = KafkaClient([("bootstrap.servers", servers)])
    try:
        tables = list(_records(client, topic))
    finally:
        client.close()
    origin = f"topic {topic}@{servers}"
    if not tables:
        raise TraceError(f"{origin} holds no record")
    return TableSource(pa.concat_tables(tables).cast(arrow_schema()), origin)


def _records(client: KafkaClient, topic: str) -> Iterator[pa.Table]:
    partitions = client.partitions([topic])
    if not partitions:
        raise UnknownTopicError(f"the broker has no topic {topic!r}")
    bounds = client.bounds(partitions)
    unheard = [str(partition) for partition in partitions if partition not in bounds]
    if unheard:
        raise PipelineError(f"no leader answers for {', '.join(unheard)}: cannot read all of it")
    for partition, marks in sorted(bounds.items()):
        wanted = OffsetRange(partition.topic, partition.partition, marks.low, marks.high)
        for messages in client.read(wanted, ReadLimits()):
            for message in messages:
                value = message.value()
                if value is not None:
                    origin = f"record {topic}/{partition.partition}@{message.offset()}"
                    yield read_record(value, origin)
