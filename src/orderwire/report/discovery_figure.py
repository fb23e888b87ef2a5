"""The discovery of a domain as a picture: who learnt whom when, and how long it took."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from orderwire.kernel import NS_PER_MS
from orderwire.report.style import ALARM, GREY, INK, ORDERED, styled
from orderwire.verify.discovery_audit import open_domain
from orderwire.verify.kernels.discovery_columns import DISCOVERY_NEEDED, discovery_columns_of
from orderwire.verify.kernels.discovery_facts import Facts
from orderwire.verify.kernels.discovery_share import share_kinds
from orderwire.verify.kernels.discovery_views import listings_of, right_spans
from orderwire.verify.kernels.lives import lined_up, lives_of
from orderwire.verify.kernels.survey import SURVEYED, survey
from orderwire.verify.source import TableSource, settings_of

TITLE = "Share of the others that each participant knew"
STEPS = 240
"""Columns of the picture of who knows how many."""
NAMES_MAX = 40
"""More participants than this are numbered by the axis."""
_SHADES = "Blues"


class Known(NamedTuple):
    """What each participant knew, and when; times in ms since the first of the run."""

    names: list[str]
    """One a participant, by its process number."""
    times_ms: NDArray[np.float64]
    """Shape (steps,)."""
    share: NDArray[np.float64]
    """Shape (participants, steps): the share of the others then there that it listed; NaN where
    it was not there itself."""
    latencies_ms: NDArray[np.float64]
    """Shape (participants, participants): from when both were there until the row's first learnt
    the column's MAP; NaN where it never did."""
    boots_ms: list[list[float]]
    """When each began, all its lives."""
    ends_ms: list[list[float]]
    """When each of those lives ended, NaN where the run's end came first."""


def known_of(
    trace: pa.Table,
    run_id: str,
    names: Mapping[int, str] | None = None,
    last_ms: float | None = None,
) -> Known | None:
    """Read who knew whom out of a trace; None when the run has no discovery.

    `names` are those of processes; others go by their number.  The picture ends at `last_ms`, by
    default soon after somebody last learnt, began or ended.
    """
    source = TableSource(trace.filter(pa.compute.equal(trace.column("run_id"), run_id)))
    surveys = list(survey(source.batches(SURVEYED, None)).values())
    settings, _ = settings_of(source.starts(), run_id)
    again = lives_of(source.starts(), run_id)
    domain = open_domain(source, surveys[0], settings, lives=again) if surveys else None
    if domain is None or not len(domain.facts.lives):
        return None
    facts = domain.facts
    lives, listed = facts.lives, facts.incarnations.life
    table = lined_up(source.of_kinds(share_kinds(domain.assumed), DISCOVERY_NEEDED), again)
    right = right_spans(listings_of(discovery_columns_of(table), facts), facts)
    processes, row = np.unique(lives.process, return_inverse=True)
    ended = lives.end_ns[lives.end_ns < facts.end_ns]
    news = [int(times.max(initial=facts.first_ns)) for times in (right.from_ns, ended)]
    span = max(*news, int(lives.boot_ns.max())) - facts.first_ns
    last_ns = facts.first_ns + (span + span // 20 if last_ms is None else int(last_ms * NS_PER_MS))
    times_ns = facts.first_ns + np.arange(STEPS + 1) * max(1, last_ns - facts.first_ns) // STEPS
    there = _levels(len(processes), row, lives.boot_ns, lives.end_ns, times_ns)
    known = _levels(len(processes), row[right.life], right.from_ns, right.to_ns, times_ns)
    others = there.sum(axis=0) - there
    share = np.where(there > 0, np.minimum(known, others) / np.maximum(others, 1), np.nan)
    share[(there > 0) & (others == 0)] = 1.0
    latencies = np.full((len(processes), len(processes)), np.nan)
    together = np.maximum(lives.boot_ns[right.life], lives.boot_ns[listed[right.what]])
    # From the last to the first, so that the first is what stays.
    order = np.argsort(right.from_ns, kind="stable")[::-1]
    latencies[row[right.life[order]], row[listed[right.what[order]]]] = (
        right.from_ns[order] - together[order]
    ) / NS_PER_MS
    named = names or {}
    return Known(
        names=[named.get(process, str(process)) for process in processes.tolist()],
        times_ms=(times_ns - facts.first_ns) / NS_PER_MS,
        share=share,
        latencies_ms=latencies,
        boots_ms=_instants(facts, processes, lives.boot_ns),
        ends_ms=_instants(facts, processes, lives.end_ns),
    )


def _levels(
    count: int,
    row: NDArray[np.int64],
    from_ns: NDArray[np.int64],
    to_ns: NDArray[np.int64],
    times_ns: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return for each row and instant how many of the row's half-open spans hold it."""
    steps = np.zeros((count, len(times_ns) + 1), np.int64)
    np.add.at(steps, (row, np.searchsorted(times_ns, from_ns)), 1)
    np.add.at(steps, (row, np.searchsorted(times_ns, to_ns)), -1)
    return np.cumsum(steps, axis=1)[:, :-1]


def discovery_figure(known: Known, title: str = TITLE) -> Figure:
    """Draw participants × time, coloured by the share of the others that each listed.

    Beside it the time from when both were there until one learnt the other, a cell a pair.
    """
    count = len(known.names)
    with styled():
        figure = Figure(figsize=(9.5, 1.7 + 0.16 * min(max(count, 10), 26)))
        time_axes, pair_axes = figure.subplots(
            1, 2, width_ratios=(2.1, 1), gridspec_kw={"wspace": 0.3}
        )
        _draw_shares(figure, time_axes, known)
        time_axes.set_title(title)
        _draw_latencies(figure, pair_axes, known)
    return figure


def _draw_shares(figure: Figure, axes: Axes, known: Known) -> None:
    count = len(known.names)
    extent = (float(known.times_ms[0]), float(known.times_ms[-1]), count - 0.5, -0.5)
    image = axes.imshow(
        known.share,
        aspect="auto",
        extent=extent,
        cmap=_SHADES,
        vmin=0,
        vmax=1,
        interpolation="nearest",
    )
    for row, (boots, ends) in enumerate(zip(known.boots_ms, known.ends_ms, strict=True)):
        axes.plot(boots, [row] * len(boots), "|", color=ORDERED, ms=5)
        gone = [end for end in ends if not np.isnan(end)]  # The others stayed.
        axes.plot(gone, [row] * len(gone), "x", color=ALARM, ms=4)
    axes.set_xlim(extent[:2])
    axes.set_xlabel("ms into the run  (| begins, × ends)")
    axes.grid(visible=False)
    _label_rows(axes, known)
    bar = figure.colorbar(image, ax=axes, pad=0.01, fraction=0.04)
    bar.outline.set_visible(False)


def _draw_latencies(figure: Figure, axes: Axes, known: Known) -> None:
    shown = np.ma.masked_invalid(known.latencies_ms)
    image = axes.imshow(shown, cmap=_SHADES, interpolation="nearest", aspect="equal")
    for row, column in np.argwhere(np.isnan(known.latencies_ms)):
        if row != column and len(known.names) <= NAMES_MAX:
            axes.plot(column, row, "x", color=ALARM, ms=4)
    axes.set_title("ms until the row knew the column", fontsize=9.5, fontweight="normal")
    axes.set_anchor("N")
    axes.grid(visible=False)
    for one in (axes.xaxis, axes.yaxis):
        one.set_major_locator(MaxNLocator(integer=True, nbins=8))
    axes.tick_params(colors=GREY)
    bar = figure.colorbar(image, ax=axes, pad=0.03, fraction=0.045)
    bar.outline.set_visible(False)


def _label_rows(axes: Axes, known: Known) -> None:
    if len(known.names) <= NAMES_MAX:
        axes.set_yticks(np.arange(len(known.names)), known.names, fontsize=8, color=INK)
    else:
        axes.set_ylabel("participant")


def _instants(
    facts: Facts, processes: NDArray[np.int64], times_ns: NDArray[np.int64]
) -> list[list[float]]:
    """Return each process's times in ms, NaN for those at the run's end."""
    shown = np.where(times_ns < facts.end_ns, (times_ns - facts.first_ns) / NS_PER_MS, np.nan)
    return [shown[facts.lives.process == process].tolist() for process in processes.tolist()]
