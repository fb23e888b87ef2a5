"""What gateways of other domains have told, and until when it counts.

The newest evidence of a foreign participant is as old as the answering gateway said, or came when
such a gateway, which forgets its dead within `fail_ns`, last stood for it.  While one that has told
its newest version is there, the entry stays; else it is forgotten `expire_ns` after the evidence.
What a gateway has told that is gone counts until another one of its domain stands: that one knows.
"""

from collections.abc import Iterable
from typing import TypeAlias

from orderwire.discovery.asking import Held
from orderwire.discovery.domains import merged
from orderwire.discovery.map_codec import decode_map, encode_map
from orderwire.discovery.maps import FOREIGN_MAX, ForeignData, Map
from orderwire.discovery.messages import Detail
from orderwire.discovery.summaries import Interests
from orderwire.kernel import NS_PER_MS, Instant, probe

FOREIGN_BYTES_MAX = 4 << 20
"""Foreign entries beyond this many bytes are left out, those of the last domains."""

GatewayKey: TypeAlias = tuple[str, int, int]
"""Backbone, id and incarnation of a gateway of another domain."""


class _Holding:
    def __init__(self, domain: str, entries: list[tuple[Detail, Map, int]]) -> None:
        self.domain = domain
        self.entries = entries
        """With the time of the newest evidence in the answer."""
        self.stood_until: Instant | None = None
        """When its gateway last stood for it; None while it does."""
        self.ended = False
        """Whether its gateway is gone."""


class Holdings:
    """All that is known of other domains' participants."""

    def __init__(self, expire_ns: int, fail_ns: int) -> None:
        self._expire_ns = expire_ns
        self._fail_ns = fail_ns
        self._holdings: dict[GatewayKey, _Holding] = {}
        self.refused = 0
        """Entries left out of the last report because there were too many."""

    def put(self, key: GatewayKey, domain: str, held: Held) -> None:
        """Take an answer.  Raises RemoteProtocolError when it holds what is no MAP."""
        entries = [
            (entry, decode_map(entry.map), held.at_ns - entry.age_ms * NS_PER_MS)
            for entry in held.entries
        ]
        self._holdings[key] = _Holding(domain, entries)

    def stand(self, key: GatewayKey) -> None:
        """That gateway is there and has nothing newer."""
        holding = self._holdings.get(key)
        if holding is not None:
            holding.stood_until = None
            self._replace_ended(holding.domain)

    def doubt(self, key: GatewayKey, since: Instant) -> None:
        """That gateway has something newer that is not known yet, since then."""
        holding = self._holdings.get(key)
        if holding is not None and holding.stood_until is None:
            holding.stood_until = since

    def end(self, key: GatewayKey, since: Instant) -> None:
        """That gateway is gone, since then."""
        self.doubt(key, since)
        holding = self._holdings.get(key)
        if holding is not None:
            holding.ended = True
            self._replace_ended(holding.domain)

    def _replace_ended(self, domain: str) -> None:
        """Forget what gateways told that are gone, if another one of their domain stands."""
        told = {key: each for key, each in self._holdings.items() if each.domain == domain}
        if any(each.stood_until is None for each in told.values()):
            for key, each in told.items():
                if each.ended:
                    del self._holdings[key]

    def remove(self, key: GatewayKey) -> None:
        """Nothing of that gateway's is wanted."""
        self._holdings.pop(key, None)

    def drop(self, backbone: str) -> None:
        """Forget what was told there."""
        for key in [each for each in self._holdings if each[0] == backbone]:
            del self._holdings[key]

    def report(
        self, interests: Interests, now: Instant
    ) -> tuple[tuple[ForeignData, ...], Instant | None]:
        """Return the entries that match something, and when the next of them will be forgotten."""
        soonest: int | None = None
        found: list[ForeignData] = []
        for key, holding in list(self._holdings.items()):
            kept = []
            for entry in holding.entries:
                if holding.stood_until is not None:
                    evidence = max(entry[2], holding.stood_until - self._fail_ns)
                    until = evidence + self._expire_ns
                    if until <= now:
                        probe("gateway: foreign entry forgotten")
                        continue
                    soonest = until if soonest is None else min(until, soonest)
                kept.append(entry)
            holding.entries = kept
            if not kept and holding.stood_until is not None:
                del self._holdings[key]
            for detail, whole, _ in kept:
                matching = tuple(
                    each for each in whole.endpoints if interests.is_match(each.kind, each.topic)
                )
                if matching:
                    data = encode_map(Map(whole.participant, matching))
                    found.append(
                        ForeignData(holding.domain, detail.id, detail.inc, detail.ver, data)
                    )
        due = None if soonest is None else Instant(soonest)
        return self._limited(merged(found)), due

    def _limited(self, entries: tuple[ForeignData, ...]) -> tuple[ForeignData, ...]:
        room = FOREIGN_BYTES_MAX
        for count, entry in enumerate(entries):
            room -= len(entry.map)
            if room < 0 or count == FOREIGN_MAX:
                self.refused = len(entries) - count
                return entries[:count]
        self.refused = 0
        return entries


def foreign_of(maps: Iterable[Map]) -> tuple[ForeignData, ...]:
    """Return what the gateways among one's own domain's participants tell of other domains."""
    return merged(entry for whole in maps for entry in whole.foreign)
