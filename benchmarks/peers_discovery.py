"""Discovery on real sockets beside other systems: how long until everybody knows everything.

The harness is a folder with `disc.py`, which starts each participant in a network namespace of its
own on one switch, and counts what it carries; it needs root.  Run it with a Python that has this
package and the rivals':

    python benchmarks/peers_discovery.py --harness FOLDER --json

Figures are over the rounds: seconds until the slowest participant knew every endpoint (p50, p99,
max), processor seconds and megabytes of all together, frames a second and participant afterwards.
"""

import argparse
import json
import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

import harness

NODE = Path(__file__).parent / "peers" / "discovery_node.py"
RUN_S_MAX = 400.0
MIX = {8: (79, 630, 1), 16: (79, 630, 2), 32: (79, 630, 4), 64: (79, 630, 8)}
"""Participants → endpoints on Level 1 and on Level 2, and how many are on Level 2.  [S002:tab.3]"""


def command(system: str, options: argparse.Namespace) -> list[str]:
    """Return how the harness is called, without the case."""
    if system != "orderwire":
        return [sys.executable, "disc.py", system]
    program = shutil.which("orderwire", path=str(Path(sys.executable).parent)) or "orderwire"
    node = f"{{python}} {NODE} {{i}} {{n}} {{e}} {{total}} {{deadline}} {{ip}} {{hub}}"
    server = f"{program} bootstrap --listen {{hub}}:7400 --domain bench --id-space 1024 --insecure"
    return [sys.executable, "disc.py", "--cmd", node, "--hub-cmd", server]


def run(system: str, case: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """Run one boot; what failed has an `error`."""
    order = [*command(system, options), *case, "--deadline", str(options.deadline)]
    return harness.run_json(order, options.harness, RUN_S_MAX)


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the boots of one system in one case took."""
    good = [each for each in runs if "error" not in each]
    found: dict[str, Any] = {"boots": len(good)}
    if len(good) < len(runs):
        found["errors"] = [each["error"] for each in runs if "error" in each]
    if not good:
        return found
    times = sorted(each["t_all"] for each in good if each["t_all"] is not None)
    found["incomplete"] = len(good) - len(times)
    if times:
        found |= {
            "s_p50": round(statistics.median(times), 3),
            "s_p99": round(times[min(len(times) - 1, round(0.99 * len(times)))], 3),
            "s_max": round(times[-1], 3),
        }
    participants = good[0]["n"]
    for name, key in (("cpu_s", "cpu"), ("hub_cpu_s", "cpu_hub"), ("mbytes", "mbytes")):
        found[name] = round(statistics.median(each[key] for each in good), 2)
    found["frames"] = round(statistics.median(each["frames"] for each in good))
    found["rss_mb"] = round(statistics.median(each["rss_mb"] for each in good))
    found["frames_after_s"] = round(
        statistics.median(each["after2s"] for each in good) / 2 / participants, 2
    )
    return found


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = harness.arguments(__doc__, repeats=5)
    parser.add_argument("--harness", type=Path, help="folder with disc.py; without: nothing runs")
    parser.add_argument("--participants", type=int, nargs="+", default=[8, 16, 32, 64])
    parser.add_argument("--mix", action="store_true", help="the paper's endpoints; else 18 each")
    parser.add_argument("--rate", type=float, help="Mbit/s of every link; default: full speed")
    parser.add_argument("--loss", type=float, default=0.0, help="percent of frames")
    parser.add_argument("--stagger", type=float, default=0.0, help="seconds between two starts")
    parser.add_argument("--deadline", type=float, default=60.0)
    parser.add_argument("--rivals", nargs="*", default=["cyc-c", "floor-chord-lazy"])
    options = parser.parse_args()
    if options.harness is not None and not (options.harness / "disc.py").exists():
        parser.error(f"there is no disc.py in {options.harness}")
    if options.quick:
        options.participants, options.repeats = [8], 1
    return options


def case_of(participants: int, options: argparse.Namespace) -> list[str]:
    """Return the harness's options for one case."""
    first, second, on_second = MIX.get(participants, (79, 630, participants // 8))
    case = ["--n", str(participants), "--e", str(first if options.mix else 18)]
    if options.mix:
        case += ["--e2", str(second), "--n2", str(on_second)]
    if options.rate is not None:
        case += ["--rate", str(options.rate)]
    return [*case, "--loss", str(options.loss), "--stagger", str(options.stagger)]


def main() -> None:
    """Boot every system once a round, in every case."""
    options = arguments()
    systems = [] if options.harness is None else ["orderwire", *options.rivals]
    tables: dict[str, dict[str, Any]] = {name: {} for name in systems}
    for participants in options.participants:
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in systems}
        for _ in range(options.repeats):
            for name in systems:
                result = run(name, case_of(participants, options), options)
                runs[name].append(result)
                print(json.dumps({"system": name} | result), file=sys.stderr)
        for name in systems:
            tables[name][str(participants)] = summary(runs[name])
    ours = tables.pop("orderwire", {})
    harness.report(
        "peers-discovery",
        ours=ours,
        rivals=tables or {name: {"missing": "--harness"} for name in options.rivals},
        ratios={
            f"orderwire / {name}, {size}": {
                key: round(ours[size][key] / table[size][key], 3)
                for key in ("s_p50", "cpu_s", "mbytes")
                if ours[size].get(key) and table[size].get(key)
            }
            for name, table in tables.items()
            for size in table
        },
        repeats=options.repeats,
        as_json=options.json,
        mix=options.mix,
        rate_mbit=options.rate,
        loss_percent=options.loss,
        stagger_s=options.stagger,
    )


if __name__ == "__main__":
    main()
