"""Domains on loopback, for tests of participants that find each other."""

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from orderwire.aio.discovery_host import DiscoveryHost, monotonic_now
from orderwire.aio.discovery_transport import DiscoveryTransport
from orderwire.discovery.bootstrap import BootstrapServer
from orderwire.discovery.settings import BootstrapSettings

Test = Callable[[], Coroutine[Any, Any, None]]


def in_a_loop(test: Test) -> Callable[[], None]:
    """Let a coroutine be a test."""

    @functools.wraps(test)
    def run() -> None:
        asyncio.run(asyncio.wait_for(test(), 200))

    return run


@asynccontextmanager
async def domain(name: str, id_space: int = 16) -> AsyncIterator[str]:
    """Run a bootstrap server; its address."""
    transport = await DiscoveryTransport.open("127.0.0.1:0", domain=name)
    core = BootstrapServer(BootstrapSettings(id_space=id_space), monotonic_now(), epoch=1)
    host: DiscoveryHost[Any, Any] = DiscoveryHost(core, transport, lambda indication: None)
    try:
        yield host.address
    finally:
        await host.close()


async def until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for this.  Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while not holds():
            await asyncio.sleep(0.01)


async def first(reader: Any) -> bytes:
    """The data of the next sample."""
    async for sample in reader:
        data = sample.data
        assert isinstance(data, bytes)
        return data
    raise AssertionError("the reader ended")
