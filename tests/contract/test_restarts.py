"""Members that are killed, restarted and stopped, as processes: order and books stay right."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from loopback import free_members

from orderwire import (
    DeltaCausal,
    Fifo,
    Impairment,
    Order,
    Participant,
    Sample,
    Topic,
    Writer,
    Written,
)
from orderwire.aio.endpoint import EndpointSettings

pytestmark = [pytest.mark.network, pytest.mark.timeout(120)]

SCRIPT = Path(__file__).parents[1] / "support" / "live_member.py"
BAD_NETWORK = Impairment(
    seed=7, delay_ms=1, jitter_mean_ms=6, loss_ratio=0.03, duplicate_ratio=0.02
)
LIFETIME_MS = 400
SILENCE_S = 3
"""Longer than a busy machine stops a process that is well."""


class Child:
    """A member in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.written = 0
        self.first_after_ns = 0

    async def read(self, what: str) -> Any:
        """Read lines until one has this field; return it."""
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            told = json.loads(line)
            if told.get("written") == 1:
                self.first_after_ns = told["after_ns"]
            self.written = told.get("written", self.written)
            if what in told:
                return told[what]
        raise AssertionError(f"the member ended without saying {what!r}")

    async def counters(self) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(b"counters\n")
        return await self.read("counters")


@asynccontextmanager
async def child(**settings: Any) -> AsyncIterator[Child]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(SCRIPT), json.dumps(settings), stdin=pipe, stdout=pipe
    )
    try:
        yield Child(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


class Survivor:
    """A member of this process, what it heard, and how many copies the present ben was sent."""

    def __init__(self, participant: Participant, order: Order) -> None:
        self.participant = participant
        self.heard: list[Sample] = []
        self.to_ben = 0
        self.reachable: list[tuple[str, bool]] = []
        self.writer: Writer = participant.writer(Topic(participant.name, order=order))
        participant.reader("*", order=order, callback=self.heard.append, own=False)

    def write(self, data: bytes) -> Written | None:
        written = self.writer.write(data)
        if written is not None and written.members == 2:
            self.to_ben += 1
        return written


@asynccontextmanager
async def survivors(
    members: dict[str, str], order: Order, **settings: Any
) -> AsyncIterator[tuple[Survivor, Survivor]]:
    found: dict[str, Survivor] = {}

    def watch(me: str) -> Any:
        def on_member(name: str, reachable: bool) -> None:
            found[me].reachable.append((name, reachable))
            if (name, reachable) == ("ben", False):
                found[me].to_ben = 0

        return on_member

    async with (
        Participant("ana", members=members, on_member=watch("ana"), **settings) as ana,
        Participant("carl", members=members, on_member=watch("carl"), **settings) as carl,
    ):
        found |= {each.name: Survivor(each, order) for each in (ana, carl)}
        yield found["ana"], found["carl"]


def accounted(counters: Any) -> int:
    get = counters.get if isinstance(counters, dict) else lambda name: getattr(counters, name)
    return sum(get(name) for name in ("delivered", "late", "lost", "refused"))


@pytest.mark.parametrize("order", [DeltaCausal(lifetime_ms=LIFETIME_MS), Fifo()], ids=["Δ", "fifo"])
def test_a_killed_member_comes_back_without_harm(order: Order) -> None:
    """Killed amid traffic and restarted at once, over a bad network."""
    members = free_members("ana", "ben", "carl")
    kind = "fifo" if isinstance(order, Fifo) else "delta"
    settings = {
        "me": "ben",
        "members": members,
        "order": kind,
        "lifetime_ms": LIFETIME_MS,
        "silence_s": 10,
        "readers": 3,
    }

    async def test() -> None:
        async with survivors(members, order, impairment=BAD_NETWORK) as (ana, carl):
            # Carl answers what ben says, so that ana hears of it on two ways.
            carl.participant.reader(
                "ben", order=order, callback=lambda sample: carl.write(sample.data) and None
            )

            async def talk() -> None:
                while True:
                    ana.write(b"ana")
                    await asyncio.sleep(0.002)

            await ana.writer.wait_matched(1, timeout_s=30)
            talking = asyncio.create_task(talk())
            async with child(**settings, writes=100_000) as first:
                while first.written < 150:
                    await first.read("written")
                first.process.kill()
                async with child(**settings, writes=150) as second:
                    with pytest.raises(AssertionError, match="ended"):
                        await first.read("counters")
                    await second.read("done")
                    talking.cancel()
                    for survivor in (ana, carl):
                        await survivor.participant.drain(timeout_s=20)
                    counters = await second.counters()
                    assert second.written == 150

                    # The new incarnation counts what was written for it, and nothing else.
                    assert accounted(counters) == ana.to_ben + carl.to_ben > 0
                    for survivor, other in ((ana, carl), (carl, ana)):
                        mine = survivor.participant.counters
                        # ben's last copy may have left without his saying so.
                        sent = other.participant.counters.written + first.written + 150
                        assert sent <= accounted(mine) <= sent + 1
                        assert mine.duplicate == mine.malformed == mine.refused == 0
                    if kind == "delta":
                        assert second.first_after_ns >= (LIFETIME_MS + 1) * 1_000_000

        texts = [
            tuple(map(int, sample.data.split())) for sample in carl.heard if b" " in sample.data
        ]
        assert texts == sorted(set(texts))
        assert len({life for life, _ in texts}) == 2
        said = [
            (sample.source, tuple(map(int, sample.data.split())))
            for sample in ana.heard
            if b" " in sample.data
        ]
        newest, answered = (0, 0), (0, 0)
        for source, what in said:
            if source == "ben":
                assert what > newest
                if kind == "delta":
                    assert what > answered, "an answer overtook what it answers"
                newest = what
            else:
                answered = max(answered, what)

    asyncio.run(asyncio.wait_for(test(), 100))


def test_a_stopped_member_stops_nobody_and_is_told_what_it_missed() -> None:
    members = free_members("ana", "ben", "carl")
    settings = {
        "me": "ben",
        "members": members,
        "order": "fifo",
        "silence_s": SILENCE_S,
        "readers": 2,
        "writes": 1,
    }
    order = Fifo()

    async def test() -> None:
        network = EndpointSettings(silence_s=SILENCE_S)
        async with (
            survivors(members, order, settings=network) as (ana, carl),
            child(**settings) as ben,
        ):
            await ben.read("done")
            await ana.writer.wait_matched(2, timeout_s=30)
            ben.process.send_signal(signal.SIGSTOP)
            count = 0
            while ("ben", False) not in ana.reachable:
                ana.write(bytes(20_000))
                count += 1
                await ana.writer.drain()
                await asyncio.sleep(0)
            for _ in range(100):
                ana.write(b"without ben")
            await ana.participant.flush(timeout_s=20)
            given_up = ana.participant.counters.unsent + ana.participant.counters.unconfirmed
            assert 0 < given_up <= count
            assert sum(sample.source == "ana" for sample in carl.heard) == count + 100
            assert ana.participant.connected == ("carl",)

            ben.process.send_signal(signal.SIGCONT)
            await ana.writer.wait_matched(2, timeout_s=30)
            assert ana.reachable[-1] == ("ben", True)
            ana.write(b"with ben")
            await ana.participant.flush(timeout_s=20)
            told = await ben.counters()
            # What ben was sent in this life: all but what was written without it.
            assert accounted(told) == count + 1
            assert told["delivered"] >= count + 1 - given_up
            assert told["lost"] > 0

    asyncio.run(asyncio.wait_for(test(), 100))


def test_members_that_come_and_go_under_load_break_nothing() -> None:
    """Ben is killed in the middle of his words and of his silence, dora joins late and leaves."""
    members = free_members("ana", "ben", "carl", "dora")
    order = DeltaCausal(lifetime_ms=LIFETIME_MS)
    settings = {
        "members": members,
        "order": "delta",
        "lifetime_ms": LIFETIME_MS,
        "silence_s": 10,
        "reads": ["ana", "carl"],
        "readers": 3,  # one of ana's, two of carl's
        "writes": 100_000,
    }
    firsts: list[int] = []

    async def ben(writes: int) -> None:
        """Live until so much is written, and be killed; with none, killed during the silence."""
        async with child(me="ben", **settings) as life:
            if not writes:
                await asyncio.sleep(LIFETIME_MS / 2_000)
            while life.written < writes:
                await life.read("written")
            if writes:
                firsts.append(life.first_after_ns)
            life.process.kill()

    async def dora(writes: int) -> None:
        """Join, say so much, and leave as one should."""
        async with child(me="dora", **settings | {"writes": writes}) as life:
            await life.read("done")
            assert life.written == writes
            assert life.process.stdin is not None
            life.process.stdin.close()
            await life.process.communicate()
            assert life.process.returncode == 0

    async def test() -> tuple[list[Sample], list[Sample]]:
        async with survivors(members, order, impairment=BAD_NETWORK) as (ana, carl):
            # Carl answers what ben and dora say, so that ana hears of it on two ways.
            for name in ("ben", "dora"):
                carl.participant.reader(
                    name, order=order, callback=lambda sample: carl.write(sample.data) and None
                )

            async def talk() -> None:
                while True:
                    ana.write(b"ana")
                    await asyncio.sleep(0.002)

            await ana.writer.wait_matched(1, timeout_s=30)
            talking = asyncio.create_task(talk())
            for writes in (100, 0, 60):
                await ben(writes)
            joining = asyncio.create_task(dora(80))
            await ben(60)
            await joining
            await asyncio.gather(ben(40), dora(40))
            talking.cancel()
            for survivor in (ana, carl):
                await survivor.participant.drain(timeout_s=20)
                counters = survivor.participant.counters
                assert counters.duplicate == counters.malformed == counters.refused == 0
        return ana.heard, carl.heard

    for heard in asyncio.run(asyncio.wait_for(test(), 110)):
        told = [
            (sample.source, *map(int, sample.data.split()))
            for sample in heard
            if b" " in sample.data
        ]
        author = {life: source for source, life, _ in told if source != "carl"}
        lives = {name: sorted(k for k, who in author.items() if who == name) for name in members}
        assert (len(lives["ben"]), len(lives["dora"])) == (4, 2)
        newest, answered = dict.fromkeys(members, (0, 0)), dict.fromkeys(members, (0, 0))
        for source, life, index in told:
            if source == "carl":
                who = author[life]
                answered[who] = max(answered[who], (life, index))
            else:
                assert (life, index) > newest[source], "what a former life said comes after all"
                assert (life, index) > answered[source], "an answer overtook what it answers"
                newest[source] = (life, index)
    # No life but ben's first has spoken before delta + epsilon had passed.
    assert len(firsts) == 4
    assert min(firsts[1:]) >= (LIFETIME_MS + 1) * 1_000_000
