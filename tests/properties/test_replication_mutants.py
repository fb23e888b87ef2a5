"""Each rule is needed: without it, drawn runs break an invariant.  [S004:5.3]"""

import pytest
from replication_mutants import MUTANTS, Mutant, Undrained, caught, made_by, mutant_run
from replication_standby_mutants import TWINS
from replication_standby_mutants import caught as standby_caught

from orderwire.sim.replication_run import run_replication


@pytest.mark.paper("S004:5.3")
@pytest.mark.parametrize("name", MUTANTS)
def test_without_a_rule_an_invariant_breaks(name: str) -> None:
    mutant = MUTANTS[name]
    assert caught(mutant, range(mutant.first_seed, mutant.first_seed + 30))


def test_the_promise_alone_keeps_late_batches_out() -> None:
    mutant: Mutant = MUTANTS["promise"]
    for seed in range(8):
        outcome = run_replication(made_by(Undrained), mutant_run(seed, mutant), seed)
        assert outcome.breaches == []


@pytest.mark.paper("S004:5.3")
@pytest.mark.parametrize("name", TWINS)
def test_without_a_rule_active_standby_breaks_an_invariant(name: str) -> None:
    runs, found = standby_caught(name)
    assert 1 <= runs <= 30
    assert found.keys() & TWINS[name].breaks
