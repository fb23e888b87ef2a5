"""FDP/1 and BiFDP: every participant ends with exactly the newest MAPs of all that live.  [S002]

Completes the published protocol: explicit member lists, responsibility of the later joiner, soft
failure detection with ages, incarnations, rerouting and anti-entropy (docs/protocols/fdp.md).
BiFDP serves a broadcast half around in both directions; which one is chosen per message, by size.
"""

from random import Random

from orderwire.discovery.antientropy import SYNC, AntiEntropy
from orderwire.discovery.broadcasting import Broadcasts, heartbeat
from orderwire.discovery.commands import (
    Change,
    Command,
    End,
    Ended,
    Gone,
    Granted,
    Joined,
    MapForm,
    Meet,
    Start,
    Unreachable,
    WholeMaps,
)
from orderwire.discovery.effects import Address, DiscoveryEffects, Post
from orderwire.discovery.entrance import Entrance, LostId, Said
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
    MapRecord,
    Maps,
    Message,
    NotMe,
    Pull,
    Status,
    Sync,
    SyncReply,
    Update,
    held,
    nominal_bytes,
)
from orderwire.discovery.own import Own
from orderwire.discovery.ring import UP, between
from orderwire.discovery.roster import Entry, Merge, Roster
from orderwire.discovery.settings import (
    CARRIED_BYTES_MAX,
    EARLY_BYTES_MAX,
    EARLY_MESSAGES_MAX,
    DiscoverySettings,
)
from orderwire.discovery.timers import Timers
from orderwire.kernel import Indicate, Instant, LocalProtocolError, RemoteProtocolError, probe

HEARTBEAT = "heartbeat"
CHECK = "check"
LEAVE = "leave"


class FdpNode:
    """One participant: its own MAP, its view of the others, and what keeps both exact."""

    def __init__(
        self,
        address: Address,
        entrance: Entrance,
        settings: DiscoverySettings,
        chance: Random,
        form: MapForm | None = None,
    ) -> None:
        self.settings = settings
        self._mechanisms = settings.mechanisms
        self._entrance = entrance
        self._chance = chance
        self._timers = timers = Timers()
        self.roster = roster = Roster(settings, address)
        self.own = own = Own(address, roster, form if form is not None else WholeMaps())
        self.broadcasts = Broadcasts(settings, roster, timers)
        self._exchange = exchange = Exchange(settings, roster, own, timers)
        self._anti_entropy = AntiEntropy(settings, roster, own, exchange, entrance, timers, chance)
        self._early: list[tuple[Instant, Address, Addressed]] = []
        self._early_bytes = 0
        self.leaving = False
        self.gone = False

    # -- the core's contract ----------------------------------------------------------------

    def submit(self, command: Command, now: Instant) -> DiscoveryEffects:
        """Take a command.  Raises LocalProtocolError when it makes no sense now."""
        if isinstance(command, Unreachable):
            effects = self._on_unreachable(command.address, now)
        elif isinstance(command, Granted):
            effects = self._adopt(command.id, command.inc, command.id_space, command.members, now)
        elif isinstance(command, Meet):
            effects = self._from_entrance([*command.members], now)
        elif isinstance(command, Start):
            if self.own.map.ver:
                raise LocalProtocolError("Start again: a participant starts once")
            self.own.map = MapRecord(1, command.map)
            effects = self._from_entrance(self._entrance.ask(0, now), now)
        elif isinstance(command, Change):
            if self.leaving or not self.own.map.ver:
                raise LocalProtocolError("Change before Start or after End")
            effects = self._change(command, now)
        else:
            assert isinstance(command, End), command
            if not self.own.map.ver or self.leaving:
                raise LocalProtocolError("End before Start, or twice")
            effects = self._leave(now)
        return self._settle(effects, now)

    def receive(self, source: Address, message: Message, now: Instant) -> DiscoveryEffects:
        """Take a message from the process that listens at `source`.

        Raises RemoteProtocolError when no correct process sends it.
        """
        if self.gone:
            return []
        if isinstance(message, Addressed):
            effects = self._addressed(source, message, now)
        elif isinstance(message, NotMe):
            effects = self._on_not_me(source, message, now)
        else:
            said = self._entrance.receive(source, message, now, self.roster)
            effects = self._from_entrance(said, now)
        return self._settle(effects, now)

    def wake(self, now: Instant) -> DiscoveryEffects:
        """Act on every deadline at or before `now`."""
        effects: DiscoveryEffects = []
        for name in self._timers.pop_due(now):
            if isinstance(name, tuple):
                effects += self.broadcasts.overdue(name, now)
            elif name == HEARTBEAT:
                effects += self._beat(now)
            elif name == CHECK:
                self.roster.expire(now)
                self._timers.set(CHECK, Instant(now + self.settings.fail_ns // 4))
            elif name == SYNC:
                effects += self._anti_entropy.due(now)
            elif name == FETCH:
                effects += self._exchange.fetch(now)
            else:
                assert name == LEAVE, name
                effects += self._go()
        due = self._entrance.next_deadline()
        if due is not None and due <= now:
            effects += self._from_entrance(self._entrance.wake(now), now)
        return self._settle(effects, now)

    def next_deadline(self) -> Instant | None:
        """When `wake` is next due."""
        if self.gone:
            return None
        own, entrance = self._timers.next(), self._entrance.next_deadline()
        if own is None or entrance is None:
            return own if entrance is None else entrance
        return min(own, entrance)

    # -- what the application reads ---------------------------------------------------------

    @property
    def id(self) -> int | None:
        """One's own id, while there is one."""
        return self.roster.me

    def live(self) -> dict[int, Entry]:
        """Return the other participants that are there, by id."""
        return {each.id: each for each in self.roster.live()}

    # -- joining ----------------------------------------------------------------------------

    def _from_entrance(self, said: Said, now: Instant) -> DiscoveryEffects:
        effects: DiscoveryEffects = []
        for each in said:
            if isinstance(each, Granted):
                effects += self._adopt(each.id, each.inc, each.id_space, each.members, now)
            elif isinstance(each, Contact):
                effects += self._meet(each, now)
            elif isinstance(each, LostId):
                self.roster.lost |= each.inc == self.roster.inc
            else:
                effects.append(each)
        return effects

    def _adopt(
        self, identity: int, inc: int, id_space: int, members: tuple[Contact, ...], now: Instant
    ) -> DiscoveryEffects:
        """Take this id and tell all. [R2 R6]"""
        roster = self.roster
        if roster.me is not None or self.leaving:
            return []
        roster.adopt(identity, inc, id_space)
        self._entrance.adopted(identity, inc, now)
        for contact in members:
            roster.learn_contact(contact, now)
        own = self.own
        own.tell_whole()
        self._exchange.joining = True
        effects: DiscoveryEffects = [Indicate(Joined(identity, inc))]
        row, seq = own.next_row(), own.next_seq()
        join = Join(0, 0, row, seq, 1, 0, UP, False, own.told, roster.holdings(), ())
        effects += self.broadcasts.own(join, now)
        self._restart_heartbeat(now)
        if self._mechanisms.detect:
            self._timers.set(CHECK, Instant(now + self.settings.fail_ns // 4))
        self._anti_entropy.begin(now)
        early, self._early, self._early_bytes = self._early, [], 0
        for came, source, message in early:
            try:
                effects += self._addressed(source, held(message, now - came), now)
            except RemoteProtocolError:  # Its sender's fault, and nobody's who joins.
                probe("fdp: early message refused")
        return effects

    def _lose_id(self, now: Instant) -> DiscoveryEffects:
        """A newer incarnation has this id: take another. [R11.1]"""
        probe("fdp: id lost")
        lost = self.roster.inc
        self.roster.lose()
        self.broadcasts.drop_all()
        for name in (HEARTBEAT, CHECK, SYNC):
            self._timers.cancel(name)
        if self.leaving:
            return self._go()
        return self._from_entrance(self._entrance.ask(lost, now), now)

    def _meet(self, contact: Contact, now: Instant) -> DiscoveryEffects:
        """SYNC with a participant that the server or a seed named, unknown or expired. [R16]"""
        roster = self.roster
        if roster.me is None:
            return []
        if roster.learn_contact(contact, now) is Merge.NOTHING and not roster.has_expired(contact):
            return []
        return [Post(contact.addr, self._anti_entropy.message(contact.id, now))]

    # -- one's own broadcasts ---------------------------------------------------------------

    def _restart_heartbeat(self, now: Instant) -> None:
        settings = self.settings
        if self._mechanisms.heartbeats:
            period = self._chance.uniform(settings.heartbeat_min_ns, settings.heartbeat_max_ns)
            self._timers.set(HEARTBEAT, Instant(now + int(period)))

    def _change(self, command: Change, now: Instant) -> DiscoveryEffects:
        own = self.own
        own.map = MapRecord(own.told.ver + 1, command.map)
        if command.collect or self.roster.me is None:
            return []
        return self._update(now)

    def _update(self, now: Instant) -> DiscoveryEffects:
        """Tell what has changed. [R12]"""
        own = self.own
        base, delta = own.tell_change()
        self._restart_heartbeat(now)
        update = Update(0, 0, own.next_row(), own.next_seq(), 1, 0, UP, base, delta)
        return self.broadcasts.own(update, now)

    def _beat(self, now: Instant) -> DiscoveryEffects:
        own = self.own
        if own.map is not own.told:
            return self._update(now)
        self._restart_heartbeat(now)
        if self.settings.gossip_heartbeats:
            own.beat()
            return []
        return self.broadcasts.own(heartbeat(own.next_row(), own.next_seq()), now)

    def _leave(self, now: Instant) -> DiscoveryEffects:
        """Say goodbye, and go when those told have acknowledged. [R17]"""
        self.leaving = True
        self._timers.cancel(HEARTBEAT)
        self._timers.cancel(SYNC)
        if self.roster.me is None:
            return self._from_entrance(self._entrance.release(now), now) + self._go()
        row, seq = self.own.next_row(status=Status.LEFT), self.own.next_seq()
        effects = self.broadcasts.own(Leave(0, 0, row, seq, 1, 0, UP), now)
        effects += self._from_entrance(self._entrance.release(now), now)
        self._timers.set(LEAVE, Instant(now + self.settings.leave_ns))
        return effects

    def _go(self) -> DiscoveryEffects:
        if self.gone:
            return []
        self.gone = True
        self._timers.clear()
        return [Indicate(Gone())]

    # -- messages of other participants -----------------------------------------------------

    def _addressed(self, source: Address, message: Addressed, now: Instant) -> DiscoveryEffects:
        roster = self.roster
        if roster.me is None:
            if self._mechanisms.early:
                probe("fdp: early message")
                self._keep_early(source, message, now)
            return []
        if message.to != roster.me and message.to is not None:
            if isinstance(message, JoinAck | LeaveAck | Maps | SyncReply):
                return []  # An answer to a past life.
            probe("fdp: not me")
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

    def _keep_early(self, source: Address, message: Addressed, now: Instant) -> None:
        """Keep it until there is an id, unless there are too many. [R4]"""
        size = nominal_bytes(message)
        if len(self._early) >= EARLY_MESSAGES_MAX or self._early_bytes + size > EARLY_BYTES_MAX:
            probe("fdp: early message dropped")
            return
        self._early_bytes += size
        self._early.append((now, source, message))

    def _check(self, message: Addressed) -> None:
        """Refuse ids outside the id space, broadcasts without direction, MAPs without a header."""
        size = self.roster.id_space
        ids = [message.frm]
        if isinstance(message, Broadcast):
            ids += [message.row.id, message.hi]
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
        if have.get(roster.me) != (roster.inc, self.own.told.ver):
            maps.append(Carried(self.own.row(), self.own.told))
        reported = list(between(roster.ring, roster.me, message.hi, size, direction))
        if message.first:
            before = (roster.me - direction) % size
            reported += between(roster.ring, message.row.id, before, size, direction)
        for identity in reported:
            entry = roster.entries.get(identity)
            if entry is None or entry.map is None or identity == message.row.id:
                continue
            if have.get(identity) == (entry.inc, entry.map.ver):
                continue
            room -= entry.map.size_bytes
            if room < 0:  # The joiner asks their owners for what is missing. [R9]
                probe("fdp: report cut")
                break
            maps.append(Carried(roster.row_of(entry, now), entry.map))
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

    def _on_not_me(self, source: Address, message: NotMe, now: Instant) -> DiscoveryEffects:
        if self.roster.me is None or self.roster.address_of(message.asked) != source:
            return []
        return self.broadcasts.fail(message.asked, now)

    def _on_unreachable(self, address: Address, now: Instant) -> DiscoveryEffects:
        effects = self._from_entrance(self._entrance.unreachable(address, now), now)
        if self.roster.me is None:
            return effects
        holder = self.roster.holder(address)
        failed = self.broadcasts.targets_at(address)  # One may have left before it answered.
        for identity in sorted(failed if holder is None else {*failed, holder}):
            effects += self.broadcasts.fail(identity, now)
        return effects

    def _settle(self, effects: DiscoveryEffects, now: Instant) -> DiscoveryEffects:
        """Act on what the input has brought about: a lost id, ends, the end of a join."""
        roster, exchange = self.roster, self._exchange
        while roster.lost and not self.gone:
            effects += self._lose_id(now)
        for identity, inc, status in roster.ended:
            effects.append(Indicate(Ended(identity, inc, status is Status.LEFT)))
        roster.ended.clear()
        if self.leaving and not self.broadcasts.pending:
            effects += self._go()
        if self.gone:
            return effects
        if exchange.joining and not self.broadcasts.own_joins:
            exchange.joining = False
            if self._mechanisms.members:
                exchange.want_contacts(Instant(now + self.settings.pull_ns))
        exchange.arm()
        return effects
