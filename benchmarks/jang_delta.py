"""Jang's algorithm: cost of the fast form beside the literal one, and bytes on the wire.

Traffic as in the paper's simulation: exponential gaps of 0.1 s per process, latency 5 ms plus an
exponential 45 ms per copy, Δ = 250 ms, one tick = 0.1 ms.  The small groups are busier and closer:
50 messages a second each, 1 ms plus an exponential 1 ms, one tick = 1 µs.

The inputs of a run are recorded once and fed to both forms, round by round; of each step the
shortest time over the rounds counts, so that a busy machine disturbs little.  `send` is one
multicast with its control information encoded for all copies, `encode` puts one copy together,
`decode` and `receive` take one copy; `copy` is the whole cost of a copy, its share of the send
included.  Times in µs.
"""

import gc
import heapq
import time
from typing import Any

import msgspec
from harness import arguments, report

from orderwire.kernel import Instant, ProcessId, Send, destinations, ms, stream, us
from orderwire.ordering.catalog import ALGORITHMS, OrderingSettings
from orderwire.ordering.jang_delta_codec import JangDeltaPdu, printed_bytes
from orderwire.ordering.pdu import Multicast
from orderwire.ordering.wire import decode_head

PAYLOAD = bytes(100)
LIFETIME_NS = ms(250)
SUBMIT, RECEIVE, WAKE = range(3)
Step = tuple[int, int, int, int, Any]
"""Kind, process, source, clock, command or datagram."""


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """Who sends to how many, how often and how far."""

    members: int
    fan_out: int
    messages: int
    tick_ns: int = us(100)
    rate: float = 10.0
    delay_ns: tuple[int, int] = (ms(5), ms(45))
    group_size: int = 0
    """Not 0: every message goes to one of as many overlapping groups of this size as members."""


WORKLOADS = {
    "n=30 half": Workload(members=30, fan_out=14, messages=1_500),
    "n=40 fan-out 3": Workload(members=40, fan_out=3, messages=2_500),
    "n=40 unicast": Workload(members=40, fan_out=1, messages=4_000),
    "n=20 broadcast": Workload(members=20, fan_out=19, messages=1_000),
    "n=5 broadcast, near": Workload(
        members=5, fan_out=4, messages=800, tick_ns=us(1), rate=50.0, delay_ns=(ms(1), ms(1))
    ),
    "n=8 broadcast, near": Workload(
        members=8, fan_out=7, messages=800, tick_ns=us(1), rate=50.0, delay_ns=(ms(1), ms(1))
    ),
    "n=8 fan-out 3, near": Workload(
        members=8, fan_out=3, messages=800, tick_ns=us(1), rate=50.0, delay_ns=(ms(1), ms(1))
    ),
}


def settings_of(workload: Workload) -> OrderingSettings:
    return OrderingSettings(
        members=workload.members, lifetime_ns=LIFETIME_NS, tick_ns=workload.tick_ns
    )


def record(workload: Workload, name: str = "jang-delta", *, empties: bool = False) -> list[Step]:
    """Run the workload once; return every input of every core.

    The same messages and delays for all algorithms.
    """
    chance = stream(1, "jang-delta")
    settings = msgspec.structs.replace(settings_of(workload), send_empty_entries=empties)
    entry = ALGORITHMS[name]
    members = [ProcessId(process) for process in range(workload.members)]
    cores = [entry.create(process, settings) for process in members]
    codecs = [entry.codec(process, settings) for process in members]
    heap: list[tuple[int, int, int, int, int, Any]] = []
    sequence = 0

    def push(at: int, kind: int, process: int, source: int, what: Any) -> None:
        nonlocal sequence
        sequence += 1
        heapq.heappush(heap, (at, kind, sequence, process, source, what))

    def gap() -> int:
        return round(chance.expovariate(workload.rate) * 1e9)

    groups = [chance.sample(members, workload.group_size) for _ in members]
    shortest, mean = workload.delay_ns
    for process in members:
        push(gap(), SUBMIT, process, 0, None)
    steps: list[Step] = []
    sent = 0
    while sent < workload.messages:
        at, kind, _, process, source, what = heapq.heappop(heap)
        core = cores[process]
        now = Instant(at)
        due = core.next_deadline()
        if kind == SUBMIT:
            others = [other for other in members if other != process]
            to = chance.sample(others, workload.fan_out)
            if workload.group_size:
                to = [other for other in chance.choice(groups) if other != process]
            command = Multicast(PAYLOAD, destinations(to))
            steps.append((SUBMIT, process, 0, at, command))
            for effect in core.submit(command, now):
                if isinstance(effect, Send):
                    data = codecs[process].encode(effect.pdu)
                    arrival = at + shortest + round(chance.expovariate(1 / mean))
                    push(arrival, RECEIVE, effect.to, process, data)
            push(at + gap(), SUBMIT, process, 0, None)
            sent += 1
        elif kind == RECEIVE:
            steps.append((RECEIVE, process, source, at, memoryview(what)))
            core.receive(ProcessId(source), codecs[process].decode(what), now)
        else:
            steps.append((WAKE, process, 0, at, None))
            core.wake(now)
        deadline = core.next_deadline()
        if deadline is not None and deadline != due:
            push(deadline, WAKE, process, 0, None)
    return steps


def feed(name: str, workload: Workload, steps: list[Step]) -> list[int]:
    """Feed the recorded inputs to new cores; return two times per step, in ns."""
    settings = settings_of(workload)
    entry = ALGORITHMS[name]
    members = [ProcessId(process) for process in range(workload.members)]
    cores = [entry.create(process, settings) for process in members]
    codecs = [entry.codec(process, settings) for process in members]
    clock = time.perf_counter_ns
    times: list[int] = []
    gc.collect()
    gc.disable()
    for kind, process, source, at, what in steps:
        core = cores[process]
        codec = codecs[process]
        now = Instant(at)
        if kind == SUBMIT:
            begin = clock()
            effects = core.submit(what, now)
            submitted = clock()
            pdus = [effect.pdu for effect in effects if type(effect) is Send]
            encode = codec.encode
            middle = clock()
            for pdu in pdus:
                encode(pdu)
            times += (submitted - begin, clock() - middle)
        elif kind == RECEIVE:
            begin = clock()
            pdu = codec.decode(what)
            middle = clock()
            core.receive(ProcessId(source), pdu, now)
            times += (middle - begin, clock() - middle)
        else:
            begin = clock()
            core.wake(now)
            times += (clock() - begin, 0)
    gc.enable()
    return times


def costs(steps: list[Step], times: list[int]) -> dict[str, float]:
    """Mean cost of every kind of step, in µs; waking is part of receiving."""
    total = dict.fromkeys(("send", "encode", "decode", "receive"), 0)
    sends = copies = received = 0
    for index, (kind, _, _, _, what) in enumerate(steps):
        first, second = times[2 * index : 2 * index + 2]
        if kind == SUBMIT:
            sends += 1
            copies += what.destinations.bit_count()
            total["send"] += first
            total["encode"] += second
        elif kind == RECEIVE:
            received += 1
            total["decode"] += first
            total["receive"] += second
        else:
            total["receive"] += first
    per_copy = (total["send"] + total["encode"]) / copies
    per_copy += (total["decode"] + total["receive"]) / received
    return {
        "send": round(total["send"] / sends / 1e3, 2),
        "encode": round(total["encode"] / copies / 1e3, 3),
        "decode": round(total["decode"] / received / 1e3, 2),
        "receive": round(total["receive"] / received / 1e3, 2),
        "copy": round(per_copy / 1e3, 2),
    }


def sizes(workload: Workload, steps: list[Step]) -> dict[str, float]:
    """Mean bytes of control information per copy, over the second half of the run."""
    settings = settings_of(workload)
    codec = ALGORITHMS["jang-delta"].codec(ProcessId(0), settings)
    datagrams = [what for kind, _, _, _, what in steps if kind == RECEIVE]
    datagrams = datagrams[len(datagrams) // 2 :]
    head = compact = printed = 0
    for datagram in datagrams:
        pdu = codec.decode(datagram)
        assert isinstance(pdu, JangDeltaPdu)
        head_bytes = decode_head(pdu.control, workload.members)[3]
        head += head_bytes
        compact += len(pdu.control) - head_bytes
        printed += printed_bytes(pdu, settings)
    count = len(datagrams)
    return {
        "head_bytes": round(head / count, 1),
        "compact_bytes": round(compact / count, 1),
        "printed_bytes": round(printed / count, 1),
    }


def main() -> None:
    """Measure every workload and print the result."""
    parser = arguments(__doc__, repeats=7)
    chosen = parser.parse_args()
    forms = ("jang-delta", "jang-delta-reference")
    results: dict[str, dict[str, Any]] = {form: {} for form in forms}
    ratios: dict[str, Any] = {}
    for name, workload in WORKLOADS.items():
        if chosen.quick:
            workload = msgspec.structs.replace(workload, messages=workload.messages // 5)
        steps = record(workload)
        best: dict[str, list[int]] = {}
        for _ in range(chosen.repeats):
            for form in forms:
                times = feed(form, workload, steps)
                best[form] = list(map(min, best.get(form, times), times))
        for form in forms:
            results[form][name] = costs(steps, best[form])
        fast, literal = (results[form][name] for form in forms)
        ratios[name] = {key: round(literal[key] / fast[key], 2) for key in fast}
        size = sizes(workload, steps)
        fast.update(size)
        ratios[name]["printed/compact"] = round(size["printed_bytes"] / size["compact_bytes"], 2)
    report(
        "jang-delta",
        ours=results["jang-delta"],
        rivals={"literal form": results["jang-delta-reference"]},
        ratios=ratios,
        repeats=chosen.repeats,
        as_json=chosen.json,
    )


if __name__ == "__main__":
    main()
