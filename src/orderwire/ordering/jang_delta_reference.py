"""The corrected algorithm of Jang, step by step: the twin that tests compare the fast form with.

Source: [S000:sec.4], as corrected in [S000:dec.1] to [S000:dec.7].  Same PDU and codec as
`jang_delta`; sets and loops as the paper has them, every step a method of its own, so that a test
can also show which steps are needed.
"""

from orderwire.kernel import (
    Destinations,
    Effects,
    Indicate,
    Instant,
    LocalProtocolError,
    ProcessId,
    Send,
    destinations,
    members_of,
)
from orderwire.ordering.jang_delta_codec import (
    Entries,
    JangDeltaPdu,
    Layout,
    join_waits,
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
from orderwire.ordering.wire import encode_head

ControlInformation = dict[int, dict[int, set[int]]]
"""CI: sender → stamp → destinations at which that message may still be undelivered."""


class JangDeltaReference:
    """Deliver in Δ-causal order, slowly."""

    def __init__(self, me: ProcessId, settings: OrderingSettings) -> None:
        tick_ns = settings.tick_ns
        self.me = me
        self.settings = settings
        self.layout = Layout(settings)
        self.now = Instant(0)
        self.number = settings.first_number
        self.highest = -1
        self.lifetime = None if settings.lifetime_ns is None else settings.lifetime_ns // tick_ns
        self.epsilon = -(-settings.epsilon_ns // tick_ns)
        self.future = self.epsilon + -(-settings.future_guard_ns // tick_ns)
        self.delivered_stamps = [-1] * settings.members
        """DLV[k] for every other process k."""
        self.buffer: list[tuple[ProcessId, JangDeltaPdu, Instant]] = []
        self.entries: ControlInformation = {}

    # Time: every comparison in one place

    def tick(self) -> int:
        """Return the tick at or after the clock reading: a deadline d has passed when d < it."""
        return -(-self.now // self.settings.tick_ns)

    def next_stamp(self) -> int:
        """[S000:dec.2] Larger than every stamp in the causal past."""
        return max(self.now // self.settings.tick_ns, self.highest + 1)

    def is_late(self, stamp: int) -> bool:
        """stamp + Δ < now, by the receiver's own clock.  [S000:sec.4.4]"""
        return self.lifetime is not None and stamp + self.lifetime < self.tick()

    def is_wait_over(self, stamp: int) -> bool:
        """Whether a waiter may give up on a message with this stamp: never before it is late."""
        return self.is_late(stamp)

    def is_dead(self, stamp: int) -> bool:
        """Whether no clock of the group can still find this message in time.  [S000:dec.3]"""
        return self.lifetime is not None and stamp + self.lifetime + self.epsilon < self.tick()

    # Sending

    def submit(self, command: OrderingCommand, now: Instant) -> Effects:
        """Send a message.  Raises LocalProtocolError for an impossible destination set."""
        match command:
            case Multicast(payload, mask, lifetime_ns):
                self.settings.require_common_lifetime("jang-delta-reference", lifetime_ns)
                return self._multicast(payload, mask, now)
            case Lost():
                return self.lost(command)
            case Restarted():
                return []  # What it was sent before expires as if it were lost.
        raise LocalProtocolError(f"jang-delta-reference knows no command {command!r}")

    def lost(self, command: Lost) -> Effects:
        """Learn of lost copies: their deadlines decide, not the link."""
        return []

    def _multicast(self, payload: bytes, mask: Destinations, now: Instant) -> Effects:
        settings = self.settings
        if mask == 0 or mask >> settings.members:
            raise settings.refuse_destinations(mask)
        self.now = max(self.now, now)
        if self.now < settings.quiet_until_ns:
            raise settings.refuse_quiet(self.now)
        self.highest = stamp = self.next_stamp()
        number = self.number
        self.number += 1
        others = set[int](members_of(mask)) - {self.me}
        self.drop_dead()
        waits = self.extract_and_eliminate(others)
        self.drop_empty()
        snapshot = self.snapshot()
        head = encode_head(stamp, number, mask) + self.layout.encode_entries(stamp, snapshot)
        effects: Effects = []
        control_bytes = 0
        for process in sorted(others):
            mine = tuple(waits[process])
            control = head + join_waits(*self.layout.encode_waits(stamp, mine))
            control_bytes += len(control)
            pdu = JangDeltaPdu(number, stamp, mask, control, payload, snapshot, mine)
            effects.append(Send(ProcessId(process), pdu))
        self.record_own(stamp, others)
        instant = Instant(stamp * settings.tick_ns)
        effects.append(Indicate(Sent(number, instant, mask, control_bytes)))
        if mask >> self.me & 1:
            local = Delivered(self.me, number, instant, self.now, payload, mask, 0)
            effects.append(Indicate(local))
        return effects

    def drop_dead(self) -> None:
        """Send step 1: forget entries that no receiver can wait for."""
        for sender, group in list(self.entries.items()):
            for stamp in [stamp for stamp in group if self.is_dead(stamp)]:
                del group[stamp]
            if not group:
                del self.entries[sender]

    def extract_and_eliminate(self, others: set[int]) -> dict[int, list[tuple[int, int]]]:
        """Send steps 2 and 3: DC[j] first, then take m.D out of every entry."""
        waits: dict[int, list[tuple[int, int]]] = {process: [] for process in others}
        for sender, group in self.entries.items():
            for stamp, undelivered in group.items():
                for process in undelivered & others:
                    waits[process].append((sender, stamp))
                undelivered -= others
        return waits

    def drop_empty(self) -> None:
        """Send step 4: of the entries without destinations keep the newest per other sender."""
        for sender, group in list(self.entries.items()):
            newest = max(group)
            for stamp in [stamp for stamp, undelivered in group.items() if not undelivered]:
                if stamp != newest or sender == self.me:
                    del group[stamp]
            if not group:
                del self.entries[sender]

    def snapshot(self) -> dict[int, Entries]:
        """Send step 5: CI as it goes on the wire, newest entries first."""
        snapshot: dict[int, Entries] = {}
        for sender, group in self.entries.items():
            kept = tuple(
                (stamp, int(destinations(group[stamp])))
                for stamp in sorted(group, reverse=True)
                if group[stamp] or self.settings.send_empty_entries
            )
            if kept:
                snapshot[sender] = kept
        return snapshot

    def record_own(self, stamp: int, others: set[int]) -> None:
        """Send step 6: my own message may now be undelivered at its destinations."""
        self.entries.setdefault(self.me, {})[stamp] = set(others)

    # Receiving

    def receive(self, source: ProcessId, pdu: JangDeltaPdu, now: Instant) -> Effects:
        """Take a copy that the network brought."""
        self.now = max(self.now, now)
        reason = self.refuse(source, pdu)
        if reason is not None:
            discarded = Discarded(
                source,
                pdu.number,
                Instant(pdu.stamp * self.settings.tick_ns),
                self.now,
                reason,
                len(pdu.control),
                len(pdu.payload),
            )
            return [Indicate(discarded)]
        self.buffer.append((source, pdu, self.now))
        return self.drain()

    def refuse(self, source: ProcessId, pdu: JangDeltaPdu) -> DiscardReason | None:
        """Say why this copy is not to be delivered, or return None."""
        if self.is_late(pdu.stamp):
            return DiscardReason.LATE
        waiting = any((source, pdu.stamp) == (other, held.stamp) for other, held, _ in self.buffer)
        if waiting or pdu.stamp <= self.delivered_stamps[source]:
            return DiscardReason.DUPLICATE
        if pdu.stamp > self.tick() + self.future:
            return DiscardReason.FUTURE
        return None

    def wake(self, now: Instant) -> Effects:
        """Deliver what waits no longer."""
        self.now = max(self.now, now)
        return self.drain()

    def drain(self) -> Effects:
        """Deliver what is ready, smallest (stamp, sender) first, looking again after each."""
        effects: Effects = []
        while True:
            ready = [held for held in self.buffer if self.is_ready(held[1])]
            if not ready:
                return effects
            self.deliver(self.choose(ready), effects)

    def choose(
        self, ready: list[tuple[ProcessId, JangDeltaPdu, Instant]]
    ) -> tuple[ProcessId, JangDeltaPdu, Instant]:
        """Stamp order keeps causality when a late timer makes several ready.  [S000:dec.4]"""
        return min(ready, key=lambda held: (held[1].stamp, held[0]))

    def is_ready(self, pdu: JangDeltaPdu) -> bool:
        """Every dependency is delivered or may be given up.  [S000:sec.4.4]"""
        return all(self.is_settled(sender, stamp) for sender, stamp in pdu.waits)

    def is_settled(self, sender: int, stamp: int) -> bool:
        """Delivered, or past its deadline."""
        return self.is_delivered(sender, stamp) or self.is_wait_over(stamp)

    def is_delivered(self, sender: int, stamp: int) -> bool:
        """DLV as a watermark: every message names its predecessor from the same sender."""
        return sender == self.me or stamp <= self.delivered_stamps[sender]

    def deliver(self, held: tuple[ProcessId, JangDeltaPdu, Instant], effects: Effects) -> None:
        """Hand a message to the application and take over its control information."""
        source, pdu, arrived = held
        self.buffer.remove(held)
        self.delivered_stamps[source] = max(self.delivered_stamps[source], pdu.stamp)
        self.highest = max(self.highest, pdu.stamp)
        effects.append(
            Indicate(
                Delivered(
                    source,
                    pdu.number,
                    Instant(pdu.stamp * self.settings.tick_ns),
                    arrived,
                    pdu.payload,
                    pdu.destinations,
                    len(pdu.control),
                )
            )
        )
        self.merge(source, pdu)

    def merge(self, source: ProcessId, pdu: JangDeltaPdu) -> None:
        """Receive steps 1 to 5."""
        theirs = {
            sender: {stamp: set[int](members_of(Destinations(mask))) for stamp, mask in group}
            for sender, group in pdu.entries.items()
        }
        self.record_delivered(source, pdu, theirs)
        for group in theirs.values():
            for undelivered in group.values():
                undelivered.discard(self.me)
        for sender, group in theirs.items():
            self.entries[sender] = self.merge_sender(self.entries.get(sender), group)
            self.cover(self.entries[sender])
        self.drop_dead()
        self.drop_empty()

    def record_delivered(
        self, source: ProcessId, pdu: JangDeltaPdu, theirs: ControlInformation
    ) -> None:
        """Receive step 1, missing in the print: m itself.  [S000:dec.1]"""
        others = set[int](members_of(pdu.destinations)) - {source}
        theirs.setdefault(source, {})[pdu.stamp] = others

    def merge_sender(
        self, mine: dict[int, set[int]] | None, theirs: dict[int, set[int]]
    ) -> dict[int, set[int]]:
        """Receive step 3, on the original sets of both sides."""
        if mine is None:
            return dict(theirs)
        merged: dict[int, set[int]] = {}
        for stamp, undelivered in mine.items():
            if stamp in theirs:
                merged[stamp] = undelivered & theirs[stamp]
            elif not any(newer > stamp for newer in theirs):
                merged[stamp] = undelivered
        for stamp, undelivered in theirs.items():
            if stamp not in mine and not any(newer > stamp for newer in mine):
                merged[stamp] = undelivered
        return merged

    def cover(self, group: dict[int, set[int]]) -> None:
        """Receive step 4: a newer message of the same sender covers the older ones."""
        seen: set[int] = set()
        for stamp in sorted(group, reverse=True):
            group[stamp] -= seen
            seen |= group[stamp]

    def next_deadline(self) -> Instant | None:
        """Return the first instant at which the time alone makes a waiting message ready."""
        if self.lifetime is None:
            return None
        latest = [
            max(stamp for sender, stamp in pdu.waits if not self.is_delivered(sender, stamp))
            for _, pdu, _ in self.buffer
        ]
        if not latest:
            return None
        return Instant((min(latest) + self.lifetime) * self.settings.tick_ns + 1)
