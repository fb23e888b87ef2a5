"""Endpoints on loopback for tests that open real sockets."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

from orderwire.aio.channel import Channel
from orderwire.aio.endpoint import Endpoint, EndpointSettings
from orderwire.aio.impairment import Fates, Impairment
from orderwire.kernel import Instant, ProcessId

ResultT = TypeVar("ResultT")

WAIT_S = 20.0
"""No condition of a test may take longer; all are met within a fraction of it."""


def run(test: Coroutine[Any, Any, ResultT], loop: str = "asyncio") -> ResultT:
    """Run a test on this kind of loop; what a callback raised fails the test."""
    failed: list[dict[str, Any]] = []

    async def watched() -> ResultT:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))
        return await test

    if loop == "uvloop":
        import uvloop

        result = uvloop.run(watched())
    else:
        result = asyncio.run(watched())
    assert not failed, failed
    return result


async def until(condition: Callable[[], bool], what: str = "the condition") -> None:
    """Wait until this holds."""
    try:
        async with asyncio.timeout(WAIT_S):
            while not condition():
                await asyncio.sleep(0.001)
    except TimeoutError:
        raise AssertionError(f"{what} did not come true within {WAIT_S} s") from None


class Log:
    """What one channel received."""

    def __init__(self, channel: Channel) -> None:
        self.got: dict[int, list[bytes]] = {}
        self.lost: dict[int, list[int]] = {}
        self.arrived: list[Instant] = []
        self.settled = 0
        channel.attach(self._pdu, self._lost, self._settled)

    def _pdu(self, source: ProcessId, data: memoryview, arrived: Instant) -> None:
        self.got.setdefault(source, []).append(bytes(data))
        self.arrived.append(arrived)

    def _lost(self, source: ProcessId, first: int, last: int) -> None:
        self.lost.setdefault(source, []).extend(range(first, last + 1))

    def _settled(self) -> None:
        self.settled += 1

    def accounted(self, source: int) -> int:
        """How many copies of this peer were received or told lost."""
        return len(self.got.get(source, ())) + len(self.lost.get(source, ()))


@asynccontextmanager
async def endpoints(
    count: int,
    settings: EndpointSettings | None = None,
    impairment: Impairment | None = None,
    fates: Callable[[ProcessId], Fates] | None = None,
) -> AsyncIterator[list[Endpoint]]:
    """Open endpoints at free ports that all know each other and are connected."""
    async with AsyncExitStack() as stack:
        opened = []
        for index in range(count):
            me = ProcessId(index)
            endpoint = await Endpoint.open(
                me,
                {me: ("127.0.0.1", 0)},
                settings=settings,
                impairment=fates(me) if fates is not None else impairment,
            )
            stack.push_async_callback(endpoint.close)
            opened.append(endpoint)
        for endpoint in opened:
            for other in opened:
                if other is not endpoint:
                    await endpoint.add_peer(other.me, other.address)
        await until(
            lambda: all(each.is_connected(peer) for each in opened for peer in each.peers),
            "every stream stands",
        )
        yield opened
