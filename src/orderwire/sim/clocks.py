"""Clocks that disagree: every process reads its own, and any two differ by at most a stated spread.

A clock runs ahead of true time by 0 to `spread_ns`; how far moves at a constant rate and turns
round at either end, so that the bound holds for ever and no reading is smaller than one before.
"""

from random import Random
from typing import Protocol

import msgspec

from orderwire.kernel import Instant

PPM_MAX = 100_000
"""Largest drift, in parts per million: a clock that loses a tenth."""


class Clock(Protocol):
    """Between true time and one process's clock, both in nanoseconds."""

    def read(self, true_ns: int) -> Instant:
        """What this clock shows at this true time."""
        ...

    def when(self, local_ns: int) -> int:
        """First true time at which this clock shows `local_ns` or more."""
        ...


class ClockSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How wrong the clocks are."""

    spread_ns: int = 0
    """Largest difference of any two clocks: ε, if the algorithm's assumption is to hold."""
    drift_ppm_max: int = 0
    """Each clock's rate differs from true time by up to this, in parts per million."""
    timer_granularity_ns: int = 1
    """A timer fires at the next multiple of this on the local clock; 1 is exact."""


class TrueClock:
    """A clock without error."""

    __slots__ = ()

    def read(self, true_ns: int) -> Instant:
        """Return true time."""
        return Instant(true_ns)

    def when(self, local_ns: int) -> int:
        """Return the same reading."""
        return local_ns


class BoundedClock:
    """A clock that runs ahead by 0 to `spread_ns`, gaining or losing `rate_ppm`."""

    __slots__ = ("_period_ns", "_phase_ns", "_rate_ppm", "_spread_ns")

    def __init__(self, spread_ns: int, rate_ppm: int, phase_ns: int) -> None:
        assert spread_ns > 0, spread_ns
        assert abs(rate_ppm) <= PPM_MAX, rate_ppm
        self._spread_ns = spread_ns
        self._rate_ppm = rate_ppm
        self._period_ns = 2 * spread_ns
        self._phase_ns = phase_ns % self._period_ns

    def read(self, true_ns: int) -> Instant:
        """Return what this clock shows at this true time."""
        at = (self._phase_ns + true_ns * self._rate_ppm // 1_000_000) % self._period_ns
        return Instant(true_ns + (at if at <= self._spread_ns else self._period_ns - at))

    def when(self, local_ns: int) -> int:
        """Return the first true time at which this clock shows `local_ns` or more."""
        guess = local_ns
        for _ in range(8):
            off = self.read(guess) - local_ns
            if not off:
                break
            guess -= off
        while self.read(guess) < local_ns:
            guess += 1
        while self.read(guess - 1) >= local_ns:
            guess -= 1
        return guess


def clocks(settings: ClockSettings, members: int, chance: Random) -> list[Clock]:
    """Draw every member's clock."""
    if settings.spread_ns == 0:
        return [TrueClock() for _ in range(members)]
    drift = settings.drift_ppm_max
    return [
        BoundedClock(
            settings.spread_ns,
            chance.randint(-drift, drift),
            chance.randrange(2 * settings.spread_ns),
        )
        for _ in range(members)
    ]
