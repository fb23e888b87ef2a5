"""One figure of an experiment: its panels, the claims beside what came out, and its parameters."""

from collections.abc import Sequence
from textwrap import fill
from typing import Any

from matplotlib.figure import Figure

from orderwire.lab.claims import Judged
from orderwire.lab.experiment import Experiment, Size
from orderwire.report.style import ALARM, INK, SERIES, styled

NAMES = {
    "printed_bytes": "control bytes a copy, printed layout",
    "control_bytes": "control bytes a copy, our codec",
    "control_bytes_max": "most control bytes, our codec",
    "printed_bytes_max": "most control bytes, printed layout",
    "delivery_ms": "mean delivery time, ms",
    "wait_ms": "mean waiting time, ms",
    "held_share": "share of deliveries held",
    "delivered_share": "share delivered",
    "message_cpu_us": "CPU a message, µs",
    "send_cpu_us": "CPU a send, µs",
    "receive_cpu_us": "CPU a delivery, µs",
}
MARKERS = "osD^vPX*<>ph"
_NOTE_CHARACTERS = 150


def draw(
    experiment: Experiment,
    rows: Sequence[dict[str, Any]],
    claims: Sequence[Judged],
    size: Size,
    seeds: int,
    *,
    quick: bool,
) -> Figure:
    """Draw the panels, one curve a series, error bars of 95 % over the seeds.

    A grid of more than one parameter draws a curve for each value of the others.
    """
    picture = experiment.picture
    x = picture.x
    with styled():
        panels = len(picture.panels)
        figure = Figure(figsize=(5.6 * panels + 1.2, 4.4))
        axes = figure.subplots(1, panels, squeeze=False)[0]
        for panel, measure in zip(axes, picture.panels, strict=True):
            for at, (label, line) in enumerate(_lines(experiment, rows, measure).items()):
                panel.errorbar(
                    [row[x] for row in line],
                    [row[measure] for row in line],
                    yerr=[row[f"{measure}_ci"] or 0.0 for row in line],
                    color=SERIES[at % len(SERIES)],
                    marker=MARKERS[at % len(MARKERS)],
                    ls=("-", "--", ":", "-.")[at // len(SERIES) % 4],
                    ms=4,
                    lw=1.4,
                    capsize=2,
                    label=label,
                )
            panel.set(xlabel=picture.x_label, title=NAMES.get(measure, measure))
            if picture.log_x:
                panel.set_xscale("log")
            if picture.log_y:
                panel.set_yscale("log")
            else:
                panel.set_ylim(bottom=0)
        axes[-1].legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=8)
        title = f"{experiment.title}  [{experiment.paper}]" + ("  QUICK VERSION" if quick else "")
        figure.suptitle(title, x=0.01, ha="left", color=ALARM if quick else INK, weight="bold")
        runs = f"{size.messages:,} messages after {size.warm_up:,}, {seeds} seeds, bars of 95 %"
        lines = [fill("; ".join([runs, *experiment.notes]), _NOTE_CHARACTERS), ""]
        for judged in claims:
            sign = {True: "holds", False: "does not hold", None: "not judged"}[judged.holds]
            text = f"{sign}: {judged.claim} — paper: {judged.paper} — ours: {judged.ours}"
            lines.append(fill(text, _NOTE_CHARACTERS, subsequent_indent="    "))
        figure.text(0.01, -0.03, "\n".join(lines), fontsize=7.5, va="top", color=INK)
    return figure


def _lines(
    experiment: Experiment, rows: Sequence[dict[str, Any]], measure: str
) -> dict[str, list[dict[str, Any]]]:
    x = experiment.picture.x
    others = [name for name in experiment.grid if name != x]
    varied = [name for name in others if len({row[name] for row in rows}) > 1]
    lines: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if measure in row:
            label = ", ".join([row["series"], *(f"{name} {row[name]}" for name in varied)])
            lines.setdefault(label, []).append(row)
    for line in lines.values():
        line.sort(key=lambda row: row[x])
    return lines
