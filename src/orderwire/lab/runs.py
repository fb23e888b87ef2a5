"""From an experiment to its results: plan, sweep, table, claims, figure."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from orderwire.lab.claims import Judged, judge_claims
from orderwire.lab.config import Row, code_version, run_spec
from orderwire.lab.experiment import Experiment
from orderwire.lab.picture import draw
from orderwire.lab.table import Sample, tidy
from orderwire.report.style import save

ROWS = "rows"


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """One row of work, and where it belongs in the figure."""

    row: Row
    key: str
    series: str
    point: dict[str, Any]
    replay: str


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """What `orderwire lab run` prints of one figure."""

    figure: str
    quick: bool
    seeds: int
    rows: list[dict[str, Any]]
    claims: list[Judged]
    failed: list[dict[str, Any]]
    """Runs without a result: what happened, and the line that does it again."""
    files: list[str]


def plan(
    experiment: Experiment, *, quick: bool, seeds: int | None, called: str | None = None
) -> list[Planned]:
    """Return every run of the experiment.  The same seed meets every algorithm with the same work.

    `called` is what the command line calls it: its name, or its file.
    """
    version = code_version()
    names = list(experiment.grid)
    planned = []
    for series, config in experiment.points(quick=quick):
        given = msgspec.to_builtins(config)
        point = {name: given[name] for name in names}
        for seed in range(1, (seeds or experiment.size(quick=quick).seeds) + 1):
            row = Row(config=config, seed=seed)
            replay = f"orderwire lab replay {called or experiment.name} --row {row.name}"
            replay += f" --seeds {seeds}" if seeds else ""
            planned.append(
                Planned(
                    row=row,
                    key=f"{row.name}-{version}",
                    series=series.label,
                    point=point,
                    replay=replay + (" --quick" if quick else ""),
                )
            )
    return planned


def run(
    spark: Any,
    experiment: Experiment,
    folder: Path,
    *,
    quick: bool,
    seeds: int | None = None,
    called: str | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> Figure:
    """Run what has no result yet, on this Spark session; then write table and figure."""
    from orderwire.pipeline.sweep import Work, sweep

    planned = plan(experiment, quick=quick, seeds=seeds, called=called)
    work = {
        each.key: Work(
            key=each.key,
            spec=msgspec.json.encode(each.row).decode(),
            cost=each.row.config.cost,
            replay=each.replay,
        )
        for each in planned
    }
    place = folder / experiment.name
    limit_s = experiment.size(quick=quick).limit_s
    sweep(spark, list(work.values()), run_spec, place / ROWS, limit_s=limit_s, tell=tell)
    return plot(experiment, folder, quick=quick, seeds=seeds, called=called)


def plot(
    experiment: Experiment,
    folder: Path,
    *,
    quick: bool,
    seeds: int | None = None,
    called: str | None = None,
) -> Figure:
    """Write table and figure from the results that are there."""
    from orderwire.pipeline.sweep import results

    place = folder / experiment.name
    found = {each.key: each for each in results(place / ROWS)} if place.is_dir() else {}
    samples, failed = [], []
    for each in plan(experiment, quick=quick, seeds=seeds, called=called):
        got = found.get(each.key)
        if got is None:
            failed.append({"series": each.series, **each.point, "status": "missing"})
        elif got.status != "ok":
            failed.append(
                {"series": each.series, **each.point, "seed": each.row.seed}
                | {"status": got.status, "error": got.error, "replay": got.replay}
            )
        else:
            samples.append(
                Sample(
                    series=each.series,
                    algorithm=each.row.config.algorithm,
                    point=each.point,
                    seed=each.row.seed,
                    measures=msgspec.json.decode(got.result, type=dict[str, float]),
                )
            )
    size = experiment.size(quick=quick)
    count = seeds or size.seeds
    rows = tidy(samples)
    claims = judge_claims(experiment, samples)
    name = f"{experiment.name}-quick" if quick else experiment.name
    files = [_write(rows, place / f"{name}.parquet")] if rows else []
    if rows:
        files += save(draw(experiment, rows, claims, size, count, quick=quick), place, name)
    return Figure(
        figure=experiment.name,
        quick=quick,
        seeds=count,
        rows=rows,
        claims=claims,
        failed=failed,
        files=[str(path) for path in files],
    )


def _write(rows: Sequence[dict[str, Any]], path: Path) -> Path:
    names = dict.fromkeys(name for row in rows for name in row)
    table = pa.Table.from_pylist([{name: row.get(name) for name in names} for row in rows])
    pq.write_table(table, path)
    return path
