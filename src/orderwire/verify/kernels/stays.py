"""Who was a member of which views: the stays of a totally ordered group, and what they owe.

A stay begins with the first view that a process installs in a life, or after one without it.
There are few views, so that this is no vector code; what comes of it are small tables by view and
process.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from orderwire.kernel import members_of
from orderwire.verify.kernels.columns import END, I64, INSTALL, START, Bools
from orderwire.verify.kernels.total_columns import GroupColumns

NO_VIEW = -1


@dataclass
class Stay:
    """A process is a member, without a break."""

    process: int
    rows: list[int] = field(default_factory=list)
    """Of the trace, where it installs its views."""
    numbers: list[int] = field(default_factory=list)
    masks: list[int] = field(default_factory=list)
    excluded: bool = False
    ended: bool = False

    def __post_init__(self) -> None:
        self._first: dict[int, int] = {}

    def add(self, row: int, number: int, mask: int) -> None:
        """Install a view."""
        self._first.setdefault(number, len(self.numbers))
        self.rows.append(row)
        self.numbers.append(number)
        self.masks.append(mask)

    def place(self, number: int) -> int | None:
        """Return which of its views this is; None if it does not have it."""
        return self._first.get(number)

    def after(self, number: int) -> int | None:
        """Return the view after this one, which it has; None when that is its last."""
        at = self._first[number] + 1
        return self.numbers[at] if at < len(self.numbers) else None


@dataclass(frozen=True)
class Views:
    """All stays of a run, and what follows from them by view and process."""

    stays: list[Stay]
    numbers: I64
    """Of the views, ascending: views are indices into this."""
    obliged: Bools
    """(views × members): owes what is handed over in the view."""
    settled: I64
    """(views × members): the last view, if the process was a member from this one to the end."""
    passages: list[tuple[int, int]]
    """From one view on to another one, by number."""
    passed: Bools
    """(passages × members): went on so."""
    marks: I64
    """Rows at which a view begins, or none: ascending."""
    view: I64
    """Of each mark; NO_VIEW where the process is no member."""
    passage: I64
    """Of each mark: the way on from its view, −1 when that is its last."""
    departed: list[int]
    """Processes that others have left behind, whose traces need no end."""

    def mark_of(self, rows: I64, columns: GroupColumns) -> I64:
        """Return the mark that each of these rows is behind; −1 without one."""
        at = np.searchsorted(self.marks, rows) - 1
        same = columns.process[self.marks[np.maximum(at, 0)]] == columns.process[rows]
        return np.where((at >= 0) & same, at, -1)


def views_of(columns: GroupColumns) -> Views:
    """Read the stays out of a run."""
    rows = columns.rows(START, INSTALL, END)
    masks = [int.from_bytes(mask, "little") for mask in columns.destinations.take(rows).to_pylist()]
    stays: list[Stay] = []
    marks: list[tuple[int, Stay | None, int]] = []
    """(row, stay, which of its views)."""
    stay: Stay | None = None
    last = -1
    for row, mask in zip(rows.tolist(), masks, strict=True):
        process, kind = int(columns.process[row]), int(columns.kind[row])
        if process != last:
            stay, last = None, process
        if kind == END:
            if stay is not None:
                stay.ended = True
            continue
        if kind == START:
            stay = None
        else:
            number = int(columns.number[row])
            if not mask >> process & 1:
                if stay is not None:
                    stay.excluded = True
                stay = None
            else:
                if stay is None:
                    stay = Stay(process)
                    stays.append(stay)
                stay.add(row, number, mask)
        marks.append((row, stay, 0 if stay is None else len(stay.numbers) - 1))
    return _tabled(columns, stays, marks)


def _tabled(
    columns: GroupColumns,
    stays: list[Stay],
    marks: Sequence[tuple[int, Stay | None, int]],
) -> Views:
    numbers = sorted({number for stay in stays for number in stay.numbers})
    index = {number: at for at, number in enumerate(numbers)}
    left = {
        number
        for stay in stays
        for number in stay.numbers
        if stay.excluded or stay.after(number) is not None
    }
    shape = (len(numbers), columns.members)
    obliged = np.zeros(shape, np.bool_)
    settled = np.full(shape, NO_VIEW, np.int64)
    passages: dict[tuple[int, int], int] = {}
    goers: list[tuple[int, int]] = []
    for stay in stays:
        final = stay.numbers[-1]
        stays_on = stay.ended and not stay.excluded and final not in left
        for number in stay.numbers:
            following = stay.after(number)
            at = index[number], stay.process
            obliged[at] |= following is not None or stays_on
            if stays_on:
                settled[at] = index[final]
            if following is not None:
                way = passages.setdefault((number, following), len(passages))
                goers.append((way, stay.process))
    passed = np.zeros((len(passages), columns.members), np.bool_)
    for way, process in goers:
        passed[way, process] = True
    view, passage = [], []
    for _, stay_of, place in marks:
        if stay_of is None:
            view.append(NO_VIEW)
            passage.append(-1)
            continue
        number = stay_of.numbers[place]
        following = stay_of.after(number)
        view.append(index[number])
        passage.append(-1 if following is None else passages[number, following])
    return Views(
        stays=stays,
        numbers=np.array(numbers, np.int64),
        obliged=obliged,
        settled=settled,
        passages=list(passages),
        passed=passed,
        marks=np.array([row for row, _, _ in marks], np.int64),
        view=np.array(view, np.int64),
        passage=np.array(passage, np.int64),
        departed=_departed(stays, np.unique(columns.process).tolist()),
    )


def _departed(stays: Sequence[Stay], present: Sequence[int]) -> list[int]:
    """Return who is no member of the last view, or was told so; of those present, who never was."""
    among: dict[int, int] = {}
    """Process → the highest view that it is in."""
    installed = {
        (number, mask)
        for stay in stays
        for number, mask in zip(stay.numbers, stay.masks, strict=True)
    }
    for number, mask in installed:
        for process in members_of(mask):
            among[process] = max(number, among.get(process, number))
    last = max((number for number, _ in installed), default=0)
    latest = {stay.process: stay for stay in stays}
    told = {process for process, stay in latest.items() if stay.excluded}
    past = {process for process, number in among.items() if number < last}
    never = set(present) - set(among) if stays else set()
    return sorted(told | past | never)


def wrong_views(views: Views) -> list[tuple[str, int, int, dict[str, int]]]:
    """Return (kind, row, row of the evidence, detail) of what is wrong with the views."""
    found: list[tuple[str, int, int, dict[str, int]]] = []
    first: dict[int, tuple[int, int]] = {}
    for stay in views.stays:
        for row, number, mask in zip(stay.rows, stay.numbers, stay.masks, strict=True):
            known, at = first.setdefault(number, (mask, row))
            if known != mask:
                found.append(("members", row, at, {}))
    before: dict[int, set[int]] = {}
    """View → those from which somebody came to it."""
    grow = True
    for stay in views.stays:
        for (_, was), (row, number) in pairwise(zip(stay.rows, stay.numbers, strict=True)):
            before.setdefault(number, set()).add(was)
            if number <= was:
                grow = False
                at = stay.rows[stay.rows.index(row) - 1]
                found.append(("backwards", row, at, {}))
    for stay in views.stays:
        pairs = pairwise(zip(stay.rows, stay.numbers, strict=True))
        for (_, was), (row, number) in pairs:
            if grow and len(before[number]) == 1:
                continue  # Everybody came from there.
            for other in views.stays:
                start, end = other.place(was), other.place(number)
                if start is not None and end is not None and end - start > 1:
                    skipped = other.numbers[end - 1]
                    found.append(("skipped", row, other.rows[end - 1], {"view": skipped}))
                    break
    return found
