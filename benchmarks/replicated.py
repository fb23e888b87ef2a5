"""Three replicas of one hot partition: CPU per message and acknowledgement, beside Kafka and NATS.

All on loopback, three processes each, nothing synced per message (`--flush none`, Kafka's and
JetStream's defaults).  Three producers with client ids of their own, so that lanes are spread.
`batched`: librdkafka's defaults; `unbatched`: one message per request, 64 in flight (JetStream has
no batches: pipelined publishes in both).  JetStream's acknowledgement is a majority's: `acks=all`.
`latency`: 1,000 messages a second of 100 bytes, linger 0, acks=all.
`spread`: the same over a topic of 200 partitions, in turn.
CPU is that of the three servers together, which is steady on a busy machine; ZooKeeper's is told
apart.  Kafka comes from Maven's repository when `mvn` is there and `--kafka` names a version, or
from a folder of its jars by `--kafka-jars`.
"""

import contextlib
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import harness
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from nats_raw import publish
from replicated_nats import jetstream

from orderwire.aio.cluster_process import ClusterProcess
from orderwire.broker.replication.settings import Mode

TOPIC = "hot"
SPREAD = "spread"
PARTITIONS = 200
CLIENTS = ("bench-1", "bench-7", "bench-0")
"""Names that lead clients on this machine to brokers 0, 1 and 2 where all have lanes."""
DEPTH = 64
START_SECONDS_MAX = 180.0
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>bench</groupId><artifactId>kafka</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId>
<version>{version}</version></dependency>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId>
<version>{version}</version></dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId>
<version>1.7.36</version></dependency></dependencies></project>"""
PROPERTIES = """process.roles=broker,controller
node.id={number}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={folder}
offsets.topic.replication.factor=3
min.insync.replicas=2
"""


class Fleet:
    """Three servers: where they are, and what CPU they have taken."""

    def __init__(self, bootstrap: str, pids: list[int]) -> None:
        self.bootstrap = bootstrap
        self.pids = pids

    def cpu_s(self) -> float:
        """Of all three."""
        return harness.cpu_s_of(self.pids)


def produce(
    fleet: Fleet,
    count: int,
    size: int,
    acks: str,
    *,
    batched: bool,
    names: Sequence[str] = CLIENTS,
    partitions: int = 1,
) -> int:
    """Write `count` messages from these producers, to one partition or to so many in turn.

    Returns when all are acknowledged.
    """
    topic = TOPIC if partitions == 1 else SPREAD
    failed: list[object] = []
    settings: dict[str, Any] = {
        "bootstrap.servers": fleet.bootstrap,
        "acks": acks,
        "queue.buffering.max.messages": 1_000_000,
        "log_level": 0,
        "on_delivery": lambda error, _: failed.append(error) if error else None,
    }
    if not batched:
        settings |= {"batch.num.messages": 1, "linger.ms": 0, "max.in.flight": DEPTH}
    producers = [Producer({**settings, "client.id": name}) for name in names]
    payload = os.urandom(size // 2).hex().encode()
    for number in range(count):
        producer = producers[number % len(producers)]
        while True:
            try:
                producer.produce(topic, payload, partition=number // len(producers) % partitions)
                break
            except BufferError:
                producer.poll(0.01)
        if not number & 0x3FF:
            for each in producers:
                each.poll(0)
    for each in producers:
        assert each.flush(120) == 0, "messages were never acknowledged"
    assert not failed, failed[0]
    return count


def latencies(fleet: Fleet, count: int) -> list[float]:
    """Milliseconds from `produce` to the acknowledgement by all, at 1,000 messages a second."""
    found: list[float] = []
    producer = Producer(
        {
            "bootstrap.servers": fleet.bootstrap,
            "acks": "all",
            "linger.ms": 0,
            "client.id": "bench-0",
            "log_level": 0,
        }
    )
    payload = os.urandom(50).hex().encode()
    start = time.monotonic()
    for number in range(count):
        while (left := start + number / 1_000 - time.monotonic()) > 0:
            producer.poll(left)
        producer.produce(
            TOPIC, payload, partition=0, on_delivery=lambda _, m: found.append(m.latency() * 1e3)
        )
    assert producer.flush(60) == 0
    return found[count // 10 :]


@contextlib.contextmanager
def orderwire(mode: Mode) -> Iterator[Fleet]:
    """Our cluster."""
    with (
        tempfile.TemporaryDirectory() as folder,
        ClusterProcess.start(
            Path(folder), "--flush=none", "--topic-config=min.insync.replicas=2", mode=mode
        ) as cluster,
    ):
        yield Fleet(cluster.bootstrap, [broker.pid for broker in cluster.brokers])


@contextlib.contextmanager
def kafka(version: str | None, jars: Path | None) -> Iterator[Fleet]:
    """Apache Kafka, three nodes that are brokers and controllers."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        if jars is None:
            jars = folder / "lib"
            (folder / "pom.xml").write_text(POM.format(version=version))
            order = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={jars}"]
            subprocess.run(order, cwd=folder, check=True, timeout=600, **quiet)
        java = ["java", "-Xmx1g", "-cp", f"{jars}/*"]
        tool = [*java, "kafka.tools.StorageTool"]
        cluster = subprocess.check_output([*tool, "random-uuid"], text=True).strip()
        ports = free_ports(6)
        voters = ",".join(f"{n + 1}@127.0.0.1:{ports[n + 3]}" for n in range(3))
        processes: list[subprocess.Popen[bytes]] = []
        stack.callback(end_all, processes)
        for number in range(3):
            properties = folder / f"{number}.properties"
            properties.write_text(
                PROPERTIES.format(
                    number=number + 1,
                    voters=voters,
                    port=ports[number],
                    controller=ports[number + 3],
                    folder=folder / f"data-{number}",
                )
            )
            subprocess.run(
                [*tool, "format", "-t", cluster, "-c", str(properties)], check=True, **quiet
            )
            processes.append(subprocess.Popen([*java, "kafka.Kafka", str(properties)], **quiet))
        pids = [process.pid for process in processes]
        yield Fleet(",".join(f"127.0.0.1:{port}" for port in ports[:3]), pids)


def end_all(processes: list[subprocess.Popen[bytes]]) -> None:
    """End them together: the last of a quorum would wait for the others."""
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def free_ports(count: int) -> list[int]:
    """Ports that are free at this moment."""
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def make_topic(fleet: Fleet) -> None:
    """Make the topics, with three replicas, once three brokers are there."""
    admin = AdminClient({"bootstrap.servers": fleet.bootstrap, "log_level": 0})
    until = time.monotonic() + START_SECONDS_MAX
    while True:
        try:
            if len(admin.list_topics(timeout=5).brokers) == 3:
                break
        except Exception:
            if time.monotonic() > until:
                raise
        time.sleep(0.5)
    topics = [NewTopic(TOPIC, 1, 3), NewTopic(SPREAD, PARTITIONS, 3)]
    for future in admin.create_topics(topics, operation_timeout=60).values():
        future.result(60)
    for partitions in (1, PARTITIONS):
        produce(fleet, 1_000, 100, "all", batched=True, partitions=partitions)


def main() -> None:
    parser = harness.arguments(__doc__, repeats=3)
    parser.add_argument("--kafka", metavar="VERSION", help="as 4.1.1; needs mvn and Java 17")
    parser.add_argument("--kafka-jars", metavar="FOLDER", type=Path, help="instead of mvn")
    options = parser.parse_args()
    scale = 1 if options.quick else 5
    rows = [
        (size, acks, batched, 1)
        for size in (100, 1_024)
        for acks in ("1", "all")
        for batched in (True, False)
    ]
    rows += [(100, "all", batched, PARTITIONS) for batched in (True, False)]
    runs: dict[str, dict[str, list[harness.Measured]]] = {}
    delays: dict[str, dict[str, float]] = {}
    with contextlib.ExitStack() as stack:
        fleets = {mode.value: stack.enter_context(orderwire(mode)) for mode in Mode}
        rivals: list[str] = []
        if options.kafka_jars is not None or (options.kafka is not None and shutil.which("mvn")):
            fleets["kafka"] = stack.enter_context(kafka(options.kafka, options.kafka_jars))
            rivals.append("kafka")
        for fleet in fleets.values():
            make_topic(fleet)
        if "kafka" in fleets:  # until its code is compiled
            for acks in ("1", "all"):
                produce(fleets["kafka"], 200_000, 100, acks, batched=True)
                produce(fleets["kafka"], 10_000, 100, acks, batched=False)
        nats = stack.enter_context(jetstream(free_ports(6)))
        rivals.append("jetstream")
        for size, acks, batched, partitions in rows:
            name = f"{size} B, acks={acks}, {'batched' if batched else 'unbatched'}"
            name += ", spread" if partitions > 1 else ""
            count = (40_000 if batched else 4_000) * scale
            found = runs[name] = {}
            for number in range(options.repeats + 1):
                for fleet_name, fleet in fleets.items():
                    part = count if number else count // 10
                    wall, cpu = time.perf_counter(), fleet.cpu_s()
                    produce(fleet, part, size, acks, batched=batched, partitions=partitions)
                    note(found, fleet_name, fleet, part, wall, cpu, counts=number > 0)
                if acks == "all" and partitions == 1:
                    part = (count if number else count // 10) // 4
                    wall, cpu = time.perf_counter(), nats.cpu_s()
                    publish(nats.address, TOPIC, part, size, DEPTH)
                    note(found, "jetstream", nats, part, wall, cpu, counts=number > 0)
            print(
                name,
                {n: harness.summarise(r).cpu_us_per_unit for n, r in found.items()},
                file=sys.stderr,
            )
        for fleet_name, fleet in fleets.items():
            times = sorted(latencies(fleet, 1_000 * scale))
            delays[fleet_name] = {
                "p50_ms": round(statistics.median(times), 3),
                "p99_ms": round(times[len(times) * 99 // 100], 3),
            }
    summary = {
        fleet: {
            row: harness.summarise(found[fleet]) for row, found in runs.items() if fleet in found
        }
        for fleet in [*fleets, "jetstream"]
    }
    lanes, standby = Mode.ACTIVE_ACTIVE_LANES.value, Mode.ACTIVE_STANDBY.value
    ratios: dict[str, float] = {}
    for row, found in runs.items():
        ratios[f"rate of lanes over standby, {row}"] = harness.median_ratio(
            found[lanes], found[standby], harness.units_per_s
        )
        for rival in rivals:
            for mode in Mode:
                if rival in found:
                    ratios[f"CPU of {mode.value} over {rival}, {row}"] = harness.median_ratio(
                        found[rival], found[mode.value], harness.units_per_cpu_s
                    )
    harness.report(
        "replicated",
        ours={mode.value: summary[mode.value] for mode in Mode} | {"latency": delays},
        rivals={rival: summary[rival] for rival in rivals},
        ratios=ratios,
        repeats=options.repeats,
        as_json=options.json,
        targets={"latency_p50_ms": 3.0, "cpu_over_kafka": 1.0, "lanes_over_standby": 1.5},
    )


def note(
    found: dict[str, list[harness.Measured]],
    name: str,
    fleet: Any,
    units: int,
    wall: float,
    cpu: float,
    *,
    counts: bool,
) -> None:
    """Keep a run, unless it only warmed up."""
    wall_s = time.perf_counter() - wall
    time.sleep(0.2)  # what the replicas still owe each other
    if counts:
        run = harness.Measured(units=units, wall_s=wall_s, cpu_s=fleet.cpu_s() - cpu)
        found.setdefault(name, []).append(run)


if __name__ == "__main__":
    main()
