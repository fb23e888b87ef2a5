"""DHT broadcast: ranges, acknowledgements per hop, and rerouting.  [FDP/1 R3–R10 R14]"""

import msgspec

from orderwire.discovery.effects import Address, DiscoveryEffects, Post
from orderwire.discovery.messages import (
    HOPS_MAX,
    Broadcast,
    Contact,
    Heartbeat,
    Join,
    Leave,
    Row,
    Update,
    fitting,
    held,
    nominal_bytes,
)
from orderwire.discovery.ring import (
    UP,
    Hop,
    between,
    distance,
    nearest,
    own_targets,
    targets,
    within,
)
from orderwire.discovery.roster import Roster
from orderwire.discovery.settings import (
    DUPLICATES_MAX,
    PATIENCE_NS_MAX,
    PENDING_MAX,
    RANGE_BYTES_MAX,
    RECENT_MAX,
    DiscoverySettings,
)
from orderwire.discovery.timers import Timers
from orderwire.kernel import NS_PER_S, Instant, probe

RATE_SAMPLE_NS = 50_000_000
"""An acknowledgement that took less says more of the delay than of the rate."""

Key = tuple[int, int, int, int, int]
"""Source id, its incarnation, its sequence number, direction, target."""


class _Pending(msgspec.Struct):
    """One copy whose acknowledgement is outstanding."""

    message: Join | Leave
    sends: int
    sent_ns: int
    cost_bytes: int
    held_bytes: int
    """What counts towards the limit: nothing of one's own, of which there are few."""
    awaited: bool
    """One's own JOIN, not overdue yet."""


class Broadcasts:
    """What one participant has sent and relayed."""

    def __init__(self, settings: DiscoverySettings, roster: Roster, timers: Timers) -> None:
        self._settings = settings
        self._mechanisms = settings.mechanisms
        self._roster = roster
        self._timers = timers
        self._seen: dict[tuple[int, int, int, int], int] = {}
        """How far each broadcast has been relayed already, as the distance it reaches."""
        self.pending: dict[Key, _Pending] = {}
        self.own_joins = 0
        """Answers to one's own JOIN that are outstanding and not overdue. [R9]

        Who does not answer in time may be followed by others who do not: they are not waited for.
        """
        self._outstanding_bytes = 0
        self._held_bytes = 0
        self._rate = settings.rate_bytes_per_s
        self._recent: dict[Key, tuple[int, Update]] = {}
        """The oldest first."""
        self._recent_bytes = 0
        self.unkept = 0
        """Relayed copies that are not sent again: too many were outstanding."""
        self.forgotten = 0
        """Copies that could not have been rerouted any more."""
        self.muted = False
        """Relays nothing; scenarios break a relay by it."""

    # -- sending ----------------------------------------------------------------------------

    def own(self, message: Broadcast, now: Instant) -> DiscoveryEffects:
        """Send one's own broadcast: copies with hop 1.  `to`, `hi` and the rest are filled in."""
        roster = self._roster
        assert roster.me is not None, "a participant without an id sends no broadcast"
        limit = self._settings.both_ways_bytes_max
        both_ways = limit < 0 or nominal_bytes(message) <= limit
        hops = own_targets(
            roster.ring,
            roster.me,
            roster.id_space,
            both_ways=both_ways,
            policy=self._settings.policy,
        )
        return self._copies(message, hops, 1, now)

    def relay(self, message: Broadcast, now: Instant) -> DiscoveryEffects:
        """Send on what has come, unless this range has been served. [R10]"""
        roster = self._roster
        assert roster.me is not None
        if self.muted or message.hop >= HOPS_MAX:
            return []
        row, direction = message.row, message.direction
        key = (row.id, row.inc, message.seq, direction)
        reach = distance(roster.me, message.hi, roster.id_space, direction)
        if self._seen.get(key, -1) >= reach:
            probe("fdp: duplicate")
            return []
        self._seen.pop(key, None)
        self._seen[key] = reach
        if len(self._seen) > DUPLICATES_MAX:
            del self._seen[next(iter(self._seen))]
        hops = targets(
            roster.ring,
            roster.me,
            message.hi,
            roster.id_space,
            direction,
            self._settings.policy,
        )
        hops = [hop for hop in hops if hop.to != row.id]
        return self._copies(message, hops, message.hop + 1, now)

    def _copies(
        self, message: Broadcast, hops: list[Hop], depth: int, now: Instant
    ) -> DiscoveryEffects:
        effects: DiscoveryEffects = []
        me = self._roster.me
        assert me is not None
        first: dict[int, int] = {hop.direction: hop.to for hop in hops} if depth == 1 else {}
        for to, hi, direction in hops:
            copy: Broadcast
            if isinstance(message, Join):
                copy = Join(
                    to,
                    me,
                    message.row,
                    message.seq,
                    depth,
                    hi,
                    direction,
                    self._mechanisms.members and first.get(direction) == to,
                    message.map,
                    message.have,
                    self._members(to, hi, direction),
                )
            else:
                copy = msgspec.structs.replace(
                    message, to=to, frm=me, hop=depth, hi=hi, direction=direction
                )
            effects += self._send(copy, now)
        return effects

    def _members(self, to: int, hi: int, direction: int) -> tuple[Contact, ...]:
        """All that are known in the range behind its target. [R6]"""
        if not self._mechanisms.members or to == hi:
            return ()
        roster = self._roster
        contacts, entries = roster.contacts, roster.entries
        found = []
        for each in between(roster.ring, to, hi, roster.id_space, direction):
            contact = contacts.get(each)
            if contact is None:
                entry = entries[each]
                contact = Contact(each, entry.addr, entry.inc)
            found.append(contact)
        return fitting(found, RANGE_BYTES_MAX)

    def _send(
        self, copy: Broadcast, now: Instant, sends: int = 1, *, late: bool = False
    ) -> DiscoveryEffects:
        addr = self._roster.address_of(copy.to)
        assert addr is not None, f"target {copy.to} has no address"
        row = copy.row
        key = (row.id, row.inc, copy.seq, copy.direction, copy.to)
        if isinstance(copy, (Join, Leave)):
            self._await(key, copy, now, sends, late=late)
        elif isinstance(copy, Update) and self._mechanisms.reroute:
            self._remember(key, copy, now)
        return [Post(addr, copy)]

    def _await(self, key: Key, copy: Join | Leave, now: Instant, sends: int, *, late: bool) -> None:
        """Keep a copy until it is acknowledged, if there is room."""
        if key in self.pending:
            self._forget(key)
        size = nominal_bytes(copy)
        held = 0 if copy.row.id == self._roster.me else size
        limit = self._settings.pending_bytes_max
        if held and (self._held_bytes + held > limit or len(self.pending) >= PENDING_MAX):
            probe("fdp: copy not kept")
            self.unkept += 1
            return
        cost, own_join = size, False
        if isinstance(copy, Join) and copy.hop == 1:  # MAPs like it come in return.
            own_join = True
            cost += copy.map.size_bytes * (1 + len(copy.members))
        self._outstanding_bytes += cost
        self._held_bytes += held
        awaited = not late and own_join
        self.own_joins += awaited
        self.pending[key] = _Pending(copy, sends, now, cost, held, awaited)
        if self._mechanisms.arq or self._mechanisms.reroute:
            patience = 2 * self._outstanding_bytes * NS_PER_S // self._rate
            due = now + self._settings.ack_ns + min(patience, PATIENCE_NS_MAX)
            self._timers.set(key, Instant(due))

    def _remember(self, key: Key, update: Update, now: Instant) -> None:
        """Keep a copy for as long as its target's failure can tell that it was lost."""
        self._take_recent(key)
        self._recent[key] = (now, update)
        self._recent_bytes += nominal_bytes(update)
        past = now - self._settings.ack_ns
        while self._recent:
            oldest = next(iter(self._recent))
            timely = self._recent[oldest][0] >= past
            fits = self._recent_bytes <= self._settings.recent_bytes_max
            if timely and fits and len(self._recent) <= RECENT_MAX:
                break
            self.forgotten += timely
            self._take_recent(oldest)

    def _take_recent(self, key: Key) -> tuple[int, Update] | None:
        kept = self._recent.pop(key, None)
        if kept is not None:
            self._recent_bytes -= nominal_bytes(kept[1])
        return kept

    # -- acknowledgements -------------------------------------------------------------------

    def acknowledged(self, key: Key, ack_bytes: int, now: Instant) -> None:
        """Take the answer to one copy."""
        pending = self.pending.get(key)
        if pending is None:
            return
        took_ns = now - pending.sent_ns
        if took_ns >= RATE_SAMPLE_NS:
            measured = (nominal_bytes(pending.message) + ack_bytes) * NS_PER_S // took_ns
            self._rate = max(1, (3 * self._rate + measured) // 4)
        self._forget(key)

    def _forget(self, key: Key) -> _Pending:
        pending = self.pending.pop(key)
        self._outstanding_bytes -= pending.cost_bytes
        self._held_bytes -= pending.held_bytes
        self.own_joins -= pending.awaited
        self._timers.cancel(key)
        return pending

    def overdue(self, key: Key, now: Instant) -> DiscoveryEffects:
        """Send again what is not acknowledged, or give up on its target. [R14]"""
        pending = self._forget(key)
        copy = held(pending.message, now - pending.sent_ns)
        roster, to = self._roster, key[4]
        there = roster.address_of(to) is not None and not roster.suspected(to)
        if there and self._mechanisms.arq and pending.sends < self._settings.sends_max:
            probe("fdp: sent again")
            return self._send(copy, now, pending.sends + 1, late=True)
        return self.fail(to, now) + self._reroute(copy, now, late=True)

    # -- rerouting --------------------------------------------------------------------------

    def targets_at(self, address: Address) -> set[int]:
        """Return the ids at this address whose answers are outstanding."""
        targets = {key[4] for key in self.pending}
        return {each for each in targets if self._roster.address_of(each) == address}

    def fail(self, identity: int, now: Instant) -> DiscoveryEffects:
        """Suspect this id and give what it was to serve to others. [R14]"""
        self._roster.suspect(identity)
        effects: DiscoveryEffects = []
        for key in [each for each in self.pending if each[4] == identity]:
            pending = self._forget(key)
            copy = held(pending.message, now - pending.sent_ns)
            effects += self._reroute(copy, now, late=pending.sends > 1)
        since = now - self._settings.ack_ns
        for key in [each for each in self._recent if each[4] == identity]:
            kept = self._take_recent(key)
            if kept is not None and kept[0] >= since:
                effects += self._reroute(held(kept[1], now - kept[0]), now)
        return effects

    def _reroute(self, copy: Broadcast, now: Instant, *, late: bool = False) -> DiscoveryEffects:
        """Give the range behind a silent target to the next known member in it."""
        roster = self._roster
        if not self._mechanisms.reroute or roster.me is None:
            return []
        to = nearest(roster.ring, copy.to, copy.hi, copy.direction)
        if to is None or not within(to, copy.to, copy.hi, roster.id_space, copy.direction):
            return []
        probe("fdp: rerouted")
        rest = msgspec.structs.replace(copy, to=to, frm=roster.me)
        return self._send(rest, now, late=late)

    def drop_all(self) -> None:
        """Forget what is outstanding: the id it was sent under is lost."""
        for key in list(self.pending):
            self._forget(key)
        self._recent.clear()
        self._recent_bytes = 0


def heartbeat(row: Row, seq: int) -> Heartbeat:
    """Return a heartbeat to be addressed."""
    return Heartbeat(0, 0, row, seq, 1, 0, UP)
