"""What one participant knows of all others: entries, contacts and suspects, and how they merge.

Entries form a join-semilattice ordered by (incarnation, LEFT, heartbeat and version), so merging is
commutative, associative and idempotent, and every copy ends equal to its owner's last value.
[FDP/1 R11, P2]
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from enum import Enum

from orderwire.discovery.effects import Address
from orderwire.discovery.messages import Contact, Have, MapRecord, Row, Status
from orderwire.discovery.settings import MEMBERS_MAX, SMALL_ID_SPACE, DiscoverySettings
from orderwire.kernel import NS_PER_MS, Instant, probe

RECORD_LIFE_FAILS = 4
"""A record without evidence is forgotten after this many fail times, in a large id space."""
AGE_MS_MAX = 1 << 40
"""Ages beyond 34 years are told as this: what a peer says of an age must not outgrow its field."""


class Merge(Enum):
    """What a header changed."""

    NOTHING = "nothing"
    EVIDENCE = "evidence"
    """The participant lives, and nothing else is new."""
    NEWS = "news"


class Entry:
    """One participant, as far as known.  Times are of the local clock."""

    __slots__ = ("addr", "fresh", "hb", "id", "inc", "map", "status", "turned_away", "ver")

    def __init__(self, row: Row, fresh: int, status: Status) -> None:
        self.id = row.id
        self.inc = row.inc
        self.ver = row.ver
        """Newest version known to exist."""
        self.hb = row.hb
        self.addr = row.addr
        self.map: MapRecord | None = None
        self.turned_away = 0
        """Version for which there is no room now."""
        self.fresh = fresh
        """When the newest evidence was made: its arrival minus its age."""
        self.status = status

    @property
    def is_live(self) -> bool:
        """Whether the participant is there, as far as known."""
        return self.status is Status.LIVE

    def held(self) -> Have:
        """Return which version of its MAP is held; 0 is none."""
        return Have(self.id, self.inc, 0 if self.map is None else self.map.ver)

    @property
    def lacks_map(self) -> bool:
        """Whether its MAP is not held, or an old one."""
        if self.map is not None and self.map.ver >= self.ver:
            return False
        newest = self.turned_away if self.map is None else max(self.map.ver, self.turned_away)
        return newest < self.ver or (self.map is None and not newest)


class Roster:
    """The table of one participant.  `ring` lists the ids that it sends to, ascending."""

    def __init__(self, settings: DiscoverySettings, address: Address) -> None:
        self._settings = settings
        self._mechanisms = settings.mechanisms
        self._address = address
        self.me: int | None = None
        self.inc = 0
        self.id_space = 1
        self.lost = False
        """One's own id belongs to a newer incarnation. [FDP/1 R11.1]"""
        self.entries: dict[int, Entry] = {}
        self.contacts: dict[int, Contact] = {}
        self._contact_since: dict[int, int] = {}
        self._suspects: dict[int, int] = {}
        """Heartbeat counter at which each was suspected."""
        self._by_addr: dict[Address, int] = {}
        """Whose address it is, of LIVE entries and contacts."""
        self.ring: list[int] = []
        self.ended: list[tuple[int, int, Status]] = []
        """(id, inc, why) that ceased to be LIVE, until the node takes note."""
        self.refused = 0
        """Participants beyond the limit."""
        self.maps_bytes = 0
        """Of all MAPs that are held."""
        self.maps_refused = 0
        """MAPs for which there was no room."""
        self._turned_away: set[int] = set()

    # -- one's own id -----------------------------------------------------------------------

    def adopt(self, identity: int, inc: int, id_space: int) -> None:
        """Be this incarnation from now on; earlier ones of the id or the address have ended."""
        self.me, self.inc, self.id_space, self.lost = identity, inc, id_space, False
        self.drop_contact(identity)
        past = self.entries.pop(identity, None)
        if past is not None:
            self._end(past, Status.EXPIRED)
        if self._mechanisms.versions:
            holder = self._by_addr.get(self._address)
            if holder is not None:
                self.drop_contact(holder)
                entry = self.entries.get(holder)
                if entry is not None and entry.status is Status.LIVE:
                    self._end(entry, Status.EXPIRED)

    def lose(self) -> None:
        """Have no id until another is adopted."""
        self.me = None
        self.lost = False

    # -- what others say --------------------------------------------------------------------

    def merge(self, row: Row, now: Instant) -> Merge:
        """Take a header. [R11]"""
        if row.id == self.me:
            self.lost |= row.inc > self.inc and self._mechanisms.versions
            return Merge.NOTHING
        age_ns = row.age_ms * NS_PER_MS if self._mechanisms.ages else 0
        entry = self.entries.get(row.id)
        if entry is None or row.inc > entry.inc or not self._mechanisms.versions:
            return self._replace(entry, row, now, age_ns)
        if row.inc < entry.inc or entry.status is Status.LEFT:
            return Merge.NOTHING
        if row.status is Status.LEFT:
            entry.hb, entry.ver = max(entry.hb, row.hb), max(entry.ver, row.ver)
            entry.fresh = max(entry.fresh, now - age_ns)
            self._end(entry, Status.LEFT)
            return Merge.NEWS
        change = Merge.NOTHING
        if row.ver > entry.ver:
            entry.ver = row.ver
            change = Merge.NEWS
        if row.hb > entry.hb:
            entry.hb = row.hb
            entry.fresh = now - age_ns
            if change is Merge.NOTHING:
                change = Merge.EVIDENCE
            revived = entry.status is Status.EXPIRED and not self._too_old(age_ns)
            if revived and self._claim(entry.addr, entry.id, entry.inc):
                entry.status = Status.LIVE
                change = Merge.NEWS
            elif entry.id not in self._suspects:
                return change
            self._suspects.pop(entry.id, None)
            self._relink(entry.id)
        return change

    def telling_more(self, rows: Iterable[Row], now: Instant) -> Iterator[Row]:
        """Take headers that tell nothing, or of life alone, as most do; yield the others."""
        entries, suspects = self.entries, self._suspects
        versions, ages = self._mechanisms.versions, self._mechanisms.ages
        for row in rows:
            entry = entries.get(row.id)
            if entry is not None and versions and row.status is Status.LIVE:
                held, ver, hb = entry.map, entry.ver, row.hb
                if held is not None and held.ver >= ver >= row.ver:
                    if entry.inc >= row.inc and entry.hb >= hb:
                        continue
                    same = entry.inc == row.inc and entry.status is Status.LIVE
                    if same and row.id not in suspects:
                        entry.hb = hb
                        entry.fresh = now - row.age_ms * NS_PER_MS if ages else now
                        continue
            yield row

    def _replace(self, old: Entry | None, row: Row, now: Instant, age_ns: int) -> Merge:
        contact = self.contacts.get(row.id)
        if contact is not None and contact.inc > row.inc and self._mechanisms.versions:
            return Merge.NOTHING
        if old is None:
            if self._forgettable(age_ns):
                return Merge.NOTHING
            if len(self.entries) >= MEMBERS_MAX:
                self.refused += 1
                return Merge.NOTHING
        elif old.status is Status.LIVE and self._mechanisms.versions:
            self._end(old, Status.EXPIRED)
        held = None if old is None or self._mechanisms.versions else old.map
        if contact is not None:
            self._forget_contact(contact)
        suspected = self._suspects.pop(row.id, None)
        free = self._vacate(row.addr, row.id, row.inc)
        status = Status.LIVE
        if row.status is Status.LEFT:
            status = Status.LEFT
        elif self._too_old(age_ns) or not free:
            status = Status.EXPIRED
        entry = Entry(row, now - age_ns, status)
        self.entries[row.id] = entry
        if status is Status.LIVE:
            entry.map = held
            self._by_addr[row.addr] = row.id
        elif held is not None:
            self._release(held)
        if contact is None or suspected is not None or status is not Status.LIVE:
            self._relink(row.id)  # Else it is on the ring already.
        return Merge.NEWS

    def _claim(self, addr: Address, identity: int, inc: int) -> bool:
        """Give the address to this incarnation unless a newer one has it. [R11.2]

        An expired one whose address has passed on is not revived: it would be the second there.
        [decision 0024]
        """
        free = self._vacate(addr, identity, inc)
        if free:
            self._by_addr[addr] = identity
        return free

    def _vacate(self, addr: Address, identity: int, inc: int) -> bool:
        """End older ones at the address; return whether no newer one has it. [R11.2]"""
        if not self._mechanisms.versions:
            return True
        if addr == self._address:
            return False
        holder = self._by_addr.get(addr)
        if holder is not None and holder != identity:
            entry = self.entries.get(holder)
            if entry is not None and entry.status is Status.LIVE and entry.addr == addr:
                if entry.inc > inc:
                    return False
                self._end(entry, Status.EXPIRED)
            contact = self.contacts.get(holder)
            if contact is not None and contact.addr == addr:
                if contact.inc > inc:
                    return False
                self.drop_contact(holder)
        return True

    def learn_contact(self, contact: Contact, now: Instant) -> Merge:
        """Take note of a participant whose MAP has not been seen."""
        if contact.id == self.me:
            self.lost |= contact.inc > self.inc and self._mechanisms.versions
            return Merge.NOTHING
        if contact.id >= self.id_space:
            return Merge.NOTHING
        entry = self.entries.get(contact.id)
        if entry is not None and (entry.inc >= contact.inc or not self._mechanisms.versions):
            return Merge.NOTHING
        known = self.contacts.get(contact.id)
        if known is not None and known.inc >= contact.inc:
            return Merge.NOTHING
        if len(self.contacts) >= MEMBERS_MAX:
            self.refused += 1
            return Merge.NOTHING
        if not self._claim(contact.addr, contact.id, contact.inc):
            return Merge.NOTHING
        if entry is not None and entry.status is Status.LIVE:
            self._end(entry, Status.EXPIRED)
        self.contacts[contact.id] = contact
        self._contact_since[contact.id] = now
        self._suspects.pop(contact.id, None)
        self._by_addr[contact.addr] = contact.id
        self._relink(contact.id)
        return Merge.NEWS

    def put_map(self, row: Row, record: MapRecord) -> bool:
        """Store a MAP if it is newer than the one held; its header has been merged. [R11.5]"""
        entry = self.entries.get(row.id)
        if entry is None or entry.status is not Status.LIVE:
            return False
        if self._mechanisms.versions:
            if entry.inc != row.inc or (entry.map is not None and entry.map.ver >= record.ver):
                return False
            entry.ver = max(entry.ver, record.ver)
        past = 0 if entry.map is None else entry.map.size_bytes
        grown = record.size_bytes - past
        if grown > 0 and self.maps_bytes + grown > self._settings.maps_bytes_max:
            probe("fdp: no room for a MAP")
            self.maps_refused += 1
            entry.turned_away = record.ver
            self._turned_away.add(entry.id)
            return False
        self.maps_bytes += grown
        entry.map = record
        if grown < 0:
            self._let_in()
        return True

    def _release(self, record: MapRecord) -> None:
        self.maps_bytes -= record.size_bytes
        self._let_in()

    def _let_in(self) -> None:
        """There is room again: whoever was turned away is wanted when next heard of."""
        for identity in self._turned_away:
            entry = self.entries.get(identity)
            if entry is not None:
                entry.turned_away = 0
        self._turned_away.clear()

    # -- doubt and end ----------------------------------------------------------------------

    def suspect(self, identity: int) -> bool:
        """Send nothing more to this id until there is new evidence. [R14]"""
        if identity in self._suspects or identity == self.me:
            return False
        entry = self.entries.get(identity)
        if entry is None and identity not in self.contacts:
            return False
        self._suspects[identity] = 0 if entry is None else entry.hb
        self._relink(identity)
        return True

    def heard(self, identity: int, source: Address) -> None:
        """Clear suspicion: a message came from it directly. [R14]"""
        if identity in self._suspects and self.address_of(identity) == source:
            del self._suspects[identity]
            self._relink(identity)

    def suspects(self) -> Iterator[int]:
        """Yield the ids that nothing is sent to."""
        yield from self._suspects

    def suspected(self, identity: int) -> bool:
        """Whether nothing is sent to this id."""
        return identity in self._suspects

    def expire(self, now: Instant) -> None:
        """End entries without evidence, forget old records and silent contacts. [R13]"""
        settings = self._settings
        forgotten = []
        for entry in self.entries.values():
            if entry.status is Status.LIVE:
                if now - entry.fresh > settings.fail_ns:
                    self._end(entry, Status.EXPIRED)
            elif self._forgettable(now - entry.fresh):
                forgotten.append(entry.id)
        for identity in forgotten:
            del self.entries[identity]
            if identity not in self.contacts:
                self._suspects.pop(identity, None)
        for identity, since in list(self._contact_since.items()):
            if now - since > settings.fail_ns:
                self.drop_contact(identity)

    def drop_contact(self, identity: int) -> None:
        """Forget a contact, if it is one."""
        contact = self.contacts.get(identity)
        if contact is not None:
            self._forget_contact(contact)
            self._suspects.pop(identity, None)
            self._relink(identity)

    def _forget_contact(self, contact: Contact) -> None:
        del self.contacts[contact.id]
        del self._contact_since[contact.id]
        if self._by_addr.get(contact.addr) == contact.id:
            del self._by_addr[contact.addr]

    def _end(self, entry: Entry, status: Status) -> None:
        if entry.status is Status.LIVE:
            self.ended.append((entry.id, entry.inc, status))
        entry.status = status
        if entry.map is not None:
            record, entry.map = entry.map, None
            self._release(record)
        if self._by_addr.get(entry.addr) == entry.id and entry.id not in self.contacts:
            del self._by_addr[entry.addr]
        self._relink(entry.id)

    def _too_old(self, age_ns: int) -> bool:
        return self._mechanisms.detect and age_ns > self._settings.fail_ns

    def _forgettable(self, age_ns: int) -> bool:
        """Whether evidence of this age need not be kept; what is refused then stays refused."""
        if self.id_space <= SMALL_ID_SPACE or not self._mechanisms.detect:
            return False
        return age_ns > RECORD_LIFE_FAILS * self._settings.fail_ns

    # -- what the node reads ----------------------------------------------------------------

    def address_of(self, identity: int) -> Address | None:
        """Where it listens, its newest incarnation."""
        contact = self.contacts.get(identity)
        if contact is not None:
            return contact.addr
        entry = self.entries.get(identity)
        return None if entry is None else entry.addr

    def holder(self, addr: Address) -> int | None:
        """Whose address it is."""
        return self._by_addr.get(addr)

    def holds_other(self, identity: int, addr: Address) -> bool:
        """Whether a participant that listens elsewhere has this id, as far as known."""
        entry = self.entries.get(identity)
        if entry is not None and entry.status is Status.LIVE and entry.addr != addr:
            return True
        contact = self.contacts.get(identity)
        return contact is not None and contact.addr != addr

    def all_contacts(self) -> Iterator[Contact]:
        """Yield everybody that is sent to, and who is suspected."""
        yield from self.contacts.values()
        for entry in self.entries.values():
            if entry.status is Status.LIVE:
                yield Contact(entry.id, entry.addr, entry.inc)

    def live(self) -> Iterator[Entry]:
        """Yield the participants that are there, with a MAP each."""
        for entry in self.entries.values():
            if entry.is_live and entry.map is not None:
                yield entry

    def expired(self) -> list[Entry]:
        """Return the records of participants that have expired."""
        return [each for each in self.entries.values() if each.status is Status.EXPIRED]

    def has_expired(self, contact: Contact) -> bool:
        """Whether this incarnation, at this address, is held to be there no more."""
        entry = self.entries.get(contact.id)
        return (
            entry is not None
            and entry.status is Status.EXPIRED
            and (entry.inc, entry.addr) == (contact.inc, contact.addr)
        )

    def row_of(self, entry: Entry, now: Instant) -> Row:
        """Return its header as evidence for others."""
        return self.rows((entry,), now)[0]

    def rows(self, entries: Iterable[Entry], now: Instant) -> list[Row]:
        """Return their headers as evidence for others."""
        ages = self._mechanisms.ages
        rows = []
        for entry in entries:
            age_ms = -((entry.fresh - now) // NS_PER_MS) if ages else 0
            if not 0 <= age_ms <= AGE_MS_MAX:
                age_ms = 0 if age_ms < 0 else AGE_MS_MAX
            held, ver = entry.map, entry.ver
            has_map = held is not None and held.ver == ver
            status, hb = entry.status, entry.hb
            rows.append(Row(entry.id, entry.inc, ver, hb, age_ms, entry.addr, status, has_map))
        return rows

    def holdings(self) -> tuple[Have, ...]:
        """Return which MAPs are held."""
        return tuple(each.held() for each in self.entries.values() if each.map is not None)

    def _relink(self, identity: int) -> None:
        """Put the id into the ring, or take it out, as it should be."""
        entry = self.entries.get(identity)
        usable = (
            identity in self.contacts or (entry is not None and entry.status is Status.LIVE)
        ) and identity not in self._suspects
        ring = self.ring
        at = bisect_left(ring, identity)
        listed = at < len(ring) and ring[at] == identity
        if usable and not listed:
            ring.insert(at, identity)
        elif listed and not usable:
            del ring[at]
