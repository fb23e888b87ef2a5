"""What a replica has of another's lane before it is ordered: in memory, from one cut on.

Once ordered it stands in the main log.  How much there is, the owner limits: it sends no more than
`message_bytes_max` beyond the last cut that it knows.
"""

from collections import deque


class LaneCopy:
    """A lane's bytes from the last cut on, without a gap."""

    def __init__(self, ordered: int) -> None:
        self.end = ordered
        """Everything before is ordered or here."""
        self.fresh = 0
        """Where the owner's present stay in the in-sync set began."""
        self.asked_at = -1
        """The end at which the owner was asked to send again."""
        self._parts: deque[tuple[int, bytes]] = deque()

    @property
    def size_bytes(self) -> int:
        """In memory."""
        return sum(len(data) for _, data in self._parts)

    def add(self, after: int, start: int, data: bytes) -> bool:
        """Take a part; False when something before it is missing.  What is here is left out."""
        if after > self.end:
            return False
        end = start + len(data)
        if end > self.end:
            if start < self.end:
                data = data[self.end - start :]
                start = self.end
            self._parts.append((start, data))
            self.end = end
        return True

    def parts(self, start: int, end: int) -> list[tuple[int, bytes]]:
        """Everything between two positions."""
        found = []
        for first, data in self._parts:
            last = first + len(data)
            if first >= end:
                break
            if last > start:
                cut = data[max(start - first, 0) : end - first]
                found.append((max(first, start), cut))
        return found

    def ordered(self, end: int) -> None:
        """Forget what lies before this position."""
        while self._parts:
            first, data = self._parts[0]
            if first + len(data) > end:
                if first < end:
                    self._parts[0] = (end, data[end - first :])
                break
            self._parts.popleft()
        self.end = max(self.end, end)

    def restart(self, ordered: int) -> None:
        """Begin anew from a cut that lies before what was ordered: it is another cut now."""
        self._parts.clear()
        self.end = ordered
        self.asked_at = -1
