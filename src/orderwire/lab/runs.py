"""From an experiment to its results: plan, sweep, table, claims, figure."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace

from orderwire.lab.claims import Judged, judge_claims
from orderwire.lab.config import CALIBRATION_SEEDS, Config, Row, code_version, run_spec
from orderwire.lab.experiment import Experiment
from orderwire.lab.picture import draw
from orderwire.lab.table import Sample, tidy
from orderwire.report.style import save

ROWS = "rows"
CALIBRATION = "calibration"
"""Where the runs are kept that measure what computation costs: the same in every later run."""

Costs: TypeAlias = Mapping[str, tuple[float, float]]
"""By the name of a rehearsal: µs a send, µs a copy received."""


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
    experiment: Experiment,
    folder: Path,
    *,
    quick: bool,
    seeds: int | None,
    called: str | None = None,
) -> list[Planned]:
    """Return every run of the experiment.  The same seed meets every algorithm with the same work.

    What computation costs is taken from the calibration in `folder`.  `called` is what the command
    line calls the experiment: its name, or its file.
    """
    version = code_version(experiment.family)
    costs = _costs(experiment, folder, version)
    planned = []
    for series, point, config in experiment.points(quick=quick):
        options = [f"--seeds {seeds}"] if seeds else []
        options += ["--quick"] if quick else []
        if isinstance(config, Config) and config.uncalibrated:
            options += [f"--folder {shlex.quote(str(folder))}"]
            cost = costs.get(Row(config=config.rehearsal(), seed=1).name)
            if cost is not None:
                config = replace(config, cpu_send_us=cost[0], cpu_receive_us=cost[1])
        for seed in range(1, (seeds or experiment.size(quick=quick).seeds) + 1):
            row = Row(config=config, seed=seed)
            replay = f"orderwire lab replay {called or experiment.name} --row {row.name}"
            planned.append(
                Planned(
                    row=row,
                    key=f"{row.name}-{version}",
                    series=series.label,
                    point=point,
                    replay=" ".join([replay, *options]),
                )
            )
    return planned


def _rehearsals(experiment: Experiment, *, quick: bool) -> list[Row]:
    configs = [
        config
        for _, _, config in experiment.points(quick=quick)
        if isinstance(config, Config) and config.uncalibrated
    ]
    seeds = range(1, CALIBRATION_SEEDS + 1)
    rows = [Row(config=config.rehearsal(), seed=seed) for config in configs for seed in seeds]
    return list({row.name: row for row in rows}.values())


def _costs(experiment: Experiment, folder: Path, version: str) -> Costs:
    """Return what the calibration of this code found, the median of its seeds."""
    from orderwire.pipeline.sweep import results

    found: dict[str, list[dict[str, float]]] = {}
    for each in results(folder / experiment.name / CALIBRATION):
        if each.status == "ok" and each.key.endswith(f"-{version}"):
            config = msgspec.json.decode(each.spec, type=Row).config
            measures = msgspec.json.decode(each.result, type=dict[str, float])
            found.setdefault(Row(config=config, seed=1).name, []).append(measures)
    return {
        name: (
            round(median(each["send_cpu_us"] for each in some), 1),
            round(median(each["receive_cpu_us"] for each in some), 1),
        )
        for name, some in found.items()
    }


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
    from orderwire.pipeline.sweep import sweep

    place, limit_s = folder / experiment.name, experiment.size(quick=quick).limit_s
    if rehearsals := _rehearsals(experiment, quick=quick):
        version = code_version(experiment.family)
        work = [_work(row, f"{row.name}-{version}", "") for row in rehearsals]
        measured = f"{CALIBRATION}: "
        sweep(
            spark,
            work,
            run_spec,
            place / CALIBRATION,
            limit_s=limit_s,
            tell=lambda text: tell(measured + text),
        )
    planned = plan(experiment, folder, quick=quick, seeds=seeds, called=called)
    rows = {each.key: _work(each.row, each.key, each.replay) for each in planned}
    sweep(spark, list(rows.values()), run_spec, place / ROWS, limit_s=limit_s, tell=tell)
    return plot(experiment, folder, quick=quick, seeds=seeds, called=called)


def _work(row: Row, key: str, replay: str) -> Any:
    from orderwire.pipeline.sweep import Work

    spec = msgspec.json.encode(row).decode()
    return Work(key=key, spec=spec, cost=row.config.cost, replay=replay)


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
    found = {each.key: each for each in results(place / ROWS)}
    samples, failed = [], []
    for each in plan(experiment, folder, quick=quick, seeds=seeds, called=called):
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
