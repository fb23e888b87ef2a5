"""Total order beside other systems, in one run: saturated, at a steady rate, and under loss.

The harness is a folder with `order.py` and `netlab.py`: members in network namespaces on one switch
that loses frames (root).  A rival that is not installed is reported as missing.  Run it with a
Python that has the rivals' packages and this one:

    python benchmarks/peers_total.py --harness FOLDER --json

Ours is `TotalGroup`, its relay beside member 0.  Rivals: Corosync's closed process groups (agreed),
JGroups' sequencer, one NATS server, PySyncObj (Raft; ticks every 1 ms, never compacts its log).
`saturated`: three members write 200 bytes as fast as they are let, everything to everybody;
messages per second until all have all.  `paced`: three members, 1,000 messages/s in all, answers
included.  `lossy`: four members, 800/s, 2 % of all frames lost at the switch.  Figures are medians
over the rounds; on a machine with other work run it under `chrt --rr 1`, which puts all systems
before that work alike.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import harness
import peers_order

OURS = "selective-total"
RIVALS = ("cpg", "jgroups-seq", "nats", "pysyncobj")
OUR_NODE = (OURS, "cpg", "nats", "pysyncobj")
"""These run in `peers/order_node.py`, at every load: the harness's node sleeps 0.5 ms after each
message from Corosync, which measures the sleep.  Its node of JGroups cannot be flooded."""
STEADY = {"paced": (3, 5.0, 0.0), "lossy": (4, 8.75, 2.0)}
"""Members, milliseconds between two messages of each, percent of frames lost.  Of what n
members write (n - 1)/n is answered: 600 + 400 and 457 + 343 messages a second."""
FLOOD_MEMBERS = 3
FLOOD_BYTES = 200
FLOOD_S_MAX = 60.0
GOALS = {"messages_per_s": 10_000, "paced": 2.0, "lossy": (10.0, 100.0)}


def flood(system: str, count: int, folder: Path) -> dict[str, Any]:
    """Let three members write `count` messages each as fast as they can."""
    sys.path.insert(0, str(folder))
    from netlab import Lab  # type: ignore[import-not-found]
    from order import hub_start  # type: ignore[import-not-found]

    members = FLOOD_MEMBERS
    with tempfile.TemporaryDirectory() as name, Lab(members + 1) as lab:
        hubs = hub_start(system, lab, members, name)
        time.sleep(2.5 if hubs else 0.0)
        files = [Path(name) / f"{each}.json" for each in range(members)]
        nodes = [
            lab.popen(
                each,
                [
                    *map(str, (sys.executable, peers_order.NODE, each, members, FLOOD_S_MAX, 0)),
                    *(lab.ip(each), lab.ip(members), str(files[each])),
                    *("--order", system, "--flood", str(count), "--size", str(FLOOD_BYTES)),
                ],
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            for each in range(members)
        ]
        try:
            for node in nodes:
                if node.stdout.readline().strip() != "ready":
                    return {"error": "a member did not start"}
            start = time.monotonic_ns() + 300_000_000
            for said in (f"{start}\n", "end\n"):
                for node in nodes:
                    node.stdin.write(said)
                    node.stdin.flush()
                if said != "end\n":
                    for node in nodes:
                        node.stdout.readline()
            for node in nodes:
                node.wait(10)
            told = [json.loads(file.read_text()) for file in files]
        finally:
            for process in nodes + hubs:
                process.kill()
                process.wait()
    total = count * members
    orders = [each["order"] for each in told]
    took_s = max(each["ended"] for each in told) - min(each["began"] for each in told)
    return {
        "messages_per_s": round(min(map(len, orders)) / took_s, 1),
        "lost": sum(total - len(each) for each in orders),
        "same_order": all(each == orders[0] for each in orders),
    }


def steady(system: str, load: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run one system at a steady rate, messages and answers."""
    members, every_ms, loss = STEADY[load]
    given = argparse.Namespace(**vars(options))
    given.members, given.every_ms = members, every_ms
    return peers_order.run(system, loss, given, ours=system in OUR_NODE)


def medians(load: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the table shows of these runs."""
    if load != "saturated":
        return peers_order.medians(runs)
    good = [each for each in runs if "error" not in each]
    if not good:
        return {"runs": 0, "errors": [each["error"] for each in runs]}
    return {
        "runs": len(good),
        "messages_per_s": statistics.median(each["messages_per_s"] for each in good),
        "lost": max(each["lost"] for each in good),
        "same_order": all(each["same_order"] for each in good),
    }


def main() -> None:
    """Run every system at every load, once a round."""
    parser = harness.arguments(__doc__, repeats=3)
    parser.add_argument("--harness", type=Path, help="folder with order.py; without: nothing runs")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--drain", type=float, default=3.0, help="seconds after the last message")
    parser.add_argument("--messages", type=int, default=5_000, help="of a member, saturated")
    parser.add_argument("--loads", nargs="+", default=["saturated", *STEADY])
    parser.add_argument("--rivals", nargs="*", default=list(RIVALS), choices=RIVALS)
    options = parser.parse_args()
    options.lifetime_ms = 0.0
    if options.harness is not None and not (options.harness / "order.py").exists():
        parser.error(f"there is no order.py in {options.harness}")
    if options.quick:
        options.seconds, options.repeats, options.messages = 2.0, 1, 2_000
    lacking = {name: peers_order.missing(name, options.harness) for name in options.rivals}
    systems = [OURS, *(name for name in options.rivals if lacking[name] is None)]
    if options.harness is None:
        systems = []
    runs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for _ in range(options.repeats):
        for load in options.loads:
            for name in systems:
                if load == "saturated" and name not in OUR_NODE:
                    continue
                result = (
                    flood(name, options.messages, options.harness)
                    if load == "saturated"
                    else steady(name, load, options)
                )
                runs.setdefault((name, load), []).append(result)
                print(json.dumps({"load": load, "system": name} | result), file=sys.stderr)
    tables: dict[str, dict[str, Any]] = {}
    for (name, load), some in runs.items():
        tables.setdefault(name, {})[load] = medians(load, some)
    harness.report(
        "peers-total",
        ours=tables.get(OURS, {}),
        rivals={name: tables.get(name, {"missing": lacking[name]}) for name in options.rivals},
        ratios=_ratios(tables),
        repeats=options.repeats,
        as_json=options.json,
        goals=_goals(tables.get(OURS, {})),
    )


def _ratios(tables: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Ours over each rival's, by load and figure."""
    found = {}
    for name, table in tables.items():
        for load, theirs in table.items() if name != OURS else ():
            for key in ("messages_per_s", "ms50", "ms99"):
                ours = tables[OURS].get(load, {}).get(key)
                if ours is not None and theirs.get(key):
                    found[f"{load}, {key} / {name}"] = round(ours / theirs[key], 4)
    return found


def _goals(ours: dict[str, Any]) -> dict[str, bool]:
    found = {}
    if (rate := ours.get("saturated", {}).get("messages_per_s")) is not None:
        found["saturated: messages_per_s"] = rate >= GOALS["messages_per_s"]
    if (p50 := ours.get("paced", {}).get("ms50")) is not None:
        found["paced: ms50"] = p50 < GOALS["paced"]
    lossy = ours.get("lossy", {})
    if "ms50" in lossy:
        least, most = GOALS["lossy"]  # type: ignore[misc]
        found["lossy: inverted"] = lossy["inverted_pct_max"] == 0
        found["lossy: ms50"] = lossy["ms50"] <= least
        found["lossy: ms99"] = lossy["ms99"] <= most
    return found


if __name__ == "__main__":
    main()
