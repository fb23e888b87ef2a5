"""Asking for details, once at a time and until they come: what interest-only delivery and gateways
share.

Whoever has told a summary is a `Source`; what of it is wanted is for their user to say.
"""

from collections.abc import Iterator
from typing import cast

import msgspec

from orderwire.discovery.commands import Ended, Learnt
from orderwire.discovery.effects import Address, Post
from orderwire.discovery.messages import Ask, Detail, Details
from orderwire.discovery.summaries import Summary, Wanted, decode_summary, pack_hashes
from orderwire.discovery.timers import Timers
from orderwire.kernel import Instant, probe

BACKOFF_MAX = 8
"""Unanswered requests are repeated at most this many times slower."""


class Held(msgspec.Struct, frozen=True):
    """What a source has answered."""

    ver: int
    """Version of its summary then."""
    wanted: Wanted
    entries: tuple[Detail, ...]
    at_ns: int
    """When it came."""


class Source:
    """A participant that has told a summary, and how far we are with it."""

    def __init__(self, identity: int, inc: int, addr: Address, summary: Summary) -> None:
        self.id = identity
        self.inc = inc
        self.addr = addr
        self.summary = summary
        self.held: Held | None = None
        """What it has answered last, be it old."""
        self.told: bytes | None = None
        """What the application has been told of it, and …"""
        self.told_ver = 0
        """… with which version."""
        self.wanted = Wanted()
        self.asked: tuple[int, Wanted] | None = None
        self.attempts = 0

    @property
    def satisfied(self) -> bool:
        """Whether all that is wanted of its newest version is there."""
        if not self.wanted:
            return True
        held = self.held
        return held is not None and held.ver >= self.summary.ver and held.wanted.covers(self.wanted)


class Asking:
    """Whom we ask for what.  One request a source is under way; what it lacks is asked for next."""

    def __init__(self, ask_ns: int) -> None:
        self._ask_ns = ask_ns
        self.sources: dict[int, Source] = {}
        """By id."""
        self._timers = Timers()
        self._number = 0

    def learn(self, learnt: Learnt) -> Source:
        """Take a participant's summary.  Raises RemoteProtocolError when it is none."""
        summary = decode_summary(learnt.map)
        source = self.sources.get(learnt.id)
        if source is None or source.inc != learnt.inc:
            source = self.sources[learnt.id] = Source(learnt.id, learnt.inc, learnt.addr, summary)
            self._timers.cancel(learnt.id)
        source.addr, source.summary = learnt.addr, summary
        return source

    def forget(self, ended: Ended) -> Source | None:
        """Want nothing of one that has gone; return it, if it was the one that was known."""
        source = self.sources.get(ended.id)
        if source is None or source.inc != ended.inc:
            return None
        self._timers.cancel(ended.id)
        return self.sources.pop(ended.id)

    def want(self, source: Source, frm: int, wanted: Wanted, now: Instant) -> list[Post]:
        """Want this of a source.  Of whom nothing is wanted, nothing is held."""
        source.wanted = wanted
        if not wanted:
            source.held = None
        return self._go_on(source, frm, now)

    def answered(self, addr: Address, message: Details, now: Instant) -> Source | None:
        """Take an answer; return whose it is, if it is to the request that is under way."""
        source = self.sources.get(message.frm)
        if source is None or (source.addr, source.inc) != (addr, message.inc):
            return None
        if source.asked is None or source.asked[0] != message.number:
            return None
        source.held = Held(message.ver, source.asked[1], message.entries, now)
        source.asked = None
        source.attempts = 0
        if message.ver >= source.summary.ver:
            self._timers.cancel(source.id)
        else:  # There is nothing newer there yet: keep the pause.
            probe("asking: answered with an older version")
        return source

    def _go_on(self, source: Source, frm: int, now: Instant) -> list[Post]:
        if source.satisfied:
            source.asked = None
            self._timers.cancel(source.id)
            return []
        if self._timers.is_set(source.id):
            return []
        self._number += 1
        pause = self._ask_ns * min(1 << source.attempts, BACKOFF_MAX)
        source.attempts = min(source.attempts + 1, BACKOFF_MAX)
        source.asked = self._number, source.wanted
        self._timers.set(source.id, Instant(now + pause))
        hashes = pack_hashes(source.wanted.hashes)
        ask = Ask(source.id, source.inc, frm, self._number, hashes, source.wanted.patterns)
        return [Post(source.addr, ask)]

    def wake(self, frm: int, now: Instant) -> list[Post]:
        """Ask again where no answer came."""
        posts: list[Post] = []
        for identity in cast("Iterator[int]", self._timers.pop_due(now)):
            posts += self._go_on(self.sources[identity], frm, now)
        return posts

    def next_deadline(self) -> Instant | None:
        """When `wake` is next due."""
        return self._timers.next()
