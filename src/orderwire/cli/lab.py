"""`orderwire lab`: run the papers' evaluations again, on Spark."""

import re
from pathlib import Path

import click

from orderwire.cli.output import EXIT_FAILED, emit, emit_json, progress
from orderwire.cli.spark import JSON, session
from orderwire.lab.config import run_row
from orderwire.lab.experiment import Experiment, experiments, find_experiment
from orderwire.lab.runs import Figure, plan, plot, run

_HOLDS = {True: "holds", False: "does not hold", None: "not judged"}
_quick = click.option("--quick", is_flag=True, help="Shorter runs, fewer points and seeds.")
_seeds = click.option("--seeds", type=click.IntRange(min=1), help="Repeat each run so often.")
_folder = click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("lab"),
    show_default=True,
    help="Where results and figures are kept; what is there is not run again.",
)
_names = click.argument("names", nargs=-1, required=True, metavar="NAME…")


@click.group()
def command() -> None:
    """Run the papers' evaluations again, each figure from one TOML file.

    \b
    Example: orderwire lab run s000-fig4 --quick
             orderwire lab plot s000-fig4 --quick
    """


def _find(name: str) -> Experiment:
    try:
        return find_experiment(name)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


@command.command("list")
@JSON
def list_experiments(as_json: bool) -> None:
    """List the experiments.  Example: orderwire lab list"""
    titles = {name: _find(name).title for name in experiments()}
    if as_json:
        emit_json(titles)
        return
    width = max(map(len, titles)) + 2
    for name, title in titles.items():
        emit(f"{name:<{width}}{title}")


@command.command("run")
@_names
@_quick
@_seeds
@_folder
@click.option(
    "--master",
    default="local[*,3]",
    show_default=True,
    help="Spark's master; here: all cores, a task whose worker is killed is tried three times.",
)
@JSON
def run_experiments(
    names: tuple[str, ...],
    quick: bool,
    seeds: int | None,
    folder: Path,
    master: str,
    as_json: bool,
) -> None:
    """Run experiments, or go on with them; write Parquet tables and figures.

    Exit status 1 when a run failed; whether a claim holds does not matter.
    Example: orderwire lab run s000-fig4 s000-fig5 --quick
    """
    wanted = [(name, _find(name)) for name in names]
    done = []
    with session("lab", master) as spark:
        for name, experiment in wanted:

            def tell(text: str, name: str = experiment.name) -> None:
                progress(f"{name}: {text}")

            done.append(
                run(spark, experiment, folder, quick=quick, seeds=seeds, called=name, tell=tell)
            )
    _show(done, as_json)


@command.command("plot")
@_names
@_quick
@_seeds
@_folder
@JSON
def plot_experiments(
    names: tuple[str, ...], quick: bool, seeds: int | None, folder: Path, as_json: bool
) -> None:
    """Draw figures again from the results that are there, without Spark.

    Example: orderwire lab plot s000-fig4 --quick
    """
    done = [plot(_find(name), folder, quick=quick, seeds=seeds, called=name) for name in names]
    _show(done, as_json)


@command.command("replay")
@click.argument("name")
@click.option("--row", required=True, help="Which run: the name in its replay line.")
@_quick
@_seeds
@_folder
def replay(name: str, row: str, quick: bool, seeds: int | None, folder: Path) -> None:
    """Do one run again, in this process and without a time limit.  Prints its measures.

    Example: orderwire lab replay s000-fig4 --row 0123456789abcdef --quick
    """
    for each in plan(_find(name), folder, quick=quick, seeds=seeds):
        if each.row.name == row:
            emit_json(run_row(each.row))
            return
    raise click.UsageError(f"{name} has no run {row!r}; its options must be as they were")


def _show(done: list[Figure], as_json: bool) -> None:
    if as_json:
        emit_json({"figures": done})
    else:
        for figure in done:
            emit(f"\n{figure.figure}{' (quick version)' if figure.quick else ''}")
            for judged in figure.claims:
                emit(f"  {_HOLDS[judged.holds]:<14}{judged.claim}")
                emit(f"{'':16}paper: {judged.paper}")
                emit(f"{'':16}ours:  {judged.ours}")
                emit(f"{'':16}why:   {judged.why}")
            for failed in figure.failed:
                emit(f"  {re.sub(r'[{}]', '', str(failed))}")
            for path in figure.files:
                emit(f"  {path}")
    if any(figure.failed for figure in done):
        raise SystemExit(EXIT_FAILED)
