"""One member's sockets: a UDP socket and a TCP listener at the same port, and its channels."""

import asyncio
import contextlib
import logging
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Self

import msgspec

from orderwire.aio.clock import GroupClock
from orderwire.aio.stream import FrameKind, Hello, Stream
from orderwire.kernel import (
    Instant,
    LocalProtocolError,
    ProcessId,
    RemoteProtocolError,
    Via,
)

_LOG = logging.getLogger(__name__)

Address = tuple[str, int]
"""Host and port."""

PDU_BYTES_MAX = 1 << 20
"""Largest encoded PDU; what does not fit a datagram goes over the stream."""

CONTROL_WAITING_MAX = 65_536
"""Control messages that may wait for a member that is not connected yet."""

_HEADER = struct.Struct("<HQHQ")
_CONNECT_WAIT_S = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


class Counters(msgspec.Struct):
    """What a channel counted about one peer.  In copies, unless it says otherwise."""

    sent: int = 0
    received: int = 0
    retransmitted: int = 0
    nacked: int = 0
    lost: int = 0
    duplicate: int = 0
    malformed: int = 0


class Channel:
    """One numbered lane between all members; copies are counted per peer, from 0."""

    def __init__(self, endpoint: "Endpoint", number: int, lifetime_ns: int | None) -> None:
        self._endpoint = endpoint
        self.number = number
        self.lifetime_ns = lifetime_ns
        self._next: dict[ProcessId, int] = {}
        self._expected: dict[ProcessId, int] = {}
        self._counters: dict[ProcessId, Counters] = {}
        self.on_pdu: Callable[[ProcessId, memoryview, Instant], None] | None = None
        self.on_lost: Callable[[ProcessId, int, int], None] | None = None
        self.on_settled: Callable[[], None] | None = None

    def attach(
        self,
        on_pdu: Callable[[ProcessId, memoryview, Instant], None],
        on_lost: Callable[[ProcessId, int, int], None],
        on_settled: Callable[[], None],
    ) -> None:
        """Set the receiver.

        `on_pdu(source, data, arrived)` gets every copy once (`data` is valid until it returns),
        `on_lost(source, first, last)` what the link gave up on, `on_settled()` follows each batch.
        """
        self.on_pdu, self.on_lost, self.on_settled = on_pdu, on_lost, on_settled

    def detach(self) -> None:
        """Receive nothing any more."""
        self.on_pdu = self.on_lost = self.on_settled = None

    def counters(self, peer: ProcessId) -> Counters:
        """Return what was counted about this peer."""
        found = self._counters.get(peer)
        if found is None:
            found = self._counters[peer] = Counters()
        return found

    def send(
        self,
        to: ProcessId,
        data: bytes,
        deadline: Instant | None = None,
        via: Via = Via.DATAGRAM,
    ) -> None:
        """Send one PDU; it goes out when the loop turns.

        The deadline is now + the channel's lifetime unless given.
        Raises LocalProtocolError for an unknown peer or a PDU above PDU_BYTES_MAX.
        """
        if len(data) > PDU_BYTES_MAX:
            raise LocalProtocolError(
                f"PDU of {len(data)} bytes is larger than PDU_BYTES_MAX = {PDU_BYTES_MAX}"
            )
        number = self._next.get(to, 0)
        self._next[to] = number + 1
        self.counters(to).sent += 1
        self._endpoint._send(to, self.number, number, data, via)

    def broadcast(
        self, data: bytes, deadline: Instant | None = None, via: Via = Via.DATAGRAM
    ) -> None:
        """Send one PDU to every other member."""
        for peer in self._endpoint.peers:
            self.send(peer, data, deadline, via)

    async def drain(self) -> None:
        """Wait until there is room to send more."""
        await asyncio.sleep(0)


class Endpoint:
    """A member's place on the network.  Make one with `await Endpoint.open(…)`."""

    def __init__(
        self, me: ProcessId, clock: GroupClock, server: asyncio.Server, udp: socket.socket
    ) -> None:
        self.me = me
        self.clock = clock
        self.session = time.time_ns()
        self.unknown = 0
        """Datagrams and connections of strangers, dropped."""
        self._addresses: dict[ProcessId, Address] = {}
        self._by_address: dict[Address, ProcessId] = {}
        self._channels: dict[int, Channel] = {}
        self._streams: dict[ProcessId, Stream] = {}
        self._waiting: dict[ProcessId, deque[bytes]] = {}
        self._connecting: dict[ProcessId, asyncio.Task[None]] = {}
        self._on_control: Callable[[ProcessId, memoryview], None] | None = None
        self._on_connected: Callable[[ProcessId], None] | None = None
        self._on_disconnected: Callable[[ProcessId], None] | None = None
        self._buffer = bytearray(1 << 16)
        self._closing = False
        self._server = server
        self._socket = udp
        self.address: Address = udp.getsockname()

    @classmethod
    async def open(
        cls,
        me: ProcessId,
        addresses: Mapping[ProcessId, Address],
        *,
        clock: GroupClock | None = None,
    ) -> Self:
        """Bind the member's own address (port 0: any free port) and connect to the others."""
        host, port = addresses[me]
        loop = asyncio.get_running_loop()
        owner: list[Self] = []
        server = await loop.create_server(lambda: Stream(owner[0]), host, port)
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        udp.setblocking(False)
        udp.bind(server.sockets[0].getsockname()[:2])
        endpoint = cls(me, clock or GroupClock(), server, udp)
        owner.append(endpoint)
        loop.add_reader(udp, endpoint._readable)
        for peer in sorted(addresses):
            if peer != me:
                await endpoint.add_peer(peer, addresses[peer])
        return endpoint

    async def add_peer(self, peer: ProcessId, address: Address) -> None:
        """Learn where this member is; the lower id of a pair connects to the higher."""
        found = await asyncio.get_running_loop().getaddrinfo(
            *address, family=socket.AF_INET, type=socket.SOCK_DGRAM
        )
        resolved = found[0][4]
        self._addresses[peer] = (str(resolved[0]), int(resolved[1]))
        self._by_address[self._addresses[peer]] = peer
        self._connect(peer)

    @property
    def peers(self) -> list[ProcessId]:
        """All other members, ascending."""
        return sorted(self._addresses)

    def channel(self, number: int, lifetime_ns: int | None = None) -> Channel:
        """Open a channel; every member that uses it opens it under the same number."""
        if number in self._channels:
            raise LocalProtocolError(f"channel {number} is open already")
        channel = self._channels[number] = Channel(self, number, lifetime_ns)
        return channel

    def on_control(self, callback: Callable[[ProcessId, memoryview], None]) -> None:
        """Set who gets control messages: `callback(source, data)`, data valid until it returns."""
        self._on_control = callback

    def on_connected(self, callback: Callable[[ProcessId], None]) -> None:
        """Set who learns that a stream to a member stands: after each (re)connection."""
        self._on_connected = callback

    def on_disconnected(self, callback: Callable[[ProcessId], None]) -> None:
        """Set who learns that the stream to a member broke; it is tried again by itself."""
        self._on_disconnected = callback

    def is_connected(self, peer: ProcessId) -> bool:
        """Whether the stream to this member stands."""
        return peer in self._streams

    def send_control(self, to: ProcessId, data: bytes) -> None:
        """Send a small message over the stream: reliable and in order while the stream stands.

        Before the first connection messages wait.  What was under way when a stream broke is gone:
        send the state again when `on_connected` tells of the next one.
        """
        stream = self._streams.get(to)
        if stream is not None:
            stream.send(FrameKind.CONTROL, data)
            return
        if to not in self._addresses:
            raise LocalProtocolError(f"process {to} is not a peer, expected one of {self.peers}")
        waiting = self._waiting.setdefault(to, deque())
        if len(waiting) >= CONTROL_WAITING_MAX:
            raise LocalProtocolError(
                f"{CONTROL_WAITING_MAX} control messages wait for process {to} already"
            )
        waiting.append(data)

    async def close(self) -> None:
        """Close in reverse order of opening.  What is still under way may be lost."""
        self._closing = True
        tasks = list(self._connecting.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        for stream in list(self._streams.values()):
            stream.close()
        self._server.close()
        await asyncio.sleep(0)

    # Datagrams.

    def _send(self, to: ProcessId, channel: int, number: int, data: bytes, via: Via) -> None:
        address = self._addresses.get(to)
        if address is None:
            raise LocalProtocolError(f"process {to} is not a peer, expected one of {self.peers}")
        head = _HEADER.pack(self.me, self.session, channel, number)
        if via is Via.STREAM or len(data) > 60_000:
            stream = self._streams.get(to)
            if stream is not None:
                stream.send(FrameKind.DATA, head, data)
            return
        with contextlib.suppress(BlockingIOError):
            self._socket.sendto(head + data, address)

    def _readable(self) -> None:
        view = memoryview(self._buffer)
        touched = set()
        for _ in range(64):
            try:
                size, address = self._socket.recvfrom_into(self._buffer)
            except BlockingIOError:
                break
            source = self._by_address.get(address)
            if source is None:
                self.unknown += 1
                continue
            channel = self._data(source, view[:size])
            if channel is not None:
                touched.add(channel.number)
        for number in sorted(touched):
            settled = self._channels[number].on_settled
            if settled is not None:
                settled()

    def _data(self, source: ProcessId, data: memoryview) -> Channel | None:
        if len(data) < _HEADER.size:
            return None
        _, _, number, _ = _HEADER.unpack_from(data)
        channel = self._channels.get(number)
        if channel is None or channel.on_pdu is None:
            return None
        channel.counters(source).received += 1
        channel.on_pdu(source, data[_HEADER.size :], self.clock.now())
        return channel

    # Streams.

    def _connect(self, peer: ProcessId) -> None:
        if self.me < peer and peer not in self._connecting and not self._closing:
            self._connecting[peer] = asyncio.create_task(self._dial(peer))

    async def _dial(self, peer: ProcessId) -> None:
        loop = asyncio.get_running_loop()
        attempt = 0
        try:
            while True:
                with contextlib.suppress(OSError):
                    host, port = self._addresses[peer]
                    await loop.create_connection(lambda: Stream(self), host, port)
                    return
                await asyncio.sleep(_CONNECT_WAIT_S[min(attempt, len(_CONNECT_WAIT_S) - 1)])
                attempt += 1
        finally:
            self._connecting.pop(peer, None)

    def stream_opened(self, stream: Stream) -> None:
        """Say who we are."""
        stream.send(FrameKind.HELLO, Hello(self.me, self.session).encode())

    def stream_frame(self, stream: Stream, kind: int, content: memoryview) -> None:
        """Take a frame; the first must be a member's hello."""
        if stream.peer is None:
            if kind != FrameKind.HELLO:
                raise RemoteProtocolError(f"first frame is {kind}, expected HELLO")
            hello = Hello.decode(content)
            peer = ProcessId(hello.source)
            if peer not in self._addresses:
                self.unknown += 1
                raise RemoteProtocolError(f"hello of process {peer}, expected one of {self.peers}")
            stream.peer = peer
            old = self._streams.pop(peer, None)
            if old is not None:
                old.abort()
            self._streams[peer] = stream
            for data in self._waiting.pop(peer, ()):
                stream.send(FrameKind.CONTROL, data)
            if self._on_connected is not None:
                self._on_connected(peer)
        elif kind == FrameKind.CONTROL:
            if self._on_control is not None:
                self._on_control(ProcessId(stream.peer), content)
        elif kind == FrameKind.DATA:
            channel = self._data(ProcessId(stream.peer), content)
            if channel is not None and channel.on_settled is not None:
                channel.on_settled()
        else:
            raise RemoteProtocolError(f"frame of kind {kind}")

    def stream_batch(self, stream: Stream) -> None:
        """Nothing to do after a batch."""

    def stream_closed(self, stream: Stream, error: Exception | None) -> None:
        """Try again unless we are closing or the stream was replaced."""
        if stream.peer is None:
            return
        peer = ProcessId(stream.peer)
        if self._streams.get(peer) is stream:
            del self._streams[peer]
            if self._on_disconnected is not None and not self._closing:
                self._on_disconnected(peer)
            self._connect(peer)
