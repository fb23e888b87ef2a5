"""One member of the ordering probe, through the public API: publishes, answers, writes a log.

`order_node.py i n seconds interval_ms own_ip hub_ip out_file [--order NAME] [--lifetime-ms MS]`,
the arguments that the harness fills in.  It says `ready`, reads the start instant (CLOCK_MONOTONIC,
ns) from standard input, publishes for so many seconds, one member answering each message, and after
one more line writes a JSON list: `["s", seq, t]` for what it sent, `["d", sender, seq,
cause_sender, cause_seq, t]` for what it was given.
"""

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from orderwire import DeltaCausal, Fifo, Order, Participant, Published, Sample, Topic, Unordered

PORT = 7_800
NO_CAUSE = (-1, -1)


def order_of(name: str, lifetime_ms: float) -> Order:
    """Return the order that this name of the catalog stands for."""
    if name == "fifo":
        return Fifo(lifetime_ms=lifetime_ms)
    if name == "unordered":
        return Unordered(lifetime_ms=lifetime_ms)
    if name == "bounded-jang":
        return DeltaCausal(lifetime_ms=lifetime_ms)
    return Published(algorithm=name, lifetime_ms=lifetime_ms)


class Member:
    """What one member sends and is given."""

    def __init__(self, me: int, members: int) -> None:
        self.me = me
        self.members = members
        self.log: list[tuple[Any, ...]] = []
        self.sent = 0
        self.write: Any = None

    def publish(self, cause: tuple[int, int] = NO_CAUSE) -> None:
        """Send the next message."""
        number = self.sent
        self.sent += 1
        self.log.append(("s", number, time.monotonic()))
        self.write(json.dumps([self.me, number, *cause]).encode())

    def take(self, sample: Sample) -> None:
        """Take what was delivered; one member answers each message."""
        sender, number, cause_sender, cause_number = json.loads(sample.data)
        now = time.monotonic()
        self.log.append(("d", sender, number, cause_sender, cause_number, now))
        if sender != self.me and cause_sender < 0 and (sender + number) % self.members == self.me:
            self.publish((sender, number))


async def line() -> str:
    """Return the next line of standard input."""
    return await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


async def live(options: argparse.Namespace) -> None:
    """Be one member."""
    me, members = options.me, options.members
    network = options.own_ip.rpartition(".")[0]
    addresses = {str(each): f"{network}.{each + 1}:{PORT}" for each in range(members)}
    topic = Topic("t", order=order_of(options.order, options.lifetime_ms))
    member = Member(me, members)
    async with Participant(
        str(me), members=addresses, insecure=True, restarted=False
    ) as participant:
        participant.reader(topic, callback=member.take)
        writer = participant.writer(topic)
        member.write = writer.write
        await writer.wait_matched(members, timeout_s=30)
        await asyncio.sleep(0.5)
        print("ready", flush=True)
        start = int(await line()) / 1e9
        turn = 0
        while (now := time.monotonic()) < start + options.seconds:
            if now >= start + turn * options.interval_ms / 1e3:
                member.publish()
                turn += 1
            due = start + turn * options.interval_ms / 1e3
            await asyncio.sleep(max(0.0, due - time.monotonic()))
        await line()
    Path(options.out_file).write_text(json.dumps(member.log), encoding="utf-8")
    print("done", flush=True)


def main() -> None:
    """Read the arguments of the harness."""
    parser = argparse.ArgumentParser(description="one member of the ordering probe")
    parser.add_argument("me", type=int)
    parser.add_argument("members", type=int)
    parser.add_argument("seconds", type=float)
    parser.add_argument("interval_ms", type=float)
    parser.add_argument("own_ip")
    parser.add_argument("hub_ip")
    parser.add_argument("out_file")
    parser.add_argument("--order", default="bounded-jang", help="name in the catalog")
    parser.add_argument("--lifetime-ms", type=float, default=1_000.0)
    asyncio.run(live(parser.parse_args()))


if __name__ == "__main__":
    main()
