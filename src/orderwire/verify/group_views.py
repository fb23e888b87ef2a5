"""What a totally ordered group with views promises, as definitions over its events.  [S003:sec.2]

Quadratic, and sharing no code with the kernels: `kernels.total_order`, `kernels.total_views` and
`kernels.channel_order` must find the same.  Rows are (check, kind, process, position, source,
number, witness_source, witness_number, witness_position), −1 where nothing is told.

T1  two logs have what is in both in the same order
T2  all logs fit into one order
T3  a message is handed over by all of its destinations that stay in the view, or by none
T4  members of two successive views hand over the same in the first, of what is for both of them
T5  each log of what the channel brought is a part of the channel's order
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise

from orderwire.kernel import members_of
from orderwire.trace.events import Event, EventKind

Message = tuple[int, int]
Row = tuple[str, str, int, int, int, int, int, int, int]


@dataclass
class Stay:
    """A process is a member, without a break."""

    process: int
    views: list[Event] = field(default_factory=list)
    handed: list[list[Event]] = field(default_factory=list)
    """What it handed over in each of its views."""
    sent: list[Event] = field(default_factory=list)
    excluded: bool = False
    ended: bool = False

    def numbers(self) -> list[int]:
        """Return the numbers of its views."""
        return [view.number for view in self.views]

    def after(self, number: int) -> int | None:
        """Return the number of its view after this one; None when there is none."""
        numbers = self.numbers()
        at = numbers.index(number)
        return numbers[at + 1] if at + 1 < len(numbers) else None


class Group:
    """One run of a group."""

    def __init__(self, events: Iterable[Event]) -> None:
        """`events` of each process in the order of its timeline."""
        self.stays: list[Stay] = []
        self.logs: dict[int, list[Event]] = {}
        """First deliveries of each process."""
        self.receipts: dict[int, list[Event]] = {}
        self.asked: dict[Message, Event] = {}
        self.outside: list[Event] = []
        timelines: dict[int, list[Event]] = {}
        for event in events:
            timelines.setdefault(event.process, []).append(event)
        for process in sorted(timelines):
            self._read(process, timelines[process])

    def _read(self, process: int, timeline: Sequence[Event]) -> None:
        log = self.logs.setdefault(process, [])
        seen: set[Message] = set()
        stay: Stay | None = None
        early: list[Event] = []
        for event in timeline:
            match event.kind:
                case EventKind.START:
                    stay, early = None, []
                case EventKind.INSTALL if not _mask(event) >> process & 1:
                    if stay is not None:
                        stay.excluded = True
                    stay, early = None, []
                case EventKind.INSTALL:
                    if stay is None:
                        stay = Stay(process, sent=early)
                        early = []
                        self.stays.append(stay)
                    stay.views.append(event)
                    stay.handed.append([])
                case EventKind.SEND:
                    self.asked.setdefault(_name(event), event)
                    (early if stay is None else stay.sent).append(event)
                case EventKind.DELIVER if _name(event) not in seen:
                    seen.add(_name(event))
                    log.append(event)
                    if stay is None:
                        self.outside.append(event)
                    else:
                        stay.handed[-1].append(event)
                case EventKind.RECEIVE if event.channel_number is not None:
                    self.receipts.setdefault(process, []).append(event)
                case EventKind.END if stay is not None:
                    stay.ended = True

    # ------------------------------------------------------------------ what is asked

    def destinations(self, message: Message) -> int:
        """Return whom a message was for: as told with its delivery, or else by its sender."""
        for process in sorted(self.logs):
            for event in self.logs[process]:
                if _name(event) == message and event.destinations:
                    return _mask(event)
        asked = self.asked.get(message)
        return 0 if asked is None else _mask(asked)

    def went_on(self, number: int) -> bool:
        """Whether somebody left this view for another one."""
        return any(
            number in stay.numbers() and (stay.excluded or stay.after(number) is not None)
            for stay in self.stays
        )

    def stays_to_the_end(self, stay: Stay) -> bool:
        """Whether it is a member of the last view, and its trace is whole."""
        return stay.ended and not stay.excluded and not self.went_on(stay.numbers()[-1])

    def keeps(self, stay: Stay, number: int) -> bool:
        """Whether who is in this view owes what others hand over in it."""
        return stay.after(number) is not None or self.stays_to_the_end(stay)

    def has(self, process: int, message: Message) -> bool:
        """Whether it ever handed this message over."""
        return any(_name(event) == message for event in self.logs.get(process, ()))

    def handed(self) -> Iterator[tuple[Stay, int, Event]]:
        """Yield every delivery in a view: whose, in which, by process."""
        for stay in self.stays:
            for number, events in zip(stay.numbers(), stay.handed, strict=True):
                for event in events:
                    yield stay, number, event

    # ------------------------------------------------------------------ T1

    def order(self) -> Iterator[Row]:
        """Yield for every two logs that disagree the first message that is too late in the one.

        The witness was handed over before it here, and after it there.
        """
        for one, other in combinations(sorted(self.logs), 2):
            there = {_name(event): at for at, event in enumerate(self.logs[other])}
            common = [event for event in self.logs[one] if _name(event) in there]
            for at, late in enumerate(common):
                before = [e for e in common[:at] if there[_name(e)] > there[_name(late)]]
                if before:
                    yield _row("T1", "order", one, late, before[0])
                    break

    def late(self, one: int, other: int) -> int:
        """Count the messages of one log that are behind one which the other has after them."""
        there = {_name(event): at for at, event in enumerate(self.logs[other])}
        common = [there[_name(event)] for event in self.logs[one] if _name(event) in there]
        return sum(max(common[:at], default=-1) > place for at, place in enumerate(common))

    # ------------------------------------------------------------------ T2

    def knots(self) -> list[set[Message]]:
        """Return the largest sets of messages of which each must be before all others."""
        after: dict[Message, set[Message]] = {}
        for log in self.logs.values():
            for earlier, later in pairwise(map(_name, log)):
                after.setdefault(earlier, set()).add(later)
                after.setdefault(later, set())
        reach = {message: _reached(after, message) for message in after}
        knots: list[set[Message]] = []
        for message in sorted(after):
            if message in reach[message] and not any(message in knot for knot in knots):
                knots.append({m for m in reach[message] if message in reach[m]})
        return knots

    # ------------------------------------------------------------------ T3

    def atomicity(self) -> Iterator[Row]:
        """Yield every copy that its destination owes."""
        found: set[tuple[int, Message]] = set()
        for _, number, event in sorted(self.handed(), key=lambda each: each[0].process):
            message = _name(event)
            for stay in self.stays:
                process = stay.process
                if (
                    number in stay.numbers()
                    and self.destinations(message) >> process & 1
                    and self.keeps(stay, number)
                    and not self.has(process, message)
                    and (process, message) not in found
                ):
                    found.add((process, message))
                    yield ("T3", "missing", process, -1, *message, *message, event.position)
        for sender in filter(self.stays_to_the_end, self.stays):
            for event in sender.sent:
                message = _name(event)
                if self.asked[message] is event and not any(
                    self.has(process, message) for process in self.logs
                ):
                    yield from self._undelivered(sender, event)

    def _undelivered(self, sender: Stay, event: Event) -> Iterator[Row]:
        sent_in = [v.number for v in sender.views if v.position < event.position]
        number = sent_in[-1] if sent_in else sender.numbers()[0]
        for process in members_of(_mask(event)):
            for stay in self.stays:
                if (
                    stay.process == process
                    and number in stay.numbers()
                    and stay.numbers()[-1] == sender.numbers()[-1]
                    and self.stays_to_the_end(stay)
                ):
                    yield ("T3", "undelivered", process, -1, *_name(event), -1, -1, -1)

    # ------------------------------------------------------------------ T4

    def views(self) -> Iterator[Row]:
        """Yield what is wrong with the views, and with what is handed over in them."""
        installs = [view for stay in self.stays for view in stay.views]
        for view in installs:
            first = min(
                (v for v in installs if v.number == view.number),
                key=lambda v: (v.process, v.position),
            )
            if _mask(first) != _mask(view):
                yield _at("members", view, first.position)
        for stay in self.stays:
            for before, view in pairwise(stay.views):
                if view.number <= before.number:
                    yield _at("backwards", view, before.position)
                for other in self.stays:
                    way = _way(other.numbers(), before.number, view.number)
                    if len(way) > 2:
                        at = other.numbers().index(way[-1])
                        yield _at("skipped", view, other.views[at - 1].position)
                        break
        for event in self.outside if self.stays else ():
            yield ("T4", "outside", event.process, event.position, *_name(event), -1, -1, -1)
        found: set[tuple[int, Message]] = set()
        first_in: dict[Message, tuple[int, Event]] = {}
        for stay, number, event in sorted(self.handed(), key=lambda each: each[0].process):
            message = _name(event)
            known, first_event = first_in.setdefault(message, (number, event))
            if known != number:
                yield _row("T4", "view", stay.process, event, first_event)
            following = stay.after(number)
            if following is None:
                continue
            for other in self.stays:
                process = other.process
                if (
                    number in other.numbers()
                    and other.after(number) == following
                    and self.destinations(message) >> process & 1
                    and not self.has(process, message)
                    and (process, message) not in found
                ):
                    found.add((process, message))
                    yield ("T4", "messages", process, -1, *message, *message, event.position)

    # ------------------------------------------------------------------ T5

    def channel(self) -> Iterator[Row]:
        """Yield what came by the channel in another order than the channel's, or as another PDU."""
        named: dict[tuple[int, int], Event] = {}
        for process in sorted(self.receipts):
            log = self.receipts[process]
            for at, event in enumerate(log):
                if at:
                    highest = max(map(_place, log[:at]))
                    if highest >= _place(event):
                        proof = next(e for e in log if _place(e) == highest)
                        mixed = highest[0] > _place(event)[0]
                        yield _row("T5", "mixed" if mixed else "reordered", process, event, proof)
                first = named.setdefault(_place(event), event)
                if _name(first) != _name(event):
                    yield _row("T5", "other-pdu", process, event, first)


def _mask(event: Event) -> int:
    return int.from_bytes(event.destinations, "little")


def _name(event: Event) -> Message:
    return event.source, event.number


def _place(event: Event) -> tuple[int, int]:
    assert event.channel_number is not None
    return event.incarnation or 0, event.channel_number


def _row(check: str, kind: str, process: int, event: Event, witness: Event) -> Row:
    return check, kind, process, event.position, *_name(event), *_name(witness), witness.position


def _at(kind: str, view: Event, witness: int) -> Row:
    return "T4", kind, view.process, view.position, -1, view.number, -1, -1, witness


def _way(numbers: Sequence[int], start: int, end: int) -> Sequence[int]:
    """Return the views from one to another one, both included; none if it lacks one of them."""
    if start not in numbers or end not in numbers:
        return ()
    return numbers[numbers.index(start) : numbers.index(end) + 1]


def _reached(after: dict[Message, set[Message]], start: Message) -> set[Message]:
    reached: set[Message] = set()
    todo = [start]
    while todo:
        for later in after[todo.pop()]:
            if later not in reached:
                reached.add(later)
                todo.append(later)
    return reached
