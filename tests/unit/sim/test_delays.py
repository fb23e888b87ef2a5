"""Delay distributions: within their limits, with their means, and refused when senseless."""

import pytest

from orderwire.kernel import stream
from orderwire.sim.delays import (
    Bimodal,
    Constant,
    Delay,
    Edge,
    Exponential,
    Pareto,
    Uniform,
    longest_ns,
    sampler,
)

CASES: list[tuple[Delay, int, int | None, float]] = [
    (Constant(delay_ns=7), 7, 7, 7),
    (Uniform(low_ns=100, high_ns=300), 100, 300, 200),
    (Exponential(offset_ns=500, mean_ns=1_000), 500, None, 1_500),
    (Bimodal(near_ns=100, far_ns=900, far_ratio=0.25, spread_ns=10), 100, 910, 305),
    (Pareto(offset_ns=10, scale_ns=100, alpha=3.0, cap_ns=10_000), 10, 10_000, 60),
    (Edge(low_ns=0, high_ns=100, edge_ns=1_000, edge_ratio=0.5), 0, 1_001, 525),
]


@pytest.mark.parametrize(("delay", "least", "most", "mean"), CASES)
def test_draws_stay_within_limits(delay: Delay, least: int, most: int | None, mean: float) -> None:
    draw = sampler(delay, stream(1, "delays"))
    drawn = [draw() for _ in range(4_000)]
    assert min(drawn) >= least
    assert longest_ns(delay) == most
    if most is not None:
        assert max(drawn) <= most
    assert sum(drawn) / len(drawn) == pytest.approx(mean, rel=0.08)
    assert all(type(each) is int for each in drawn)


def test_edge_hits_the_deadline_and_one_nanosecond_beside_it() -> None:
    draw = sampler(Edge(low_ns=0, high_ns=10, edge_ns=1_000, edge_ratio=0.5), stream(2, "d"))
    late = {each for each in (draw() for _ in range(200)) if each > 10}
    assert late == {999, 1_000, 1_001}


@pytest.mark.parametrize(
    "delay",
    [
        Constant(delay_ns=-1),
        Uniform(low_ns=3, high_ns=2),
        Exponential(offset_ns=0, mean_ns=-5),
        Bimodal(near_ns=1, far_ns=2, far_ratio=1.5),
        Pareto(offset_ns=10, scale_ns=1, alpha=1.0, cap_ns=9),
        Edge(low_ns=0, high_ns=1, edge_ns=0, edge_ratio=0.5),
    ],
)
def test_senseless_limits_are_refused(delay: Delay) -> None:
    with pytest.raises(ValueError, match="delay limits"):
        sampler(delay, stream(1, "delays"))
