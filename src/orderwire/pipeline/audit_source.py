"""Where `orderwire audit` finds a trace: a file, a folder, a lake, or a topic.  No Spark."""

from collections.abc import Iterator

import pyarrow as pa

from orderwire.pipeline.client import ReadLimits
from orderwire.pipeline.errors import PipelineError, UnknownTopicError
from orderwire.pipeline.kafka_client import KafkaClient
from orderwire.pipeline.lake import Lake
from orderwire.pipeline.named_source import EVENTS, Named, NamedTopic, named_source
from orderwire.pipeline.offsets import OffsetRange
from orderwire.trace.errors import TraceError
from orderwire.trace.reader import read_record
from orderwire.trace.schema import arrow_schema
from orderwire.verify.source import ParquetSource, TableSource, TraceSource, open_source


def find_source(source: str | Named) -> TraceSource:
    """Open a trace: a file or folder, a lake or its table `events`, or TOPIC@HOST:PORT.

    Raises TraceError or PipelineError, with what was wrong.
    """
    match named_source(source):
        case NamedTopic() as named:
            return _read_topic(named)
        case Lake() as lake:
            return ParquetSource(lake.files(EVENTS), versioned=False)
        case path:
            return open_source(path)


def _read_topic(named: NamedTopic) -> TableSource:
    """Read all of a trace topic, as it is now, into memory."""
    client = KafkaClient(named.client)
    try:
        tables = list(_records(client, named.topic))
    finally:
        client.close()
    origin = f"topic {named}"
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
