"""Listeners that end while connections come in: each connection ends with them.

In the turns of the loop after it was accepted a connection has no transport, then no protocol.  One
in many runs was lost so, and its socket told of in another test, or stayed open for ever.
"""

import asyncio
import contextlib
import gc
import socket
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TypeAlias

import pytest
import uvloop
from quiet_links import quiet_links

from orderwire.aio.broker_server import BrokerServer
from orderwire.aio.endpoint import Endpoint
from orderwire.kernel import ProcessId

pytestmark = pytest.mark.network

CALLS = 10
TURNS = 6
SECONDS_MAX = 20.0
Listening: TypeAlias = tuple[tuple[str, int], Callable[[], Awaitable[None]]]


async def broker(folder: Path) -> Listening:
    server = await BrokerServer.start(folder)
    return server.address, server.close


async def member(folder: Path) -> Listening:
    me = ProcessId(0)
    endpoint = await Endpoint.open(me, {me: ("127.0.0.1", 0)})
    return endpoint.address, endpoint.close


async def links(folder: Path) -> Listening:
    made = await quiet_links()
    return made.address, made.close


def all_end(calls: list[socket.socket]) -> None:
    for call in calls:
        with contextlib.suppress(ConnectionResetError):
            assert call.recv(1) == b""


@pytest.mark.parametrize(
    "loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)
@pytest.mark.parametrize("start", [broker, member, links])
def test_what_is_accepted_while_they_close_is_closed(
    tmp_path: Path,
    start: Callable[[Path], Awaitable[Listening]],
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def work(turns: int) -> None:
        address, close = await start(tmp_path)
        with ExitStack() as stack:
            calls = [
                stack.enter_context(socket.create_connection(address, SECONDS_MAX))
                for _ in range(CALLS)
            ]
            for _ in range(turns):
                await asyncio.sleep(0)
            await close()
            gc.collect()  # else what is left open is told of in another test
            await asyncio.get_running_loop().run_in_executor(None, all_end, calls)

    with asyncio.Runner(loop_factory=loop) as runner:
        for turns in range(TURNS):
            runner.run(work(turns))
