"""The same scenario and seed give the same run: in one process, and under any hash seed."""

import os
import subprocess
import sys

import pytest
from msgspec.structs import replace

from orderwire.sim.run import digest, simulate
from orderwire.sim.scenarios import SCENARIOS
from orderwire.trace.events import EventKind

SEEDS = range(1, 9)
SCRIPT = """
import sys
from msgspec.structs import replace
from orderwire.sim.run import simulate
from orderwire.sim.scenarios import SCENARIOS
for name in ("swarm", "s000-small"):
    for algorithm in ("unordered", "fifo", "jang-delta"):
        for seed in range(1, 6):
            run = simulate(replace(SCENARIOS[name], algorithm=algorithm), seed)
            print(name, algorithm, seed, run.digest, run.world_events, dict(run.probes))
"""


def test_two_hash_seeds_give_the_same_digests() -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for hash_seed in ("1", "4242")
    ]
    first, second = (process.communicate(timeout=120)[0] for process in processes)
    assert [process.returncode for process in processes] == [0, 0]
    assert len(first.splitlines()) == 30
    assert first == second


@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_repeats_itself(seed: int) -> None:
    first, second = (simulate(SCENARIOS["swarm"], seed) for _ in range(2))
    assert first.events == second.events
    assert first.digest == second.digest == digest(second.events)
    assert first.probes == second.probes


def test_another_seed_gives_another_run() -> None:
    assert len({simulate(SCENARIOS["s000-small"], seed).digest for seed in SEEDS}) == len(SEEDS)


def test_algorithms_meet_the_same_workload_and_the_same_delays() -> None:
    """Open loop: what is sent when, to whom, and when each copy arrives is up to the seed alone."""
    scenario = SCENARIOS["s000-reordering"]
    scenario = replace(scenario, workload=replace(scenario.workload, messages=60))
    seen = []
    for algorithm in ("unordered", "fifo", "jang-delta"):
        run = simulate(replace(scenario, algorithm=algorithm), 3)
        seen.append(
            sorted(
                (event.time_ns, event.process, event.kind.value, event.source, event.number)
                for event in run.events
                if event.kind in (EventKind.SEND, EventKind.RECEIVE)
            )
        )
    assert seen[0] == seen[1] == seen[2]
    assert len(seen[0]) > 200
