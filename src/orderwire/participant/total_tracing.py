"""The trace of a member of a totally ordered group: opened, written now and then, closed."""

import asyncio
import logging
from typing import TYPE_CHECKING

import msgspec

from orderwire.aio.clock import GroupClock
from orderwire.aio.total_trace import TotalTrace
from orderwire.kernel import NS_PER_S, LocalProtocolError, ProcessId
from orderwire.ordering.total.tachikawa_st import TachikawaST
from orderwire.participant.tracing import Trace
from orderwire.trace.errors import TraceError
from orderwire.trace.events import RunSettings

if TYPE_CHECKING:
    import pyarrow as pa

    from orderwire.trace.sinks import Sink

_LOG = logging.getLogger(__name__)

IDS_MAX = 256
"""Ids of a traced group that ZooKeeper knows; the lowest free one is taken."""


class _LastingSink:
    """A sink that does not fail before it is closed: the group runs on without its trace.

    After a batch that cannot be written there are no more: the trace is cut off, and has no hole.
    """

    def __init__(self, sink: "Sink", run: str, *, own: bool) -> None:
        self._sink = sink
        self._run = run
        self._own = own
        self._failure: Exception | None = None

    def write(self, batch: "pa.RecordBatch") -> None:
        """Hand it on."""
        if self._failure is None:
            try:
                self._sink.write(batch)
            except (TraceError, OSError) as error:
                self._failure = error
                _LOG.error("the trace of %s ends here: %s", self._run, error)

    def close(self) -> None:
        """Return when all is written.  Raises TraceError when it is not."""
        if self._own:
            self._sink.close()
        if self._failure is not None:
            raise TraceError(f"the trace is incomplete: {self._failure}") from self._failure


class GroupTracing:
    """Writes the trace of one member."""

    def __init__(
        self,
        trace: Trace,
        me: ProcessId,
        clock: GroupClock,
        *,
        members: int | None,
        one_clock: bool,
        hung_ns: int | None = None,
    ) -> None:
        """`members`: of a fixed group, whose view begins now; None where views will tell.

        Raises OSError, TraceError, and LocalProtocolError for an id that is too high.
        """
        from orderwire.trace.writer import Tracer  # imports Arrow

        if members is None and me >= IDS_MAX:
            raise LocalProtocolError(
                f"process {me} of a group that is traced: ids end at {IDS_MAX - 1}"
            )
        settings = RunSettings(
            algorithm=TachikawaST.NAME,
            members=members or IDS_MAX,
            clock="shared" if one_clock else "local",
            open=True if members is None else msgspec.UNSET,  # then not every id is somebody's
        )
        self._flush_s = trace.flush_interval_ns / NS_PER_S
        self._clock = clock
        own = trace.sink is None
        self._sink = _LastingSink(trace.open(f"member-{me}"), trace.run, own=own)
        now = clock.now()
        self.trace = TotalTrace(Tracer(trace.run, me, self._sink, settings, now), now, hung_ns)
        if members is not None:
            self.trace.installed(0, (1 << members) - 1, now)
        self._timer = self._armed()

    def finish(self, *, whole: bool) -> None:
        """Record no more; `whole`: this member had come to rest."""
        self._timer.cancel()
        self.trace.close(self._clock.now(), whole=whole)

    async def close(self) -> None:
        """Return when all is written.  Raises TraceError when it is not."""
        await asyncio.to_thread(self._sink.close)

    def _armed(self) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(self._flush_s, self._flush)

    def _flush(self) -> None:
        self.trace.flush(self._clock.now())
        self._timer = self._armed()
