"""The messages on the wire: round trips, what is refused, what they are estimated to take."""

import zlib
from random import Random
from typing import Any

import msgspec
import pytest
from drawn_messages import KINDS, of_kind
from hypothesis import given
from hypothesis import strategies as st

from orderwire.discovery.messages import (
    COUNT_MAX,
    DEFLATED,
    HOPS_MAX,
    MESSAGE_BYTES_MAX,
    Carried,
    Contact,
    DeltaChain,
    Heartbeat,
    Join,
    JoinAck,
    MapRecord,
    Maps,
    Message,
    NotMe,
    Row,
    Status,
    Sync,
    SyncReply,
    decode,
    encode,
    held,
    nominal_bytes,
)
from orderwire.discovery.ring import UP
from orderwire.kernel import RemoteProtocolError

_CHANCE = Random(1)
REAL_ROWS = tuple(
    Row(
        at * 4,
        (1_764_337_000 + at % 3) << 32 | _CHANCE.getrandbits(30),
        _CHANCE.randrange(1, 5),
        _CHANCE.randrange(3_000, 9_000),
        _CHANCE.randrange(6_000),
        f"192.168.10.{_CHANCE.randrange(256)}:{_CHANCE.randrange(32_768, 61_000)}",
        Status.LIVE,
        True,
    )
    for at in range(64)
)
ROW = Row(5, 1 << 40, 3, 4, 5, "127.0.0.1:7400", Status.LIVE, True)


@given(data=st.data(), kind=st.sampled_from(KINDS))
def test_every_message_comes_back_as_it_went(data: st.DataObject, kind: type[Message]) -> None:
    message = data.draw(of_kind(kind, 64))
    encoded = encode(message)
    assert decode(encoded) == message
    assert decode(bytearray(encoded)) == decode(memoryview(encoded)) == message
    assert nominal_bytes(message) > 0


@given(
    data=st.data(),
    kind=st.sampled_from(KINDS),
    cut=st.integers(0, 40),
    flips=st.lists(st.tuples(st.integers(0, 200), st.integers(1, 255)), max_size=4),
)
def test_spoilt_bytes_are_refused_and_nothing_else_is_raised(
    data: st.DataObject, kind: type[Message], cut: int, flips: list[tuple[int, int]]
) -> None:
    spoilt = bytearray(encode(data.draw(of_kind(kind, 64))))
    for at, mask in flips:
        spoilt[at % len(spoilt)] ^= mask
    for each in (bytes(spoilt), bytes(spoilt[: len(spoilt) - cut]), bytes(spoilt) + b"\x00" * cut):
        try:
            found = decode(each)
        except RemoteProtocolError:
            continue
        assert decode(encode(found)) == found


@given(st.binary(max_size=64))
def test_bytes_of_chance_raise_nothing_else(data: bytes) -> None:
    try:
        decode(data)
    except RemoteProtocolError:
        return


@pytest.mark.parametrize(
    "message",
    [
        Heartbeat(0, 0, ROW, 1, HOPS_MAX + 1, 0, UP),
        Heartbeat(0, 0, ROW, 1, 1, 0, 2),
        Heartbeat(0, 0, ROW, COUNT_MAX + 1, 1, 0, UP),
        Heartbeat(0, -1, ROW, 1, 1, 0, UP),
        Sync(0, 0, (msgspec.structs.replace(ROW, inc=COUNT_MAX + 1),)),
        Sync(0, 0, (msgspec.structs.replace(ROW, addr="x" * 256),)),
    ],
)
def test_values_that_would_outgrow_their_fields_are_refused(message: Message) -> None:
    with pytest.raises(RemoteProtocolError, match="no discovery message"):
        decode(encode(message))


@pytest.mark.parametrize("raw", [[99, 1], [], {}, 5, None, [26, 1], [26, 1, "x"]])
def test_what_is_no_message_is_refused(raw: Any) -> None:
    with pytest.raises(RemoteProtocolError):
        decode(msgspec.msgpack.encode(raw))


def test_a_message_that_is_too_long_is_not_parsed() -> None:
    with pytest.raises(RemoteProtocolError, match="bytes"):
        decode(bytes(MESSAGE_BYTES_MAX + 1))


def test_ids_of_sixty_four_bits_are_carried() -> None:
    message = NotMe((1 << 64) - 1, 0)
    assert decode(encode(message)) == message


def test_the_estimate_is_near_the_real_length() -> None:
    """Deadlines for acknowledgements are made of it: the MAPs count in full."""
    record = MapRecord(3, bytes(5_000), (bytes(300),))
    contacts = tuple(Contact(at, "127.0.0.1:7400", 1 << 40) for at in range(60))
    join = Join(1, 2, ROW, 1, 1, 9, UP, False, record, (), contacts)
    ack = JoinAck(1, 2, 5, 1 << 40, 1, UP, tuple(Carried(ROW, record) for _ in range(10)))
    for message in (join, ack, Sync(1, 2, REAL_ROWS)):
        assert 0.5 <= nominal_bytes(message) / len(encode(message)) <= 1.5


def test_a_header_of_anti_entropy_is_small() -> None:
    """[R15] 64 of them in a kilobyte and a half, drawn ports and start times included."""
    plain = len(msgspec.msgpack.encode(REAL_ROWS))
    assert plain >= 64 * 40
    assert len(encode(Sync(1, 2, REAL_ROWS))) <= 64 * 24
    assert len(encode(SyncReply(1, 2, REAL_ROWS, ()))) <= 64 * 24


def test_short_and_lengthening_lists_are_not_deflated() -> None:
    assert encode(Sync(1, 2, REAL_ROWS[:8]))[:1] != DEFLATED
    assert encode(Sync(1, 2, REAL_ROWS))[:1] == DEFLATED
    same = Sync(1, 2, (ROW,) * 10_000)  # More than 64 times as long: no peer would take it.
    assert encode(same)[:1] != DEFLATED
    assert decode(encode(same)) == same


def test_what_is_much_longer_when_inflated_is_refused() -> None:
    """Whoever sends kilobytes costs no megabytes."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    bomb = DEFLATED + packer.compress(bytes(15 << 20)) + packer.flush()
    with pytest.raises(RemoteProtocolError, match="64 times"):
        decode(bomb)
    good = encode(Sync(1, 2, REAL_ROWS))
    for spoilt in (good[:-1], good + b"x", DEFLATED, DEFLATED + b"\xff" * 600):
        with pytest.raises(RemoteProtocolError, match="message"):
            decode(spoilt)


def test_every_header_in_a_message_that_was_kept_is_older() -> None:
    """[D11]"""
    row = Row(1, 2, 3, 4, 5, "a")
    record = MapRecord(3, b"m")
    older = Row(1, 2, 3, 4, 8, "a")
    for message in (
        Heartbeat(7, 8, row, 1, 1, 9, UP),
        Sync(7, 8, (row, row)),
        SyncReply(7, 8, (row,), ()),
        JoinAck(7, 8, 9, 10, 1, UP, (Carried(row, record),)),
        Maps(7, 8, (Carried(row, record),), (DeltaChain(row, 1, (b"d",)),)),
    ):
        kept = held(message, 2_000_001)
        assert encode(kept) == encode(message).replace(encode_row(row), encode_row(older))
    bare = JoinAck(7, 8, 9, 10, 1, UP, None)
    assert held(bare, 2_000_001) == bare


def encode_row(row: Row) -> bytes:
    return msgspec.msgpack.encode(row)
