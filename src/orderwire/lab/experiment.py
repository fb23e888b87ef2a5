"""An experiment: one figure, as a TOML file says it."""

from collections.abc import Iterable, Iterator, Mapping
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from orderwire.kernel.parsing import UNREADABLE
from orderwire.lab.config import FAMILIES, AnyConfig
from orderwire.lab.discovery_config import PROTOCOLS
from orderwire.lab.replication_config import MODES
from orderwire.ordering.catalog import ALGORITHMS
from orderwire.ordering.total.catalog import ALGORITHMS as TOTAL_ORDERS

NAMED: Mapping[str, tuple[str, Iterable[str]]] = {
    "ordering": ("algorithm", ALGORITHMS),
    "discovery": ("protocol", PROTOCOLS),
    "replication": ("mode", MODES),
    "total-order": ("protocol", TOTAL_ORDERS),
}
"""What a series of each family names."""


class Series(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One curve: an algorithm with its settings."""

    label: str
    algorithm: str
    """Or a protocol of discovery or of total order, or a mode of replication."""
    curve: str = ""
    """What the legend calls it; series of the same curve have the same colour.  Empty: label."""
    set: dict[str, Any] = {}
    """Parameters that differ from the figure's."""
    follow: dict[str, str] = {}
    """Parameters that take the value of a parameter of the grid."""
    where: dict[str, list[Any]] = {}
    """Points of the grid at which it runs; empty: all."""


class Size(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long a run is, and how often it is repeated."""

    messages: int = 0
    """Measured, of all processes together; of ordering only, like `warm_up`."""
    warm_up: int = 0
    seeds: int
    limit_s: float = 900.0
    """A run that takes longer is ended, in seconds."""
    grid: dict[str, list[Any]] = {}
    """In place of the figure's."""
    also: list[dict[str, list[Any]]] | None = None
    """In place of the figure's."""


class Panel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One pair of axes."""

    measure: str = ""
    measures: list[str] = []
    """In place of one: several of the same points, side by side along the axis."""
    title: str = ""
    """Empty: the measure's."""
    log_y: bool | None = None
    """None: as the picture."""
    x: str = ""
    """The parameter along the axis; empty: the picture's."""
    x_label: str = ""
    at: dict[str, Any] = {}
    """Parameters that select the points; empty: all."""
    curves: list[str] = []
    """Series, by label; empty: all."""


class Picture(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is drawn."""

    x: str
    """The parameter along the axes."""
    panels: list[str | Panel]
    """Measures, or panels."""
    x_label: str
    columns: int = 0
    """Panels in a row; 0: all."""
    even: bool = False
    """Whether the values along the axis stand at even distances."""
    names: dict[str, str] = {}
    """What stands below an even axis in place of a value."""
    log_x: bool = False
    log_y: bool = False

    def each(self) -> list[Panel]:
        """Return the panels, in full."""
        panels = [Panel(measure=each) if isinstance(each, str) else each for each in self.panels]
        return [
            replace(panel, x=panel.x or self.x, x_label=panel.x_label or self.x_label)
            for panel in panels
        ]


class Claim(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something that a paper, or we, say; judged from the results alone.

    ratio: `measure` of `left` over that of `right` lies within `least` … `most` at every point.
    growth: `measure` of `left` grows with x to a power within `least` … `most`.
    value: `measure` of `left` lies within `least` … `most` at every point.
    """

    claim: str
    paper: str
    """What the paper says; for our own claims, where the number comes from."""
    kind: Literal["ratio", "growth", "value"]
    measure: str
    left: str
    right: str = ""
    at: dict[str, Any] = {}
    """Parameters that select the points; empty: all."""
    least: float = 0.0
    most: float = float("inf")
    remark: str = ""


class Experiment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One figure."""

    name: str
    title: str
    paper: str
    family: Literal["ordering", "discovery", "replication", "total-order"] = "ordering"
    """What the series are: algorithms for ordering, protocols of discovery or of total order, or
    modes of replication."""
    notes: list[str] = []
    """Parameters and departures, printed below the figure."""
    base: dict[str, Any] = {}
    grid: dict[str, list[Any]]
    """Values of each parameter: a run for each of their combinations."""
    also: list[dict[str, list[Any]]] = []
    """More grids, each with the first value of every parameter that it leaves out."""
    full: Size
    quick: Size
    series: list[Series]
    picture: Picture
    claims: list[Claim] = []

    def size(self, *, quick: bool) -> Size:
        """How long the runs are."""
        return self.quick if quick else self.full

    def points(self, *, quick: bool) -> Iterator[tuple[Series, dict[str, Any], AnyConfig]]:
        """Yield every series at every point of the grids, with that point."""
        size = self.size(quick=quick)
        grid = self.grid | size.grid
        first = {name: values[:1] for name, values in grid.items()}
        points: list[dict[str, Any]] = []
        for more in [grid, *(self.also if size.also is None else size.also)]:
            if strange := more.keys() - grid.keys():
                raise ValueError(f"the grid does not have {', '.join(sorted(strange))}")
            for values in product(*(first | more).values()):
                point = dict(zip(grid, values, strict=True))
                points += [point] if point not in points else []
        for point, series in product(points, self.series):
            if all(point.get(name) in some for name, some in series.where.items()):
                given = self.base | point | series.set
                given |= {name: point[of] for name, of in series.follow.items()}
                if self.family == "ordering":
                    given |= {"messages": size.messages, "warm_up": size.warm_up}
                given["algorithm"] = series.algorithm
                config: AnyConfig = msgspec.convert(given, FAMILIES[self.family])
                config.check()
                yield series, point, config


def read_experiment(data: bytes, called: str) -> Experiment:
    """Read one.  Raises ValueError that says what is wrong."""
    try:
        experiment = msgspec.toml.decode(data, type=Experiment)
        ordering = experiment.family == "ordering"
        what, known = NAMED[experiment.family]
        for series in experiment.series:
            if series.algorithm not in known:
                raise ValueError(
                    f"{called}: series {series.label!r} names the {what} {series.algorithm!r}; "
                    f"there are {', '.join(known)}"
                )
        for size in (experiment.full, experiment.quick):
            if ordering != bool(size.messages):
                raise ValueError(
                    f"{called}: {size.messages} messages in a figure about {experiment.family}; "
                    "those about ordering have some, the others none"
                )
        labels = [series.label for series in experiment.series]
        if len(set(labels)) != len(labels):
            raise ValueError(f"{called}: two series have the same label")
        for claim in experiment.claims:
            for label in filter(None, (claim.left, claim.right)):
                if label not in labels:
                    raise ValueError(
                        f"{called}: claim {claim.claim!r} names the series {label!r}; "
                        f"there are {', '.join(labels)}"
                    )
            if (claim.kind == "ratio") != bool(claim.right):
                raise ValueError(f"{called}: claim {claim.claim!r}: a ratio has a left and a right")
        for panel in experiment.picture.each():
            for label in panel.curves:
                if label not in labels:
                    raise ValueError(f"{called}: a panel names the series {label!r}")
            if bool(panel.measure) == bool(panel.measures):
                raise ValueError(f"{called}: a panel has either a measure or several measures")
        for quick in (False, True):
            list(experiment.points(quick=quick))
    except UNREADABLE as error:
        raise ValueError(f"{called} is no experiment: {error}") from None
    return experiment


def folder_of_experiments() -> Path:
    """Return where the experiments are: in the package, or beside it in a working copy."""
    packed = Path(str(files("orderwire.lab") / "experiments"))
    return packed if packed.is_dir() else Path(__file__).parents[3] / "experiments"


def experiments() -> dict[str, Path]:
    """Return the files of all experiments by name."""
    return {path.stem: path for path in sorted(folder_of_experiments().glob("*.toml"))}


def find_experiment(name: str) -> Experiment:
    """Return the experiment of this name, or in this file.  Raises ValueError."""
    known = experiments()
    path = known.get(name) or Path(name)
    if path.suffix != ".toml" or not path.is_file():
        raise ValueError(f"no experiment {name!r}; there are {', '.join(known)}, or FILE.toml")
    return read_experiment(path.read_bytes(), path.name)
