"""Producers and consumers that write down everything they did and heard.

Each message is named once, by its producer and a number.  Producers without idempotence send it
once only: nothing would tell a second copy apart.  But librdkafka sends again, as if it could not
be stored, what is on its way to a broker that is no longer among those that there are.  Its log
tells of that, and which broker a message went to: without idempotence a session is a connection,
and nothing holds together what one broker was given and what the next.
"""

import contextlib
import logging
import re
import threading
import time
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

NOT_TOLD = -2
"""Offset of a message that was acknowledged without one."""
PADDING = 60
"""Bytes behind each message's name."""
_QUICK: dict[str, Any] = {
    "log_level": 0,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "topic.metadata.refresh.fast.interval.ms": 50,
    "topic.metadata.refresh.interval.ms": 5_000,
    "socket.timeout.ms": 5_000,
    "broker.address.family": "v4",
}
_SENT_AGAIN = "encountered error: Local: Broker handle destroyed"
_SENT_TO = re.compile(r"/(\d+): \S+ \[\d+\]: Produce MessageSet")
"""How librdkafka's log tells of it."""
_BURST_MAX = 4
_CONSUMED_MAX = 500


class Sent(msgspec.Struct):
    """A message that a producer was given, and what it heard of it."""

    name: str
    partition: int
    session: str
    acks: int
    sent_s: float
    answered_s: float = 0.0
    offset: int = -1
    error: str = ""
    sent_again: bool = False
    """By the client, on its own account, though the first may be stored."""


class Moved(msgspec.Struct, frozen=True):
    """A consumer got from a position to the next."""

    consumer: str
    partition: int
    position: int
    next_position: int
    records: tuple[tuple[int, str], ...]


class Producing(threading.Thread):
    """One producer; it goes on until it is told to stop, and then waits for its answers."""

    def __init__(
        self,
        name: str,
        bootstrap: str,
        topic: str,
        partitions: int,
        draw: Random,
        *,
        acks: int,
        idempotent: bool,
        pause_s: float,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.sent: list[Sent] = []
        self.failures: list[str] = []
        """Of the client itself, which then begins anew."""
        self._servers = bootstrap
        self._topic = topic
        self._partitions = partitions
        self._draw = draw
        self._acks = acks
        self._idempotent = idempotent
        self._pause_s = pause_s
        self._stopping = threading.Event()
        self._life = 0
        self._fresh: dict[int, int] = {}
        """How often each partition's session has begun anew."""
        self._brokers: dict[int, str] = {}
        """Which broker each partition's messages went to last."""

    def stop(self) -> None:
        """Ask it to end."""
        self._stopping.set()

    def run(self) -> None:
        """Produce."""
        producer = self._connect()
        while not self._stopping.is_set():
            try:
                self._send_some(producer)
            except (KafkaException, BufferError) as error:
                self.failures.append(str(error))
                self._settle(producer)
                producer = self._connect()
            self._stopping.wait(self._pause_s * self._draw.uniform(0.2, 1.8))
        self._settle(producer)

    def _connect(self) -> Producer:
        self._life += 1
        settings: dict[str, Any] = {
            "bootstrap.servers": self._servers,
            "client.id": f"{self.name}-{self._life}",
            "acks": self._acks,
            "linger.ms": 1,
            "retry.backoff.ms": 20,
            "retry.backoff.max.ms": 200,
            "message.timeout.ms": 120_000 if self._idempotent else 5_000,
            "request.timeout.ms": 3_000,
            **_QUICK,
        }
        if self._idempotent:
            settings["enable.idempotence"] = True
            return Producer(settings)
        settings |= {
            "message.send.max.retries": 0,
            "max.in.flight.requests.per.connection": 1,
            "log_level": 7,
            "debug": "msg",
        }
        log = logging.Logger(self.name)
        log.addHandler(_Listening(self._told))
        return Producer(settings, logger=log)

    def _told(self, line: str) -> None:
        """Take a line of the log: of the last message, as one is on its way at a time."""
        one = self.sent[-1]
        if _SENT_AGAIN in line:
            one.sent_again = True
        elif (found := _SENT_TO.search(line)) is not None:
            broker = found.group(1)
            if self._brokers.setdefault(one.partition, broker) != broker:
                self._brokers[one.partition] = broker
                self._begin_session(one.partition)
                one.session = self._session(one.partition)

    def _session(self, partition: int) -> str:
        return f"{self.name}.{self._life}.{partition}.{self._fresh.get(partition, 0)}"

    def _begin_session(self, partition: int) -> None:
        self._fresh[partition] = self._fresh.get(partition, 0) + 1

    def _send_some(self, producer: Producer) -> None:
        partition = self._draw.randrange(self._partitions)
        for _ in range(self._draw.randint(1, _BURST_MAX)):
            one = Sent(
                f"{self.name}-{len(self.sent)}",
                partition,
                self._session(partition),
                self._acks,
                time.monotonic(),
            )
            self.sent.append(one)
            value = f"<{one.name}>".encode() + b"." * PADDING

            def heard(error: KafkaError | None, message: Any, one: Sent = one) -> None:
                one.answered_s = time.monotonic()
                if error is None:
                    offset = message.offset()
                    one.offset = NOT_TOLD if offset is None else offset
                else:
                    one.error = str(error.name())
                    # Whatever became of it, what is sent from here on may come before.
                    self._begin_session(one.partition)

            producer.produce(self._topic, value, partition=partition, on_delivery=heard)
            if not self._idempotent:
                producer.flush(10)
        producer.poll(0)

    def _settle(self, producer: Producer) -> None:
        producer.flush(30)
        with contextlib.suppress(KafkaException):
            producer.purge()
            producer.flush(1)


class _Listening(logging.Handler):
    """Hands on librdkafka's log, which comes while its user polls."""

    def __init__(self, told: Callable[[str], None]) -> None:
        super().__init__()
        self._told = told

    def emit(self, record: logging.LogRecord) -> None:
        """Take a line."""
        self._told(record.getMessage())


class Consuming(threading.Thread):
    """One consumer that reads all partitions from their start, without a group."""

    def __init__(self, name: str, bootstrap: str, topic: str, partitions: int) -> None:
        super().__init__(name=name, daemon=True)
        self.moved: list[Moved] = []
        self.errors: list[str] = []
        self.positions = dict.fromkeys(range(partitions), 0)
        self._servers = bootstrap
        self._topic = topic
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Ask it to end."""
        self._stopping.set()

    def run(self) -> None:
        """Consume."""
        consumer = Consumer(
            {
                "bootstrap.servers": self._servers,
                "client.id": self.name,
                "group.id": self.name,
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 100,
                "fetch.error.backoff.ms": 50,
                **_QUICK,
            }
        )
        consumer.assign([TopicPartition(self._topic, each, 0) for each in self.positions])
        try:
            while not self._stopping.is_set():
                self._take(consumer.consume(_CONSUMED_MAX, 0.1))
        finally:
            consumer.close()

    def _take(self, messages: list[Any]) -> None:
        taken: dict[int, list[tuple[int, str]]] = {}
        for message in messages:
            error = message.error()
            if error is not None:
                self.errors.append(str(error))
                continue
            name = message.value().partition(b">")[0][1:].decode()
            taken.setdefault(message.partition(), []).append((message.offset(), name))
        for partition, records in taken.items():
            position, end = self.positions[partition], records[-1][0] + 1
            self.positions[partition] = end
            self.moved.append(Moved(self.name, partition, position, end, tuple(records)))
