"""Options of whatever listens: TLS files of the domain, or the word that none is wanted."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from orderwire.aio.addresses import is_loopback, split_address
from orderwire.aio.discovery_tls import Credentials
from orderwire.kernel import LocalProtocolError

FILE = click.Path(path_type=Path, dir_okay=False, exists=True)


def protected(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --tls-cert, --tls-key, --tls-ca and --insecure."""
    for option in (
        click.option("--insecure", is_flag=True, help="Listen beyond this machine without TLS."),
        click.option("--tls-ca", type=FILE, help="PEM: the CA of the domain's members."),
        click.option("--tls-key", type=FILE, help="PEM: the certificate's key."),
        click.option("--tls-cert", type=FILE, help="PEM: our certificate; turns mutual TLS on."),
    ):
        command = option(command)
    return command


def check_listen(listen: str, *, is_protected: bool) -> None:
    """Refuse to listen beyond this machine without protection.  Raises click.UsageError."""
    try:
        host, _ = split_address(listen)
    except LocalProtocolError as error:
        raise click.UsageError(f"--listen: {error}") from None
    if not is_protected and not is_loopback(host):
        raise click.UsageError(
            f"--listen {listen} is reachable from other machines, and without TLS this listener"
            " neither encrypts nor authenticates: listen on 127.0.0.1, give --tls-cert, --tls-key"
            " and --tls-ca, or say --insecure"
        )


def credentials(
    cert: Path | None, key: Path | None, ca: Path | None, *, options: str = "--tls"
) -> Credentials | None:
    """Return what the options name; None when they name nothing.

    Raises click.UsageError when they name a part of it, LocalProtocolError when files do not fit.
    """
    if cert is None and key is None and ca is None:
        return None
    if cert is None or key is None or ca is None:
        raise click.UsageError(
            f"{options}-cert, {options}-key and {options}-ca belong together: give all three"
        )
    return Credentials.load(cert=cert, key=key, ca=ca)
