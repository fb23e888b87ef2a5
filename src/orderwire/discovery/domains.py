"""Several domains, the pure parts: who the gateways are, and how what they tell is merged.

A gateway tells its own domain of the others' participants in its own MAP, `Map.foreign`: so it is
delivered, repaired and forgotten as exactly as everything else.  Two gateways of a domain tell the
same; merging is commutative, associative and idempotent.  [S002 spec 5]
"""

from collections.abc import Iterable

import msgspec

from orderwire.discovery.map_codec import decode_map, encode_map
from orderwire.discovery.maps import (
    PAIRS_MAX,
    VALUE_MAX,
    EndpointData,
    ForeignData,
    Map,
    ParticipantData,
)
from orderwire.discovery.messages import MapRecord
from orderwire.kernel import RemoteProtocolError

GATEWAYS = 2
"""k: how many gateways a domain has."""
GATEWAY_PROPERTY = "gateway"
"""A participant that has this property is willing to be one."""

ENTRANCE_PROPERTY = "entrance"
"""A foreign participant has this property: how one enters its domain, as its gateway says."""

_encode = msgspec.msgpack.Encoder().encode


def is_willing(whole: Map) -> bool:
    """Whether this participant may be a gateway."""
    return whole.participant.property(GATEWAY_PROPERTY) is not None


def gateways(willing: Iterable[int], count: int = GATEWAYS) -> tuple[int, ...]:
    """Return the gateways among the willing that are there: the lowest ids.  No election."""
    return tuple(sorted(willing)[:count])


def with_entrance(participant: ParticipantData, entrance: str) -> ParticipantData:
    """Return what other domains are told of a participant of a domain that is entered so."""
    if not entrance or len(entrance) > VALUE_MAX or len(participant.properties) == PAIRS_MAX:
        return participant
    properties = (*participant.properties, (ENTRANCE_PROPERTY, entrance))
    return msgspec.structs.replace(participant, properties=properties)


def backbone_guid(domain: str, identity: int) -> str:
    """Return the guid of a gateway in the backbone; without a server it is hashed to its id."""
    return f"{domain}/{identity}"


def own_version(whole: Map, record: MapRecord) -> int:
    """Return the version of what the participant tells of itself, without foreign entries."""
    return whole.own_ver or record.ver


def merged(entries: Iterable[ForeignData]) -> tuple[ForeignData, ...]:
    """Return one entry for each foreign participant: the newest, or the union of equally new ones.

    What is no MAP counts as older than any that is.
    """
    newest: dict[tuple[str, int], ForeignData] = {}
    for entry in entries:
        known = newest.get(entry.origin)
        if known is None:
            newest[entry.origin] = entry
        elif known != entry:
            newest[entry.origin] = _merged(known, entry)
    return tuple(newest[origin] for origin in sorted(newest))


def _merged(one: ForeignData, other: ForeignData) -> ForeignData:
    if (one.inc, one.ver) != (other.inc, other.ver):
        return max(one, other, key=lambda each: (each.inc, each.ver))
    maps = [_decoded(one.map), _decoded(other.map)]
    if maps[0] is None or maps[1] is None:
        return max(one, other, key=lambda each: (_decoded(each.map) is not None, each.map))
    endpoints: dict[int, EndpointData] = {}
    for endpoint in (*maps[0].endpoints, *maps[1].endpoints):
        endpoints[endpoint.key] = max(endpoint, endpoints.get(endpoint.key, endpoint), key=_encode)
    participant = max(maps[0].participant, maps[1].participant, key=_encode)
    union = tuple(endpoints[key] for key in sorted(endpoints))
    return ForeignData(one.domain, one.id, one.inc, one.ver, encode_map(Map(participant, union)))


def _decoded(data: bytes) -> Map | None:
    try:
        return decode_map(data)
    except RemoteProtocolError:
        return None
