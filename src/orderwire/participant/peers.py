"""The participants that discovery finds, and which of their topics concern one another."""

import ipaddress
from collections.abc import Iterable, Sequence
from functools import lru_cache

import msgspec

from orderwire.aio.endpoint import Address
from orderwire.discovery.domains import ENTRANCE_PROPERTY
from orderwire.discovery.maps import EndpointData, EndpointKind, Map
from orderwire.kernel import LocalProtocolError, ProcessId, RemoteProtocolError
from orderwire.participant.topics import Pattern

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


class Peer(msgspec.Struct):
    """Another participant, as its MAP tells."""

    id: ProcessId
    """Its number in its domain."""
    inc: int
    map: Map
    """Of another domain's participant, or with interest-only delivery, the endpoints that match."""
    listens: str
    """Where its discovery listens; not told of other domains' participants."""
    address: Address | None
    """Of its data sockets; None until it tells."""
    offers: Offers
    domain: str

    @property
    def name(self) -> str:
        """What it calls itself."""
        return self.map.participant.name


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
        kind, _, where = (self.map.participant.property(ENTRANCE_PROPERTY) or "").partition(" ")
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
