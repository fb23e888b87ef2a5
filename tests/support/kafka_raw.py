"""A client of the Kafka protocol that sends what a test wants, sensible or not."""

import socket
import struct
from types import TracebackType
from typing import Any

from orderwire.broker.wire.apis import API_BY_KEY


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
