"""What tracing costs a member: its throughput with and without, in the same run.

`members`: two participants on loopback in one process, Δ-causal, 100-byte messages from one to the
other: public API, core, codec, reliable datagrams, queues.  Traced, each message is two events.
`core`: one member's codec and core alone, fed with encoded PDUs of three busy senders: the least
work a message can be, so the worst case for tracing.  The trace goes to an Arrow file; the CPU time
of the thread that writes it counts.
"""

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path

import harness

from orderwire import DeltaCausal, Participant, Topic, Trace
from orderwire.kernel import Instant, ProcessId, Send, destinations
from orderwire.ordering.catalog import algorithm
from orderwire.ordering.pdu import Delivered, Multicast
from orderwire.trace import BackgroundSink, IpcFileSink, Tracer
from orderwire.trace.events import RunSettings

TARGET = 0.85
"""Throughput with tracing over throughput without, at least."""

ORDER = DeltaCausal(lifetime_ms=2_000)
MESSAGE = bytes(100)
SENDERS = 3
GAP_NS = 20_000


def members(count: int, trace: Trace | None) -> int:
    """Send `count` messages from one participant to another; return how many came."""

    async def run() -> int:
        topic = Topic("load", order=ORDER)
        got = 0

        def on_sample(_: object) -> None:
            nonlocal got
            got += 1

        addresses = {"a": "127.0.0.1:17461", "b": "127.0.0.1:17462"}
        async with (
            Participant("a", members=addresses, trace=trace) as a,
            Participant("b", members=addresses, trace=trace) as b,
        ):
            writer = a.writer(topic)
            b.reader(topic, callback=on_sample)
            await writer.wait_matched(1, timeout_s=10)
            for number in range(count):
                writer.write(MESSAGE)
                if number % 64 == 63:
                    await asyncio.sleep(0)
                    await writer.drain()
            await a.flush(timeout_s=30)
            await b.drain(timeout_s=30)
        return got

    return asyncio.run(run())


def encoded(count: int) -> list[tuple[ProcessId, Instant, bytes]]:
    """PDUs of three senders that hear each other, as they reach member 0."""
    entry, settings = algorithm(ORDER.algorithm), ORDER.settings(SENDERS + 1)
    cores = [entry.create(ProcessId(p), settings) for p in range(SENDERS + 1)]
    codecs = [entry.codec(ProcessId(p), settings) for p in range(SENDERS + 1)]
    everyone = destinations(range(SENDERS + 1))
    found = []
    now = Instant(10**15)
    for number in range(count):
        sender = ProcessId(1 + number % SENDERS)
        now = Instant(now + GAP_NS)
        for effect in cores[sender].submit(Multicast(MESSAGE, everyone), now):
            if isinstance(effect, Send):
                data = codecs[sender].encode(effect.pdu)
                if effect.to == 0:
                    found.append((sender, now, data))
                else:
                    codec = codecs[effect.to]
                    cores[effect.to].receive(sender, codec.decode(data), now)
    return found


def core(pdus: list[tuple[ProcessId, Instant, bytes]], path: Path | None) -> int:
    """Feed one member's codec and core; return how many messages it delivered."""
    entry, settings = algorithm(ORDER.algorithm), ORDER.settings(SENDERS + 1)
    member, codec = entry.create(ProcessId(0), settings), entry.codec(ProcessId(0), settings)
    sink = BackgroundSink(IpcFileSink(path)) if path is not None else None
    run = RunSettings(algorithm=ORDER.algorithm, members=SENDERS + 1)
    tracer = Tracer("bench", 0, sink, run, 0) if sink is not None else None
    delivered = 0
    for source, now, data in pdus:
        for effect in member.receive(source, codec.decode(data), now):
            message = effect.indication  # type: ignore[union-attr]
            if isinstance(message, Delivered):
                delivered += 1
                if tracer is not None:
                    tracer.deliver(
                        now,
                        message.source,
                        message.number,
                        message.stamp,
                        message.arrived,
                        message.control_bytes,
                        len(message.payload),
                    )
    if tracer is not None and sink is not None:
        tracer.close(now)
        sink.close()
    return delivered


def main() -> None:
    parser = harness.arguments(__doc__, repeats=15)
    chosen = parser.parse_args()
    count = 4_000 if chosen.quick else 20_000
    pdus = encoded(count)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        contestants: dict[str, Callable[[], int]] = {
            "members_traced": lambda: members(count, Trace(run="bench", path=path)),
            "members_untraced": lambda: members(count, None),
            "core_traced": lambda: core(pdus, path / "core.arrow"),
            "core_untraced": lambda: core(pdus, None),
        }
        rounds = harness.interleave(contestants, chosen.repeats)
    ratios: dict[str, float | bool] = {}
    for part in ("members", "core"):
        pair = rounds[f"{part}_traced"], rounds[f"{part}_untraced"]
        ratios[f"{part}_throughput"] = harness.median_ratio(*pair, harness.units_per_s)
        ratios[f"{part}_per_cpu"] = harness.median_ratio(*pair, harness.units_per_cpu_s)
    ratios["target"] = TARGET
    ratios["met"] = ratios["members_per_cpu"] >= TARGET
    harness.report(
        "tracing",
        ours={name: harness.summarise(runs) for name, runs in rounds.items() if "_traced" in name},
        rivals={
            name: harness.summarise(runs) for name, runs in rounds.items() if "_untraced" in name
        },
        ratios=ratios,
        repeats=chosen.repeats,
        as_json=chosen.json,
    )


if __name__ == "__main__":
    main()
