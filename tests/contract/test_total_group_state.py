"""Who joins takes the state of the others as it was at its view, and misses nothing.  [S003]"""

import asyncio
import json

import pytest
from discovered import in_a_loop, until
from view_cluster import views

from orderwire import Installed, TotalGroup

pytestmark = [pytest.mark.network, pytest.mark.timeout(120)]

STATE, UPDATE = b"s", b"u"


class Replica:
    """A state that all members change: here the list of all changes, in their order."""

    def __init__(self, group: TotalGroup) -> None:
        self.group = group
        self.state: list[str] | None = None
        """None: it is still to come."""
        self._early: list[str] = []
        self.taken = 0
        """Changes that were in the state that it was sent."""

    async def follow(self) -> None:
        async for event in self.group.events():
            if isinstance(event, Installed):
                await self._view(event)
            elif event.payload[:1] == STATE:
                if self.state is None:
                    at_the_view = json.loads(event.payload[1:])
                    self.taken = len(at_the_view)
                    self.state = at_the_view + self._early
            elif self.state is None:
                self._early.append(event.payload[1:].decode())
            else:
                self.state.append(event.payload[1:].decode())

    async def _view(self, view: Installed) -> None:
        stayed = {member.process for member in view.members} - set(view.joined)
        if view.number == 1:
            self.state = []  # There is nothing to take.
        elif view.joined and self.group.me == min(stayed, default=None):
            state = STATE + json.dumps(self.state).encode()
            await self.group.write(state, view.joined)

    async def change(self, count: int) -> None:
        for number in range(count):
            await self.group.write(UPDATE + f"{self.group.me}-{number}".encode())
            await asyncio.sleep(0.002)


@in_a_loop
async def test_a_newcomer_takes_the_state_as_it_was_at_its_view() -> None:
    async with views("state") as zookeeper, asyncio.TaskGroup() as tasks:

        async def enter(least: int = 1) -> Replica:
            replica = Replica(await TotalGroup.enter(zookeeper, "state", least=least))
            tasks.create_task(replica.follow())
            return replica

        founders = await asyncio.gather(enter(2), enter(2))
        changing = [tasks.create_task(each.change(300)) for each in founders]
        await until(lambda: len(founders[0].state or ()) > 50, 30)
        newcomer = await enter()
        await asyncio.gather(*changing, newcomer.change(20))
        replicas = (*founders, newcomer)
        await until(lambda: all(len(each.state or ()) == 620 for each in replicas), 30)
        assert newcomer.taken >= 50
        assert founders[0].state == founders[1].state == newcomer.state
        for each in replicas:
            await each.group.close()
