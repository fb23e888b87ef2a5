"""Sender order: messages of one sender are delivered in the order they were sent.

Every copy carries its sequence number on the way from its sender to this destination and the stamp
of the copy before it.  A copy that comes too early waits until the ones before it are settled:

* the copy before it is delivered, or
* the link has given up on the missing ones (`Lost`), or
* with a lifetime Δ: the copy before it is past its deadline, by this process's own clock.  Stamps
  grow along a sender's messages, so all that are missing are past theirs, and the waiting copy,
  stamped later, still meets its own deadline, or
* without a lifetime: the first copy behind the gap has waited for `gap_patience_ns`.

So nothing waits for ever, whatever the network and the link do.  A copy that comes after it was
given up is discarded as late.  A sender that restarts counts from 0 again: every copy tells its
sender's incarnation, and the one with the larger stamps is the later one.  To a receiver that
restarts (`Restarted`) copies are counted from 0 again: nothing that went before is for it.
Cost: control information O(1).
"""

import heapq
from collections import deque

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
    probe,
    read_varint,
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
from orderwire.ordering.wire import (
    HeadedCodec,
    decode_head,
    encode_head,
    encode_varint,
    payload_of,
)

GAPS_REMEMBERED = 1_024
"""Per sender: ranges of copies that were skipped, and ranges that the link has reported lost."""


INCARNATIONS = 1 << 21
"""Incarnations are told apart by this many tags: three bytes."""


def incarnation_of(first_stamp: int) -> int:
    """Return the tag of the incarnation of a sender whose first message has this stamp."""
    return (first_stamp * 0x9E3779B97F4A7C15 >> 32) % INCARNATIONS


class FifoPdu(msgspec.Struct, frozen=True, gc=False):
    """One copy of a message."""

    number: int
    stamp: int
    destinations: Destinations
    sequence: int
    """How many copies its sender had sent to this destination before."""
    previous: int | None
    """Stamp of the copy before it, in ticks; None for the first."""
    incarnation: int
    """Tag of its sender's incarnation."""
    control: bytes
    """Everything before the payload, as on the wire."""
    payload: bytes


class FifoCodec(HeadedCodec[FifoPdu]):
    """The head, sequence number, age of the copy before (0: none), incarnation, the payload."""

    def _parse(self, front: bytes, data: bytes | memoryview) -> FifoPdu:
        stamp, number, destinations, at = decode_head(front, self._members)
        sequence, at = read_varint(front, at)
        age, at = read_varint(front, at)
        incarnation, at = read_varint(front, at)
        if incarnation >= INCARNATIONS:
            raise RemoteProtocolError(f"incarnation {incarnation} is not below {INCARNATIONS}")
        if age > stamp or (age == 0) != (sequence == 0):
            raise RemoteProtocolError(
                f"copy {sequence} with stamp {stamp} says the one before it is {age} ticks older"
            )
        previous = stamp - age if age else None
        payload = payload_of(front, data, at)
        return FifoPdu(
            number, stamp, destinations, sequence, previous, incarnation, front[:at], payload
        )


class _Incoming:
    """What one sender has sent to this process."""

    def __init__(self) -> None:
        self.incarnation = -1
        """Tag of the sender's incarnation; −1 before its first copy."""
        self.newest_stamp = -1
        """Largest stamp that has arrived."""
        self.next = 0
        """Sequence number of the next copy to deliver."""
        self.waiting: dict[int, tuple[FifoPdu, Instant]] = {}
        self._order: list[int] = []
        """Heap of the waiting sequence numbers, and of some that no longer wait."""
        self.skipped: deque[tuple[int, int]] = deque(maxlen=GAPS_REMEMBERED)
        self.lost: deque[tuple[int, int]] = deque(maxlen=GAPS_REMEMBERED)

    def hold(self, pdu: FifoPdu, arrived: Instant) -> None:
        """Let a copy wait."""
        self.waiting[pdu.sequence] = (pdu, arrived)
        heapq.heappush(self._order, pdu.sequence)

    def first_waiting(self) -> int:
        """Return the smallest waiting sequence number; there is one."""
        while self._order[0] not in self.waiting:
            heapq.heappop(self._order)
        return self._order[0]

    def skip_to(self, sequence: int) -> None:
        """Give up on everything before this copy."""
        if sequence > self.next:
            self.skipped.append((self.next, sequence - 1))
            self.next = sequence

    def skip_lost(self) -> bool:
        """Skip the next copies as far as the link has reported them lost; say whether any."""
        for first, last in self.lost:
            if first <= self.next <= last:
                self.skip_to(min(self.first_waiting(), last + 1) if self.waiting else last + 1)
                return True
        return False

    def is_skipped(self, sequence: int) -> bool:
        """Whether this copy was given up."""
        return any(first <= sequence <= last for first, last in self.skipped)


class Fifo:
    """Deliver the messages of each sender in the order it sent them, skipping what is lost."""

    def __init__(self, me: ProcessId, settings: OrderingSettings) -> None:
        self._me = me
        self._settings = settings
        self._clock = StampClock(me, settings)
        self._incarnation = -1
        """Tag of my own incarnation; −1 before the first message."""
        self._sent: list[int] = [0] * settings.members
        """Copies sent to each process."""
        self._previous: list[int | None] = [None] * settings.members
        """Stamp of the last copy sent to each process."""
        self._incoming = [_Incoming() for _ in range(settings.members)]
        self._waiting_senders: dict[ProcessId, None] = {}
        self._waiting_count = 0

    def submit(self, command: OrderingCommand, now: Instant) -> Effects:
        """Send a message, or learn of lost copies.  Raises LocalProtocolError."""
        match command:
            case Multicast(payload, destinations, lifetime_ns):
                self._settings.require_common_lifetime("fifo", lifetime_ns)
                return self._multicast(payload, destinations, now)
            case Lost(source, first, last):
                return self._lost(source, first, last, now)
            case Restarted(process):
                return self._restarted(process, now)
        raise LocalProtocolError(f"fifo knows no command {command!r}")

    def _multicast(self, payload: bytes, destinations: Destinations, now: Instant) -> Effects:
        clock = self._clock
        number, stamp = clock.stamp_send(destinations, now)
        if self._incarnation < 0:
            self._incarnation = incarnation_of(stamp)
        incarnation = encode_varint(self._incarnation)
        head = encode_head(stamp, number, destinations)
        effects: Effects = []
        control_bytes = 0
        for process in members_of(destinations):
            if process == self._me:
                continue
            sequence = self._sent[process]
            previous = self._previous[process]
            age = 0 if previous is None else stamp - previous
            control = head + encode_varint(sequence) + encode_varint(age) + incarnation
            control_bytes += len(control)
            self._sent[process] = sequence + 1
            self._previous[process] = stamp
            pdu = FifoPdu(
                number,
                stamp,
                destinations,
                sequence,
                previous,
                self._incarnation,
                control,
                payload,
            )
            effects.append(Send(process, pdu))
        instant = clock.instant(stamp)
        effects.append(Indicate(Sent(number, instant, destinations, control_bytes)))
        if destinations >> self._me & 1:
            local = Delivered(self._me, number, instant, clock.now, payload, destinations, 0)
            effects.append(Indicate(local))
        return effects

    def receive(self, source: ProcessId, pdu: FifoPdu, now: Instant) -> Effects:
        """Deliver the copy and those that waited for it, or let it wait, or discard it."""
        clock = self._clock
        arrived = clock.advance(now)
        if not 0 <= source < self._settings.members or source == self._me:
            raise RemoteProtocolError(f"a message from process {source}, which is no peer")
        if not pdu.destinations >> self._me & 1:
            raise RemoteProtocolError(f"a message to {pdu.destinations:#x}, I am {self._me}")
        incoming = self._incoming[source]
        reason = self._refuse(incoming, pdu)
        if reason is not None:
            return [Indicate(self._discarded(source, pdu, arrived, reason))]
        effects: Effects = []
        if pdu.incarnation != incoming.incarnation:
            if incoming.incarnation >= 0:
                probe("fifo: sender restarted")
                self._release(source, incoming, effects, give_up=True)
                incoming = self._incoming[source] = _Incoming()
            incoming.incarnation = pdu.incarnation
        incoming.newest_stamp = max(incoming.newest_stamp, pdu.stamp)
        incoming.hold(pdu, arrived)
        self._waiting_senders[source] = None
        self._waiting_count += 1
        self._release(source, incoming, effects)
        return effects

    def _refuse(self, incoming: _Incoming, pdu: FifoPdu) -> DiscardReason | None:
        """Say why this copy is not to be delivered, or return None."""
        if self._clock.is_late(pdu.stamp):
            return DiscardReason.LATE
        if self._clock.is_future(pdu.stamp):
            return DiscardReason.FUTURE
        if incoming.incarnation not in (-1, pdu.incarnation):
            return DiscardReason.LATE if pdu.stamp <= incoming.newest_stamp else None
        if pdu.sequence in incoming.waiting:
            return DiscardReason.DUPLICATE
        if pdu.sequence < incoming.next:
            skipped = incoming.is_skipped(pdu.sequence)
            return DiscardReason.LATE if skipped else DiscardReason.DUPLICATE
        if (
            pdu.sequence > incoming.next
            and self._waiting_count >= self._settings.waiting_messages_max
        ):
            return DiscardReason.FULL
        return None

    def _lost(self, source: ProcessId, first: int, last: int, now: Instant) -> Effects:
        """Skip copies that the link has given up on."""
        self._clock.advance(now)
        if not 0 <= source < self._settings.members or not 0 <= first <= last:
            raise LocalProtocolError(f"lost copies {first} … {last} of process {source}")
        effects: Effects = []
        incoming = self._incoming[source]
        if incoming.incarnation < 0 and self._settings.lifetime_ns is not None:
            return []  # Perhaps copies of an incarnation that is gone; deadlines will tell.
        if last >= incoming.next:
            incoming.lost.append((first, last))
            self._release(source, incoming, effects)
        return effects

    def _restarted(self, process: ProcessId, now: Instant) -> Effects:
        """Count the copies to this process from 0 again; its own tell its incarnation."""
        self._clock.advance(now)
        if not 0 <= process < self._settings.members or process == self._me:
            raise LocalProtocolError(f"process {process}, which is no peer, has restarted")
        self._sent[process] = 0
        self._previous[process] = None
        return []

    def _release(
        self, source: ProcessId, incoming: _Incoming, effects: Effects, *, give_up: bool = False
    ) -> None:
        """Deliver what no longer waits for anything."""
        while True:
            found = incoming.waiting.pop(incoming.next, None)
            if found is not None:
                pdu, arrived = found
                incoming.next += 1
                self._waiting_count -= 1
                self._clock.delivered(pdu.stamp)
                effects.append(Indicate(self._delivered(source, pdu, arrived)))
            elif incoming.lost and incoming.skip_lost():
                probe("fifo: skipped what the link reported lost")
            elif incoming.waiting and (give_up or self._gap_is_over(incoming)):
                probe("fifo: gave up on a gap")
                incoming.skip_to(incoming.first_waiting())
            else:
                break
        while incoming.lost and incoming.lost[0][1] < incoming.next:
            incoming.lost.popleft()
        if not incoming.waiting:
            self._waiting_senders.pop(source, None)

    def _gap_is_over(self, incoming: _Incoming) -> bool:
        """Whether the first waiting copy need not wait for the missing ones any more."""
        return self._gap_deadline(incoming) <= self._clock.now

    def _gap_deadline(self, incoming: _Incoming) -> Instant:
        """Return the first instant at which the gap before the waiting copies is given up."""
        pdu, arrived = incoming.waiting[incoming.first_waiting()]
        lifetime_ns = self._settings.lifetime_ns
        if lifetime_ns is None or pdu.previous is None:
            # Without a copy before it, a waiting copy is a peer's mistake: do not wait for ever.
            return Instant(arrived + self._settings.gap_patience_ns)
        return Instant(self._clock.instant(pdu.previous) + lifetime_ns + 1)

    def wake(self, now: Instant) -> Effects:
        """Give up on gaps whose time is over, in the order of the senders' ids."""
        self._clock.advance(now)
        effects: Effects = []
        for source in sorted(self._waiting_senders):
            self._release(source, self._incoming[source], effects)
        return effects

    def next_deadline(self) -> Instant | None:
        """Return when the next gap is given up."""
        if not self._waiting_senders:
            return None
        return min(self._gap_deadline(self._incoming[p]) for p in self._waiting_senders)

    def _delivered(self, source: ProcessId, pdu: FifoPdu, arrived: Instant) -> Delivered:
        return Delivered(
            source,
            pdu.number,
            self._clock.instant(pdu.stamp),
            arrived,
            pdu.payload,
            pdu.destinations,
            len(pdu.control),
        )

    def _discarded(
        self, source: ProcessId, pdu: FifoPdu, arrived: Instant, reason: DiscardReason
    ) -> Discarded:
        return Discarded(
            source,
            pdu.number,
            self._clock.instant(pdu.stamp),
            arrived,
            reason,
            len(pdu.control),
            len(pdu.payload),
        )
