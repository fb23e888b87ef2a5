"""Destination sets, heads and control information on the wire; malformed input."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderwire.kernel import Destinations, ProcessId, RemoteProtocolError, destinations
from orderwire.ordering.catalog import ALGORITHMS, OrderingSettings
from orderwire.ordering.fifo import FifoCodec, FifoPdu, incarnation_of
from orderwire.ordering.jang_delta_codec import (
    Entries,
    JangDeltaCodec,
    JangDeltaPdu,
    Layout,
    join_waits,
    printed_bytes,
)
from orderwire.ordering.unordered import UnorderedCodec, UnorderedPdu
from orderwire.ordering.wire import (
    FRONT_BYTES,
    decode_head,
    decode_set,
    encode_head,
    encode_set,
    encode_varint,
)

MEMBERS = 4_096
ME = ProcessId(0)


@pytest.mark.parametrize(
    ("members", "size"),
    [
        ([], 1),
        ([0, 5], 1),
        ([6], 2),
        ([0, 12], 2),
        ([39], 2),
        ([1, 20, 39], 4),
        (range(20), 3),
        (range(69), 10),
        (range(70), 10),
        (range(0, 4_096, 2), 514),
        ([4_095], 3),
    ],
)
def test_a_set_takes_its_shortest_form(members: list[int], size: int) -> None:
    mask = destinations(members)
    encoded = encode_set(mask)
    assert len(encoded) == size
    assert decode_set(encoded + b"tail", 0, MEMBERS) == (mask, size)


@given(st.sets(st.integers(0, 80), max_size=81))
def test_every_set_comes_back(members: set[int]) -> None:
    encoded = encode_set(destinations(members))
    assert decode_set(encoded, 0, 81) == (destinations(members), len(encoded))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80",
        encode_set(destinations([8])),
        bytes((2 << 2 | 1, 3, 3)),
        bytes((2 << 2 | 1, 3, 2)),
        bytes((9 << 2 | 1, *range(9))),
        bytes((1 << 2 | 1, 8)),
        bytes((1 << 2 | 3, 0)),
        bytes((2 << 2 | 3, 1, 1)),
        bytes((1 << 2 | 3,)),
        b"\xff" * 11,
    ],
)
def test_malformed_sets_are_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_set(data, 0, 8)


@given(
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**60),
    st.sets(st.integers(0, 19), min_size=1).map(destinations),
)
def test_every_head_comes_back(stamp: int, number: int, mask: Destinations) -> None:
    head = encode_head(stamp, number, mask)
    assert decode_head(head + b"rest", 20) == (stamp, number, mask, len(head))
    for size in range(len(head)):
        with pytest.raises(RemoteProtocolError):
            decode_head(head[:size], 20)


def test_heads_without_destinations_or_with_huge_stamps_are_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="without destinations"):
        decode_head(bytes(8) + b"\0\0", 4)
    with pytest.raises(RemoteProtocolError, match="not below"):
        decode_head(b"\xff" * 8 + b"\0\x02", 4)
    # A padded varint is not misread as something shorter.
    with pytest.raises(RemoteProtocolError):
        decode_head(bytes(9) + b"\x81\x00\x00", 4)


def entries_for(stamp: int, members: int) -> st.SearchStrategy[dict[int, Entries]]:
    """CI as correct processes send it: newest first, no destination twice."""

    def build(chance: Random) -> dict[int, Entries]:
        entries: dict[int, Entries] = {}
        for sender in chance.sample(range(members), chance.randint(0, members)):
            left = list(range(members))
            chance.shuffle(left)
            group = []
            newer = stamp
            for _ in range(chance.randint(1, min(4, members))):
                newer -= chance.choice((1, 100, 5_000, 70_000, 3_000_000, 20_000_000))
                chosen = [left.pop() for _ in range(min(len(left), chance.randint(0, 3)))]
                group.append((newer, int(destinations(chosen))))
            entries[sender] = tuple(group)
        return entries

    return st.randoms(use_true_random=False).map(build)


@st.composite
def jang_pdus(draw: st.DrawFn) -> tuple[OrderingSettings, JangDeltaPdu]:
    members = draw(st.sampled_from((2, 5, 8, 9, 16, 17, 40)))
    lifetime = draw(st.sampled_from((None, 1_000, 250_000, 60_000_000)))
    settings = OrderingSettings(members=members, lifetime_ns=lifetime, tick_ns=1)
    stamp = draw(st.integers(500_000_000, 2**55))
    number = draw(st.integers(0, 2**40))
    mask = destinations(draw(st.sets(st.integers(0, members - 1), min_size=1)))
    entries = draw(entries_for(stamp, members))
    waits = tuple(
        (sender, stamp - draw(st.integers(1, 30_000_000)))
        for sender in draw(st.sets(st.integers(0, members - 1)))
    )
    layout = Layout(settings)
    control = encode_head(stamp, number, mask) + layout.encode_entries(stamp, entries)
    control += join_waits(*layout.encode_waits(stamp, waits))
    payload = draw(st.binary(max_size=20))
    return settings, JangDeltaPdu(number, stamp, mask, control, payload, entries, waits)


@given(jang_pdus())
def test_every_pdu_of_jang_comes_back(drawn: tuple[OrderingSettings, JangDeltaPdu]) -> None:
    settings, pdu = drawn
    codec = JangDeltaCodec(ME, settings)
    data = codec.encode(pdu)
    assert codec.decode(data) == codec.decode(memoryview(data)) == pdu
    for size in range(len(pdu.control)):
        with pytest.raises(RemoteProtocolError):
            codec.decode(data[:size])


@given(st.binary(max_size=80), st.sampled_from((1, 3, 8, 16, 40)))
def test_noise_is_parsed_or_refused_never_a_crash(data: bytes, members: int) -> None:
    settings = OrderingSettings(members=members, lifetime_ns=250_000, tick_ns=1)
    for entry in ALGORITHMS.values():
        codec = entry.codec(ME, settings)
        try:
            pdu = codec.decode(data)
        except RemoteProtocolError:
            continue
        assert 0 < pdu.destinations < 1 << members
        assert codec.decode(codec.encode(pdu)) == pdu


@given(jang_pdus(), st.randoms(use_true_random=False))
def test_flipped_bits_are_parsed_or_refused(
    drawn: tuple[OrderingSettings, JangDeltaPdu], chance: Random
) -> None:
    """What a flipped bit leaves parsable still names members only and older stamps only."""
    settings, pdu = drawn
    codec = JangDeltaCodec(ME, settings)
    data = bytearray(codec.encode(pdu))
    at = chance.randrange(len(pdu.control))
    data[at] ^= 1 << chance.randrange(8)
    try:
        read = codec.decode(bytes(data))
    except RemoteProtocolError:
        return
    for sender, wait in read.waits:
        assert 0 <= sender < settings.members
        assert 0 <= wait < read.stamp
    for sender, group in read.entries.items():
        assert 0 <= sender < settings.members
        stamps = [read.stamp, *(stamp for stamp, _ in group)]
        assert stamps == sorted(set(stamps), reverse=True)
        assert all(0 <= mask < 1 << settings.members for _, mask in group)


@pytest.mark.parametrize(
    ("control", "why"),
    [
        (b"", "past the end"),
        (b"\0", "past the end"),
        (bytes((9 << 1,)), "past the end"),
        (bytes((1 << 1, 4 << 1, 1, 2, 0)), "sender 4, repeated or outside"),
        (bytes((2 << 1, 1 << 1, 1, 2, 1 << 1, 1, 2, 0)), "sender 1, repeated"),
        (bytes((1 << 1, 1 << 1 | 1, 1, 1, 2, 0)), "1 entries of sender 1"),
        (bytes((1 << 1, 1 << 1 | 1, 5, 1, 2, 0)), "5 entries of sender 1"),
        (bytes((1 << 1, 1 << 1, 0, 2, 0)), "0 ticks older"),
        (bytes((1 << 1, 1 << 1, 101, 2, 0)), "101 ticks older"),
        (bytes((0, 5 << 1)), "past the end"),
        (bytes((0, 1 << 1, 4, 1)), "dependency on sender 4"),
        (bytes((0, 2 << 1, 1, 1, 1, 2)), "dependency on sender 1, repeated"),
        (bytes((0, 1 << 1, 1, 0)), "dependency 0 ticks older"),
        (bytes((0, 1 << 1, 1, 101)), "dependency 101 ticks older"),
        (bytes((17 << 1 | 1,)) + bytes(85), "17 packed entries"),
        (bytes((1 << 1 | 1, 1, 1)), "1 packed entries"),
        (bytes((1 << 1 | 1, 4, 1, 0, 0, 1, 0)), "packed entry of sender 4"),
        (bytes((1 << 1 | 1, 1, 0, 0, 0, 1, 0)), "packed entry of sender 1, 0 ticks"),
        (bytes((2 << 1 | 1, 1, 2, 0, 0, 1, 1, 2, 0, 0, 2, 0)), "packed entry of sender 1, 2"),
        (
            bytes((3 << 1 | 1, 1, 2, 0, 0, 1, 2, 2, 0, 0, 1, 1, 3, 0, 0, 2, 0)),
            "packed entry of sender 1, 3 ticks older than 100, behind one of 2",
        ),
        (bytes((1 << 1 | 1, 1, 1, 0, 0, 16, 0)), "outside a group"),
        (bytes((0, 5 << 1 | 1)) + bytes(20), "5 packed dependencies"),
        (bytes((0, 1 << 1 | 1, 1, 1)), "1 packed dependencies"),
        (bytes((0, 2 << 1 | 1, 1, 1, 0, 0, 1, 2, 0, 0)), "packed dependency on sender 1"),
        (bytes((0, 1 << 1 | 1, 1, 0, 0, 0)), "0 ticks older"),
    ],
)
def test_what_no_correct_process_sends_is_refused_with_a_reason(control: bytes, why: str) -> None:
    settings = OrderingSettings(members=4, lifetime_ns=250_000)
    codec = JangDeltaCodec(ME, settings)
    with pytest.raises(RemoteProtocolError, match=why):
        codec.decode(encode_head(100, 0, destinations([0])) + control)


def test_packed_and_compact_form_mean_the_same() -> None:
    """A receiver understands both; the sender packs where it costs no bytes."""
    entries: dict[int, Entries] = {1: ((900_000, 4), (880_000, 2)), 3: ((950_000, 0),)}
    stamp = 1_000_000
    waits = ((1, 900_000), (2, 999_999))
    packing = Layout(OrderingSettings(members=6, lifetime_ns=250_000, tick_ns=1))
    compact = Layout(OrderingSettings(members=6, lifetime_ns=250_000, tick_ns=1_000))
    assert packing.is_packed
    assert not compact.is_packed
    codec = JangDeltaCodec(ME, OrderingSettings(members=6))
    head = encode_head(stamp, 5, destinations([0]))
    read = [
        codec.decode(
            head
            + layout.encode_entries(stamp, entries)
            + join_waits(*layout.encode_waits(stamp, waits))
        )
        for layout in (packing, compact)
    ]
    for pdu in read:
        assert (pdu.entries, pdu.waits) == (entries, waits)


def test_the_packed_form_is_for_small_groups_only() -> None:
    """In a larger one, a frame could hold thousands of entries of one sender."""
    codec = JangDeltaCodec(ME, OrderingSettings(members=17, lifetime_ns=250_000))
    control = bytes((1 << 1 | 1, 1, 1, 0, 0, 2, 0, 0))
    with pytest.raises(RemoteProtocolError, match="1 packed entries in a group of 17"):
        codec.decode(encode_head(100, 0, destinations([0])) + control)


def test_ages_too_old_to_pack_are_sent_in_the_compact_form() -> None:
    layout = Layout(OrderingSettings(members=6, lifetime_ns=250_000, tick_ns=1))
    old: dict[int, Entries] = {1: ((5, 2),)}
    assert layout.encode_entries(1 << 24, old)[0] & 1
    assert not layout.encode_entries((1 << 24) + 5, old)[0] & 1
    assert layout.encode_waits(1 << 24, [(1, 5)])[1] == 1
    assert layout.encode_waits((1 << 24) + 5, [(1, 5)])[1] == 0


def test_printed_layout_counts_four_bytes_an_integer() -> None:
    """8 + Σ (12 + 4·|S|) + 8·|DC|."""
    entries: dict[int, Entries] = {1: ((9, 0b110), (8, 0)), 2: ((7, 1),)}
    settings = OrderingSettings(members=4)
    empty = JangDeltaPdu(0, 10, destinations([0]), b"", b"", {}, ())
    assert printed_bytes(empty, settings) == 8
    pdu = JangDeltaPdu(0, 10, destinations([0]), b"", b"", entries, ((1, 9), (2, 7)))
    assert printed_bytes(pdu, settings) == 8 + (12 + 8) + 12 + (12 + 4) + 16


@pytest.mark.parametrize("size", [0, FRONT_BYTES, FRONT_BYTES + 1, 60_000])
def test_large_payloads_come_back_from_a_receive_buffer(size: int) -> None:
    payload = bytes(range(256)) * (size // 256) + bytes(size % 256)
    head = encode_head(7, 3, destinations([1]))
    settings = OrderingSettings(members=2)
    control = head + encode_varint(4) + encode_varint(2) + encode_varint(incarnation_of(1))
    pdus = (
        (UnorderedCodec(ME, settings), UnorderedPdu(3, 7, destinations([1]), head, payload)),
        (
            FifoCodec(ME, settings),
            FifoPdu(3, 7, destinations([1]), 4, 5, incarnation_of(1), control, payload),
        ),
        (
            JangDeltaCodec(ME, settings),
            JangDeltaPdu(3, 7, destinations([1]), head + b"\0\0", payload, {}, ()),
        ),
    )
    for codec, pdu in pdus:
        assert codec.decode(memoryview(codec.encode(pdu))) == pdu  # type: ignore[attr-defined]


def test_control_information_longer_than_the_front_is_parsed_from_the_whole() -> None:
    settings = OrderingSettings(members=1_500, lifetime_ns=None, tick_ns=1)
    stamp = 1 << 40
    entries: dict[int, Entries] = {
        sender: ((stamp - 1 - sender, 1 << 1_400),) for sender in range(1_500)
    }
    control = (
        encode_head(stamp, 0, destinations([0]))
        + Layout(settings).encode_entries(stamp, entries)
        + b"\0"
    )
    assert len(control) > FRONT_BYTES
    pdu = JangDeltaPdu(0, stamp, destinations([0]), control, b"payload", entries, ())
    codec = JangDeltaCodec(ME, settings)
    assert codec.decode(memoryview(codec.encode(pdu))) == pdu
