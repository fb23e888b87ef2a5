"""MAPs and their changes."""

import pytest
from drawn_maps import MAPS
from hypothesis import given, settings

from orderwire.discovery.maps import (
    ENDPOINTS_MAX,
    EndpointData,
    EndpointKind,
    ForeignData,
    Map,
    MapDelta,
    ParticipantData,
    applied,
    difference,
)
from orderwire.kernel import LocalProtocolError, RemoteProtocolError

ANA = ParticipantData("guid-1", "ana", (("data", "127.0.0.1:7401"),), (("gateway", "willing"),))
POSE = EndpointData(1, EndpointKind.WRITER, "robot/pose", "Pose")
ROOM = EndpointData(4, EndpointKind.READER, "chat/room", "Text", (("order", "fifo()"),))
EAST = ForeignData("east", 7, 1, 1, b"")
WHOLE = Map.of(ANA, [ROOM, POSE], [EAST])


def test_a_map_is_in_order() -> None:
    assert WHOLE.endpoints == (POSE, ROOM)
    assert ANA.property("gateway") == "willing"
    assert ANA.property("data") is None
    assert EndpointKind.READER.opposite is EndpointKind.WRITER
    assert EndpointKind.WRITER.opposite is EndpointKind.READER


@settings(max_examples=40)
@given(old=MAPS, new=MAPS)
def test_a_change_makes_the_new_map_of_the_old_one(old: Map, new: Map) -> None:
    assert applied(old, difference(old, new)) == new
    assert difference(new, new) == MapDelta(own_ver=new.own_ver)


def test_a_change_names_no_more_than_what_changed() -> None:
    moved = EndpointData(1, EndpointKind.WRITER, "robot/pose", "Pose2")
    new = Map.of(ANA, [moved, EndpointData(9, EndpointKind.READER, "tf")])
    assert difference(WHOLE, new) == MapDelta(
        added=(new.endpoints[1],),
        removed=(4,),
        changed=(moved,),
        foreign_removed=(("east", 7),),
    )


@pytest.mark.parametrize(
    ("delta", "sentence"),
    [
        (MapDelta(removed=(2,)), "removes endpoint 2"),
        (MapDelta(removed=(1, 1)), "removes endpoint 1"),
        (MapDelta(added=(POSE,)), "adds endpoint 1"),
        (MapDelta(changed=(EndpointData(2, EndpointKind.READER, "a"),)), "change of endpoint 2"),
        (MapDelta(removed=(1,), changed=(POSE,)), "change of endpoint 1"),
        (MapDelta(foreign_removed=(("west", 7),)), "removes foreign entry"),
    ],
)
def test_a_change_of_another_map_is_refused(delta: MapDelta, sentence: str) -> None:
    with pytest.raises(RemoteProtocolError, match=sentence):
        applied(WHOLE, delta)


def test_a_change_makes_no_map_larger_than_the_limit() -> None:
    many = tuple(EndpointData(key, EndpointKind.READER, "a") for key in range(ENDPOINTS_MAX - 2))
    full = applied(WHOLE, MapDelta(added=tuple(_moved(each) for each in many)))
    with pytest.raises(RemoteProtocolError, match="at most 65536"):
        applied(full, MapDelta(added=(EndpointData(1_000_000, EndpointKind.READER, "a"),)))
    with pytest.raises(LocalProtocolError, match="at most 65536"):
        Map.of(ANA, [*full.endpoints, EndpointData(1_000_000, EndpointKind.READER, "a")])


def _moved(endpoint: EndpointData) -> EndpointData:
    return EndpointData(endpoint.key + 10, endpoint.kind, endpoint.topic)


@pytest.mark.parametrize(
    ("participant", "endpoints", "sentence"),
    [
        (ANA, [POSE, EndpointData(1, EndpointKind.READER, "b")], "two of 'ana' are endpoint 1"),
        (ANA, [EndpointData(-1, EndpointKind.READER, "b")], "endpoint key -1"),
        (ANA, [EndpointData(1, EndpointKind.READER, "b" * 256)], "topic 'bbb.*more than 255"),
        (ANA, [EndpointData(1, EndpointKind.READER, "b", "t" * 256)], "type 'ttt"),
        (ANA, [EndpointData(1, EndpointKind.READER, "b", "t", (("q", "v" * 513),))], "q 'vvv"),
        (ANA, [EndpointData(1, EndpointKind.READER, "b", "t", (("q", "v"),) * 65)], "65 values"),
        (ParticipantData("g" * 256), [], "guid 'ggg"),
    ],
)
def test_what_no_peer_would_take_is_refused_at_once(
    participant: ParticipantData, endpoints: list[EndpointData], sentence: str
) -> None:
    with pytest.raises(LocalProtocolError, match=sentence):
        Map.of(participant, endpoints)
