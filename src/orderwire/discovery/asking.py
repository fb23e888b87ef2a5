"""Asking for details, once at a time and until they come: what interest-only delivery and gateways
share."""

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar, cast

import msgspec

from orderwire.discovery.effects import Address, Post
from orderwire.discovery.messages import Ask, Detail, Details
from orderwire.discovery.summaries import Wanted, pack_hashes
from orderwire.discovery.timers import Timers
from orderwire.kernel import Instant, probe

BACKOFF_MAX = 8
"""Unanswered requests are repeated at most this many times slower."""

PeerKey = TypeVar("PeerKey", bound=Hashable)


class Held(msgspec.Struct, frozen=True):
    """What a peer has answered."""

    ver: int
    """Version of its summary then."""
    wanted: Wanted
    entries: tuple[Detail, ...]
    at_ns: int
    """When it came."""


class _Source:
    """A peer, and how far we are with it."""

    def __init__(self, identity: int, inc: int, addr: Address) -> None:
        self.id = identity
        self.inc = inc
        self.addr = addr
        self.ver = 0
        self.wanted = Wanted()
        self.held: Held | None = None
        self.asked: tuple[int, Wanted] | None = None
        self.attempts = 0

    @property
    def satisfied(self) -> bool:
        if not self.wanted:
            return True
        held = self.held
        return held is not None and held.ver >= self.ver and held.wanted.covers(self.wanted)


class Asking(Generic[PeerKey]):
    """Whom we ask for what.  One request a peer is under way; what it lacks is asked for next."""

    def __init__(self, ask_ns: int) -> None:
        self._ask_ns = ask_ns
        self._sources: dict[PeerKey, _Source] = {}
        self._timers = Timers()
        self._number = 0

    def held(self, key: PeerKey) -> Held | None:
        """Return what this peer has answered last, be it old."""
        source = self._sources.get(key)
        return None if source is None else source.held

    def is_held(self, key: PeerKey) -> bool:
        """Whether all that is wanted of this peer's newest version is there."""
        source = self._sources.get(key)
        return source is not None and source.satisfied

    def want(
        self, key: PeerKey, frm: int, to: tuple[int, int, Address, int], wanted: Wanted,
        now: Instant,
    ) -> list[Post]:  # fmt: skip
        """Want this of a peer: its id, incarnation, address, and the version of its summary.

        Of whom nothing is wanted, nothing is held.
        """
        identity, inc, addr, ver = to
        source = self._sources.get(key)
        if source is None or (source.id, source.inc) != (identity, inc):
            source = self._sources[key] = _Source(identity, inc, addr)
            self._timers.cancel(key)
        source.addr, source.ver, source.wanted = addr, ver, wanted
        if not wanted:
            source.held = None
        return self._go_on(key, source, frm, now)

    def forget(self, key: PeerKey) -> None:
        """Want nothing of this peer, which has gone."""
        self._sources.pop(key, None)
        self._timers.cancel(key)

    def answered(self, key: PeerKey, message: Details, now: Instant) -> bool:
        """Take an answer; whether it is to the request that is under way."""
        source = self._sources.get(key)
        if source is None or source.inc != message.inc or source.asked is None:
            return False
        number, wanted = source.asked
        if number != message.number:
            return False
        source.held = Held(message.ver, wanted, message.entries, now)
        source.asked = None
        source.attempts = 0
        if message.ver >= source.ver:  # Else there is nothing newer there yet: keep the pause.
            self._timers.cancel(key)
        else:
            probe("asking: answered with an older version")
        return True

    def _go_on(self, key: PeerKey, source: _Source, frm: int, now: Instant) -> list[Post]:
        if source.satisfied:
            source.asked = None
            self._timers.cancel(key)
            return []
        if self._timers.is_set(key):
            return []
        self._number += 1
        pause = self._ask_ns * min(1 << source.attempts, BACKOFF_MAX)
        source.attempts = min(source.attempts + 1, BACKOFF_MAX)
        source.asked = self._number, source.wanted
        self._timers.set(key, Instant(now + pause))
        hashes = pack_hashes(source.wanted.hashes)
        ask = Ask(source.id, source.inc, frm, self._number, hashes, source.wanted.patterns)
        return [Post(source.addr, ask)]

    def wake(self, frm: int, now: Instant) -> list[Post]:
        """Ask again where no answer came."""
        posts: list[Post] = []
        for key in cast("Iterator[PeerKey]", self._timers.pop_due(now)):
            posts += self._go_on(key, self._sources[key], frm, now)
        return posts

    def next_deadline(self) -> Instant | None:
        """When `wake` is next due."""
        return self._timers.next()
