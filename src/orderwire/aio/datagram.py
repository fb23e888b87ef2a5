"""UDP sockets: drained in one go, several datagrams a call where the kernel can segment.

asyncio's own datagram transport takes one datagram per turn of the loop, into a new buffer each;
`add_reader` with a drain loop takes all that wait, into one buffer, on any loop.
"""

import asyncio
import contextlib
import logging
import socket
import struct
from collections.abc import Callable, Iterator

from orderwire.aio.addresses import join_address
from orderwire.kernel import NS_PER_MS, Instant

_LOG = logging.getLogger(__name__)

Address = tuple[str, int]
"""Host and port."""

DATAGRAM_BYTES_MAX = 60_000
"""Largest datagram, even where the path would take more."""

DATAGRAM_BYTES_MIN = 508
"""Smallest that a path may ask for."""

SOCKET_BUFFER_BYTES = 4 << 20
"""Asked for; the kernel may give less."""

DRAIN_MAX = 64
DRAIN_NS_MAX = 1 * NS_PER_MS
"""Receive calls, and time, per turn of the loop: timers and writes must get theirs, and readers.

Those have several times as much time in a turn: what is received faster than it is handed over
would fill their queues.
"""

READS_MAX = 1_000
"""Turns that reading everything at once may take: a full socket buffer needs fewer."""

_SEGMENTS_MAX = 64
_SEGMENTED_BYTES_MAX = 65_000
_UDP_SEGMENT = 103
_UDP_GRO = 104
_IP_MTU = 14
_UDP_IP_HEADERS = 28
_RECEIVE_BYTES = 1 << 16
_SIZE = struct.Struct("=H")
_ANCILLARY_BYTES = socket.CMSG_SPACE(4) * 2


def open_socket(address: Address, *, offload: bool = True) -> tuple[socket.socket, bool]:
    """Return a bound UDP socket with large buffers, and whether the kernel segments."""
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        udp.setblocking(False)
        _enlarge(udp)
        _bind(udp, address)
        return udp, offload and _enable_offload(udp)
    except BaseException:
        udp.close()
        raise


def open_multicast_socket(group: Address, interface: str, *, offload: bool = True) -> socket.socket:
    """Return a socket that receives what is sent to this group on this interface."""
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        udp.setblocking(False)
        udp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _enlarge(udp)
        _bind(udp, group)
        member = socket.inet_aton(group[0]) + socket.inet_aton(interface)
        with _says(f"multicasts to {group[0]} on interface {interface}"):
            udp.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
        if offload:
            _enable_offload(udp)
        return udp
    except BaseException:
        udp.close()
        raise


def send_multicasts_on(udp: socket.socket, interface: str) -> None:
    """Make this socket send multicasts on this interface, one hop, to members here too."""
    ip = socket.IPPROTO_IP
    with _says(f"multicasts on interface {interface}"):
        udp.setsockopt(ip, socket.IP_MULTICAST_IF, socket.inet_aton(interface))
    udp.setsockopt(ip, socket.IP_MULTICAST_TTL, 1)
    udp.setsockopt(ip, socket.IP_MULTICAST_LOOP, 1)


def _bind(udp: socket.socket, address: Address) -> None:
    with _says(join_address(*address)):
        udp.bind(address)


@contextlib.contextmanager
def _says(where: str) -> Iterator[None]:
    """Say of what an error is."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, f"{where}: {error.strerror or error}") from None


def _enlarge(udp: socket.socket) -> None:
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        with contextlib.suppress(OSError):
            udp.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER_BYTES)


def _enable_offload(udp: socket.socket) -> bool:
    try:
        udp.setsockopt(socket.IPPROTO_UDP, _UDP_GRO, 1)
        udp.setsockopt(socket.IPPROTO_UDP, _UDP_SEGMENT, 0)
    except OSError:
        return False
    return True


def datagram_bytes(address: Address) -> int:
    """Return how large a datagram to this address may be without being fragmented."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(address)
            mtu = probe.getsockopt(socket.IPPROTO_IP, _IP_MTU)
        except OSError:
            mtu = 1_500
    return max(DATAGRAM_BYTES_MIN, min(DATAGRAM_BYTES_MAX, mtu - _UDP_IP_HEADERS))


class DatagramSocket:
    """One UDP socket on the loop.

    `received(data, address, arrived)` gets every datagram, valid until it returns; `drained()`
    follows each drain.  The arrival instant is read once per receive call.
    """

    def __init__(
        self,
        udp: socket.socket,
        *,
        offload: bool,
        received: Callable[[memoryview, Address, Instant], None],
        drained: Callable[[], None],
        now: Callable[[], Instant],
    ) -> None:
        self._socket = udp
        self.offload = offload
        """Whether the kernel segments; switched off when it turns out that it does not."""
        self._received = received
        self._drained = drained
        self._now = now
        self._buffer = bytearray(_RECEIVE_BYTES)
        self._view = memoryview(self._buffer)
        self._loop = asyncio.get_running_loop()
        self.send_errors = 0
        """Datagrams that the kernel did not take; they count as lost on the way."""
        self.calls = 0
        """Send calls."""
        self.receive_bytes = udp.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2
        self._loop.add_reader(udp, self._readable)

    def close(self) -> None:
        """Stop reading and close the socket."""
        self._loop.remove_reader(self._socket)
        self._socket.close()

    def send(self, data: list[bytes], address: Address) -> None:
        """Send these datagrams, runs of them in one call."""
        if self.offload and len(data) > 1:
            self._send_segmented(data, address)
            return
        for datagram in data:
            self._send_one(datagram, address)

    def _send_one(self, datagram: bytes, address: Address) -> None:
        self.calls += 1
        try:
            self._socket.sendto(datagram, address)
        except OSError:
            # A full socket buffer, an unreachable network: to the link both are loss.
            self.send_errors += 1

    def _send_segmented(self, data: list[bytes], address: Address) -> None:
        """Send runs: all datagrams of a run have one size, padded, but the last may be shorter."""
        start = 0
        while start < len(data):
            limit = start + max(
                1, min(_SEGMENTS_MAX, _SEGMENTED_BYTES_MAX // (len(data[start]) or 1))
            )
            run = data[start:limit]
            size = max(map(len, run))
            if size * len(run) > _SEGMENTED_BYTES_MAX:
                run = run[: max(1, _SEGMENTED_BYTES_MAX // size)]
            # Padding costs bytes, a run's end costs a call: pad up to a third of a datagram.
            for at, datagram in enumerate(run):
                if len(datagram) * 3 < size * 2:
                    run = run[: at + 1]
                    break
                if len(datagram) < size:
                    run[at] = datagram.ljust(size, b"\0")
            if len(run) == 1:
                self._send_one(data[start], address)
            elif not self._send_run(run, size, address):
                self.offload = False
                for datagram in data[start:]:
                    self._send_one(datagram, address)
                return
            start += len(run)

    def _send_run(self, run: list[bytes], size: int, address: Address) -> bool:
        """Send one run; False when the kernel cannot segment after all."""
        self.calls += 1
        option = (socket.IPPROTO_UDP, _UDP_SEGMENT, _SIZE.pack(size))
        try:
            self._socket.sendmsg(run, [option], 0, address)
        except BlockingIOError:
            self.send_errors += len(run)
        except OSError as error:
            _LOG.info("segmentation offload refused (%s): sending datagrams one by one", error)
            return False
        return True

    def read_all(self) -> None:
        """Take what has arrived already: before something that must come after it."""
        for _ in range(READS_MAX):
            if not self._readable():
                return

    def _readable(self) -> bool:
        """Receive for one turn; return whether more may wait."""
        udp, view, received, now = self._socket, self._view, self._received, self._now
        buffers = [self._buffer]
        ancillary: list[tuple[int, int, bytes]] = []
        until = now() + DRAIN_NS_MAX
        try:
            for _ in range(DRAIN_MAX):
                if self.offload:
                    size, ancillary, _, address = udp.recvmsg_into(buffers, _ANCILLARY_BYTES)
                else:
                    size, address = udp.recvfrom_into(self._buffer)
                arrived = now()
                segment = _segment_bytes(ancillary) if ancillary else size
                if segment >= size:
                    received(view[:size], address, arrived)
                else:
                    for at in range(0, size, segment):
                        received(view[at : min(size, at + segment)], address, arrived)
                if arrived > until:
                    break
            more = True
        except BlockingIOError:
            more = False
        except OSError as error:
            # What an earlier send met (ICMP); the datagrams behind it are read next time.
            _LOG.debug("receive: %s", error)
            more = True
        self._drained()
        return more


def _segment_bytes(ancillary: list[tuple[int, int, bytes]]) -> int:
    """Return the size of the datagrams that the kernel merged into one buffer."""
    for level, kind, data in ancillary:
        if level == socket.IPPROTO_UDP and kind == _UDP_GRO:
            return max(1, int.from_bytes(data[:2], "little"))
    return 1 << 16
