"""Free places on loopback for tests that open real sockets."""

import socket
from contextlib import ExitStack


def free_members(*names: str) -> dict[str, str]:
    """Return an address for each name whose port is free for TCP and UDP."""
    addresses: dict[str, str] = {}
    with ExitStack() as taken:
        for name in names:
            while name not in addresses:
                stream = taken.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
                stream.bind(("127.0.0.1", 0))
                port = stream.getsockname()[1]
                datagram = taken.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
                try:
                    datagram.bind(("127.0.0.1", port))
                except OSError:
                    continue
                addresses[name] = f"127.0.0.1:{port}"
    return addresses
