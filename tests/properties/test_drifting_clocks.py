"""Clocks that run fast or slow, within ε: order and lateness hold by each member's own clock."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from judging import broken

from orderwire.kernel import Instant
from orderwire.ordering.catalog import ALGORITHMS
from orderwire.sim.drawn_schedules import draw_schedule
from orderwire.sim.schedule import Schedule, _Replayer
from orderwire.verify.delta import NO_NEEDLESS_WAITING

DRIFT_MAX_PERMILLE = 8
ALGORITHM_OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "jang-delta": ("jang-delta", {}),
    "bounded-jang, cap 1": ("bounded-jang", {"floor_cap": 1}),
    "yoshimoto-maxcb 2": ("yoshimoto-maxcb", {"max_cb": 2}),
    "adelstein-singhal": ("adelstein-singhal", {}),
    "fixed-delay": ("fixed-delay", {}),
}
CI_RUNS = 40
NIGHTLY_RUNS = 3_000


class Drifting(_Replayer):
    """Each clock gains or loses some of every thousand ticks."""

    drifts: list[int]

    def clock(self, process: int, now: int) -> Instant:
        return Instant(now + self.offsets[process] + now * self.drifts[process] // 1_000)

    def due(self, process: int) -> int | None:
        """The first real tick at which the clock has reached the deadline."""
        deadline = self.cores[process].next_deadline()
        if deadline is None:
            return None
        at = (deadline - self.offsets[process]) * 1_000 // (1_000 + self.drifts[process]) - 2
        while self.clock(process, at) < deadline:
            at += 1
        return at


def drifting(seed: int) -> tuple[Schedule, list[int]]:
    """A schedule whose ε bounds how far clocks can drift apart, and how they do.

    A fast clock skips a tick now and then, and may pass over the one between a predecessor's
    expiry and a deadline: the checks allow a timer period of two ticks.
    """
    chance = Random(f"{seed}/drift")
    schedule = draw_schedule(chance)
    assert schedule.lifetime is not None
    drifts = [
        chance.randint(-DRIFT_MAX_PERMILLE, DRIFT_MAX_PERMILLE) for _ in range(schedule.processes)
    ]
    longest = schedule.sends[-1].at + 3 * schedule.lifetime
    epsilon = longest * (max(drifts) - min(drifts)) // 1_000 + 2
    return replace(schedule, epsilon=epsilon, timer_granularity=2), drifts


def run(case: str, seed: int) -> None:
    name, options = ALGORITHM_OPTIONS[case]
    schedule, drifts = drifting(seed)
    replayer = Drifting(schedule, ALGORITHMS[name], "replay", options)
    replayer.drifts = drifts
    found = broken(schedule, replayer.run())
    if name != "jang-delta":
        found.pop(NO_NEEDLESS_WAITING, None)
    assert found == {}, (case, seed, drifts, schedule)


@pytest.mark.parametrize("case", ALGORITHM_OPTIONS)
def test_promises_hold_when_clocks_drift(case: str) -> None:
    for seed in range(CI_RUNS):
        run(case, seed)


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("case", ALGORITHM_OPTIONS)
def test_promises_hold_when_clocks_drift_nightly(case: str) -> None:
    for seed in range(CI_RUNS, NIGHTLY_RUNS):
        run(case, seed)
