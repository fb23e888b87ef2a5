"""FDP/1 and BiFDP: every participant ends with exactly the newest MAPs of all that live.  [S002]

Completes the published protocol: explicit member lists, responsibility of the later joiner, soft
failure detection with ages, incarnations, rerouting and anti-entropy (docs/protocols/fdp.md).
BiFDP serves a broadcast half around in both directions; which one is chosen per message, by size.
"""

from collections import deque
from random import Random

import msgspec

from orderwire.discovery.broadcasting import Broadcasts, heartbeat
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
    Broadcast,
    Carried,
    Contact,
    DeltaChain,
    Have,
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
    Row,
    Status,
    Sync,
    SyncReply,
    Update,
    nominal_bytes,
)
from orderwire.discovery.ring import UP, between
from orderwire.discovery.roster import Entry, Merge, Roster
from orderwire.discovery.settings import DELTAS_MAX, EARLY_MESSAGES_MAX, DiscoverySettings
from orderwire.discovery.timers import Timers
from orderwire.kernel import Indicate, Instant, LocalProtocolError, RemoteProtocolError, probe

HEARTBEAT = "heartbeat"
CHECK = "check"
SYNC = "sync"
FETCH = "fetch"
LEAVE = "leave"
ASKS_MAX = 5
"""Requests for one MAP before it is left to anti-entropy."""
NEWS_FACTOR = 0.1
"""Anti-entropy is ten times as fast after joining and on news. [FDP/1 R15]"""
PROBE_SHARE = 1 / 8
SEED_SHARE = 1 / 5


class _Want(msgspec.Struct):
    """A MAP that is to be fetched."""

    via: Address
    """Whoever told of it; the owner is asked from the second time on."""
    due_ns: int
    asks: int = 0


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
        self._address = address
        self._entrance = entrance
        self._chance = chance
        self.form = form if form is not None else WholeMaps()
        self._timers = Timers()
        self.roster = Roster(settings, address)
        self.broadcasts = Broadcasts(settings, self.roster, self._timers)
        self.map = MapRecord(0, b"")
        """One's own MAP."""
        self.told = self.map
        """What the others have been told of it."""
        self._history: deque[bytes] = deque(maxlen=DELTAS_MAX)
        """The last changes of one's own MAP, the newest leads to its version."""
        self._hb = 0
        self._seq = 0
        self._early: deque[tuple[Address, Addressed]] = deque(maxlen=EARLY_MESSAGES_MAX)
        self._wants: dict[int, _Want] = {}
        self._joining = False
        self.leaving = False
        self.gone = False
        self._pace = 1.0
        self._news = False
        self._turn = 0
        self._met_seed = False

    # -- the core's contract ----------------------------------------------------------------

    def submit(self, command: Command, now: Instant) -> DiscoveryEffects:
        """Take a command.  Raises LocalProtocolError when it makes no sense now."""
        if isinstance(command, Unreachable):
            effects = self._on_unreachable(command.address, now)
        elif isinstance(command, Granted):
            effects = self._adopt(command.id, command.inc, command.id_space, command.members, now)
        elif isinstance(command, Start):
            if self.map.ver:
                raise LocalProtocolError("Start again: a participant starts once")
            self.map = self.told = MapRecord(1, command.map)
            effects = self._from_entrance(self._entrance.ask(0, now), now)
        elif isinstance(command, Change):
            if self.leaving or not self.map.ver:
                raise LocalProtocolError("Change before Start or after End")
            effects = self._change(command, now)
        else:
            assert isinstance(command, End), command
            if not self.map.ver or self.leaving:
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
            effects = self._entrance_says(source, message, now)
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
                effects += self._sync(now)
            elif name == FETCH:
                effects += self._fetch(now)
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

    def own_row(self, *, status: Status = Status.LIVE) -> Row:
        """Return one's own header."""
        roster = self.roster
        assert roster.me is not None
        return Row(roster.me, roster.inc, self.told.ver, self._hb, 0, self._address, status, True)

    # -- joining ----------------------------------------------------------------------------

    def _entrance_says(self, source: Address, message: Message, now: Instant) -> DiscoveryEffects:
        said = self._entrance.receive(source, message, now, self.roster)
        return self._from_entrance(said, now)

    def _from_entrance(self, said: Said, now: Instant) -> DiscoveryEffects:
        effects: DiscoveryEffects = []
        for each in said:
            if isinstance(each, Granted):
                effects += self._adopt(each.id, each.inc, each.id_space, each.members, now)
            elif isinstance(each, Contact):
                effects += self._meet(each, now)
            elif isinstance(each, LostId):
                if each.inc == self.roster.inc and self.roster.me is not None:
                    effects += self._lose_id(now)
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
        self._joining = True
        self.told = self.map
        effects: DiscoveryEffects = [Indicate(Joined(identity, inc))]
        join = Join(
            0, 0, self._next_row(), self._next_seq(), 1, 0, UP, False, self.map,
            roster.holdings(), (),
        )  # fmt: skip
        effects += self.broadcasts.own(join, now)
        self._restart_heartbeat(now)
        if self._mechanisms.detect:
            self._timers.set(CHECK, Instant(now + self.settings.fail_ns // 4))
        if self._mechanisms.ae:
            self._pace = NEWS_FACTOR
            self._schedule_sync(now)
        effects += self._joined_if_done(now)
        early, self._early = self._early, deque(maxlen=EARLY_MESSAGES_MAX)
        for source, message in early:
            effects += self._addressed(source, message, now)
        return effects

    def _joined_if_done(self, now: Instant) -> DiscoveryEffects:
        """When all have answered the JOIN, ask contacts whose MAP none has sent. [R9]"""
        if not self._joining or self.broadcasts.owns_pending_join():
            return []
        self._joining = False
        if self._mechanisms.members and self.roster.contacts:
            due = Instant(now + self.settings.pull_ns)
            for contact in self.roster.contacts.values():
                self._wants.setdefault(contact.id, _Want(contact.addr, due))
        self._arm_fetch()
        return []

    def _lose_id(self, now: Instant) -> DiscoveryEffects:
        """A newer incarnation has this id: take another. [R11.1]"""
        probe("fdp: id lost")
        roster = self.roster
        lost = roster.inc
        roster.lose()
        self.broadcasts.drop_all()
        for name in (HEARTBEAT, CHECK, SYNC):
            self._timers.cancel(name)
        if self.leaving:
            return self._go()
        return self._from_entrance(self._entrance.ask(lost, now), now)

    def _meet(self, contact: Contact, now: Instant) -> DiscoveryEffects:
        """SYNC with a participant that the server or a seed named. [R16]"""
        roster = self.roster
        if roster.me is None:
            return []
        change = roster.learn_contact(contact, now)
        if change is Merge.LOST_ID:
            return self._lose_id(now)
        if change is Merge.NOTHING:
            return []
        return [Post(contact.addr, self._sync_message(contact.id, now))]

    # -- one's own broadcasts ---------------------------------------------------------------

    def _next_row(self, *, status: Status = Status.LIVE) -> Row:
        self._hb += 1
        return self.own_row(status=status)

    def _next_seq(self) -> int:
        self._seq += 1
        return self._seq

    def _restart_heartbeat(self, now: Instant) -> None:
        settings = self.settings
        if self._mechanisms.heartbeats:
            period = self._chance.uniform(settings.heartbeat_min_ns, settings.heartbeat_max_ns)
            self._timers.set(HEARTBEAT, Instant(now + int(period)))

    def _change(self, command: Change, now: Instant) -> DiscoveryEffects:
        if self.roster.me is None:  # Nobody has been told anything yet.
            self.map = self.told = MapRecord(self.told.ver + 1, command.map)
            self._history.clear()
            return []
        self.map = MapRecord(self.told.ver + 1, command.map)
        return [] if command.collect else self._update(now)

    def _update(self, now: Instant) -> DiscoveryEffects:
        """Tell what has changed. [R12]"""
        base = self.told
        delta = self.form.difference(base.full, self.map.full)
        self._history.append(delta)
        self.told = self.map
        update = Update(0, 0, self._next_row(), self._next_seq(), 1, 0, UP, base.ver, delta)
        self._restart_heartbeat(now)
        return self.broadcasts.own(update, now)

    def _beat(self, now: Instant) -> DiscoveryEffects:
        if self.roster.me is None or self.leaving:
            return []
        if self.map is not self.told:
            return self._update(now)
        self._restart_heartbeat(now)
        if self.settings.gossip_heartbeats:
            self._hb += 1
            return []
        return self.broadcasts.own(heartbeat(self._next_row(), self._next_seq()), now)

    def _leave(self, now: Instant) -> DiscoveryEffects:
        """Say goodbye, and go when those told have acknowledged. [R17]"""
        self.leaving = True
        self._timers.cancel(HEARTBEAT)
        self._timers.cancel(SYNC)
        if self.roster.me is None:
            return self._from_entrance(self._entrance.release(now), now) + self._go()
        leave = Leave(0, 0, self._next_row(status=Status.LEFT), self._next_seq(), 1, 0, UP)
        effects = self.broadcasts.own(leave, now)
        effects += self._from_entrance(self._entrance.release(now), now)
        self._timers.set(LEAVE, Instant(now + self.settings.leave_ns))
        return effects + self._go_if_done()

    def _go_if_done(self) -> DiscoveryEffects:
        return self._go() if self.leaving and not self.broadcasts.pending else []

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
                self._early.append((source, message))
            return []
        if message.to != roster.me and message.to is not None:
            if isinstance(message, JoinAck | LeaveAck | Maps | SyncReply):
                return []  # An answer to a past life.
            probe("fdp: not me")
            return [Post(source, NotMe(message.to, roster.me))]
        self._check_ids(message)
        roster.heard(message.frm, source)
        if isinstance(message, Join):
            return self._on_join(source, message, now)
        if isinstance(message, JoinAck):
            return self._on_join_ack(message, source, now)
        if isinstance(message, Update):
            return self._on_update(source, message, now)
        if isinstance(message, Heartbeat):
            return self._on_heartbeat(source, message, now)
        if isinstance(message, Leave):
            return self._on_leave(source, message, now)
        if isinstance(message, LeaveAck):
            key = (message.src, message.inc, message.seq, message.direction, message.frm)
            self.broadcasts.acknowledged(key, nominal_bytes(message), now)
            return self._go_if_done()
        if isinstance(message, Pull):
            return self._on_pull(source, message, now)
        if isinstance(message, Maps):
            return self._on_maps(source, message, now)
        if isinstance(message, Sync):
            return self._on_sync(source, message, now)
        return self._on_sync_reply(source, message, now)

    def _check_ids(self, message: Addressed) -> None:
        """Refuse ids outside the id space, and a broadcast without direction."""
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
        largest = max(ids)
        if largest >= size:
            raise RemoteProtocolError(
                f"id {largest} in a {type(message).__name__}: ids are below {size}"
            )

    def _merge(self, row: Row, via: Address, now: Instant) -> Merge:
        """Take a header; fetch the MAP if it tells of a newer one than is held."""
        change = self.roster.merge(row, now)
        if change is Merge.NEWS:
            self._news = True
        if change is not Merge.LOST_ID and row.id != self.roster.me:
            entry = self.roster.entries.get(row.id)
            if (
                entry is not None
                and entry.status is Status.LIVE
                and entry.inc == row.inc
                and entry.lacks_map
                and self._mechanisms.pull
                and row.id not in self._wants
            ):
                self._wants[row.id] = _Want(via, now)
        return change

    def _store(self, row: Row, record: MapRecord, hop: int, effects: DiscoveryEffects) -> None:
        """Keep a MAP if it is news, and tell the application."""
        if len(record.deltas) > DELTAS_MAX:
            record = self.form.shortened(record)
        if not self.roster.put_map(row, record):
            return
        self._news = True
        entry = self.roster.entries[row.id]
        if not entry.lacks_map:
            self._wants.pop(row.id, None)
        effects.append(Indicate(Learnt(row.id, entry.inc, record.ver, entry.addr, record, hop)))

    def _carried(self, each: Carried, source: Address, now: Instant) -> DiscoveryEffects:
        effects: DiscoveryEffects = []
        if self._merge(each.row, source, now) is Merge.LOST_ID:
            return self._lose_id(now)
        self._store(each.row, each.map, 0, effects)
        return effects

    def _on_join(self, source: Address, message: Join, now: Instant) -> DiscoveryEffects:
        roster = self.roster
        row = message.row
        for contact in message.members:
            if roster.learn_contact(contact, now) is Merge.LOST_ID:
                return self._lose_id(now)
        if self._merge(row, source, now) is Merge.LOST_ID:
            return self._lose_id(now)
        effects: DiscoveryEffects = []
        self._store(row, message.map, message.hop, effects)
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
        maps = []
        if have.get(roster.me) != (roster.inc, self.told.ver):
            maps.append(Carried(self.own_row(), self.told))
        reported = list(between(roster.ring, roster.me, message.hi, size, direction))
        if message.first:
            before = (roster.me - direction) % size
            reported += between(roster.ring, message.row.id, before, size, direction)
        for identity in reported:
            entry = roster.entries.get(identity)
            if entry is None or entry.map is None or identity == message.row.id:
                continue
            if have.get(identity) != (entry.inc, entry.map.ver):
                maps.append(Carried(roster.row_of(entry, now), entry.map))
        return tuple(maps)

    def _on_join_ack(self, message: JoinAck, source: Address, now: Instant) -> DiscoveryEffects:
        effects: DiscoveryEffects = []
        for each in message.maps or ():
            effects += self._carried(each, source, now)
            if self.roster.me is None:
                return effects
        key = (message.src, message.inc, message.seq, message.direction, message.frm)
        self.broadcasts.acknowledged(key, nominal_bytes(message), now)
        effects += self._joined_if_done(now)
        return effects + self._go_if_done()

    def _on_update(self, source: Address, message: Update, now: Instant) -> DiscoveryEffects:
        row = message.row
        roster = self.roster
        entry = roster.entries.get(row.id)
        fits = (
            entry is not None
            and entry.map is not None
            and ((entry.inc == row.inc and entry.map.ver == message.base < row.ver)
                 or not self._mechanisms.versions)
        )  # fmt: skip
        if fits:
            assert entry is not None
            assert entry.map is not None
            held = entry.map
        if self._merge(row, source, now) is Merge.LOST_ID:
            return self._lose_id(now)
        effects: DiscoveryEffects = []
        if fits:
            self._store(row, held.with_delta(row.ver, message.delta), message.hop, effects)
        return effects + self.broadcasts.relay(message, now)

    def _on_heartbeat(self, source: Address, message: Heartbeat, now: Instant) -> DiscoveryEffects:
        printed = not self._mechanisms.versions  # Its heartbeat is an id and nothing else.
        if (not printed) and self._merge(message.row, source, now) is Merge.LOST_ID:
            return self._lose_id(now)
        return self.broadcasts.relay(message, now)

    def _on_leave(self, source: Address, message: Leave, now: Instant) -> DiscoveryEffects:
        row = message.row
        if self._merge(row, source, now) is Merge.LOST_ID:
            return self._lose_id(now)
        assert self.roster.me is not None
        ack = LeaveAck(message.frm, self.roster.me, row.id, row.inc, message.seq, message.direction)
        return [Post(source, ack), *self.broadcasts.relay(message, now)]

    # -- fetching MAPs ----------------------------------------------------------------------

    def _on_pull(self, source: Address, message: Pull, now: Instant) -> DiscoveryEffects:
        maps: list[Carried] = []
        chains: list[DeltaChain] = []
        roster = self.roster
        for have in message.have:
            if have.id == roster.me:
                row, record, deltas = self.own_row(), self.told, tuple(self._history)
            else:
                entry = roster.entries.get(have.id)
                if entry is None or entry.map is None or entry.inc < have.inc:
                    continue
                row, record = roster.row_of(entry, now), entry.map
                deltas = record.deltas
            if have.inc == row.inc and have.ver >= record.ver:
                continue
            missing = record.ver - have.ver
            chain = deltas[-missing:] if 0 < missing <= len(deltas) and have.ver else ()
            known = have.inc == row.inc and bool(chain)
            if known and sum(map(len, chain)) < record.size_bytes:
                probe("fdp: changes pulled")
                chains.append(DeltaChain(row, have.ver, chain))
            else:
                maps.append(Carried(row, record))
        if not maps and not chains:
            return []
        assert roster.me is not None
        return [Post(source, Maps(message.frm, roster.me, tuple(maps), tuple(chains)))]

    def _on_maps(self, source: Address, message: Maps, now: Instant) -> DiscoveryEffects:
        effects: DiscoveryEffects = []
        for each in message.maps:
            effects += self._carried(each, source, now)
            if self.roster.me is None:
                return effects
        for chain in message.chains:
            if self._merge(chain.row, source, now) is Merge.LOST_ID:
                return effects + self._lose_id(now)
            entry = self.roster.entries.get(chain.row.id)
            if entry is None or entry.map is None or entry.inc != chain.row.inc:
                continue
            if entry.map.ver == chain.base:
                record = entry.map
                for ver, delta in enumerate(chain.deltas, chain.base + 1):
                    record = record.with_delta(ver, delta)
                self._store(chain.row, record, 0, effects)
        return effects

    def _arm_fetch(self) -> None:
        if self._wants and not self._joining and self.roster.me is not None:
            due = min(each.due_ns for each in self._wants.values())
            self._timers.set(FETCH, Instant(due))
        else:
            self._timers.cancel(FETCH)

    def _fetch(self, now: Instant) -> DiscoveryEffects:
        """Ask for the MAPs that are due, one message per holder. [R9 R12]"""
        roster = self.roster
        asked: dict[Address, tuple[int, list[Have]]] = {}
        for identity, want in list(self._wants.items()):
            entry = roster.entries.get(identity)
            contact = roster.contacts.get(identity)
            lacks = entry is not None and entry.status is Status.LIVE and entry.lacks_map
            if (not lacks and contact is None) or want.asks >= ASKS_MAX:
                del self._wants[identity]
                continue
            if want.due_ns > now:
                continue
            addr = want.via if not want.asks else roster.address_of(identity)
            holder = None if addr is None else roster.holder(addr)
            if holder is None or addr is None or roster.suspected(holder):
                holder, addr = identity, roster.address_of(identity)
            assert addr is not None
            have = Have(identity, 0, 0)
            if contact is not None:
                have = Have(identity, contact.inc, 0)
            elif entry is not None:
                have = Have(identity, entry.inc, 0 if entry.map is None else entry.map.ver)
            want.asks += 1
            want.due_ns = now + self.settings.ask_ns
            asked.setdefault(addr, (holder, []))[1].append(have)
        assert roster.me is not None
        return [
            Post(addr, Pull(holder, roster.me, tuple(have)))
            for addr, (holder, have) in asked.items()
        ]

    # -- anti-entropy -----------------------------------------------------------------------

    def _schedule_sync(self, now: Instant) -> None:
        settings = self.settings
        period = self._chance.uniform(settings.sync_min_ns, settings.sync_max_ns) * self._pace
        self._timers.set(SYNC, Instant(now + int(period)))

    def _sync(self, now: Instant) -> DiscoveryEffects:
        """Compare all headers with one other participant. [R15]"""
        self._pace = NEWS_FACTOR if self._news else min(1.0, 2 * self._pace)
        self._news = False
        self._schedule_sync(now)
        if self.roster.me is None or self.leaving:
            return []
        partner = self._partner()
        if partner is None:
            return []
        to, addr = partner
        return [Post(addr, self._sync_message(to, now))]

    def _partner(self) -> tuple[int | None, Address] | None:
        roster, chance = self.roster, self._chance
        seeds = [each for each in self._entrance.seeds if each != self._address]
        if seeds and (not self._met_seed or chance.random() < SEED_SHARE):
            return None, chance.choice(seeds)
        if self._mechanisms.probe and chance.random() < PROBE_SHARE:
            expired = roster.expired()
            if expired:
                probe("fdp: expired participant tried")
                return None, chance.choice(expired).addr
        if not roster.ring:
            return None
        self._turn += 1
        assert roster.me is not None
        if self._turn % 2:
            before = (roster.me - 1) % roster.id_space
            to = next(between(roster.ring, roster.me, before, roster.id_space), roster.ring[0])
        else:
            to = chance.choice(roster.ring)
        addr = roster.address_of(to)
        assert addr is not None
        return to, addr

    def _sync_message(self, to: int | None, now: Instant) -> Sync:
        roster = self.roster
        assert roster.me is not None
        if self.settings.gossip_heartbeats:
            self._hb += 1
        rows = [self.own_row()]
        rows += [roster.row_of(each, now) for each in roster.entries.values()]
        return Sync(to, roster.me, tuple(rows))

    def _on_sync(self, source: Address, message: Sync, now: Instant) -> DiscoveryEffects:
        roster = self.roster
        assert roster.me is not None
        if source in self._entrance.seeds:
            self._met_seed = True
        told = {row.id: row for row in message.rows}
        for row in message.rows:
            if self._merge(row, source, now) is Merge.LOST_ID:
                return self._lose_id(now)
        mine = [self.own_row()] if _newer(self.own_row(), told.get(roster.me)) else []
        for entry in roster.entries.values():
            row = roster.row_of(entry, now)
            if _newer(row, told.get(entry.id)):
                mine.append(row)
        want = self._claim_wants(source, message.rows, now)
        if not mine and not want:
            return []
        return [Post(source, SyncReply(message.frm, roster.me, tuple(mine), want))]

    def _claim_wants(
        self, source: Address, rows: tuple[Row, ...], now: Instant
    ) -> tuple[Have, ...]:
        """Return which of the MAPs that the sender of these headers holds are lacking here."""
        if self._joining:
            return ()
        want = []
        for row in rows:
            entry = self.roster.entries.get(row.id)
            if (
                not row.has_map
                or entry is None
                or entry.inc != row.inc
                or entry.status is not Status.LIVE
                or (entry.map is not None and entry.map.ver >= row.ver)
            ):
                continue
            waiting = self._wants.get(row.id)
            if waiting is not None and waiting.asks and waiting.due_ns > now:
                continue
            self._wants[row.id] = _Want(source, now + self.settings.ask_ns, 1)
            want.append(Have(row.id, row.inc, 0 if entry.map is None else entry.map.ver))
        return tuple(want)

    def _on_sync_reply(self, source: Address, message: SyncReply, now: Instant) -> DiscoveryEffects:
        if source in self._entrance.seeds:
            self._met_seed = True
        for row in message.rows:
            if self._merge(row, source, now) is Merge.LOST_ID:
                return self._lose_id(now)
        assert self.roster.me is not None
        effects = []
        if message.want:
            effects += self._on_pull(source, Pull(self.roster.me, message.frm, message.want), now)
        want = self._claim_wants(source, message.rows, now)
        if want:
            effects.append(Post(source, Pull(message.frm, self.roster.me, want)))
        return effects

    # -- trouble ----------------------------------------------------------------------------

    def _on_not_me(self, source: Address, message: NotMe, now: Instant) -> DiscoveryEffects:
        if self.roster.me is None or self.roster.address_of(message.asked) != source:
            return []
        return self._fail(message.asked, now)

    def _on_unreachable(self, address: Address, now: Instant) -> DiscoveryEffects:
        effects = self._from_entrance(self._entrance.unreachable(address, now), now)
        holder = self.roster.holder(address)
        if holder is not None and self.roster.me is not None:
            effects += self._fail(holder, now)
        return effects

    def _fail(self, identity: int, now: Instant) -> DiscoveryEffects:
        effects = self.broadcasts.fail(identity, now)
        effects += self._joined_if_done(now)
        return effects + self._go_if_done()

    def _settle(self, effects: DiscoveryEffects, now: Instant) -> DiscoveryEffects:
        """Tell what has ended, and arm what the input made due."""
        roster = self.roster
        if roster.ended:
            ended, roster.ended = roster.ended, []
            for identity, inc, status in ended:
                effects.append(Indicate(Ended(identity, inc, status is Status.LEFT)))
        if not self.gone:
            effects += self._joined_if_done(now)
            self._arm_fetch()
        return effects


def _newer(row: Row, told: Row | None) -> bool:
    """Whether this header says more than the one that was told."""
    if told is None:
        return True
    if row.inc != told.inc:
        return row.inc > told.inc
    if (row.status is Status.LEFT) != (told.status is Status.LEFT):
        return row.status is Status.LEFT
    return row.hb > told.hb or row.ver > told.ver
