"""Discovery's transport in tests: places on loopback that keep what comes, and raw peers."""

import asyncio
import struct
from collections.abc import Callable, Coroutine
from typing import Any

from virtual_loop import VirtualLoop

from orderwire.aio.addresses import split_address
from orderwire.aio.discovery_frames import VERSION, FrameKind, FrameReader, Hello, frame
from orderwire.aio.discovery_settings import TransportSettings
from orderwire.aio.discovery_tls import Credentials
from orderwire.aio.discovery_transport import DiscoveryTransport

DOMAIN = "test"


def in_virtual_time(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run on a loop whose waits take no time, with real sockets."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(work())


async def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Let the loop turn until this holds.  Raises TimeoutError, in the loop's time."""
    wait = 0.001
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(wait)
            wait = min(2 * wait, 0.25)


class Place:
    """A transport, what came to it, and which addresses it was told are unreachable."""

    def __init__(self, transport: DiscoveryTransport) -> None:
        self.transport = transport
        self.got: list[tuple[str, bytes]] = []
        self.unreachable: list[str] = []
        transport.start(
            lambda source, data: self.got.append((source, bytes(data))), self.unreachable.append
        )

    @classmethod
    async def open(
        cls,
        address: str = "127.0.0.1:0",
        *,
        domain: str = DOMAIN,
        credentials: Credentials | None = None,
        **limits: Any,
    ) -> "Place":
        return cls(
            await DiscoveryTransport.open(
                address,
                domain=domain,
                settings=TransportSettings(**limits),
                credentials=credentials,
            )
        )

    @property
    def address(self) -> str:
        return self.transport.address

    @property
    def refused(self) -> int:
        return self.transport.refusals.total()

    def messages(self) -> list[bytes]:
        return [data for _, data in self.got]

    def post(self, to: "Place | str", data: bytes, *, urgent: bool = False) -> None:
        address = to if isinstance(to, str) else to.address
        self.transport.post(address, data, urgent=urgent)


class RawPeer:
    """A peer that does what it is told and nothing else."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._frames = FrameReader(1 << 20)

    @classmethod
    async def call(cls, place: Place, **options: Any) -> "RawPeer":
        return cls(*await asyncio.open_connection(*split_address(place.address), **options))

    def hello(self, place: Place, *, port: int = 1, **changes: Any) -> bytes:
        """A right hello to this place, but for the changes."""
        values: dict[str, Any] = {
            "version": VERSION,
            "domain": DOMAIN,
            "address": f"127.0.0.1:{port}",
            "to": place.address,
            "nonce": 5,
            "turn": 1,
        }
        return frame(FrameKind.HELLO, Hello(**values | changes).encode())

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def frame(self) -> tuple[FrameKind, bytes]:
        """The next frame; fails when there is none in time."""
        while True:
            data = await self._reader.read(1)
            assert data, "closed"
            for kind, content in self._frames.feed(data):
                return kind, bytes(content)

    async def piece(self) -> bytes:
        """What the next frame carries of a message, by the frame's own head."""
        length, kind = struct.unpack("<HB", await self._reader.readexactly(3))
        content = await self._reader.readexactly(length)
        return content[4:] if kind == FrameKind.FIRST else content

    async def rest(self) -> bytes:
        """All bytes until the other side closes."""
        try:
            return await self._reader.read()
        except ConnectionResetError:
            return b""

    async def close(self) -> None:
        self._writer.transport.abort()
        await asyncio.sleep(0)
