"""Options of a participant that is ready to be a gateway between domains."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from orderwire.cli.protection import FILE, credentials
from orderwire.participant.backbone import Backbone

NAMED = "BACKBONE=HOST:PORT"


class GatewayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the options say; most name the backbone that they are about."""

    gateway: tuple[str, ...]
    gateway_seeds: tuple[str, ...]
    gateway_listen: tuple[str, ...]
    gateway_advertise: tuple[str, ...]
    gateway_cert: Path | None
    gateway_key: Path | None
    gateway_ca: Path | None

    def backbones(self, *, insecure: bool) -> list[Backbone]:
        """Return the backbones to join.  Raises click.UsageError, LocalProtocolError."""
        servers = _by_backbone("--gateway", self.gateway)
        seeds = _by_backbone("--gateway-seed", self.gateway_seeds, several=True)
        listens = _by_backbone("--gateway-listen", self.gateway_listen)
        advertised = _by_backbone("--gateway-advertise", self.gateway_advertise)
        names = dict.fromkeys([*servers, *seeds])
        for option, named in (("listen", listens), ("advertise", advertised)):
            for name in named.keys() - names.keys():
                raise click.UsageError(
                    f"--gateway-{option} {name}=…: give --gateway or --gateway-seed for it, too"
                )
        secret = credentials(
            self.gateway_cert, self.gateway_key, self.gateway_ca, options="--gateway"
        )
        if secret is not None and not names:
            raise click.UsageError("--gateway-cert has no effect without --gateway")
        return [
            Backbone(
                domain=name,
                bootstrap=_one(servers, name),
                seeds=tuple(seeds.get(name, ())),
                listen=_one(listens, name) or "127.0.0.1:0",
                advertise=_one(advertised, name),
                credentials=secret,
                insecure=insecure,
            )
            for name in names
        ]


def gateway_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of `GatewayOptions`."""
    for option in (
        click.option("--gateway-ca", type=FILE, help="PEM: the CA of the backbones' members."),
        click.option("--gateway-key", type=FILE, help="PEM: the certificate's key."),
        click.option("--gateway-cert", type=FILE, help="PEM: our certificate on all backbones."),
        click.option(
            "--gateway-advertise",
            multiple=True,
            metavar=NAMED,
            help="What others on the backbone call, if it is not what we listen at.",
        ),
        click.option(
            "--gateway-listen",
            multiple=True,
            metavar=NAMED,
            help="Where we listen on the backbone; any free port of 127.0.0.1 if not given.",
        ),
        click.option(
            "--gateway-seed",
            "gateway_seeds",
            multiple=True,
            metavar=NAMED,
            help="The same through a gateway that is always there; may be given several times.",
        ),
        click.option(
            "--gateway",
            multiple=True,
            metavar=NAMED,
            help="Be ready to stand for our domain on this backbone, a domain of gateways with this"
            " bootstrap server.  May be given for several backbones.",
        ),
    ):
        command = option(command)
    return command


def _by_backbone(
    option: str, values: tuple[str, ...], *, several: bool = False
) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for value in values:
        name, equals, address = value.rpartition("=")
        if not equals or not name:
            raise click.UsageError(f"{option} {value!r}: write {NAMED}")
        found.setdefault(name, []).append(address)
        if len(found[name]) > 1 and not several:
            raise click.UsageError(f"{option} {name}=… is given twice")
    return found


def _one(found: dict[str, list[str]], name: str) -> str | None:
    return found[name][0] if name in found else None
