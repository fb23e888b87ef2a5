"""One figure of an experiment: its panels, the claims beside what came out, and its parameters."""

from collections.abc import Mapping, Sequence
from math import inf
from textwrap import fill
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from orderwire.lab.claims import Judged, said
from orderwire.lab.config import HALF
from orderwire.lab.experiment import Experiment, Panel, Size
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
    "receive_cpu_us": "CPU a copy received, µs",
    "max_s": "longest discovery, from the owner's start, s",
    "max_both_up_s": "longest discovery, from when both are up, s",
    "p50_s": "median discovery, from the owner's start, s",
    "level1_s": "Level 1: mean of the longest, s",
    "level2_s": "Level 2: mean of the longest, s",
    "pairs_missing": "pairs missing",
    "missing_percent": "pairs missing, %",
    "reception_percent": "messages received of those sent, %",
    "sent": "messages sent",
    "payload_mb": "payload sent, MB",
    "connections": "connections opened",
    "join_ack_maps_max": "most MAPs in one JOIN_ACK",
    "join_ack_kb_max": "largest JOIN_ACK, kB",
    "hops_mean": "mean hops of a JOIN",
    "hops_max": "most hops of a JOIN",
    "update_max_s": "an update until all have it, s",
    "update_mean_s": "an update until one has it, mean, s",
    "idle_messages_per_s": "messages a second and participant, idle",
    "idle_bytes_per_s": "bytes a second and participant, idle",
    "join_messages": "messages of a join",
    "join_bytes": "bytes of a join",
    "join_s": "a join until all know all, s",
    "leave_messages": "messages of a goodbye",
    "crash_mean_s": "a silent crash until one notices, mean, s",
    "produce_s": "produce time, s",
    "consume_s": "consume time, s",
    "end_s": "until the last consumer has all, s",
    "messages_per_s": "messages a second, produced",
    "answer_ms": "from a request to its answer, mean, ms",
    "rounds": "rounds of synchronisation",
    "disk_share": "busiest disk, share of the time",
    "crash_last_s": "a silent crash until all notice, s",
}
SIDE_BY_SIDE = "side by side"
"""What stands for the measure where a panel has several."""
MARKERS = "osD^vPX*<>ph"
PANEL_INCHES = (4.6, 3.5)
MANY_COLUMNS = 4
"""From so many on, panels are narrower."""
NARROW_INCHES = 3.5
LEGEND_INCHES = 1.5
_CHARACTERS_AN_INCH = 14


def draw(
    experiment: Experiment,
    rows: Sequence[dict[str, Any]],
    claims: Sequence[Judged],
    size: Size,
    seeds: int,
    *,
    quick: bool,
) -> Figure:
    """Draw the panels that have results, one curve a series, error bars of 95 % over the seeds."""
    picture = experiment.picture
    panels = [panel for panel in picture.each() if _lines(experiment, panel, rows)]
    columns = max(1, min(picture.columns or len(panels), len(panels)))
    lines = max(1, -(-len(panels) // columns))
    curves = list(dict.fromkeys(series.curve or series.label for series in experiment.series))
    panel_inches = NARROW_INCHES if columns >= MANY_COLUMNS else PANEL_INCHES[0]
    width = columns * panel_inches + LEGEND_INCHES
    height = lines * PANEL_INCHES[1] + 0.5
    with styled():
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = list(figure.subplots(lines, columns, squeeze=False).flat)
        drawn: dict[str, Any] = {}
        for panel, axis in zip(panels, axes, strict=False):
            drawn |= _draw_panel(experiment, panel, axis, rows, curves)
        for axis in axes[len(panels) :]:
            axis.axis("off")
        shown = [curve for curve in curves if curve in drawn]
        figure.legend(
            [drawn[curve] for curve in shown], shown, loc="outside right center", fontsize=8.5
        )
        title = f"{experiment.title}  [{experiment.paper}]" + ("  QUICK VERSION" if quick else "")
        colour = ALARM if quick else INK
        figure.suptitle(title, x=0.01, ha="left", color=colour, weight="bold")
        text = _text(experiment, rows, claims, size, seeds, int(width * _CHARACTERS_AN_INCH))
        figure.text(0.01, -0.02, text, fontsize=7.5, va="top", color=INK)
    return figure


def _draw_panel(
    experiment: Experiment,
    panel: Panel,
    axis: Axes,
    rows: Sequence[dict[str, Any]],
    curves: Sequence[str],
) -> dict[str, Any]:
    """Draw the curves of one panel; return a handle of each."""
    picture = experiment.picture
    lines = _lines(experiment, panel, rows)
    measure = panel.measure or SIDE_BY_SIDE
    values = sorted(
        {row[panel.x] for line in lines.values() for row in line},
        key=lambda value: _place(panel.x, value),
    )
    drawn = {}
    for curve, line in lines.items():
        at = curves.index(curve)
        line.sort(key=lambda row: values.index(row[panel.x]))
        drawn[curve] = axis.errorbar(
            [values.index(row[panel.x]) if picture.even else row[panel.x] for row in line],
            [row[measure] for row in line],
            yerr=[row.get(f"{measure}_ci") or 0.0 for row in line],
            color=SERIES[at % len(SERIES)],
            marker=MARKERS[at % len(MARKERS)],
            ls=("-", "--", ":", "-.")[at // len(SERIES) % 4],
            ms=max(3.0, 7.0 - at),
            lw=max(1.0, 2.6 - 0.3 * at),
            elinewidth=1.0,
            capsize=2,
        )
    axis.set_xlabel(panel.x_label)
    axis.set_title(panel.title or NAMES.get(panel.measure, panel.measure), fontsize=10)
    if picture.even:
        axis.set_xticks(range(len(values)), [picture.names.get(said(v), said(v)) for v in values])
    elif picture.log_x:
        axis.set_xscale("log")
        axis.set_xticks(values, [said(v) for v in values])
        axis.minorticks_off()
    if picture.log_y if panel.log_y is None else panel.log_y:
        axis.set_yscale("log", nonpositive="clip")
    elif any(row[measure] for line in lines.values() for row in line):
        axis.set_ylim(bottom=0)
    else:
        axis.set_ylim(0, 1)  # Nothing at all: an axis to 0.05 would look like something.
    return drawn


def _place(parameter: str, value: Any) -> Any:
    """Return where a value stands among others: "for ever", "half" and "all" at the end."""
    last: dict[tuple[str, float], float] = {
        ("lifetime_ms", 0): inf,
        ("fan_out", HALF): 1e6,
        ("fan_out", 0): 1e7,
    }
    return last.get((parameter, value), value)


def _lines(
    experiment: Experiment, panel: Panel, rows: Sequence[dict[str, Any]]
) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each curve in this panel."""
    wanted = panel.curves or [series.label for series in experiment.series]
    curve_of = {series.label: series.curve or series.label for series in experiment.series}
    lines: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        fits = all(row[name] == value for name, value in panel.at.items())
        if fits and row["series"] in wanted:
            shown = [row] if row.get(panel.measure) is not None else _spread(panel, row)
            if shown:
                lines.setdefault(curve_of[row["series"]], []).extend(shown)
    return lines


def _spread(panel: Panel, row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each of the panel's measures that this one has: 1, 2, … along the axis."""
    return [
        {panel.x: at, SIDE_BY_SIDE: row[name], f"{SIDE_BY_SIDE}_ci": row.get(f"{name}_ci")}
        for at, name in enumerate(panel.measures, 1)
        if row.get(name) is not None
    ]


def _text(
    experiment: Experiment,
    rows: Sequence[dict[str, Any]],
    claims: Sequence[Judged],
    size: Size,
    seeds: int,
    characters: int,
) -> str:
    """Return what stands below the panels."""
    runs = f"{seeds} seeds, bars of 95 %" if seeds > 1 else "one seed"
    if size.messages:
        runs = f"{size.messages:,} messages after {size.warm_up:,}, {runs}"
    lines = [fill("; ".join([runs, *experiment.notes]), characters)]
    lines += [
        fill(each, characters, subsequent_indent="    ") for each in _charges(experiment, rows)
    ]
    lines.append("")
    for judged in claims:
        sign = {True: "holds", False: "does not hold", None: "not judged"}[judged.holds]
        text = f"{sign}: {judged.claim} — paper: {judged.paper} — ours: {judged.ours}"
        lines.append(fill(text, characters, subsequent_indent="    "))
    return "\n".join(lines)


def _charges(experiment: Experiment, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a sentence a series with what was charged for computation, where it was measured."""
    given = {each.label for each in experiment.series if "cpu_send_us" in each.set}
    told: dict[str, list[str]] = {}
    for row in rows:
        if row.get("charged_send_us") and row["series"] not in given:
            cost = f"{row['charged_send_us']:.0f} + {row['charged_receive_us']:.0f}"
            at = f"{experiment.picture.x}={row[experiment.picture.x]:g}"
            told.setdefault(row["series"], []).append(f"{at}: {cost}")
    return [
        f"{series}, charged µs a send + a copy received: {', '.join(dict.fromkeys(some))}"
        for series, some in told.items()
    ]
