"""The group's clock: the wall clock's origin, advanced by the monotonic clock.

A process reads the wall clock once, when it starts; from then on only the monotonic clock moves
its time.  A wall clock that is stepped during the run changes nothing.

Two processes that started before and after such a step would differ by it for ever.  On one machine
they need not: they share the monotonic clock, and `shared_origin_ns` gives them the same origin.
"""

import ctypes
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

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
        origin_ns: int | None = None,
    ) -> None:
        self.monotonic_ns = monotonic_ns
        """What advances it, for intervals."""
        self._origin_ns = _origin(wall_ns, monotonic_ns) if origin_ns is None else origin_ns

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


def shared_origin_ns(folder: Path | None = None) -> int | None:
    """Return wall minus monotonic time as the first process of this user read it since the boot.

    It is kept in a file, in the user's runtime folder or in shared memory.  Returns None where
    that cannot be: then each process reads the clocks itself.
    """
    try:
        folder = folder or Path(os.environ.get("XDG_RUNTIME_DIR") or "/dev/shm")
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        # In a namespace of its own the monotonic clock counts from another instant.
        namespace = os.stat("/proc/self/ns/time").st_ino
        path = folder / f"orderwire-clock-{os.getuid()}-{boot}-{namespace}"
        if not path.exists():
            mine = path.with_name(f"{path.name}.{os.getpid()}")
            created = os.open(mine, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                with os.fdopen(created, "w", encoding="ascii") as file:
                    file.write(str(_origin(time.time_ns, time.monotonic_ns)))
                os.link(mine, path)
            except FileExistsError:
                pass  # another process was quicker
            finally:
                mine.unlink()
        with path.open(encoding="ascii") as file:
            if os.fstat(file.fileno()).st_uid != os.getuid():
                raise OSError(f"{path} is another user's")
            return int(file.read(32))
    except (OSError, ValueError) as error:
        _LOG.info("members on this machine read the wall clock each for itself: %s", error)
        return None


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
