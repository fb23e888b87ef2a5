"""The link's datagrams: what is packed is parsed; anything else is refused, never a crash."""

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orderwire.aio import frames
from orderwire.aio.frames import COUNT_MAX, HEAD, HEAD_BYTES, RANGES_MAX, Kind, Range, Report, Way
from orderwire.kernel import RemoteProtocolError

WAY = Way(1, 2, 3, 4)


@given(pdus=st.lists(st.binary(max_size=300), max_size=40))
def test_pdus_survive(pdus: list[bytes]) -> None:
    data = frames.data_datagram(Way(3, 77, 88, 5), 1_000, 2_000, pdus)
    kind, flags, source, channel, count, *sessions, first, last = HEAD.unpack_from(data)
    assert (kind, source, channel, first, last) == (Kind.DATA, 3, 5, 1_000, 2_000)
    assert sessions == [77, 88]
    again = frames.data_datagram(Way(3, 77, 99, 5), 1_000, 2_000, pdus)
    assert frames.readdressed(data, 99) == again
    assert frames.split(memoryview(data), HEAD_BYTES, count, flags) == pdus
    padded = memoryview(data + bytes(17))
    assert frames.split(padded, HEAD_BYTES, count, flags) == pdus


def test_a_long_pdu_travels_alone() -> None:
    pdu = bytes(70_000)
    data = frames.data_datagram(Way(0, 1, 2, 0), 9, 0, [pdu])
    _, flags, _, _, count, *_ = HEAD.unpack_from(data)
    assert frames.split(memoryview(data), HEAD_BYTES, count, flags) == [pdu]
    with pytest.raises(RemoteProtocolError, match="expected 1"):
        frames.split(memoryview(data), HEAD_BYTES, 2, flags)


@given(pdus=st.lists(st.binary(max_size=30), min_size=1), members=st.sets(st.integers(0, 9)))
def test_everyone_finds_his_number_in_a_multicast(pdus: list[bytes], members: set[int]) -> None:
    firsts = [(member, 50 + member, 100 + member) for member in sorted(members)]
    data = memoryview(frames.multicast_datagram(Way(1, 2, 0, 3), firsts, 0, pdus))
    _, flags, _, _, count, _, _, entries, _ = HEAD.unpack_from(data)
    for me in range(10):
        first, at = frames.multicast_first(data, entries, me, 50 + me)
        assert first == (100 + me if me in members else None)
        assert frames.multicast_first(data, entries, me, 51 + me) == (None, at)
        assert frames.split(data, at, count, flags) == pdus
    with pytest.raises(RemoteProtocolError, match="table"):
        frames.multicast_first(data, 60_000, 1, 51)


def test_a_report_survives_and_the_rest_is_left_for_the_next() -> None:
    missing = [Range(10 * index, 10 * index + 3, index % 2) for index in range(RANGES_MAX + 5)]
    data = memoryview(frames.report_datagram(WAY, Report(0, 900, 4_096, missing)))
    _, _, _, _, count, _, _, settled, seen = HEAD.unpack_from(data)
    report = frames.parse_report(data, count, settled, seen)
    assert report == Report(0, 10 * RANGES_MAX, 4_096, missing[:RANGES_MAX])


@pytest.mark.parametrize(
    "missing",
    [
        [Range(5, 4)],
        [Range(0, 0)],
        [Range(5, 100)],
        [Range(5, 6), Range(6, 7)],
        [Range(8, 9), Range(5, 6)],
    ],
)
def test_a_report_with_impossible_ranges_is_refused(missing: list[Range]) -> None:
    data = memoryview(frames.report_datagram(WAY, Report(4, 100, 0, missing)))
    with pytest.raises(RemoteProtocolError, match="missing"):
        frames.parse_report(data, len(missing), 4, 100)


def test_gone_survives() -> None:
    ranges = [Range(1, 2), Range(4, 4)]
    data = memoryview(frames.gone_datagram(WAY, ranges))
    assert frames.parse_gone(data, 2) == ranges
    backwards = memoryview(frames.gone_datagram(WAY, [Range(2, 1)]))
    with pytest.raises(RemoteProtocolError, match="ends before"):
        frames.parse_gone(backwards, 1)


@given(body=st.binary(max_size=200), count=st.integers(0, 0xFFFF), flags=st.integers(0, 255))
@example(body=b"", count=COUNT_MAX + 1, flags=0)
def test_garbage_is_refused_or_parsed(body: bytes, count: int, flags: int) -> None:
    data = memoryview(bytes(HEAD_BYTES) + body)
    for parse in (
        lambda: frames.split(data, HEAD_BYTES, count, flags),
        lambda: frames.parse_report(data, count, 0, 50),
        lambda: frames.parse_gone(data, count),
        lambda: frames.multicast_first(data, count, 3, 0),
    ):
        try:
            parse()
        except (RemoteProtocolError, struct.error):
            continue
