"""Publish/subscribe in Python beside Cyclone DDS, Zenoh, ZeroMQ and NATS, in one run.

The harness is a folder with `pubsub.py`, which starts publisher and subscribers; without it nothing
runs, and a rival that the Python of `--python` has no package for is reported as missing.  Ours
goes in through the public API, `peers/pubsub_ours.py`: written several at once as the others batch,
and, as `…-singly`, with a `write` for each message.  `flood`: what each subscriber gets of messages
sent as fast as they are taken, and CPU time (all threads) a message sent and got.  `paced`: the
one-way delay of 500 messages a second.  A rate on a busy machine is a share of it: compare the CPU
time, too.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import harness

OURS = (
    "ours-unordered",
    "ours-fifo",
    "ours-delta-causal",
    "ours-unordered-singly",
    "ours-fifo-singly",
    "ours-delta-causal-singly",
)
RIVALS = {"dds": "cyclonedds", "zenoh": "zenoh", "zmq": "zmq", "nats": "nats"}
"""Transport of the harness → the package it needs."""
FIGURES = {
    "flood": {
        "rate": "rate",
        "loss": "lost_percent",
        "ooo": "out_of_order",
        "us_pub": "sender_cpu_us",
        "us_sub": "receiver_cpu_us",
    },
    "paced": {"p50": "delay_p50_us", "p99": "delay_p99_us", "loss": "lost_percent"},
}
"""Load → name in the harness → name in the result."""
RUN_S_MAX = 90


def missing(python: str, folder: Path | None) -> dict[str, str]:
    """Return the rivals that this Python cannot run, and why."""
    if folder is None:
        return dict.fromkeys(RIVALS, "--harness")
    why = {}
    for name, package in RIVALS.items():
        check = subprocess.run([python, "-c", f"import {package}"], capture_output=True, text=True)
        if check.returncode:
            why[name] = check.stderr.strip().rpartition("\n")[2]
    return why


def run(
    python: str, folder: Path, name: str, load: str, size: int, subscribers: int, seconds: float
) -> dict[str, Any]:
    """Run one transport once; the figures, or the error."""
    command = [
        python, str(folder / "pubsub.py"), name, "--kind", load, "--size", str(size),
        "--subs", str(subscribers), "--secs", str(seconds),
    ]  # fmt: skip
    environment = os.environ | {"ORDERWIRE_SUBSCRIBERS": str(subscribers)}
    result = harness.run_json(command, Path.cwd(), RUN_S_MAX, environment)
    if "got" not in result:
        return result
    if "rate" not in result or result["got"] < subscribers:
        return {"error": result.get("error", f"{result['got']} of {subscribers} subscribers ended")}
    return {ours: result[theirs] for theirs, ours in FIGURES[load].items() if theirs in result}


def median(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians of the runs that ended, and how many did not."""
    good = [each for each in rounds if "error" not in each]
    failed = len(rounds) - len(good)
    figures: dict[str, Any] = {}
    if good:
        figures = {key: round(statistics.median(each[key] for each in good), 2) for key in good[0]}
    if failed:
        errors = [each["error"] for each in rounds if "error" in each]
        figures |= {"failed_runs": failed, "error": errors[0]}
    return figures


def ratios(results: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Our rate over each rival's, and their CPU time a message over ours, in the same case."""
    found = {}
    for ours in OURS:
        for rival in RIVALS:
            for case, mine in results.get(ours, {}).items():
                theirs = results.get(rival, {}).get(case, {})
                if not (mine.get("rate") and theirs.get("rate")):
                    continue
                found[f"rate of {ours} over {rival}, {case}"] = round(
                    mine["rate"] / theirs["rate"], 2
                )
                subscribers = int(case.rpartition("-")[2])
                cpu = [
                    each["sender_cpu_us"] + subscribers * each["receiver_cpu_us"]
                    for each in (theirs, mine)
                ]
                found[f"CPU of {rival} over {ours}, {case}"] = round(cpu[0] / cpu[1], 2)
    return found


def main() -> None:
    parser = harness.arguments(__doc__, repeats=3)
    parser.add_argument("--harness", type=Path, help="folder with pubsub.py; without: nothing runs")
    parser.add_argument("--python", default=sys.executable, help="a Python with the peers")
    parser.add_argument("--names", nargs="+", help="only these transports")
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 1_024])
    parser.add_argument("--subscribers", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--loads", nargs="+", choices=list(FIGURES), default=list(FIGURES))
    parser.add_argument("--seconds", type=float, default=1.5, help="length of a flood")
    options = parser.parse_args()
    if options.harness is not None and not (options.harness / "pubsub.py").exists():
        parser.error(f"there is no pubsub.py in {options.harness}")
    seconds = 0.5 if options.quick else options.seconds
    absent = missing(options.python, options.harness)
    names = [name for name in options.names or (*OURS, *RIVALS) if name not in absent]
    if options.harness is None:
        names = []
    results: dict[str, dict[str, Any]] = {name: {} for name in names}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        if options.harness is not None:
            shutil.copy(options.harness / "pubsub.py", folder)
            shutil.copytree(options.harness / "pubsub", folder / "pubsub")
            (folder / "pubsub").chmod(0o755)
            ours = Path(__file__).parent / "peers" / "pubsub_ours.py"
            shutil.copy(ours, folder / "pubsub" / "ours.py")
        for subscribers in options.subscribers:
            for size in options.sizes:
                for load in options.loads:
                    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
                    for _ in range(options.repeats):
                        for name in names:
                            figures = run(
                                options.python, folder, name, load, size, subscribers, seconds
                            )
                            rounds[name].append(figures)
                            print(name, load, size, subscribers, figures, file=sys.stderr)
                    case = f"{load}-{size}-{subscribers}"
                    for name in names:
                        results[name][case] = median(rounds[name])
    rivals: dict[str, Any] = {name: results[name] for name in RIVALS if name in results}
    harness.report(
        "peers-pubsub",
        ours={name: results[name] for name in OURS if name in results},
        rivals=rivals | {name: {"missing": why} for name, why in absent.items()},
        ratios=ratios(results),
        repeats=options.repeats,
        as_json=options.json,
    )


if __name__ == "__main__":
    main()
