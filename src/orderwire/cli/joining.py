"""What `participant`, `record` and `replay` share: joining a group from the command line."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from orderwire.aio.addresses import PORT_MAX
from orderwire.cli.gateways import GatewayOptions, gateway_options
from orderwire.cli.output import progress
from orderwire.cli.protection import credentials, protected
from orderwire.cli.zookeeper_options import ZookeeperOptions, zookeeper_options
from orderwire.kernel import LocalProtocolError
from orderwire.ordering.catalog import ALGORITHMS
from orderwire.participant import (
    DeltaCausal,
    Dropped,
    Fifo,
    Order,
    Participant,
    Published,
    SelectiveTotal,
    Trace,
    Unordered,
)
from orderwire.participant.qos import DEFAULT_GROUP

ORDERS = ("delta-causal", "fifo", "unordered", "selective-total")
"""And every other name of the catalog of ordering algorithms."""
DELTA_CAUSAL_LIFETIME_MS = 250
DEFAULT_DOMAIN = "default"
"""Of discovery."""


class Joining(msgspec.Struct, frozen=True, kw_only=True):
    """What the shared options say: who we are, who the others are, and the order."""

    me: str
    members: tuple[str, ...]
    bootstrap: str | None
    seeds: tuple[str, ...]
    zookeeper: str | None
    discovery_domain: str
    listen: str
    advertise: str | None
    data_port: int
    interest_only: bool
    gateways: GatewayOptions
    zookeeper_access: ZookeeperOptions
    tls_cert: Path | None
    tls_key: Path | None
    tls_ca: Path | None
    insecure: bool
    trace_path: str | None
    run: str
    inputs_path: str | None
    order_name: str | None
    lifetime_ms: float | None
    domain: str
    group: str | None
    relay: str | None

    @property
    def finds_others(self) -> bool:
        """Whether the group's members find each other."""
        return bool(self.bootstrap or self.seeds or self.zookeeper)

    def order(self) -> Order:
        """Return the order of the options, which name one.  Raises LocalProtocolError."""
        if self.order_name != "selective-total" and (self.group or self.relay):
            raise LocalProtocolError(
                f"--group and --relay have no effect on {self.order_name}, but on selective-total"
            )
        match self.order_name:
            case "delta-causal":
                lifetime = self.lifetime_ms
                lifetime = DELTA_CAUSAL_LIFETIME_MS if lifetime is None else lifetime
                return DeltaCausal(lifetime_ms=lifetime, domain=self.domain)
            case "fifo":
                return Fifo(lifetime_ms=self.lifetime_ms, domain=self.domain)
            case "selective-total":
                if self.lifetime_ms is not None:
                    raise LocalProtocolError(
                        f"--lifetime-ms {self.lifetime_ms:g} has no effect on selective-total:"
                        " its messages live for ever"
                    )
                group = DEFAULT_GROUP if self.group is None else self.group
                return SelectiveTotal(group=group, relay=self.relay, domain=self.domain)
            case "unordered":
                return Unordered(lifetime_ms=self.lifetime_ms, domain=self.domain)
            case _:
                assert self.order_name is not None, "no order is named"
                return Published(
                    algorithm=self.order_name, lifetime_ms=self.lifetime_ms, domain=self.domain
                )

    def participant(self) -> Participant:
        """Return the participant of the options, not open yet.

        Raises click.UsageError when they contradict each other, LocalProtocolError.
        """
        trace = Trace(run=self.run, path=self.trace_path) if self.trace_path is not None else None
        if self.finds_others:
            if self.members:
                raise click.UsageError(
                    "--member lists the group; --bootstrap, --seed and --zookeeper find it"
                )
            return Participant(
                self.me,
                domain=self.discovery_domain,
                bootstrap=self.bootstrap,
                seeds=self.seeds,
                zookeeper=self.zookeeper,
                zookeeper_access=self.zookeeper_access.access(),
                listen=self.listen,
                advertise=self.advertise,
                data_port=self.data_port,
                interest_only=self.interest_only,
                gateway=self.gateways.backbones(insecure=self.insecure),
                credentials=credentials(self.tls_cert, self.tls_key, self.tls_ca),
                insecure=self.insecure,
                trace=trace,
                record=self.inputs_path,
                on_drop=tell_drop,
            )
        if self.interest_only or self.gateways.backbones(insecure=True):
            raise click.UsageError(
                "--interest-only and --gateway are about discovery: give --bootstrap, --seed or"
                " --zookeeper"
            )
        if not self.members:
            raise click.UsageError(
                "give --bootstrap, --seed or --zookeeper, or every --member of the group"
            )
        addresses: dict[str, str] = {}
        for member in self.members:
            name, equals, address = member.partition("=")
            if not equals:
                raise click.UsageError(f"--member {member!r}: write NAME=HOST:PORT")
            if name in addresses:
                raise click.UsageError(f"--member {name!r} is given twice")
            addresses[name] = address
        return Participant(
            self.me,
            members=addresses,
            insecure=self.insecure,
            trace=trace,
            record=self.inputs_path,
            on_drop=tell_drop,
        )


def tell_drop(dropped: Dropped) -> None:
    """Say on standard error what was not handed over."""
    where = "" if dropped.pattern is None else f", reading {dropped.pattern}"
    progress(f"{dropped.reason}: {dropped.count} in {dropped.domain}{where}")


def joins_group(default_order: str | None) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options of `Joining`, which becomes the command's first argument.

    Without a default the order may be left out.
    """
    options = (
        click.option("--me", required=True, metavar="NAME", help="What we are called."),
        click.option(
            "--bootstrap",
            metavar="HOST:PORT",
            help="Find the others through this server: `orderwire bootstrap`.",
        ),
        click.option(
            "--seed",
            "seeds",
            multiple=True,
            metavar="HOST:PORT",
            help="Find them through a member that is always there; may be given several times.",
        ),
        click.option(
            "--zookeeper",
            metavar="HOST:PORT,…",
            help="Find them through a ZooKeeper ensemble: `orderwire zookeeper`, or your own.",
        ),
        click.option(
            "--discovery-domain",
            default=DEFAULT_DOMAIN,
            show_default=True,
            help="Whom to find: those of the same domain.",
        ),
        click.option(
            "--listen",
            default="127.0.0.1:0",
            show_default=True,
            metavar="HOST:PORT",
            help="Where discovery listens, on IPv4; port 0: any.",
        ),
        click.option(
            "--advertise",
            metavar="HOST[:PORT]",
            help="What others call, where --listen is 0.0.0.0 or a container's address.",
        ),
        click.option(
            "--data-port",
            default=0,
            show_default=True,
            type=click.IntRange(0, PORT_MAX),
            help="Of the data, TCP and UDP; 0: any.",
        ),
        click.option(
            "--interest-only",
            is_flag=True,
            help="Tell endpoints to those alone who match one; the same at all.",
        ),
        click.option(
            "--member",
            "members",
            multiple=True,
            metavar="NAME=HOST:PORT",
            help="Without discovery: every member and its address, ourselves included.",
        ),
        click.option(
            "--trace", "trace_path", metavar="FOLDER", help="Write our trace into this folder."
        ),
        click.option("--run", default="run", show_default=True, help="The trace's run."),
        click.option(
            "--inputs",
            "inputs_path",
            metavar="FOLDER",
            help="Record what our cores are fed, for `sim replay --inputs`.",
        ),
        click.option(
            "--order",
            "order_name",
            type=click.Choice((*ORDERS, *(name for name in ALGORITHMS if name not in ORDERS))),
            default=default_order,
            show_default=default_order is not None,
            help="What readers are promised, or an algorithm; all members name the same.",
        ),
        click.option(
            "--lifetime-ms",
            type=float,
            metavar="Δ",
            help="Drop what is older than this; delta-causal:"
            f" {DELTA_CAUSAL_LIFETIME_MS} if not given.",
        ),
        click.option("--domain", default="", help="Name of the ordering domain."),
        click.option(
            "--group",
            metavar="NAME",
            help=f"selective-total: the group, as its relay names it.  [default: {DEFAULT_GROUP}]",
        ),
        click.option(
            "--relay",
            metavar="HOST:PORT",
            help="selective-total with --member: the relay of a group of them all.",
        ),
    )

    def add(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def command(**given: Any) -> None:
            own = {name: given.pop(name) for name in GatewayOptions.__struct_fields__}
            given["gateways"] = GatewayOptions(**own)
            own = {name: given.pop(name) for name in ZookeeperOptions.__struct_fields__}
            given["zookeeper_access"] = ZookeeperOptions(**own)
            shared = {name: given.pop(name) for name in Joining.__struct_fields__}
            function(Joining(**shared), **given)

        for option in reversed(options):
            command = option(command)
        return gateway_options(zookeeper_options(protected(command)))

    return add
