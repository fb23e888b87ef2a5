"""One order at several readers, as a picture: what each was handed when, and in which order."""

from collections.abc import Hashable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from orderwire.report.style import ALARM, GREY, INK, SERIES, styled

SHOWN_MAX = 56
"""Messages whose order is drawn: those around the longest pause."""


class Handed(NamedTuple):
    """A message that a reader was handed."""

    seconds: float
    message: Hashable
    topic: str


def columns_of(logs: Sequence[Sequence[Hashable]]) -> list[list[int]]:
    """Return for each message of each log the column where it is drawn.

    A log's messages fill, in its order, the columns that they have in the longest log; what that
    lacks stands behind it.  So a message has one column in all logs if they agree, and the lines of
    two messages cross between two logs that disagree on them.
    """
    column: dict[Hashable, int] = {}
    for log in sorted(logs, key=len, reverse=True):
        for message in log:
            column.setdefault(message, len(column))
    return [sorted(column[message] for message in log) for log in logs]


def order_figure(
    logs: Mapping[str, Sequence[Handed]], marked_s: float | None = None, mark: str = ""
) -> Figure:
    """Draw what each reader was handed over time, and below in which order, around a pause.

    `logs`: by reader, each in the order in which it was handed it.  What happened at `marked_s` is
    marked by a line with the word `mark`.
    """
    topics = sorted({each.topic for log in logs.values() for each in log})
    colours = {topic: SERIES[at % len(SERIES)] for at, topic in enumerate(topics)}
    with styled():
        figure = Figure(figsize=(9.5, 1.9 + 0.5 * len(logs)))
        above, below = figure.subplots(2, 1, gridspec_kw={"hspace": 0.75})
        _draw_times(above, logs, colours, marked_s, mark)
        _draw_order(below, logs, colours)
        for axes in (above, below):
            rows = np.arange(len(logs))[::-1]
            axes.set_yticks(rows, list(logs))
            axes.set_ylim(-0.6, len(logs) - 0.4)
            axes.grid(visible=False)
            axes.spines["left"].set_visible(False)
            axes.tick_params(axis="y", length=0)
    return figure


def _draw_times(
    axes: Axes,
    logs: Mapping[str, Sequence[Handed]],
    colours: Mapping[str, str],
    marked_s: float | None,
    mark: str,
) -> None:
    lane = 0.7 / max(1, len(colours))
    for row, log in enumerate(reversed(list(logs.values()))):
        for at, (topic, colour) in enumerate(colours.items()):
            seconds = [each.seconds for each in log if each.topic == topic]
            # A topic has its own height in the row, so that it shows which of them a reader reads.
            top = row + 0.35 - at * lane
            heights = [top, top - 0.85 * lane, np.nan] * len(seconds)
            axes.plot(
                np.repeat(seconds, 3), heights, color=colour, lw=0.5
            )  # one path, for its size
    if marked_s is not None:
        axes.axvline(marked_s, color=ALARM, lw=1.3, ls=(0, (4, 3)))
        axes.annotate(
            mark,
            (marked_s, (len(logs) - 1) / 2),
            xytext=(6, 0),
            va="center",
            color=ALARM,
            textcoords="offset points",
            fontsize=8.5,
        )
    axes.set_xlabel("seconds since the first")
    axes.set_title("When each was handed what it reads")


def _draw_order(
    axes: Axes, logs: Mapping[str, Sequence[Handed]], colours: Mapping[str, str]
) -> None:
    shown, before = _around_the_pause(logs)
    columns = columns_of([[each.message for each in log] for log in shown])
    last: dict[Hashable, tuple[int, int]] = {}
    for row, (log, places) in enumerate(zip(shown, columns, strict=True)):
        height = len(shown) - 1 - row
        for each, place in zip(log, places, strict=True):
            if each.message in last:
                x, y = last[each.message]
                axes.plot([x, place], [y, height], color=colours[each.topic], lw=0.8, alpha=0.6)
            last[each.message] = (place, height)
        points = [colours[each.topic] for each in log]
        axes.scatter(places, [height] * len(log), c=points, s=15, zorder=3)
    if before:
        axes.axvline(before - 0.5, color=GREY, lw=1.3, ls=(0, (4, 3)))
    for topic, colour in colours.items():
        axes.plot([], [], "o", color=colour, ms=4, label=topic)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    axes.set_title("In which order: around the longest pause (dashed), a line a message")
    if colours:
        axes.legend(loc="upper left", bbox_to_anchor=(0, -0.02), ncols=len(colours), labelcolor=INK)


def _around_the_pause(logs: Mapping[str, Sequence[Handed]]) -> tuple[list[list[Handed]], int]:
    """Return of each log what lies around the longest pause of the longest one, and how many
    messages of that lie before.
    """
    longest = max(logs.values(), key=len)
    pauses = [later.seconds - earlier.seconds for earlier, later in pairwise(longest)]
    if not pauses:
        return [list(log) for log in logs.values()], 0
    pause = 1 + int(np.argmax(pauses))
    first = max(0, pause - SHOWN_MAX // 2)
    chosen = {each.message for each in longest[first : first + SHOWN_MAX]}
    return [[each for each in log if each.message in chosen] for log in logs.values()], (
        pause - first
    )
