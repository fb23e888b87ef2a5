"""Frames of a discovery stream: fed whole, in pieces and broken; what waits, and what overtakes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderwire.aio.discovery_frames import (
    CONTENT_BYTES_MAX,
    HELLO_BYTES_MAX,
    VERSION,
    FrameKind,
    FrameReader,
    Hello,
    Outgoing,
    frame,
)
from orderwire.kernel import RemoteProtocolError

HELLO = Hello(VERSION, "domain", "127.0.0.1:7400", "127.0.0.1:7401", (1 << 64) - 1, 3)
FIRST = frame(FrameKind.HELLO, HELLO.encode())
LIMIT = 1 << 20


def read(data: bytes, step: int, limit: int = LIMIT) -> list[tuple[FrameKind, bytes]]:
    reader = FrameReader(limit)
    found = []
    for at in range(0, len(data), step):
        found += [(kind, bytes(content)) for kind, content in reader.feed(data[at : at + step])]
        assert reader.held_bytes <= len(data)
    return found


def sent(outgoing: Outgoing) -> bytes:
    return b"".join(outgoing.take(1 << 40))


@given(
    sizes=st.lists(st.sampled_from([1, 100, 65_535, 65_536, 200_000]), max_size=5),
    step=st.sampled_from([1_000, 65_538, 1 << 30]),
)
def test_messages_come_whole_and_in_order(sizes: list[int], step: int) -> None:
    outgoing = Outgoing()
    expected = [bytes([number]) * size for number, size in enumerate(sizes)]
    for message in expected:
        outgoing.add(message)
    assert outgoing.waiting_bytes == sum(sizes)
    data = FIRST + sent(outgoing) + frame(FrameKind.BYE)
    assert (len(outgoing), outgoing.waiting_bytes) == (0, 0)
    kinds = [FrameKind.HELLO, *[FrameKind.MESSAGE] * len(sizes), FrameKind.BYE]
    assert read(data, step) == list(zip(kinds, [HELLO.encode(), *expected, b""], strict=True))


def test_byte_by_byte() -> None:
    data = FIRST + frame(FrameKind.CHOSEN) + frame(FrameKind.MESSAGE, b"m")
    assert read(data, 1) == read(data, len(data))
    assert Hello.decode(read(data, 1)[0][1]) == HELLO


def test_an_urgent_message_goes_between_the_frames_of_a_long_one() -> None:
    outgoing = Outgoing()
    long = bytes(200_000)
    outgoing.add(long)
    outgoing.add(b"usual")
    data = FIRST + b"".join(outgoing.take(1))
    outgoing.add(b"urgent", urgent=True)
    data += sent(outgoing)
    assert [content for _, content in read(data, 5_000)[1:]] == [b"urgent", long, b"usual"]


def test_usual_messages_keep_their_order_behind_a_long_one() -> None:
    outgoing = Outgoing()
    outgoing.add(b"a")
    outgoing.add(bytes(70_000))
    outgoing.add(b"b")
    assert [len(content) for _, content in read(FIRST + sent(outgoing), 99)[1:]] == [1, 70_000, 1]


def test_a_long_urgent_message_is_a_usual_one() -> None:
    outgoing = Outgoing()
    outgoing.add(b"first")
    outgoing.add(bytes(CONTENT_BYTES_MAX + 1), urgent=True)
    assert read(FIRST + sent(outgoing), 99)[1][1] == b"first"


def test_the_oldest_is_dropped_but_nothing_that_is_under_way() -> None:
    outgoing = Outgoing()
    for message in (bytes(70_000), b"a", b"b"):
        outgoing.add(message)
    begun = b"".join(outgoing.take(1))
    assert outgoing.drop_oldest()
    assert outgoing.waiting_bytes == 70_000 - (CONTENT_BYTES_MAX - 4) + 1
    data = FIRST + begun + sent(outgoing)
    assert [len(content) for _, content in read(data, 999)[1:]] == [70_000, 1]
    assert not outgoing.drop_oldest()


def test_a_long_message_begins_again_on_another_connection() -> None:
    outgoing = Outgoing()
    outgoing.add(bytes(200_000))
    outgoing.take(1)
    outgoing.begin_again()
    assert outgoing.waiting_bytes == 200_000
    assert [len(content) for _, content in read(FIRST + sent(outgoing), 999)[1:]] == [200_000]


def test_what_is_cleared_is_counted() -> None:
    outgoing = Outgoing()
    outgoing.add(bytes(70_000))
    outgoing.take(1)
    outgoing.add(b"m")
    outgoing.add(b"u", urgent=True)
    assert outgoing.clear() == 3
    assert (len(outgoing), outgoing.waiting_bytes) == (0, 0)


def long_frames(total: int, *sizes: int) -> bytes:
    first, *others = sizes
    frames = [frame(FrameKind.FIRST, total.to_bytes(4, "little") + bytes(first))]
    return b"".join(frames + [frame(FrameKind.NEXT, bytes(size)) for size in others])


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (frame(FrameKind.MESSAGE, b"m"), "first frame"),
        (frame(FrameKind.HELLO, bytes(HELLO_BYTES_MAX + 1)), "first frame"),
        (b"\xff\xff\xff", "first frame"),
        (b"GET / HTTP/1.1\r\n\r\n", "first frame"),
        (FIRST + b"\x00\x00\x07", "kind 0x7"),
        (FIRST + frame(FrameKind.CHOSEN, b"x"), "expected 0"),
        (FIRST + frame(FrameKind.NEXT, b"x"), "never began"),
        (FIRST + frame(FrameKind.FIRST, b"\x09\x00\x00\x00"), "begins with 4 bytes"),
        (FIRST + long_frames(LIMIT + 1, 10), "are taken"),
        (FIRST + long_frames(10, 10), "are taken"),
        (FIRST + long_frames(30, 10) + long_frames(30, 10), "inside another"),
        (FIRST + long_frames(30, 10, 0), "0 bytes make 10"),
        (FIRST + long_frames(30, 10, 21), "make 31"),
    ],
)
def test_what_no_correct_peer_sends_ends_the_stream(data: bytes, why: str) -> None:
    for step in (1, len(data)):
        with pytest.raises(RemoteProtocolError, match=why):
            read(data, step)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"OWD0" + HELLO.encode()[4:],
        b"OWD1",
        b"OWD1\xc1",
        HELLO.encode()[:-1],
        HELLO.encode() + b"x",
        Hello(VERSION + 1, "d", "a", "b", 1, 1).encode(),
        Hello(VERSION, "d" * 256, "a", "b", 1, 1).encode(),
    ],
)
def test_a_hello_that_is_none(content: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        Hello.decode(content)


@given(data=st.binary(max_size=200))
def test_random_bytes_never_get_past_the_first_frame(data: bytes) -> None:
    try:
        found = read(data, 7)
    except RemoteProtocolError:
        return
    assert all(kind is FrameKind.HELLO for kind, _ in found[:1])
