"""How an endpoint uses the network, and the two sockets it binds: one port on TCP and on UDP."""

import asyncio
import socket
from collections.abc import Callable

import msgspec

from orderwire.aio.datagram import Address, open_socket
from orderwire.aio.stream import Stream
from orderwire.kernel import NS_PER_S, LocalProtocolError

_PORT_TRIES = 16


class EndpointSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an endpoint uses the network."""

    offload: bool = True
    """Let the kernel cut and merge datagrams (UDP_SEGMENT, UDP_GRO) where it can."""
    datagram_bytes_max: int | None = None
    """Largest datagram with its head; None: what the path to the peer takes unfragmented."""
    multicast: Address | None = None
    """Group address and port for what goes to all members; None: a datagram for each."""
    multicast_interface: str = "127.0.0.1"
    """Address of the interface for multicasts."""
    silence_s: float = 10.0
    """A member that says nothing for so many seconds is given up until it speaks again.

    It is asked while something waits for it: so a process that was stopped is noticed.  A host that
    is gone is noticed by the kernel as well (TCP keepalive and user timeout), traffic or not.
    """

    def __post_init__(self) -> None:
        if not self.silence_s > 0:
            raise LocalProtocolError(f"silence_s={self.silence_s} must be a positive time")

    @property
    def silence_ns(self) -> int:
        """How long a member may say nothing, in nanoseconds."""
        return round(self.silence_s * NS_PER_S)


async def bind(
    address: Address, *, offload: bool, stream: Callable[[], Stream]
) -> tuple[asyncio.Server, socket.socket, bool]:
    """Return a listener and a UDP socket at the same port, and whether the kernel segments.

    `stream` makes the protocol of an accepted connection: none is accepted before the loop turns.
    """
    loop = asyncio.get_running_loop()
    for left in reversed(range(_PORT_TRIES)):
        server = await loop.create_server(stream, *address, family=socket.AF_INET)
        try:
            udp, offloads = open_socket(server.sockets[0].getsockname()[:2], offload=offload)
        except OSError:
            server.close()
            # A free TCP port may be taken on UDP: then any other will do.
            if address[1] != 0 or left == 0:
                raise
            continue
        return server, udp, offloads
    raise AssertionError("the last try returns or raises")
