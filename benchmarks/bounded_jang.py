"""Bounded Jang beside its rivals: bytes of every copy on the wire, and CPU of a message.

Traffic as in `jang_delta.py`, the same messages and delays for all: exponential gaps of 0.1 s per
process, latency 5 ms plus an exponential 45 ms per copy, Δ = 250 ms, one tick = 0.1 ms.  Everyone
forgets what has expired and writes varints.  The causal barrier is for broadcast alone.

Bytes: control information per copy, mean over the second half of a run, the head of about 11 bytes
included; `printed_tag` is Jang's tag in the papers' layout of 4-byte integers, with empty entries
and without the head.  CPU: a whole message, its send, and decoding and receiving all its copies,
in µs; of each step the shortest time over the rounds counts.
"""

from typing import Any

import msgspec
from harness import arguments, report
from jang_delta import RECEIVE, Workload, costs, feed, record, settings_of

from orderwire.kernel import ProcessId
from orderwire.ordering.catalog import ALGORITHMS
from orderwire.ordering.jang_delta_codec import printed_bytes
from orderwire.ordering.wire import decode_head

OURS = "bounded-jang"
RIVALS = (
    "jang-delta",
    "kshemkalyani-singhal",
    "prakash-raynal-singhal",
    "raynal-schiper-toueg",
)
BARRIER = "baldoni-broadcast"
FAN_OUTS = ("1", "3", "half", "groups of 5", "all")
SIZES = (5, 10, 20, 30, 40, 100)
COPIES_MAX = 9_000
"""Of one run, unless that is less than what is sent in twice Δ."""


def workload_of(members: int, fan_out: str, share: float) -> Workload:
    """Return the traffic of one point of the grid."""
    others = members - 1
    count = {"half": others // 2, "all": others, "groups of 5": 4}.get(fan_out)
    count = min(int(fan_out), others) if count is None else count
    messages = max(round(min(20 * members, COPIES_MAX / count) * share), 5 * members)
    return Workload(
        members=members,
        fan_out=count,
        messages=messages,
        group_size=5 if fan_out == "groups of 5" else 0,
    )


def measure_bytes(workload: Workload, name: str) -> dict[str, float]:
    """Control bytes per copy."""
    codec = ALGORITHMS[name].codec(ProcessId(0), settings_of(workload))
    datagrams = [what for kind, _, _, _, what in record(workload, name) if kind == RECEIVE]
    datagrams = datagrams[len(datagrams) // 2 :]
    pdus = [codec.decode(datagram) for datagram in datagrams]
    heads = sum(decode_head(pdu.control, workload.members)[3] for pdu in pdus)
    control = sum(len(pdu.control) for pdu in pdus)
    return {"copy": round(control / len(pdus), 2), "tag": round((control - heads) / len(pdus), 2)}


def measure_printed(workload: Workload) -> float:
    """Jang's tag as the paper lays it out, in bytes per copy."""
    settings = msgspec.structs.replace(settings_of(workload), send_empty_entries=True)
    codec = ALGORITHMS["jang-delta"].codec(ProcessId(0), settings)
    datagrams = [what for kind, _, _, _, what in record(workload, empties=True) if kind == RECEIVE]
    datagrams = datagrams[len(datagrams) // 2 :]
    total = sum(printed_bytes(codec.decode(datagram), settings) for datagram in datagrams)
    return round(total / len(datagrams), 1)


def measure_cpu(workload: Workload, names: tuple[str, ...], repeats: int) -> dict[str, float]:
    """µs of CPU for a whole message, everyone's share included."""
    steps = {name: record(workload, name) for name in names}
    best: dict[str, list[int]] = {}
    for _ in range(repeats):
        for name in names:
            times = feed(name, workload, steps[name])
            best[name] = list(map(min, best.get(name, times), times))
    copies = 4 if workload.group_size else workload.fan_out
    return {name: round(costs(steps[name], best[name])["copy"] * copies, 1) for name in names}


def main() -> None:
    """Measure every point of the grid and print the result."""
    parser = arguments(__doc__, repeats=3)
    chosen = parser.parse_args()
    sizes = (5, 20, 30) if chosen.quick else SIZES
    share, repeats = (0.25, 1) if chosen.quick else (1.0, chosen.repeats)
    ours: dict[str, Any] = {}
    rivals: dict[str, Any] = {name: {} for name in (*RIVALS, BARRIER)}
    ratios: dict[str, Any] = {}
    for members in sizes:
        for fan_out in FAN_OUTS:
            point = f"n={members} {fan_out}"
            workload = workload_of(members, fan_out, share)
            names = (OURS, *RIVALS, *((BARRIER,) if fan_out == "all" else ()))
            found: dict[str, dict[str, float]] = {
                name: measure_bytes(workload, name) for name in names
            }
            for name, cpu in measure_cpu(workload, names, repeats).items():
                found[name]["cpu_us"] = cpu
            found[OURS]["printed_tag"] = measure_printed(workload)
            ours[point] = found[OURS]
            ratios[point] = {
                "tag/printed": round(found[OURS]["tag"] / found[OURS]["printed_tag"], 3)
            }
            for name in names[1:]:
                rivals[name][point] = found[name]
                ratios[point][name] = {
                    key: round(found[OURS][key] / found[name][key], 3) for key in ("copy", "cpu_us")
                }
    report(
        OURS,
        ours=ours,
        rivals=rivals,
        ratios=ratios,
        repeats=repeats,
        as_json=chosen.json,
        quick=chosen.quick,
    )


if __name__ == "__main__":
    main()
