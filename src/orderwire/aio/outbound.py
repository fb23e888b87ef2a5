"""The sending half of one channel of one link: numbers, packs, keeps until settled, sends again.

PDUs of one loop turn are packed into datagrams.  A datagram is the unit that is sent, kept, asked
for and sent again; it is kept until the peer has settled it or its deadline has passed.
No I/O and no clock: the link passes the time.
"""

from collections import deque

from orderwire.aio.frames import RANGES_MAX, Range, Report, readdressed
from orderwire.kernel import NS_PER_MS, Instant

WAITING_BYTES_MAX = 16 << 20
"""Bytes that may wait for the window of one peer on one channel."""

HEARTBEAT_PAUSE_MIN_NS = 2 * NS_PER_MS
HEARTBEAT_PAUSE_NS = 10 * NS_PER_MS
"""First heartbeat after the last datagram; sooner when copies do not live long."""

LOSSY_NS = 2_000 * NS_PER_MS
"""So long after a peer missed copies the way to it is taken for one that loses."""

HEARTBEAT_PAUSE_MAX_NS = 1_000 * NS_PER_MS
HEARTBEATS_AFTER_EXPIRY_MAX = 16
"""Heartbeats about copies that have expired, so that a peer learns what it lost at the tail."""

HEARTBEATS_AWAITED = 10
"""Of them, the first, without growing pauses: who waits for the fate of all copies waits for these.

Nothing can come any more; a peer that answers none of them stops nobody.
"""

OVERHEAD_BYTES = 768
"""What the kernel books for a datagram beside its content, about."""


class Packet:
    """One datagram on its way."""

    __slots__ = ("cost", "data", "deadline", "first", "last", "sends", "sent_at", "streamed")

    def __init__(self, first: int, last: int, deadline: int, data: bytes, streamed: bool) -> None:
        self.first = first
        self.last = last
        self.deadline = deadline
        """0: none."""
        self.data = data
        self.cost = len(data) + OVERHEAD_BYTES
        self.sends = 0
        self.sent_at = 0
        self.streamed = streamed
        """Goes over the stream."""


class Outbound:
    """What one peer is sent on one channel."""

    __slots__ = (
        "deadline",
        "dropped",
        "expired_heartbeats",
        "fit",
        "flight",
        "flight_cost",
        "heartbeat_pause_ns",
        "heartbeats",
        "last_deadline",
        "last_sent_at",
        "lossy_until",
        "next_number",
        "open",
        "open_bytes",
        "queue",
        "queue_bytes",
        "settled",
        "unconfirmed",
        "unsent",
    )

    def __init__(self, lifetime_ns: int | None = None) -> None:
        self.fit = 0
        """Bytes of PDUs and lengths that one datagram takes; set by the endpoint."""
        self.heartbeat_pause_ns = HEARTBEAT_PAUSE_NS
        if lifetime_ns is not None:
            self.heartbeat_pause_ns = max(
                HEARTBEAT_PAUSE_MIN_NS, min(HEARTBEAT_PAUSE_NS, lifetime_ns // 8)
            )
        self.open: list[bytes] = []
        """PDUs of the datagram being filled; their numbers begin at `next_number`."""
        self.open_bytes = 0
        self.deadline: Instant | None = None
        """Latest deadline of the open PDUs, which all have one of their own; None: none has."""
        self.next_number = 0
        self.queue: deque[Packet] = deque()
        """Packed, not sent: waits for the window."""
        self.queue_bytes = 0
        self.flight: deque[Packet] = deque()
        """Sent, not settled; ascending."""
        self.flight_cost = 0
        self.unsent = 0
        """Numbers below have been sent, or dropped before they could be."""
        self.settled = 0
        """Numbers below are settled, says the peer."""
        self.dropped = 0
        """Copies that expired or were dropped before they were sent at all."""
        self.unconfirmed = 0
        """Copies that were under way when the peer was given up."""
        self.heartbeats = 0
        self.expired_heartbeats = 0
        self.last_sent_at = 0
        self.last_deadline = 0
        self.lossy_until = 0
        """The peer has missed copies not long before this."""

    def enqueue(self, packet: Packet) -> None:
        """Let a packed datagram wait for its turn."""
        self.queue.append(packet)
        self.queue_bytes += len(packet.data)

    def next_packet(self, now: Instant) -> Packet | None:
        """Take the next datagram to send for the first time; expired ones are dropped."""
        queue = self.queue
        while queue:
            packet = queue.popleft()
            self.queue_bytes -= len(packet.data)
            self.unsent = packet.last + 1
            self.last_deadline = max(self.last_deadline, packet.deadline)
            if packet.deadline and packet.deadline < now:
                self.dropped += packet.last - packet.first + 1
                self._mark_sent(now)
                continue
            return packet
        return None

    def in_flight(self, packet: Packet, now: Instant) -> None:
        """Note that this datagram was sent for the first time."""
        packet.sends = 1
        packet.sent_at = now
        self.flight.append(packet)
        self.flight_cost += packet.cost
        self._mark_sent(now)

    def readdress(self, target: int) -> None:
        """What waits is for this incarnation of the peer, the first that was met."""
        for packet in self.queue:
            packet.data = readdressed(packet.data, target)

    def drop_expired(self, now: Instant) -> None:
        """Drop waiting datagrams whose deadline has passed."""
        queue = self.queue
        while queue and queue[0].deadline and queue[0].deadline < now:
            self._drop_first()

    def drop_oldest(self, bytes_max: int) -> list[Packet]:
        """Drop waiting datagrams, oldest first, until at most this many bytes wait; return them."""
        dropped = []
        while self.queue and self.queue_bytes > bytes_max:
            dropped.append(self._drop_first())
        return dropped

    def doubtful(self, now: Instant, fastest_ns: int) -> Packet | None:
        """Return the datagram before the last one if, once lost, it cannot be repaired in time.

        The last one shows that it is missing, half a round trip later; repair takes a whole one.
        """
        if now >= self.lossy_until or len(self.flight) < 2:
            return None
        before = self.flight[-2]
        left_ns = before.deadline - now
        return (
            before if not before.streamed and fastest_ns <= 2 * left_ns < 3 * fastest_ns else None
        )

    def _drop_first(self) -> Packet:
        packet = self.queue.popleft()
        self.queue_bytes -= len(packet.data)
        self.unsent = packet.last + 1
        self.dropped += packet.last - packet.first + 1
        return packet

    def _mark_sent(self, now: Instant) -> None:
        self.last_sent_at = now
        self.heartbeats = 0
        self.expired_heartbeats = 0

    def expire(self, now: Instant) -> int:
        """Forget sent datagrams whose deadline has passed; return the cost they had."""
        flight = self.flight
        freed = 0
        while flight and flight[0].deadline and flight[0].deadline < now:
            freed += flight.popleft().cost
        self.flight_cost -= freed
        return freed

    def abandon(self) -> int:
        """Keep nothing for a peer that is gone, and wait for no answer; return the cost freed."""
        self.drop_oldest(0)
        freed = self.flight_cost
        self.unconfirmed += sum(packet.last - packet.first + 1 for packet in self.flight)
        self.flight.clear()
        self.flight_cost = 0
        self.expired_heartbeats = HEARTBEATS_AFTER_EXPIRY_MAX + 1
        return freed

    def renewed(self) -> "Outbound":
        """Return the sending half for a new incarnation of the peer; this one was abandoned."""
        assert not self.open, "abandoned with PDUs that are not packed"
        fresh = Outbound()
        fresh.fit = self.fit
        fresh.heartbeat_pause_ns = self.heartbeat_pause_ns
        fresh.dropped, fresh.unconfirmed = self.dropped, self.unconfirmed
        return fresh

    def resume(self) -> None:
        """The peer is back: tell it how far we are, so that it learns what it lost."""
        self.heartbeats = self.expired_heartbeats = 0

    def take_report(
        self, report: Report, now: Instant, fastest_ns: int
    ) -> tuple[int, list[Packet], list[Range]]:
        """Forget what is settled, and what is missing and past its own deadline.

        Returns the cost of what was forgotten, the datagrams to send again, and the ranges asked
        for that will never come.
        """
        self.settled = max(self.settled, min(report.settled, self.unsent))
        seen = min(report.seen, self.unsent)
        missing = report.missing
        flight = self.flight
        freed = 0
        kept: list[Packet] = []
        again: list[Packet] = []
        at = 0
        while flight and flight[0].last < seen:
            packet = flight.popleft()
            while at < len(missing) and missing[at].last < packet.first:
                at += 1
            came = at == len(missing) or missing[at].first > packet.last
            if came or (packet.deadline and packet.deadline < now):
                freed += packet.cost
                continue
            kept.append(packet)
            if _asked(missing, at, packet) and _may_go_again(packet, now, fastest_ns):
                again.append(packet)
        flight.extendleft(reversed(kept))
        self.flight_cost -= freed
        return freed, again, self._gone(missing, kept)

    def _gone(self, missing: list[Range], kept: list[Packet]) -> list[Range]:
        """Return which asked copies, of those sent once, are no longer kept."""
        gone: list[Range] = []
        at = 0
        for first, last, asked in missing:
            if not asked:
                continue
            last = min(last, self.unsent - 1)
            while at < len(kept) and kept[at].last < first:
                at += 1
            index = at
            while first <= last and len(gone) < RANGES_MAX:
                if index == len(kept) or kept[index].first > last:
                    gone.append(Range(first, last))
                    break
                if kept[index].first > first:
                    gone.append(Range(first, kept[index].first - 1))
                first = kept[index].last + 1
                index += 1
        return gone

    @property
    def unsettled(self) -> bool:
        """Whether the peer has yet to say what became of some copies, and may soon say it."""
        return self.settled < self.unsent and self.expired_heartbeats <= HEARTBEATS_AWAITED

    @property
    def untold(self) -> bool:
        """Whether the peer is still to be told how far we are."""
        return self.settled < self.unsent and self.expired_heartbeats <= HEARTBEATS_AFTER_EXPIRY_MAX

    def heartbeat_due(self, rtt_ns: int) -> int | None:
        """When to tell the peer how far we are, because it has not settled everything yet."""
        if not self.untold:
            return None
        doublings = self.heartbeats
        if not self.flight:
            doublings = max(0, self.expired_heartbeats - HEARTBEATS_AWAITED)
        pause = max(self.heartbeat_pause_ns, 2 * rtt_ns) << min(doublings, 16)
        return self.last_sent_at + min(pause, max(HEARTBEAT_PAUSE_MAX_NS, 2 * rtt_ns))

    def heartbeat_sent(self, now: Instant) -> None:
        """Note that the peer has been told."""
        self.last_sent_at = now
        self.heartbeats += 1
        if not self.flight:
            self.expired_heartbeats += 1


def _asked(missing: list[Range], at: int, packet: Packet) -> bool:
    """Whether any copy of this datagram is asked for; ranges before `at` end before it."""
    while at < len(missing) and missing[at].first <= packet.last:
        if missing[at].asked:
            return True
        at += 1
    return False


def _may_go_again(packet: Packet, now: Instant, fastest_ns: int) -> bool:
    """Whether sending again makes sense: not on its way already, and still in time.

    Who asks less than a round trip after the last sending cannot have missed that one.
    """
    if packet.sends > 1 and now - packet.sent_at < fastest_ns * 3 // 4:
        return False
    return not (packet.deadline and now + fastest_ns // 2 > packet.deadline)
