"""A space–time diagram as text: one line per process, time from left to right.

    P0 ─●a───────────────────▼b─
    P1 ────▼a─●b────────────────
    P2 ──────────○b────▼a─▼b────

One column per thing that happened, in the order of time, so distances mean nothing; the axis below
says when.  Long windows are cut into strips.
"""

from collections.abc import Collection, Iterable, Sequence
from string import ascii_lowercase

import msgspec

from orderwire.kernel import NS_PER_MS, Destinations, members_of
from orderwire.trace.events import DISCOVERY_KINDS, Event, EventKind

MessageKey = tuple[int, int]
"""(source, number)."""

SENT, DELIVERED, WAITS, DISCARDED, STARTED = "●", "▼", "○", "✗", "↻"
LEGEND = {
    SENT: "sent",
    WAITS: "arrived, waits",
    DELIVERED: "delivered",
    DISCARDED: "discarded",
    STARTED: "restarted",
}
EVENTS_MAX = 400
"""A longer window is cut off; a diagram is for people."""


class _Mark(msgspec.Struct, frozen=True, order=True):
    """One thing that happened."""

    time_ns: int
    order: int
    process: int
    glyph: str
    key: MessageKey | None


def space_time(
    events: Iterable[Event],
    *,
    messages: Collection[MessageKey] | None = None,
    first_ns: int | None = None,
    last_ns: int | None = None,
    columns: int = 100,
) -> str:
    """Draw what happened to these messages (None: to all) within a window of the common time."""
    ordered = list(events)
    marks = sorted(
        mark
        for mark in _marks(ordered)
        if (messages is None or mark.key is None or mark.key in messages)
        and (first_ns is None or mark.time_ns >= first_ns)
        and (last_ns is None or mark.time_ns <= last_ns)
    )
    if messages is not None:
        shown = {mark.process for mark in marks if mark.key is not None}
        marks = [mark for mark in marks if mark.key is not None or mark.process in shown]
    if not marks:
        return "nothing happened in this window\n"
    cut_off = len(marks) - EVENTS_MAX
    marks = marks[:EVENTS_MAX]
    names = _names(marks)
    processes = sorted({mark.process for mark in marks} | _destinations(ordered, names))
    margin = max(len(f"P{process} ") for process in processes)
    strips: list[str] = []
    at = 0
    while at < len(marks):
        text, taken = _strip(marks[at:], processes, names, margin, columns)
        strips.append(text)
        at += taken
    lines = [*strips, *_key(ordered, names, columns), _legend(marks)]
    if cut_off > 0:
        lines.append(f"… and {cut_off} more")
    return "\n".join(lines) + "\n"


def explain(events: Sequence[Event], first: MessageKey, second: MessageKey) -> str:
    """Draw how `first` came to happen before `second`, and where both were delivered."""
    return space_time(events, messages={*chain(events, first, second), first, second})


def chain(events: Sequence[Event], first: MessageKey, second: MessageKey) -> list[MessageKey]:
    """Return messages that lead from `first` to `second`, each delivered where the next was sent.

    Empty when `first` did not happen before `second`.
    """
    before: dict[MessageKey, list[MessageKey]] = {}
    known: dict[int, list[MessageKey]] = {}
    for event in sorted(events, key=lambda event: (event.process, event.position)):
        past = known.setdefault(event.process, [])
        key = (event.source, event.number)
        if event.kind is EventKind.SEND:
            before[key] = past.copy()
            past.append(key)
        elif event.kind is EventKind.DELIVER:
            past.append(key)
    came_from: dict[MessageKey, MessageKey] = {}
    frontier = [second]
    while frontier:
        following: list[MessageKey] = []
        for later in frontier:
            for earlier in before.get(later, []):
                if earlier == first:
                    path = [earlier, later]
                    while path[-1] != second:
                        path.append(came_from[path[-1]])
                    return path
                if earlier not in came_from and earlier != second:
                    came_from[earlier] = later
                    following.append(earlier)
        frontier = following
    return []


def _marks(events: Sequence[Event]) -> Iterable[_Mark]:
    for order, event in enumerate(events):
        key = (event.source, event.number)
        match event.kind:
            case EventKind.SEND:
                yield _Mark(event.time_ns, order, event.process, SENT, key)
            case EventKind.DELIVER:
                waited_ns = event.clock_ns - event.arrived_ns
                if waited_ns > 0 and event.source != event.process:
                    yield _Mark(event.time_ns - waited_ns, order, event.process, WAITS, key)
                yield _Mark(event.time_ns, order, event.process, DELIVERED, key)
            case EventKind.DISCARD:
                yield _Mark(event.time_ns, order, event.process, DISCARDED, key)
            case EventKind.START if event.position:
                yield _Mark(event.time_ns, order, event.process, STARTED, None)
            case EventKind.START | EventKind.RECEIVE | EventKind.LOST | EventKind.END:
                pass
            case EventKind.INSTALL:
                pass
            case _:
                assert event.kind in DISCOVERY_KINDS, event.kind


def _names(marks: Iterable[_Mark]) -> dict[MessageKey, str]:
    """Give every message a short name, in the order in which they appear."""
    names: dict[MessageKey, str] = {}
    for mark in marks:
        if mark.key is not None and mark.key not in names:
            index = len(names)
            high, low = divmod(index, len(ascii_lowercase))
            prefix = ascii_lowercase[(high - 1) % len(ascii_lowercase)] if high else ""
            names[mark.key] = prefix + ascii_lowercase[low]
    return names


def _destinations(events: Iterable[Event], names: Collection[MessageKey]) -> set[int]:
    found: set[int] = set()
    for event in events:
        if event.kind is EventKind.SEND and (event.source, event.number) in names:
            found.update(members_of(_mask(event)))
    return found


def _mask(event: Event) -> Destinations:
    return Destinations(int.from_bytes(event.destinations, "little"))


def _strip(
    marks: Sequence[_Mark],
    processes: Sequence[int],
    names: dict[MessageKey, str],
    margin: int,
    columns: int,
) -> tuple[str, int]:
    """Draw as many marks as fit in one strip; return it and how many those are."""
    lines = dict.fromkeys(processes, "─")
    axis = ""
    width = 1
    taken = 0
    for mark in marks:
        label = mark.glyph + (names[mark.key] if mark.key is not None else "")
        if taken and margin + width + len(label) + 1 > columns:
            break
        time_text = f"{mark.time_ns / NS_PER_MS:.3f}"
        if len(axis) <= width and margin + width + len(time_text) <= columns:
            axis = axis.ljust(width) + time_text + "  "
        for process in processes:
            lines[process] += label + "─" if process == mark.process else "─" * (len(label) + 1)
        width += len(label) + 1
        taken += 1
    rows = [f"P{process} ".ljust(margin) + line for process, line in lines.items()]
    rows.append("ms ".rjust(margin) + axis.rstrip())
    return "\n".join(rows) + "\n", taken


def _key(events: Iterable[Event], names: dict[MessageKey, str], columns: int) -> Iterable[str]:
    """Say which message each name stands for, in lines."""
    sends = {
        (event.source, event.number): event for event in events if event.kind is EventKind.SEND
    }
    line = ""
    for key, name in names.items():
        part = f"{name} = {key[0]}/{key[1]}"
        if key in sends:
            part += "→" + ",".join(map(str, members_of(_mask(sends[key]))))
        if line and len(line) + 2 + len(part) > columns:
            yield line
            line = ""
        line += f"  {part}" if line else part
    yield line


def _legend(marks: Iterable[_Mark]) -> str:
    """Explain the signs that are used."""
    used = {mark.glyph for mark in marks}
    return "  ".join(f"{glyph} {meaning}" for glyph, meaning in LEGEND.items() if glyph in used)
