"""Where things are printed: results on stdout, progress on stderr."""

import sys
from typing import Any

import click
import msgspec

EXIT_GOOD = 0
EXIT_FAILED = 1
"""A violation was found, or the work failed."""
EXIT_USAGE = 2


def emit_json(result: Any) -> None:
    """Print one JSON object on stdout, and nothing else."""
    sys.stdout.write(msgspec.json.encode(result).decode() + "\n")
    sys.stdout.flush()


def emit(text: str) -> None:
    """Print a line of the result on stdout."""
    click.echo(text)


def progress(text: str) -> None:
    """Tell a person how far the work is, on stderr."""
    click.echo(text, err=True)
