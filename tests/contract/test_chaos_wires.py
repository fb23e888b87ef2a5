"""Wires of a chaos run that end while connections come in."""

import contextlib
import gc
import socket

from orderwire.chaos.wires import Wires


def test_what_is_taken_while_they_close_is_closed() -> None:
    """One connection in many runs was left open: it was taken, and had no task yet."""
    calls: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as behind:
        host, port = behind.getsockname()
        for _ in range(20):
            wires = Wires()
            door = wires.to_zookeeper(1, host, port)
            for _ in range(10):
                calls.append(socket.create_connection(("127.0.0.1", door)))
            wires.close()
            gc.collect()  # Else what is left open is told of in another test.
    for call in calls:
        call.settimeout(10)
        with contextlib.suppress(ConnectionResetError):
            assert call.recv(1) == b""
        call.close()
