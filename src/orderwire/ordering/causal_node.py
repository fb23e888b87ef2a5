"""What every causal and Δ-causal algorithm does alike: stamps, lifetimes, waiting, delivering.

An algorithm derives from `CausalNode` and adds its control information: what a copy says about the
past (`_send_copies`), which messages a copy must wait for (`_waits`), until when it must wait in
any case (`_held_until`), and what a delivered message teaches (`_merge`).

A message is ready when each (k, τ) it waits for is settled: delivered, τ ≤ DLV[k], or past its
deadline, τ + Δ < now; and when its hold is over.  DLV[k], the stamp of the last message from k
delivered here, is a watermark: who waits for (k, τ) waits for everything of k before it, and τ is
the last of these to expire.  So one open dependency a sender, the newest, is enough.

A waiting message counts its open dependencies; a heap per sender and one of the times at which the
time alone releases a message say whom a delivery or the time releases: O(dependencies · log) a
message.  [S000:def.2] [S000:dec.2] to [S000:dec.4]
"""

import heapq
from collections.abc import Iterable
from typing import ClassVar, Generic, TypeAlias, TypeVar

import msgspec

from orderwire.kernel import (
    Destinations,
    Effects,
    Indicate,
    Instant,
    LocalProtocolError,
    ProcessId,
    RemoteProtocolError,
    probe,
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

Wait: TypeAlias = tuple[int, int]
"""(sender, stamp) of a message that must be delivered first, or be past its deadline."""

FOR_EVER_TICKS = 1 << 62
"""Δ without a lifetime: no deadline ever passes."""
FOR_EVER_NS = 1 << 100
READY = -1
"""`Held.due` of a message that waits only for its turn."""


class CausalPdu(msgspec.Struct, frozen=True, gc=False):
    """One copy of a message; an algorithm's PDU adds its control information."""

    number: int
    stamp: int
    """τ_m, in ticks."""
    destinations: Destinations
    """m.D, the sender itself included when it is one."""
    control: bytes
    """Everything before the payload, as on the wire."""
    payload: bytes


PduT = TypeVar("PduT", bound=CausalPdu)


class Held(Generic[PduT]):
    """A message that has arrived and waits."""

    __slots__ = ("arrived", "due", "hold", "opened", "pdu", "source")

    def __init__(
        self, source: ProcessId, pdu: PduT, arrived: Instant, opened: dict[int, int], hold: int
    ) -> None:
        self.source = source
        self.pdu = pdu
        self.arrived = arrived
        self.opened = opened
        """Open dependencies: sender → stamp."""
        self.hold = hold
        """Not to be delivered before this instant, whatever is settled."""
        self.due = READY
        """When the time alone releases it, or READY."""


class CausalNode(Generic[PduT]):
    """One member of a group, without its control information."""

    NAME: ClassVar[str]
    """The algorithm's name in the catalog."""
    HOLDS: ClassVar[bool] = False
    """Whether `_held_until` says anything."""

    def __init__(self, me: ProcessId, settings: OrderingSettings) -> None:
        members = settings.members
        assert 0 <= me < members, f"process {me} in a group of {members}"
        self._me = me
        self._me_bit = 1 << me
        self._settings = settings
        self._members = members
        self._tick_ns = tick_ns = settings.tick_ns
        lifetime_ns = settings.lifetime_ns
        self._lifetime = FOR_EVER_TICKS if lifetime_ns is None else lifetime_ns // tick_ns
        epsilon = -(-settings.epsilon_ns // tick_ns)
        self._dead_after = self._lifetime + epsilon
        """Senders forget a message this many ticks after its stamp.  [S000:dec.3]"""
        self._future = epsilon + -(-settings.future_guard_ns // tick_ns)
        self._now = Instant(0)
        self._number = settings.first_number
        self._highest = -1
        """Largest stamp used or delivered."""
        self._delivered = [-1] * members
        """DLV, per sender; everything of my own counts as delivered."""
        self._delivered[me] = 1 << 64
        self._held: dict[tuple[int, int], Held[PduT]] = {}
        """Waiting messages by (sender, stamp)."""
        self._blocked: list[list[tuple[int, int, int, Held[PduT]]]] = [[] for _ in range(members)]
        """Per sender k, a heap of the messages that wait for one of k: (stamp of it, …)."""
        self._expiries: list[tuple[int, int, int, Held[PduT]]] = []
        """Heap of (due, stamp, sender, message); some out of date."""
        self._ready: list[tuple[int, int, Held[PduT]]] = []
        """Heap of the held messages that wait no longer, by (stamp, sender)."""

    # What an algorithm adds

    def _send_copies(
        self,
        effects: Effects,
        number: int,
        stamp: int,
        destinations: Destinations,
        remote: int,
        payload: bytes,
    ) -> int:
        """Append one Send per remote destination, ascending; remember what was sent.

        Returns the control bytes of all copies together.
        """
        raise NotImplementedError

    def _waits(self, pdu: PduT) -> Iterable[Wait]:
        """Return what this copy must wait for, here."""
        raise NotImplementedError

    def _held_until(self, pdu: PduT) -> int:
        """Return the instant, in ns, before which this copy is not delivered.  Needs HOLDS."""
        return 0

    def _merge(self, source: ProcessId, pdu: PduT) -> None:
        """Learn from a message that is being delivered."""
        raise NotImplementedError

    def _accept_lifetime(self, lifetime_ns: int) -> None:
        """Give the next message a lifetime of its own.  Raises LocalProtocolError."""
        self._settings.require_common_lifetime(self.NAME, lifetime_ns)

    def _dead_before(self) -> int:
        """Return the stamp below which a sender may forget a message: stamp + Δ + ε < now."""
        return -(-self._now // self._tick_ns) - self._dead_after

    # Sending

    def submit(self, command: OrderingCommand, now: Instant) -> Effects:
        """Send a message.  Raises LocalProtocolError for an impossible destination set."""
        match command:
            case Multicast(payload, destinations, lifetime_ns):
                if lifetime_ns is not None:
                    self._accept_lifetime(lifetime_ns)
                return self._multicast(payload, destinations, now)
            case Lost():
                # "A later copy is here, so the missing one is lost" would break the order: the
                # missing message may cover others still in flight.  Its deadline decides.
                return []
            case Restarted():
                # What it was sent before expires as if it were lost; its own old messages, too.
                return []
        raise LocalProtocolError(f"{self.NAME} knows no command {command!r}")

    def _multicast(self, payload: bytes, destinations: Destinations, now: Instant) -> Effects:
        if destinations == 0 or destinations >> self._members:
            raise self._settings.refuse_destinations(destinations)
        if now > self._now:
            self._now = now
        else:
            now = self._now
        if now < self._settings.quiet_until_ns:
            raise self._settings.refuse_quiet(now)
        tick_ns = self._tick_ns
        stamp = now // tick_ns
        if stamp <= self._highest:
            stamp = self._highest + 1
        self._highest = stamp
        number = self._number
        self._number = number + 1
        remote = destinations & ~self._me_bit
        effects: Effects = []
        control_bytes = self._send_copies(effects, number, stamp, destinations, remote, payload)
        instant = Instant(stamp * tick_ns)
        effects.append(Indicate(Sent(number, instant, destinations, control_bytes)))
        if remote != destinations:
            # All of my past that was addressed to me has been delivered here or has expired.
            local = Delivered(self._me, number, instant, now, payload, destinations, 0)
            effects.append(Indicate(local))
        return effects

    # Receiving

    def receive(self, source: ProcessId, pdu: PduT, now: Instant) -> Effects:
        """Deliver the message and those it releases, or let it wait, or discard it."""
        if now > self._now:
            self._now = now
        else:
            now = self._now
        if not 0 <= source < self._members or source == self._me:
            raise RemoteProtocolError(f"a message from process {source}, which is no peer")
        if not pdu.destinations & self._me_bit:
            raise RemoteProtocolError(f"a message to {pdu.destinations:#x}, I am {self._me}")
        tick = -(-now // self._tick_ns)
        stamp = pdu.stamp
        lifetime = self._lifetime
        delivered = self._delivered
        if stamp + lifetime < tick:
            return self._discard(source, pdu, DiscardReason.LATE)
        if stamp <= delivered[source] or (source, stamp) in self._held:
            return self._discard(source, pdu, DiscardReason.DUPLICATE)
        if stamp > tick + self._future:
            return self._discard(source, pdu, DiscardReason.FUTURE)
        opened: dict[int, int] | None = None
        for sender, wait in self._waits(pdu):
            if wait > delivered[sender] and wait + lifetime >= tick:
                if opened is None:
                    opened = {sender: wait}
                elif wait > opened.get(sender, -1):
                    opened[sender] = wait
        hold = self._held_until(pdu) if self.HOLDS else 0
        effects: Effects = []
        if self._held:
            self._expire(now)
        if opened is not None or hold > now:
            if len(self._held) >= self._settings.waiting_messages_max:
                effects = self._discard(source, pdu, DiscardReason.FULL)
            else:
                probe("causal: held")
                self._hold(Held(source, pdu, now, opened or {}, hold))
        elif self._ready:
            # Several are due at once, because a timer came late: stamp order, not arrival order.
            probe("causal: due at once")
            held = self._held[source, stamp] = Held(source, pdu, now, {}, 0)
            heapq.heappush(self._ready, (stamp, source, held))
        else:
            self._deliver(source, pdu, now, effects)
        if self._ready:
            self._drain(effects)
        return effects

    def wake(self, now: Instant) -> Effects:
        """Deliver what waited only for the time."""
        if now > self._now:
            self._now = now
        effects: Effects = []
        if self._held:
            self._expire(self._now)
            self._drain(effects)
        return effects

    def next_deadline(self) -> Instant | None:
        """Return the first instant at which the time alone releases a waiting message."""
        expiries = self._expiries
        while expiries:
            due, _, _, held = expiries[0]
            if held.due == due:
                return Instant(due)
            heapq.heappop(expiries)
        return None

    def _due(self, held: Held[PduT]) -> int:
        """Return when the time alone releases a message."""
        if not held.opened:
            return held.hold
        if self._lifetime == FOR_EVER_TICKS:
            return FOR_EVER_NS
        # A copy may still arrive in time at stamp + Δ itself.
        expiry = (max(held.opened.values()) + self._lifetime) * self._tick_ns + 1
        return expiry if expiry > held.hold else held.hold

    def _hold(self, held: Held[PduT]) -> None:
        """Let a message wait for its open dependencies and for the end of its hold."""
        source = held.source
        stamp = held.pdu.stamp
        self._held[source, stamp] = held
        for sender, wait in held.opened.items():
            heapq.heappush(self._blocked[sender], (wait, stamp, source, held))
        due = held.due = self._due(held)
        if due < FOR_EVER_NS:
            heapq.heappush(self._expiries, (due, stamp, source, held))

    def _release(self, held: Held[PduT]) -> None:
        """Let a message be delivered when its turn comes."""
        if held.opened:
            probe("causal: gave up on an expired dependency")
            held.opened.clear()
        held.due = READY
        heapq.heappush(self._ready, (held.pdu.stamp, held.source, held))

    def _expire(self, now: int) -> None:
        """Release the messages that wait only for what the time has settled."""
        expiries = self._expiries
        while expiries and expiries[0][0] <= now:
            due, _, _, held = heapq.heappop(expiries)
            if held.due == due:
                self._release(held)

    def _drain(self, effects: Effects) -> None:
        """Deliver what is ready, smallest stamp first, looking again after each.  [S000:dec.4]"""
        while self._ready:
            stamp, source, held = heapq.heappop(self._ready)
            del self._held[source, stamp]
            self._deliver(held.source, held.pdu, held.arrived, effects)

    def _deliver(self, source: ProcessId, pdu: PduT, arrived: Instant, effects: Effects) -> None:
        stamp = pdu.stamp
        if stamp > self._delivered[source]:
            self._delivered[source] = stamp
        else:
            # A message names its predecessor from the same sender: a peer's fault, or clocks
            # further apart than ε.
            probe("causal: overtaken by a later message of its sender")
        if stamp > self._highest:
            self._highest = stamp
        effects.append(
            Indicate(
                Delivered(
                    source,
                    pdu.number,
                    Instant(stamp * self._tick_ns),
                    arrived,
                    pdu.payload,
                    pdu.destinations,
                    len(pdu.control),
                )
            )
        )
        self._merge(source, pdu)
        blocked = self._blocked[source]
        while blocked and blocked[0][0] <= stamp:
            self._settle(source, heapq.heappop(blocked)[3])

    def _settle(self, sender: int, held: Held[PduT]) -> None:
        """Close a dependency on this sender."""
        if held.opened.pop(sender, None) is None:
            return  # It has been released by the time.
        due = self._due(held)
        if due <= self._now:
            # None is open, or the newest open one is settled and all older ones have expired.
            self._release(held)
        elif due != held.due:
            held.due = due
            if due < FOR_EVER_NS:
                heapq.heappush(self._expiries, (due, held.pdu.stamp, held.source, held))

    def _discard(self, source: ProcessId, pdu: PduT, reason: DiscardReason) -> Effects:
        """Drop a copy; its control information is not merged.  [S000:dec.7]"""
        return [
            Indicate(
                Discarded(
                    source,
                    pdu.number,
                    Instant(pdu.stamp * self._tick_ns),
                    self._now,
                    reason,
                    len(pdu.control),
                    len(pdu.payload),
                )
            )
        ]
