"""Anti-entropy: two participants compare headers and fetch what they lack.  [FDP/1 R15]"""

from random import Random

from orderwire.discovery.effects import Address, DiscoveryEffects, Post
from orderwire.discovery.entrance import Entrance
from orderwire.discovery.exchange import Exchange
from orderwire.discovery.messages import Pull, Row, Status, Sync, SyncReply, fitting
from orderwire.discovery.own import Own
from orderwire.discovery.ring import nearest
from orderwire.discovery.roster import Entry, Roster
from orderwire.discovery.settings import LISTED_BYTES_MAX, DiscoverySettings
from orderwire.discovery.timers import Timers
from orderwire.kernel import Instant, probe

SYNC = "sync"
"""Name of the timer."""
NEWS_FACTOR = 0.1
"""It is ten times as fast once joined and on news; while joining all is news, and on its way."""
PROBE_SHARE = 1 / 8
"""How often the last address of an expired participant is tried."""
SEED_SHARE = 1 / 5
"""How often a seed is tried once one has answered. [spec 5]"""
SEED_TRIES = 3
"""So many times as there are seeds they alone are tried until one answers; then others, too.

Who waited for a seed that is gone would be heard by nobody. [decision 0024]
"""


class AntiEntropy:
    """When, with whom and about what."""

    def __init__(
        self,
        settings: DiscoverySettings,
        roster: Roster,
        own: Own,
        exchange: Exchange,
        entrance: Entrance,
        timers: Timers,
        chance: Random,
    ) -> None:
        self._settings = settings
        self._mechanisms = settings.mechanisms
        self._roster = roster
        self._own = own
        self._exchange = exchange
        self._entrance = entrance
        self._timers = timers
        self._chance = chance
        self._pace = 1.0
        self._turn = 0
        self._met_seed = False
        self._seed_tries = 0

    def begin(self, now: Instant) -> None:
        """Start, or start anew once joined: fast, unless answers to the JOIN are outstanding."""
        if self._mechanisms.ae:
            self._pace = 1.0 if self._exchange.joining else NEWS_FACTOR
            self._schedule(now)

    def _schedule(self, now: Instant) -> None:
        settings = self._settings
        period = self._chance.uniform(settings.sync_min_ns, settings.sync_max_ns) * self._pace
        self._timers.set(SYNC, Instant(now + int(period)))

    def due(self, now: Instant) -> DiscoveryEffects:
        """Compare all headers with one other participant."""
        news, self._exchange.news = self._exchange.news, False
        fast = news and not self._exchange.joining
        self._pace = NEWS_FACTOR if fast else min(1.0, 2 * self._pace)
        self._schedule(now)
        partner = self._partner()
        if partner is None:
            return []
        to, addr = partner
        return [Post(addr, self.message(to, now))]

    def _partner(self) -> tuple[int | None, Address] | None:
        roster, chance = self._roster, self._chance
        seeds = [each for each in self._entrance.seeds if each != self._own.address]
        if seeds and (self._wait_for(seeds) or chance.random() < SEED_SHARE):
            self._seed_tries += 1
            return None, chance.choice(seeds)
        if self._mechanisms.probe and chance.random() < PROBE_SHARE:
            expired = roster.expired()
            if expired:
                probe("fdp: expired participant tried")
                return None, chance.choice(expired).addr
        if not roster.ring:
            return (None, chance.choice(seeds)) if seeds else None
        self._turn += 1
        assert roster.me is not None
        if self._turn % 2:
            before = (roster.me - 1) % roster.id_space
            to = nearest(roster.ring, roster.me, before)
            if to is None:
                to = roster.ring[0]
        else:
            to = chance.choice(roster.ring)
        addr = roster.address_of(to)
        assert addr is not None, f"{to} is on the ring without an address"
        return to, addr

    def _wait_for(self, seeds: list[Address]) -> bool:
        """Whether none but seeds are tried: none has answered, a HELLO or a SYNC."""
        met = self._met_seed or self._entrance.met_seed
        return not met and self._seed_tries < SEED_TRIES * len(seeds)

    def message(self, to: int | None, now: Instant) -> Sync:
        """Return all headers, to be compared."""
        roster = self._roster
        assert roster.me is not None
        if self._settings.gossip_heartbeats:
            self._own.beat()
        rows = [self._own.row()]
        rows += roster.rows(roster.entries.values(), now)
        return Sync(to, roster.me, self._fitting(rows))

    def _fitting(self, rows: list[Row]) -> tuple[Row, ...]:
        """Return the headers, or as many as fit a message: others the next time."""
        found = fitting(rows, LISTED_BYTES_MAX)
        if len(found) == len(rows):
            return found
        self._chance.shuffle(rows)
        return fitting(rows, LISTED_BYTES_MAX)

    def on_sync(self, source: Address, message: Sync, now: Instant) -> DiscoveryEffects:
        """Learn, and answer with what is newer here and what is lacking here."""
        self._note_seed(source)
        roster = self._roster
        assert roster.me is not None
        told = {row.id: row for row in message.rows}
        self._exchange.merge_all(message.rows, source, now)
        own = self._own.row()
        mine = [own] if _newer(own, told.get(own.id)) else []
        newer = [
            entry
            for entry in roster.entries.values()
            if (
                (row := told.get(entry.id)) is None
                or entry.hb > row.hb
                or entry.ver > row.ver
                or entry.inc != row.inc
                or entry.status is Status.LEFT
            )
            and _newer(entry, row)
        ]
        mine += roster.rows(newer, now)
        want = self._exchange.claim(source, message.rows, now)
        if not mine and not want:
            return []
        return [Post(source, SyncReply(message.frm, roster.me, self._fitting(mine), want))]

    def on_reply(self, source: Address, message: SyncReply, now: Instant) -> DiscoveryEffects:
        """Learn, send what is lacking there, and ask for what is lacking here."""
        self._note_seed(source)
        roster, exchange = self._roster, self._exchange
        assert roster.me is not None
        exchange.merge_all(message.rows, source, now)
        effects: DiscoveryEffects = []
        if message.want:
            effects += exchange.on_pull(source, message.frm, message.want, now)
        want = exchange.claim(source, message.rows, now)
        if want:
            effects.append(Post(source, Pull(message.frm, roster.me, want)))
        return effects

    def _note_seed(self, source: Address) -> None:
        if source in self._entrance.seeds:
            self._met_seed = True


def _newer(known: Row | Entry, told: Row | None) -> bool:
    """Whether this says more than the header that was told."""
    if told is None:
        return True
    if known.inc != told.inc:
        return known.inc > told.inc
    if (known.status is Status.LEFT) != (told.status is Status.LEFT):
        return known.status is Status.LEFT
    return known.hb > told.hb or known.ver > told.ver
