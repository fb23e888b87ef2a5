"""Groups with one total order on loopback, for tests."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from random import Random

import msgspec
import pyarrow as pa

from orderwire import TotalGroup, TotalGroupSettings, TotalMessage
from orderwire.aio.total_relay import ChannelRelay, RelaySettings
from orderwire.kernel import members_of
from orderwire.trace.events import EventKind
from orderwire.trace.schema import events_from_table, table_from_events
from orderwire.verify.selective_total import Logs

Id = tuple[int, int]
"""Source and number."""


class Told:
    """What was written and delivered, for the judge."""

    def __init__(self, members: int) -> None:
        self.sent: dict[int, list[Id]] = {k: [] for k in range(members)}
        self.received: dict[int, list[Id]] = {k: [] for k in range(members)}
        self.destinations: dict[Id, set[int]] = {}

    def wrote(self, source: int, number: int, destinations: Sequence[int]) -> None:
        """Note a message."""
        self.sent[source].append((source, number))
        self.destinations[source, number] = set(destinations)

    def got(self, member: int, message: TotalMessage) -> None:
        """Note a delivery."""
        found = set(map(int, members_of(message.destinations)))
        ident = (int(message.source), message.number)
        assert self.destinations.setdefault(ident, found) == found
        self.received[member].append(ident)

    def due(self, member: int) -> int:
        """How many messages are for this member."""
        return sum(member in to for to in self.destinations.values())

    def logs(self) -> Logs[Id]:
        """What `verify` judges."""
        return Logs(sent=self.sent, received=self.received, destinations=self.destinations)


@asynccontextmanager
async def fixed_group(
    members: int,
    relay: RelaySettings | None = None,
    settings: Mapping[int, TotalGroupSettings] | TotalGroupSettings | None = None,
) -> AsyncIterator[tuple[ChannelRelay, list[TotalGroup]]]:
    """Run a relay and all members of a fixed group in this process."""
    channel = await ChannelRelay.open(("127.0.0.1", 0), relay)
    host, port = channel.address
    async with AsyncExitStack() as stack:
        stack.push_async_callback(channel.close)
        joining = [
            TotalGroup.join(
                f"{host}:{port}",
                me=me,
                members=members,
                settings=settings.get(me) if isinstance(settings, Mapping) else settings,
            )
            for me in range(members)
        ]
        groups = await asyncio.gather(*joining)
        try:
            yield channel, groups
        finally:
            await asyncio.gather(*(group.close(wait_s=1.0) for group in groups))


async def write_to_subsets(
    group: TotalGroup, told: Told, count: int, chance: Random, *, pause_s: float = 0.0
) -> None:
    """Write so many messages, each to destinations of its own."""
    members = [*map(int, group.members)]
    for _ in range(count):
        to = sorted(chance.sample(members, chance.randrange(1, len(members) + 1)))
        payload = bytes(chance.randrange(300))
        told.wrote(int(group.me), await group.write(payload, to), to)
        if pause_s:
            await asyncio.sleep(chance.random() * 2 * pause_s)


async def read_all(group: TotalGroup, told: Told) -> None:
    """Note what is handed out until the group is left."""
    async for message in group:
        told.got(int(group.me), message)


async def run_to_rest(groups: Sequence[TotalGroup], told: Told, count: int, seed: int) -> None:
    """Let all members write and read until everything is delivered."""
    readers = [asyncio.create_task(read_all(group, told)) for group in groups]
    await asyncio.gather(
        *(
            write_to_subsets(group, told, count, Random(f"{seed}/{group.me}"), pause_s=0.001)
            for group in groups
        )
    )
    async with asyncio.timeout(60):
        while any(len(told.received[int(g.me)]) < told.due(int(g.me)) for g in groups):
            await asyncio.sleep(0.01)
    for reader in readers:
        reader.cancel()
    await asyncio.gather(*readers, return_exceptions=True)


_OF_A_DELIVERY = (
    *("source", "number", "stamp_ns", "arrived_ns"),
    *("destinations", "control_bytes", "payload_bytes"),
)


def swapped(table: pa.Table, one: int = 0, other: int = 1) -> pa.Table:
    """Let a member hand over in the other order two neighbours that another one has, too.

    They are of two sources, and of one view.
    """
    events = events_from_table(table)
    mine = [at for at, event in enumerate(events) if event.process == other]
    deliver = EventKind.DELIVER
    there = {(e.source, e.number) for e in events if (e.process, e.kind) == (one, deliver)}
    first, second = next(
        (a, b)
        for a, b in pairwise(mine)
        if events[a].kind is events[b].kind is deliver
        and events[a].source != events[b].source
        and all((events[at].source, events[at].number) in there for at in (a, b))
    )
    taken = [{name: getattr(events[at], name) for name in _OF_A_DELIVERY} for at in (first, second)]
    events[first] = msgspec.structs.replace(events[first], **taken[1])
    events[second] = msgspec.structs.replace(events[second], **taken[0])
    return table_from_events(events)
