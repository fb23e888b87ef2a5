"""Every total-order protocol of the catalog in drawn groups: what it promises holds."""

import pytest

from orderwire.kernel import LocalProtocolError
from orderwire.ordering.total.catalog import ALGORITHMS, Promises, algorithm
from orderwire.sim.selective_total_run import GENERATORS, run


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_it_promises_holds(name: str, generator: str) -> None:
    entry = ALGORITHMS[name]
    for seed in range(12):
        plan = GENERATORS[generator](seed)
        outcome = run(plan, seed, entry.create, promises=entry.promises)
        assert outcome.violations == (), f"{name}, {generator}, seed {seed}"


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_it_promises_holds_in_many_runs(name: str, generator: str) -> None:
    entry = ALGORITHMS[name]
    for seed in range(20_000, 20_500):
        plan = GENERATORS[generator](seed)
        outcome = run(plan, seed, entry.create, promises=entry.promises)
        assert outcome.violations == (), f"{name}, {generator}, seed {seed}"


NOT_PROMISED = {
    "source-sp": ("O2", Promises()),
    "sequencer-pb": ("O3", Promises(bounded=False)),
    "sequencer-bb": ("O3", Promises(bounded=False)),
    "totem-agreed": ("O3", Promises(bounded=False, rests=False)),
}


@pytest.mark.parametrize("name", NOT_PROMISED)
def test_what_it_does_not_promise_does_not_hold(name: str) -> None:
    promise, everything = NOT_PROMISED[name]
    for seed in range(40):
        outcome = run(GENERATORS["mixed"](seed), seed, algorithm(name).create, promises=everything)
        if any(violation.startswith(promise) for violation in outcome.violations):
            return
    pytest.fail(f"{name} keeps {promise} in 40 runs")


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="there are tachikawa-st, total-to"):
        algorithm("zab")
