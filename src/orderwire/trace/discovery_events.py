"""What one participant of a domain does and knows, as events of the trace.

A `DiscoveryTimeline` is one participant's timeline; it counts positions and fills in the columns.
Participants are numbered 0, 1, 2 … in the run; a restarted one may go on in its old timeline or be
a new number.  Times are the run's; `clock` is the participant's own where that is another one.

    settings = RunSettings(algorithm=NO_ORDER, members=64, discovery=DiscoveryRun(fail_ns=6 * S))
    line = DiscoveryTimeline("fdp-17", 3, events.append)
    line.start(settings, 0)                        # once, before all else
    line.boot(5)                                   # asks for an id from here on
    line.post(6, "REQUEST_ID", 40)                 # to the server: no peer id
    line.adopt(9, peer_id=17, incarnation=4, version=1)
    line.learn(12, peer_id=3, incarnation=1, version=1, age_ns=0)
    line.hear(12, "JOIN", 368, hop=2, peer_id=3)
    line.update(15, version=2)
    line.expire(20, peer_id=3, incarnation=1, reason=SILENT, age_ns=6 * S)
    line.leave(30)                                 # or it is killed: gone alone
    line.gone(32)
    line.end(40)                                   # its trace is complete, also when it was killed

On a tracer: `DiscoveryTimeline.on(tracer)`, whose START and END are the tracer's own.

What the audit takes these to mean:

*   A participant lives from `boot` to the first of `leave`, `gone` and the next `boot`.  It is a
    member from `adopt` on; a later `adopt` in the same life gives the old id up.
*   Its view lists one entry an id: `learn` replaces what it listed of that id, `expire` removes it
    if it listed that incarnation.  `boot` empties the view.  Record `learn` when the entry's
    incarnation or the version of the MAP held changes, or when it comes back after `expire`; not
    for evidence that only makes it younger.
*   Version 0 is an entry without a MAP (a contact); versions of MAPs count from 1.
*   `age_ns` is the age of the newest evidence when the event happens.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Self

import msgspec

from orderwire.trace.events import Event, EventKind, RunSettings

if TYPE_CHECKING:
    from orderwire.trace.writer import Tracer

SILENT = "silent"
"""No evidence for T_fail."""
LEFT = "left"
"""It said that it leaves: final for this incarnation."""
REPLACED = "replaced"
"""Another participant is at its address or has its id."""
SUSPECTED = "suspected"
"""It does not answer; not listed until newer evidence comes."""


class DiscoveryTimeline:
    """The events of one participant, in their order."""

    def __init__(
        self,
        run_id: str,
        process: int,
        record: Callable[[Event], object],
        position: Callable[[], int] | None = None,
    ) -> None:
        """`position` tells the next event's, where others write into this timeline too."""
        self.run_id = run_id
        self.process = process
        self._record = record
        self._position = position
        self._count = 0

    @classmethod
    def on(cls, tracer: "Tracer") -> Self:
        """Write into a tracer's timeline."""
        return cls(tracer.run_id, tracer.process, tracer.record, lambda: tracer.events)

    def resume(self, position: int) -> None:
        """Go on behind what was written elsewhere: the next event has this position."""
        self._count = position

    def start(self, settings: RunSettings, now: int, *, clock: int | None = None) -> None:
        """First event of the timeline: what kind of run this is."""
        detail = msgspec.json.encode(settings).decode()
        self._write(EventKind.START, now, clock, detail=detail)

    def boot(self, now: int, *, clock: int | None = None) -> None:
        """The participant begins, without an id and knowing nobody."""
        self._write(EventKind.BOOT, now, clock)

    def adopt(
        self, now: int, *, peer_id: int, incarnation: int, version: int, clock: int | None = None
    ) -> None:
        """It has this id from now on; its MAP is in this version."""
        assert version > 0, version
        self._write(
            EventKind.ADOPT, now, clock, peer_id=peer_id, incarnation=incarnation, number=version
        )

    def update(self, now: int, *, version: int, clock: int | None = None) -> None:
        """Its own MAP has changed."""
        self._write(EventKind.UPDATE, now, clock, number=version)

    def leave(self, now: int, *, clock: int | None = None) -> None:
        """It begins to leave; others may list it until they hear of it."""
        self._write(EventKind.LEAVE, now, clock)

    def gone(self, now: int, *, process: int | None = None, clock: int | None = None) -> None:
        """This process has ended or was killed; or another one, which cannot say so itself."""
        self._write(EventKind.GONE, now, clock, source=self.process if process is None else process)

    def learn(
        self,
        now: int,
        *,
        peer_id: int,
        incarnation: int,
        version: int,
        age_ns: int,
        clock: int | None = None,
    ) -> None:
        """The view lists this entry from now on."""
        own = now if clock is None else clock
        self._write(
            EventKind.LEARN,
            now,
            clock,
            peer_id=peer_id,
            incarnation=incarnation,
            number=version,
            arrived_ns=own - age_ns,
        )

    def expire(
        self,
        now: int,
        *,
        peer_id: int,
        incarnation: int,
        reason: str,
        age_ns: int,
        clock: int | None = None,
    ) -> None:
        """The view does not list this entry any more."""
        own = now if clock is None else clock
        self._write(
            EventKind.EXPIRE,
            now,
            clock,
            peer_id=peer_id,
            incarnation=incarnation,
            reason=reason,
            arrived_ns=own - age_ns,
        )

    def post(
        self,
        now: int,
        message: str,
        size_bytes: int,
        *,
        hop: int = 0,
        peer_id: int | None = None,
        clock: int | None = None,
    ) -> None:
        """It sends a message of type `message` to the peer of this id, if that is known.

        `hop` counts from 1 at the source of a broadcast; 0: no broadcast.
        """
        self._write(
            EventKind.POST,
            now,
            clock,
            reason=message,
            number=hop,
            payload_bytes=size_bytes,
            peer_id=peer_id,
        )

    def hear(
        self,
        now: int,
        message: str,
        size_bytes: int,
        *,
        hop: int = 0,
        peer_id: int | None = None,
        clock: int | None = None,
    ) -> None:
        """Such a message came from the peer of this id, which may be a relay."""
        self._write(
            EventKind.HEAR,
            now,
            clock,
            reason=message,
            number=hop,
            payload_bytes=size_bytes,
            peer_id=peer_id,
        )

    def end(self, now: int, *, clock: int | None = None) -> None:
        """Last event: nothing of what this participant did is missing."""
        self._write(EventKind.END, now, clock)

    def _write(
        self,
        kind: EventKind,
        now: int,
        clock: int | None,
        *,
        source: int = -1,
        number: int = -1,
        arrived_ns: int = -1,
        reason: str = "",
        payload_bytes: int = 0,
        detail: str = "",
        peer_id: int | None = None,
        incarnation: int | None = None,
    ) -> None:
        position = self._count if self._position is None else self._position()
        self._count = position + 1
        self._record(
            Event(
                run_id=self.run_id,
                process=self.process,
                position=position,
                kind=kind,
                time_ns=now,
                clock_ns=now if clock is None else clock,
                source=source,
                number=number,
                arrived_ns=arrived_ns,
                reason=reason,
                payload_bytes=payload_bytes,
                detail=detail,
                peer_id=peer_id,
                incarnation=incarnation,
            )
        )
