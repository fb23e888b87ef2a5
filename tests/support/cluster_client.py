"""Clients of a cluster that remember what was acknowledged, and find it again."""

import itertools
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from orderwire.broker.replication.settings import Mode

SECONDS_MAX = 40.0
QUIET: dict[str, Any] = {"log_level": 0}
_OTHERS_UNKNOWN = {
    KafkaError.INVALID_REPLICATION_FACTOR,
    KafkaError.INVALID_REPLICA_ASSIGNMENT,
}


def quick_in(quick: Mode) -> pytest.MarkDecorator:
    """In every mode, but in the others only where there is time."""
    modes = [
        pytest.param(mode, id=mode.value, marks=() if mode is quick else pytest.mark.slow)
        for mode in Mode
    ]
    return pytest.mark.parametrize("mode", modes)


def make_topic(bootstrap: str, topic: str, partitions: int = 1, **config: str) -> None:
    make(bootstrap, NewTopic(topic, partitions, 3, config=config))


def make(bootstrap: str, new: NewTopic) -> None:
    """Make a topic with a replica at each of three brokers."""
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    until(lambda: len(admin.list_topics(timeout=SECONDS_MAX).brokers) >= 3, "brokers are missing")
    end = time.monotonic() + SECONDS_MAX
    while True:
        try:
            admin.create_topics([new])[new.topic].result(SECONDS_MAX)
            return
        except KafkaException as error:
            # The broker that is asked may know the others a moment later than the one before.
            if error.args[0].code() not in _OTHERS_UNKNOWN or time.monotonic() > end:
                raise
            time.sleep(0.1)


def in_sync(bootstrap: str, topic: str, partition: int = 0) -> list[int]:
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    found = admin.list_topics(topic, SECONDS_MAX).topics[topic].partitions[partition]
    return sorted(found.isrs)


def until(holds: Callable[[], bool], what: str, seconds: float = SECONDS_MAX) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.1)


class Acked:
    """A producer that remembers the offset and the time of every acknowledgement."""

    def __init__(self, bootstrap: str, topic: str, **settings: Any) -> None:
        told = {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0, **QUIET, **settings}
        self.producer = Producer(told)
        self.topic = topic
        self.at: dict[int, bytes] = {}
        self.times: list[float] = []
        self.errors: list[str] = []
        self.sent = 0

    def send(self, count: int, pause_s: float = 0.0) -> None:
        for _ in range(count):
            self.producer.produce(self.topic, b"%d" % self.sent, on_delivery=self._done)
            self.sent += 1
            self.producer.poll(0)
            if pause_s:
                time.sleep(pause_s)

    def flush(self) -> None:
        assert self.producer.flush(SECONDS_MAX) == 0

    def largest_gap_s(self, since: float) -> float:
        """The longest time without an acknowledgement from then on."""
        times = [since, *(at for at in self.times if at > since)]
        return max(b - a for a, b in itertools.pairwise(times))

    def _done(self, error: Any, message: Any) -> None:
        if error is not None:
            self.errors.append(str(error))
            return
        assert message.offset() not in self.at, "two messages were told the same offset"
        self.at[message.offset()] = message.value()
        self.times.append(time.monotonic())


def read_all(bootstrap: str, topic: str, count: int, **settings: Any) -> dict[int, bytes]:
    """Read this many messages from the topic's one partition, by offset."""
    told = {"bootstrap.servers": bootstrap, "group.id": "all", "enable.auto.commit": False}
    found: dict[int, bytes] = {}
    end = time.monotonic() + SECONDS_MAX
    last = -1
    with closing(Consumer({**told, **QUIET, **settings})) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while len(found) < count and time.monotonic() < end:
            message = consumer.poll(1)
            if message is None or message.error():
                continue
            assert message.offset() > last, "offsets do not ascend"
            last = message.offset()
            found[last] = message.value()
    return found


def logs_of(folder: Path, topic_id: str, partition: int = 0) -> bytes:
    """What a stopped broker's segments of a partition hold."""
    place = folder / "topics" / topic_id / str(partition)
    return b"".join(path.read_bytes() for path in sorted(place.glob("*.log")))
