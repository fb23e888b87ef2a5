"""eProsima/Fast-DDS 5019: the wall clock was set back, and a reader dropped every sample since.

The wall clock of each process is set by an hour in the middle of a run, both ways.
"""

import asyncio
import re
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from field import Field, field, start
from loopback import free_members

from orderwire import DeltaCausal, Dropped, Fifo, Order, Participant, Topic, Unordered
from orderwire.aio.clock import GroupClock

pytestmark = [pytest.mark.network, pytest.mark.timeout(120)]

ORDERS: dict[str, Order] = {
    "Δ-causal": DeltaCausal(lifetime_ms=5_000),
    "fifo": Fifo(lifetime_ms=5_000),
    "unordered": Unordered(lifetime_ms=5_000),
}
COUNT = 50
GAP_MS = 4
SECOND_NS = 1_000_000_000


async def converse(members: dict[str, Field], steps: dict[str, float]) -> None:
    """Let all write on topics of their own, which all others read; clocks are set half-way."""
    for name, member in members.items():
        for kind, order in ORDERS.items():
            more = {"gap_ms": GAP_MS, "step": steps.get(name, 0)} if kind == "Δ-causal" else {}
            topic = f"{name}/{kind}"
            member.say("write", order, topic=topic, count=COUNT, readers=len(members) - 1, **more)
    for member in members.values():
        for _ in ORDERS:
            await member.answer()


async def read_all(reader: Field, writers: list[str]) -> None:
    for name in writers:
        for kind, order in ORDERS.items():
            await reader.do("read", order, topic=f"{name}/{kind}", by="callback")


async def heard_everything(members: dict[str, Field], counts: dict[tuple[str, str], int]) -> None:
    """Nothing was dropped, and all came in time; `counts`: reader, writer → messages of a topic."""
    for member in members.values():
        await member.do("drain")
    for me, member in members.items():
        told = await member.tell()
        assert told.drops == []
        assert sorted(told.connected) == sorted(set(members) - {me})
        for other in told.connected:
            for kind in ORDERS:
                heard = told.heard[f"{other}/{kind}"]
                assert len(heard) == counts[me, other]
                if kind != "unordered":
                    assert heard == sorted(heard, key=lambda each: each[1])
                # Nothing from the future, nothing an hour late: within a busy machine's pause.
                assert all(-SECOND_NS < age < 4 * SECOND_NS for *_, age in heard)


def test_5019_a_wall_clock_that_is_set_loses_and_delays_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        async with field("ana", "ben", wall=0, runtime=tmp_path) as (ana, ben):
            members = {"ana": ana, "ben": ben}
            await read_all(ana, ["ben"])
            await read_all(ben, ["ana"])
            settings = [{}, {"ana": -1}, {"ben": 1}, {"ana": 1, "ben": -2}]
            for steps in settings:
                await converse(members, steps)
            count = len(settings) * COUNT
            await heard_everything(members, {("ana", "ben"): count, ("ben", "ana"): count})

    asyncio.run(asyncio.wait_for(test(), 100))


@pytest.mark.parametrize("hours", [-1, 1])
def test_5019_a_member_that_starts_after_the_clock_was_set_is_not_apart(
    hours: int, tmp_path: Path
) -> None:
    """All members are on one machine, whose clock is set between the starts of two of them."""

    async def test() -> None:
        addresses = free_members("ana", "ben")
        async with AsyncExitStack() as stack:
            members = {
                name: await start(stack, name, addresses, wall=wall, runtime=tmp_path)
                for name, wall in (("ana", 0), ("ben", hours))
            }
            for name, other in (("ana", "ben"), ("ben", "ana")):
                await read_all(members[name], [other])
            await converse(members, {})
            await heard_everything(members, {("ana", "ben"): COUNT, ("ben", "ana"): COUNT})

    asyncio.run(asyncio.wait_for(test(), 100))


def test_a_member_whose_clock_is_far_ahead_is_refused_and_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """On two machines nobody can know which clock is right: it is told, and nobody waits."""

    async def test() -> None:
        members = free_members("ana", "ben")
        ahead = GroupClock(wall_ns=lambda: time.time_ns() + 3_600 * SECOND_NS)
        drops: list[Dropped] = []
        async with (
            Participant("ana", members=members, clock=ahead) as ana,
            Participant("ben", members=members, on_drop=drops.append) as ben,
        ):
            topic = Topic("t", order=DeltaCausal(lifetime_ms=5_000))
            heard = ben.reader(topic)
            writer, answering = ana.writer(topic), ben.writer(topic)
            late = ana.reader(topic, own=False)
            await writer.wait_matched(1, timeout_s=20)
            await answering.wait_matched(2, timeout_s=20)
            for _ in range(3):
                writer.write(b"from the future")
                answering.write(b"from the past")
            while not (ben.counters.refused == 3 and ana.counters.late + ana.counters.lost == 3):
                await asyncio.sleep(0.01)
            assert (await heard.read(timeout_s=20)).source == "ben"
            assert late.read_nowait() is None
            await asyncio.sleep(0.1)
        assert {each.reason for each in drops if each.pattern is None} == {"refused"}
        assert sum(each.count for each in drops if each.pattern is None) == 3

    asyncio.run(asyncio.wait_for(test(), 100))
    told = [record.getMessage() for record in caplog.records if record.name.endswith("domain")]
    assert len(told) == 1
    assert re.match(r"the clock of ana is (3599\.9|3600\.0)\d+ s ahead of ours", told[0])
