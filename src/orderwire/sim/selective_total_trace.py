"""The trace of a simulated totally ordered group: what a real one writes too, on the same columns.

Every process has a `Tracer`; the channel has one incarnation, 0, and numbers its PDUs from 0.
"""

from typing import Any

from orderwire.kernel import Instant, ProcessId
from orderwire.ordering.pdu import Delivered, Sent
from orderwire.ordering.total.pdu import Excluded, Installed, traced_kind
from orderwire.trace import RunSettings, Sink, Tracer

TACHIKAWA_ST = "tachikawa-st"
"""The catalog name of ST in traces."""


class GroupTrace:
    """Records what the members of one run do."""

    def __init__(self, run_id: str, sink: Sink, members: int, *, algorithm: str = TACHIKAWA_ST):
        """`members` counts the ids of founders and newcomers."""
        self._run_id = run_id
        self._sink = sink
        # Ids of newcomers that never come are nobody's.
        self._settings = RunSettings(algorithm=algorithm, members=members, open=True)
        self._tracers: dict[ProcessId, Tracer] = {}

    def start(self, process: ProcessId, now: Instant) -> None:
        """A process begins."""
        self._tracers[process] = Tracer(self._run_id, process, self._sink, self._settings, now)

    def found(self, process: ProcessId, members: int, now: Instant) -> None:
        """It begins in the first view, of these members (a bit mask)."""
        self._tracers[process].install(now, 0, members)

    def indicate(self, process: ProcessId, indication: Any, now: Instant) -> None:
        """Record what its core indicates, as far as an audit wants to know it."""
        tracer = self._tracers[process]
        match indication:
            case Sent():
                tracer.send(now, indication.number, indication.stamp, indication.destinations, 0, 0)
            case Delivered():
                tracer.deliver(
                    now,
                    indication.source,
                    indication.number,
                    indication.stamp,
                    indication.arrived,
                    indication.control_bytes,
                    len(indication.payload),
                    indication.destinations,
                )
            case Installed():
                mask = sum(1 << member.process for member in indication.members)
                tracer.install(now, indication.number, mask)
            case Excluded():
                tracer.install(now, indication.number, 0)

    def receive(
        self, process: ProcessId, source: ProcessId, pdu: Any, place: int, now: Instant
    ) -> None:
        """A PDU came to a process, as the channel's `place`-th."""
        kind = traced_kind(pdu)
        number = -1 if kind else pdu.number
        self._tracers[process].receive(now, source, number, kind, 0, place)

    def close(self, whole: set[int], now: Instant) -> None:
        """End the traces; those of processes that are not in `whole` stay without their end."""
        for process, tracer in self._tracers.items():
            if process in whole:
                tracer.close(now)
            else:
                tracer.flush()
