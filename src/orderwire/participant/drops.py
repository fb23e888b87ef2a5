"""Telling the application what was dropped, whoever dropped it: the link, the order or a reader.

Every drop is counted where it happens.  What the counters have grown by is told here, a few times a
second: that costs a message nothing, and the counts told add up to the counters.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TypeAlias
from weakref import WeakKeyDictionary

import msgspec

from orderwire.participant.reader import Reader
from orderwire.participant.topic_domain import TopicDomain

_LOG = logging.getLogger(__name__)

LOOK_PAUSE_S = 0.05
"""How long a drop waits to be told, at most."""

COPIES_DROPPED = ("late", "refused", "lost", "malformed", "unclaimed", "unsent", "unconfirmed")
"""Counters of a domain that tell of copies nobody was handed."""
SAMPLES_DROPPED = ("expired", "dropped", "undecodable", "abandoned")
"""Counters of a reader that tell of samples it did not hand over."""


class Dropped(msgspec.Struct, frozen=True, kw_only=True):
    """Copies or samples that were not handed over, since the last event of the same kind."""

    reason: str
    """Name of the counter: of `Counters`, or of `ReaderCounters` when there is a `pattern`."""
    count: int
    """How many since the last event of this reason in this domain, or at this reader."""
    total: int
    """How many so far."""
    domain: str
    """The order's label."""
    pattern: str | None = None
    """What the reader reads whose queue it was; None: it came to no reader at all."""


Tell: TypeAlias = Callable[[Dropped], None]


class DropWatch:
    """Looks at the counters of a participant's domains and readers and tells what has grown."""

    def __init__(
        self, tell: Tell, domains: Callable[[], Iterable[TopicDomain]], readers: Iterable[Reader]
    ) -> None:
        self._tell = tell
        self._domains = domains
        self._readers = readers
        self._told: WeakKeyDictionary[object, dict[str, int]] = WeakKeyDictionary()
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(LOOK_PAUSE_S, self._on_timer)

    def look(self) -> None:
        """Tell what was dropped since the last look."""
        for domain in self._domains():
            counters = domain.counters
            for reason in COPIES_DROPPED:
                total = getattr(counters, reason)
                self._compare(domain, reason, total, domain.order.label, None)
        for reader in self._readers:
            reader.expire()
            for reason in SAMPLES_DROPPED:
                total = getattr(reader.counters, reason)
                self._compare(reader, reason, total, reader.label, reader.pattern.text)

    def close(self) -> None:
        """Tell the rest and look no more."""
        self._timer.cancel()
        self.look()

    def _on_timer(self) -> None:
        self._timer = self._loop.call_later(LOOK_PAUSE_S, self._on_timer)
        self.look()

    def _compare(
        self, where: object, reason: str, total: int, domain: str, pattern: str | None
    ) -> None:
        told = self._told.setdefault(where, {})
        count = total - told.get(reason, 0)
        if count <= 0:
            return
        told[reason] = total
        event = Dropped(reason=reason, count=count, total=total, domain=domain, pattern=pattern)
        try:
            self._tell(event)
        except Exception:
            _LOG.exception("on_drop(%r) failed", event)
