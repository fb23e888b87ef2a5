"""Of a MAP only what matters to us is read; it is as if all of it had been."""

from random import Random

import pytest

from orderwire.discovery.map_codec import decode, encode_delta, encode_map
from orderwire.discovery.maps import EndpointData, EndpointKind, Map, ParticipantData, difference
from orderwire.discovery.messages import MapRecord
from orderwire.kernel import ProcessId
from orderwire.participant import peers
from orderwire.participant.peers import Concern, Offers, Peer, read_peer

LEVELS = ("a", "b", "cc")
PATTERNS = ("*", "**", "a/*", "a/**", "*/b", "**/cc", "a/*/cc", "b/**/a")


def drawn(chance: Random, count: int, separator: str = "/") -> list[EndpointData]:
    rows = []
    for key in range(count):
        kind = chance.choice(list(EndpointKind))
        topic = separator.join(chance.choices(LEVELS, k=chance.randint(1, 3)))
        if kind is EndpointKind.READER and chance.random() < 0.3:
            topic = chance.choice(PATTERNS)
        rows.append(EndpointData(key, kind, topic))
    return rows


def peer_of(record: MapRecord, own: Offers) -> Peer:
    return read_peer(ProcessId(1), 5, record, "there", "d", Concern(own))


@pytest.mark.parametrize("seed", range(200))
def test_what_is_shared_is_the_same_as_if_all_had_been_read(seed: int) -> None:
    chance = Random(seed)
    separator = chance.choice(("/", "/", "_"))
    old, new = (
        Map.of(ParticipantData("g", name), drawn(chance, chance.randint(0, 6), separator))
        for name in ("old", "new")
    )
    record = MapRecord(1, encode_map(old))
    if chance.random() < 0.5:
        record = record.with_delta(2, encode_delta(difference(old, new)))
    own = Offers(drawn(chance, chance.randint(0, 4), separator))
    read, whole = peer_of(record, own), decode(record)
    everything = Offers(whole.endpoints)
    assert read.name == whole.participant.name
    assert read.map == whole
    assert read.offers.meets(own) == everything.meets(own)
    assert read.offers.shared_with(own) == everything.shared_with(own)
    later = Offers(drawn(chance, 3, separator))
    assert read.offers_to(later).shared_with(later) == everything.shared_with(later)


def test_of_a_peer_that_concerns_us_not_nothing_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        EndpointData(key, EndpointKind(key % 2), f"robot/part{key // 30}/topic{key}")
        for key in range(630)
    ]
    record = MapRecord(1, encode_map(Map.of(ParticipantData("g"), rows)))
    nothing, one = Offers(()), Offers([EndpointData(0, EndpointKind.READER, "robot/part1/topic31")])
    elsewhere = Offers([EndpointData(0, EndpointKind.READER, "chat/**")])
    made = []
    monkeypatch.setattr(
        "orderwire.discovery.map_codec.EndpointData",
        lambda *fields: made.append(fields) or EndpointData(*fields),
    )
    for own, count in ((nothing, 0), (elsewhere, 0), (one, 1)):
        made.clear()
        read = peer_of(record, own)
        assert len(read.known.endpoints) == len(made) == count
        assert read.record is record
    assert len(read.map.endpoints) == 630


def test_what_cannot_be_read_when_asked_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    record = MapRecord(1, encode_map(Map.of(ParticipantData("g", "ana"))))
    read = peer_of(record, Offers(()))
    monkeypatch.setattr(peers, "decode", lambda _: decode(MapRecord(1, b"no MAP")))
    assert read.map == read.known
