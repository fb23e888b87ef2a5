"""Selectively totally ordered broadcast on real sockets: rate, delay, and both under loss.

A relay and each member are processes of their own on loopback.  `saturated`: three members write
200 bytes as fast as they are let.  `paced`: three members, 1,000 messages/s in all.  `lossy`: four
members, 800 messages/s in all, 2 % of all datagrams lost, up and down; `lossy without repeats`: the
same when no datagram carries what the one before it carried.  Everything goes to everybody, who
writes included; the delay is from `write` to the reader.
"""

import asyncio
import contextlib
import multiprocessing as mp
import statistics
import sys
import time
from typing import Any

import harness
import msgspec

from orderwire import TotalGroup, TotalGroupSettings
from orderwire.aio.total_relay import ChannelRelay, RelaySettings

PAYLOAD_BYTES = 200
_STAMP_BYTES = 8
GOAL_PER_S = 10_000
GOAL_PACED_P50_MS = 2.0
GOAL_LOSSY_P50_MS, GOAL_LOSSY_P99_MS = 10.0, 100.0


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured."""

    members: int
    messages: int
    """That each member writes."""
    per_s: float | None = None
    """That each member writes; None: as many as it can."""
    loss: float = 0.0
    repeats: bool = True
    multicast: int | None = None
    """Port of the group; None: unicast."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What one member saw."""

    began_s: float
    ended_s: float
    cpu_s: float
    delays_us: list[int]
    order: list[int]
    """Source and number of every delivery, as one integer."""
    counters: dict[str, int]


def _run(work: Any) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(work)
    else:
        uvloop.run(work)


async def _relay(load: Load, seed: int, pipe: Any) -> None:
    multicast = None if load.multicast is None else ("239.77.2.1", load.multicast)
    settings = RelaySettings(loss=load.loss, repeats=load.repeats, seed=seed, multicast=multicast)
    relay = await ChannelRelay.open(("127.0.0.1", 0), settings)
    pipe.send(relay.address[1])
    began = time.process_time()
    while not pipe.poll():
        await asyncio.sleep(0.05)
    pipe.send((time.process_time() - began, relay.next_csn - 1, relay.counters["datagrams"]))
    await relay.close()


async def _member(load: Load, me: int, port: int, pipe: Any) -> None:
    settings = TotalGroupSettings(repeats=load.repeats)
    group = await TotalGroup.join(
        f"127.0.0.1:{port}", me=me, members=load.members, settings=settings
    )
    rest = bytes(PAYLOAD_BYTES - _STAMP_BYTES)
    cpu, began = time.process_time(), time.monotonic()

    async def write() -> None:
        for number in range(load.messages):
            if load.per_s is not None:
                wait_s = began + (number + me / load.members) / load.per_s - time.monotonic()
                if wait_s > 0:
                    await asyncio.sleep(wait_s)
            await group.write(time.monotonic_ns().to_bytes(_STAMP_BYTES, "little") + rest)

    writing = asyncio.create_task(write())
    delays, order = [], []
    wanted = load.members * load.messages
    async for message in group:
        sent_ns = int.from_bytes(message.payload[:_STAMP_BYTES], "little")
        delays.append((time.monotonic_ns() - sent_ns) // 1_000)
        order.append(message.source << 40 | message.number)
        if len(order) == wanted:
            break
    ended, cpu = time.monotonic(), time.process_time() - cpu
    await writing
    counters = group.counters()
    await group.close()
    pipe.send_bytes(
        msgspec.msgpack.encode(
            Outcome(
                began_s=began,
                ended_s=ended,
                cpu_s=cpu,
                delays_us=delays,
                order=order,
                counters=counters,
            )
        )
    )


def _start_relay(load: Load, seed: int, pipe: Any) -> None:
    _run(_relay(load, seed, pipe))


def _start_member(load: Load, me: int, port: int, pipe: Any) -> None:
    _run(_member(load, me, port, pipe))


def inverted(orders: list[list[int]]) -> int:
    """Count deliveries that are out of the order of the first member: 0 if all agree."""
    place = {message: index for index, message in enumerate(orders[0])}
    found = 0
    for order in orders[1:]:
        last = -1
        for message in order:
            at = place[message]
            found += at < last
            last = max(last, at)
    return found


def measure(load: Load, seed: int) -> dict[str, Any]:
    """Run one load once."""
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    with contextlib.ExitStack() as stack:
        relay = context.Process(target=_start_relay, args=(load, seed, theirs), daemon=True)
        relay.start()
        stack.callback(relay.kill)
        port = ours.recv()
        pipes = []
        for me in range(load.members):
            here, there = context.Pipe()
            member = context.Process(
                target=_start_member, args=(load, me, port, there), daemon=True
            )
            member.start()
            stack.callback(member.kill)
            pipes.append(here)
        outcomes = [msgspec.msgpack.decode(pipe.recv_bytes(), type=Outcome) for pipe in pipes]
        ours.send("stop")
        relay_cpu_s, pdus, datagrams = ours.recv()
        relay.join()
    total = load.members * load.messages
    wall_s = max(each.ended_s for each in outcomes) - min(each.began_s for each in outcomes)
    delays = sorted(delay for each in outcomes for delay in each.delays_us)
    cpu_s = statistics.mean(each.cpu_s for each in outcomes)
    return {
        "messages": total,
        "messages_per_s": round(total / wall_s, 1),
        "p50_ms": round(delays[len(delays) // 2] / 1e3, 2),
        "p99_ms": round(delays[len(delays) * 99 // 100] / 1e3, 2),
        "inverted": inverted([each.order for each in outcomes]),
        "lost": sum(total - len(each.order) for each in outcomes),
        "cpu_us_per_message_and_member": round(cpu_s / total * 1e6, 2),
        "relay_cpu_us_per_message": round(relay_cpu_s / total * 1e6, 2),
        "pdus_per_message": round(pdus / total, 3),
        "datagrams_per_message": round(datagrams / total, 3),
        "recoveries": max(each.counters["epoch"] for each in outcomes),
    }


def main() -> int:
    """Measure all loads in turn, round by round, and print medians."""
    parser = harness.arguments(__doc__, repeats=3)
    parser.add_argument("--only", help="one load by its name")
    options = parser.parse_args()
    many, seconds = (5_000, 2) if options.quick else (30_000, 4)
    loads = {
        "saturated": Load(members=3, messages=many),
        "saturated, multicast": Load(members=3, messages=many, multicast=7_713),
        "paced": Load(members=3, messages=333 * seconds, per_s=1_000 / 3),
        "lossy": Load(members=4, messages=200 * seconds, per_s=200, loss=0.02),
        "lossy without repeats": Load(
            members=4, messages=200 * seconds, per_s=200, loss=0.02, repeats=False
        ),
    }
    if options.only:
        loads = {name: load for name, load in loads.items() if name == options.only}
    repeats = 1 if options.quick else options.repeats
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in loads}
    for turn in range(repeats):
        for name, load in loads.items():
            found[name].append(measure(load, turn))
    ours = {
        name: {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        | {"inverted": sum(run["inverted"] for run in runs)}
        for name, runs in found.items()
    }
    goals = {
        ("saturated", "messages_per_s"): lambda x: x >= GOAL_PER_S,
        ("paced", "p50_ms"): lambda x: x < GOAL_PACED_P50_MS,
        ("lossy", "inverted"): lambda x: x == 0,
        ("lossy", "p50_ms"): lambda x: x <= GOAL_LOSSY_P50_MS,
        ("lossy", "p99_ms"): lambda x: x <= GOAL_LOSSY_P99_MS,
    }
    harness.report(
        "selective_total",
        ours=ours,
        rivals={},
        ratios={},
        repeats=repeats,
        as_json=options.json,
        goals={
            f"{load}: {key}": bool(met(ours[load][key]))
            for (load, key), met in goals.items()
            if load in ours
        },
    )
    return 1 if any(each["inverted"] or each["lost"] for each in ours.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
