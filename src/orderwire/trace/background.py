"""A sink behind a thread: compressing, disks and brokers do not hold up the protocol.

The thread takes batches from a bounded queue; a full queue holds the caller up until there is room.
"""

import queue
import threading

import pyarrow as pa

from orderwire.trace.errors import TraceError
from orderwire.trace.sinks import Sink

QUEUED_BATCHES_MAX = 16
"""Batches between the tracers and the thread."""


class BackgroundSink:
    """Hand batches to another sink in a thread of its own.  What that sink raises comes back."""

    def __init__(self, sink: Sink, *, queued_batches_max: int = QUEUED_BATCHES_MAX) -> None:
        self._sink = sink
        self._queue: queue.Queue[pa.RecordBatch | None] = queue.Queue(queued_batches_max)
        self._failure: Exception | None = None
        self._open = True
        self._thread = threading.Thread(target=self._run, name="orderwire-trace", daemon=True)
        self._thread.start()

    def write(self, batch: pa.RecordBatch) -> None:
        """Queue this batch.  Raises TraceError when an earlier one was lost."""
        if not self._open:
            raise TraceError("the trace is closed already")
        self._refuse_failed()
        self._queue.put(batch)

    def close(self) -> None:
        """Return when the other sink has taken everything and is closed."""
        if self._open:
            self._open = False
            self._queue.put(None)
            self._thread.join()
            self._refuse_failed()

    def _run(self) -> None:
        while (batch := self._queue.get()) is not None:
            if self._failure is None:
                try:
                    self._sink.write(batch)
                except Exception as error:
                    self._failure = error
        try:
            self._sink.close()
        except Exception as error:
            self._failure = self._failure or error

    def _refuse_failed(self) -> None:
        if self._failure is not None:
            raise TraceError(f"the trace is incomplete: {self._failure}") from self._failure
