"""The simulator finds what is broken: each twin is rejected within a few seeds."""

from dataclasses import replace as changed

import pytest
from broken_bounded_twins import BOUNDED_TWINS, OWN
from broken_twins import TWINS, Twin
from msgspec.structs import replace

from orderwire.kernel import ms, us
from orderwire.ordering.catalog import ALGORITHMS, Algorithm
from orderwire.ordering.settings import OrderingSettings
from orderwire.sim.clocks import ClockSettings
from orderwire.sim.delays import Bimodal
from orderwire.sim.network import NetworkSettings
from orderwire.sim.run import simulate
from orderwire.sim.scenario import Liveness, Scenario, Workload
from orderwire.sim.scenarios import SCENARIOS
from orderwire.verify.verdict import Verdict

SEEDS = range(1, 61)
EXACT = {"expectation": "exact"}
FOUND_BY_SWARM = (
    "jang-printed-literal+stamp-rule",
    "jang-printed-literal",
    "jang-eliminates-first",
    "jang-fifo-shortcut",
)


def first_rejection(algorithm: Algorithm, known_as: str = "jang-delta") -> dict[str, str]:
    """The checks that reject the first bad run of the sweep, with a reason each."""
    scenario = replace(SCENARIOS["swarm-steady"], algorithm=known_as)
    for seed in SEEDS:
        run = simulate(scenario, seed, algorithm=algorithm)
        if run.verdict is Verdict.INVALID:
            return {
                check.id: check.violations[0].why
                for check in run.judgement.checks
                if check.violations
            }
    return {}


@pytest.mark.parametrize(
    "twin", [t for t in TWINS if t.name in FOUND_BY_SWARM], ids=lambda t: t.name
)
def test_broken_twins_are_rejected(twin: Twin) -> None:
    assert twin.breaks in first_rejection(changed(twin.algorithm, **EXACT))


@pytest.mark.parametrize("twin", [t for t in BOUNDED_TWINS if t.drawn == OWN], ids=lambda t: t.name)
def test_broken_lifetimes_of_ones_own_are_rejected(twin: Twin) -> None:
    assert twin.breaks in first_rejection(twin.algorithm, "rodrigues-deadline")


@pytest.mark.parametrize("name", ["unordered", "fifo"])
def test_weaker_orders_are_no_causal_order(name: str) -> None:
    found = first_rejection(changed(ALGORITHMS[name], **EXACT))
    assert "happened before" in found["causal-order"]
    assert ("fifo-order" in found) is (name == "unordered")


def skewed_relays(epsilon_ns: int) -> Scenario:
    """Clocks nearly a lifetime apart, and much that arrives just before it dies."""
    return Scenario(
        name="skewed-relays",
        settings=OrderingSettings(members=4, lifetime_ns=ms(10), epsilon_ns=epsilon_ns),
        workload=Workload(
            messages=150, gap_mean_ns=ms(4), fan_out=2, answer_ratio=0.3, answers_max=100
        ),
        network=NetworkSettings(
            delay=Bimodal(near_ns=us(100), far_ns=ms(9), far_ratio=0.4, spread_ns=ms(4))
        ),
        clocks=ClockSettings(spread_ns=ms(8)),
        liveness=Liveness(rounds=0),
    )


def test_clocks_further_apart_than_epsilon_break_the_order() -> None:
    seeds = range(1, 16)
    within = {simulate(skewed_relays(ms(8)), seed).verdict for seed in seeds}
    beyond = [simulate(skewed_relays(0), seed).verdict for seed in seeds]
    assert within == {Verdict.VALID}
    assert beyond.count(Verdict.INVALID) >= 3
