"""The rival of FDP's tree: a full mesh, on which everybody sends its merged MAP to everybody.

Merging the endpoints of a participant into one message is most of what FDP gains over SDP; this
does that and nothing else of FDP.  The server's full list says whom to tell; every change,
heartbeat and goodbye is n − 1 copies of its sender's, and connects every pair.  [S002 spec 0.7]
"""

from collections.abc import Callable
from random import Random

from orderwire.discovery.commands import (
    Learnt,
    MapForm,
)
from orderwire.discovery.effects import Address, DiscoveryEffects, Post
from orderwire.discovery.entrance import Entrance
from orderwire.discovery.messages import (
    Addressed,
    Contact,
    Have,
    Heartbeat,
    Leave,
    LeaveAck,
    MapRecord,
    Maps,
    Pull,
    Row,
    Update,
)
from orderwire.discovery.node import Node
from orderwire.discovery.ring import UP
from orderwire.discovery.settings import DiscoverySettings
from orderwire.kernel import Indicate, Instant, RemoteProtocolError


class MeshNode(Node):
    """One participant of the mesh.  Of the settings it knows times only."""

    def __init__(
        self,
        address: Address,
        entrance: Entrance,
        settings: DiscoverySettings,
        chance: Random,
        form: MapForm | None = None,
    ) -> None:
        super().__init__(address, entrance, settings, chance, form)
        self._told: dict[int, int] = {}
        """Incarnation of each participant that has been sent one's MAP."""
        self._unacknowledged: set[int] = set()
        """Who has not answered one's LEAVE."""

    # -- joining ----------------------------------------------------------------------------

    def _joined(self, now: Instant) -> DiscoveryEffects:
        """Send one's MAP to all that the server lists."""
        self.own.beat()
        roster = self.roster
        effects: DiscoveryEffects = []
        for contact in list(roster.all_contacts()):
            effects += self._tell(contact.id, contact.inc)
        return effects

    def _id_lost(self) -> None:
        self._told.clear()

    def _meet(self, contact: Contact, now: Instant) -> DiscoveryEffects:
        self.roster.learn_contact(contact, now)
        return self._tell(contact.id, contact.inc)

    def _tell(self, identity: int, inc: int) -> DiscoveryEffects:
        """Send one's MAP to this participant, unless it has been sent."""
        roster = self.roster
        addr = roster.address_of(identity)
        if roster.me is None or addr is None or self._told.get(identity, -1) >= inc:
            return []
        self._told[identity] = inc
        return [Post(addr, self._maps(identity))]

    def _maps(self, to: int) -> Maps:
        assert self.roster.me is not None
        return Maps(to, self.roster.me, (self.own.carried(),))

    # -- telling all ------------------------------------------------------------------------

    def _update(self, now: Instant) -> DiscoveryEffects:
        return self._beat(now)

    def _beat(self, now: Instant) -> DiscoveryEffects:
        """Tell all what has changed, or that one is alive."""
        own, roster = self.own, self.roster
        me = roster.me
        assert me is not None
        self._restart_heartbeat(now)
        change = own.tell_change() if own.map is not own.told else None
        row, seq = own.next_row(), own.next_seq()
        return self._to_all(
            lambda to: (
                Heartbeat(to, me, row, seq, 1, to, UP)
                if change is None
                else Update(to, me, row, seq, 1, to, UP, *change)
            )
        )

    def _say_goodbye(self, row: Row, seq: int, now: Instant) -> DiscoveryEffects:
        """Say it to all."""
        me = self.roster.me
        assert me is not None
        self._unacknowledged = set(self.roster.ring)
        return self._to_all(lambda to: Leave(to, me, row, seq, 1, to, UP))

    @property
    def _is_dismissed(self) -> bool:
        return not self._unacknowledged

    def _to_all(self, message_to: Callable[[int], Update | Heartbeat | Leave]) -> DiscoveryEffects:
        posts: DiscoveryEffects = []
        for identity in self.roster.ring:
            addr = self.roster.address_of(identity)
            assert addr is not None, f"{identity} has no address"
            posts.append(Post(addr, message_to(identity)))
        return posts

    # -- messages ---------------------------------------------------------------------------

    def _addressed(self, source: Address, message: Addressed, now: Instant) -> DiscoveryEffects:
        roster = self.roster
        assert roster.me is not None
        if message.to != roster.me:
            return []
        roster.heard(message.frm, source)
        if isinstance(message, Maps):
            effects: DiscoveryEffects = []
            for each in message.maps:
                roster.merge(each.row, now)
                effects += self._store(each.row, each.map)
                effects += self._tell(each.row.id, each.row.inc)
            return effects
        if isinstance(message, Update):
            return self._on_update(source, message, now)
        if isinstance(message, Heartbeat):
            roster.merge(message.row, now)
            return self._ask_if_lacking(source, message.row)
        if isinstance(message, Leave):
            roster.merge(message.row, now)
            row = message.row
            return [
                Post(source, LeaveAck(message.frm, roster.me, row.id, row.inc, message.seq, UP))
            ]
        if isinstance(message, LeaveAck):
            self._unacknowledged.discard(message.frm)
            return []
        if isinstance(message, Pull):
            return [Post(source, self._maps(message.frm))]
        raise RemoteProtocolError(f"{type(message).__name__} is not for a participant of the mesh")

    def _on_update(self, source: Address, message: Update, now: Instant) -> DiscoveryEffects:
        roster, row = self.roster, message.row
        entry = roster.entries.get(row.id)
        held = None if entry is None or entry.inc != row.inc else entry.map
        roster.merge(row, now)
        if held is None or held.ver != message.base:
            return self._ask_if_lacking(source, row)
        return self._store(row, held.with_delta(row.ver, message.delta))

    def _ask_if_lacking(self, source: Address, row: Row) -> DiscoveryEffects:
        entry = self.roster.entries.get(row.id)
        if entry is None or entry.inc != row.inc or not entry.is_live or not entry.lacks_map:
            return []
        assert self.roster.me is not None
        return [Post(source, Pull(row.id, self.roster.me, (Have(row.id, row.inc, 0),)))]

    def _store(self, row: Row, record: MapRecord) -> DiscoveryEffects:
        record = self.own.folded(record)
        if not self.roster.put_map(row, record):
            return []
        entry = self.roster.entries[row.id]
        return [Indicate(Learnt(row.id, entry.inc, record.ver, entry.addr, record, 1))]

    # -- trouble ----------------------------------------------------------------------------

    def _not_there(self, identity: int, now: Instant) -> DiscoveryEffects:
        """Nobody says so in the mesh."""
        return []

    def _unreachable(self, address: Address, now: Instant) -> DiscoveryEffects:
        holder = self.roster.holder(address)
        if holder is not None:
            self.roster.suspect(holder)
            self._unacknowledged.discard(holder)
        return []
