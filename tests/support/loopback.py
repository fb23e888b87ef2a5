"""Free places on loopback for tests that open real sockets."""

import socket
from contextlib import ExitStack
from random import SystemRandom

PORTS = range(15_000, 32_000)
"""Below those that the kernel gives to whoever asks for any: a port stays free until it is used."""


def free_members(*names: str) -> dict[str, str]:
    """Return an address for each name whose port is free for TCP and UDP."""
    addresses: dict[str, str] = {}
    with ExitStack() as taken:
        for name in names:
            while name not in addresses:
                stream = taken.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
                datagram = taken.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
                port = SystemRandom().choice(PORTS)
                try:
                    stream.bind(("127.0.0.1", port))
                    datagram.bind(("127.0.0.1", port))
                except OSError:
                    continue
                addresses[name] = f"127.0.0.1:{port}"
    return addresses
