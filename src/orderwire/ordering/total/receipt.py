"""What a member has of the messages to it: RRL, PRL, what is held beyond gaps, empty places."""

from collections import deque
from collections.abc import Iterable
from typing import TypeVar

import msgspec

from orderwire.kernel import ProcessId
from orderwire.ordering.total.pdu import Data, Has, Record, Rtx, number_at


class Place:
    """One message's place in the order of this member; empty until it is here."""

    __slots__ = ("awaited", "is_settled", "message", "pseq", "source", "view")

    def __init__(self, source: int, pseq: int, message: Data | Rtx | None, view: int) -> None:
        self.source = source
        self.pseq = pseq
        self.view = view
        """In which it was sent."""
        self.message = message
        self.is_settled = False
        """A line was behind it: all have it, whatever becomes of its source."""
        self.awaited: list[tuple[int, int, int]] = []
        """(k, l, w): l has not yet told that it has w of k's stream."""


class Receipt:
    """TREQ, PREQ, Q, HELD, HOLES and HACK.  [S003:sec.3.1]

    `accepted` are the places that are not pre-acknowledged yet, in order (RRL), `pre_acknowledged`
    those that are (PRL); what leaves it is acknowledged (ARL).
    """

    def __init__(self, me: int, size: int) -> None:
        self._me = me
        self.view = 0
        """The view that is installed."""
        self.treq: list[int] = []
        self.preq: list[int] = []
        self.hack: list[int] = []
        self.held: list[dict[int, Data | Rtx]] = []
        self.holes: list[dict[int, Place]] = []
        self.accepted: deque[Place] = deque()
        self.pre_acknowledged: deque[Place] = deque()
        self.grow(size)

    def grow(self, size: int) -> None:
        """Make room for process ids below `size`."""
        more = size - len(self.treq)
        if more > 0:
            for numbers in (self.treq, self.preq, self.hack):
                numbers += [0] * more
            self.held += [{} for _ in range(more)]
            self.holes += [{} for _ in range(more)]

    def places(self) -> int:
        """|Q| + |HELD|: how many buffers are taken."""
        return len(self.accepted) + len(self.pre_acknowledged) + sum(map(len, self.held))

    def has_holes(self) -> bool:
        """Whether any place is empty."""
        return any(self.holes)

    def level(self, source: int) -> int:
        """ACKV: every PDU of `source` below it that is for me is in Q or delivered."""
        if self.holes[source]:
            return min(self.hack[source], self.treq[source])
        return self.treq[source]

    def levels(self) -> tuple[int, ...]:
        """ACKV of every source."""
        if any(self.holes):
            return tuple([self.level(source) for source in range(len(self.treq))])
        return tuple(self.treq)

    def has(self, source: int) -> Has:
        """A of one source."""
        return Has(
            self.preq[source], tuple(sorted(self.holes[source])), tuple(sorted(self.held[source]))
        )

    def accept(self, source: int, data: Data) -> bool:
        """Take a PDU of the channel; say whether it shows that one to me before it is missing.

        Acceptance [S003:sec.3.2]: what its PSEQ for me says, whether or not it is for me.
        """
        expected = self.preq[source]
        pseq = number_at(data.pseq, self._me)
        mine = data.destinations >> self._me & 1
        if pseq == expected:
            self.treq[source] = data.tseq + 1
            if mine:
                self.preq[source] = expected + 1
                self.accepted.append(Place(source, expected, data, self.view))
            return False
        if pseq > expected and mine:
            self.held[source][pseq] = data
        return pseq > expected

    def fill(self, source: int, message: Data | Rtx) -> bool:
        """Put a repeated message into its empty place; say whether it had one."""
        place = self.holes[source].pop(number_at(message.pseq, self._me), None)
        if place is None:
            return False
        place.message = message
        return True

    def hold(self, source: int, message: Rtx) -> None:
        """Keep a repeated message that is beyond a gap."""
        pseq = number_at(message.pseq, self._me)
        if pseq > self.preq[source]:
            self.held[source].setdefault(pseq, message)

    def undelivered(self, source: int) -> Iterable[Data | Rtx]:
        """Yield what is here of a source and not handed out yet."""
        for queue in (self.pre_acknowledged, self.accepted):
            for place in queue:
                if place.source == source and place.message is not None and not place.is_settled:
                    yield place.message
        yield from self.held[source].values()

    def cut(self, record: Record) -> list[Place]:
        """Cut Q at the failure line and sort the rest; return what is before it, in order.

        Steps 2 to 4 of the completion, for what was sent in each view by itself: what was sent in
        an earlier one stays before it, on whichever side of the line.
        [S003:sec.4.1] [S003:sec.4.3]
        """
        lines = dict(record.departed) | dict(record.lines)
        before: list[Place] = []
        after: list[Place] = []
        for queue in (self.pre_acknowledged, self.accepted):
            for place in queue:
                line, message = lines.get(ProcessId(place.source), 0), place.message
                if place.is_settled or (message is not None and message.tseq < line):
                    place.is_settled = True
                    before.append(place)
                else:
                    after.append(place)
        for source, _, pseq in record.sent:
            held = self.held[source]
            end = number_at(pseq, self._me)
            for number in range(self.preq[source], end):
                after.append(Place(source, number, held.pop(number, None), self.view))
            held.clear()
        self.pre_acknowledged.clear()
        after = self._sort(after, record.order)
        first = min([place.view for place in after], default=self.view)
        ready = [place for place in before if place.view <= first]
        rest = [place for place in before if place.view > first] + after
        rest.sort(key=lambda place: place.view)  # stable: before the line, then sorted
        self.accepted = deque(rest)
        levels = self.levels()
        self.holes = [{} for _ in self.treq]
        for place in self.accepted:
            if place.message is None:
                self.holes[place.source][place.pseq] = place
        for source, sent, pseq in record.sent:
            self.hack[source] = max(levels[source], lines[source])
            self.preq[source] = number_at(pseq, self._me)
            self.treq[source] = sent
        return ready

    def _sort(self, after: list[Place], order: tuple[ProcessId, ...]) -> list[Place]:
        """Sort by (rank of source, PSEQ here); drop the places of departed sources."""
        rank = {source: index for index, source in enumerate(order)}
        kept = [place for place in after if place.source in rank]
        kept.sort(key=lambda place: (rank[ProcessId(place.source)], place.pseq))
        return kept

    def strip(self, process: int) -> None:
        """Take a process that has departed off the destinations of what waits here."""
        bit = 1 << process
        for place in self.accepted:
            place.message = without(place.message, bit)
        for held in self.held:
            for number, message in held.items():
                held[number] = without(message, bit)

    def forget(self, process: int) -> None:
        """Drop what is known of a process that has departed."""
        self.treq[process] = self.preq[process] = self.hack[process] = 0
        self.held[process] = {}
        self.holes[process] = {}


class GapReceipt(Receipt):
    """One in which a gap is a row of empty places, at once."""

    def accept(self, source: int, data: Data) -> bool:
        """Take a PDU of the channel; what was missing before it has its places then."""
        self.open_gap(source, number_at(data.pseq, self._me))
        return super().accept(source, data)

    def open_gap(self, source: int, end: int) -> None:
        """Make an empty place for each message of a source to me below PSEQ `end`."""
        expected = self.preq[source]
        if end <= expected:
            return
        if not self.holes[source]:
            self.hack[source] = self.treq[source]
        for number in range(expected, end):
            place = Place(source, number, None, self.view)
            self.holes[source][number] = place
            self.accepted.append(place)
        self.preq[source] = end


MessageT = TypeVar("MessageT", Data, Rtx, Data | Rtx, Data | Rtx | None)


def without(message: MessageT, bit: int) -> MessageT:
    """Return the message without these destinations."""
    if message is None or not message.destinations & bit:
        return message
    return msgspec.structs.replace(message, destinations=message.destinations & ~bit)
