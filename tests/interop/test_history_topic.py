"""Brokers write their history into a topic: with their clients' it gives the verdicts of files."""

import json
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer, TopicPartition

from orderwire.aio.cluster_process import ClusterProcess
from orderwire.aio.history_options import HISTORY_TOPIC
from orderwire.broker.replication.settings import Mode
from orderwire.cli.main import main
from orderwire.pipeline.replication_source import read_histories
from orderwire.trace.errors import TraceError
from orderwire.verify.kafka_batches import batches_of
from orderwire.verify.replication import (
    Acknowledged,
    Committed,
    Delivered,
    Elected,
    Event,
    Held,
    Requested,
)
from orderwire.verify.replication_history import by_partition, parts_from, write_history

pytestmark = [pytest.mark.network, pytest.mark.timeout(280)]

TOPIC = "told"
MESSAGES = 60
SECONDS_MAX = 60.0


def produced(cluster: ClusterProcess, first: int) -> list[Event]:
    """Send messages one by one, and tell what was heard of them."""
    events: list[Event] = []
    heard: list[tuple[str, int]] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True})
    for number in range(first, first + MESSAGES):
        name = f"m-{number}"
        events.append(Requested(f"p{first}", (name,), -1))
        producer.produce(
            TOPIC,
            f"<{name}>".encode(),
            partition=0,
            on_delivery=lambda error, message, name=name: heard.append((name, message.offset())),
        )
        producer.poll(0.001)
    assert producer.flush(SECONDS_MAX) == 0
    return events + [Acknowledged((name,), -1, offset) for name, offset in heard if offset >= 0]


def consumed(cluster: ClusterProcess) -> list[Event]:
    """Read all of it."""
    records: list[tuple[int, str]] = []
    end = time.monotonic() + SECONDS_MAX
    told = {"bootstrap.servers": cluster.bootstrap, "group.id": "told"}
    with closing(Consumer(told)) as consumer:
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        while len(records) < 2 * MESSAGES and time.monotonic() < end:
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                value = message.value()
                assert value is not None
                records.append((message.offset() or 0, value.decode().strip("<>")))
    assert len(records) == 2 * MESSAGES
    position = records[-1][0] + 1
    return [Delivered("c", -1, 0, position, position, tuple(records))]


def on_disk(folder: Path, broker: int) -> bytes:
    """The partition's main log at one broker."""
    paths = sorted((folder / f"broker-{broker}").glob("topics/*/0/*.log"))
    whole = [path.read_bytes() for path in paths]
    return next(data for data in whole if b"<m-0>" in data)


def verdicts(*options: str) -> tuple[dict[str, str], Any]:
    done = CliRunner().invoke(main, ["audit", *options, "--json"])
    assert done.exit_code in (0, 1), done.output
    told = json.loads(done.output)
    return {check["id"]: check["verdict"] for check in told["checks"]}, told


def wait_until_written(source: str, high: int) -> None:
    """Every broker has told of the last high watermark."""
    end = time.monotonic() + SECONDS_MAX
    brokers: set[int] = set()
    while time.monotonic() < end and len(brokers) < 3:
        try:
            tables = dict(by_partition(read_histories(source)))
        except TraceError:
            tables = {}
        brokers = {
            noted.event.broker
            for (_, topic, _), rows in tables.items()
            if topic == TOPIC
            for each in parts_from(rows).written.values()
            for noted in each
            if isinstance(noted.event, Committed) and noted.event.high_watermark == high
        }
        time.sleep(0.2)
    assert brokers == {0, 1, 2}


@pytest.mark.parametrize("mode", list(Mode))
def test_the_topic_gives_the_verdicts_of_the_files(tmp_path: Path, mode: Mode) -> None:
    clients = tmp_path / "clients.parquet"
    files = tmp_path / "files.parquet"
    with ClusterProcess.start(
        tmp_path / "c", f"--history-topic={HISTORY_TOPIC}", mode=mode, session_ms=1_500
    ) as cluster:
        source = f"{HISTORY_TOPIC}@{cluster.bootstrap}"
        events = produced(cluster, 0)
        cluster.brokers[0].kill()
        cluster.restart(0)
        events += produced(cluster, MESSAGES)
        events += consumed(cluster)
        high = max(event.next_position for event in events if isinstance(event, Delivered))
        wait_until_written(source, high)
        disks = {
            broker: tuple(
                batch
                for _, _, batch, _ in batches_of(on_disk(tmp_path / "c", broker))
                if batch.last < high
            )
            for broker in range(3)
        }
        events += [Held(broker, True, high, held) for broker, held in disks.items()]
        write_history(clients, {("run", TOPIC, 0): events})
        by_topic, told = verdicts(source, "--clients", str(clients))
        _, alone = verdicts(source)
    heard = [event for event in events if isinstance(event, Requested)]
    rest = [event for event in events if not isinstance(event, Requested)]
    committed = [Committed(broker, 0, 0, high, held) for broker, held in disks.items()]
    of_files: list[Event] = [*heard, Elected(0, 0), *committed, *rest]
    write_history(files, {("run", TOPIC, 0): of_files})
    by_files, _ = verdicts(str(files))
    assert by_topic == by_files
    assert told["partitions"][0]["missing"] == []
    assert {by_topic[each] for each in ("I1", "I2", "I3", "I5", "I6", "I7", "I9", "I10")} == {
        "VALID"
    }
    assert alone["verdict"] == "UNKNOWN"
