"""One connection between two brokers: frames in and out, bounded both ways."""

import asyncio
import socket
from asyncio import BaseTransport, BufferedProtocol, Transport
from collections.abc import Callable
from typing import cast

from orderwire.aio.cluster_frames import (
    FRAME_BYTES_MAX,
    HELLO_BYTES_MAX,
    LENGTH_BYTES,
    FrameKind,
    Hello,
    hello_frame,
    plain_frame,
    read_hello,
)
from orderwire.kernel.errors import RemoteProtocolError

BACKLOG_BYTES_MAX = 256 << 20
"""Bytes that wait for a peer that does not read; more break the connection."""
HELLO_WAIT_S = 5.0
"""How long a connection may take to say who it is."""
PING_S = 1.0
SILENCE_S = 10.0
"""A connection that brings nothing for so long is closed: a broker sends pings more often."""
_BUFFER_BYTES = 256 << 10
_GROW_AT_ONCE_BYTES = 4 << 20
"""A longer frame gets its buffer as its bytes come."""
_JOIN_BYTES_MAX = 128 << 10


class Link(BufferedProtocol):
    """Says hello, takes frames, sends frames.

    `opened(link)` is called when there is a connection, and may close it; `greeted(link, hello)`
    follows the peer's hello and may refuse it by RemoteProtocolError; `received(link, kind,
    content)` each later frame, its content only lent; `settled()` each read; `ended(link, why)` the
    end, once.
    """

    def __init__(
        self,
        *,
        hello: Hello | None,
        greeted: Callable[["Link", Hello], None],
        received: Callable[["Link", int, memoryview], None],
        settled: Callable[[], None],
        ended: Callable[["Link", str], None],
        opened: Callable[["Link"], None] = lambda link: None,
    ) -> None:
        """`hello` is said at once by who dials; who is called answers with `greet`."""
        self.hello: Hello | None = None
        """What the peer said of itself."""
        self.host = ""
        """Where it is."""
        self.greeted_or_ended = asyncio.Event()
        """Set when the peer has said hello, or will not any more."""
        self._mine = hello
        self._opened = opened
        self._greeted = greeted
        self._received = received
        self._settled = settled
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._transport: Transport | None = None
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._head = 0
        self._tail = 0
        self._out: list[bytes | bytearray] = []
        self._out_bytes = 0
        self._why = "closed by the other side"
        self._heard = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def dialled(self) -> bool:
        """Whether we called the peer."""
        return self._mine is not None

    # -- asyncio's calls --------------------------------------------------------------------

    def connection_made(self, transport: BaseTransport) -> None:
        """Say hello if we dialled."""
        self._transport = cast(Transport, transport)
        peer = self._transport.get_extra_info("peername") or ("",)
        self.host = str(peer[0])
        connected = self._transport.get_extra_info("socket")
        if connected is not None:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._opened(self)
        if self._mine is not None:
            self._write(hello_frame(self._mine))
        self._timer = self._loop.call_later(HELLO_WAIT_S, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell that it is over."""
        if self._timer is not None:
            self._timer.cancel()
        self._transport = None
        self.greeted_or_ended.set()
        if exc is not None and self._why == "closed by the other side":
            self._why = str(exc) or type(exc).__name__
        self._ended(self, self._why)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go."""
        return self._buffer[self._tail :]

    def buffer_updated(self, nbytes: int) -> None:
        """Take every whole frame."""
        self._tail += nbytes
        self._heard = self._loop.time()
        try:
            self._take_frames()
        except RemoteProtocolError as error:
            self.close(f"malformed: {error}")
        self._settled()

    def eof_received(self) -> bool:
        """The peer sends no more: it is over."""
        return False

    def _take_frames(self) -> None:
        need = LENGTH_BYTES + 1
        while self._transport is not None:
            have = self._tail - self._head
            need = LENGTH_BYTES + 1
            if have < need:
                break
            start = self._head + LENGTH_BYTES
            size = int.from_bytes(self._buffer[self._head : start], "little")
            limit = FRAME_BYTES_MAX if self.hello is not None else HELLO_BYTES_MAX
            if not 1 <= size <= limit:
                raise RemoteProtocolError(f"a frame of {size} bytes; expected 1 … {limit}")
            need = LENGTH_BYTES + size
            if have < need:
                break
            kind = self._buffer[start]
            content = self._buffer[start + 1 : start + size]
            self._head = start + size
            if self.hello is None:
                if kind != FrameKind.HELLO:
                    raise RemoteProtocolError(f"the first frame is of kind {kind}, not a hello")
                self.hello = read_hello(content)
                self._greeted(self, self.hello)
                self.greeted_or_ended.set()
                self._look()
            elif kind != FrameKind.PING:
                self._received(self, kind, content)
        self._make_room(need)

    def _make_room(self, need: int) -> None:
        have = self._tail - self._head
        if have == 0:
            self._head = self._tail = 0
            if len(self._buffer) > _GROW_AT_ONCE_BYTES:
                self._buffer = memoryview(bytearray(_BUFFER_BYTES))
            return
        old, size = self._buffer, len(self._buffer)
        if self._head + need <= size:
            return
        if need > size and (have == size or size < _GROW_AT_ONCE_BYTES):
            grown = min(need, max(_GROW_AT_ONCE_BYTES, 2 * size))
            self._buffer = memoryview(bytearray(max(grown, size)))
        self._buffer[:have] = bytes(old[self._head : self._tail])
        self._head, self._tail = 0, have

    # -- the owner's calls ------------------------------------------------------------------

    def greet(self, hello: Hello) -> None:
        """Answer a hello."""
        self._write(hello_frame(hello))

    def send(self, frame: bytes | bytearray) -> None:
        """Queue a frame; `flush` sends what is queued.  Too much that waits breaks the link."""
        if self._transport is None:
            return
        self._out.append(frame)
        self._out_bytes += len(frame)
        if self._out_bytes + self._transport.get_write_buffer_size() > BACKLOG_BYTES_MAX:
            self.close(f"{self._out_bytes} bytes and more wait for a peer that does not read")

    def flush(self) -> None:
        """Send what is queued."""
        if not self._out:
            return
        out, self._out = self._out, []
        size, self._out_bytes = self._out_bytes, 0
        if len(out) > 1 and size <= _JOIN_BYTES_MAX:
            self._write(b"".join(out))
        else:
            for frame in out:
                self._write(frame)

    def _write(self, data: bytes | bytearray) -> None:
        """Send, unless the connection has ended and we have yet to be told: uvloop would raise."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self, why: str) -> None:
        """End it at once."""
        if self._transport is not None:
            self._why = why
            self._out.clear()
            self._transport.abort()

    def _look(self) -> None:
        """See that the peer speaks, and show that we live."""
        if self._transport is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        if self.hello is None:
            self.close("it has not said who it is")
            return
        if self._loop.time() - self._heard > SILENCE_S:
            self.close(f"nothing has come for {SILENCE_S:g} s")
            return
        self._write(plain_frame(FrameKind.PING))
        self._timer = self._loop.call_later(PING_S, self._look)
