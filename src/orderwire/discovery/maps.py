"""What a participant tells of itself: its own data and all its endpoints, the MAP.  [S002:sec.3]

To the discovery protocol a MAP is bytes with a version; `map_codec` turns them into these and back.
A change is told as a `MapDelta`.
"""

from collections.abc import Iterable
from enum import IntEnum
from itertools import pairwise
from typing import Annotated, TypeAlias

import msgspec

from orderwire.discovery.messages import Count, Id, Text
from orderwire.kernel import LocalProtocolError, RemoteProtocolError

ENDPOINTS_MAX = 65_536
"""Most endpoints of one participant."""
KEY_MAX = (1 << 32) - 1
PAIRS_MAX = 64
"""Most addresses, properties or QoS values of one thing."""
TEXT_MAX = 255
"""Longest name, in characters, as `messages.Text` has it."""
VALUE_MAX = 512
"""Longest value, in characters."""
FOREIGN_MAX = 65_536
"""Most participants of other domains that one gateway tells of."""
PATTERN_MARK = "*"
"""A reader's topic that holds it is a pattern, which may match many topics."""

Key = Annotated[int, msgspec.Meta(ge=0, le=KEY_MAX)]
Value = Annotated[str, msgspec.Meta(max_length=VALUE_MAX)]
Pairs: TypeAlias = Annotated[tuple[tuple[Text, Value], ...], msgspec.Meta(max_length=PAIRS_MAX)]
"""Names and values, in the order that the participant gave them."""


class EndpointKind(IntEnum):
    """Which way an endpoint's data go."""

    READER = 0
    WRITER = 1

    @property
    def opposite(self) -> "EndpointKind":
        """What an endpoint of this kind is matched by."""
        return EndpointKind(1 - self)


class ParticipantData(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A participant without its endpoints.  Which life of it this is says the row's incarnation."""

    guid: Text
    name: Text = ""
    addresses: Pairs = ()
    """What for → where, e.g. `("data", "127.0.0.1:7401")`."""
    properties: Pairs = ()

    def property(self, name: str) -> str | None:
        """Return the value of a property, or None."""
        return dict(self.properties).get(name)


class EndpointData(msgspec.Struct, frozen=True, array_like=True):
    """A writer or reader, as others must know it to match it."""

    key: Key
    """Unique in the participant, in one life of it."""
    kind: EndpointKind
    topic: Text
    """A topic's name; of a reader also a pattern."""
    type: Text = ""
    qos: Pairs = ()
    """The order that it writes or reads in, and whatever else was chosen."""


class ForeignData(msgspec.Struct, frozen=True, array_like=True):
    """A participant of another domain, as a gateway tells of it at home."""

    domain: Text
    id: Id
    inc: Count
    ver: Count
    """Version of the participant's MAP in its own domain."""
    map: bytes
    """Its data and the endpoints of it that somebody here may match, encoded as a MAP."""

    @property
    def origin(self) -> tuple[str, int]:
        """Who it is."""
        return self.domain, self.id


class Map(msgspec.Struct, frozen=True):
    """A participant and its endpoints.  Make it with `Map.of`, which sorts and refuses."""

    participant: ParticipantData
    endpoints: tuple[EndpointData, ...] = ()
    """By ascending key."""
    foreign: tuple[ForeignData, ...] = ()
    """What a gateway learnt in other domains, by domain and id."""
    own_ver: int = 0
    """Version without the foreign entries, when they have made the MAP's own another one."""

    @classmethod
    def of(
        cls,
        participant: ParticipantData,
        endpoints: Iterable[EndpointData] = (),
        foreign: Iterable[ForeignData] = (),
        own_ver: int = 0,
    ) -> "Map":
        """Return the MAP of these, in order.  Raises LocalProtocolError."""
        ordered = tuple(sorted(endpoints, key=_key))
        entries = tuple(sorted(foreign, key=_origin))
        _refuse_participant(participant)
        for endpoint in ordered:
            _refuse_endpoint(endpoint)
        for what, one, other in (
            *(("endpoint", a.key, b.key) for a, b in pairwise(ordered)),
            *(("entry", a.origin, b.origin) for a, b in pairwise(entries)),
        ):
            if one == other:
                raise LocalProtocolError(f"two of {participant.name!r} are {what} {one!r}")
        if len(ordered) > ENDPOINTS_MAX or len(entries) > FOREIGN_MAX:
            raise LocalProtocolError(
                f"{len(ordered)} endpoints and {len(entries)} foreign entries; a MAP has at most"
                f" {ENDPOINTS_MAX} and {FOREIGN_MAX}"
            )
        return cls(participant, ordered, entries, own_ver)


class MapDelta(msgspec.Struct, frozen=True):
    """What makes a newer MAP of an older one."""

    participant: ParticipantData | None = None
    """The participant's own data if it changed."""
    added: tuple[EndpointData, ...] = ()
    removed: tuple[int, ...] = ()
    """Keys."""
    changed: tuple[EndpointData, ...] = ()
    """Endpoints that are there under the same key, otherwise."""
    foreign: tuple[ForeignData, ...] = ()
    """Entries that are new or other than before."""
    foreign_removed: tuple[tuple[str, int], ...] = ()
    """Domain and id."""
    own_ver: int = 0
    """The new MAP's."""


def difference(old: Map, new: Map) -> MapDelta:
    """Return what `applied` needs to make the new MAP of the old one."""
    before = {endpoint.key: endpoint for endpoint in old.endpoints}
    after = {endpoint.key for endpoint in new.endpoints}
    told = {entry.origin: entry for entry in old.foreign}
    kept = {entry.origin for entry in new.foreign}
    return MapDelta(
        participant=None if new.participant == old.participant else new.participant,
        added=tuple(each for each in new.endpoints if each.key not in before),
        removed=tuple(key for key in before if key not in after),
        changed=tuple(each for each in new.endpoints if before.get(each.key, each) != each),
        foreign=tuple(each for each in new.foreign if told.get(each.origin) != each),
        foreign_removed=tuple(origin for origin in told if origin not in kept),
        own_ver=new.own_ver,
    )


def applied(old: Map, delta: MapDelta) -> Map:
    """Return the MAP after the change.

    Raises RemoteProtocolError when the change is not one of this MAP.
    """
    endpoints = {endpoint.key: endpoint for endpoint in old.endpoints}
    for key in delta.removed:
        if endpoints.pop(key, None) is None:
            raise RemoteProtocolError(f"a change removes endpoint {key}, which is not there")
    for endpoint in delta.changed:
        if endpoint.key not in endpoints:
            raise RemoteProtocolError(f"a change of endpoint {endpoint.key}, which is not there")
        endpoints[endpoint.key] = endpoint
    for endpoint in delta.added:
        if endpoint.key in endpoints:
            raise RemoteProtocolError(f"a change adds endpoint {endpoint.key}, which is there")
        endpoints[endpoint.key] = endpoint
    foreign = {entry.origin: entry for entry in old.foreign}
    for origin in delta.foreign_removed:
        if foreign.pop(origin, None) is None:
            raise RemoteProtocolError(f"a change removes foreign entry {origin}, not there")
    foreign.update((entry.origin, entry) for entry in delta.foreign)
    if len(endpoints) > ENDPOINTS_MAX or len(foreign) > FOREIGN_MAX:
        raise RemoteProtocolError(
            f"{len(endpoints)} endpoints and {len(foreign)} foreign entries after a change; a MAP"
            f" has at most {ENDPOINTS_MAX} and {FOREIGN_MAX}"
        )
    return Map(
        delta.participant or old.participant,
        tuple(sorted(endpoints.values(), key=_key)),
        tuple(sorted(foreign.values(), key=_origin)),
        delta.own_ver,
    )


def _key(endpoint: EndpointData) -> int:
    return endpoint.key


def _origin(entry: ForeignData) -> tuple[str, int]:
    return entry.origin


def _refuse_endpoint(endpoint: EndpointData) -> None:
    if not 0 <= endpoint.key <= KEY_MAX:
        raise LocalProtocolError(f"endpoint key {endpoint.key}, expected 0 … {KEY_MAX}")
    _refuse_long("topic", endpoint.topic)
    _refuse_long("type", endpoint.type)
    _refuse_pairs("qos", endpoint.qos)


def _refuse_participant(participant: ParticipantData) -> None:
    _refuse_long("guid", participant.guid)
    _refuse_long("name", participant.name)
    _refuse_pairs("addresses", participant.addresses)
    _refuse_pairs("properties", participant.properties)


def _refuse_pairs(what: str, pairs: tuple[tuple[str, str], ...]) -> None:
    if len(pairs) > PAIRS_MAX:
        raise LocalProtocolError(f"{len(pairs)} values in {what}; at most {PAIRS_MAX}")
    for name, value in pairs:
        _refuse_long(f"a name in {what}", name)
        _refuse_long(name, value, VALUE_MAX)


def _refuse_long(what: str, text: str, most: int = TEXT_MAX) -> None:
    if len(text) > most:
        raise LocalProtocolError(f"{what} {text[:40]!r}… has more than {most} characters")
