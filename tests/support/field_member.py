"""A member in a process of its own that does what it is told, for tests of what users have met.

`python field_member.py SETTINGS`, in JSON: me, members, and `wall`, by how many hours its wall
clock is wrong, if that is to be set.  Each line of standard input is a command, answered by a line
of standard output:

    {"do": "read", "order": …, "topic": …, "by": "callback|thread|coroutine|iterator",
     "queue": n, "overflow": "drop-oldest"}                      begin to read
    {"do": "write", "order": …, "topic": …, "count": n, "gap_ms": x, "bytes": n, "readers": n,
     "step": hours}                  step: set the wall clock by so much half-way
    {"do": "sleep", "topic": …, "ms": x}    what a sample costs its reader from now on; blocks if
                                            that reader can
    {"do": "tell"}                  what was counted and handed over so far
    {"do": "drain"}                 tell when all was handed over and confirmed
"""

import asyncio
import json
import sys
import time
from typing import Any

SETTINGS = json.loads(sys.argv[1])
STEPPED = [round(SETTINGS.get("wall", 0) * 3_600 * 1e9)]
if "wall" in SETTINGS:  # before anything of the product reads or binds it
    _time_ns, _time = time.time_ns, time.time
    time.time_ns = lambda: _time_ns() + STEPPED[0]
    time.time = lambda: _time() + STEPPED[0] / 1e9

import msgspec  # noqa: E402

from orderwire import (  # noqa: E402
    DeltaCausal,
    Dropped,
    Fifo,
    Overflow,
    Participant,
    Published,
    Reader,
    Sample,
    Topic,
    Unordered,
    Writer,
)


def order_of(text: str) -> Any:
    return msgspec.json.decode(text, type=Unordered | Fifo | DeltaCausal | Published)


class Member:
    """What the commands work on."""

    def __init__(self, participant: Participant, drops: list[Dropped]) -> None:
        self.participant = participant
        self.drops = drops
        self.sleep_s: dict[str, float] = {}
        self.readers: dict[str, Reader] = {}
        self.writers: dict[str, Writer] = {}
        self.heard: dict[str, list[tuple[str, int, int, int]]] = {}
        self.clock = participant._opened().clock
        self.tasks: list[asyncio.Task[None]] = []

    def note(self, sample: Sample) -> None:
        """Keep source, number, delay of delivery and age when handed over, in ns."""
        age = self.clock.now() - sample.stamp
        self.heard[sample.topic].append(
            (sample.source, sample.number, sample.delivered - sample.stamp, age)
        )

    def read(self, what: dict[str, Any]) -> None:
        topic = Topic(what["topic"], order_of(what["order"]))
        self.heard[topic.name] = []
        more: dict[str, Any] = {}
        if "queue" in what:
            more["queue_samples_max"] = what["queue"]
        if "overflow" in what:
            more["overflow"] = Overflow(what["overflow"])

        def blocking(sample: Sample) -> None:
            self.note(sample)
            time.sleep(self.sleep_s.get(sample.topic, 0))

        async def awaiting(sample: Sample) -> None:
            self.note(sample)
            await asyncio.sleep(self.sleep_s.get(sample.topic, 0))

        match what["by"]:
            case "callback":
                more["callback"] = blocking
            case "thread":
                more |= {"callback": blocking, "in_thread": True}
            case "coroutine":
                more["callback"] = awaiting
        reader = self.readers[topic.name] = self.participant.reader(topic, own=False, **more)
        if what["by"] == "iterator":

            async def iterate() -> None:
                async for sample in reader:
                    await awaiting(sample)

            self.tasks.append(asyncio.create_task(iterate()))

    async def write(self, what: dict[str, Any]) -> None:
        name = what["topic"]
        if name not in self.writers:
            self.writers[name] = self.participant.writer(Topic(name, order_of(what["order"])))
        writer = self.writers[name]
        await writer.wait_matched(what.get("readers", 1), timeout_s=30)
        loop = asyncio.get_running_loop()
        due = loop.time()
        for index in range(what["count"]):
            if index == what["count"] // 2:
                STEPPED[0] += round(what.get("step", 0) * 3_600 * 1e9)
            writer.write(bytes(what.get("bytes", 16)))
            await writer.drain()
            due += what.get("gap_ms", 0) / 1e3
            await asyncio.sleep(max(0.0, due - loop.time()))

    def told(self) -> dict[str, Any]:
        return {
            "counters": msgspec.structs.asdict(self.participant.counters),
            "readers": {
                name: msgspec.structs.asdict(reader.counters) | {"pending": reader.pending}
                for name, reader in self.readers.items()
            },
            "heard": self.heard,
            "drops": [msgspec.structs.asdict(each) for each in self.drops],
            "connected": self.participant.connected,
        }

    async def do(self, what: dict[str, Any]) -> dict[str, Any]:
        match what["do"]:
            case "read":
                self.read(what)
            case "write":
                await self.write(what)
            case "sleep":
                self.sleep_s[what["topic"]] = what["ms"] / 1e3
            case "drain":
                await self.participant.drain(timeout_s=60)
            case "tell":
                return self.told()
        return {}


async def live() -> None:
    drops: list[Dropped] = []
    loop = asyncio.get_running_loop()
    async with Participant(
        SETTINGS["me"], members=SETTINGS["members"], on_drop=drops.append, restarted=False
    ) as participant:
        member = Member(participant, drops)
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            answer = await member.do(json.loads(line))
            print(json.dumps(answer), flush=True)
        for task in member.tasks:
            task.cancel()


asyncio.run(live())
