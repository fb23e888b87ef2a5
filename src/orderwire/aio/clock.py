"""The group's clock: the wall clock's origin, advanced by the monotonic clock.

A process reads the wall clock once, when it starts; from then on only the monotonic clock moves
its time.  A wall clock that is stepped during the run changes nothing.
"""

import ctypes
import logging
import time
from collections.abc import Callable

import msgspec

from orderwire.kernel import NS_PER_US, Instant

_LOG = logging.getLogger(__name__)

_ORIGIN_READINGS = 16
"""Tries to read both clocks without being interrupted between the two."""

_TIME_ERROR = 5
"""What adjtimex(2) returns while nothing disciplines the clock."""


class GroupClock:
    """Nanoseconds since the Unix epoch; never goes back."""

    __slots__ = ("_origin_ns", "monotonic_ns")

    def __init__(
        self,
        *,
        wall_ns: Callable[[], int] = time.time_ns,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.monotonic_ns = monotonic_ns
        """What advances it, for intervals."""
        self._origin_ns = _origin(wall_ns, monotonic_ns)

    def now(self) -> Instant:
        """Return the time of the group."""
        return Instant(self._origin_ns + self.monotonic_ns())


def _origin(wall_ns: Callable[[], int], monotonic_ns: Callable[[], int]) -> int:
    """Return wall minus monotonic time, from the reading with the shortest interruption."""
    best: tuple[int, int] | None = None
    for _ in range(_ORIGIN_READINGS):
        before = monotonic_ns()
        wall = wall_ns()
        after = monotonic_ns()
        reading = (after - before, wall - (before + after) // 2)
        if best is None or reading[0] < best[0]:
            best = reading
    assert best is not None
    return best[1]


class ClockError(msgspec.Struct, frozen=True):
    """What the kernel knows about its own wall clock."""

    bound_ns: int
    """Largest distance from true time, by the kernel's own account."""
    synchronised: bool
    """Whether anything disciplines the clock at all."""


class _Timex(ctypes.Structure):
    """The head of the kernel's `struct timex`; the tail is reserved space."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("tail", ctypes.c_byte * 256),
    )


def kernel_clock_error() -> ClockError | None:
    """Return the kernel's bound on the error of its clock, or None where it cannot be asked."""
    adjtimex = getattr(ctypes.CDLL(None, use_errno=True), "adjtimex", None)
    if adjtimex is None:
        return None
    timex = _Timex()
    state = adjtimex(ctypes.byref(timex))
    if state < 0:
        return None
    return ClockError(timex.maxerror * NS_PER_US, state != _TIME_ERROR)


def warn_about_clock(
    epsilon_ns: int, read: Callable[[], ClockError | None] = kernel_clock_error
) -> bool:
    """Log a warning when two such clocks may differ by more than ε.  Returns whether it did.

    Each clock may be off by the kernel's bound, so two of them differ by at most twice as much.
    Members on one machine share its clock and need no such check.
    """
    error = read()
    if error is None or 2 * error.bound_ns <= epsilon_ns:
        return False
    _LOG.warning(
        "clock error of up to %d us on each side (%s) may exceed epsilon = %d us; "
        "late messages may be accepted out of order: raise epsilon or synchronise the clocks",
        error.bound_ns // NS_PER_US,
        "synchronised" if error.synchronised else "not synchronised",
        epsilon_ns // NS_PER_US,
    )
    return True
