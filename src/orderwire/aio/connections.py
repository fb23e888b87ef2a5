"""The streams between one member and the others: who is who, dialling, control messages."""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable

from orderwire.aio.datagram import Address
from orderwire.aio.stream import FrameKind, Hello, Stream
from orderwire.kernel import LocalProtocolError, ProcessId, RemoteProtocolError

_LOG = logging.getLogger(__name__)

CONTROL_BYTES_MAX = 1 << 20
"""Largest control message."""

CONTROL_WAITING_MAX = 65_536
"""Control messages that may wait for a member that is not connected yet."""

ANONYMOUS_MAX = 64
"""Connections that have not said who they are."""

HELLO_WAIT_S = 5.0
"""How long a connection may take to say who it is."""

_CONNECT_PAUSES_S = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_CONNECT_WAIT_S = 3.0


class Connections:
    """One stream to each other member; the lower id of a pair dials the higher.

    `known(peer)` is the first incarnation of a member that was met, which hellos tell it;
    `is_over(peer, session)` says of one that a later one has taken its place.
    `welcome(peer, hello)` follows each hello, `parted(peer)` the end of each stream that had one,
    `data(peer, content)` gets the datagrams that came over a stream, `settled()` follows each read.
    """

    def __init__(
        self,
        me: ProcessId,
        session: int,
        local_host: str,
        *,
        silence_s: float,
        known: Callable[[ProcessId], int],
        is_over: Callable[[ProcessId, int], bool],
        welcome: Callable[[ProcessId, Hello], None],
        parted: Callable[[ProcessId], None],
        data: Callable[[ProcessId, memoryview], None],
        settled: Callable[[], None],
    ) -> None:
        self.unknown = 0
        """Connections of strangers, closed."""
        self.malformed: dict[ProcessId, int] = {}
        """Streams closed as a peer's fault."""
        self.on_control: Callable[[ProcessId, memoryview], None] | None = None
        self.on_connected: Callable[[ProcessId], None] | None = None
        self.on_disconnected: Callable[[ProcessId], None] | None = None
        self._me = me
        self._session = session
        self._local = None if local_host == "0.0.0.0" else (local_host, 0)
        self.silence_s = silence_s
        """How long the kernel of a member's host may not answer."""
        self._known = known
        self._is_over = is_over
        self._welcome = welcome
        self._parted = parted
        self._data = data
        self._settled = settled
        self._loop = asyncio.get_running_loop()
        self._addresses: dict[ProcessId, Address] = {}
        self._streams: dict[ProcessId, Stream] = {}
        self._anonymous: dict[Stream, asyncio.TimerHandle] = {}
        self._waiting: dict[ProcessId, deque[bytes]] = {}
        self._dialling: dict[ProcessId, asyncio.Task[None]] = {}
        self._refused: dict[ProcessId, int] = {}
        """How often in a row a member has closed before it said hello: it may not know us yet."""
        self._closing = False

    def add(self, peer: ProcessId, address: Address) -> None:
        """Learn where this member is, and dial it if that is our part."""
        self._addresses[peer] = address
        self._dial(peer)

    def remove(self, peer: ProcessId) -> None:
        """Have nothing to do with this member until it is added again."""
        del self._addresses[peer]
        self._waiting.pop(peer, None)
        self._refused.pop(peer, None)
        task = self._dialling.pop(peer, None)
        if task is not None:
            task.cancel()
        stream = self._streams.get(peer)
        if stream is not None:
            stream.close()

    def is_connected(self, peer: ProcessId) -> bool:
        """Whether the stream to this member stands."""
        return peer in self._streams

    def send_data(self, to: ProcessId, data: bytes) -> bool:
        """Send a datagram's content; False when no stream stands."""
        stream = self._streams.get(to)
        return stream is not None and stream.send(FrameKind.DATA, data)

    def send_control(self, to: ProcessId, data: bytes) -> None:
        """Send a control message, or let it wait for the first connection."""
        if to not in self._addresses:
            raise LocalProtocolError(
                f"process {to} is not a peer, expected one of {sorted(self._addresses)}"
            )
        if len(data) > CONTROL_BYTES_MAX:
            raise LocalProtocolError(
                f"control message of {len(data)} bytes is larger than "
                f"CONTROL_BYTES_MAX = {CONTROL_BYTES_MAX}"
            )
        stream = self._streams.get(to)
        if stream is not None:
            stream.send(FrameKind.CONTROL, data)
            return
        waiting = self._waiting.setdefault(to, deque())
        if len(waiting) >= CONTROL_WAITING_MAX:
            raise LocalProtocolError(
                f"{CONTROL_WAITING_MAX} control messages wait for process {to} already"
            )
        waiting.append(data)

    async def close(self) -> None:
        """Stop dialling and close all streams, after what was written has gone out."""
        self._closing = True
        tasks = list(self._dialling.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for stream in [*self._streams.values(), *self._anonymous]:
            stream.close()
        for timer in self._anonymous.values():
            timer.cancel()

    def _dial(self, peer: ProcessId) -> None:
        known = peer in self._addresses
        if self._me < peer and known and peer not in self._dialling and not self._closing:
            self._dialling[peer] = self._loop.create_task(self._connect(peer))

    async def _connect(self, peer: ProcessId) -> None:
        host, port = self._addresses[peer]
        attempt = 0
        try:
            while True:
                with contextlib.suppress(OSError, TimeoutError):
                    async with asyncio.timeout(_CONNECT_WAIT_S):
                        await self._loop.create_connection(
                            lambda: Stream(self, dialled=peer, silence_s=self.silence_s),
                            host,
                            port,
                            local_addr=self._local,
                        )
                    return
                await asyncio.sleep(_pause_s(attempt))
                attempt += 1
        finally:
            if self._dialling.get(peer) is asyncio.current_task():
                del self._dialling[peer]

    def stream_opened(self, stream: Stream) -> None:
        """Wait to hear who they are; who dials speaks first."""
        if self._closing:
            stream.abort()
            return
        if len(self._anonymous) >= ANONYMOUS_MAX:
            self.unknown += 1
            stream.abort()
            return
        self._anonymous[stream] = self._loop.call_later(HELLO_WAIT_S, stream.abort)
        if stream.dialled is not None:
            self._say_hello(stream, stream.dialled)

    def _say_hello(self, stream: Stream, to: ProcessId) -> None:
        hello = Hello(self._me, self._session, self._known(to))
        stream.send(FrameKind.HELLO, hello.encode())

    def stream_frame(self, stream: Stream, kind: int, content: memoryview) -> None:
        """Take a frame; the first must be a member's hello."""
        if stream.peer is None:
            self._greet(stream, kind, content)
            return
        peer = ProcessId(stream.peer)
        if kind == FrameKind.CONTROL:
            if self.on_control is not None:
                try:
                    self.on_control(peer, content)
                except Exception as error:
                    self._loop.call_exception_handler(
                        {"message": "a control callback failed", "exception": error}
                    )
        elif kind == FrameKind.DATA:
            self._data(peer, content)
        else:
            raise RemoteProtocolError(f"frame of kind {kind} after the hello")

    def _greet(self, stream: Stream, kind: int, content: memoryview) -> None:
        if kind != FrameKind.HELLO:
            raise RemoteProtocolError(f"first frame is of kind {kind}, expected HELLO")
        hello = Hello.decode(content)
        peer = ProcessId(hello.source)
        address = stream.address
        known = self._addresses.get(peer)
        if known is None or address is None or address[0] != known[0]:
            self.unknown += 1
            raise RemoteProtocolError(f"hello of process {peer} from {address}: no such member")
        if self._is_over(peer, hello.session):
            raise RemoteProtocolError(f"hello of process {peer} in a life that is over")
        self._anonymous.pop(stream).cancel()
        stream.peer = peer
        if stream.dialled is None:
            # Only now: who hears our hello may rely on being known.
            self._say_hello(stream, peer)
        old = self._streams.pop(peer, None)
        if old is not None:
            old.abort()
            self._part(peer)
        self._streams[peer] = stream
        self._refused.pop(peer, None)
        self._welcome(peer, hello)
        for data in self._waiting.pop(peer, ()):
            stream.send(FrameKind.CONTROL, data)
        if self.on_connected is not None:
            self.on_connected(peer)

    def stream_batch(self, stream: Stream) -> None:
        """Settle what the frames of this read brought."""
        self._settled()

    def stream_closed(self, stream: Stream, error: Exception | None) -> None:
        """Connect again unless we are closing or the stream was replaced."""
        timer = self._anonymous.pop(stream, None)
        if timer is not None:
            timer.cancel()
        if stream.peer is None:
            if stream.dialled is not None:
                peer = stream.dialled
                refused = self._refused.get(peer, 0)
                self._refused[peer] = refused + 1
                self._loop.call_later(_pause_s(refused), self._dial, peer)
            return
        peer = ProcessId(stream.peer)
        if stream.failed is not None:
            self.malformed[peer] = self.malformed.get(peer, 0) + 1
            _LOG.warning("stream of process %d closed: %s", peer, stream.failed)
        if self._streams.get(peer) is stream:
            del self._streams[peer]
            if not self._closing:
                self._part(peer)
            self._dial(peer)

    def _part(self, peer: ProcessId) -> None:
        self._parted(peer)
        if self.on_disconnected is not None:
            self.on_disconnected(peer)

    def cut(self, peer: ProcessId) -> None:
        """End the stream to a member that does not answer; it is dialled again as always."""
        stream = self._streams.get(peer)
        if stream is not None:
            stream.abort()


def _pause_s(attempts: int) -> float:
    """How long to wait after so many attempts in a row that came to nothing."""
    return _CONNECT_PAUSES_S[min(attempts, len(_CONNECT_PAUSES_S) - 1)]
