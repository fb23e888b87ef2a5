"""Leading the members through the conference: everyone there, talk, quiet, leave."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from orderwire.aio.discovery_host import DiscoveryHost, monotonic_now
from orderwire.aio.discovery_transport import DiscoveryTransport
from orderwire.aio.impairment import Impairment
from orderwire.cli.demo.children import Child, ChildError
from orderwire.cli.demo.script import MEMBER_NAMES
from orderwire.cli.demo.settings import (
    DOMAIN,
    GUEST,
    LIFETIME_MS,
    GuestSettings,
    MemberSettings,
    settle_s,
)
from orderwire.cli.demo.sightings import VIEW, Found, Sightings
from orderwire.discovery.bootstrap import BootstrapServer
from orderwire.discovery.settings import BootstrapSettings

READY_SECONDS_MAX = 40.0
TALK_SECONDS_MAX = 150.0
LEAVE_SECONDS_MAX = 30.0
VISIT_S = 2.0
"""How long the conference goes on before the guest is killed."""

SETTLE_S = 1.0 + settle_s()
"""… and after how long everybody's view of the guest that is back must be right."""

Start: TypeAlias = Callable[[str, bool], Awaitable[Child]]


class Conference:
    """The members' processes."""

    def __init__(
        self, members: list[Child], domain: DiscoveryHost[Any, Any], guest: Child, start: Start
    ) -> None:
        self._members = members
        self._domain = domain
        self._guest = guest
        self._start = start
        self._listens = ""
        self._guest_id = -1
        self._settled_at = 0.0
        self._said: dict[str, tuple[int, int]] = {}
        self._sightings = Sightings([child.name for child in members], GUEST)

    @classmethod
    async def gather(
        cls,
        *,
        run: str,
        count: int,
        brokers: str,
        text_path: Path | None,
        impairment: Impairment,
        folder: Path,
        started: list[Child],
    ) -> "Conference":
        """Start the members; each is added to `started` at once, so that it can be stopped."""
        names = list(MEMBER_NAMES[:count])
        domain = await _open_domain()
        members = []
        for me, name in enumerate(names):
            settings = MemberSettings(
                run=run,
                me=me,
                members=names,
                bootstrap=domain.address,
                brokers=brokers,
                text_path=None if text_path is None else str(text_path.resolve()),
                impairment=msgspec.structs.replace(impairment, seed=impairment.seed + me),
            )
            child = await Child.start(name, "orderwire.cli.demo.member", settings, folder)
            started.append(child)
            members.append(child)

        async def start(listen: str, listens: bool) -> Child:
            visit = GuestSettings(
                name=GUEST,
                me=count,
                bootstrap=domain.address,
                listen=listen,
                listens=listens,
                run=run,
                brokers=brokers,
                impairment=msgspec.structs.replace(impairment, seed=impairment.seed + count),
            )
            guest = await Child.start(GUEST, "orderwire.cli.demo.guest", visit, folder)
            started.append(guest)
            return guest

        return cls(members, domain, await start("127.0.0.1:0", False), start)

    async def close(self) -> None:
        """End the domain's server."""
        await self._domain.close()

    @property
    def discovery(self) -> Found:
        """What the members saw of each other, and when."""
        return self._sightings.found()

    async def talk(self, tell: Callable[[int, int], None]) -> None:
        """Let everyone talk until all is said; tell how many utterances were said and read."""
        await self._all("ready", READY_SECONDS_MAX)
        there = await self._guest.wait_for("there", READY_SECONDS_MAX)
        self._listens, self._guest_id = there["listens"], there["id"]
        await self._order("talk")

        async def finish(child: Child) -> None:
            def note(answer: dict[str, Any]) -> None:
                if self._saw(answer):
                    return
                self._said[child.name] = (answer["said"], answer["read"])
                said, read = zip(*self._said.values(), strict=True)
                tell(sum(said), sum(read))

            note(await child.wait_for("finished", TALK_SECONDS_MAX, note))

        await asyncio.gather(self._visit_again(), *(finish(child) for child in self._members))

    async def _visit_again(self) -> None:
        """Kill the guest in the middle of the talk, and start it again at the same address."""
        await asyncio.sleep(VISIT_S)
        self._guest.kill()
        # It cannot say so itself, and whoever reads the trace must know.
        await self._members[0].tell({"do": "gone", "id": self._guest_id})
        self._guest = await self._start(self._listens, True)
        await self._guest.wait_for("there", READY_SECONDS_MAX)
        self._sightings.restarted(time.time())
        self._settled_at = time.monotonic() + SETTLE_S

    def _saw(self, answer: dict[str, Any]) -> bool:
        """Take what a member says of its view; False when it says something else."""
        if answer["is"] != VIEW:
            return False
        self._sightings.add({name: answer[name] for name in answer if name != "is"})
        return True

    async def leave(self) -> None:
        """Fall silent, wait until the last copy has come or died, and leave.

        Not before the guest has been back for long enough that everybody's view must be right.
        """
        await asyncio.sleep(max(0.0, self._settled_at - time.monotonic()))
        await self._order("quiet")
        await self._all("quiet", LEAVE_SECONDS_MAX)
        await asyncio.sleep(2 * LIFETIME_MS / 1_000)
        await self._order("leave")
        await self._guest.tell({"do": "leave"})
        await self._guest.wait_for("left", LEAVE_SECONDS_MAX)
        for child, answer in zip(
            self._members, await self._all("left", LEAVE_SECONDS_MAX), strict=True
        ):
            if answer["unpublished"]:
                raise ChildError(
                    f"the broker did not take {answer['unpublished']} of {child.name}'s deliveries"
                )

    async def _order(self, what: str) -> None:
        for child in self._members:
            await child.tell({"do": what})

    async def _all(self, what: str, seconds: float) -> list[dict[str, Any]]:
        return await asyncio.gather(
            *(child.wait_for(what, seconds, self._saw) for child in self._members)
        )


async def _open_domain() -> DiscoveryHost[Any, Any]:
    """Start the server that gives ids."""
    transport = await DiscoveryTransport.open("127.0.0.1:0", domain=DOMAIN)
    server = BootstrapServer(BootstrapSettings(), monotonic_now(), epoch=int(time.time()))
    return DiscoveryHost(server, transport, lambda indication: None)
