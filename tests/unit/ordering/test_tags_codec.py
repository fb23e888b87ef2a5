"""Entries, pairs and matrices on the wire, and what the algorithms that send them put there."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderwire.kernel import (
    Effects,
    Instant,
    ProcessId,
    RemoteProtocolError,
    Send,
    destinations,
)
from orderwire.ordering.catalog import ALGORITHMS, OrderingSettings
from orderwire.ordering.pdu import Multicast
from orderwire.ordering.tags_codec import (
    Entries,
    EntriesCodec,
    EntriesPdu,
    MatrixCodec,
    MatrixPdu,
    PairsCodec,
    PairsPdu,
    encode_cells,
    encode_entries,
    encode_pairs,
    join_parts,
    turned_round,
    waits_for,
)
from orderwire.ordering.wire import FRONT_BYTES, encode_head, encode_varint

ME = ProcessId(0)
AGES = (1, 2, 100, 5_000, 70_000, 3_000_000, 20_000_000)
RIVALS = (
    "raynal-schiper-toueg",
    "prakash-raynal-singhal",
    "kshemkalyani-singhal",
    "kshemkalyani-singhal-flat",
    "baldoni-broadcast",
)


def entries_pdu(chance: Random, members: int, stamp: int) -> tuple[Any, bytes]:
    entries: dict[int, Entries] = {}
    for sender in chance.sample(range(members), chance.randint(0, members)):
        group = []
        newer = stamp
        for _ in range(chance.randint(1, 4)):
            newer -= chance.choice(AGES)
            group.append((newer, chance.getrandbits(members)))
        entries[sender] = tuple(group)
    return entries, encode_entries(stamp, entries)


def pairs_pdu(chance: Random, members: int, stamp: int) -> tuple[Any, bytes]:
    pairs = tuple(
        (sender, stamp - chance.choice(AGES))
        for sender in chance.sample(range(members), chance.randint(0, members))
    )
    return pairs, encode_pairs(stamp, pairs)


def matrix_pdu(chance: Random, members: int, stamp: int) -> tuple[Any, bytes]:
    rows = {
        sender: {
            column: stamp - chance.choice(AGES)
            for column in chance.sample(range(members), chance.randint(1, min(members, 20)))
        }
        for sender in chance.sample(range(members), chance.randint(0, min(members, 10)))
    }
    return rows, matrix(stamp, rows)


def matrix(stamp: int, rows: dict[int, dict[int, int]]) -> bytes:
    return join_parts(
        [
            encode_varint(sender) + encode_varint(stamp - max(row.values())) + encode_cells(row)
            for sender, row in rows.items()
        ]
    )


FORMS: list[tuple[Any, Any, Callable[[Random, int, int], tuple[Any, bytes]]]] = [
    (EntriesCodec, EntriesPdu, entries_pdu),
    (PairsCodec, PairsPdu, pairs_pdu),
    (MatrixCodec, MatrixPdu, matrix_pdu),
]
forms = pytest.mark.parametrize(
    ("codec_type", "pdu_type", "build"), FORMS, ids=["entries", "pairs", "matrix"]
)


@forms
@given(
    chance=st.randoms(use_true_random=False),
    members=st.sampled_from((2, 5, 8, 17, 40, 130)),
    stamp=st.integers(500_000_000, 2**55),
    payload=st.binary(max_size=20),
    where=st.floats(0, 1, exclude_max=True),
)
def test_every_pdu_comes_back_and_flipped_bits_are_parsed_or_refused(
    codec_type: Any,
    pdu_type: Any,
    build: Any,
    chance: Random,
    members: int,
    stamp: int,
    payload: bytes,
    where: float,
) -> None:
    tag, encoded = build(chance, members, stamp)
    head = encode_head(stamp, 3, destinations([1]))
    pdu = pdu_type(3, stamp, destinations([1]), head + encoded, payload, tag)
    codec = codec_type(ME, OrderingSettings(members=members))
    data = codec.encode(pdu)
    assert codec.decode(data) == codec.decode(memoryview(data)) == pdu
    with pytest.raises(RemoteProtocolError):
        codec.decode(pdu.control[: int(where * len(pdu.control))])
    flipped = bytearray(data)
    at = int(where * len(pdu.control))
    flipped[at] ^= 1 << int(where * 1_000) % 8
    try:
        read = codec.decode(bytes(flipped))
    except RemoteProtocolError:
        return
    stamps = sorted(stamps_of(read))
    assert not stamps or 0 <= stamps[0] <= stamps[-1] < read.stamp
    assert codec.decode(codec.encode(read)) == read


def stamps_of(pdu: Any) -> list[int]:
    match pdu:
        case EntriesPdu():
            return [stamp for group in pdu.entries.values() for stamp, _ in group]
        case PairsPdu():
            return [stamp for _, stamp in pdu.pairs]
        case MatrixPdu():
            return [stamp for row in pdu.rows.values() for stamp in row.values()]
    raise AssertionError(pdu)


@pytest.mark.parametrize(
    ("codec_type", "control", "why"),
    [
        (EntriesCodec, b"", "past the end"),
        (EntriesCodec, bytes((9,)), "past the end"),
        (EntriesCodec, bytes((1, 4 << 1, 1, 2)), "sender 4, repeated or outside"),
        (EntriesCodec, bytes((2, 1 << 1, 1, 2, 1 << 1, 1, 2)), "sender 1, repeated"),
        (EntriesCodec, bytes((1, 1 << 1 | 1, 1, 1, 2)), "1 entries of sender 1"),
        (EntriesCodec, bytes((1, 1 << 1 | 1, 0)), "0 entries of sender 1"),
        (EntriesCodec, bytes((1, 1 << 1, 0, 2)), "0 ticks older than 100"),
        (EntriesCodec, bytes((1, 1 << 1 | 1, 2, 60, 2, 41, 2)), "41 ticks older than 40"),
        (EntriesCodec, bytes((1, 1 << 1, 1, 1 << 5)), "outside 0 … 3"),
        (PairsCodec, b"", "past the end"),
        (PairsCodec, bytes((1, 4, 1)), "sender 4, repeated or outside"),
        (PairsCodec, bytes((2, 1, 1, 1, 2)), "sender 1, repeated"),
        (PairsCodec, bytes((1, 1, 101)), "101 ticks older than 100"),
        (PairsCodec, b"\xff" * 9 + b"\x7f", "past the end|outside"),
        (MatrixCodec, bytes((1,)), "past the end"),
        (MatrixCodec, bytes((1, 4, 1, 2, 0)), "sender 4, repeated or outside"),
        (MatrixCodec, bytes((2, 1, 1, 2, 0, 1, 1, 2, 0)), "sender 1, repeated"),
        (MatrixCodec, bytes((1, 1, 1, 0)), "without cells"),
        (MatrixCodec, bytes((1, 1, 60, 2, 41)), "41 ticks older than 40"),
        (MatrixCodec, bytes((1, 1, 1, 1 << 5, 0)), "outside 0 … 3"),
    ],
)
def test_what_no_correct_process_sends_is_refused_with_a_reason(
    codec_type: Any, control: bytes, why: str
) -> None:
    codec = codec_type(ME, OrderingSettings(members=4, lifetime_ns=250_000))
    with pytest.raises(RemoteProtocolError, match=why):
        codec.decode(encode_head(100, 0, destinations([0])) + control)


def test_a_stamp_at_many_destinations_is_written_once() -> None:
    barriers = {process: ((1, 90), (2, 80 + process % 2)) for process in range(20)}
    entries = turned_round(barriers)
    assert entries == {
        1: ((90, (1 << 20) - 1),),
        2: ((81, 0xAAAAA), (80, 0x55555)),
    }
    assert waits_for(entries, 1 << 4) == [(1, 90), (2, 80)]
    assert len(encode_entries(100, entries)) == 1 + (1 + 1 + 3) + (2 + 2 * (1 + 3))


def test_a_matrix_costs_one_byte_for_each_cell_of_a_multicast() -> None:
    """Row 3 with ten cells of one stamp: sender, age, set of columns, ten zeros."""
    rows = {3: dict.fromkeys(range(10), 95)}
    assert len(matrix(100, rows)) == 1 + 1 + 1 + 2 + 10


def test_control_information_longer_than_the_front_is_parsed_from_the_whole() -> None:
    stamp = 1 << 40
    pairs = tuple((sender, stamp - 70_000 - sender) for sender in range(1_500))
    control = encode_head(stamp, 0, destinations([0])) + encode_pairs(stamp, pairs)
    assert len(control) > FRONT_BYTES
    pdu = PairsPdu(0, stamp, destinations([0]), control, bytes(60_000), pairs)
    codec = PairsCodec(ME, OrderingSettings(members=1_500))
    assert codec.decode(memoryview(codec.encode(pdu))) == pdu


# What the algorithms send: 0 writes to 1 and 2, then 1, having it, to 0 and 2; Δ = 100.

SETTINGS = OrderingSettings(members=3, lifetime_ns=100, tick_ns=1)


def sends(effects: Effects) -> dict[int, Any]:
    return {effect.to: effect.pdu for effect in effects if isinstance(effect, Send)}


def answered(name: str) -> tuple[Any, Any, Any]:
    """Return the answering core and its copies to 0 and to 2."""
    asking, answering = (ALGORITHMS[name].create(ProcessId(me), SETTINGS) for me in (0, 1))
    question = sends(asking.submit(Multicast(b"?", destinations([1, 2])), Instant(10)))[1]
    answering.receive(ProcessId(0), question, Instant(12))
    copies = sends(answering.submit(Multicast(b"!", destinations([0, 2])), Instant(20)))
    return answering, copies[0], copies[2]


@pytest.mark.parametrize(
    ("name", "to_0", "to_2", "printed"),
    [
        ("raynal-schiper-toueg", {0: {1: 10, 2: 10}}, {0: {1: 10, 2: 10}}, 36),
        ("prakash-raynal-singhal", {0: ((10, 0b110),)}, {0: ((10, 0b110),)}, 12 + 16),
        ("kshemkalyani-singhal", {0: ((10, 0),)}, {0: ((10, 0b100),)}, 4 + 12 + 4),
        ("kshemkalyani-singhal-flat", {0: ((10, 0),)}, {0: ((10, 0b100),)}, 4 + 12 + 4),
        ("baldoni-broadcast", ((0, 10),), ((0, 10),), 4 + 8),
    ],
)
def test_what_an_answer_carries_and_its_printed_size(
    name: str, to_0: Any, to_2: Any, printed: int
) -> None:
    _, copy_0, copy_2 = answered(name)
    field = type(copy_0).__struct_fields__[-1]
    assert (getattr(copy_0, field), getattr(copy_2, field)) == (to_0, to_2)
    assert ALGORITHMS[name].printed_bytes(copy_2, SETTINGS) == printed


@pytest.mark.parametrize("name", RIVALS)
def test_what_has_expired_is_not_sent(name: str) -> None:
    """At stamp + Δ it still is, one tick later not; the next message says nothing any more."""
    for now, is_there in ((120, True), (121, False)):
        answering, _, _ = answered(name)
        pdu = sends(answering.submit(Multicast(b"", destinations([2])), Instant(now)))[2]
        assert (20 in stamps_of(pdu)) == is_there
        assert 10 not in stamps_of(pdu)


@pytest.mark.parametrize("name", RIVALS)
def test_a_message_to_oneself_is_nobodys_dependency(name: str) -> None:
    core = ALGORITHMS[name].create(ProcessId(0), SETTINGS)
    core.submit(Multicast(b"", destinations([0])), Instant(1))
    pdu = sends(core.submit(Multicast(b"", destinations([1])), Instant(2)))[1]
    assert stamps_of(pdu) == []


def test_a_known_delivery_shortens_the_next_tag() -> None:
    """[P96] 1 learns from the answer of 2 that 2 has the question, and no longer names it there."""
    asking, middle, answering = (
        ALGORITHMS["prakash-raynal-singhal"].create(ProcessId(me), SETTINGS) for me in range(3)
    )
    question = sends(asking.submit(Multicast(b"?", destinations([1, 2])), Instant(10)))
    middle.receive(ProcessId(0), question[1], Instant(12))
    answering.receive(ProcessId(0), question[2], Instant(12))
    answer = sends(answering.submit(Multicast(b"!", destinations([0, 1])), Instant(20)))[1]
    middle.receive(ProcessId(2), answer, Instant(22))
    pdu = sends(middle.submit(Multicast(b"", destinations([0])), Instant(30)))[0]
    assert not any(mask & 0b100 for group in pdu.entries.values() for _, mask in group)
