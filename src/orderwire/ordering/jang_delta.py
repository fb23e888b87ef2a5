"""Δ-causal multicast with minimal control information, in its fast form.

Source: [S000:sec.4], as corrected in [S000:dec.1] to [S000:dec.7].  Symbols: τ → stamp,
Δ → lifetime, CI → entries ("this message may still be undelivered at these destinations"),
DC_m[j] → waits (what copy j of m must wait for), DLV[k] → delivered (stamp of the last message
from k here).

The promise [S000:def.2]: a message that arrives by its deadline, stamp + Δ, is delivered by its
deadline, every other one is discarded; of two delivered messages with a common destination, the
one that happened before the other is delivered first.  Without a lifetime: causal order over links
that lose nothing; a lost message then blocks what depends on it.

Fast form: per sender an immutable tuple of (stamp, bit mask); a snapshot is a shallow copy shared
by all copies of a message; a waiting message counts its open dependencies, and a heap per sender
and one of expiries say whom a delivery or the time releases.  Same tags as the literal form
(`jang_delta_reference`), bit for bit.
Cost: CI O(n²) pairs at worst, in practice what was sent in the last Δ and is not known to have
been delivered.  Assumes clocks within ε.
"""

import heapq

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
)
from orderwire.ordering.jang_delta_codec import (
    Entries,
    JangDeltaPdu,
    Layout,
    join_waits,
)
from orderwire.ordering.jang_delta_entries import KnownUndelivered
from orderwire.ordering.pdu import (
    Delivered,
    Discarded,
    DiscardReason,
    Lost,
    Multicast,
    OrderingCommand,
    Sent,
)
from orderwire.ordering.settings import OrderingSettings
from orderwire.ordering.wire import encode_head

FOR_EVER_TICKS = 1 << 62
"""Δ without a lifetime: no deadline ever passes."""


class _Held:
    """A message that has arrived and waits for others."""

    __slots__ = ("arrived", "last", "opened", "pdu", "source")

    def __init__(
        self, source: ProcessId, pdu: JangDeltaPdu, arrived: Instant, opened: dict[int, int]
    ) -> None:
        self.source = source
        self.pdu = pdu
        self.arrived = arrived
        self.opened = opened
        """Open dependencies: sender → stamp."""
        self.last = max(opened.values())
        """Newest open dependency: when it expires, all have."""


class JangDelta:
    """Deliver in Δ-causal order.  [S000:sec.4.5]"""

    def __init__(self, me: ProcessId, settings: OrderingSettings) -> None:
        members = settings.members
        assert 0 <= me < members, f"process {me} in a group of {members}"
        self._me = me
        self._me_bit = 1 << me
        self._settings = settings
        self._layout = Layout(settings)
        self._members = members
        self._tick_ns = tick_ns = settings.tick_ns
        lifetime_ns = settings.lifetime_ns
        self._lifetime = FOR_EVER_TICKS if lifetime_ns is None else lifetime_ns // tick_ns
        epsilon = -(-settings.epsilon_ns // tick_ns)
        self._dead_after = self._lifetime + epsilon
        """Senders forget an entry this many ticks after its stamp."""
        self._future = epsilon + -(-settings.future_guard_ns // tick_ns)
        self._now = Instant(0)
        self._number = settings.first_number
        self._highest = -1
        """Largest stamp used or delivered."""
        self._delivered = [-1] * members
        """DLV, per sender; everything of my own counts as delivered."""
        self._delivered[me] = 1 << 64
        self._known = KnownUndelivered(me, send_empty=settings.send_empty_entries)
        """CI."""
        self._held: dict[tuple[int, int], _Held] = {}
        """Waiting messages by (sender, stamp)."""
        self._blocked: list[list[tuple[int, int, int, _Held]]] = [[] for _ in range(members)]
        """Per sender k, a heap of the messages that wait for one of k: (stamp of it, …)."""
        self._expiries: list[tuple[int, int, int, _Held]] = []
        """Heap of (newest open dependency, …); some out of date."""
        self._ready: list[tuple[int, int, _Held]] = []
        """Heap of the held messages that wait no longer, by (stamp, sender)."""

    # Sending

    def submit(self, command: OrderingCommand, now: Instant) -> Effects:
        """Send a message.  Raises LocalProtocolError for an impossible destination set."""
        match command:
            case Multicast(payload, destinations):
                return self._multicast(payload, destinations, now)
            case Lost():
                # "A later copy is here, so the missing one is lost" would break the order: the
                # missing message may cover others still in flight.  Its deadline decides.
                return []
        raise LocalProtocolError(f"jang-delta knows no command {command!r}")

    def _multicast(self, payload: bytes, destinations: Destinations, now: Instant) -> Effects:
        """[S000:sec.4.5] Extract DC, then eliminate, then piggyback CI, then record m."""
        if destinations == 0 or destinations >> self._members:
            raise self._settings.refuse_destinations(destinations)
        if now > self._now:
            self._now = now
        else:
            now = self._now
        if now < self._settings.quiet_until_ns:
            raise self._settings.refuse_quiet(now)
        me = self._me
        tick_ns = self._tick_ns
        stamp = now // tick_ns
        if stamp <= self._highest:
            stamp = self._highest + 1
        self._highest = stamp
        number = self._number
        self._number = number + 1
        remote = destinations & ~self._me_bit
        known = self._known
        waits = known.extract(remote, -(-now // tick_ns) - self._dead_after)
        snapshot = known.snapshot()
        head = encode_head(stamp, number, destinations) + self._layout.encode_entries(
            stamp, snapshot
        )
        effects: Effects = []
        control_bytes = 0
        if not waits:
            control = head + b"\x00"
            pdu = JangDeltaPdu(number, stamp, destinations, snapshot, (), control, payload)
            for process in members_of(Destinations(remote)):
                effects.append(Send(process, pdu))
            control_bytes = len(control) * len(effects)
        else:
            common = (number, stamp, destinations, snapshot)
            parts = self._layout.encode_waits(stamp, [(k, wait) for k, wait, _ in waits])
            control_bytes = _send_copies(effects, common, head, waits, parts, payload, remote)
        known.record_own(stamp, remote)
        instant = Instant(stamp * tick_ns)
        effects.append(Indicate(Sent(number, instant, destinations, control_bytes)))
        if remote != destinations:
            # All of my past that was addressed to me has been delivered here or has expired.
            local = Delivered(me, number, instant, now, payload, destinations, 0)
            effects.append(Indicate(local))
        return effects

    # Receiving

    def receive(self, source: ProcessId, pdu: JangDeltaPdu, now: Instant) -> Effects:
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
        for sender, wait in pdu.waits:
            if wait > delivered[sender] and wait + lifetime >= tick:
                if opened is None:
                    opened = {}
                opened[sender] = wait
        effects: Effects = []
        if self._held:
            self._expire(tick)
        if opened is not None:
            if len(self._held) >= self._settings.waiting_messages_max:
                effects = self._discard(source, pdu, DiscardReason.FULL)
            else:
                probe("jang-delta: held for causality")
                self._hold(_Held(source, pdu, now, opened))
        elif self._ready:
            # Several are due at once, because a timer came late: stamp order, not arrival order.
            probe("jang-delta: due at once")
            held = self._held[source, stamp] = _Held(source, pdu, now, {source: stamp})
            heapq.heappush(self._ready, (stamp, source, held))
        else:
            self._deliver(source, pdu, now, effects)
        if self._ready:
            self._drain(effects)
        return effects

    def wake(self, now: Instant) -> Effects:
        """Deliver what waited only for messages whose deadline has passed."""
        if now > self._now:
            self._now = now
        effects: Effects = []
        if self._held:
            self._expire(-(-self._now // self._tick_ns))
            self._drain(effects)
        return effects

    def next_deadline(self) -> Instant | None:
        """Return the first instant at which the time alone releases a waiting message."""
        expiries = self._expiries
        while expiries:
            last, _, _, held = expiries[0]
            if held.opened and held.last == last:
                # A copy may still arrive in time at stamp + Δ itself.
                return Instant((last + self._lifetime) * self._tick_ns + 1)
            heapq.heappop(expiries)
        return None

    def _hold(self, held: _Held) -> None:
        """Let a message wait for its open dependencies."""
        source = held.source
        stamp = held.pdu.stamp
        self._held[source, stamp] = held
        for sender, wait in held.opened.items():
            heapq.heappush(self._blocked[sender], (wait, stamp, source, held))
        if self._lifetime != FOR_EVER_TICKS:
            heapq.heappush(self._expiries, (held.last, stamp, source, held))

    def _expire(self, tick: int) -> None:
        """Make ready the messages all of whose open dependencies are past their deadlines."""
        expiries = self._expiries
        lifetime = self._lifetime
        while expiries and expiries[0][0] + lifetime < tick:
            last, stamp, source, held = heapq.heappop(expiries)
            if held.opened and held.last == last:
                probe("jang-delta: gave up on an expired dependency")
                held.opened.clear()
                heapq.heappush(self._ready, (stamp, source, held))

    def _drain(self, effects: Effects) -> None:
        """Deliver what is ready, smallest stamp first, looking again after each.  [S000:dec.4]"""
        while self._ready:
            stamp, source, held = heapq.heappop(self._ready)
            del self._held[source, stamp]
            self._deliver(held.source, held.pdu, held.arrived, effects)

    def _deliver(
        self, source: ProcessId, pdu: JangDeltaPdu, arrived: Instant, effects: Effects
    ) -> None:
        stamp = pdu.stamp
        if stamp > self._delivered[source]:
            self._delivered[source] = stamp
        else:
            # A message names its predecessor from the same sender: a peer's fault, or clocks
            # further apart than ε.
            probe("jang-delta: overtaken by a later message of its sender")
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
        self._known.merge(source, pdu)
        blocked = self._blocked[source]
        while blocked and blocked[0][0] <= stamp:
            self._settle(source, heapq.heappop(blocked)[3])

    def _settle(self, sender: int, held: _Held) -> None:
        """Close a dependency on this sender."""
        opened = held.opened
        if opened.pop(sender, None) is None:
            return  # It has been released by the time.
        key = (held.pdu.stamp, held.source, held)
        if not opened:
            heapq.heappush(self._ready, key)
            return
        last = max(opened.values())
        if last + self._lifetime < -(-self._now // self._tick_ns):
            # The newest open one is here; all older ones have expired in the meantime.
            probe("jang-delta: gave up on an expired dependency")
            opened.clear()
            heapq.heappush(self._ready, key)
        elif last != held.last and self._lifetime != FOR_EVER_TICKS:
            held.last = last
            heapq.heappush(self._expiries, (last, *key))

    def _discard(self, source: ProcessId, pdu: JangDeltaPdu, reason: DiscardReason) -> Effects:
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


def _send_copies(
    effects: Effects,
    common: tuple[int, int, Destinations, dict[int, Entries]],
    head: bytes,
    taken: list[tuple[int, int, int]],
    encoded: tuple[list[bytes], int],
    payload: bytes,
    remote: int,
) -> int:
    """Append one Send per destination, each with its own DC; return their control bytes.

    Copies with the same dependencies share one PDU.
    """
    encoded_waits, packed = encoded
    everything = tuple([(sender, wait) for sender, wait, _ in taken])
    # Destination's bit → bit set of the dependencies that it does not have.
    lacking: dict[int, int] = {}
    for index, (_, _, mask) in enumerate(taken):
        missing = remote & ~mask
        while missing:
            bit = missing & -missing
            missing ^= bit
            lacking[bit] = lacking.get(bit, 0) | 1 << index
    shared: dict[int, JangDeltaPdu] = {}
    control_bytes = 0
    while remote:
        bit = remote & -remote
        remote ^= bit
        pattern = lacking.get(bit, 0)
        pdu = shared.get(pattern)
        if pdu is None:
            waits = everything
            parts = encoded_waits
            if pattern & (pattern - 1):
                kept = [index for index in range(len(taken)) if not pattern >> index & 1]
                waits = tuple([everything[index] for index in kept])
                parts = [encoded_waits[index] for index in kept]
            elif pattern:  # In a broadcast group: all but the destination's own message.
                index = pattern.bit_length() - 1
                waits = everything[:index] + everything[index + 1 :]
                parts = encoded_waits[:index] + encoded_waits[index + 1 :]
            control = head + join_waits(parts, packed)
            pdu = shared[pattern] = JangDeltaPdu(*common, waits, control, payload)
        control_bytes += len(pdu.control)
        effects.append(Send(ProcessId(bit.bit_length() - 1), pdu))
    return control_bytes
