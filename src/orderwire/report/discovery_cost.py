"""What a discovery took and cost, as figures: pairs that know each other, hops, bytes."""

from collections import Counter

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from orderwire.kernel import NS_PER_S
from orderwire.report.style import ALARM, GREY, INK, ORDERED, SERIES, styled
from orderwire.verify.report import DiscoveryReport

MESSAGES_MAX = 12
"""Types of messages that are drawn, those with the most bytes."""


def hops_of(found: DiscoveryReport) -> dict[int, int]:
    """Return how many broadcasts were heard after so many hops, of all types together."""
    hops: Counter[int] = Counter()
    for message in found.messages:
        hops.update(message.hops)
    return dict(sorted(hops.items()))


def pairs_figure(found: DiscoveryReport) -> Figure:
    """Draw over the run's time how many pairs knew each other, of those that were there."""
    first_ns = found.series[0].time_ns
    seconds = np.array([(each.time_ns - first_ns) / NS_PER_S for each in found.series])
    pairs = np.array([each.pairs for each in found.series])
    missing = np.array([each.missing for each in found.series])
    wrong = np.array([each.outdated + each.ghosts for each in found.series])
    with styled():
        figure = Figure(figsize=(9.5, 2.7))
        axes = figure.add_subplot()
        axes.fill_between(seconds, 0, pairs - missing, color=ORDERED, alpha=0.15, step="post")
        axes.step(seconds, pairs, where="post", color=GREY, lw=1.3, label="pairs that were there")
        axes.step(seconds, pairs - missing, where="post", color=ORDERED, lw=1.8, label="known")
        if wrong.any():
            axes.step(
                seconds, wrong, where="post", color=ALARM, lw=1.3, label="listed, but old or gone"
            )
        axes.set(xlabel="seconds into the run", title="Pairs of which one knew the other")
        axes.set_ylim(bottom=0, top=max(1.0, 1.3 * float(pairs.max(initial=1))))
        axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
        axes.legend(loc="upper left", ncols=3)
    return figure


def traffic_figure(found: DiscoveryReport) -> Figure:
    """Draw the bytes of each type of message, and how many hops broadcasts took."""
    shown = sorted(found.messages, key=lambda message: -message.posted_bytes)[:MESSAGES_MAX]
    shown = [message for message in shown if message.posted_bytes]
    with styled():
        figure = Figure(figsize=(9.5, 1.3 + 0.26 * max(4, len(shown))))
        left, right = figure.subplots(1, 2, width_ratios=(2, 1), gridspec_kw={"wspace": 0.25})
        rows = np.arange(len(shown))[::-1]
        sizes = np.array([message.posted_bytes for message in shown], np.float64)
        left.barh(rows, sizes, color=ORDERED, height=0.62)
        for row, message in zip(rows.tolist(), shown, strict=True):
            left.annotate(
                f"{message.posted_bytes:,} B in {message.posted:,}",
                (message.posted_bytes, row),
                xytext=(5, 0),
                textcoords="offset points",
                va="center",
                fontsize=8.5,
                color=INK,
            )
        left.set_yticks(rows, [message.message for message in shown])
        left.set_xlim(right=1.45 * float(sizes.max(initial=1.0)))
        left.grid(visible=False, axis="y")
        left.set(xlabel="bytes posted", title="Bytes by message")
        _draw_hops(right, hops_of(found))
    return figure


def _draw_hops(axes: Axes, hops: dict[int, int]) -> None:
    axes.bar(list(hops), list(hops.values()), color=SERIES[2], width=0.7)
    axes.set(xlabel="hops", ylabel="broadcasts heard", title="Hops")
    for one in (axes.xaxis, axes.yaxis):
        one.set_major_locator(MaxNLocator(integer=True, nbins=6))
    axes.grid(visible=False, axis="x")
