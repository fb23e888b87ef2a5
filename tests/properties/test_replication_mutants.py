"""Each rule is needed: without it, drawn runs break an invariant, and not one of them only.

[S004:5.3] A rule of lanes is named as what is left out.
"""

import pytest
from replication_cores import CORES
from replication_mutants import MUTANTS, Mutant, Undrained, caught, made_by, mutant_run
from replication_standby_mutants import TWINS, twin_run
from replication_standby_mutants import caught as standby_caught
from tests.support.replication_lane_mutants import MUTANTS as LANES
from tests.support.replication_lane_mutants import caught as lane_caught
from tests.support.replication_lane_mutants import lane_run

from orderwire.broker.replication.settings import Mode
from orderwire.sim.replication_run import run_replication


@pytest.mark.paper("S004:5.3")
@pytest.mark.parametrize("name", MUTANTS)
def test_without_a_rule_an_invariant_breaks(name: str) -> None:
    found = caught(MUTANTS[name], enough=2)
    assert len(found.seeds) > 1, f"active-active without {name} is {found}"


@pytest.mark.paper("S004:5.3")
@pytest.mark.parametrize("name", TWINS)
def test_without_a_rule_active_standby_breaks_an_invariant(name: str) -> None:
    found = standby_caught(name, enough=2)
    assert len(found.seeds) > 1, f"active-standby without {name} is {found}"


@pytest.mark.paper("S004:5.3")
@pytest.mark.parametrize("name", LANES)
def test_without_a_rule_lanes_break_an_invariant(name: str) -> None:
    found = lane_caught(name, enough=2)
    assert len(found.seeds) > 1, f"lanes, {name}, are {found}"


def test_the_promise_alone_keeps_late_batches_out() -> None:
    mutant: Mutant = MUTANTS["promise"]
    for seed in range(8):
        outcome = run_replication(made_by(Undrained), mutant_run(seed, mutant), seed)
        assert outcome.breaches == []


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*MUTANTS, *TWINS, *LANES}))
def test_with_all_rules_the_same_draws_break_nothing(name: str) -> None:
    for seed in range(12):
        lives = [
            (Mode.ACTIVE_ACTIVE, mutant_run(seed, MUTANTS[name])) if name in MUTANTS else None,
            (Mode.ACTIVE_STANDBY, twin_run(seed, TWINS[name])) if name in TWINS else None,
            (Mode.ACTIVE_ACTIVE_LANES, lane_run(seed, name)) if name in LANES else None,
        ]
        for life in lives:
            if life is not None:
                mode, settings = life
                outcome = run_replication(CORES[mode], settings, seed)
                assert outcome.breaches == [], f"{mode.value}, seed {seed}"
