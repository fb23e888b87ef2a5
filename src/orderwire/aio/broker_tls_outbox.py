"""What a TLS connection still has to send: as `Outbox`, but over the transport, which encrypts."""

import errno
from asyncio import AbstractEventLoop, TimerHandle, Transport
from collections import deque
from collections.abc import Callable

from orderwire.aio.broker_outbox import FileCut
from orderwire.broker.wire.parts import FileSlice, Part

_AHEAD_BYTES = 256 << 10
"""What the transport may hold, encrypted; files are read no further ahead."""
_LOOK_S = 0.005
"""How often a transport that holds less is asked whether it has sent that."""


class TlsOutbox:
    """An unbounded queue whose owner watches `backlog_bytes`, and passes on `resume`."""

    def __init__(
        self,
        loop: AbstractEventLoop,
        transport: Transport,
        *,
        sent: Callable[[], None],
        broken: Callable[[OSError], None],
    ) -> None:
        """`sent` follows when everything has left, and when a full transport has emptied."""
        self._loop = loop
        self._transport = transport
        self._sent = sent
        self._broken = broken
        self._queue: deque[Part] = deque()
        self._queued_bytes = 0
        self._is_closed = False
        self._look: TimerHandle | None = None
        transport.set_write_buffer_limits(high=_AHEAD_BYTES, low=0)

    @property
    def backlog_bytes(self) -> int:
        """Bytes not yet taken by the kernel; file slices count but occupy no memory."""
        if self._is_closed:
            return 0
        return self._queued_bytes + self._ahead_bytes()

    def send(self, parts: list[Part]) -> None:
        """Queue these parts and send what the transport takes now."""
        if self._is_closed:
            return
        for part in parts:
            if len(part):
                self._queue.append(part)
                self._queued_bytes += len(part)
        self._pump()

    def resume(self) -> None:
        """The transport has emptied: asyncio's `resume_writing`."""
        self._pump()
        if not self._is_closed:
            self._sent()

    def close(self) -> None:
        """Drop what is left."""
        self._is_closed = True
        if self._look is not None:
            self._look.cancel()
            self._look = None
        self._queue.clear()
        self._queued_bytes = 0

    def _ahead_bytes(self) -> int:
        """What the transport has and has not sent."""
        try:
            return self._transport.get_write_buffer_size()
        except AttributeError:  # asyncio's of 3.11 forgets its connection when it is closed twice
            return 0

    def _pump(self) -> None:
        queue, transport = self._queue, self._transport
        while queue and self._ahead_bytes() < _AHEAD_BYTES:
            part = queue.popleft()
            if isinstance(part, FileSlice):
                piece = part
                if part.length > _AHEAD_BYTES:
                    piece = FileSlice(part.file, part.position, _AHEAD_BYTES, part.owner)
                    rest = part.length - _AHEAD_BYTES
                    at = part.position + _AHEAD_BYTES
                    queue.appendleft(FileSlice(part.file, at, rest, part.owner))
                try:
                    data = piece.read()
                except OSError as error:
                    self._fail(error)
                    return
                if len(data) != piece.length:
                    self._fail(FileCut(errno.EIO, f"{len(data)} bytes left of {piece.length}"))
                    return
            else:
                data = part if isinstance(part, bytes) else bytes(part)
            self._queued_bytes -= len(data)
            if transport.is_closing():  # uvloop would raise; we are about to be told
                return
            transport.write(data)
            if self._is_closed:  # writing found the connection broken
                return
        if self._look is None and (queue or self._ahead_bytes()):
            self._look = self._loop.call_later(_LOOK_S, self._again)

    def _again(self) -> None:
        self._look = None
        self._pump()
        if not self._is_closed and self._look is None:
            self._sent()

    def _fail(self, error: OSError) -> None:
        self.close()
        self._broken(error)
