"""Causal multicast in which every message has a lifetime of its own.

Source: [R00], of which only the abstract is known: deadlines per message, as many messages as
possible delivered by theirs; reconstructed.  A message's lifetime is that of its command, at most
the domain's Δ.

Full tags: CB names every live message of the past for each destination, with its lifetime.  None
stands for another, since the older one may live longer.  A message waits until each is delivered or
past its own deadline, but never past its own deadline: then it is delivered, behind those of its
predecessors that have arrived; one that arrives later has been overtaken and is discarded.

Promise: of two delivered messages with a common destination, the one that happened before the other
is delivered first; a message that arrives by its deadline is delivered by it, unless it has been
overtaken.  Needs a lifetime.  Cost: as `yavatkar_mcp`, and two bytes; three numbers more for each
message with a lifetime that is not Δ.

Everything that a delivered message names is settled, and all older messages of the same senders to
this process with it, for they are in its past, too: so the watermark DLV holds here as well.

    wire    head, Δ − lifetime, CB, then the messages of CB whose lifetime is not Δ:
              count, then per message, newest first: age, sender, Δ − lifetime   (varints)
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping

from msgspec.structs import replace

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
from orderwire.ordering.causal_node import READY, CausalNode, Held, Wait
from orderwire.ordering.pdu import Delivered, DiscardReason, Multicast, OrderingCommand
from orderwire.ordering.predecessor_sets import (
    PredecessorSets,
    PredecessorSetsPdu,
    Sending,
    Sendings,
    Sets,
    decode_sets,
    encode_sets,
    unite,
)
from orderwire.ordering.settings import OrderingSettings
from orderwire.ordering.wire import (
    INTEGER_BYTES,
    HeadedCodec,
    decode_head,
    encode_head,
    encode_varint,
    payload_of,
)

SET_MESSAGES_MAX = 4_096
"""Messages to one destination that a set names; more are an error of lifetimes and rates."""


class RodriguesDeadlinePdu(PredecessorSetsPdu, frozen=True, gc=False):
    """One copy of a message, with all of CB."""

    lifetime: int
    """Of this message, in ticks."""
    shortfalls: Mapping[Sending, int]
    """Δ − lifetime of those messages of CB where it is not 0, in ticks."""


def printed_bytes(pdu: RodriguesDeadlinePdu, settings: OrderingSettings) -> int:
    """Return the size of CB with lifetimes in the papers' layout, in bytes.

    4 + Σ (4 + 12 · messages): an integer for the own lifetime and for each named message's.
    """
    named = sum(map(len, pdu.sets.values()))
    return INTEGER_BYTES * (1 + settings.members + 3 * named)


class RodriguesDeadline(CausalNode[RodriguesDeadlinePdu]):
    """Deliver in causal order, each message by its own deadline.

    Raises ValueError without a lifetime, which is that of messages without one of their own.
    """

    NAME = "rodrigues-deadline"

    def __init__(self, me: ProcessId, settings: OrderingSettings) -> None:
        super().__init__(me, settings)
        settings.require_lifetime(self.NAME)
        self._epsilon = self._dead_after - self._lifetime
        self._own_lifetime = self._lifetime
        """Of the message being sent, in ticks."""
        self._sets = PredecessorSets()
        """CB."""
        self._shortfalls: dict[Sending, int] = {}
        """Δ − lifetime of the messages of CB where it is not 0."""
        self._known: set[Sending] = set()
        """Messages delivered here that a copy in time could repeat."""
        self._forgettable: list[tuple[int, Sending]] = []
        """Heap of (deadline, message) of `_known`."""

    # Sending

    def submit(self, command: OrderingCommand, now: Instant) -> Effects:
        """Send a message.

        Raises LocalProtocolError, also for an impossible lifetime, and while more than
        SET_MESSAGES_MAX messages may be undelivered at one process.
        """
        self._own_lifetime = self._lifetime
        if isinstance(command, Multicast):
            self._now = max(now, self._now)
            self._forget_dead()
            named = self._sets.largest()
            if named > SET_MESSAGES_MAX:
                raise LocalProtocolError(
                    f"{named} messages may be undelivered at one process, a tag names at most "
                    f"{SET_MESSAGES_MAX}: lifetimes are too long for this rate"
                )
        effects = super().submit(command, now)
        if effects and self._own_lifetime != self._lifetime:
            self._tell_lifetime(effects, len(effects) - 1, self._own_lifetime)
        return effects

    def _tell_lifetime(self, effects: Effects, at: int, lifetime: int) -> None:
        """Add a message's own lifetime, in ticks, to its delivery, if that is the effect here."""
        effect = effects[at]
        if isinstance(effect, Indicate) and isinstance(effect.indication, Delivered):
            told = replace(effect.indication, lifetime_ns=lifetime * self._tick_ns)
            effects[at] = Indicate(told)

    def _accept_lifetime(self, lifetime_ns: int) -> None:
        ticks, rest = divmod(lifetime_ns, self._tick_ns)
        if rest or not 0 < ticks <= self._lifetime:
            raise LocalProtocolError(
                f"lifetime_ns={lifetime_ns} of a message is no positive multiple of tick_ns="
                f"{self._tick_ns} up to the domain's {self._settings.lifetime_ns}"
            )
        self._own_lifetime = ticks

    def _send_copies(
        self,
        effects: Effects,
        number: int,
        stamp: int,
        destinations: Destinations,
        remote: int,
        payload: bytes,
    ) -> int:
        """Piggyback CB, then record m."""
        sets = self._sets.snapshot()
        shortfalls = {}
        if self._shortfalls:
            named = set[Sending]().union(*sets.values())
            shortfalls = {sent: less for sent, less in self._shortfalls.items() if sent in named}
        shortfall = self._lifetime - self._own_lifetime
        control = (
            encode_head(stamp, number, destinations)
            + encode_varint(shortfall)
            + encode_sets(stamp, sets)
            + _encode_shortfalls(stamp, shortfalls)
        )
        pdu = RodriguesDeadlinePdu(
            number, stamp, destinations, control, payload, sets, self._own_lifetime, shortfalls
        )
        for process in members_of(Destinations(remote)):
            effects.append(Send(process, pdu))
        self._record((stamp, int(self._me)), shortfall, remote)
        return len(control) * len(effects)

    def _record(self, sending: Sending, shortfall: int, remote: int) -> None:
        """Remember that a message may be undelivered at these processes."""
        if shortfall and remote:
            self._shortfalls[sending] = shortfall
        for process in members_of(Destinations(remote)):
            self._sets.replace(process, unite((sending,), self._sets.of(process)))

    def _forget_dead(self) -> None:
        """Drop what no clock of the group can find in time, stamp + lifetime + ε < now."""
        dead = self._dead_before()
        shortfalls = self._shortfalls
        gone = {sending for sending, less in shortfalls.items() if sending[0] - less < dead}
        for sending in gone:
            del shortfalls[sending]
        self._sets.forget(dead, gone)

    # Receiving

    def receive(self, source: ProcessId, pdu: RodriguesDeadlinePdu, now: Instant) -> Effects:
        """Deliver the message and those it releases, or let it wait, or discard it."""
        self._now = now = max(now, self._now)
        if not 0 <= source < self._members or source == self._me:
            raise RemoteProtocolError(f"a message from process {source}, which is no peer")
        if not pdu.destinations & self._me_bit:
            raise RemoteProtocolError(f"a message to {pdu.destinations:#x}, I am {self._me}")
        tick = -(-now // self._tick_ns)
        reason = self._refusal(source, pdu, tick)
        if reason is not None:
            return self._discard(source, pdu, reason)
        self._expire(now)
        held = Held(source, pdu, now, {}, 0)
        effects: Effects = []
        if self._due(held) <= now:
            self._held[source, pdu.stamp] = held
            self._release(held)
        elif len(self._held) >= self._settings.waiting_messages_max:
            effects = self._discard(source, pdu, DiscardReason.FULL)
        else:
            probe("causal: held")
            self._hold(held)
        self._drain(effects)
        return effects

    def _refusal(
        self, source: ProcessId, pdu: RodriguesDeadlinePdu, tick: int
    ) -> DiscardReason | None:
        stamp = pdu.stamp
        if stamp + pdu.lifetime < tick:
            late = stamp + self._lifetime < tick
            return DiscardReason.LATE if late else DiscardReason.EXPIRED
        if (source, stamp) in self._held or (stamp, source) in self._known:
            return DiscardReason.DUPLICATE
        if stamp > tick + self._future:
            return DiscardReason.FUTURE
        if stamp <= self._delivered[source]:
            probe("rodrigues: overtaken")
            return DiscardReason.OVERTAKEN
        return None

    def _named(self, pdu: RodriguesDeadlinePdu) -> Sendings:
        """Return the live messages to me in the past of this one."""
        return pdu.sets.get(self._me, ())

    def _waits(self, pdu: RodriguesDeadlinePdu) -> Iterable[Wait]:
        return [(sender, stamp) for stamp, sender in self._named(pdu)]

    def _open(self, pdu: RodriguesDeadlinePdu) -> Iterator[Sending]:
        """Yield those of them that are not settled by a delivery."""
        delivered = self._delivered
        for stamp, sender in self._named(pdu):
            if stamp > delivered[sender]:
                yield stamp, sender

    def _due(self, held: Held[RodriguesDeadlinePdu]) -> int:
        """Return when the time alone releases a message: at its own deadline at the latest."""
        pdu = held.pdu
        shortfalls = pdu.shortfalls
        # Before 0, where clocks begin, when a lifetime is short and the clock is, too.
        latest = max(
            (sending[0] - shortfalls.get(sending, 0) for sending in self._open(pdu)), default=None
        )
        if latest is None:
            return 0
        expiry = (latest + self._lifetime) * self._tick_ns + 1
        return min(expiry, (pdu.stamp + pdu.lifetime) * self._tick_ns)

    def _hold(self, held: Held[RodriguesDeadlinePdu]) -> None:
        source, stamp = held.source, held.pdu.stamp
        self._held[source, stamp] = held
        for wait, sender in self._open(held.pdu):
            heapq.heappush(self._blocked[sender], (wait, stamp, source, held))
        held.due = self._due(held)
        heapq.heappush(self._expiries, (held.due, stamp, source, held))

    def _settle(self, sender: int, held: Held[RodriguesDeadlinePdu]) -> None:
        if held.due == READY:
            return
        due = self._due(held)
        if due <= self._now:
            self._release(held)
        elif due != held.due:
            held.due = due
            heapq.heappush(self._expiries, (due, held.pdu.stamp, held.source, held))

    def _drain(self, effects: Effects) -> None:
        """Deliver what is ready, smallest stamp first, behind its predecessors that are here."""
        while self._ready:
            stamp, source, held = heapq.heappop(self._ready)
            waiting = [
                other
                for wait, sender in self._open(held.pdu)
                if (other := self._held.get((ProcessId(sender), wait))) and other.due != READY
            ]
            if waiting:
                for other in waiting:
                    self._release(other)
                heapq.heappush(self._ready, (stamp, source, held))
            else:
                del self._held[source, stamp]
                self._deliver(held.source, held.pdu, held.arrived, effects)

    def _deliver(
        self, source: ProcessId, pdu: RodriguesDeadlinePdu, arrived: Instant, effects: Effects
    ) -> None:
        named = self._named(pdu)
        at = len(effects)
        super()._deliver(source, pdu, arrived, effects)
        if pdu.lifetime != self._lifetime:
            self._tell_lifetime(effects, at, pdu.lifetime)
        self._remember(source, pdu)
        delivered = self._delivered
        for stamp, sender in named:
            if stamp > delivered[sender]:
                delivered[sender] = stamp
                blocked = self._blocked[sender]
                while blocked and blocked[0][0] <= stamp:
                    self._settle(sender, heapq.heappop(blocked)[3])

    def _remember(self, source: ProcessId, pdu: RodriguesDeadlinePdu) -> None:
        """Know the next copy of this message for a duplicate."""
        forgettable = self._forgettable
        tick = -(-self._now // self._tick_ns)
        while forgettable and forgettable[0][0] < tick:
            self._known.discard(heapq.heappop(forgettable)[1])
        sending = (pdu.stamp, int(source))
        self._known.add(sending)
        heapq.heappush(forgettable, (pdu.stamp + pdu.lifetime, sending))

    def _merge(self, source: ProcessId, pdu: RodriguesDeadlinePdu) -> None:
        """Unite the sets, with m itself."""
        own = self._sets
        for process, sendings in pdu.sets.items():
            if process != self._me:
                own.replace(process, unite(own.of(process), sendings))
        self._shortfalls.update(pdu.shortfalls)
        others = pdu.destinations & ~self._me_bit & ~(1 << source)
        self._record((pdu.stamp, int(source)), self._lifetime - pdu.lifetime, others)
        self._forget_dead()


def _encode_shortfalls(stamp: int, shortfalls: Mapping[Sending, int]) -> bytes:
    """Return which messages live shorter than Δ, and by how much."""
    out = bytearray(encode_varint(len(shortfalls)))
    newer = stamp
    for sending in sorted(shortfalls, reverse=True):
        out += encode_varint(newer - sending[0])
        out += encode_varint(sending[1])
        out += encode_varint(shortfalls[sending])
        newer = sending[0]
    return bytes(out)


class RodriguesDeadlineCodec(HeadedCodec[RodriguesDeadlinePdu]):
    """The compact form."""

    def __init__(self, me: ProcessId, settings: OrderingSettings) -> None:
        settings.require_lifetime(RodriguesDeadline.NAME)
        super().__init__(me, settings)
        self._lifetime = (settings.lifetime_ns or 0) // settings.tick_ns

    def _parse(self, front: bytes, data: bytes | memoryview) -> RodriguesDeadlinePdu:
        stamp, number, destinations, at = decode_head(front, self._members)
        shortfall, at = read_varint(front, at)
        if shortfall >= self._lifetime:
            raise RemoteProtocolError(f"a lifetime of {self._lifetime} - {shortfall} ticks")
        sets, at = decode_sets(front, at, stamp, self._members, SET_MESSAGES_MAX)
        shortfalls, at = self._parse_shortfalls(front, at, stamp, sets)
        payload = payload_of(front, data, at)
        lifetime = self._lifetime - shortfall
        return RodriguesDeadlinePdu(
            number, stamp, destinations, front[:at], payload, sets, lifetime, shortfalls
        )

    def _parse_shortfalls(
        self, data: bytes, at: int, stamp: int, sets: Sets
    ) -> tuple[dict[Sending, int], int]:
        count, at = read_varint(data, at)
        shortfalls: dict[Sending, int] = {}
        if not count:
            return shortfalls, at
        named = set[Sending]().union(*sets.values())
        if count > len(named):
            raise RemoteProtocolError(f"lifetimes of {count} messages, {len(named)} are named")
        newer = (stamp, -1)
        for _ in range(count):
            age, at = read_varint(data, at)
            sender, at = read_varint(data, at)
            less, at = read_varint(data, at)
            sending = (newer[0] - age, sender)
            if not (sending < newer and sending in named and 0 < less < self._lifetime):
                raise RemoteProtocolError(
                    f"lifetime of {self._lifetime} - {less} ticks for a message of sender {sender}"
                    f", {age} ticks before {newer}, which no set names"
                )
            shortfalls[sending] = less
            newer = sending
        return shortfalls, at
