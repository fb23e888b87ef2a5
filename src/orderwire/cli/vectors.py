"""`orderwire vectors`: replay worked scenarios through the algorithms of the catalog."""

import sys
from pathlib import Path

import click

from orderwire.cli.output import EXIT_FAILED, emit, emit_json, progress
from orderwire.sim.vectors import check_paths


@click.command()
@click.argument(
    "paths",
    nargs=-1,
    required=True,
    metavar="PATH…",
    type=click.Path(exists=True, path_type=Path),
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(paths: tuple[Path, ...], as_json: bool) -> None:
    """Replay scenario files, or all of a folder, and compare with what they expect.

    \b
    Example: orderwire vectors tests/vectors/causal --json
    """
    report = check_paths(list(paths))
    if as_json:
        emit_json(report)
    else:
        for file, verdict in report.verdicts.items():
            emit(f"{verdict:11}  {file}")
        for failure in report.failed:
            emit(f"FAILED  {failure.file}  {failure.algorithm}: {failure.why}")
        for part in report.not_covered:
            progress(f"not covered  {part.file}  {part.expectation}: {part.why}")
        emit(f"{report.files} files, {report.checks} checks, {report.passed} passed")
    if report.failed:
        sys.exit(EXIT_FAILED)
