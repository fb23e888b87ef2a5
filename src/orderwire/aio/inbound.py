"""The receiving half of one channel of one link: which copies came, which are missing.

Copies are numbered from 0.  A gap is asked for again, with growing pauses, while the copy can still
arrive before its deadline, and given up at the deadline or when the sender says it is gone.
No I/O and no clock: the link passes the time.
"""

from bisect import bisect_right
from collections import deque

from orderwire.aio.frames import Range
from orderwire.kernel import NS_PER_MS, NS_PER_S, Instant

GAPS_MAX = 1_024
"""Gaps remembered; a datagram that would open another is dropped and comes again."""

GIVEN_UP_MAX = 64
"""Ranges remembered after they were given up."""

JUMP_MAX = 1 << 32
"""Copies that one datagram may skip; more is a broken peer."""

ASK_GRACE_NS = 1 * NS_PER_MS
"""How long a gap may be mere reordering, on a way that has been seen to reorder."""

REORDER_MEMORY_NS = 10 * NS_PER_S
"""A way that has not reordered for so long does not: its gaps are asked for at once."""

NOTICES_MAX = 256
"""Notices remembered, of copies that are missing."""

ASK_PAUSE_MIN_NS = 1 * NS_PER_MS
QUICK_ASKS = 16
ASK_PAUSE_MAX_NS = 200 * NS_PER_MS


class Gap:
    """Copies first … last have not come."""

    __slots__ = (
        "answer_by",
        "ask_at",
        "asked_at",
        "asks",
        "deadline",
        "first",
        "last",
        "opened_at",
    )

    def __init__(self, first: int, last: int, deadline: int, opened_at: int, ask_at: int) -> None:
        self.first = first
        self.last = last
        self.deadline = deadline
        """No copy of the gap can be in time after this instant; 0: never given up."""
        self.opened_at = opened_at
        self.ask_at = ask_at
        self.asks = 0
        self.asked_at = 0
        """When it was asked for first."""
        self.answer_by = 0
        """When the answer to the last ask has come, unless it is lost."""

    def part(self, first: int, last: int) -> "Gap":
        """Return what is left of it between these numbers."""
        rest = Gap(first, last, self.deadline, self.opened_at, self.ask_at)
        rest.asks, rest.asked_at, rest.answer_by = self.asks, self.asked_at, self.answer_by
        return rest


class Inbound:
    """What one peer sent on one channel.

    The link reads `expected` and `gaps` on its fast path; nobody else writes them.
    """

    __slots__ = (
        "expected",
        "gaps",
        "given_up",
        "notices",
        "reordered_at",
        "unreported_bytes",
        "unreported_datagrams",
    )

    def __init__(self) -> None:
        self.expected = 0
        """Every number from here on is new."""
        self.gaps: list[Gap] = []
        """Ascending, disjoint, all below `expected`."""
        self.given_up: deque[Range] = deque(maxlen=GIVEN_UP_MAX)
        """The ranges given up last: a copy of them that comes after all is late, no duplicate."""
        self.notices: dict[int, bytes] = {}
        """What stands in the place of a missing copy if it does not come."""
        self.reordered_at: int | None = None
        """When a copy last came that had been overtaken and not asked for."""
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
        self.gaps.append(Gap(self.expected, first - 1, deadline, now, now + grace_ns))
        self.expected = first
        return True

    def grace_ns(self, now: Instant, rtt_ns: int) -> int:
        """How long a gap that opens now may be mere reordering."""
        return max(ASK_GRACE_NS, rtt_ns // 4) if self._reorders(now) else 0

    def _reorders(self, now: int) -> bool:
        return self.reordered_at is not None and now - self.reordered_at <= REORDER_MEMORY_NS

    def splits_too_often(self, first: int, count: int) -> bool:
        """Whether these copies would cut a gap in two when as many are remembered as may be."""
        if len(self.gaps) < GAPS_MAX:
            return False
        gap = self.gaps[bisect_right(self.gaps, first, key=_first_of) - 1]
        return gap.first < first and first + count - 1 < gap.last

    def fill(self, first: int, count: int, now: Instant, fastest_ns: int) -> list[int]:
        """Take copies below `expected`; return the offsets of those that were missing.

        What comes sooner than an answer can, or was not asked for, was merely overtaken.
        """
        last = first + count - 1
        at = bisect_right(self.gaps, first, key=_first_of) - 1
        if at >= 0 and first <= self.gaps[at].last:
            gap = self.gaps[at]
            if not gap.asks or now - gap.asked_at < fastest_ns * 3 // 4:
                self.reordered_at = now
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
            parts.append(gap.part(gap.first, first - 1))
        if last < gap.last:
            parts.append(gap.part(last + 1, gap.last))
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

    def note(self, first: int, pdus: list[memoryview]) -> None:
        """Keep notices of copies first …, those that are missing."""
        if len(self.notices) + len(pdus) > NOTICES_MAX:
            self.notices = {
                number: pdu for number, pdu in self.notices.items() if self._gap_of(number)
            }
        for number, pdu in enumerate(pdus, first):
            if len(self.notices) < NOTICES_MAX and self._gap_of(number) is not None:
                self.notices[number] = bytes(pdu)

    def conclude(self, now: Instant, fastest_ns: int) -> tuple[list[Range], list[bytes]]:
        """Give up the copies with a notice that cannot be asked for in time; return both."""
        ranges: list[Range] = []
        found: list[bytes] = []
        for number in sorted(self.notices):
            gap = self._gap_of(number)
            if gap is None:
                del self.notices[number]
                continue
            at = self._hopeless_at(gap, fastest_ns)
            if at is None or at > now:
                continue
            notice = self.notices.pop(number)
            if self.gone([Range(number, number)]):  # else its deadline must end it
                ranges.append(Range(number, number))
                found.append(notice)
        return ranges, found

    def _hopeless_at(self, gap: Gap, fastest_ns: int) -> int | None:
        """When a copy is neither mere reordering nor asked for nor can be asked for in time.

        None: not before its deadline.  On a way that reorders it may still be under way.
        """
        if not gap.deadline or self._reorders(gap.opened_at):
            return None
        return max(gap.deadline - fastest_ns + 1, gap.opened_at + ASK_GRACE_NS, gap.answer_by)

    def _gap_of(self, number: int) -> Gap | None:
        at = bisect_right(self.gaps, number, key=_first_of) - 1
        return self.gaps[at] if at >= 0 and number <= self.gaps[at].last else None

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
                if not gap.asks:
                    gap.asked_at = now
                gap.asks += 1
                gap.answer_by = now + rtt_ns + max(ASK_GRACE_NS, rtt_ns // 8)
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
        for number in self.notices:
            gap_of = self._gap_of(number)
            hopeless = None if gap_of is None else self._hopeless_at(gap_of, fastest_ns)
            if hopeless is not None and (due is None or hopeless < due):
                due = hopeless
        return due


def _first_of(gap: Gap) -> int:
    return gap.first
