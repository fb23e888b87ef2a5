"""Frames of a stream: fed whole, byte by byte and with a tail; broken ones end it."""

import asyncio
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderwire.aio.stream import FRAME_BYTES_MAX, FrameKind, Hello, Stream
from orderwire.kernel import RemoteProtocolError


class Transport:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.waiting = 0
        self.aborted = self.closed = False

    def is_closing(self) -> bool:
        return self.aborted or self.closed

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def write(self, data: bytes) -> None:
        self.written += data

    def abort(self) -> None:
        self.aborted = True

    def close(self) -> None:
        self.closed = True

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 1)


class Owner:
    def __init__(self) -> None:
        self.frames: list[tuple[int, bytes]] = []
        self.batches = 0
        self.closed: list[Exception | None] = []

    def stream_opened(self, stream: Stream) -> None:
        pass

    def stream_frame(self, stream: Stream, kind: int, content: memoryview) -> None:
        if kind == 99:
            raise RemoteProtocolError("kind 99")
        self.frames.append((kind, bytes(content)))

    def stream_batch(self, stream: Stream) -> None:
        self.batches += 1

    def stream_closed(self, stream: Stream, error: Exception | None) -> None:
        self.closed.append(error)


def stream() -> tuple[Stream, Owner, Transport]:
    owner, transport = Owner(), Transport()
    made = Stream(owner)
    made.connection_made(cast(asyncio.BaseTransport, transport))
    return made, owner, transport


def feed(to: Stream, data: bytes, step: int) -> None:
    """Give it so many bytes at a time, as far as it has room."""
    at = 0
    while at < len(data):
        buffer = to.get_buffer(-1)
        size = min(step, len(data) - at, len(buffer))
        assert size > 0, "no room to read into"
        buffer[:size] = data[at : at + size]
        to.buffer_updated(size)
        at += size


@given(
    contents=st.lists(st.binary(max_size=50), max_size=20),
    step=st.sampled_from([1, 2, 7, 1_000_000]),
    tail=st.binary(max_size=4),
)
def test_frames_survive_however_they_are_cut(contents: list[bytes], step: int, tail: bytes) -> None:
    sender, _, transport = stream()
    for content in contents:
        assert sender.send(FrameKind.CONTROL, content[:3], content[3:])
    receiver, owner, _ = stream()
    feed(receiver, bytes(transport.written) + tail, step)
    assert owner.frames == [(FrameKind.CONTROL, content) for content in contents]


def test_a_frame_larger_than_the_buffer_makes_it_grow() -> None:
    sender, _, transport = stream()
    content = bytes(range(256)) * 8_192
    sender.send(FrameKind.DATA, content)
    sender.send(FrameKind.CONTROL, b"after")
    receiver, owner, _ = stream()
    feed(receiver, bytes(transport.written), 100_000)
    assert owner.frames == [(FrameKind.DATA, content), (FrameKind.CONTROL, b"after")]


@pytest.mark.parametrize(
    "data",
    [
        bytes(5),
        (FRAME_BYTES_MAX + 1).to_bytes(4, "little") + b"\x01",
        b"\xff" * 5,
        b"\x01\x00\x00\x00\x63",
    ],
)
def test_a_broken_frame_ends_the_stream(data: bytes) -> None:
    receiver, owner, transport = stream()
    feed(receiver, data, 1_000)
    assert transport.aborted
    receiver.connection_lost(None)
    assert isinstance(owner.closed[0], RemoteProtocolError)
    assert owner.frames == []


def test_a_peer_that_does_not_read_is_cut_off() -> None:
    owner, transport = Owner(), Transport()
    sender = Stream(owner, buffered_bytes_max=1_000)
    sender.connection_made(cast(asyncio.BaseTransport, transport))
    transport.waiting = 900
    assert sender.send(FrameKind.CONTROL, bytes(50))
    assert not sender.send(FrameKind.CONTROL, bytes(101))
    assert transport.aborted
    assert not sender.send(FrameKind.CONTROL, b"")


def test_hello_survives_and_anything_else_is_refused() -> None:
    hello = Hello(7, 1 << 60, 1 << 59)
    assert Hello.decode(memoryview(hello.encode())) == hello
    for bad in (b"", b"OWS1" + hello.encode()[4:], hello.encode() + b"x", Hello(7, 0).encode()):
        with pytest.raises(RemoteProtocolError, match="hello"):
            Hello.decode(memoryview(bad))
