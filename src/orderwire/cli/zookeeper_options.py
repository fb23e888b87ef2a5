"""Options for an ensemble that asks for TLS, a certificate, or a user."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from orderwire.aio.zookeeper_access import ZookeeperAccess
from orderwire.cli.protection import FILE
from orderwire.kernel import LocalProtocolError


class ZookeeperOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the options say."""

    zookeeper_ca: Path | None
    zookeeper_cert: Path | None
    zookeeper_key: Path | None
    zookeeper_user: Path | None

    def access(self) -> ZookeeperAccess | None:
        """Return what they name; None when they name nothing.  Raises LocalProtocolError."""
        named = (self.zookeeper_ca, self.zookeeper_cert, self.zookeeper_key, self.zookeeper_user)
        if all(each is None for each in named):
            return None
        digest = None
        if self.zookeeper_user is not None:
            try:
                digest = self.zookeeper_user.read_text().strip()
            except (OSError, UnicodeDecodeError) as error:
                raise LocalProtocolError(
                    f"--zookeeper-user {self.zookeeper_user}: {error}"
                ) from None
        return ZookeeperAccess(
            ca=self.zookeeper_ca, cert=self.zookeeper_cert, key=self.zookeeper_key, digest=digest
        )


def zookeeper_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of `ZookeeperOptions`."""
    for option in (
        click.option(
            "--zookeeper-user",
            type=FILE,
            help="A file with USER:PASSWORD for the ensemble; what is made is that user's alone.",
        ),
        click.option("--zookeeper-key", type=FILE, help="PEM: the certificate's key."),
        click.option(
            "--zookeeper-cert", type=FILE, help="PEM: our certificate, if the ensemble wants one."
        ),
        click.option(
            "--zookeeper-ca", type=FILE, help="PEM: the CA of the ensemble; turns TLS to it on."
        ),
    ):
        command = option(command)
    return command
