"""FDP/1 and BiFDP: every participant ends with exactly the newest MAPs of all that live.  [S002]

Completes the published protocol: explicit member lists, responsibility of the later joiner, soft
failure detection with ages, incarnations, rerouting and anti-entropy (docs/protocols/fdp.md).
BiFDP serves a broadcast half around in both directions; which one is chosen per message, by size.
"""

from collections.abc import Hashable
from random import Random

from orderwire.discovery.antientropy import SYNC, AntiEntropy
from orderwire.discovery.broadcasting import Broadcasts, heartbeat
from orderwire.discovery.commands import (
    MapForm,
)
from orderwire.discovery.effects import Address, DiscoveryEffects, Post
from orderwire.discovery.entrance import Entrance
from orderwire.discovery.exchange import FETCH, Exchange
from orderwire.discovery.messages import (
    Addressed,
    Broadcast,
    Carried,
    Contact,
    Heartbeat,
    Join,
    JoinAck,
    Leave,
    LeaveAck,
    Maps,
    NotMe,
    Pull,
    Row,
    Sync,
    SyncReply,
    Update,
    listed_bytes,
    nominal_bytes,
)
from orderwire.discovery.node import Node
from orderwire.discovery.ring import UP, between, within
from orderwire.discovery.roster import Entry, Merge
from orderwire.discovery.settings import (
    CARRIED_BYTES_MAX,
    DiscoverySettings,
)
from orderwire.kernel import Instant, RemoteProtocolError, probe

BUSY_PULLS = 5
"""A JOIN that takes so many times as long as MAPs are waited for was made by busy machines."""


class FdpNode(Node):
    """A participant, and what keeps its MAP and its view exact."""

    def __init__(
        self,
        address: Address,
        entrance: Entrance,
        settings: DiscoverySettings,
        chance: Random,
        form: MapForm | None = None,
    ) -> None:
        super().__init__(address, entrance, settings, chance, form)
        roster, own, timers = self.roster, self.own, self._timers
        self.broadcasts = Broadcasts(settings, roster, timers)
        self._exchange = exchange = Exchange(settings, roster, own, timers)
        self._anti_entropy = AntiEntropy(settings, roster, own, exchange, entrance, timers, chance)
        self._joined_at = Instant(0)

    def live(self) -> dict[int, Entry]:
        """Return the other participants that are there, by id."""
        return {each.id: each for each in self.roster.live()}

    @property
    def dropped(self) -> dict[str, int]:
        """What was not kept because of a limit, by kind; anti-entropy repairs what it can."""
        broadcasts = self.broadcasts
        return super().dropped | {
            "copies to send again": broadcasts.unkept,
            "copies to reroute": broadcasts.forgotten,
        }

    def _due(self, name: Hashable, now: Instant) -> DiscoveryEffects:
        if isinstance(name, tuple):
            return self.broadcasts.overdue(name, now)
        if name == SYNC:
            return self._anti_entropy.due(now)
        if name == FETCH:
            return self._exchange.fetch(now)
        return super()._due(name, now)

    # -- joining ----------------------------------------------------------------------------

    def _joined(self, now: Instant) -> DiscoveryEffects:
        self._exchange.joining = True
        self._joined_at = now
        own = self.own
        row, seq = own.next_row(), own.next_seq()
        join = Join(0, 0, row, seq, 1, 0, UP, False, own.told, self.roster.holdings(), ())
        effects = self.broadcasts.own(join, now)
        self._anti_entropy.begin(now)
        return effects

    def _id_lost(self) -> None:
        self.broadcasts.drop_all()
        self._exchange.joining = False
        self._timers.cancel(SYNC)

    def _meet(self, contact: Contact, now: Instant) -> DiscoveryEffects:
        """SYNC with a participant that the server or a seed named, unknown or expired. [R16]"""
        roster = self.roster
        if roster.me is None:
            return []
        if roster.learn_contact(contact, now) is Merge.NOTHING and not roster.has_expired(contact):
            return []
        return [Post(contact.addr, self._anti_entropy.message(contact.id, now))]

    # -- one's own broadcasts ---------------------------------------------------------------

    def _update(self, now: Instant) -> DiscoveryEffects:
        own = self.own
        change = own.tell_change()
        self._restart_heartbeat(now)
        row, seq = own.next_row(), own.next_seq()
        if change is None:  # Whoever sees the version asks for it.
            return self.broadcasts.own(heartbeat(row, seq), now)
        return self.broadcasts.own(Update(0, 0, row, seq, 1, 0, UP, *change), now)

    def _beat(self, now: Instant) -> DiscoveryEffects:
        own = self.own
        if own.map is not own.told:
            return self._update(now)
        self._restart_heartbeat(now)
        if self.settings.gossip_heartbeats:
            own.beat()
            return []
        return self.broadcasts.own(heartbeat(own.next_row(), own.next_seq()), now)

    def _say_goodbye(self, row: Row, seq: int, now: Instant) -> DiscoveryEffects:
        self._timers.cancel(SYNC)
        return self.broadcasts.own(Leave(0, 0, row, seq, 1, 0, UP), now)

    @property
    def _is_dismissed(self) -> bool:
        return not self.broadcasts.pending

    # -- messages of other participants -----------------------------------------------------

    def _addressed(self, source: Address, message: Addressed, now: Instant) -> DiscoveryEffects:
        roster = self.roster
        assert roster.me is not None
        if message.to != roster.me and message.to is not None:
            probe("fdp: not me")  # NOT_ME itself is not answered: this ends here. [R5]
            return [Post(source, NotMe(message.to, roster.me))]
        self._check(message)
        roster.heard(message.frm, source)
        if isinstance(message, Join):
            return self._on_join(source, message, now)
        if isinstance(message, JoinAck | LeaveAck):
            return self._on_ack(source, message, now)
        if isinstance(message, Update):
            return self._on_update(source, message, now)
        if isinstance(message, Heartbeat):
            return self._on_heartbeat(source, message, now)
        if isinstance(message, Leave):
            return self._on_leave(source, message, now)
        if isinstance(message, Pull):
            return self._exchange.on_pull(source, message.frm, message.have, now)
        if isinstance(message, Maps):
            return self._exchange.on_maps(source, message, now)
        if isinstance(message, Sync):
            return self._anti_entropy.on_sync(source, message, now)
        return self._anti_entropy.on_reply(source, message, now)

    def _check(self, message: Addressed) -> None:
        """Refuse ids outside the id space, broadcasts without direction, MAPs without a header."""
        size = self.roster.id_space
        if isinstance(message, JoinAck) and message.maps is None and message.frm < size:
            return
        ids = [message.frm]
        if isinstance(message, Broadcast):
            ids += (message.row.id, message.hi)
            if not message.direction or message.hop < 1:
                raise RemoteProtocolError(
                    f"a {type(message).__name__} with direction {message.direction}"
                    f" and hop {message.hop}; expected -1 or 1, and 1 or more"
                )
        if isinstance(message, Join):
            ids += [contact.id for contact in message.members]
        elif isinstance(message, Sync | SyncReply):
            ids += [row.id for row in message.rows]
        elif isinstance(message, JoinAck | Maps):
            ids += [each.row.id for each in message.maps or ()]
            ahead = any(each.map.ver > each.row.ver for each in message.maps or ())
            if isinstance(message, Maps):
                ids += [chain.row.id for chain in message.chains]
                ahead |= any(
                    chain.base + len(chain.deltas) > chain.row.ver for chain in message.chains
                )
            if ahead and self._mechanisms.versions:
                raise RemoteProtocolError(
                    f"a {type(message).__name__} with a MAP newer than its header"
                )
        largest = max(ids)
        if largest >= size:
            raise RemoteProtocolError(
                f"id {largest} in a {type(message).__name__}: ids are below {size}"
            )

    def _on_join(self, source: Address, message: Join, now: Instant) -> DiscoveryEffects:
        """Learn before relaying, and acknowledge. [R7 R8]"""
        roster, row = self.roster, message.row
        for contact in message.members:
            roster.learn_contact(contact, now)
        self._exchange.merge(row, source, now)
        effects = self._exchange.store(row, message.map, message.hop)
        maps = self._report(message, now) if message.hop == 1 else None
        assert roster.me is not None
        ack = JoinAck(message.frm, roster.me, row.id, row.inc, message.seq, message.direction, maps)
        effects.append(Post(source, ack))
        return effects + self.broadcasts.relay(message, now)

    def _report(self, message: Join, now: Instant) -> tuple[Carried, ...]:
        """Return the MAPs of the range, and of the gap before its nearest target. [R8]"""
        roster = self.roster
        assert roster.me is not None
        have = {each.id: (each.inc, each.ver) for each in message.have}
        size, direction = roster.id_space, message.direction
        room = CARRIED_BYTES_MAX
        maps = []
        if self.own.left or have.get(roster.me) != (roster.inc, self.own.told.ver):
            maps.append(self.own.carried())
            room -= _carried_bytes(maps[0])
        ranges = [(roster.me, message.hi)]
        if message.first:
            ranges.append((message.row.id, (roster.me - direction) % size))
        reported: list[int] = []
        for lo, hi in ranges:
            reported += between(roster.ring, lo, hi, size, direction)
            reported += (  # Nothing is sent to them, but they may live, and their MAPs are held.
                each for each in roster.suspects() if within(each, lo, hi, size, direction)
            )
        for identity in reported:
            entry = roster.entries.get(identity)
            if entry is None or entry.map is None or identity == message.row.id:
                continue
            if have.get(identity) == (entry.inc, entry.map.ver):
                continue
            found = Carried(roster.row_of(entry, now), entry.map)
            room -= _carried_bytes(found)
            if room < 0:  # The joiner asks their owners for what is missing. [R9]
                probe("fdp: report cut")
                break
            maps.append(found)
        return tuple(maps)

    def _on_ack(
        self, source: Address, message: JoinAck | LeaveAck, now: Instant
    ) -> DiscoveryEffects:
        effects: DiscoveryEffects = []
        if isinstance(message, JoinAck) and message.maps is not None:
            effects += self._exchange.carried(message.maps, source, now)
        key = (message.src, message.inc, message.seq, message.direction, message.frm)
        self.broadcasts.acknowledged(key, nominal_bytes(message), now)
        return effects

    def _on_update(self, source: Address, message: Update, now: Instant) -> DiscoveryEffects:
        effects = self._exchange.changed(
            message.row, message.base, message.delta, message.hop, source, now
        )
        return effects + self.broadcasts.relay(message, now)

    def _on_heartbeat(self, source: Address, message: Heartbeat, now: Instant) -> DiscoveryEffects:
        if self._mechanisms.versions:  # As printed, a heartbeat is an id and nothing else.
            self._exchange.merge(message.row, source, now)
        return self.broadcasts.relay(message, now)

    def _on_leave(self, source: Address, message: Leave, now: Instant) -> DiscoveryEffects:
        row = message.row
        self._exchange.merge(row, source, now)
        assert self.roster.me is not None
        ack = LeaveAck(message.frm, self.roster.me, row.id, row.inc, message.seq, message.direction)
        return [Post(source, ack), *self.broadcasts.relay(message, now)]

    # -- trouble ----------------------------------------------------------------------------

    def _not_there(self, identity: int, now: Instant) -> DiscoveryEffects:
        return self.broadcasts.fail(identity, now)

    def _unreachable(self, address: Address, now: Instant) -> DiscoveryEffects:
        holder = self.roster.holder(address)
        failed = self.broadcasts.targets_at(address)  # One may have left before it answered.
        effects: DiscoveryEffects = []
        for identity in sorted(failed if holder is None else {*failed, holder}):
            effects += self.broadcasts.fail(identity, now)
        return effects

    def _pull_wait_ns(self, took_ns: int) -> int:
        """How long the joiner waits for MAPs that may be on their way, before it asks.

        Whoever joins beside us takes as long [S002:dec.8].  Where that was long the machines are
        busy: asking each owner by a connection of its own would make it worse, and the others'
        JOINs and anti-entropy bring most. [decision 0022]
        """
        settings = self.settings
        if took_ns <= BUSY_PULLS * settings.pull_ns:
            return min(settings.pull_ns, took_ns)
        return min(took_ns, settings.ask_ns)

    def _settle(self, effects: DiscoveryEffects, now: Instant) -> DiscoveryEffects:
        """Act on the end of a join, too."""
        effects = super()._settle(effects, now)
        exchange = self._exchange
        if self.gone:
            return effects
        if exchange.joining and not self.broadcasts.own_joins:
            exchange.joining = False
            self._anti_entropy.begin(now)
            if self._mechanisms.members:
                exchange.want_contacts(Instant(now + self._pull_wait_ns(now - self._joined_at)))
        exchange.arm()
        return effects


def _carried_bytes(each: Carried) -> int:
    return listed_bytes(each.row) + each.map.size_bytes
