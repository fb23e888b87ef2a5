"""Three replicas over slow links: one hot partition where the network is what limits.

Each broker lives in a network namespace of its own, behind a link of `--megabits` each way, which
its clients use, too.  Needs root, `ip` and `tc`.  Three producers, 1 KiB, batched, acks=all; the
rate is what the replicas acknowledge.
"""

import contextlib
import ctypes
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import harness
from replicated import Fleet, make_topic, produce

from orderwire.aio.broker_process import BrokerProcess
from orderwire.aio.zookeeper_server import ZookeeperServerSettings, managed_zookeeper
from orderwire.broker.replication.settings import Mode

SIZE = 1_024
BRIDGE = "owlinks"
NET = "10.97.0"
GATE = f"{NET}.254"
CLIENTS = ("bench-3", "bench-2", "bench-1")
"""Names that lead clients at `GATE` to brokers 0, 1 and 2 where all have lanes."""
MODES = (Mode.ACTIVE_STANDBY, Mode.ACTIVE_ACTIVE_LANES)


def run(*order: str) -> None:
    """Raises CalledProcessError."""
    subprocess.run(order, check=True, capture_output=True)


@contextlib.contextmanager
def namespaces(count: int, megabits: int) -> Iterator[list[str]]:
    """Make namespaces behind one bridge; the names."""
    names = [f"{BRIDGE}{number}" for number in range(count)]
    limit = ("root", "tbf", "rate", f"{megabits}mbit", "burst", "64kb", "latency", "100ms")
    with contextlib.ExitStack() as stack:
        run("ip", "link", "add", BRIDGE, "type", "bridge")
        stack.callback(run, "ip", "link", "del", BRIDGE)
        run("ip", "addr", "add", f"{GATE}/24", "dev", BRIDGE)
        run("ip", "link", "set", BRIDGE, "up")
        for number, name in enumerate(names):
            run("ip", "netns", "add", name)
            stack.callback(run, "ip", "netns", "del", name)
            outside = f"{name}v"
            run("ip", "link", "add", outside, "type", "veth", "peer", "eth0", "netns", name)
            run("ip", "link", "set", outside, "master", BRIDGE, "up")
            run("ip", "-n", name, "addr", "add", f"{NET}.{number + 1}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                run("ip", "-n", name, "link", "set", device, "up")
            run("tc", "-n", name, "qdisc", "add", "dev", "eth0", *limit)
            run("tc", "qdisc", "add", "dev", outside, *limit)
        yield names


def start_inside(name: str, number: int, folder: Path, *options: str) -> BrokerProcess:
    """Start a broker in a namespace: who starts it has to be there, in a thread of its own."""
    started: list[BrokerProcess] = []

    def work() -> None:
        place = os.open(f"/run/netns/{name}", os.O_RDONLY)
        assert ctypes.CDLL(None, use_errno=True).setns(place, 0) == 0, "setns"
        os.close(place)
        address = f"{NET}.{number + 1}"
        inside = f"--internal-listen={address}:9093"
        told = (f"--node-id={number}", inside, "--insecure", *options)
        started.append(
            BrokerProcess.start(folder / f"{number}", *told, listen=f"{address}:9092", tied=True)
        )

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return started[0]


@contextlib.contextmanager
def cluster(mode: Mode, names: list[str]) -> Iterator[Fleet]:
    """Our cluster over these namespaces."""
    with tempfile.TemporaryDirectory() as text, contextlib.ExitStack() as stack:
        folder = Path(text)
        settings = ZookeeperServerSettings(host=GATE, insecure=True)
        server = managed_zookeeper(folder / "zookeeper", settings)
        server.start()
        stack.callback(server.stop)
        brokers = []
        for number, name in enumerate(names):
            broker = start_inside(
                name,
                number,
                folder,
                f"--zookeeper={server.address}",
                "--flush=none",
                f"--topic-config=orderwire.mode={mode.value}",
                "--topic-config=min.insync.replicas=2",
            )
            stack.callback(broker.stop)
            brokers.append(broker)
        bootstrap = ",".join(broker.address for broker in brokers)
        yield Fleet(bootstrap, [broker.pid for broker in brokers])


def main() -> None:
    parser = harness.arguments(__doc__, repeats=3)
    parser.add_argument("--megabits", type=int, default=40)
    options = parser.parse_args()
    count = (10_000 if options.quick else 40_000) * options.megabits // 40
    runs: dict[str, list[harness.Measured]] = {}
    with namespaces(3, options.megabits) as names:
        for mode in MODES:
            with cluster(mode, names) as fleet:
                make_topic(fleet)
                for number in range(options.repeats + 1):
                    wall, cpu = time.perf_counter(), fleet.cpu_s()
                    part = count if number else count // 10
                    produce(fleet, part, SIZE, "all", batched=True, names=CLIENTS)
                    wall_s = time.perf_counter() - wall
                    if number:
                        cpu_s = fleet.cpu_s() - cpu
                        runs.setdefault(mode.value, []).append(
                            harness.Measured(units=count, wall_s=wall_s, cpu_s=cpu_s)
                        )
            rates = [each.units / each.wall_s for each in runs[mode.value]]
            print(mode.value, f"{statistics.median(rates):,.0f} messages/s", file=sys.stderr)
    standby = runs[Mode.ACTIVE_STANDBY.value]
    harness.report(
        "replicated_links",
        ours={mode: harness.summarise(found) for mode, found in runs.items()},
        rivals={},
        ratios={
            f"rate of {mode} over active-standby": harness.median_ratio(
                found, standby, harness.units_per_s
            )
            for mode, found in runs.items()
            if found is not standby
        },
        repeats=options.repeats,
        as_json=options.json,
        targets={"lanes_over_standby": 1.5},
    )


if __name__ == "__main__":
    main()
