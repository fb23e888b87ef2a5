"""The receiving half of one channel of one link: which copies came, which are missing.

Copies are numbered from 0.  A gap is asked for again, with growing pauses, while the copy can still
arrive before its deadline, and given up at the deadline or when the sender says it is gone.
No I/O and no clock: the link passes the time.
"""

from bisect import bisect_right
from collections import deque

from orderwire.aio.frames import Range
from orderwire.kernel import NS_PER_MS, Instant

GAPS_MAX = 1_024
"""Gaps remembered; a datagram that would open another is dropped and comes again."""

GIVEN_UP_MAX = 64
"""Ranges remembered after they were given up."""

JUMP_MAX = 1 << 32
"""Copies that one datagram may skip; more is a broken peer."""

ASK_PAUSE_MIN_NS = 1 * NS_PER_MS
QUICK_ASKS = 16
ASK_PAUSE_MAX_NS = 200 * NS_PER_MS


class Gap:
    """Copies first … last have not come."""

    __slots__ = ("ask_at", "asks", "deadline", "first", "last")

    def __init__(self, first: int, last: int, deadline: int, ask_at: int, asks: int = 0) -> None:
        self.first = first
        self.last = last
        self.deadline = deadline
        """No copy of the gap can be in time after this instant; 0: never given up."""
        self.ask_at = ask_at
        self.asks = asks


class Inbound:
    """What one peer sent on one channel.

    The link reads `expected` and `gaps` on its fast path; nobody else writes them.
    """

    __slots__ = ("expected", "gaps", "given_up", "unreported_bytes", "unreported_datagrams")

    def __init__(self) -> None:
        self.expected = 0
        """Every number from here on is new."""
        self.gaps: list[Gap] = []
        """Ascending, disjoint, all below `expected`."""
        self.given_up: deque[Range] = deque(maxlen=GIVEN_UP_MAX)
        """The ranges given up last: a copy of them that comes after all is late, no duplicate."""
        self.unreported_bytes = 0
        self.unreported_datagrams = 0

    @property
    def settled(self) -> int:
        """All copies below have come or are given up."""
        return self.gaps[0].first if self.gaps else self.expected

    def skip_to(self, first: int, deadline: int, now: Instant, grace_ns: int) -> bool:
        """Open a gap up to `first`; False when that is more than we keep track of."""
        if first - self.expected > JUMP_MAX or len(self.gaps) >= GAPS_MAX:
            return False
        self.gaps.append(Gap(self.expected, first - 1, deadline, now + grace_ns))
        self.expected = first
        return True

    def splits_too_often(self, first: int, count: int) -> bool:
        """Whether these copies would cut a gap in two when as many are remembered as may be."""
        if len(self.gaps) < GAPS_MAX:
            return False
        gap = self.gaps[bisect_right(self.gaps, first, key=_first_of) - 1]
        return gap.first < first and first + count - 1 < gap.last

    def fill(self, first: int, count: int) -> list[int]:
        """Take copies below `expected`; return the offsets of those that were missing."""
        last = first + count - 1
        at = bisect_right(self.gaps, first, key=_first_of) - 1
        if at >= 0 and first <= self.gaps[at].last:
            gap = self.gaps[at]
            if last <= gap.last:
                self._cut(at, first, last)
                return list(range(count))
        return [index for index in range(count) if self._fill_one(first + index)]

    def _fill_one(self, number: int) -> bool:
        if number == self.expected:
            self.expected = number + 1
            return True
        at = bisect_right(self.gaps, number, key=_first_of) - 1
        if at < 0 or number > self.gaps[at].last:
            return False
        self._cut(at, number, number)
        return True

    def _cut(self, at: int, first: int, last: int) -> None:
        """Remove first … last, which lie inside of gap `at`."""
        gap = self.gaps[at]
        parts = []
        if gap.first < first:
            parts.append(Gap(gap.first, first - 1, gap.deadline, gap.ask_at, gap.asks))
        if last < gap.last:
            parts.append(Gap(last + 1, gap.last, gap.deadline, gap.ask_at, gap.asks))
        self.gaps[at : at + 1] = parts

    def gone(self, ranges: list[Range]) -> list[Range]:
        """Give up what the sender no longer has; return what of it was missing."""
        lost = []
        for first, last, _ in ranges:
            at = max(0, bisect_right(self.gaps, first, key=_first_of) - 1)
            while at < len(self.gaps) and self.gaps[at].first <= last:
                gap = self.gaps[at]
                low, high = max(first, gap.first), min(last, gap.last)
                if low > high or self.splits_too_often(low, high - low + 1):
                    at += 1
                    continue
                before = len(self.gaps)
                self._cut(at, low, high)
                lost.append(Range(low, high))
                at += 1 if len(self.gaps) >= before else 0
        self.given_up.extend(lost)
        return lost

    def give_up(self, now: Instant) -> list[Range]:
        """Give up every gap whose deadline has passed; return them."""
        expired = [gap for gap in self.gaps if gap.deadline and gap.deadline < now]
        if not expired:
            return []
        self.gaps = [gap for gap in self.gaps if not (gap.deadline and gap.deadline < now)]
        lost = [Range(gap.first, gap.last) for gap in expired]
        self.given_up.extend(lost)
        return lost

    def was_given_up(self, number: int) -> bool:
        """Whether this copy was given up not long ago."""
        return any(each.first <= number <= each.last for each in self.given_up)

    def missing(self, now: Instant, rtt_ns: int, fastest_ns: int) -> tuple[list[Range], int]:
        """Return all gaps, marked when they are asked for now, and how many copies are asked for.

        A copy is asked for only if the answer, one fast round trip later, can be in time.
        """
        ranges = []
        asked = 0
        pause = max(ASK_PAUSE_MIN_NS, rtt_ns + rtt_ns // 2)
        for gap in self.gaps:
            ask = gap.ask_at <= now
            if ask and gap.deadline and now + fastest_ns > gap.deadline:
                ask = False
                gap.ask_at = gap.deadline  # too late: only the giving up is left
            if ask:
                gap.asks += 1
                # A lifetime's worth of quick tries, then pauses that double.
                gap.ask_at = now + min(
                    max(ASK_PAUSE_MAX_NS, pause), pause << min(max(0, gap.asks - QUICK_ASKS), 16)
                )
                asked += gap.last - gap.first + 1
            ranges.append(Range(gap.first, gap.last, int(ask)))
        return ranges, asked

    def next_due(self, fastest_ns: int) -> int | None:
        """When a gap is next to be asked for or given up."""
        due: int | None = None
        for gap in self.gaps:
            at = gap.ask_at
            if gap.deadline and at + fastest_ns > gap.deadline:
                at = gap.deadline + 1
            if due is None or at < due:
                due = at
        return due


def _first_of(gap: Gap) -> int:
    return gap.first
