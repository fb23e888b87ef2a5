"""One connection between two addresses: its socket, its frames, what came of it so far."""

import asyncio
import socket
import sys
from collections.abc import Callable
from typing import Protocol, cast

from orderwire.aio.discovery_frames import FrameKind, FrameReader, Hello, frame
from orderwire.aio.stream import watch_silence
from orderwire.kernel import RemoteProtocolError

UNSENT_BYTES_MAX = 128 << 10
"""Bytes handed to the kernel, or waiting for it, that have not left: an urgent message waits for
them."""

_NOTSENT_LOWAT: int | None = getattr(
    socket, "TCP_NOTSENT_LOWAT", 25 if sys.platform == "linux" else None
)
"""Not in every Python's socket module, nor is …"""
_THIN_LINEAR_TIMEOUTS = 16 if sys.platform == "linux" else None
"""… TCP_THIN_LINEAR_TIMEOUTS: what is sent again while little is under way waits no longer each
time."""


class StreamOwner(Protocol):
    """What a stream tells."""

    def stream_opened(self, stream: "DiscoveryStream") -> None:
        """The connection stands; nothing has been read."""
        ...

    def stream_frame(
        self, stream: "DiscoveryStream", kind: FrameKind, content: bytes | bytearray
    ) -> None:
        """Take one frame, or a long message as one.

        Raises RemoteProtocolError, upon which the connection is cut.
        """
        ...

    def stream_fed(self, stream: "DiscoveryStream") -> None:
        """All frames of one read have been handed over."""
        ...

    def stream_ready(self, stream: "DiscoveryStream") -> None:
        """The kernel takes more again."""
        ...

    def stream_closed(self, stream: "DiscoveryStream", error: Exception | None) -> None:
        """The connection is gone."""
        ...


class DiscoveryStream(asyncio.Protocol):
    """One connection.  Its owner decides which of several between two addresses is used."""

    def __init__(
        self,
        owner: StreamOwner,
        now: Callable[[], float],
        *,
        dialled: str | None,
        message_bytes_max: int,
        silence_s: float,
    ) -> None:
        self._owner = owner
        self._now = now
        self._silence_s = silence_s
        self._transport: asyncio.Transport | None = None
        self._closing = False
        self._reader = FrameReader(message_bytes_max)
        self.dialled = dialled
        """The address that we called, when it was us."""
        self.attempt: asyncio.Task[None] | None = None
        """What called it, or accepted it."""
        self.was_opened = False
        self.peer: str | None = None
        """The address at the other side, once it is known."""
        self.source = ""
        """The host at the other side, as the kernel says."""
        self.hello: Hello | None = None
        """What the other side said first."""
        self.greeted = False
        """We have said who we are."""
        self.said_bye = False
        self.got_bye = False
        self.paused = False
        """The kernel takes nothing more for now."""
        self.written_bytes = 0
        self.opened = self.begun = self.used = now()
        """Times of the loop in seconds: it opened; a frame or a long message began that is not
        whole yet; something was received or written."""
        self._taken_bytes = 0
        self._progressed = self.opened
        """When the kernel was last seen to have taken something, or to lack nothing."""
        self.counted_bytes = 0
        """Held bytes that the owner has counted."""

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set the socket's options and tell the owner."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self.was_opened = True
        peer = transport.get_extra_info("peername") or ("",)
        self.source = str(peer[0])
        tcp = transport.get_extra_info("socket")
        tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if _NOTSENT_LOWAT is not None:
            tcp.setsockopt(socket.IPPROTO_TCP, _NOTSENT_LOWAT, UNSENT_BYTES_MAX)
        if _THIN_LINEAR_TIMEOUTS is not None:
            tcp.setsockopt(socket.IPPROTO_TCP, _THIN_LINEAR_TIMEOUTS, 1)
        watch_silence(tcp, self._silence_s)
        self._transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX, low=UNSENT_BYTES_MAX // 4)
        self.opened = self.used = self._progressed = self._now()
        self._owner.stream_opened(self)

    def data_received(self, data: bytes) -> None:
        """Hand over what is whole."""
        if self._closing:
            return
        now = self.used = self._now()
        held = self._reader.held_bytes
        whole = False
        try:
            for kind, content in self._reader.feed(data):
                whole = True
                self._owner.stream_frame(self, kind, content)
                if not self.open:
                    break
        except RemoteProtocolError as error:
            self._owner.stream_closed(self, error)
            self.abort()
            return
        if whole or not held:
            self.begun = now
        self._owner.stream_fed(self)

    def eof_received(self) -> bool:
        """Close when the other side does."""
        return False

    def pause_writing(self) -> None:
        """The kernel takes no more for now."""
        self.paused = True

    def resume_writing(self) -> None:
        """The kernel has room again."""
        self.paused = False
        if not self._closing:
            self._owner.stream_ready(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the owner."""
        self._transport = None
        self._closing = True
        self._owner.stream_closed(self, exc)

    # What the owner calls.

    @property
    def open(self) -> bool:
        """Whether it can be written to."""
        return self._transport is not None and not self._closing

    @property
    def held_bytes(self) -> int:
        """Bytes received that are no whole message yet."""
        return self._reader.held_bytes

    @property
    def unsent_bytes(self) -> int:
        """Bytes written that the kernel has not taken."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def stuck_s(self, now: float) -> float:
        """How long the other side has taken nothing of what waits, as far as was looked."""
        unsent = self.unsent_bytes
        taken = self.written_bytes - unsent
        if taken != self._taken_bytes or not unsent:
            self._taken_bytes, self._progressed = taken, now
        return now - self._progressed

    def send(self, kind: FrameKind, content: bytes = b"") -> None:
        """Send one frame."""
        self.write([frame(kind, content)])

    def write(self, frames: list[bytes]) -> None:
        """Write these frames together."""
        if self._transport is None or self._closing or not frames:
            return
        data = frames[0] if len(frames) == 1 else b"".join(frames)
        self.written_bytes += len(data)
        self.used = self._now()
        self._transport.write(data)

    def close(self) -> None:
        """Close when all that was written has gone out."""
        self._closing = True
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._closing = True
        if self._transport is not None:
            self._transport.abort()
