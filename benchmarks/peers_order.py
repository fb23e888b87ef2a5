"""Order under loss: members that answer each other, beside other systems, in the same rounds.

The harness is a folder with `order.py`, which starts the members in network namespaces on one
switch that loses frames, and judges their logs; it needs root.  A rival that is not installed here
is reported as missing.  Run it with a Python that has the rivals' packages and this one:

    python benchmarks/peers_order.py --harness FOLDER --json

On a machine with other work run it under `chrt --rr 1`, which puts all members of all systems
before that work; a nice value does not, where the kernel groups tasks by session.

Figures are medians over the rounds.  `causal`: deliveries before something that happened before
them.  `lost`: copies never given to some member.  Delays in ms from writing to being given, at
others.
"""

import argparse
import ctypes.util
import importlib.util
import json
import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

import harness

OURS = "bounded-jang"
"""What `DeltaCausal` runs."""
NODE = Path(__file__).parent / "peers" / "order_node.py"
RIVALS = ("dds", "zenoh", "zmq", "nats", "jgroups-fifo", "jgroups-seq", "cpg", "pysyncobj")
PACKAGES = {
    "dds": "cyclonedds",
    "zenoh": "zenoh",
    "zmq": "zmq",
    "nats": "nats",
    "pysyncobj": "pysyncobj",
}
BY_OUR_NODE = ("pysyncobj",)
"""Rivals that the harness does not know: `peers/order_node.py` runs them."""
JGROUPS = Path("/usr/share/java/jgroups.jar")
COUNTS = (
    "sent",
    "lost",
    "dup",
    "fifo",
    "reply",
    "causal",
    "inverted_pct",
    "ms50",
    "ms99",
    "ms_max",
)
NONE_ALLOWED = ("lost", "causal", "inverted_pct")
"""A median would hide these: their worst is told, too."""
RUN_S_MAX = 300.0


def missing(system: str, folder: Path | None) -> str | None:
    """Return what this rival lacks here, or None when it can run."""
    if folder is None:
        return "--harness"
    package = PACKAGES.get(system)
    if package is not None and importlib.util.find_spec(package) is None:
        return f"Python package {package}"
    if system == "nats" and not Path(sys.executable).with_name("nats-server").exists():
        return "nats-server beside this Python"
    if system.startswith("jgroups"):
        if shutil.which("java") is None or not JGROUPS.exists():
            return f"java, {JGROUPS}"
        if not (folder / "order" / "JgNode.class").exists():
            return "order/JgNode.class of the harness, compiled"
    if system == "cpg" and (
        ctypes.util.find_library("cpg") is None or not Path("/usr/sbin/corosync").exists()
    ):
        return "corosync, libcpg"
    return None


def run(system: str, loss: float, options: argparse.Namespace, *, ours: bool) -> dict[str, Any]:
    """Run one system once; what failed has an `error`."""
    command = [sys.executable, "order.py", "--n", str(options.members), "--loss", str(loss)]
    command += ["--secs", str(options.seconds), "--drain", str(options.drain)]
    command += ["--every", str(options.every_ms)]
    if ours or system in BY_OUR_NODE:
        node = f"{{python}} {NODE} {{i}} {{n}} {{secs}} {{every}} {{ip}} {{hub}} {{out}}"
        node += f" --order {system} --lifetime-ms {options.lifetime_ms}"
        command += ["--name", system, "--cmd", node]
    else:
        command.append(system)
    return harness.run_json(command, options.harness, RUN_S_MAX)


def medians(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the median of every figure, the worst of those that must be 0, and what failed."""
    good = [each for each in runs if "error" not in each]
    found: dict[str, Any] = {"runs": len(good)}
    if len(good) < len(runs):
        found["errors"] = [each["error"] for each in runs if "error" in each]
    if good:
        found |= {key: round(statistics.median(each[key] for each in good), 4) for key in COUNTS}
        found |= {f"{key}_max": max(each[key] for each in good) for key in NONE_ALLOWED}
    return found


def ratio(ours: list[dict[str, Any]], theirs: list[dict[str, Any]], key: str) -> float | None:
    """Return the median over the rounds of ours / theirs."""
    pairs = [
        a[key] / b[key]
        for a, b in zip(ours, theirs, strict=True)
        if a.get(key) is not None and b.get(key)
    ]
    return round(statistics.median(pairs), 3) if pairs else None


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = harness.arguments(__doc__, repeats=3)
    parser.add_argument("--harness", type=Path, help="folder with order.py; without: nothing runs")
    parser.add_argument("--loss", type=float, nargs="+", default=[0, 2, 5], help="percent")
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument(
        "--every-ms", type=float, default=10.0, help="each member writes so often; answers beside"
    )
    parser.add_argument("--drain", type=float, default=2.0, help="seconds after the last message")
    parser.add_argument("--lifetime-ms", type=float, default=1_000.0)
    parser.add_argument("--order", nargs="+", default=[OURS, "jang-delta", "fifo", "unordered"])
    parser.add_argument("--rivals", nargs="*", default=list(RIVALS), choices=RIVALS)
    options = parser.parse_args()
    if options.harness is not None and not (options.harness / "order.py").exists():
        parser.error(f"there is no order.py in {options.harness}")
    if options.quick:
        options.seconds, options.repeats = 2.0, 1
    return options


def main() -> None:
    """Run every system once a round, at every loss."""
    options = arguments()
    lacking = {name: missing(name, options.harness) for name in options.rivals}
    if options.harness is None:
        options.order = []
    systems = [(name, True) for name in options.order]
    systems += [(name, False) for name in options.rivals if lacking[name] is None]
    runs: dict[tuple[str, float], list[dict[str, Any]]] = {}
    for loss in options.loss:
        for _ in range(options.repeats):
            for name, is_ours in systems:
                result = run(name, loss, options, ours=is_ours)
                runs.setdefault((name, loss), []).append(result)
                print(json.dumps({"system": name, "loss": loss} | result), file=sys.stderr)
    tables = {
        name: {f"{loss:g} %": medians(runs[name, loss]) for loss in options.loss}
        for name, _ in systems
    }
    first = options.order[0] if options.order else OURS
    harness.report(
        "peers-order",
        ours={name: tables[name] for name in options.order},
        rivals={name: tables.get(name, {"missing": lacking[name]}) for name in options.rivals},
        ratios={
            f"{first} / {name}, {loss:g} %": {
                key: ratio(runs[first, loss], runs[name, loss], key) for key in ("ms50", "ms99")
            }
            for name, is_ours in systems
            if not is_ours
            for loss in options.loss
        },
        repeats=options.repeats,
        as_json=options.json,
        members=options.members,
        lifetime_ms=options.lifetime_ms,
    )


if __name__ == "__main__":
    main()
