"""Where histories of replication are: files, a folder, a topic.  No Spark."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from orderwire.pipeline.client import ReadLimits
from orderwire.pipeline.kafka_client import KafkaClient
from orderwire.pipeline.named_source import Named, NamedTopic, named_source
from orderwire.pipeline.offsets import OffsetRange
from orderwire.trace.errors import TraceError
from orderwire.trace.replication_schema import history_schema, is_history, read_history_record
from orderwire.verify.replication_history import history_files, read_history_file


def is_history_source(source: str | Named) -> bool:
    """Whether a source holds histories of replication.  Raises TraceError, PipelineError."""
    match named_source(source):
        case Path() as path:
            return bool(history_files(path))
        case NamedTopic() as named:
            return _first_is_history(named)
        case _:
            return False


def _first_is_history(named: NamedTopic) -> bool:
    """Look at one record of a topic."""
    client = KafkaClient(named.client)
    try:
        bounds = client.bounds(client.partitions([named.topic]))
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


def _read_topic(named: NamedTopic) -> pa.Table:
    """All rows of a topic, in memory, without Spark.  Raises TraceError, PipelineError."""
    client = KafkaClient(named.client)
    tables = []
    try:
        for place, marks in sorted(client.bounds(client.partitions([named.topic])).items()):
            wanted = OffsetRange(place.topic, place.partition, marks.low, marks.high)
            for messages in client.read(wanted, ReadLimits()):
                for message in messages:
                    value = pa.py_buffer(message.value() or b"")
                    tables.append(read_history_record(value, f"{named.topic}@{message.offset()}"))
    finally:
        client.close()
    if not tables:
        raise TraceError(f"topic {named} holds no record")
    return pa.concat_tables(tables)


def read_histories(source: str | Named, clients: str | Named | None = None) -> pa.Table:
    """All rows of a source, in memory, with those of `clients`: then only of topics that these tell
    of, and as parts of their run.  Raises TraceError, PipelineError."""
    table = _read(source)
    if clients is None:
        return table
    own = _read(clients)
    told = pc.unique(own.column("topic"))
    table = table.filter(pc.is_in(table.column("topic"), told))
    run_id = one_run(pc.unique(own.column("run_id")).to_pylist(), clients)
    field = history_schema().field("run_id")
    table = table.set_column(0, field, pa.array([run_id] * table.num_rows, field.type))
    return pa.concat_tables([table, own])


def one_run(runs: Sequence[str], source: str | Named) -> str:
    """The run that brokers' rows belong to.  Raises TraceError."""
    if len(runs) != 1:
        raise TraceError(
            f"{source} holds histories of {len(runs)} runs; expected those of one, which the"
            " brokers' belong to"
        )
    return runs[0]


def _read(source: str | Named) -> pa.Table:
    match named_source(source):
        case NamedTopic() as named:
            return _read_topic(named)
        case Path() as path:
            return pa.concat_tables([read_history_file(file) for file in history_files(path)])
        case lake:
            raise TraceError(f"{lake.root} is a lake: it holds no history of replication")
