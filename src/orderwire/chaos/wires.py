"""Wires between brokers, and from brokers to ZooKeeper, that can be stalled and cut.

Each broker tells the others the address of a proxy here.  A wire is stalled as a network that
drops everything: connections stay, nothing comes, and what was sent comes late.  A wire that is cut
breaks its connections and refuses new ones.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeAlias

from orderwire.aio.accepting import accept_no_more, turns
from orderwire.aio.cluster_frames import LENGTH_BYTES, read_hello
from orderwire.kernel.errors import RemoteProtocolError

ZOOKEEPER = -2
"""The other end of a wire to ZooKeeper."""
_PIECE_BYTES = 1 << 16
Wire: TypeAlias = tuple[int, int]
"""Both ends, ascending."""


def wire(a: int, b: int) -> Wire:
    """The wire between these two."""
    return (min(a, b), max(a, b))


class Wires:
    """Proxies in a thread of their own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="wires", daemon=True)
        self._thread.start()
        self._open: dict[Wire, asyncio.Event] = {}
        self._cut: set[Wire] = set()
        self._live: dict[Wire, set[asyncio.StreamWriter]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._doors: dict[int, _Door] = {}
        self._served: list[_Door] = []

    def to_broker(self, broker: int, host: str, port: int) -> int:
        """Proxy a broker's internal listener; returns the port.  Who calls says hello."""

        def who(first: bytes) -> Wire | None:
            try:
                return wire(broker, read_hello(memoryview(first)[LENGTH_BYTES + 1 :]).source)
            except RemoteProtocolError:
                return None

        door = _Door(host, port, who)
        self._doors[broker] = door
        return self._serve(door)

    def reopen(self, broker: int) -> None:
        """Listen for a broker again that had gone: its port was refused meanwhile, as is right."""
        door = self._doors[broker]
        self._serve(door)

    def to_zookeeper(self, broker: int, host: str, port: int) -> int:
        """Proxy ZooKeeper for one broker; returns the port."""
        return self._serve(_Door(host, port, lambda _: wire(broker, ZOOKEEPER), stays=True))

    def stall(self, *wires: Wire) -> None:
        """Let nothing through."""

        def work() -> None:
            for each in wires:
                self._gate(each).clear()

        self._call(work)

    def cut(self, *wires: Wire) -> None:
        """Break what there is and refuse what comes."""

        def work() -> None:
            for each in wires:
                self._cut.add(each)
                self._gate(each).set()
                for writer in list(self._live.get(each, ())):
                    writer.transport.abort()

        self._call(work)

    def heal(self) -> None:
        """Let everything through again."""

        def work() -> None:
            self._cut.clear()
            for gate in self._open.values():
                gate.set()

        self._call(work)

    def close(self) -> None:
        """End every connection."""

        async def work() -> None:
            for door in self._served:
                await door.shut()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await turns()

        asyncio.run_coroutine_threadsafe(work(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _gate(self, each: Wire) -> asyncio.Event:
        gate = self._open.get(each)
        if gate is None:
            gate = self._open[each] = asyncio.Event()
            gate.set()
        return gate

    def _call(self, work: Callable[[], object]) -> None:
        done: Future[None] = Future()

        def call() -> None:
            work()
            done.set_result(None)

        self._loop.call_soon_threadsafe(call)
        done.result(10)

    def _serve(self, door: "_Door") -> int:
        async def begin() -> int:
            def taken(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                task = self._loop.create_task(self._carry(reader, writer, door))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                # Who is cancelled before it begins aborts nothing itself.
                task.add_done_callback(lambda _: writer.transport.abort())

            async with door.changing:
                if door.server is None:
                    self._served.append(door)
                    door.server = await asyncio.start_server(taken, "127.0.0.1", door.own_port)
                    door.own_port = int(door.server.sockets[0].getsockname()[1])
            return door.own_port

        return asyncio.run_coroutine_threadsafe(begin(), self._loop).result(10)

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, door: "_Door"
    ) -> None:
        """Carry one connection until either side ends it."""
        out: asyncio.StreamWriter | None = None
        between: Wire | None = None
        try:
            first = await reader.read(_PIECE_BYTES)
            if not first:  # somebody looks whether we listen
                await door.look()
            between = door.who(first) if first else None
            if between is None or between in self._cut:
                return
            gate = self._gate(between)
            await gate.wait()
            back, out = await door.connect()
            self._live.setdefault(between, set()).update((writer, out))
            if between in self._cut:
                return
            out.write(first)
            ways = [
                asyncio.create_task(_pump(reader, out, gate)),
                asyncio.create_task(_pump(back, writer, gate)),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                # What either side says last is held up by a stalled wire, too.
                await gate.wait()
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        except OSError:
            pass
        finally:
            for each in (writer, out):
                if each is not None:
                    if between is not None:
                        self._live.get(between, set()).discard(each)
                    with contextlib.suppress(OSError):
                        each.transport.abort()


class _Door:
    """Where something listens, and who calls there."""

    def __init__(
        self, host: str, port: int, who: Callable[[bytes], Wire | None], *, stays: bool = False
    ) -> None:
        self.who = who
        self.own_port = 0
        """0 until it listens."""
        self.server: asyncio.Server | None = None
        self.changing = asyncio.Lock()
        self._host = host
        self._port = port
        self._stays = stays

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Call what stands behind.  Where nobody listens any more, neither do we."""
        try:
            return await asyncio.open_connection(self._host, self._port)
        except ConnectionRefusedError:
            if not self._stays:
                await self.shut()
            raise

    async def shut(self) -> None:
        """Listen no more."""
        async with self.changing:
            if self.server is not None:
                await accept_no_more(self.server)
                self.server = None

    async def look(self) -> None:
        """See whether somebody listens behind."""
        _, writer = await self.connect()
        writer.transport.abort()


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event
) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_PIECE_BYTES):
            await gate.wait()
            writer.write(data)
            await writer.drain()
