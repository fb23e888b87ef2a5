"""A trace as records of a broker topic: one record is one Arrow IPC stream of one batch.

Key: `run_id/process`, so that one process's events stay in one partition, in order.
"""

from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from orderwire.trace.errors import TraceError
from orderwire.trace.reader import record_bytes
from orderwire.trace.sinks import Closing

RECORD_BYTES_MAX = 900_000
"""Largest record value; brokers take 1 MiB by default.  A larger batch is cut in halves."""

QUEUED_KIB_MAX = 64 * 1024
"""Memory of records on their way to the broker, in KiB."""

SEND_TIMEOUT_S = 30.0
"""How long a write waits for room, and `close` for the last acknowledgement."""

_POLL_S = 0.05


class TopicSink(Closing):
    """Publish batches to a topic, acknowledged by the broker; nothing is lost in silence.

    A record that the broker refuses, or that finds no room within `timeout_s`, raises TraceError at
    the next `write` or `close`, with the count.
    """

    def __init__(
        self,
        brokers: str,
        topic: str,
        *,
        timeout_s: float = SEND_TIMEOUT_S,
        producer_settings: dict[str, str | int | float | bool] | None = None,
    ) -> None:
        self.topic = topic
        self.sent = 0
        """Records on their way, or there."""
        self.acknowledged = 0
        """Records that the broker has confirmed."""
        self.failed = 0
        self._timeout_s = timeout_s
        self._failure = ""
        self._open = True
        self._producer = Producer(
            {
                "bootstrap.servers": brokers,
                "enable.idempotence": True,
                "linger.ms": 5,
                "queue.buffering.max.kbytes": QUEUED_KIB_MAX,
                "message.timeout.ms": int(timeout_s * 1000),
                "message.max.bytes": 1_000_000,
                "log_level": 2,
                **(producer_settings or {}),
            }
        )

    def write(self, batch: pa.RecordBatch) -> None:
        """Send the batch; waits for room when the broker is slow.  Raises TraceError."""
        if not self._open:
            raise TraceError(f"the trace to topic {self.topic!r} is closed already")
        self._producer.poll(0)
        self._refuse_failed()
        value = record_bytes(batch)
        if len(value) > RECORD_BYTES_MAX:
            if batch.num_rows == 1:
                raise TraceError(
                    f"one event needs {len(value)} bytes, more than a record holds"
                    f" ({RECORD_BYTES_MAX}): shorten its detail"
                )
            half = batch.num_rows // 2
            self.write(batch.slice(0, half))
            self.write(batch.slice(half))
            return
        key = f"{batch.column(0)[0].as_py()}/{batch.column(1)[0].as_py()}"
        self._produce(key.encode(), value)

    def poll(self) -> None:
        """Take note of what the broker has confirmed by now.  Raises TraceError."""
        self._producer.poll(0)
        self._refuse_failed()

    def close(self) -> None:
        """Wait until the broker has confirmed every record.  Raises TraceError."""
        if not self._open:
            return
        self._open = False
        left = self._producer.flush(self._timeout_s)
        if left:
            self.failed += left
            self._failure = self._failure or f"no acknowledgement within {self._timeout_s} s"
        self._refuse_failed()

    def _produce(self, key: bytes, value: bytes) -> None:
        for _ in range(max(1, round(self._timeout_s / _POLL_S))):
            try:
                self._producer.produce(self.topic, value, key, on_delivery=self._on_delivery)
                self.sent += 1
                return
            except BufferError:
                self._producer.poll(_POLL_S)
                self._refuse_failed()
            except KafkaException as error:
                raise TraceError(
                    f"topic {self.topic!r} refused a trace record: {error.args[0]}"
                ) from None
        raise TraceError(
            f"topic {self.topic!r} takes no more trace records: the queue of"
            f" {QUEUED_KIB_MAX} KiB was full for {self._timeout_s} s. Is the broker up?"
        )

    def _on_delivery(self, error: KafkaError | None, message: Message) -> Any:
        if error is None:
            self.acknowledged += 1
        else:
            self.failed += 1
            self._failure = self._failure or str(error)

    def _refuse_failed(self) -> None:
        if self.failed:
            raise TraceError(
                f"{self.failed} trace records did not reach topic {self.topic!r}:"
                f" {self._failure}. The trace is incomplete"
            )
