"""The model check of replication: the paper read literally, the real replicas searched and drawn,
and what breaks without each rule.  [S004:5]

States are counted and invariants named; seconds are of the processor.
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from replication_catching import DRAWS
from replication_cores import CORES
from replication_mutants import MUTANTS, caught
from replication_scopes import searched as searched_core
from replication_scopes import sending, writers
from replication_shapes import aimed_run, drawn_run
from replication_standby_mutants import TWINS
from replication_standby_mutants import caught as standby_caught
from tests.support.replication_lane_mutants import RULES
from tests.support.replication_lane_mutants import caught as lane_caught

from orderwire.broker.replication.settings import Mode
from orderwire.sim.paper_active_active import Initiators, search
from orderwire.sim.replication_run import run_replication
from orderwire.verify.replication import by_invariant

SCOPES: dict[str, tuple[int, dict[str, int]]] = {
    "2 replicas, 1 message, 1 crash": (1, {"crashes": 1}),
    "2 replicas, 1 message, 1 zombie": (1, {"expiries": 1}),
    "2 replicas, no fault": (2, {}),
    "2 replicas, 1 crash": (2, {"crashes": 1}),
    "2 replicas, 1 zombie": (2, {"expiries": 1}),
    "2 replicas, 1 message, 1 crash, 1 zombie": (1, {"crashes": 1, "expiries": 1}),
    "2 replicas, 1 message, 1 power failure": (1, {"power_failures": 1}),
    "3 replicas, 1 message, 1 zombie": (1, {"replicas": 3, "expiries": 1}),
}
"""How many messages, and what may happen."""


def literal() -> list[dict[str, Any]]:
    """The paper's own text."""
    rows = []
    for name, options in {
        "no fault, one initiator": {},
        "no fault, two initiators": {"initiators": Initiators.RACE, "states_max": 200_000},
        "one crash": {"crashes": 1, "rounds_max": 1},
    }.items():
        found = search(**options)  # type: ignore[arg-type]
        kinds = sorted(each.split(":")[0] for each in found.violations)
        row = {"setting": name, "states": found.states, "complete": found.complete}
        rows.append(row | {"violations": kinds})
    return rows


def within(seconds: float) -> Callable[[], bool]:
    """Whether so much of the processor's time is gone."""
    end = process_time() + seconds
    return lambda: process_time() > end


def searched(seconds: float) -> list[dict[str, Any]]:
    """Every order of events, as far as the time goes."""
    rows = []
    for mode in CORES:
        for name, (messages, options) in SCOPES.items():
            began = process_time()
            clients = sending(mode) if messages == 1 else writers(mode)
            found = searched_core(mode, clients, within(seconds), **options)
            rows.append(
                {
                    "protocol": mode.value,
                    "setting": name,
                    "states": found.states,
                    "edges": found.edges,
                    "complete": found.complete,
                    "depth": found.deepest,
                    "violations": sorted(found.violations),
                    "stuck": found.stuck if found.complete else None,
                    "cpu_s": round(process_time() - began, 1),
                }
            )
    return rows


def drawn(runs: int) -> list[dict[str, Any]]:
    """Drawn clients, delays and faults."""
    rows = []
    for mode, make_replica in CORES.items():
        row: dict[str, Any] = {"protocol": mode.value, "runs": runs}
        counts = dict.fromkeys(("committed", "acknowledged", "elections", "never_whole"), 0)
        broken: dict[str, int] = {}
        slowest = 0
        for seed in range(runs):
            outcome = run_replication(make_replica, drawn_run(seed, mode), seed)
            counts["committed"] += outcome.committed
            counts["acknowledged"] += outcome.acknowledged
            counts["elections"] += outcome.elections
            counts["never_whole"] += outcome.settled_ns is None
            slowest = max(slowest, outcome.settled_ns or 0)
            for name, count in by_invariant(outcome.breaches).items():
                broken[name] = broken.get(name, 0) + count
        rows.append(row | counts | {"slowest_recovery_s": slowest / 1e9, "violations": broken})
    return rows


def without(draws: int) -> list[dict[str, Any]]:
    """One rule taken away: in how many draws that is found out."""
    rows = []
    for mode, names in {
        Mode.ACTIVE_ACTIVE: MUTANTS,
        Mode.ACTIVE_STANDBY: TWINS,
        Mode.ACTIVE_ACTIVE_LANES: RULES,
    }.items():
        for name in names:
            if mode is Mode.ACTIVE_ACTIVE:
                rule, found = MUTANTS[name].rule, caught(MUTANTS[name], draws)
            elif mode is Mode.ACTIVE_STANDBY:
                rule, found = TWINS[name].rule, standby_caught(name, draws)
            else:
                rule, found = RULES[name], lane_caught(name, draws)
            row = {"protocol": mode.value, "without": name, "rule": rule, "draws": found.draws}
            counts = {"caught": len(found.seeds), "noticed": found.noticed}
            rows.append(row | counts | {"violations": dict(sorted(found.broken.items()))})
    return rows


def met(lives: int) -> list[dict[str, Any]]:
    """How many faults meet work, at drawn times and aimed."""
    rows = []
    for mode, make_replica in CORES.items():
        for name, shape in {"drawn": drawn_run, "aimed": aimed_run}.items():
            faults = found = 0
            for seed in range(lives):
                outcome = run_replication(make_replica, shape(seed, mode), seed)
                faults += len(outcome.faults)
                found += outcome.met
            row = {"protocol": mode.value, "faults come": name, "lives": lives}
            rows.append(row | {"faults": faults, "met": found})
    return rows


def main() -> None:
    """Print the table, a line a row, or as one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="a minute instead of an hour")
    options = parser.parse_args()
    found = {
        "literal": literal(),
        "searched": searched(2 if options.quick else 120),
        "drawn": drawn(40 if options.quick else 1_000),
        "met": met(10 if options.quick else 300),
        "without": without(4 if options.quick else DRAWS),
    }
    if options.json:
        print(json.dumps({"name": "replication_models", **found}, indent=2))
        return
    for name, rows in found.items():
        print(name)
        for row in rows:
            print("  " + "  ".join(f"{key}={value}" for key, value in row.items()))


if __name__ == "__main__":
    main()
