"""How every figure looks, and how it is written: the same bytes in every run."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib.figure import Figure

INK = "#22272e"
GREY = "#9aa4ae"
ORDERED = "#1f6feb"
CONTROL = "#d1582b"
ALARM = "#cf222e"
SERIES = ("#1f6feb", "#d1582b", "#2da44e", "#8250df", "#bf8700", "#57606a")

_STYLE: dict[Any, Any] = {
    "figure.dpi": 110,
    "font.size": 9.5,
    "font.family": "DejaVu Sans",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.grid": True,
    "grid.color": "#e7ebef",
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "svg.hashsalt": "orderwire",
    "svg.fonttype": "path",
}


def styled() -> AbstractContextManager[None]:
    """Return a context in which figures are drawn in the house style."""
    return mpl.rc_context(_STYLE)


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write `name`.svg and `name`.png, without a date, and return both paths."""
    folder.mkdir(parents=True, exist_ok=True)
    svg, png = folder / f"{name}.svg", folder / f"{name}.png"
    with styled():
        figure.savefig(svg, metadata={"Date": None, "Creator": None}, bbox_inches="tight")
        figure.savefig(png, metadata={"Software": None}, bbox_inches="tight", dpi=144)
    return [svg, png]
