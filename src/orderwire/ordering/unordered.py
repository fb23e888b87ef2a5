"""No order at all: every message is delivered when it arrives.  The control group.

Keeps what every order keeps: stamps, lifetimes, at most one delivery of a message.  Late messages
are discarded, so that the same traffic can be compared with and without order.
Cost: control information O(1), no waiting.
"""

import msgspec

from orderwire.kernel import (
    Destinations,
    Effects,
    Indicate,
    Instant,
    LocalProtocolError,
    ProcessId,
    RemoteProtocolError,
    Send,
    members_of,
)
from orderwire.ordering.pdu import (
    Delivered,
    Discarded,
    DiscardReason,
    Lost,
    Multicast,
    OrderingCommand,
    Restarted,
    Sent,
)
from orderwire.ordering.settings import OrderingSettings
from orderwire.ordering.stamps import StampClock
from orderwire.ordering.wire import HeadedCodec, decode_head, encode_head, payload_of

STAMPS_REMEMBERED = 8_192
"""Per sender: a copy older than so many newer ones is taken for a duplicate."""


class UnorderedPdu(msgspec.Struct, frozen=True, gc=False):
    """A message without control information beyond its head."""

    number: int
    stamp: int
    destinations: Destinations
    control: bytes
    """Everything before the payload, as on the wire."""
    payload: bytes


class UnorderedCodec(HeadedCodec[UnorderedPdu]):
    """The head, then the payload."""

    def _parse(self, front: bytes, data: bytes | memoryview) -> UnorderedPdu:
        stamp, number, destinations, at = decode_head(front, self._members)
        payload = payload_of(front, data, at)
        return UnorderedPdu(number, stamp, destinations, front[:at], payload)


class Unordered:
    """Deliver every message at once, in whatever order the network brings them."""

    def __init__(self, me: ProcessId, settings: OrderingSettings) -> None:
        self._me = me
        self._clock = StampClock(me, settings)
        self._seen: list[set[int]] = [set() for _ in range(settings.members)]
        self._forgotten = [-1] * settings.members
        """Per sender, the largest stamp that `_seen` no longer remembers."""

    def submit(self, command: OrderingCommand, now: Instant) -> Effects:
        """Send a message.  Raises LocalProtocolError for an impossible destination set."""
        match command:
            case Multicast(payload, destinations, lifetime_ns):
                self._clock.settings.require_common_lifetime("unordered", lifetime_ns)
                return self._multicast(payload, destinations, now)
            case Lost() | Restarted():
                return []  # Nobody waits for copies, and they are not numbered.
        raise LocalProtocolError(f"unordered knows no command {command!r}")

    def _multicast(self, payload: bytes, destinations: Destinations, now: Instant) -> Effects:
        clock = self._clock
        number, stamp = clock.stamp_send(destinations, now)
        control = encode_head(stamp, number, destinations)
        pdu = UnorderedPdu(number, stamp, destinations, control, payload)
        effects: Effects = [
            Send(process, pdu) for process in members_of(destinations) if process != self._me
        ]
        instant = clock.instant(stamp)
        control_bytes = len(control) * len(effects)
        effects.append(Indicate(Sent(number, instant, destinations, control_bytes)))
        if destinations >> self._me & 1:
            effects.append(
                Indicate(Delivered(self._me, number, instant, clock.now, payload, destinations, 0))
            )
        return effects

    def receive(self, source: ProcessId, pdu: UnorderedPdu, now: Instant) -> Effects:
        """Deliver the message, unless it is late or has been here before."""
        clock = self._clock
        arrived = clock.advance(now)
        if not 0 <= source < len(self._seen) or source == self._me:
            raise RemoteProtocolError(f"a message from process {source}, which is no peer")
        if not pdu.destinations >> self._me & 1:
            raise RemoteProtocolError(f"a message to {pdu.destinations:#x}, I am {self._me}")
        reason: DiscardReason | None = None
        if clock.is_late(pdu.stamp):
            reason = DiscardReason.LATE
        elif clock.is_future(pdu.stamp):
            reason = DiscardReason.FUTURE
        elif self._is_duplicate(source, pdu.stamp):
            reason = DiscardReason.DUPLICATE
        instant = clock.instant(pdu.stamp)
        if reason is not None:
            return [
                Indicate(
                    Discarded(
                        source,
                        pdu.number,
                        instant,
                        arrived,
                        reason,
                        len(pdu.control),
                        len(pdu.payload),
                    )
                )
            ]
        clock.delivered(pdu.stamp)
        return [
            Indicate(
                Delivered(
                    source,
                    pdu.number,
                    instant,
                    arrived,
                    pdu.payload,
                    pdu.destinations,
                    len(pdu.control),
                )
            )
        ]

    def _is_duplicate(self, source: ProcessId, stamp: int) -> bool:
        """Remember this stamp; say whether it had been remembered, or is too old to tell.

        A sender that restarts counts its messages from 0 again, but its stamps go on.
        """
        seen = self._seen[source]
        if stamp in seen or stamp <= self._forgotten[source]:
            return True
        seen.add(stamp)
        if len(seen) > 2 * STAMPS_REMEMBERED:
            kept = sorted(seen)[STAMPS_REMEMBERED:]
            self._forgotten[source] = kept[0] - 1
            self._seen[source] = set(kept)
        return False

    def wake(self, now: Instant) -> Effects:
        """Do nothing: no message ever waits."""
        self._clock.advance(now)
        return []

    def next_deadline(self) -> Instant | None:
        """Return None: no message ever waits."""
        return None
