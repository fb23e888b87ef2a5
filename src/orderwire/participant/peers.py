"""The participants that discovery finds, and which of their topics concern one another."""

import ipaddress
from collections.abc import Iterable, Sequence
from functools import lru_cache

import msgspec

from orderwire.aio.endpoint import Address
from orderwire.discovery.domains import ENTRANCE_PROPERTY
from orderwire.discovery.interest import Listed
from orderwire.discovery.map_codec import decode, partial
from orderwire.discovery.maps import PATTERN_MARK, EndpointData, EndpointKind, Map, ParticipantData
from orderwire.discovery.messages import MapRecord
from orderwire.kernel import LocalProtocolError, ProcessId, RemoteProtocolError
from orderwire.participant.topics import Pattern

LEVEL = "/"
"""What stands between the levels of a topic."""
DATA = "data"
"""The address in a MAP where a member's data sockets are."""


class Offers:
    """What a member writes and reads, as far as it matters to others."""

    def __init__(self, endpoints: Iterable[EndpointData]) -> None:
        """Refuse what is no pattern, with a LocalProtocolError."""
        self.writes: set[str] = set()
        self.reads: set[str] = set()
        self.patterns: list[Pattern] = []
        for each in endpoints:
            if each.kind is EndpointKind.WRITER:
                self.writes.add(each.topic)
            elif "*" in each.topic:
                self.patterns.append(Pattern(each.topic))
            else:
                self.reads.add(each.topic)

    def wants_of(self, other: "Offers") -> bool:
        """Whether this member reads anything that the other one writes."""
        if not self.reads.isdisjoint(other.writes):
            return True
        return any(each.matches(name) for each in self.patterns for name in other.writes)

    def meets(self, other: "Offers") -> bool:
        """Whether one of the two reads what the other writes."""
        return self.wants_of(other) or other.wants_of(self)

    def shared_with(self, other: "Offers") -> list[str]:
        """Return the topics that one of the two reads and the other writes, ascending."""
        return sorted(self._read_of(other) | other._read_of(self))

    def _read_of(self, other: "Offers") -> set[str]:
        meant = {name for name in other.writes if any(p.matches(name) for p in self.patterns)}
        return meant | (self.reads & other.writes)


class Concern:
    """Which topics of another member matter to one with these offers."""

    def __init__(self, offers: Offers) -> None:
        self._names = offers.reads | offers.writes
        self._writes = offers.writes
        self._patterns = offers.patterns

    def topic(self, topic: str) -> bool:
        """Whether endpoints of this topic, or readers of this pattern, may match ours."""
        if topic in self._names or any(each.matches(topic) for each in self._patterns):
            return True
        return PATTERN_MARK in topic and any(means(topic, name) for name in self._writes)

    def levels(self, separator: str, levels: list[str]) -> bool:
        """Whether a topic of such levels may be one of these; false only when none can."""
        there = set(levels)
        if separator != LEVEL or any(PATTERN_MARK in each or LEVEL in each for each in levels):
            return bool(self._names or self._patterns)
        if any(there.issuperset(name.split(LEVEL)) for name in self._names):
            return True
        return any(
            there.issuperset(each for each in pattern.text.split(LEVEL) if PATTERN_MARK not in each)
            for pattern in self._patterns
        )


class Peer(msgspec.Struct):
    """Another participant, as its MAP tells."""

    id: ProcessId
    """Its number in its domain."""
    inc: int
    known: Map
    """What was read of its MAP: itself, and those of its endpoints that may match ours."""
    listens: str
    """Where its discovery listens; not told of other domains' participants."""
    address: Address | None
    """Of its data sockets; None until it tells."""
    offers: Offers
    """Of these endpoints."""
    domain: str
    record: MapRecord | None = None
    """Its MAP as it came, if there is more in it."""

    @property
    def name(self) -> str:
        """What it calls itself."""
        return self.known.participant.name

    def offers_to(self, other: Offers) -> Offers:
        """Return what of it matters to these."""
        if self.record is None:
            return self.offers
        concern = Concern(other)
        try:
            return Offers(partial(self.record, concern.topic, concern.levels).endpoints)
        except (RemoteProtocolError, LocalProtocolError):
            return self.offers

    @property
    def map(self) -> Map:
        """All that it tells, read when asked; what cannot be read is not in it.

        Of another domain's participant, or with interest-only delivery, the endpoints that match.
        """
        try:
            return self.known if self.record is None else decode(self.record)
        except RemoteProtocolError:
            return self.known


def read_peer(
    identity: ProcessId,
    inc: int,
    record: MapRecord,
    listens: str,
    domain: str,
    concern: Concern,
) -> Peer:
    """Read of a MAP what matters to us.  Raises RemoteProtocolError, LocalProtocolError."""
    known = partial(record, concern.topic, concern.levels)
    address, offers = address_of(known), Offers(known.endpoints)
    return Peer(identity, inc, known, listens, address, offers, domain, record)


def read_summary(listed: Listed, known: tuple[EndpointData, ...], domain: str) -> Peer:
    """Read a summary; `known` are the endpoints told so far.  Raises RemoteProtocolError."""
    whole = Map(listed.summary.participant or ParticipantData(""), known)
    address, offers = address_of(whole), Offers(known)
    return Peer(ProcessId(listed.id), listed.inc, whole, listed.addr, address, offers, domain)


class ForeignPeer(Peer):
    """A participant of another domain, as our domain's gateways tell of it.

    No samples go between it and us: it has no number in our group.
    """

    reachable: bool | None = None
    """Whether its data address could be called from here, lately.

    None: not tried yet, or not at all, since it tells none or shares no topic with us.
    """

    @property
    def entrance(self) -> dict[str, str | tuple[str, ...]]:
        """How one becomes a member of its domain, as its gateway says; empty if that is not told.

        `Participant('name', **peer.entrance)` does, where its credentials are ours.
        """
        kind, _, where = (self.known.participant.property(ENTRANCE_PROPERTY) or "").partition(" ")
        if kind not in ENTRANCES or not where:
            return {}
        return {"domain": self.domain, kind: tuple(where.split(",")) if kind == "seeds" else where}


ENTRANCES = ("bootstrap", "seeds", "zookeeper")
"""What `Participant` calls the ways into a domain."""


def entrance_text(bootstrap: str | None, seeds: Sequence[str], zookeeper: str | None) -> str:
    """Return what `ForeignPeer.entrance` reads; one of the three is given."""
    told = (bootstrap, ",".join(seeds), zookeeper)
    return next(f"{kind} {where}" for kind, where in zip(ENTRANCES, told, strict=True) if where)


def address_of(whole: Map) -> Address | None:
    """Return where a member's data sockets are.  Raises RemoteProtocolError."""
    told = dict(whole.participant.addresses).get(DATA)
    if told is None:
        return None
    host, _, port = told.rpartition(":")
    try:
        numeric = str(ipaddress.IPv4Address(host))
        if not 0 < int(port) < 1 << 16:
            raise ValueError(port)
    except ValueError:
        raise RemoteProtocolError(
            f"data address {told!r}, expected an IPv4 address and a port"
        ) from None
    return numeric, int(port)


def means(pattern: str, topic: str) -> bool:
    """Whether a reader of this topic or pattern reads this topic: `discovery.summaries.Matches`."""
    parsed = _pattern(pattern)
    return parsed is not None and parsed.matches(topic)


@lru_cache(4_096)
def _pattern(text: str) -> Pattern | None:
    try:
        return Pattern(text)
    except LocalProtocolError:  # A peer's; it matches nothing.
        return None
