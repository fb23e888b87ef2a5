"""Clocks: monotone, within their spread, and invertible to the nanosecond."""

from itertools import pairwise

import pytest

from orderwire.kernel import stream
from orderwire.sim.clocks import BoundedClock, ClockSettings, TrueClock, clocks


@pytest.mark.parametrize("rate_ppm", [-5_000, 0, 1, 5_000, 100_000])
def test_reading_is_monotone_and_within_the_spread(rate_ppm: int) -> None:
    clock = BoundedClock(1_000, rate_ppm, phase_ns=700)
    readings = [(true_ns, clock.read(true_ns)) for true_ns in range(0, 60_000, 7)]
    assert all(0 <= local - true_ns <= 1_000 for true_ns, local in readings)
    assert all(a <= b for (_, a), (_, b) in pairwise(readings))


@pytest.mark.parametrize("rate_ppm", [-100_000, -300, 0, 300, 100_000])
def test_when_is_the_first_instant_that_shows_a_reading(rate_ppm: int) -> None:
    clock = BoundedClock(5_000, rate_ppm, phase_ns=123)
    for local_ns in range(10_000, 90_000, 611):
        true_ns = clock.when(local_ns)
        assert clock.read(true_ns) >= local_ns
        assert clock.read(true_ns - 1) < local_ns


def test_drawn_clocks_differ_by_at_most_the_spread() -> None:
    drawn = clocks(ClockSettings(spread_ns=2_000, drift_ppm_max=10_000), 6, stream(3, "clocks"))
    for true_ns in range(0, 10_000_000, 99_991):
        readings = [clock.read(true_ns) for clock in drawn]
        assert max(readings) - min(readings) <= 2_000


def test_no_spread_is_true_time() -> None:
    (clock,) = clocks(ClockSettings(drift_ppm_max=100), 1, stream(3, "clocks"))
    assert isinstance(clock, TrueClock)
    assert (clock.read(5), clock.when(5)) == (5, 5)
