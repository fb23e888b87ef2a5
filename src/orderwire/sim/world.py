"""One heap, one time: everything that will happen, in a total order."""

import gc
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Any, TypeAlias

from orderwire.kernel import Instant

FAULT = 0
"""Priorities inside one nanosecond, in this order: crash, restart, partition, heal …"""
EARLY_COMMAND = 1
"""… commands that come before the arrivals of their instant …"""
ARRIVAL = 2
COMMAND = 3
TIMER = 4
"""… and timers last: what arrives exactly at a deadline is in time."""

_END = 5

EVENTS_MAX = 100_000_000
"""Limit of one run; beyond it something feeds itself."""

COLLECT_THRESHOLDS = (50_000, 20, 50)
"""Garbage collection while a world runs: heap entries are many and never part of a cycle."""

Act: TypeAlias = Callable[[Any, Any], None]
Entry: TypeAlias = tuple[Any, int, int, Act, Any, Any]
"""Time in ns, priority, sequence: a total key; then what to do, with two arguments."""


class World:
    """Simulated time and the events to come.

    Events of one instant run by priority, then in the order in which they were scheduled.
    """

    __slots__ = ("_runs", "events", "heap", "now_ns", "sequence")

    def __init__(self) -> None:
        self.now_ns = Instant(0)
        """True time.  Processes see it through their clocks only."""
        self.heap: list[Entry] = []
        self.events = 0
        """How many events have happened, up to the end of the last `run`."""
        self._runs = 0
        self.sequence = count().__next__
        """Draws the sequence number of the next heap entry; every number is pushed once."""

    def at(
        self, time_ns: int, priority: int, act: Act, first: Any = None, second: Any = None
    ) -> None:
        """Do `act(first, second)` at this time, which must not have passed."""
        assert time_ns >= self.now_ns, f"{time_ns} ns has passed, it is {self.now_ns} ns"
        heappush(self.heap, (time_ns, priority, self.sequence(), act, first, second))

    def run(self, until_ns: int) -> None:
        """Let everything up to and including `until_ns` happen."""
        assert until_ns >= self.now_ns, f"{until_ns} ns has passed, it is {self.now_ns} ns"
        heap = self.heap
        pop = heappop
        self.at(until_ns, _END, _end)
        thresholds = gc.get_threshold()
        gc.set_threshold(*COLLECT_THRESHOLDS)
        try:
            while True:
                self.now_ns, _, _, act, first, second = pop(heap)
                act(first, second)
        except _EndOfRun:
            pass
        finally:
            gc.set_threshold(*thresholds)
        # Every number drawn is a push, except this one and one like it per earlier run; every run
        # pushes one mark of its end.
        self.events = self.sequence() - 2 * self._runs - 1 - len(heap)
        self._runs += 1
        assert self.events < EVENTS_MAX, f"more than {EVENTS_MAX} events: something feeds itself"

    def next_ns(self) -> int | None:
        """Return when the next event is due, or None when nothing will ever happen again."""
        return self.heap[0][0] if self.heap else None


class _EndOfRun(Exception):
    """The heap has reached the end of `run`."""


def _end(_first: Any, _second: Any) -> None:
    raise _EndOfRun
