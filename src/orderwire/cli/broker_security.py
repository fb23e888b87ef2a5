"""Options of a broker about who its clients are and what they may."""

import ssl
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from orderwire.broker.security.credentials import Mechanism, check_user, prepared
from orderwire.broker.security.guard import SecuritySettings
from orderwire.cli.protection import FILE
from orderwire.kernel import LocalProtocolError

_USERS_FILE_BYTES_MAX = 1 << 20


class SecurityOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the options say."""

    tls_cert: Path | None
    tls_key: Path | None
    sasl: tuple[str, ...]
    users: Path | None
    authorize: bool
    super_user: tuple[str, ...]
    allow_without_acl: bool

    def tls(self) -> ssl.SSLContext | None:
        """Return how connections are encrypted; None: not at all.

        Raises click.UsageError, and LocalProtocolError when files do not fit.
        """
        if self.tls_cert is None and self.tls_key is None:
            return None
        if self.tls_cert is None or self.tls_key is None:
            raise click.UsageError("--tls-cert and --tls-key belong together")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.tls_cert, self.tls_key)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            files = f"{self.tls_cert} and {self.tls_key}"
            raise LocalProtocolError(f"TLS files {files}: {error}") from error
        return context

    @property
    def is_protected(self) -> bool:
        """Whether strangers learn nothing: encrypted, and asked who they are."""
        return self.tls_cert is not None and bool(self.sasl)

    def settings(self) -> SecuritySettings | None:
        """Return what is demanded; None: nothing.  Raises click.UsageError."""
        if self.allow_without_acl and not self.authorize:
            raise click.UsageError("--allow-without-acl goes with --authorize")
        if not self.sasl:
            if self.authorize or self.users is not None or self.super_user:
                raise click.UsageError("--authorize, --users and --super-user go with --sasl")
            return None
        mechanisms = tuple(Mechanism(name) for name in self.sasl)
        if Mechanism.PLAIN in mechanisms and self.tls_cert is None:
            raise click.UsageError(
                "--sasl PLAIN sends passwords as they are: it goes with --tls-cert and --tls-key"
            )
        for principal in self.super_user:
            kind, _, name = principal.partition(":")
            if kind != "User" or not name:
                raise click.UsageError(f"--super-user is {principal!r}; expected User:NAME")
        return SecuritySettings(
            mechanisms=mechanisms,
            authorize=self.authorize,
            super_users=self.super_user,
            allow_without_acl=self.allow_without_acl,
        )

    def accounts(self) -> dict[str, str]:
        """Return the users of the file with their passwords.  Raises click.UsageError."""
        if self.users is None:
            return {}
        found: dict[str, str] = {}
        where = f"--users {self.users}"
        if self.users.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise click.UsageError(f"{where} holds passwords, and others may read it: chmod 600")
        if self.users.stat().st_size > _USERS_FILE_BYTES_MAX:
            raise click.UsageError(f"{where} is longer than {_USERS_FILE_BYTES_MAX} bytes")
        for number, line in enumerate(self.users.read_text("utf-8").splitlines(), 1):
            if not line.strip() or line.startswith("#"):
                continue
            name, equals, password = line.partition("=")
            if not equals:
                raise click.UsageError(f"{where}, line {number}: expected NAME=PASSWORD")
            try:
                check_user(name)
                prepared(password)
                found[name] = password
            except LocalProtocolError as error:
                raise click.UsageError(f"{where}, line {number}: {error}") from None
        return found


def security_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of `SecurityOptions`."""
    for option in (
        click.option(
            "--allow-without-acl", is_flag=True, help="What no ACL speaks of is everybody's."
        ),
        click.option("--super-user", multiple=True, metavar="User:NAME", help="May do everything."),
        click.option(
            "--authorize",
            is_flag=True,
            help="Let ACLs decide: what none allows is forbidden.",
        ),
        click.option(
            "--users",
            type=FILE,
            help="Lines NAME=PASSWORD: these users are set at the start, at all brokers.",
        ),
        click.option(
            "--sasl",
            multiple=True,
            type=click.Choice([each.value for each in Mechanism]),
            help="Ask clients who they are; may be given several times.",
        ),
        click.option("--tls-key", type=FILE, help="PEM: the certificate's key."),
        click.option("--tls-cert", type=FILE, help="PEM: our certificate; clients come by TLS."),
    ):
        command = option(command)
    return command


def security_of(options: dict[str, Any]) -> SecurityOptions:
    """Take the options about security out of a command's."""
    return SecurityOptions(
        **{name: options.pop(name) for name in SecurityOptions.__struct_fields__}
    )
