"""The whole stack on sockets: Δ-causal core, codec, channel and host.

Beside it Jang's own algorithm, FIFO and no order.

`flood`: one member multicasts 64-byte messages to all others as fast as it is let.  `mesh`: every
member multicasts at a steady rate to all others, so that everything depends on everything.  Each
member is a process; figures are CPU time per message and copy at the sender and per delivery at a
receiver, all of the link's work and a second of idling included.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import harness
from checker import Stream, problems, refuse

from orderwire.aio.endpoint import Endpoint
from orderwire.aio.host import Host
from orderwire.kernel import NS_PER_S, ProcessId, destinations, ms
from orderwire.ordering.catalog import ALGORITHMS, OrderingSettings
from orderwire.ordering.pdu import Delivered, Discarded, Multicast, OrderingIndication, Sent

OURS = "bounded-jang"
"""What `DeltaCausal` runs."""
PAYLOAD_BYTES = 64
LIFETIME_NS = ms(1_000)
CHUNK = 64
MESH_RATE_MAX = 500
MESH_DELIVERIES = 28_000
"""In a mesh all members together are handed so many messages a second, or fewer."""
CONNECT_S = 60
QUIET_S = 1.2
"""After the last message: longer than the lifetime, so that nothing waits any more."""


def mesh_rate(members: int) -> float:
    """Return how many messages a second each member sends."""
    return min(MESH_RATE_MAX, MESH_DELIVERIES / (members * (members - 1)))


class Tally:
    """What one member did."""

    def __init__(self) -> None:
        self.sent = 0
        self.delivered = 0
        self.discarded = 0
        self.control_bytes = 0
        self.delays: list[int] = []
        self.last_s = 0.0
        self.streams: dict[int, Stream] = {}

    def __call__(self, indication: OrderingIndication) -> None:
        match indication:
            case Delivered():
                self.delivered += 1
                stream = self.streams.get(indication.source)
                if stream is None:
                    stream = self.streams[indication.source] = Stream()
                stream.got(indication.number)
                if not self.delivered & 15:
                    self.delays.append(time.time_ns() - indication.stamp)
                    self.last_s = time.monotonic()
            case Sent():
                self.sent += 1
                self.control_bytes += indication.control_bytes
            case Discarded():
                self.discarded += 1


async def member(options: argparse.Namespace) -> None:
    """Be one member."""
    me = ProcessId(options.me)
    endpoint = await Endpoint.open(me, {me: ("127.0.0.1", 0)})
    print(json.dumps({"port": endpoint.address[1]}), flush=True)
    ports = json.loads(sys.stdin.readline())
    settings = OrderingSettings(members=len(ports), lifetime_ns=LIFETIME_NS)
    entry = ALGORITHMS[options.algorithm]
    channel = endpoint.channel(1, LIFETIME_NS)
    tally = Tally()
    host: Host[Any, Any, OrderingIndication] = Host(
        entry.create(me, settings), entry.codec(me, settings), channel, endpoint.clock, tally
    )
    for peer, port in enumerate(ports):
        if peer != me:
            await endpoint.add_peer(ProcessId(peer), ("127.0.0.1", port))
    async with asyncio.timeout(CONNECT_S):
        while not all(endpoint.is_connected(peer) for peer in endpoint.peers):
            await asyncio.sleep(0.01)
    print(json.dumps({"ready": True}), flush=True)
    sys.stdin.readline()
    others = destinations(peer for peer in range(len(ports)) if peer != me)
    payload = bytes(PAYLOAD_BYTES)
    begin, cpu = time.monotonic(), time.process_time()
    if options.load == "flood":
        if me == 0:
            while time.monotonic() < begin + options.seconds:
                for _ in range(CHUNK):
                    host.submit(Multicast(payload, others))
                await asyncio.sleep(0)
                await channel.drain()
            await channel.drain(empty=True)
    else:
        rate = mesh_rate(len(ports))
        total = round(options.seconds * rate)
        while tally.sent < total:
            due = min(total, int((time.monotonic() - begin) * rate) + 1)
            for _ in range(tally.sent, due):
                host.submit(Multicast(payload, others))
            await asyncio.sleep(max(0.0, begin + tally.sent / rate - time.monotonic()))
    sent_s = time.monotonic() - begin
    print(json.dumps({"sent": True}), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    await asyncio.sleep(QUIET_S)
    counters = [channel.counters(peer) for peer in endpoint.peers]
    delays = sorted(tally.delays) or [0]
    result = {
        "cpu_s": time.process_time() - cpu,
        "wall_s": max(sent_s, tally.last_s - begin),
        "sent": tally.sent,
        "delivered": tally.delivered,
        "discarded": tally.discarded,
        "control_bytes": tally.control_bytes,
        "lost": sum(each.lost for each in counters),
        "retransmitted": sum(each.retransmitted for each in counters),
        "p50_us": delays[len(delays) // 2] / 1e3,
        "p99_us": delays[len(delays) * 99 // 100] / 1e3,
        "dropped": tally.discarded + sum(each.lost for each in counters),
        "streams": {source: stream.told() for source, stream in tally.streams.items()},
    }
    print(json.dumps(result), flush=True)
    host.close()
    await endpoint.close()


def read(process: "subprocess.Popen[str]") -> Any:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


def tell(process: "subprocess.Popen[str]", line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def check(algorithm: str, load: str, results: list[dict[str, Any]]) -> None:
    """Refuse a run in which a message is missing, came twice, or out of its sender's order.

    Nobody tells which sender's copies a member lost: a stream may lack as many as it lost in all.
    """
    empty = Stream().told()
    for me, result in enumerate(results):
        lacking = 0
        for source, other in enumerate(results):
            if source == me:
                continue
            told = result["streams"].get(str(source), empty)
            lack = max(0, other["sent"] - told["received"])
            lacking += lack
            found = problems(told, other["sent"], ordered=algorithm != "unordered", dropped=lack)
            refuse(f"{algorithm} {load}, member {me} of {source}", found)
        if lacking > result["dropped"]:
            refuse(
                f"{algorithm} {load}, member {me}",
                [f"{lacking} messages are missing, {result['dropped']} are accounted for"],
            )


def run(algorithm: str, load: str, members: int, seconds: float) -> dict[str, Any]:
    """Run one algorithm once."""
    processes = [
        subprocess.Popen(
            [
                sys.executable, __file__, "--member", "--me", str(me), "--algorithm", algorithm,
                "--load", load, "--seconds", str(seconds),
            ],
            text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parent,
        )
        for me in range(members)
    ]  # fmt: skip
    try:
        ports = json.dumps([read(each)["port"] for each in processes])
        for each in processes:
            tell(each, ports)
        for each in processes:
            read(each)
        for each in processes:
            tell(each, "go")
        for each in processes:
            read(each)
        for each in processes:
            tell(each, "end")
        results = [read(each) for each in processes]
    finally:
        for each in processes:
            each.kill()
            each.wait()
            for pipe in (each.stdin, each.stdout):
                assert pipe is not None
                pipe.close()
    check(algorithm, load, results)
    sent = sum(each["sent"] for each in results)
    delivered = sum(each["delivered"] for each in results)
    figures: dict[str, Any] = {
        "sent": sent,
        "delivered_ratio": round(delivered / max(1, sent * (members - 1)), 5),
        "discarded": sum(each["discarded"] for each in results),
        "lost": sum(each["lost"] for each in results),
        "control_bytes_per_copy": round(
            sum(each["control_bytes"] for each in results) / max(1, sent * (members - 1)), 2
        ),
        "delay_p50_us": statistics.median(each["p50_us"] for each in results if each["delivered"]),
        "delay_p99_us": statistics.median(each["p99_us"] for each in results if each["delivered"]),
    }
    if load == "flood":
        receivers = results[1:]
        figures |= {
            "rate": round(statistics.median(e["delivered"] / e["wall_s"] for e in receivers)),
            "sender_cpu_us": round(1e6 * results[0]["cpu_s"] / max(1, results[0]["sent"]), 3),
            "sender_cpu_us_per_copy": round(
                1e6 * results[0]["cpu_s"] / max(1, results[0]["sent"] * (members - 1)), 3
            ),
            "receiver_cpu_us": round(
                statistics.median(1e6 * e["cpu_s"] / max(1, e["delivered"]) for e in receivers), 3
            ),
        }
    else:
        cpu_s = sum(each["cpu_s"] for each in results)
        figures["cpu_us_per_delivery"] = round(1e6 * cpu_s / max(1, delivered), 3)
    return figures


def main() -> None:
    parser = harness.arguments(__doc__, repeats=3)
    parser.add_argument("--member", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--me", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--algorithm", default=OURS, help=argparse.SUPPRESS)
    parser.add_argument("--load", choices=["flood", "mesh"], help="only this load")
    parser.add_argument("--group", type=int, help="only groups of this size")
    parser.add_argument("--seconds", type=float, default=1.5)
    options = parser.parse_args()
    if options.member:
        asyncio.run(member(options))
        return
    seconds = 0.5 if options.quick else options.seconds
    names = [OURS, "jang-delta", "fifo", "unordered"]
    cases = [(load, members) for load in ("flood", "mesh") for members in (2, 8, 32)]
    results: dict[str, dict[str, Any]] = {name: {} for name in names}
    for load, members in cases:
        if options.load not in (None, load) or options.group not in (None, members):
            continue
        rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
        for _ in range(options.repeats):
            for name in names:
                rounds[name].append(run(name, load, members, seconds))
        for name in names:
            figures = {
                key: round(statistics.median(each[key] for each in rounds[name]), 5)
                for key in rounds[name][0]
            }
            results[name][f"{load}-{members}"] = figures
            print(name, load, members, figures, file=sys.stderr)
    ours = {OURS: results.pop(OURS)}
    ratios = {
        f"CPU of {OURS} over {name}, {case}, {key}": round(ours[OURS][case][key] / figures[key], 2)
        for name, cases_of in results.items()
        for case, figures in cases_of.items()
        for key in ("sender_cpu_us", "receiver_cpu_us", "cpu_us_per_delivery")
        if key in figures
    }
    harness.report(
        "delta_causal_host",
        ours=ours,
        rivals=results,
        ratios=ratios,
        repeats=options.repeats,
        as_json=options.json,
        lifetime_s=LIFETIME_NS / NS_PER_S,
    )


if __name__ == "__main__":
    main()
