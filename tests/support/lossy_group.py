"""A group of participants that talk over a lossy way, and what it cost them.

Sockets are real, delays and losses are injected where datagrams leave.  In virtual time the clock
only moves when nothing is left to do: see `virtual_loop`.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from random import Random
from statistics import fmean

import msgspec
from loopback import free_members
from virtual_loop import VirtualLoop

from orderwire import Counters, Impairment, Order, Participant, Sample, Topic, Trace
from orderwire.aio.clock import GroupClock
from orderwire.trace import MemorySink

NAMES = ("ana", "ben", "carl", "dora")


class Told(msgspec.Struct):
    """What one order gave its readers."""

    held_ms: list[float]
    """How long each sample waited for its turn after it had come."""
    counters: list[Counters]
    notices: int

    @property
    def wait_ms(self) -> float:
        """Mean over all that was given."""
        return fmean(self.held_ms)


def converse(
    orders: Sequence[Order],
    impairment: Impairment,
    *,
    messages: int,
    gap_ms: float = 4.0,
    sink: MemorySink | None = None,
    real_time: bool = False,
) -> dict[str, Told]:
    """Let every member multicast so often in every order; return what came of it, by algorithm."""
    if real_time:
        return asyncio.run(_converse(orders, impairment, messages, gap_ms, sink, None))
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualLoop)
        return runner.run(_converse(orders, impairment, messages, gap_ms, sink, loop))


async def _converse(
    orders: Sequence[Order],
    impairment: Impairment,
    messages: int,
    gap_ms: float,
    sink: MemorySink | None,
    loop: VirtualLoop | None,
) -> dict[str, Told]:
    clock = GroupClock()
    if loop is not None:
        clock = GroupClock(wall_ns=lambda: loop.now_ns, monotonic_ns=lambda: loop.now_ns)
    addresses = free_members(*NAMES)
    told = {order.algorithm: Told([], [], 0) for order in orders}
    async with AsyncExitStack() as stack:
        members = [
            await stack.enter_async_context(
                Participant(
                    name,
                    members=addresses,
                    restarted=False,
                    clock=clock,
                    impairment=impairment,
                    trace=None if sink is None else Trace(run="lossy", sink=sink),
                )
            )
            for name in NAMES
        ]
        writers = []
        for order in orders:
            held = told[order.algorithm].held_ms

            def take(sample: Sample, held: list[float] = held) -> None:
                held.append(sample.held_ms)

            for member in members:
                member.reader("*", order=order, callback=take, own=False)
            for member in members:
                writers.append(member.writer(Topic(member.name, order)))
        for writer in writers:
            await writer.wait_matched(len(NAMES) - 1, timeout_s=30)
        if loop is not None:
            loop.settling = False

        async def speak(index: int) -> None:
            chance = Random(f"{impairment.seed}/{index}")
            for number in range(messages):
                await asyncio.sleep(chance.uniform(0.0, 2.0 * gap_ms) / 1e3)
                writers[index].write(b"%d" % number)

        await asyncio.gather(*(speak(index) for index in range(len(writers))))
        await asyncio.sleep(1.0)
        for order in orders:
            told[order.algorithm].counters = [each.counters_of(order) for each in members]
            told[order.algorithm].notices = sum(
                each._domains[order.key].channel.counters(peer).notices
                for each in members
                for peer in each._opened().peers
            )
        if loop is not None:
            loop.settling = True
    return told
