"""TCP streams between members: length-prefixed frames, bounded both ways.

A frame is a four-byte little-endian length, one byte that says what it is, and its content.
"""

import asyncio
import socket
import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Protocol, cast

import msgspec

from orderwire.kernel import ProcessId, RemoteProtocolError

FRAME_BYTES_MAX = 4 << 20
"""Largest frame on a stream, without its length."""

BUFFERED_BYTES_MAX = 32 << 20
"""Bytes that may wait for a peer that does not read; more breaks the connection."""

_PROBES = 3
_RECEIVE_BYTES = 256 << 10
_LENGTH = struct.Struct("<IB")
_HELLO = struct.Struct("<4sHQQ")
_MAGIC = b"OWS2"


class FrameKind(IntEnum):
    """What a frame of a stream carries."""

    HELLO = 0
    """The first frame of either side: who it is, in which incarnation."""
    CONTROL = 1
    DATA = 2
    """The same bytes as a datagram."""


class Hello(msgspec.Struct, frozen=True):
    """Who speaks."""

    source: int
    session: int
    """Incarnation of the speaker: grows with every start."""
    known: int = 0
    """The first incarnation of the addressee that the speaker has met; 0: none."""

    def encode(self) -> bytes:
        """Return the content of a HELLO frame."""
        return _HELLO.pack(_MAGIC, self.source, self.session, self.known)

    @classmethod
    def decode(cls, data: memoryview) -> "Hello":
        """Parse what `encode` wrote.  Raises RemoteProtocolError on anything else."""
        if len(data) != _HELLO.size:
            raise RemoteProtocolError(f"hello of {len(data)} bytes, expected {_HELLO.size}")
        magic, source, session, known = _HELLO.unpack(data)
        if magic != _MAGIC:
            raise RemoteProtocolError(f"hello begins with {magic!r}, expected {_MAGIC!r}")
        if not session:
            raise RemoteProtocolError(f"hello of process {source} without an incarnation")
        return cls(source, session, known)


def watch_silence(tcp: socket.socket, silence_s: float) -> None:
    """Let the kernel break this connection when the other host does not answer for so long.

    Probed when idle (keepalive), and when what was sent is not acknowledged (user timeout).
    """
    tcp.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    pause_s = max(1, round(silence_s / (1 + _PROBES)))
    for name, value in (
        ("TCP_KEEPIDLE", pause_s),
        ("TCP_KEEPINTVL", pause_s),
        ("TCP_KEEPCNT", _PROBES),
        ("TCP_USER_TIMEOUT", max(1, round(1_000 * silence_s))),
    ):
        if hasattr(socket, name):  # not on every system
            tcp.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class StreamOwner(Protocol):
    """What a stream tells the endpoint."""

    def stream_opened(self, stream: "Stream") -> None:
        """A connection stands; nothing has been read."""
        ...

    def stream_frame(self, stream: "Stream", kind: int, content: memoryview) -> None:
        """Take one whole frame; `content` is valid until this returns.

        Raises RemoteProtocolError, upon which the stream is closed.
        """
        ...

    def stream_batch(self, stream: "Stream") -> None:
        """All frames of one read have been handed over."""
        ...

    def stream_closed(self, stream: "Stream", error: Exception | None) -> None:
        """The connection is gone."""
        ...


class Stream(asyncio.BufferedProtocol):
    """One connection.  Reads into one buffer that grows to the largest frame and no further."""

    def __init__(
        self,
        owner: StreamOwner,
        *,
        dialled: ProcessId | None = None,
        silence_s: float | None = None,
        buffered_bytes_max: int = BUFFERED_BYTES_MAX,
    ) -> None:
        self._owner = owner
        self.dialled = dialled
        """Whom we called, when it was us."""
        self._buffer = bytearray(_RECEIVE_BYTES)
        self._view = memoryview(self._buffer)
        self._have = 0
        self._transport: asyncio.Transport | None = None
        self._silence_s = silence_s
        self._buffered_bytes_max = buffered_bytes_max
        self.paused = False
        """Whether the peer reads more slowly than we write."""
        self.on_resumed: Callable[[], None] | None = None
        self.peer: int | None = None
        """Whom the endpoint found at the other side, once it knows."""
        self.failed: RemoteProtocolError | None = None
        """What the peer did wrong, when that ended the stream."""
        self.bytes_sent = 0
        self.bytes_received = 0

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port of the other side."""
        if self._transport is None:
            return None
        name = self._transport.get_extra_info("peername")
        return (name[0], name[1]) if name else None

    @property
    def open(self) -> bool:
        """Whether frames can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def waiting_bytes(self) -> int:
        """Bytes written here that the kernel has not taken."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def send(self, kind: FrameKind, *parts: bytes | bytearray | memoryview) -> bool:
        """Send one frame; False when it cannot be sent any more.

        A peer that lets more than `buffered_bytes_max` pile up is cut off.
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            return False
        length = sum(map(len, parts))
        assert length < FRAME_BYTES_MAX, f"frame of {length} bytes, at most {FRAME_BYTES_MAX - 1}"
        if transport.get_write_buffer_size() + length > self._buffered_bytes_max:
            transport.abort()
            return False
        transport.write(b"".join((_LENGTH.pack(length + 1, kind), *parts)))
        self.bytes_sent += length + _LENGTH.size
        return True

    def close(self) -> None:
        """Close after what was written has gone out."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the transport and tell the owner."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        if self._silence_s is not None:
            watch_silence(transport.get_extra_info("socket"), self._silence_s)
        self._owner.stream_opened(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go."""
        return self._view[self._have :]

    def buffer_updated(self, nbytes: int) -> None:
        """Cut the buffer into frames and hand them over."""
        self.bytes_received += nbytes
        have = self._have + nbytes
        view = self._view
        at = 0
        try:
            while have - at >= 5:
                length, kind = _LENGTH.unpack_from(view, at)
                if not 0 < length <= FRAME_BYTES_MAX:
                    raise RemoteProtocolError(
                        f"frame of {length} bytes, expected 1 to {FRAME_BYTES_MAX}"
                    )
                if have - at < 4 + length:
                    self._reserve(4 + length)
                    view = self._view
                    break
                self._owner.stream_frame(self, kind, view[at + 5 : at + 4 + length])
                at += 4 + length
        except RemoteProtocolError as error:
            self.failed = error
            self.abort()
            return
        finally:
            self._owner.stream_batch(self)
        if at:
            self._buffer[: have - at] = self._buffer[at:have]
        self._have = have - at

    def _reserve(self, size: int) -> None:
        """Make room for a frame of this size."""
        if size > len(self._buffer):
            buffer = bytearray(size)
            buffer[: len(self._buffer)] = self._buffer
            self._buffer = buffer
            self._view = memoryview(buffer)

    def eof_received(self) -> bool:
        """Close when the peer does."""
        return False

    def pause_writing(self) -> None:
        """The kernel takes no more for now."""
        self.paused = True

    def resume_writing(self) -> None:
        """The kernel has room again."""
        self.paused = False
        if self.on_resumed is not None:
            self.on_resumed()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the owner."""
        self._transport = None
        self._owner.stream_closed(self, self.failed or exc)
