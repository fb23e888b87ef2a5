"""The compact form of MAPs: round trips, limits, and that no input does harm."""

import zlib
from collections.abc import Callable
from itertools import pairwise

import msgspec
import pytest
from drawn_maps import MAPS, TOPICS
from hypothesis import given, settings
from hypothesis import strategies as st

from orderwire.discovery.map_codec import (
    _PRESET,
    CHANGES_MAX,
    DECODED_BYTES_MAX,
    CompactMaps,
    decode,
    decode_delta,
    decode_map,
    decode_participant,
    encode_delta,
    encode_map,
    lookup,
    plain_form,
)
from orderwire.discovery.maps import (
    EndpointData,
    EndpointKind,
    ForeignData,
    Map,
    MapDelta,
    ParticipantData,
    difference,
)
from orderwire.discovery.messages import MapRecord
from orderwire.discovery.own import Own
from orderwire.discovery.roster import Roster
from orderwire.discovery.settings import DELTAS_MAX, DiscoverySettings
from orderwire.kernel import LocalProtocolError, RemoteProtocolError

ANA = ParticipantData("guid-1", "ana")


def robot(endpoints: int) -> Map:
    return Map.of(
        ANA,
        [
            EndpointData(key, EndpointKind(key % 2), f"robot/{zlib.crc32(b'%d' % key)}", "Pose")
            for key in range(endpoints)
        ],
    )


def packed(body: object) -> bytes:
    return b"\x10" + msgspec.msgpack.encode(body)


def deflated(plain: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15, 9, zlib.Z_DEFAULT_STRATEGY, _PRESET)
    return b"\x11" + packer.compress(plain) + packer.flush()


@settings(max_examples=40)
@given(MAPS)
def test_a_map_comes_back(whole: Map) -> None:
    data = encode_map(whole)
    assert decode_map(data) == whole
    assert decode_participant(data) == whole.participant


@settings(max_examples=40)
@given(old=MAPS, new=MAPS)
def test_a_change_comes_back(old: Map, new: Map) -> None:
    delta = difference(old, new)
    assert decode_delta(encode_delta(delta)) == delta


@settings(max_examples=40)
@given(maps=st.lists(MAPS, min_size=1, max_size=5), topic=TOPICS)
def test_a_record_is_its_newest_map(maps: list[Map], topic: str) -> None:
    record = MapRecord(1, encode_map(maps[0]))
    for ver, (old, new) in enumerate(pairwise(maps), start=2):
        record = record.with_delta(ver, encode_delta(difference(old, new)))
    assert decode(record) == maps[-1]
    wanted = {topic, "chat/room"}
    assert lookup(record, wanted.__contains__) == [
        each for each in maps[-1].endpoints if each.topic in wanted
    ]
    assert decode(CompactMaps().shortened(record)) == maps[-1]


@settings(max_examples=40)
@given(old=MAPS, new=MAPS)
def test_the_core_gets_changes_of_bytes(old: Map, new: Map) -> None:
    delta = CompactMaps().difference(encode_map(old), encode_map(new))
    assert decode(MapRecord(2, encode_map(old), (delta,))) == new


def _mutate(data: bytes, at: int, byte: int, cut: int) -> bytes:
    at %= len(data)
    return data[:at] + bytes((byte,)) + data[at + 1 : len(data) - cut]


@given(
    whole=MAPS,
    other=MAPS,
    plain=st.booleans(),
    at=st.integers(0, 500),
    byte=st.integers(0, 255),
    cut=st.integers(0, 2),
)
def test_bytes_that_were_tampered_with_do_no_harm(
    whole: Map, other: Map, plain: bool, at: int, byte: int, cut: int
) -> None:
    """Whatever comes is a MAP that could have been sent, or the peer's fault."""
    forms: list[tuple[Callable[[bytes], Map], bytes]] = [
        (decode_map, encode_map(whole)),
        (
            lambda data: decode(MapRecord(2, encode_map(whole), (data,))),
            encode_delta(difference(whole, other)),
        ),
    ]
    for parse, data in forms:
        if plain:
            data = b"\x10" + plain_form(data)
        data = _mutate(data, at, byte, cut)
        try:
            result = parse(data)
        except RemoteProtocolError:
            continue
        assert decode_map(encode_map(result)) == result


@given(data=st.binary(max_size=60))
def test_noise_is_refused_or_is_a_map(data: bytes) -> None:
    for head in (b"", b"\x10", b"\x11"):
        try:
            result = decode_map(head + data)
        except RemoteProtocolError:
            continue
        assert decode_map(encode_map(result)) == result


def table(**more: object) -> list[object]:
    """Columns of one endpoint of topic `a/b`."""
    columns: dict[str, object] = {
        "separator": "/",
        "levels": ["a", "b"],
        "depths": [2],
        "parts": [0, 1],
        "types": ["T"],
        "qos": [[]],
        "sorts": [[1, 0, 0]],
        "key_steps": [1],
        "topic_refs": [0],
        "sort_refs": [0],
    }
    return list({**columns, **more}.values())


PARTICIPANT = ["guid", "name", [], []]


def test_the_hand_made_map_is_one() -> None:
    whole = decode_map(packed([1, PARTICIPANT, table(), [], 0]))
    assert whole.endpoints == (EndpointData(0, EndpointKind.WRITER, "a/b", "T"),)


@pytest.mark.parametrize(
    "columns",
    [
        {"separator": ""},
        {"separator": "//"},
        {"depths": [3]},
        {"depths": [0]},
        {"depths": [33], "parts": [0] * 33},
        {"parts": [0, 2]},
        {"parts": [0, -1]},
        {"types": []},
        {"qos": []},
        {"sorts": [[2, 0, 0]]},
        {"sorts": [[1, -1, 0]]},
        {"sorts": [[1, 0, 1]]},
        {"key_steps": [0]},
        {"key_steps": [1 << 33]},
        {"key_steps": [1, 1]},
        {"key_steps": [(1 << 32) - 1, 2], "topic_refs": [0, 1], "sort_refs": [0, 0]},
        {"topic_refs": [1]},
        {"topic_refs": [-1]},
        {"topic_refs": [0, 0], "key_steps": [1, 1], "sort_refs": [0, 0]},
        {"topic_refs": [0, 2], "key_steps": [1, 1], "sort_refs": [0, 0]},
        {"sort_refs": [1]},
        {"topic_refs": [], "key_steps": [], "sort_refs": []},
        {"levels": ["a" * 200, "b"], "parts": [0, 0]},
        {"qos": [[["q", "v" * 513]]]},
        {"levels": ["a" * 256, "b"]},
        {"unknown": 0},
    ],
)
def test_columns_that_do_not_fit_together_are_refused(columns: dict[str, object]) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_map(packed([1, PARTICIPANT, table(**columns), [], 0]))


@pytest.mark.parametrize(
    "body",
    [
        [2, PARTICIPANT, table(), [], 0],
        [1, PARTICIPANT, table(), []],
        [1, PARTICIPANT, table(), [], -1],
        [1, PARTICIPANT, table(), [], 0, 0],
        [1, PARTICIPANT, table(), [["east", 2, 1, 1, b""], ["east", 1, 1, 1, b""]], 0],
        [1, PARTICIPANT, table(), [["e" * 256, 1, 1, 1, b""]], 0],
    ],
)
def test_other_bodies_are_refused(body: list[object]) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_map(packed(body))


def test_a_change_that_changes_what_it_does_not_tell_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="does not say what it is"):
        decode_delta(packed([2, None, [], table(), [2], [], [], 0]))


def test_a_bomb_is_refused_before_it_goes_off() -> None:
    bomb = deflated(bytes(DECODED_BYTES_MAX + 1))
    assert len(bomb) < 10_000
    with pytest.raises(RemoteProtocolError, match="longer than"):
        decode_map(bomb)


def test_forms_and_tails_that_nobody_writes_are_refused() -> None:
    good = encode_map(robot(100))
    assert good[0] == 0x11
    for data in (b"", b"\x20" + good[1:], good + b"\x00", good[:-1], b"\x10" + good[1:]):
        with pytest.raises(RemoteProtocolError):
            decode_map(data)
    with pytest.raises(RemoteProtocolError, match="33 changes"):
        decode(MapRecord(40, good, (b"",) * (CHANGES_MAX + 1)))


def test_a_map_that_would_be_refused_is_not_sent() -> None:
    big = ForeignData("east", 1, 1, 1, bytes(DECODED_BYTES_MAX))
    with pytest.raises(LocalProtocolError, match="before compression"):
        encode_map(Map.of(ANA, [], [big]))


@pytest.mark.parametrize("separator", ["/", "_", ".", ":", "-"])
def test_names_are_cut_where_they_are_alike(separator: str) -> None:
    names = [
        separator.join((f"robot{robot}", f"device{device}", "state"))
        for robot in range(8)
        for device in range(20)
    ]
    whole = Map.of(
        ANA, [EndpointData(key, EndpointKind.READER, name) for key, name in enumerate(names)]
    )
    assert plain_form(encode_map(whole)).count(b"state") == 1
    assert decode_map(encode_map(whole)) == whole


def test_a_name_of_nothing_but_slashes_comes_back() -> None:
    names = ["/" * 255, "_" * 255, "/a", ""]
    whole = Map.of(
        ANA, [EndpointData(key, EndpointKind.READER, name) for key, name in enumerate(names)]
    )
    assert decode_map(encode_map(whole)) == whole


def test_the_shorter_form_is_chosen() -> None:
    assert encode_map(robot(100))[0] == 0x11
    assert encode_delta(MapDelta(removed=(3,)))[0] == 0x10


def test_a_map_is_kept_whole_when_its_changes_are_many_or_longer_than_it() -> None:
    """Whoever keeps it asks `Own.folded`; what comes of it is the same MAP."""
    own = Own("me", Roster(DiscoverySettings(), "me"), CompactMaps())
    maps = [robot(100)]
    record = MapRecord(1, encode_map(maps[0]))
    for count in range(1, DELTAS_MAX + 2):
        added = EndpointData(1_000 + count, EndpointKind.READER, "a")
        maps.append(Map.of(ANA, [*maps[-1].endpoints, added]))
        record = record.with_delta(1 + count, encode_delta(difference(maps[-2], maps[-1])))
        short = own.folded(record)
        assert decode(short) == maps[-1]
        assert short.ver == record.ver
        assert bool(short.deltas) == (count <= DELTAS_MAX)
    none = Map.of(ANA)
    grown = MapRecord(2, encode_map(none), (encode_delta(difference(none, robot(300))),))
    assert own.folded(grown) == MapRecord(2, encode_map(robot(300)))


def test_what_is_no_map_stays_none_and_does_not_grow() -> None:
    record = CompactMaps().shortened(MapRecord(7, b"noise", (b"more",) * 17))
    assert record.size_bytes == 0
    with pytest.raises(RemoteProtocolError):
        decode(record)
