"""Discovery on real sockets beside other systems: how long until everybody knows everything.

The harness is a folder with `disc.py`, which starts each participant in a network namespace of its
own on one switch, and counts what it carries; it needs root.  Run it with a Python that has this
package and the rivals':

    python benchmarks/peers_discovery.py --harness FOLDER --json

A case is a number of participants, what endpoints they have (18 each, or the paper's mix) and a
condition of the network or of the starts.  Figures are over the boots: seconds until the slowest
participant knew every endpoint (p50, p99, max), processor seconds, frames, megabytes and memory of
all together.  Who is not done before the deadline is not booted again in that case, nor in the same
case with more participants.
"""

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import harness

NODE = Path(__file__).parent / "peers" / "discovery_node.py"
RUN_S_MAX = 400.0
MIX = {8: (79, 630, 1), 16: (79, 630, 2), 32: (79, 630, 4), 64: (79, 630, 8)}
"""Participants → endpoints on Level 1 and on Level 2, and how many are on Level 2.  [S002:tab.3]"""
LOADS = ("each", "mix")
"""18 endpoints each, or the paper's mix."""
CONDITIONS: dict[str, tuple[str, ...]] = {
    "full": (),
    "100mbit": ("--rate", "100"),
    "10mbit": ("--rate", "10"),
    "loss1": ("--loss", "1"),
    "loss5": ("--loss", "5"),
    "staggered": ("--stagger", "0.05"),
}
"""Name → the harness's options: Mbit/s of every link, percent of frames, seconds between starts."""


def command(system: str, folder: str) -> list[str]:
    """Return how the harness is called, without the case; a server keeps its state in the folder.

    It must be a new one: a server that finds state waits for those who may hold ids.
    """
    if system != "orderwire":
        return [sys.executable, "disc.py", system]
    program = shutil.which("orderwire", path=str(Path(sys.executable).parent)) or "orderwire"
    node = f"{{python}} {NODE} {{i}} {{n}} {{e}} {{total}} {{deadline}} {{ip}} {{hub}}"
    server = f"{program} bootstrap --listen {{hub}}:7400 --domain bench --id-space 1024 --insecure"
    server += f" --first --state {folder}/state"
    return [sys.executable, "disc.py", "--cmd", node, "--hub-cmd", server]


def case_of(participants: int, load: str, condition: str) -> list[str]:
    """Return the harness's options for one case."""
    first, second, on_second = MIX.get(participants, (79, 630, participants // 8))
    case = ["--n", str(participants), "--e", str(first if load == "mix" else 18)]
    if load == "mix":
        case += ["--e2", str(second), "--n2", str(on_second)]
    return [*case, *CONDITIONS[condition]]


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
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=list(LOADS))
    parser.add_argument("--conditions", nargs="+", choices=CONDITIONS, default=list(CONDITIONS))
    parser.add_argument("--deadline", type=float, default=60.0, help="seconds a boot may take")
    parser.add_argument(
        "--rivals",
        nargs="*",
        default=["cyc11", "cyc-c", "fast-sdp", "fast-ds", "zen-gossip", "floor-chord-lazy"],
    )
    options = parser.parse_args()
    if options.harness is not None and not (options.harness / "disc.py").exists():
        parser.error(f"there is no disc.py in {options.harness}")
    if options.quick:
        options.participants, options.repeats = [8], 1
        options.loads, options.conditions = ["mix"], ["full"]
    return options


class Boots:
    """All boots of all systems, case by case."""

    def __init__(self, systems: list[str], options: argparse.Namespace) -> None:
        self.tables: dict[str, dict[str, Any]] = {name: {} for name in systems}
        self._options = options
        self._slow: set[tuple[str, str, str]] = set()
        """System, load and condition that were not done in time."""

    def boot(self, participants: int, load: str, condition: str) -> None:
        """Boot every system so often, in turn."""
        case = case_of(participants, load, condition)
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in self.tables}
        for name in (*self.tables,) * self._options.repeats:
            if (name, load, condition) in self._slow:
                continue
            with tempfile.TemporaryDirectory() as folder:
                order = [*command(name, folder), *case, "--deadline", str(self._options.deadline)]
                found = harness.run_json(order, self._options.harness, RUN_S_MAX)
            if found.get("t_all") is None and name != "orderwire":
                self._slow.add((name, load, condition))
            runs[name].append(found)
            print(json.dumps({"system": name, "condition": condition} | found), file=sys.stderr)
        for name, table in self.tables.items():
            if runs[name]:
                table[f"{participants} {load} {condition}"] = summary(runs[name])


def main() -> None:
    """Boot every system in every case."""
    options = arguments()
    systems = [] if options.harness is None else ["orderwire", *options.rivals]
    boots = Boots(systems, options)
    if systems:
        cases = product(options.loads, options.conditions, sorted(options.participants))
        for load, condition, participants in cases:
            boots.boot(participants, load, condition)
    tables = boots.tables
    ours = tables.pop("orderwire", {})
    harness.report(
        "peers-discovery",
        ours=ours,
        rivals=tables or {name: {"missing": "--harness"} for name in options.rivals},
        ratios={
            f"orderwire / {name}, {case}": {
                key: round(ours[case][key] / table[case][key], 3)
                for key in ("s_p50", "cpu_s", "mbytes")
                if ours[case].get(key) and table[case].get(key)
            }
            for name, table in tables.items()
            for case in table
        },
        repeats=options.repeats,
        as_json=options.json,
        deadline_s=options.deadline,
    )


if __name__ == "__main__":
    main()
