"""The thread that turns a broker's own history into rows and publishes them."""

import contextlib
import logging
import queue
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from itertools import groupby
from typing import Protocol

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from orderwire.aio.history_spool import Advanced, Row
from orderwire.trace.errors import TraceError
from orderwire.trace.publish import TopicSink
from orderwire.verify.kafka_batches import batches_of
from orderwire.verify.replication import Committed, Event
from orderwire.verify.replication_history import noted_batches

_LOG = logging.getLogger(__name__)
_LOOK_S = 0.02
_RETRY_S = 0.5
_WAIT_S = 600.0
"""How long rows may be under way: a cluster may be without a majority for a while."""
FAILURES_MAX = 3
"""After so many sinks have failed over them, rows are given up."""

Job = tuple[Row, bytes]
"""A row, and of an `Advanced` the batches, from the log."""
Lost = Callable[[Mapping[tuple[str, int], int]], None]
"""Told, in the publisher's thread, how many rows of which partitions are lost."""


class RowSink(Protocol):
    """As `TopicSink`: acknowledgements come in the order of writes."""

    sent: int
    acknowledged: int

    def write(self, batch: pa.RecordBatch) -> None:
        """Send rows.  Raises TraceError."""
        ...

    def poll(self) -> None:
        """Take what was acknowledged.  Raises TraceError."""
        ...

    def close(self) -> None:
        """Wait for all acknowledgements.  Raises TraceError."""
        ...


def event_of(row: Row, data: bytes) -> Event:
    """What the row says to the judge."""
    told = row.event
    if not isinstance(told, Advanced):
        return told
    batches = tuple(
        batch for _, _, batch, _ in batches_of(data) if told.start <= batch.last < told.end
    )
    return Committed(told.broker, told.life, told.start, told.end, batches)


def topic_sink(servers: str, topic: str, client: Mapping[str, str]) -> TopicSink:
    """Make the topic, unless it is there, and what writes to it.  Raises KafkaException."""
    settings: dict[str, str | int | float | bool]
    settings = {"bootstrap.servers": servers, "log_level": 0, **client}
    # One partition: then acknowledgements come in the order of the rows.
    new = NewTopic(topic, 1, config={"orderwire.mode": "active-standby", "retention.ms": "-1"})
    admin = AdminClient(settings)  # to be kept until it has answered
    try:
        admin.create_topics([new])[topic].result(10)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
    timeout = {"message.timeout.ms": int(_WAIT_S * 1_000), "reconnect.backoff.max.ms": 500}
    return TopicSink(servers, topic, timeout_s=_WAIT_S, producer_settings={**timeout, **client})


class HistoryPublisher(threading.Thread):
    """Takes rows in order; `done` tells how many of them are acknowledged, or lost."""

    def __init__(self, run_id: str, make_sink: Callable[[], RowSink], lost: Lost) -> None:
        super().__init__(name="orderwire-history", daemon=True)
        self.done = 0
        self._run_id = run_id
        self._make_sink = make_sink
        self._lost = lost
        self._queue: queue.SimpleQueue[list[Job] | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._under_way: deque[tuple[int, list[Job]]] = deque()
        """Rows, and how many records were sent when they were."""

    def put(self, jobs: list[Job]) -> None:
        """Take rows."""
        self._queue.put(jobs)

    def stop(self) -> None:
        """End; what is not published is left."""
        self._stopping.set()
        self._queue.put(None)

    def run(self) -> None:
        """Publish."""
        sink: RowSink | None = None
        pending: list[Job] = []
        failures = 0
        while not self._stopping.is_set():
            with contextlib.suppress(queue.Empty):
                timeout = _LOOK_S if self._under_way or pending else None
                pending += self._queue.get(timeout=timeout) or []
            if self._stopping.is_set():
                return
            try:
                if sink is None:
                    sink = self._make_sink()
                self._publish(sink, pending)
                pending = []
                if self._settle(sink):
                    failures = 0
            except KafkaException as error:
                _LOG.info("history: %s", error)
                self._stopping.wait(_RETRY_S)
            except TraceError as error:
                _LOG.warning("history: %s", error)
                sink = None
                failures += 1
                # Some of these may be there already: readers take a row once.
                pending = [job for _, jobs in self._under_way for job in jobs] + pending
                self._under_way.clear()
                if failures >= FAILURES_MAX:
                    self.done += len(pending)
                    self._lost(Counter((row.topic, row.partition) for row, _ in pending))
                    pending, failures = [], 0

    def _publish(self, sink: RowSink, jobs: list[Job]) -> None:
        for (writer, topic, partition), of in groupby(sorted(jobs, key=_place), key=_place):
            noted = ((row.position, row.time_ns, event_of(row, data)) for row, data in of)
            for batch in noted_batches(self._run_id, topic, partition, writer, noted):
                sink.write(batch)
        if jobs:
            self._under_way.append((sink.sent, jobs))

    def _settle(self, sink: RowSink) -> bool:
        """Count what was acknowledged; whether anything was."""
        sink.poll()
        before = self.done
        while self._under_way and self._under_way[0][0] <= sink.acknowledged:
            self.done += len(self._under_way.popleft()[1])
        return self.done > before


def _place(job: Job) -> tuple[str, str, int]:
    row = job[0]
    return row.writer, row.topic, row.partition
