"""Named timers of one core, one heap."""

from collections.abc import Hashable, Iterator
from heapq import heapify, heappop, heappush

from orderwire.kernel import Instant

SLACK = 1_024
"""Cancelled times that are kept beside as many as are due, at most."""


class Timers:
    """At most one due time per name."""

    def __init__(self) -> None:
        self._due: dict[Hashable, Instant] = {}
        self._heap: list[tuple[Instant, int, Hashable]] = []
        self._count = 0

    def set(self, name: Hashable, due: Instant) -> None:
        """Let this timer be due then, and not when it was before."""
        if self._due.get(name) == due:
            return
        self._due[name] = due
        self._count += 1
        heappush(self._heap, (due, self._count, name))
        if len(self._heap) > SLACK + 2 * len(self._due):
            self._heap = [each for each in self._heap if self._due.get(each[2]) == each[0]]
            heapify(self._heap)

    def cancel(self, name: Hashable) -> None:
        """Let this timer not be due."""
        self._due.pop(name, None)

    def is_set(self, name: Hashable) -> bool:
        """Whether it will be due."""
        return name in self._due

    def clear(self) -> None:
        """Cancel all."""
        self._due.clear()
        self._heap.clear()

    def next(self) -> Instant | None:
        """When the next is due."""
        heap = self._heap
        while heap and self._due.get(heap[0][2]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def pop_due(self, now: Instant) -> Iterator[Hashable]:
        """Yield the names that are due, in the order of their times, each cancelled first."""
        while (due := self.next()) is not None and due <= now:
            _, _, name = heappop(self._heap)
            del self._due[name]
            yield name


def soonest(first: Instant | None, second: Instant | None) -> Instant | None:
    """Return the earlier of these instants, or None if there is none."""
    if first is None:
        return second
    return first if second is None or first <= second else second
