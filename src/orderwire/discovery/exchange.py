"""Merging what is told of others, and fetching the MAPs that are told of.  [FDP/1 R9 R11 R12]"""

from heapq import heappop, heappush

import msgspec

from orderwire.discovery.commands import Learnt
from orderwire.discovery.effects import Address, DiscoveryEffects, Post
from orderwire.discovery.messages import (
    Carried,
    DeltaChain,
    Have,
    MapRecord,
    Maps,
    Pull,
    Row,
    listed_bytes,
)
from orderwire.discovery.own import Own
from orderwire.discovery.roster import Merge, Roster
from orderwire.discovery.settings import CARRIED_BYTES_MAX, DiscoverySettings
from orderwire.discovery.timers import Timers
from orderwire.kernel import Indicate, Instant, probe

FETCH = "fetch"
"""Name of the timer."""
ASKS_MAX = 5
"""Requests for a change of a MAP before it is left to anti-entropy.

The first MAP of a participant is asked for as long as it is thought to be there. [R9]
"""


class _Want(msgspec.Struct):
    """A MAP that is to be fetched."""

    via: Address
    """Whoever told of it; the owner is asked from the second time on."""
    due_ns: int
    asks: int = 0


class Exchange:
    """The others' MAPs at one participant."""

    def __init__(
        self, settings: DiscoverySettings, roster: Roster, own: Own, timers: Timers
    ) -> None:
        self._settings = settings
        self._mechanisms = settings.mechanisms
        self._roster = roster
        self._own = own
        self._timers = timers
        self._wants: dict[int, _Want] = {}
        self._dues: list[tuple[int, int]] = []
        """When each is due, and whose MAP it is: a heap, with those that are no longer wanted."""
        self.joining = False
        """While answers to one's own JOIN are outstanding nothing is asked for. [R15]"""
        self.news = False
        """Something was learnt since anti-entropy looked."""

    # -- learning ---------------------------------------------------------------------------

    def merge(self, row: Row, via: Address, now: Instant, wait_ns: int = 0) -> None:
        """Take a header; want the MAP if it tells of a newer one than is held."""
        roster = self._roster
        if roster.merge(row, now) is Merge.NEWS:
            self.news = True
        if not self._mechanisms.pull or row.id in self._wants:
            return
        entry = roster.entries.get(row.id)
        if entry is not None and entry.inc == row.inc and entry.lacks_map and entry.is_live:
            self._want(row.id, _Want(via, now + wait_ns))

    def merge_all(self, rows: tuple[Row, ...], via: Address, now: Instant) -> None:
        """Take headers, most of which say nothing new."""
        for row in self._roster.telling_more(rows, now):
            if row.has_map:
                self.merge(row, via, now)
            else:  # Who tells of it lacks it too: it may be on its way to both.
                self.merge(row, row.addr, now, self._settings.pull_ns)

    def store(self, row: Row, record: MapRecord, hop: int) -> DiscoveryEffects:
        """Keep a MAP if it is news, and tell the application; its header has been merged."""
        record = self._own.folded(record)
        if not self._roster.put_map(row, record):
            return []
        self.news = True
        entry = self._roster.entries[row.id]
        if not entry.lacks_map:
            self._wants.pop(row.id, None)
        return [Indicate(Learnt(row.id, entry.inc, record.ver, entry.addr, record, hop))]

    def carried(self, maps: tuple[Carried, ...], source: Address, now: Instant) -> DiscoveryEffects:
        """Take MAPs with their headers."""
        effects: DiscoveryEffects = []
        for each in maps:
            self.merge(each.row, source, now)
            effects += self.store(each.row, each.map, 0)
        return effects

    def changed(
        self, row: Row, base: int, delta: bytes, hop: int, source: Address, now: Instant
    ) -> DiscoveryEffects:
        """Take one change of a MAP; one that does not fit makes the MAP wanted. [R12]"""
        entry = self._roster.entries.get(row.id)
        held = None if entry is None else entry.map
        fits = held is not None and (
            not self._mechanisms.versions
            or (entry is not None and entry.inc == row.inc and held.ver == base < row.ver)
        )
        self.merge(row, source, now)
        if not fits or held is None:
            return []
        return self.store(row, held.with_delta(row.ver, delta), hop)

    # -- answering --------------------------------------------------------------------------

    def on_pull(
        self, source: Address, to: int, wanted: tuple[Have, ...], now: Instant
    ) -> DiscoveryEffects:
        """Send the MAPs that are asked for, as changes where that is shorter."""
        maps: list[Carried] = []
        chains: list[DeltaChain] = []
        roster, own = self._roster, self._own
        room = CARRIED_BYTES_MAX
        for have in wanted:
            if have.id == roster.me:
                row, record, deltas = own.row(), own.told, tuple(own.history)
                if own.left:
                    maps.append(own.carried())
                    continue
            else:
                entry = roster.entries.get(have.id)
                if entry is None or entry.map is None or entry.inc < have.inc:
                    continue
                row, record = roster.row_of(entry, now), entry.map
                deltas = record.deltas
            held = have.ver if have.inc == row.inc else 0
            missing = record.ver - held
            if missing <= 0:
                continue
            chain = deltas[-missing:] if held and missing <= len(deltas) else ()
            shorter = bool(chain) and sum(map(len, chain)) < record.size_bytes
            room -= listed_bytes(row) + (sum(map(len, chain)) if shorter else record.size_bytes)
            if room < 0 and (maps or chains):
                break
            if shorter:
                probe("fdp: changes pulled")
                chains.append(DeltaChain(row, held, chain))
            else:
                maps.append(Carried(row, record))
        if not maps and not chains:
            return []
        assert roster.me is not None
        return [Post(source, Maps(to, roster.me, tuple(maps), tuple(chains)))]

    def on_maps(self, source: Address, message: Maps, now: Instant) -> DiscoveryEffects:
        """Take what was asked for."""
        effects = self.carried(message.maps, source, now)
        for chain in message.chains:
            for ver, delta in enumerate(chain.deltas, chain.base + 1):
                row = msgspec.structs.replace(chain.row, ver=ver)
                effects += self.changed(row, ver - 1, delta, 0, source, now)
            self.merge(chain.row, source, now)
        return effects

    # -- asking -----------------------------------------------------------------------------

    def want_contacts(self, due: Instant) -> None:
        """Ask every contact for its MAP then, unless it has come. [R9]"""
        for contact in self._roster.contacts.values():
            if contact.id not in self._wants:
                self._want(contact.id, _Want(contact.addr, due))

    def claim(self, source: Address, rows: tuple[Row, ...], now: Instant) -> tuple[Have, ...]:
        """Return which MAPs that the sender of these headers holds are lacking, as asked for."""
        if self.joining:
            return ()
        wanted = []
        entries = self._roster.entries
        for row in rows:
            if not row.has_map:
                continue
            entry = entries.get(row.id)
            if entry is None or (entry.map is not None and entry.map.ver >= row.ver):
                continue  # As most are.
            if (
                entry.inc != row.inc
                or not entry.is_live
                or (entry.turned_away and entry.turned_away >= row.ver)
            ):
                continue
            waiting = self._wants.get(row.id)
            if waiting is not None and waiting.asks and waiting.due_ns > now:
                continue
            self._want(row.id, _Want(source, now + self._settings.ask_ns, 1))
            wanted.append(entry.held())
        return tuple(wanted)

    def _want(self, identity: int, want: _Want) -> None:
        self._wants[identity] = want
        heappush(self._dues, (want.due_ns, identity))

    def _first_due(self) -> Instant:
        """Return when the first of them is due; there is one."""
        dues, wants = self._dues, self._wants
        while (want := wants.get(dues[0][1])) is None or want.due_ns != dues[0][0]:
            heappop(dues)
        return Instant(dues[0][0])

    def arm(self) -> None:
        """Let the timer be due when the next MAP is to be asked for."""
        if self._wants and not self.joining and self._roster.me is not None:
            self._timers.set(FETCH, self._first_due())
        else:
            self._timers.cancel(FETCH)

    def fetch(self, now: Instant) -> DiscoveryEffects:
        """Ask for the MAPs that are due, one message per holder. [R9 R12]"""
        roster = self._roster
        asked: dict[Address, tuple[int, list[Have]]] = {}
        for identity, want in list(self._wants.items()):
            entry = roster.entries.get(identity)
            contact = roster.contacts.get(identity)
            lacks = entry is not None and entry.is_live and entry.lacks_map
            changed = contact is None and entry is not None and entry.map is not None
            if (not lacks and contact is None) or (changed and want.asks >= ASKS_MAX):
                del self._wants[identity]
                continue
            if want.due_ns > now:
                continue
            addr = want.via if not want.asks else roster.address_of(identity)
            holder = None if addr is None else roster.holder(addr)
            if holder is None or addr is None or roster.suspected(holder):
                holder, addr = identity, roster.address_of(identity)
            assert addr is not None
            if contact is not None:
                have = Have(identity, contact.inc, 0)
            else:
                assert entry is not None
                have = entry.held()
            want.asks += 1
            want.due_ns = now + self._settings.ask_ns
            self._want(identity, want)
            asked.setdefault(addr, (holder, []))[1].append(have)
        assert roster.me is not None
        return [
            Post(addr, Pull(holder, roster.me, tuple(have)))
            for addr, (holder, have) in asked.items()
        ]
