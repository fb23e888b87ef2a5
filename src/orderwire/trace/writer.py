"""Recording what one process does, at a cost that can stay switched on.

A `Tracer` is one process in one run.  Positions count from 0 without holes, START is first and END
last.  An event costs a few tenths of a microsecond; batches go to the sink when they are full, or
on `flush`.
"""

import msgspec

from orderwire.kernel import LocalProtocolError
from orderwire.trace.columns import EventColumns, mask_bytes
from orderwire.trace.events import Event, EventKind, RunSettings
from orderwire.trace.sinks import Sink

BATCH_EVENTS = 16_384
"""Events that wait in memory at most, for one process in one run.

A batch costs 0.3 ms whatever its length, so a quarter of the length costs an event 0.06 µs more.
"""


class Tracer(EventColumns):
    """The trace of one process in one run.

    `now` is the process's own clock, taken for the run's common time too.  Where the run has a
    common time beside it (the simulator), use `record`, which takes whole events.
    """

    def __init__(
        self,
        run_id: str,
        process: int,
        sink: Sink,
        settings: RunSettings,
        now: int,
        *,
        time: int | None = None,
        batch_events: int = BATCH_EVENTS,
    ) -> None:
        if not run_id:
            raise LocalProtocolError("a trace needs a run_id: name the run, e.g. 'conference-1'")
        super().__init__(run_id, process, batch_events)
        self.run_id = run_id
        self._sink = sink
        self._taken = 0
        self._open = True
        self._mark(EventKind.START, now, time, detail=msgspec.json.encode(settings).decode())

    @property
    def events(self) -> int:
        """How many events were recorded so far; also the next position."""
        return self._taken + self.waiting

    def discard(
        self,
        now: int,
        source: int,
        number: int,
        stamp_ns: int,
        arrived_ns: int,
        reason: str,
        control_bytes: int,
        payload_bytes: int,
    ) -> None:
        """A copy that arrived was dropped."""
        self.append(
            Event(
                run_id=self.run_id,
                process=self.process,
                position=self.events,
                kind=EventKind.DISCARD,
                time_ns=now,
                clock_ns=now,
                source=source,
                number=number,
                stamp_ns=stamp_ns,
                arrived_ns=arrived_ns,
                reason=reason,
                control_bytes=control_bytes,
                payload_bytes=payload_bytes,
            )
        )

    def lost(self, now: int, source: int, count: int) -> None:
        """The link gave up on `count` copies from `source`."""
        self._mark(EventKind.LOST, now, None, source=source, number=count)

    def install(self, now: int, number: int, members: int) -> None:
        """From here on the view `number` holds, of these members (a bit mask).

        A view without this process tells that it has stopped.
        """
        self.append(
            Event(
                run_id=self.run_id,
                process=self.process,
                position=self.events,
                kind=EventKind.INSTALL,
                time_ns=now,
                clock_ns=now,
                number=number,
                destinations=mask_bytes(members),
            )
        )

    def record(self, event: Event) -> None:
        """Add a whole event, with its text and evidence.

        Raises LocalProtocolError when it is not this process's next one.
        """
        if (event.run_id, event.process, event.position) != (
            self.run_id,
            self.process,
            self.events,
        ):
            raise LocalProtocolError(
                f"event {event.run_id}/{event.process}/{event.position} is not the next of"
                f" this tracer, {self.run_id}/{self.process}/{self.events}"
            )
        self.append(event)

    def flush(self) -> None:
        """Hand what waits to the sink.  Raises what the sink raises; those events are lost then.

        Their positions are not used again, so that the audit finds the hole.
        """
        count = self.waiting
        if count:
            first = self._taken
            self._taken += count
            self._sink.write(self.take(first))

    def close(self, now: int, *, time: int | None = None) -> None:
        """Record END and flush: this process's trace is complete.  The sink stays open."""
        if self._open:
            self._open = False
            self._mark(EventKind.END, now, time)
            self.flush()

    def _mark(
        self,
        kind: EventKind,
        now: int,
        time: int | None,
        *,
        source: int = -1,
        number: int = -1,
        detail: str = "",
    ) -> None:
        self.append(
            Event(
                run_id=self.run_id,
                process=self.process,
                position=self.events,
                kind=kind,
                time_ns=now if time is None else time,
                clock_ns=now,
                source=source,
                number=number,
                detail=detail,
            )
        )
