"""Seeds × swarm faults: every algorithm keeps its promises, and every probe is passed.

The small sweep runs with every change, the large one with `just slow`.
"""

import re
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from orderwire.ordering.catalog import ALGORITHMS
from orderwire.sim.run import Run, simulate
from orderwire.sim.scenario import Scenario
from orderwire.sim.scenarios import SCENARIOS
from orderwire.verify.verdict import Verdict

SMALL_SEEDS = range(1, 81)
SMALLER_SEEDS = range(1, 31)
"""For the algorithms that no application uses."""
USED = {"unordered", "fifo", "jang-delta"}
LARGE_SEEDS = range(1_000, 11_000)

NETWORK_PROBES = frozenset(
    {
        "sim: arrival at a crashed process",
        "sim: copy cut off by a partition",
        "sim: copy duplicated",
        "sim: copy held back",
        "sim: copy lost",
        "sim: process crashed",
        "sim: process restarted",
    }
)
PROBES: dict[str, frozenset[str]] = {
    "unordered": NETWORK_PROBES,
    "fifo": NETWORK_PROBES
    | {
        "fifo: gave up on a gap",
        "fifo: sender restarted",
        "fifo: skipped what the link reported lost",
    },
    **{
        name: NETWORK_PROBES
        | {
            "causal: due at once",
            "causal: gave up on an expired dependency",
            "causal: held",
        }
        for name, entry in ALGORITHMS.items()
        if entry.expectation and not entry.twin
    },
    "fixed-delay": NETWORK_PROBES | {"causal: due at once", "causal: held"},
    "rodrigues-deadline": NETWORK_PROBES | {"causal: held", "rodrigues: overtaken"},
}
"""Paths that some run of the sweep must take; a silent one means that the sweep tests nothing."""

EXCUSED: dict[str, str] = {
    "sim: stream held by a partition": "ordering PDUs are datagrams; see test_network",
    "sim: copy of another life": "sweeps name no lives; see test_membership_churn",
    "sim: process joined": "sweeps let nobody join late; see test_membership_churn",
    "sim: input waited for a busy processor": "computation is free in sweeps; see test_sim_host",
    "causal: overtaken by a later message of its sender": "no correct peer within ε does that",
    "bounded-jang: cut": "sweeps set no bound; see tests/properties",
    "bounded-jang: settled by a notice": "simulated links send none; see aio/test_notices",
}
"""Probes that no sweep can pass, and why."""

SWEEPS = [
    (name, algorithm)
    for name in ("swarm", "swarm-steady")
    for algorithm, entry in ALGORITHMS.items()
    if not entry.twin and not (name == "swarm-steady" and algorithm == "unordered")
]


def scenario_of(name: str, algorithm: str) -> Scenario:
    return replace(SCENARIOS[name], algorithm=algorithm)


def sweep(scenario: Scenario, seeds: range) -> Counter[str]:
    """Run every seed; fail with the lines that replay the first failures; return the probes."""
    failures: list[str] = []
    probes: Counter[str] = Counter()
    verdicts: Counter[Verdict] = Counter()
    for seed in seeds:
        run = simulate(scenario, seed)
        verdicts[run.verdict] += 1
        probes += run.probes
        if run.verdict is not Verdict.VALID:
            failures.append(f"{run.verdict.value}: {run.judgement.why()}\n{run.replay_line}")
    assert not failures, f"{len(failures)} of {len(seeds)} seeds\n" + "\n".join(failures[:5])
    return probes


@pytest.mark.parametrize(("name", "algorithm"), SWEEPS)
def test_promises_hold_under_drawn_faults(name: str, algorithm: str) -> None:
    seeds = SMALL_SEEDS if algorithm in USED else SMALLER_SEEDS
    probes = sweep(scenario_of(name, algorithm), seeds)
    if name == "swarm":
        assert PROBES[algorithm] - set(probes) == set(), "silent probes"


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize(("name", "algorithm"), SWEEPS)
def test_promises_hold_over_ten_thousand_seeds(name: str, algorithm: str) -> None:
    probes = sweep(scenario_of(name, algorithm), LARGE_SEEDS)
    if name == "swarm":
        assert PROBES[algorithm] - set(probes) == set(), "silent probes"


def test_every_probe_is_demanded_or_excused() -> None:
    source = Path(simulate.__code__.co_filename).parents[1]
    written = {
        name
        for folder in ("ordering", "sim")
        for path in (source / folder).glob("*.py")
        for name in re.findall(r'\bprobe\(\s*"([^"]+)"', path.read_text(encoding="utf-8"))
    }
    assert written == set().union(*PROBES.values()) | set(EXCUSED)


def test_every_algorithm_that_is_used_is_swept() -> None:
    used = {name for name, entry in ALGORITHMS.items() if not entry.twin}
    assert {algorithm for _, algorithm in SWEEPS} == used


class Regression(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A seed that failed once."""

    scenario: str
    algorithm: str
    seed: int
    story: str
    """What was wrong, and what was done about it."""


class Regressions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    regression: list[Regression]


REGRESSIONS = msgspec.toml.decode(
    (Path(__file__).parent / "regressions.toml").read_bytes(), type=Regressions
).regression


@pytest.mark.parametrize(
    "case", REGRESSIONS, ids=lambda case: f"{case.scenario}-{case.algorithm}-{case.seed}"
)
def test_a_seed_that_failed_once_passes(case: Regression) -> None:
    assert case.story
    run: Run = simulate(scenario_of(case.scenario, case.algorithm), case.seed)
    assert run.verdict is Verdict.VALID, f"{run.judgement.why()}\n{run.replay_line}"
