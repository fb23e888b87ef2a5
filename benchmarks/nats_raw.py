"""NATS and JetStream over a raw socket: what a fast client would send, without its cost."""

import json
import os
import socket
from typing import Any


class Connection:
    """One connection, whose inbox takes every answer."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.peer = socket.create_connection(address, 30)
        self.peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.peer.sendall(b'CONNECT {"verbose":false}\r\nSUB _INBOX.bench 1\r\nPING\r\n')
        self._left = b""
        self.until(b"PONG\r\n")

    def until(self, mark: bytes) -> bytes:
        data = self._left
        while mark not in data:
            came = self.peer.recv(1 << 20)
            assert came, "the server closed the connection"
            data += came
        data, _, self._left = data.partition(mark)
        return data

    def ask(self, subject: str, body: dict[str, Any]) -> dict[str, Any]:
        """Call JetStream's own interface."""
        text = json.dumps(body).encode()
        self.peer.sendall(f"PUB {subject} _INBOX.bench {len(text)}\r\n".encode() + text + b"\r\n")
        head = self.until(b"\r\n")
        answer: dict[str, Any] = json.loads(self.until(b"\r\n"))
        assert head.startswith(b"MSG "), head
        return answer

    def acknowledged(self, count: int) -> None:
        """Wait for so many acknowledgements."""
        tail = b""
        while count > 0:
            data = tail + self.peer.recv(1 << 20)
            count -= data.count(b'"seq":')
            tail = data[-5:]


def publish(address: tuple[str, int], subject: str, count: int, size: int, depth: int) -> int:
    """Pipelined publishes, `depth` unacknowledged at most."""
    payload = os.urandom(size // 2).hex().encode()
    window = f"PUB {subject} _INBOX.bench {len(payload)}\r\n".encode() + payload + b"\r\n"
    connection = Connection(address)
    for _ in range(count // depth):
        connection.peer.sendall(window * depth)
        connection.acknowledged(depth)
    connection.peer.close()
    return count // depth * depth
