"""The figures of a run, each from a small tidy table."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from orderwire.report.style import ALARM, CONTROL, GREY, INK, ORDERED, SERIES, styled


class Histogram(NamedTuple):
    """How many deliveries took up to so long; both arrays have shape (buckets,), ascending."""

    upper_ms: NDArray[np.float64]
    counts: NDArray[np.int64]


_OUTCOMES = (("delivered", ORDERED), ("late", CONTROL), ("lost", ALARM))


def delay_figure(groups: Mapping[str, Histogram], lifetime_ms: float | None) -> Figure:
    """Draw the distribution of the delay from send to delivery, one curve a group, and Δ."""
    with styled():
        figure = Figure(figsize=(9.5, 3.2))
        axes = figure.add_subplot()
        colours = (ORDERED, CONTROL, *SERIES[2:])
        for at_group, (name, delays) in enumerate(groups.items()):
            colour = colours[at_group % len(colours)]
            if not len(delays.counts):
                continue
            share = np.cumsum(delays.counts) / delays.counts.sum()
            axes.plot(delays.upper_ms, share, color=colour, lw=1.8, label=name)
            for quantile in (0.5, 0.99):
                at = float(delays.upper_ms[np.searchsorted(share, quantile)])
                axes.plot(at, quantile, "o", color=colour, ms=4)
                axes.annotate(
                    f"{at:.0f} ms",
                    (at, quantile),
                    xytext=(7, -11 - 11 * at_group),
                    color=colour,
                    textcoords="offset points",
                    fontsize=8.5,
                )
        if lifetime_ms is not None:
            axes.axvline(lifetime_ms, color=ALARM, lw=1, ls=(0, (4, 3)))
            axes.annotate(
                "Δ",
                (lifetime_ms, 0.04),
                xytext=(4, 0),
                color=ALARM,
                textcoords="offset points",
            )
        axes.set(
            xlabel="delay from send to delivery, ms",
            ylabel="share of deliveries",
            ylim=(0, 1.02),
            title="How long a message takes",
        )
        axes.set_xlim(left=0)
        if axes.lines:
            axes.legend(loc="center right")
    return figure


def control_bytes_figure(
    seconds: NDArray[np.float64],
    ours: NDArray[np.float64],
    rivals: Mapping[str, float],
) -> Figure:
    """Draw the mean control bytes of a copy over time beside what fixed layouts would cost.

    `seconds`, `ours`: shape (windows,).  `rivals`: name → bytes a copy, a horizontal line each.
    """
    with styled():
        figure = Figure(figsize=(9.5, 3.0))
        axes = figure.add_subplot()
        axes.fill_between(seconds, 0, ours, color=ORDERED, alpha=0.15, step="mid")
        axes.plot(seconds, ours, color=ORDERED, lw=1.8, drawstyle="steps-mid", label="Orderwire")
        for (name, value), colour in zip(
            rivals.items(), (CONTROL, GREY, *SERIES[3:]), strict=False
        ):
            axes.axhline(
                value, color=colour, lw=1.3, ls=(0, (5, 3)), label=f"{name}: {value:.0f} B"
            )
        axes.set(
            xlabel="seconds into the run",
            ylabel="control bytes a copy",
            title="What the order costs on the wire",
        )
        axes.set_ylim(0, 1.28 * max(float(ours.max(initial=1.0)), *rivals.values()))
        axes.legend(loc="upper right", ncols=3)
    return figure


def member_share_figure(
    names: Sequence[str], outcomes: Mapping[str, Sequence[int]], title: str
) -> Figure:
    """Draw what became of the copies addressed to each member: delivered, late, lost."""
    with styled():
        figure = Figure(figsize=(9.5, 0.9 + 0.36 * len(names)))
        axes = figure.add_subplot()
        left = np.zeros(len(names))
        rows = np.arange(len(names))[::-1]
        for outcome, colour in _OUTCOMES:
            values = np.asarray(outcomes[outcome], dtype=np.float64)
            axes.barh(rows, values, left=left, color=colour, height=0.62, label=outcome)
            left = left + values
        for at, row in enumerate(rows):
            missed = int(outcomes["late"][at] + outcomes["lost"][at])
            axes.annotate(
                f"{int(outcomes['delivered'][at]):,} delivered, {missed:,} not",
                (left[at], row),
                xytext=(5, 0),
                textcoords="offset points",
                va="center",
                fontsize=8.5,
                color=INK,
            )
        axes.set_yticks(rows, names)
        axes.set_xlim(right=max(1.0, float(left.max(initial=1.0))) * 1.28)
        axes.grid(visible=False, axis="y")
        axes.set(xlabel="copies", title=title)
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3)
    return figure
