"""A participant on real sockets: in this process, or one of its own that prints what it learns.

As a program:  python discovery_member.py BOOTSTRAP ADDRESS NAME
It prints {"listen": …}, then {"known": [names]} whenever that changes, until it is ended.
"""

import asyncio
import json
import signal
import sys
import time
from random import Random
from typing import Any

from orderwire.aio.discovery_host import DiscoveryHost
from orderwire.aio.discovery_settings import TransportSettings
from orderwire.aio.discovery_tls import Credentials
from orderwire.aio.discovery_transport import DiscoveryTransport
from orderwire.discovery.commands import Change, End, Gone, Start, Unreachable
from orderwire.discovery.entrance import Entrance, SeedEntrance, ServerEntrance
from orderwire.discovery.fdp import FdpNode
from orderwire.discovery.settings import DiscoverySettings
from orderwire.kernel import NS_PER_S

DOMAIN = "test"


class Member:
    """One participant; its MAP is its name."""

    def __init__(self, host: "DiscoveryHost[Any, Any]", core: FdpNode, name: str) -> None:
        self.host = host
        self.core = core
        self.name = name
        self.started = 0.0
        self.gone = asyncio.Event()
        self.changed = asyncio.Event()

    @classmethod
    async def open(
        cls,
        name: str,
        server: str | None = None,
        *,
        address: str = "127.0.0.1:0",
        seeds: tuple[str, ...] = (),
        wish: int | None = None,
        settings: DiscoverySettings | None = None,
        limits: TransportSettings | None = None,
        credentials: Credentials | None = None,
        domain: str = DOMAIN,
    ) -> "Member":
        """Listen; the MAP is told with `start`."""
        settings = settings or DiscoverySettings(fail_ns=60 * NS_PER_S)
        transport = await DiscoveryTransport.open(
            address, domain=domain, settings=limits, credentials=credentials
        )
        guid = f"{name}/{time.time_ns()}"
        chance = Random(guid)
        entrance: Entrance
        if server is None:
            entrance = SeedEntrance(
                guid,
                transport.address,
                seeds or (transport.address,),
                settings,
                chance,
                started_ms=time.time_ns() // 1_000_000,
            )
        else:
            entrance = ServerEntrance(guid, transport.address, server, settings, wish=wish)
        core = FdpNode(transport.address, entrance, settings, chance)
        member: list[Member] = []
        host: DiscoveryHost[Any, Any] = DiscoveryHost(
            core,
            transport,
            lambda indication: member[0].tell(indication),
            unreachable=lambda address: Unreachable(address=address),
        )
        member.append(cls(host, core, name))
        return member[0]

    def tell(self, indication: Any) -> None:
        if isinstance(indication, Gone):
            self.gone.set()
        self.changed.set()

    def start(self) -> None:
        self.started = asyncio.get_running_loop().time()
        self.host.submit(Start(map=self.name.encode()))

    def change(self, text: str) -> None:
        self.host.submit(Change(map=text.encode()))

    @property
    def address(self) -> str:
        return self.host.address

    def known(self) -> list[str]:
        """The MAPs of the others that it takes for alive."""
        entries = self.core.live().values()
        return sorted(
            (each.map.deltas or (each.map.full,))[-1].decode() for each in entries if each.map
        )

    async def knows(self, *names: str, seconds: float = 100.0) -> float:
        """Wait until it knows these and no others; return the seconds since its start."""
        expected = sorted(name for name in names if name != self.name)
        async with asyncio.timeout(seconds):
            while self.known() != expected:
                await asyncio.sleep(0.005)
        return asyncio.get_running_loop().time() - self.started

    async def leave(self) -> None:
        """Say goodbye and close."""
        self.host.submit(End())
        async with asyncio.timeout(60):
            await self.gone.wait()
        await self.host.close()

    async def crash(self) -> None:
        """Close without a word."""
        await self.host.close()


async def _main(server: str, address: str, name: str) -> None:
    member = await Member.open(name, server, address=address)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    print(json.dumps({"listen": member.address}), flush=True)
    member.start()
    before = None
    while not stop.is_set():
        known = member.known()
        if known != before:
            before = known
            now = time.monotonic_ns()
            print(json.dumps({"known": known, "at_ns": now}), flush=True)
        waits = [asyncio.ensure_future(each.wait()) for each in (stop, member.changed)]
        # An entry that expires is not indicated at once: look now and then.
        await asyncio.wait(waits, timeout=0.05, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        member.changed.clear()
    await member.leave()


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
