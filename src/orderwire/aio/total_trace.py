"""What a member of a totally ordered group does, as events of a trace: message by message.

A pack is many messages, which are sent and delivered in its order; a PDU is named by the first
message that it carries.
"""

from typing import TYPE_CHECKING

from orderwire.aio.total_pack import decode_pack
from orderwire.kernel import Instant, ProcessId, RemoteProtocolError
from orderwire.ordering.pdu import Delivered
from orderwire.ordering.total.pdu import Data, Excluded, Installed, Pdu, Rtx, traced_kind

if TYPE_CHECKING:
    from orderwire.trace.writer import Tracer

MALFORMED = "malformed"
"""Kind, in a trace, of a PDU that carries no readable pack."""


class TotalTrace:
    """Records what one member does; times are readings of its clock, in nanoseconds.

    Who has not run for `hung_ns` may have been excluded, and another may have its id: what it does
    then is not recorded any more, and its trace has no end.
    """

    def __init__(self, tracer: "Tracer", now: Instant, hung_ns: int | None = None) -> None:
        self._tracer = tracer
        self._at: int = now
        self._hung_ns = hung_ns
        self.cut = False
        """Whether it has hung, so that nothing is recorded any more."""

    def _runs(self, now: int) -> bool:
        """Take the time, which never goes back in a trace; tell whether to record."""
        if self._hung_ns is not None and now - self._at > self._hung_ns:
            self.cut = True
        if now > self._at:
            self._at = now
        return not self.cut

    def installed(self, number: int, members: int, now: Instant) -> None:
        """From here on this view holds, of these members (a bit mask)."""
        if self._runs(now):
            self._tracer.install(self._at, number, members)

    def sent(self, first: int, sizes: list[int], destinations: int, now: Instant) -> None:
        """The core took messages of these sizes, numbered from `first`; stamped now.

        Destinations (a bit mask) are none where all have departed meanwhile.
        """
        if self._runs(now):
            send, at = self._tracer.send, self._at
            for number, size in enumerate(sizes, first):
                send(at, number, now, destinations, 0, size)

    def received(
        self, source: ProcessId, pdu: Pdu, incarnation: int, csn: int, now: Instant
    ) -> None:
        """A PDU came by this incarnation of the channel, which gave it this number."""
        if not self._runs(now):
            return
        number, kind = -1, traced_kind(pdu)
        if not kind:
            assert isinstance(pdu, Data | Rtx)
            try:
                number, _ = decode_pack(pdu.payload)
            except RemoteProtocolError:
                kind = MALFORMED
        self._tracer.receive(self._at, source, number, kind, incarnation, csn)

    def told(self, indication: object, now: Instant) -> None:
        """Record what the core indicates, as far as an audit wants to know it."""
        match indication:
            case Delivered():
                self._delivered(indication, now)
            case Installed(number=number, members=members):
                self.installed(number, sum(1 << member.process for member in members), now)
            case Excluded(number=number):
                self.installed(number, 0, now)

    def _delivered(self, delivered: Delivered, now: Instant) -> None:
        if not self._runs(now):
            return
        try:
            first, messages = decode_pack(delivered.payload)
        except RemoteProtocolError:
            return  # Nobody hands out any of it.
        deliver, at, source = self._tracer.deliver, self._at, delivered.source
        stamp, arrived, mask = delivered.stamp, delivered.arrived, delivered.destinations
        control = delivered.control_bytes  # of all of them, told with the first
        for number, message in enumerate(messages, first):
            deliver(at, source, number, stamp, arrived, control, len(message), mask)
            control = 0

    def flush(self, now: Instant) -> None:
        """Hand what waits to the sink, and tell that this process runs."""
        self._runs(now)
        self._tracer.flush()

    def close(self, now: Instant, *, whole: bool) -> None:
        """Record no more; the trace gets its end only if it is `whole`."""
        if self._runs(now) and whole:
            self._tracer.close(self._at)
        else:
            self._tracer.flush()
        self.cut = True
