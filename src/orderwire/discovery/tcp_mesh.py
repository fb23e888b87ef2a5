"""The rival of FDP's tree: a full mesh, on which everybody sends its merged MAP to everybody.

Merging the endpoints of a participant into one message is most of what FDP gains over SDP; this
does that and nothing else of FDP.  The server's full list says whom to tell; every change,
heartbeat and goodbye is n − 1 copies of its sender's, and connects every pair.  [S002 spec 0.7]
"""

from collections import deque
from collections.abc import Callable
from random import Random

from orderwire.discovery.commands import (
    Change,
    Command,
    End,
    Ended,
    Gone,
    Granted,
    Joined,
    Learnt,
    MapForm,
    Start,
    Unreachable,
    WholeMaps,
)
from orderwire.discovery.effects import Address, DiscoveryEffects, Post
from orderwire.discovery.entrance import Entrance, LostId, Said
from orderwire.discovery.messages import (
    Addressed,
    Carried,
    Contact,
    Have,
    Heartbeat,
    Leave,
    LeaveAck,
    MapRecord,
    Maps,
    Message,
    Pull,
    Row,
    Status,
    Update,
)
from orderwire.discovery.own import Own
from orderwire.discovery.ring import UP
from orderwire.discovery.roster import Roster
from orderwire.discovery.settings import DELTAS_MAX, EARLY_MESSAGES_MAX, DiscoverySettings
from orderwire.discovery.timers import Timers
from orderwire.kernel import Indicate, Instant, LocalProtocolError, RemoteProtocolError

HEARTBEAT = "heartbeat"
CHECK = "check"
LEAVE = "leave"


class MeshNode:
    """One participant of the mesh.  Of the settings it knows times only."""

    def __init__(
        self,
        address: Address,
        entrance: Entrance,
        settings: DiscoverySettings,
        chance: Random,
        form: MapForm | None = None,
    ) -> None:
        self.settings = settings
        self.roster = roster = Roster(settings, address)
        self.own = Own(address, roster, form if form is not None else WholeMaps())
        self._entrance = entrance
        self._chance = chance
        self._timers = Timers()
        self._early: deque[tuple[Address, Addressed]] = deque(maxlen=EARLY_MESSAGES_MAX)
        self._told: dict[int, int] = {}
        """Incarnation of each participant that has been sent one's MAP."""
        self._unacknowledged: set[int] = set()
        """Who has not answered one's LEAVE."""
        self.leaving = False
        self.gone = False

    # -- the core's contract ----------------------------------------------------------------

    def submit(self, command: Command, now: Instant) -> DiscoveryEffects:
        """Take a command.  Raises LocalProtocolError when it makes no sense now."""
        if isinstance(command, Unreachable):
            effects = self._from_entrance(self._entrance.unreachable(command.address, now), now)
            holder = self.roster.holder(command.address)
            if holder is not None:
                self.roster.suspect(holder)
                self._unacknowledged.discard(holder)
        elif isinstance(command, Granted):
            effects = self._from_entrance([command], now)
        elif isinstance(command, Start):
            if self.own.map.ver:
                raise LocalProtocolError("Start again: a participant starts once")
            self.own.map = MapRecord(1, command.map)
            effects = self._from_entrance(self._entrance.ask(0, now), now)
        elif isinstance(command, Change):
            if self.leaving or not self.own.map.ver:
                raise LocalProtocolError("Change before Start or after End")
            self.own.map = MapRecord(self.own.told.ver + 1, command.map)
            wait = command.collect or self.roster.me is None
            effects = [] if wait else self._beat(now)
        else:
            assert isinstance(command, End), command
            if not self.own.map.ver or self.leaving:
                raise LocalProtocolError("End before Start, or twice")
            effects = self._leave(now)
        return self._settle(effects)

    def receive(self, source: Address, message: Message, now: Instant) -> DiscoveryEffects:
        """Take a message.  Raises RemoteProtocolError when no correct process sends it."""
        if self.gone:
            return []
        if isinstance(message, Addressed):
            effects = self._addressed(source, message, now)
        else:
            effects = self._from_entrance(
                self._entrance.receive(source, message, now, self.roster), now
            )
        return self._settle(effects)

    def wake(self, now: Instant) -> DiscoveryEffects:
        """Act on every deadline at or before `now`."""
        effects: DiscoveryEffects = []
        for name in self._timers.pop_due(now):
            if name == HEARTBEAT:
                effects += self._beat(now)
            elif name == CHECK:
                self.roster.expire(now)
                self._timers.set(CHECK, Instant(now + self.settings.fail_ns // 4))
            else:
                assert name == LEAVE, name
                self._unacknowledged.clear()
        due = self._entrance.next_deadline()
        if due is not None and due <= now:
            effects += self._from_entrance(self._entrance.wake(now), now)
        return self._settle(effects)

    def next_deadline(self) -> Instant | None:
        """When `wake` is next due."""
        if self.gone:
            return None
        due = [each for each in (self._timers.next(), self._entrance.next_deadline()) if each]
        return min(due, default=None)

    @property
    def id(self) -> int | None:
        """One's own id, while there is one."""
        return self.roster.me

    # -- joining ----------------------------------------------------------------------------

    def _from_entrance(self, said: Said, now: Instant) -> DiscoveryEffects:
        effects: DiscoveryEffects = []
        for each in said:
            if isinstance(each, Granted):
                effects += self._adopt(each, now)
            elif isinstance(each, Contact):
                self.roster.learn_contact(each, now)
                effects += self._tell(each.id, each.inc)
            elif isinstance(each, LostId):
                if each.inc == self.roster.inc and self.roster.me is not None:
                    self.roster.lose()
                    self._told.clear()
                    for name in (HEARTBEAT, CHECK):
                        self._timers.cancel(name)
                    effects += self._from_entrance(self._entrance.ask(each.inc, now), now)
            else:
                effects.append(each)
        return effects

    def _adopt(self, granted: Granted, now: Instant) -> DiscoveryEffects:
        """Take this id and send one's MAP to all that the server lists."""
        roster = self.roster
        if roster.me is not None or self.leaving:
            return []
        roster.adopt(granted.id, granted.inc, granted.id_space)
        self._entrance.adopted(granted.id, granted.inc, now)
        self.own.tell_whole()
        self.own.beat()
        effects: DiscoveryEffects = [Indicate(Joined(granted.id, granted.inc))]
        for contact in granted.members:
            roster.learn_contact(contact, now)
        for identity in roster.ring:
            effects += self._tell(identity, roster.contacts[identity].inc)
        self._restart_heartbeat(now)
        self._timers.set(CHECK, Instant(now + self.settings.fail_ns // 4))
        early, self._early = self._early, deque(maxlen=EARLY_MESSAGES_MAX)
        for source, message in early:
            effects += self._addressed(source, message, now)
        return effects

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
        return Maps(to, self.roster.me, (Carried(self.own.row(), self.own.told),))

    # -- telling all ------------------------------------------------------------------------

    def _restart_heartbeat(self, now: Instant) -> None:
        settings = self.settings
        period = self._chance.uniform(settings.heartbeat_min_ns, settings.heartbeat_max_ns)
        self._timers.set(HEARTBEAT, Instant(now + int(period)))

    def _beat(self, now: Instant) -> DiscoveryEffects:
        """Tell all what has changed, or that one is alive."""
        own, roster = self.own, self.roster
        me = roster.me
        assert me is not None
        self._restart_heartbeat(now)
        changed = own.map is not own.told
        base, delta = own.tell_change() if changed else (0, b"")
        row, seq = own.next_row(), own.next_seq()
        return self._to_all(
            lambda to: (
                Update(to, me, row, seq, 1, to, UP, base, delta)
                if changed
                else Heartbeat(to, me, row, seq, 1, to, UP)
            )
        )

    def _leave(self, now: Instant) -> DiscoveryEffects:
        """Say goodbye; go when all have acknowledged, or after a time."""
        self.leaving = True
        self._timers.cancel(HEARTBEAT)
        effects: DiscoveryEffects = []
        me = self.roster.me
        if me is not None:
            row, seq = self.own.next_row(status=Status.LEFT), self.own.next_seq()
            effects += self._to_all(lambda to: Leave(to, me, row, seq, 1, to, UP))
            self._unacknowledged = set(self.roster.ring)
            self._timers.set(LEAVE, Instant(now + self.settings.leave_ns))
        return effects + self._from_entrance(self._entrance.release(now), now)

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
        if roster.me is None:
            self._early.append((source, message))
            return []
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
        if len(record.deltas) > DELTAS_MAX:
            record = self.own.form.shortened(record)
        if not self.roster.put_map(row, record):
            return []
        entry = self.roster.entries[row.id]
        return [Indicate(Learnt(row.id, entry.inc, record.ver, entry.addr, record, 1))]

    def _settle(self, effects: DiscoveryEffects) -> DiscoveryEffects:
        for identity, inc, status in self.roster.ended:
            effects.append(Indicate(Ended(identity, inc, status is Status.LEFT)))
        self.roster.ended.clear()
        if self.leaving and not self._unacknowledged and not self.gone:
            self.gone = True
            self._timers.clear()
            effects.append(Indicate(Gone()))
        return effects
