"""`orderwire topic`: topics of any broker that speaks the Kafka protocol."""

import functools
import importlib
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import click
import msgspec

from orderwire.broker.coordination.layout import REPLICAS_MAX
from orderwire.cli.client_config import CLIENT_CONFIG
from orderwire.cli.output import EXIT_FAILED, emit, emit_json, progress

REQUEST_SECONDS = 15.0
"""How long an administrative request may take."""
DELIVERY_SECONDS = 60.0
"""How long a written message may wait for its acknowledgement."""
READ_SECONDS = 30.0
"""How long `read` waits for the next message before it gives up."""
_BROKERS_DEFAULT = -1
"""As many copies as brokers give topics that do not say."""

C = TypeVar("C")
T = TypeVar("T")
Wrapped = Callable[..., Any]


class Servers(msgspec.Struct, frozen=True):
    """Whom to ask, and how to pass their listeners' TLS and SASL."""

    bootstrap: str
    more: dict[str, str]

    def client(self, kind: Callable[[dict[str, Any]], C], **settings: Any) -> C:
        """Make a client of librdkafka's.  Raises click.UsageError."""
        from confluent_kafka import KafkaException

        ours = {"bootstrap.servers": self.bootstrap, "log_level": 0}
        try:
            return kind(ours | self.more | settings)
        except KafkaException as error:
            raise click.UsageError(f"--client-config: {error.args[0].str()}") from None


def _servers(function: Wrapped) -> Wrapped:
    @functools.wraps(function)
    def wrapped(*arguments: Any, bootstrap: str, client_config: dict[str, str], **rest: Any) -> Any:
        return function(*arguments, servers=Servers(bootstrap, client_config), **rest)

    return click.option(
        "--bootstrap", default="127.0.0.1:9092", show_default=True, help="HOST:PORT of a broker."
    )(CLIENT_CONFIG(wrapped))


def _json(function: Wrapped) -> Wrapped:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)


def _api() -> Any:
    """Import confluent_kafka.admin, whose annotations name only half of what it exports."""
    return importlib.import_module("confluent_kafka.admin")


def _admin(servers: Servers) -> Any:
    return servers.client(_api().AdminClient)


def _result(future: "Future[T]", what: str) -> T:
    """Wait for an administrative answer; end with its error."""
    from confluent_kafka import KafkaException

    try:
        return future.result(REQUEST_SECONDS)
    except KafkaException as error:
        raise click.ClickException(f"{what}: {error.args[0].str()}") from None
    except TimeoutError:
        raise click.ClickException(f"{what}: no answer within {REQUEST_SECONDS} s") from None


def _topics(admin: Any, servers: Servers) -> Any:
    """Ask for all topics: asking for one by name may make it."""
    from confluent_kafka import KafkaException

    try:
        return admin.list_topics(timeout=REQUEST_SECONDS).topics
    except KafkaException as error:
        raise click.ClickException(f"{servers.bootstrap}: {error.args[0].str()}") from None


def _topic(admin: Any, servers: Servers, topic: str) -> Any:
    found = _topics(admin, servers).get(topic)
    if found is None:
        raise click.ClickException(f"{servers.bootstrap} has no topic {topic!r}")
    return found


@click.group()
def command() -> None:
    """Create, list, describe, write, read and delete topics.

    Example:  orderwire topic write chapters --file alice29.txt --message-bytes 100
    """


@command.command(epilog="Example:  orderwire topic create frames --partitions 3")
@click.argument("topic")
@click.option("--partitions", default=1, show_default=True, type=click.IntRange(1))
@click.option(
    "--replication",
    type=click.IntRange(1, REPLICAS_MAX),
    help="Copies of each partition; default: what the brokers were told.",
)
@click.option("--config", "configs", multiple=True, metavar="KEY=VALUE")
@_servers
@_json
def create(
    topic: str,
    partitions: int,
    replication: int | None,
    configs: tuple[str, ...],
    servers: Servers,
    as_json: bool,
) -> None:
    """Make a topic."""
    settings = {}
    for text in configs:
        key, equals, value = text.partition("=")
        if not equals:
            raise click.UsageError(f"--config is {text!r}; expected KEY=VALUE")
        settings[key] = value
    copies = _BROKERS_DEFAULT if replication is None else replication
    new = _api().NewTopic(topic, partitions, copies, config=settings)
    admin = _admin(servers)
    futures = admin.create_topics([new], operation_timeout=REQUEST_SECONDS)
    _result(futures[topic], topic)
    if as_json:
        emit_json({"topic": topic, "partitions": partitions})
    else:
        emit(f"{topic}: {partitions} partitions")


@command.command("list", epilog="Example:  orderwire topic list")
@_servers
@_json
def list_(servers: Servers, as_json: bool) -> None:
    """List all topics."""
    found = _topics(_admin(servers), servers)
    rows = [{"topic": name, "partitions": len(found[name].partitions)} for name in sorted(found)]
    if as_json:
        emit_json({"topics": rows})
        return
    for row in rows:
        emit(f"{row['topic']}: {row['partitions']} partitions")


@command.command(epilog="Example:  orderwire topic describe frames")
@click.argument("topic")
@_servers
@_json
def describe(topic: str, servers: Servers, as_json: bool) -> None:
    """Tell a topic's partitions, their offsets, and its configuration."""
    from confluent_kafka import TopicPartition

    api = _api()
    admin = _admin(servers)
    found = _topic(admin, servers, topic)
    places = [TopicPartition(topic, index) for index in sorted(found.partitions)]
    first = admin.list_offsets({place: api.OffsetSpec.earliest() for place in places})
    last = admin.list_offsets({place: api.OffsetSpec.latest() for place in places})
    rows = []
    for place in places:
        begin = _result(first[place], topic).offset
        end = _result(last[place], topic).offset
        told = found.partitions[place.partition]
        where = {"leader": told.leader, "replicas": told.replicas, "in_sync": told.isrs}
        rows.append({"partition": place.partition, **where, "start": begin, "end": end})
    resource = api.ConfigResource(api.ResourceType.TOPIC, topic)
    configs = _result(admin.describe_configs([resource])[resource], topic)
    values = {name: configs[name].value for name in sorted(configs)}
    if as_json:
        emit_json({"topic": topic, "partitions": rows, "configs": values})
        return
    for row in rows:
        copies = ", ".join(map(str, row["replicas"]))
        in_sync = ", ".join(map(str, row["in_sync"]))
        emit(
            f"{topic}-{row['partition']}: leader {row['leader']} of {copies} (in sync: {in_sync}),"
            f" {row['start']} … {row['end']}"
        )
    for name, value in values.items():
        emit(f"  {name} = {value}")


@command.command(epilog="Example:  orderwire topic delete frames")
@click.argument("topic")
@_servers
@_json
def delete(topic: str, servers: Servers, as_json: bool) -> None:
    """Delete a topic and all its messages."""
    admin = _admin(servers)
    futures = admin.delete_topics([topic], operation_timeout=REQUEST_SECONDS)
    _result(futures[topic], topic)
    if as_json:
        emit_json({"deleted": topic})
    else:
        emit(f"{topic}: deleted")


@command.command(epilog="Example:  orderwire topic write book --file alice29.txt")
@click.argument("topic")
@click.option("--file", "source", type=click.File("rb"), default="-", help="Default: stdin.")
@click.option(
    "--message-bytes",
    type=click.IntRange(1, 1_000_000),
    help="Cut the input into messages of this length; without it each line is one.",
)
@click.option("--key", help="Key of every message.")
@click.option("--partition", default=-1, help="Write to this partition only.")
@click.option(
    "--compression",
    default="none",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
)
@_servers
@_json
def write(
    topic: str,
    source: BinaryIO,
    message_bytes: int | None,
    key: str | None,
    partition: int,
    compression: str,
    servers: Servers,
    as_json: bool,
) -> None:
    """Write a file as messages: pieces of N bytes, or lines."""
    from confluent_kafka import Producer

    settings = {
        "enable.idempotence": True,
        "compression.type": compression,
        "delivery.timeout.ms": int(DELIVERY_SECONDS * 1_000),
    }
    producer = servers.client(Producer, **settings)
    failures: list[str] = []

    def delivered(error: Any, _: Any) -> None:
        if error is not None:
            failures.append(error.str())

    messages = size = 0
    for piece in _pieces(source, message_bytes):
        while not failures:
            try:
                producer.produce(topic, piece, key, partition, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.1)
        if failures:
            break
        producer.poll(0)
        messages += 1
        size += len(piece)
    unsent = producer.flush(DELIVERY_SECONDS)
    if failures or unsent:
        raise click.ClickException(
            f"{topic}: {failures[0] if failures else f'{unsent} messages were not acknowledged'}"
        )
    if as_json:
        emit_json({"topic": topic, "messages": messages, "bytes": size})
    else:
        emit(f"{topic}: {messages} messages, {size} bytes")


def _pieces(source: BinaryIO, message_bytes: int | None) -> Iterator[bytes]:
    if message_bytes is None:
        yield from source
        return
    while piece := source.read(message_bytes):
        yield piece


@command.command(epilog="Example:  orderwire topic read book --out copy.txt")
@click.argument("topic")
@click.option("--partition", type=int, help="Read this partition only.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Default: stdout.")
@click.option("--messages", type=click.IntRange(1), help="Stop after this many.")
@click.option("--follow", is_flag=True, help="Wait for more instead of ending at the end.")
@_servers
@_json
def read(
    topic: str,
    partition: int | None,
    out: Path | None,
    messages: int | None,
    follow: bool,
    servers: Servers,
    as_json: bool,
) -> None:
    """Copy a topic's messages, from the first to the end, byte for byte.

    With --json a summary is printed; then the messages go to --out only.
    """
    found = _topic(_admin(servers), servers, topic)
    wanted = sorted(found.partitions) if partition is None else [partition]
    sink: BinaryIO | None = None if as_json else sys.stdout.buffer
    if out is not None:
        sink = out.open("wb")
    count = size = 0
    try:
        for value in _values(servers, topic, wanted, follow=follow):
            count += 1
            size += len(value)
            if sink is not None:
                sink.write(value)
                if follow:
                    sink.flush()
            if count == messages:
                break
    finally:
        if sink is not None:
            sink.flush()
        if out is not None and sink is not None:
            sink.close()
    if as_json:
        emit_json({"topic": topic, "messages": count, "bytes": size})
    else:
        progress(f"{topic}: {count} messages, {size} bytes")


def _values(
    servers: Servers, topic: str, partitions: list[int], *, follow: bool
) -> Iterator[bytes]:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

    settings = {
        "group.id": "orderwire-topic-read",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
    }
    consumer = servers.client(Consumer, **settings)
    ended: set[int | None] = set()
    try:
        consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in partitions])
        last = time.monotonic()
        while follow or len(ended) < len(partitions):
            for message in consumer.consume(1_000, 0.5):
                last = time.monotonic()
                error = message.error()
                if error is None:
                    yield message.value() or b""
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
                elif error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:  # we are in none
                    raise click.ClickException(f"{topic}: {error.str()}")
            if not follow and time.monotonic() - last > READ_SECONDS:
                progress(f"{topic}: nothing came for {READ_SECONDS} s")
                sys.exit(EXIT_FAILED)
    finally:
        consumer.close()
