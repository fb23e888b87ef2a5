"""What every command that runs on Spark shares: its session, and how it fails."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from orderwire.cli.output import EXIT_FAILED, progress

MASTER = click.option("--master", default="local[2]", show_default=True, help="Spark's master.")
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@contextmanager
def session(name: str, master: str) -> Iterator[Any]:
    """Start a SparkSession for a command; end the command with one sentence when the work fails.

    Raises click.UsageError (exit status 2) for what can be mended by asking otherwise.
    """
    from orderwire.pipeline.failures import FAILURES, MISUSED, cause_of
    from orderwire.pipeline.session import SessionSettings, spark_session

    progress("starting Spark …")
    try:
        with spark_session(SessionSettings(name=f"orderwire-{name}", master=master)) as spark:
            yield spark
    except KeyboardInterrupt:
        progress("interrupted")
        sys.exit(130)
    except FAILURES as error:
        kind, sentence = cause_of(error)
        if kind in MISUSED:
            raise click.UsageError(sentence) from error
        progress(f"failed: {sentence} ({kind})")
        sys.exit(EXIT_FAILED)
