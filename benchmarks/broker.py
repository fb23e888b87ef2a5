"""A broker's CPU per message and per byte, beside librdkafka's mock cluster and JetStream.

The servers run in their own processes on loopback, with one partition and no fsync per message.
`batched`: 100-byte messages from a librdkafka client with its defaults (JetStream has no batches:
pipelined publishes).  `unbatched`: one 100-byte message per request, 64 requests in flight.
`fetch`: 1 MiB at a time, in bytes.  `recovery`: opening a log of one segment that was not closed:
`scan` when nothing vouches for any of it, `restart` when it was synced as the broker does and the
process died almost as far behind its last checkpoint as it can get.
CPU time of the server is the steady figure on a busy machine.
"""

import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import broker_servers as servers
import harness
import nats_raw
from broker_servers import Frames, Process
from confluent_kafka import Producer

from orderwire.broker.log import DiskStorage, LogConfig, PartitionLog
from orderwire.broker.wire.batch import walk
from orderwire.broker.wire.generated.fetch import decode_fetch_response
from orderwire.broker.wire.generated.produce import decode_produce_response
from orderwire.broker.wire.records import Record, build_batch

MESSAGE_BYTES = 100
DEPTH = 64
FETCH_BYTES = 1 << 20
GIB = 1 << 30
KIB = 1 << 10
SYNC_BYTES = 16 << 20
NATS_BATCH_MESSAGES = 1_000
TARGETS = {
    "batched_us_per_message": 0.2,
    "unbatched_us_per_request": 12.0,
    "fetch_gb_per_cpu_s": 1.5,
    "recovery_cpu_s_per_gib": 1.0,
    "small_batches_restart_cpu_s_per_gib": 1.0,
}

Load = Callable[[Process, int], int]


def measured(server: Process, load: Load, amount: int) -> harness.Measured:
    """Run a load; CPU is the server's."""
    wall, cpu = time.perf_counter(), server.cpu_s()
    units = load(server, amount)
    # The last replies may come before the server has accounted for its slice.
    time.sleep(0.05)
    return harness.Measured(
        units=units, wall_s=time.perf_counter() - wall, cpu_s=server.cpu_s() - cpu
    )


def kafka_batched(server: Process, count: int) -> int:
    """librdkafka's producer, with its defaults."""
    failed: list[object] = []
    producer = Producer(
        {
            "bootstrap.servers": server.address,
            "queue.buffering.max.messages": 1_000_000,
            "on_delivery": lambda error, _: failed.append(error) if error else None,
        }
    )
    payload = os.urandom(MESSAGE_BYTES // 2).hex().encode()
    sent = 0
    while sent < count:
        try:
            producer.produce(servers.TOPIC, payload, partition=0)
            sent += 1
        except BufferError:
            producer.poll(0.05)
        if not sent & 0xFFF:
            producer.poll(0)
    left = producer.flush(60)
    assert not left, f"{left} messages were never acknowledged"
    assert not failed, failed[0]
    return count


def kafka_unbatched(server: Process, count: int) -> int:
    """One message per request, 64 requests at once."""
    batch = build_batch([Record(os.urandom(MESSAGE_BYTES), timestamp=int(time.time() * 1000))])
    window = servers.produce_request(batch) * DEPTH
    with server.connect() as peer:
        frames = Frames(peer)
        for _ in range(count // DEPTH):
            peer.sendall(window)
            frames.skip(DEPTH)
    return count // DEPTH * DEPTH


def kafka_fetch(start: int) -> Load:
    """1 MiB per request, from this offset on and then again; record bytes received."""

    def load(server: Process, count_bytes: int) -> int:
        total = 0
        offset = start
        with server.connect() as peer:
            frames = Frames(peer)
            while total < count_bytes:
                peer.sendall(servers.fetch_request(offset, FETCH_BYTES))
                response, _ = decode_fetch_response(frames.one(), 4, servers.FETCH_VERSION)
                partition = response.responses[0].partitions[0]
                records = partition.records
                assert isinstance(records, memoryview)
                if len(records) == 0:  # the end; or the mock, which keeps a few MiB, has moved on
                    offset = max(start, partition.log_start_offset)
                    continue
                total += len(records)
                offset = [header for _, header in walk(records)][-1].last_offset + 1
        return total

    return load


def fill(server: Process, size: int) -> int:
    """Put batches of 64 KiB into the topic (1 KiB messages); returns the first offset."""
    records = [Record(os.urandom(KIB), timestamp=int(time.time() * 1000)) for _ in range(63)]
    request = servers.produce_request(build_batch(records))
    first = -1
    with server.connect() as peer:
        frames = Frames(peer)
        for _ in range(size // len(request) + 1):
            peer.sendall(request)
            response, _ = decode_produce_response(frames.one(), 4, servers.PRODUCE_VERSION)
            offset = response.responses[0].partition_responses[0].base_offset
            first = offset if first < 0 else first
    return first


def make_topic(server: Process) -> None:
    producer = Producer({"bootstrap.servers": server.address})
    producer.produce(servers.TOPIC, b"first")
    assert producer.flush(30) == 0


def nats_publish(server: Process, count: int) -> int:
    """Pipelined publishes, 64 unacknowledged at most."""
    address = (server.host, server.port)
    return nats_raw.publish(address, servers.TOPIC, count, MESSAGE_BYTES, DEPTH)


def nats_of(server: Process) -> nats_raw.Connection:
    return nats_raw.Connection((server.host, server.port))


def told(nats: nats_raw.Connection, subject: str, body: dict[str, Any]) -> None:
    """Call JetStream's own interface; its answer must be no error."""
    answer = nats.ask(subject, body)
    assert "error" not in answer, answer


def nats_fetch(server: Process, count_bytes: int) -> int:
    """A pull consumer without acknowledgements, 1,000 messages of 1 KiB per request."""
    nats = nats_of(server)
    told(
        nats,
        f"$JS.API.CONSUMER.CREATE.{servers.TOPIC}.bench",
        {
            "stream_name": servers.TOPIC,
            "config": {"name": "bench", "ack_policy": "none", "deliver_policy": "all"},
        },
    )
    next_batch = json.dumps({"batch": NATS_BATCH_MESSAGES, "expires": 10**10}).encode()
    head = f"$JS.API.CONSUMER.MSG.NEXT.{servers.TOPIC}.bench _INBOX.bench {len(next_batch)}"
    request = b"PUB " + head.encode() + b"\r\n" + next_batch + b"\r\n"
    rounds = count_bytes // KIB // NATS_BATCH_MESSAGES
    for _ in range(rounds):
        nats.peer.sendall(request)
        came = 0
        tail = b""
        while came < NATS_BATCH_MESSAGES:
            data = tail + nats.peer.recv(1 << 20)
            came += data.count(b"MSG ")  # the payload is hexadecimal
            tail = data[-3:]
    nats.peer.close()
    nats = nats_of(server)  # on the old one records may still be coming
    told(nats, f"$JS.API.CONSUMER.DELETE.{servers.TOPIC}.bench", {})
    nats.peer.close()
    return rounds * NATS_BATCH_MESSAGES * KIB


def nats_fill(server: Process, size: int) -> None:
    """Messages of 1 KiB."""
    payload = os.urandom(KIB // 2).hex().encode()
    window = (f"PUB {servers.TOPIC} _INBOX.bench {KIB}\r\n".encode() + payload + b"\r\n") * DEPTH
    nats = nats_of(server)
    for _ in range(size // KIB // DEPTH + 1):
        nats.peer.sendall(window)
        nats.acknowledged(DEPTH)
    nats.peer.close()


def make_stream(server: Process) -> None:
    """A stream on disk."""
    nats = nats_of(server)
    told(
        nats,
        f"$JS.API.STREAM.CREATE.{servers.TOPIC}",
        {
            "name": servers.TOPIC,
            "subjects": [servers.TOPIC],
            "storage": "file",
            "retention": "limits",
            "num_replicas": 1,
        },
    )
    nats.peer.close()


def empty_stream(server: Process) -> None:
    nats = nats_of(server)
    told(nats, f"$JS.API.STREAM.PURGE.{servers.TOPIC}", {})
    nats.peer.close()


def recovery(batch_bytes: int, size: int, *, checkpoints: bool) -> dict[str, float | str]:
    """Open a log of one segment that was not closed; CPU of this process."""
    record = Record(os.urandom(max(1, batch_bytes - 70)), timestamp=1_700_000_000_000)
    batch = build_batch([record])
    with tempfile.TemporaryDirectory() as folder:
        config = LogConfig(segment_bytes=2 * GIB, max_message_bytes=8 << 20)
        log = PartitionLog.open(DiskStorage(Path(folder)), config, 0)
        together = max(1, min(config.batches_per_append_max, SYNC_BYTES // len(batch)))
        if checkpoints:  # the last sync that notes one was this long ago
            size += config.recovery_bytes - SYNC_BYTES
        count = size // len(batch) // together * together
        synced = 0
        while log.end_offset < count:
            log.append(batch * together, 0, 0)
            if log.size_bytes >= synced + SYNC_BYTES:
                log.sync(checkpoint=checkpoints)
                synced = log.size_bytes
        log.sync(checkpoint=checkpoints)
        wall, cpu = time.perf_counter(), time.process_time()
        again = PartitionLog.open(DiskStorage(Path(folder)), config, 0)
        cpu_s, wall_s = time.process_time() - cpu, time.perf_counter() - wall
        assert (again.end_offset, again.recovery.clean) == (count, False)
        written = count * len(batch)
        scanned = again.recovery.scanned_bytes
    return {
        "kind": "restart" if checkpoints else "scan",
        "batch_bytes": len(batch),
        "batches": count,
        "scanned_ratio": round(scanned / written, 3),
        "cpu_s_per_gib": round(cpu_s * GIB / written, 3),
        "wall_s_per_gib": round(wall_s * GIB / written, 3),
        "cpu_us_per_batch": round(cpu_s / count * 1e6, 3),
    }


class Contestant:
    """A server with the loads it can take."""

    def __init__(self, server: Process, loads: dict[str, Load]) -> None:
        self.server = server
        self.loads = loads


def main() -> None:
    parser = harness.arguments(__doc__, repeats=5)
    options = parser.parse_args()
    scale = 1 if options.quick else 5
    amounts = {
        "batched": 100_000 * scale,
        "unbatched": 12_800 * scale,
        "fetch": (200 << 20) * scale,
    }
    kafka: dict[str, Load] = {"batched": kafka_batched, "unbatched": kafka_unbatched}
    with contextlib.ExitStack() as stack:
        ours = Contestant(stack.enter_context(servers.orderwire()), dict(kafka))
        mock = Contestant(stack.enter_context(servers.librdkafka_mock()), dict(kafka))
        nats = Contestant(
            stack.enter_context(servers.jetstream()),
            {"batched": nats_publish, "unbatched": nats_publish, "fetch": nats_fetch},
        )
        contestants = {"ours": ours, "librdkafka_mock": mock, "jetstream": nats}
        make_topic(ours.server)
        make_topic(mock.server)
        make_stream(nats.server)
        runs: dict[str, dict[str, list[harness.Measured]]] = {}
        for load, amount in amounts.items():
            if load == "fetch":
                ours.loads["fetch"] = kafka_fetch(fill(ours.server, 64 << 20))
                mock.loads["fetch"] = kafka_fetch(fill(mock.server, 64 << 20))
                empty_stream(nats.server)
                nats_fill(nats.server, amount)
            runs[load] = {name: [] for name in contestants}
            for number in range(options.repeats + 1):
                for name, contestant in contestants.items():
                    part = amount if number else amount // 10  # the first round warms up
                    run = measured(contestant.server, contestant.loads[load], part)
                    if number:
                        runs[load][name].append(run)
                    _progress(load, name, run)
    results = {
        name: {load: harness.summarise(runs[load][name]) for load in amounts}
        for name in contestants
    }
    size = GIB // (8 if options.quick else 1)
    recoveries = [recovery(each, size, checkpoints=False) for each in (16 << 10, 1 << 20)]
    recoveries.append(recovery(170, size // 16, checkpoints=False))
    recoveries.append(recovery(170, GIB, checkpoints=True))
    mine = results["ours"]
    figures = {
        "batched_us_per_message": mine["batched"].cpu_us_per_unit,
        "unbatched_us_per_request": mine["unbatched"].cpu_us_per_unit,
        "fetch_gb_per_cpu_s": round(mine["fetch"].units_per_cpu_s / 1e9, 3),
        "recovery_cpu_s_per_gib": recoveries[0]["cpu_s_per_gib"],
        "small_batches_restart_cpu_s_per_gib": recoveries[-1]["cpu_s_per_gib"],
    }
    harness.report(
        "broker",
        ours={**mine, "figures": figures, "recovery": recoveries},
        rivals={name: each for name, each in results.items() if name != "ours"},
        ratios={
            f"cpu of ours over {name}, {load}": harness.median_ratio(
                runs[load][name], runs[load]["ours"], harness.units_per_cpu_s
            )
            for name in contestants
            if name != "ours"
            for load in amounts
        },
        repeats=options.repeats,
        as_json=options.json,
        targets=TARGETS,
        units={"batched": "messages of 100 B", "unbatched": "requests", "fetch": "bytes"},
    )


def _progress(load: str, name: str, run: harness.Measured) -> None:
    print(f"{load} {name}: {run.cpu_s / run.units * 1e6:.4f} µs CPU", file=sys.stderr)


if __name__ == "__main__":
    main()
