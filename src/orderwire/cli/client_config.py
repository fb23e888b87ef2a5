"""--client-config: how commands that read or write topics pass the brokers' TLS and SASL."""

import stat
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orderwire.cli.cluster_options import pairs
from orderwire.cli.protection import FILE

if TYPE_CHECKING:
    from orderwire.pipeline.named_source import Named


def _read(context: click.Context, _: click.Parameter, path: Path | None) -> dict[str, str]:
    """Read a client's settings.  Raises click.UsageError."""
    if path is None:
        return {}
    lines = [line.strip() for line in path.read_text("utf-8").splitlines()]
    found = pairs([line for line in lines if line and line[0] != "#"], f"--client-config {path}")
    found = {key.strip(): value.strip() for key, value in found.items()}
    others = path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    if others and any(key.endswith("password") for key in found):
        raise click.UsageError(
            f"--client-config {path} holds a password, and others may read it: chmod 600", context
        )
    return found


CLIENT_CONFIG = click.option(
    "--client-config",
    type=FILE,
    callback=_read,
    help="Lines KEY=VALUE, librdkafka's: how to pass the brokers' TLS and SASL.",
)


def named(source: str, client_config: dict[str, str]) -> "Named":
    """Tell what a SOURCE names; a topic is read with these settings.  Raises TraceError."""
    from orderwire.pipeline.named_source import named_source

    return named_source(source, client_config)
