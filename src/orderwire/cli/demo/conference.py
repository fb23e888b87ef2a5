"""Leading the members through the conference: everyone there, talk, quiet, leave."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from orderwire.aio.impairment import Impairment
from orderwire.cli.demo.children import Child, ChildError
from orderwire.cli.demo.settings import LIFETIME_MS, MemberSettings, free_addresses

READY_SECONDS_MAX = 40.0
TALK_SECONDS_MAX = 150.0
LEAVE_SECONDS_MAX = 30.0


class Conference:
    """The members' processes."""

    def __init__(self, members: list[Child], addresses: dict[str, str]) -> None:
        self._members = members
        self.addresses = addresses
        self._said: dict[str, tuple[int, int]] = {}

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
        addresses = free_addresses(count)
        members = []
        for me, name in enumerate(addresses):
            settings = MemberSettings(
                run=run,
                me=me,
                addresses=addresses,
                brokers=brokers,
                text_path=None if text_path is None else str(text_path.resolve()),
                impairment=msgspec.structs.replace(impairment, seed=impairment.seed + me),
            )
            child = await Child.start(name, "orderwire.cli.demo.member", settings, folder)
            started.append(child)
            members.append(child)
        return cls(members, addresses)

    async def talk(self, tell: Callable[[int, int], None]) -> None:
        """Let everyone talk until all is said; tell how many utterances were said and read."""
        await self._all("ready", READY_SECONDS_MAX)
        await self._order("talk")

        async def finish(child: Child) -> None:
            def note(answer: dict[str, Any]) -> None:
                self._said[child.name] = (answer["said"], answer["read"])
                said, read = zip(*self._said.values(), strict=True)
                tell(sum(said), sum(read))

            note(await child.wait_for("finished", TALK_SECONDS_MAX, note))

        await asyncio.gather(*(finish(child) for child in self._members))

    async def leave(self) -> None:
        """Fall silent, wait until the last copy has come or died, and leave."""
        await self._order("quiet")
        await self._all("quiet", LEAVE_SECONDS_MAX)
        await asyncio.sleep(2 * LIFETIME_MS / 1_000)
        await self._order("leave")
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
        return await asyncio.gather(*(child.wait_for(what, seconds) for child in self._members))
