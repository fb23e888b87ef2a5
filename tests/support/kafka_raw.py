"""A client of the Kafka protocol that sends what a test wants, sensible or not."""

import socket
import struct
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.wire.apis import API_BY_KEY

AGAIN_S = 30.0
PASSES = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.OFFSET_NOT_AVAILABLE,
    }
)
"""What is no failure: the same broker may well do later what it cannot now."""


def fetch_errors(response: Any) -> list[int]:
    """Every partition's."""
    return [part.error_code for topic in response.responses for part in topic.partitions]


def metadata_errors(response: Any) -> list[int]:
    """Every topic's and every partition's."""
    return [one.error_code for topic in response.topics for one in (topic, *topic.partitions)]


def produce_errors(response: Any) -> list[int]:
    """Every partition's."""
    return [part.error_code for topic in response.responses for part in topic.partition_responses]


class RawClient:
    """One connection, blocking, with a time limit on every read."""

    def __init__(self, address: str, seconds: float = 20.0) -> None:
        host, _, port = address.partition(",")[0].rpartition(":")
        self.socket = socket.create_connection((host, int(port)), seconds)
        self._correlation = 0

    def frame(self, key: int, version: int, body: Any, client_id: str = "raw") -> bytes:
        """Encode one request frame."""
        api = API_BY_KEY[key]
        self._correlation += 1
        name = client_id.encode()
        head = struct.pack(">hhih", key, version, self._correlation, len(name)) + name
        if api.request_header_version(version) == 2:
            head += b"\0"
        data = head + api.encode_request(body, version)
        return struct.pack(">i", len(data)) + data

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def exactly(self, size: int) -> bytes:
        """Read this many bytes; EOFError when the connection ends first."""
        data = bytearray()
        while len(data) < size:
            piece = self.socket.recv(size - len(data))
            if not piece:
                raise EOFError(f"the broker closed after {len(data)} of {size} bytes")
            data += piece
        return bytes(data)

    def response(self, key: int, version: int) -> Any:
        """Read and decode the next response."""
        api = API_BY_KEY[key]
        size = int.from_bytes(self.exactly(4), "big")
        data = memoryview(bytearray(self.exactly(size)))
        self.last_correlation = int.from_bytes(data[:4], "big")
        at = 5 if api.response_header_version(version) else 4
        body, end = api.decode_response(data, at, version)
        assert end == size, f"{size - end} bytes behind the response"
        return body

    def ask(self, key: int, version: int, body: Any) -> Any:
        """Send one request and return its response."""
        self.send(self.frame(key, version, body))
        return self.response(key, version)

    def ask_again(
        self, key: int, version: int, body: Any, errors: Callable[[Any], Iterable[int]]
    ) -> Any:
        """Ask as clients do: again while one of a response's errors is one that passes.

        After `AGAIN_S` seconds the response is returned as it is.
        """
        end = time.monotonic() + AGAIN_S
        while True:
            response = self.ask(key, version, body)
            if PASSES.isdisjoint(errors(response)) or time.monotonic() > end:
                return response
            time.sleep(0.05)

    def is_closed(self) -> bool:
        """Whether the broker closes the connection (waits for it)."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> "RawClient":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
