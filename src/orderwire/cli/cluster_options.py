"""Options of a broker that is a member of a cluster."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from orderwire.aio.addresses import split_address
from orderwire.aio.cluster_member import ClusterOptions
from orderwire.aio.history_options import HistoryOptions
from orderwire.aio.zookeeper_access import SESSION_MS_MIN
from orderwire.cli.protection import FILE, credentials
from orderwire.cli.zookeeper_options import ZookeeperOptions, zookeeper_options
from orderwire.kernel import NS_PER_MS


def pairs(texts: Sequence[str], option: str) -> dict[str, str]:
    """Split KEY=VALUE.  Raises click.UsageError."""
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise click.UsageError(f"{option} is {text!r}; expected KEY=VALUE")
        found[key] = value
    return found


_MEMBERS_ONLY = (
    "zookeeper_ca",
    "zookeeper_cert",
    "zookeeper_key",
    "zookeeper_user",
    "internal_advertise",
    "internal_cert",
    "internal_key",
    "internal_ca",
    "history_topic",
    "history_client",
)
"""What says nothing to a broker that is alone."""


class MemberOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the options say."""

    zookeeper: str | None
    zookeeper_ca: Path | None
    zookeeper_cert: Path | None
    zookeeper_key: Path | None
    zookeeper_user: Path | None
    session_ms: int
    internal_listen: str
    internal_advertise: str | None
    internal_cert: Path | None
    internal_key: Path | None
    internal_ca: Path | None
    history_topic: str | None
    history_client: tuple[str, ...]

    def joined(self, *, insecure: bool) -> ClusterOptions | None:
        """Return how to join; None when the broker stays alone.

        Raises LocalProtocolError and click.UsageError.
        """
        if self.zookeeper is None:
            alone = [name for name in _MEMBERS_ONLY if getattr(self, name)]
            if alone:
                raise click.UsageError(f"--{alone[0].replace('_', '-')} goes with --zookeeper")
            return None
        host, port = split_address(self.internal_listen)
        return ClusterOptions(
            zookeeper=self.zookeeper,
            session_ns=self.session_ms * NS_PER_MS,
            access=ZookeeperOptions(
                zookeeper_ca=self.zookeeper_ca,
                zookeeper_cert=self.zookeeper_cert,
                zookeeper_key=self.zookeeper_key,
                zookeeper_user=self.zookeeper_user,
            ).access(),
            internal_host=host,
            internal_port=port,
            internal_advertised=(
                None if self.internal_advertise is None else split_address(self.internal_advertise)
            ),
            internal_tls=credentials(
                self.internal_cert, self.internal_key, self.internal_ca, options="--internal"
            ),
            insecure=insecure,
            history=(
                None
                if self.history_topic is None
                else HistoryOptions(
                    topic=self.history_topic,
                    client=pairs(self.history_client, "--history-client"),
                )
            ),
        )


def member_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of `MemberOptions`."""
    for option in (
        click.option(
            "--history-client",
            multiple=True,
            metavar="KEY=VALUE",
            help="Of librdkafka: how to pass our own listener's TLS and SASL.",
        ),
        click.option(
            "--history-topic",
            metavar="NAME",
            help="In a cluster: write what happens to our replicas into this topic, for the audit.",
        ),
        click.option("--internal-ca", type=FILE, help="PEM: the CA of the cluster's brokers."),
        click.option("--internal-key", type=FILE, help="PEM: the certificate's key."),
        click.option(
            "--internal-cert", type=FILE, help="PEM: our certificate between brokers: mutual TLS."
        ),
        click.option(
            "--internal-advertise",
            metavar="HOST:PORT",
            help="What the other brokers are told; default: where it listens.",
        ),
        click.option(
            "--internal-listen",
            default="127.0.0.1:0",
            show_default=True,
            help="In a cluster: where the other brokers find this one.",
        ),
        click.option(
            "--session-ms",
            default=6_000,
            show_default=True,
            type=click.IntRange(SESSION_MS_MIN),
            help="In a cluster: a broker that is silent for so long has gone.",
        ),
        zookeeper_options,
        click.option(
            "--zookeeper",
            metavar="HOST:PORT,…[/FOLDER]",
            help="Be a member of the cluster that is kept there.",
        ),
    ):
        command = option(command)
    return command


def taken(options: dict[str, Any]) -> MemberOptions:
    """Take the options of a member out of a command's."""
    names = MemberOptions.__struct_fields__
    return MemberOptions(**{name: options.pop(name) for name in names})
