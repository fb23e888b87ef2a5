"""Where histories of replication are: files, a folder, a topic.  No Spark."""

from pathlib import Path

import pyarrow as pa

from orderwire.pipeline.client import ReadLimits
from orderwire.pipeline.kafka_client import KafkaClient
from orderwire.pipeline.named_source import NamedTopic, named_source
from orderwire.pipeline.offsets import OffsetRange
from orderwire.trace.errors import TraceError
from orderwire.trace.replication_schema import check_history, is_history
from orderwire.verify.replication_history import history_files, read_history_file


def is_history_source(source: str) -> bool:
    """Whether a source holds histories of replication.  Raises TraceError, PipelineError."""
    match named_source(source):
        case Path() as path:
            return bool(history_files(path))
        case NamedTopic(topic, servers):
            return _first_is_history(topic, servers)
        case _:
            return False


def _first_is_history(topic: str, servers: str) -> bool:
    """Look at one record of a topic."""
    client = KafkaClient([("bootstrap.servers", servers)])
    try:
        bounds = client.bounds(client.partitions([topic]))
        for place, marks in sorted(bounds.items()):
            if marks.low < marks.high:
                wanted = OffsetRange(place.topic, place.partition, marks.low, marks.low + 1)
                for messages in client.read(wanted, ReadLimits()):
                    for message in messages:
                        return _is_record(message.value())
    finally:
        client.close()
    return False


def _is_record(value: bytes | None) -> bool:
    try:
        with pa.ipc.open_stream(pa.py_buffer(value or b"")) as reader:
            return is_history(reader.schema)
    except pa.ArrowInvalid:
        return False


def _read_topic(topic: str, servers: str) -> pa.Table:
    """All rows of a topic, in memory, without Spark.  Raises TraceError, PipelineError."""
    client = KafkaClient([("bootstrap.servers", servers)])
    tables = []
    try:
        for place, marks in sorted(client.bounds(client.partitions([topic])).items()):
            wanted = OffsetRange(place.topic, place.partition, marks.low, marks.high)
            for messages in client.read(wanted, ReadLimits()):
                for message in messages:
                    with pa.ipc.open_stream(pa.py_buffer(message.value() or b"")) as reader:
                        check_history(reader.schema, f"{topic}@{message.offset()}")
                        tables.append(reader.read_all())
    finally:
        client.close()
    if not tables:
        raise TraceError(f"topic {topic}@{servers} holds no record")
    return pa.concat_tables(tables)


def read_histories(source: str) -> pa.Table:
    """All rows of a source, in memory.  Raises TraceError, PipelineError."""
    match named_source(source):
        case NamedTopic(topic, servers):
            return _read_topic(topic, servers)
        case Path() as path:
            return pa.concat_tables([read_history_file(file) for file in history_files(path)])
        case _:
            raise TraceError(f"{source} is a lake: it holds no history of replication")
