"""`orderwire bootstrap`: the server that gives a domain's participants their ids."""

import asyncio
import logging
import time
from pathlib import Path
from typing import Any

import click

from orderwire.aio.addresses import split_address
from orderwire.aio.discovery_host import DiscoveryHost, monotonic_now
from orderwire.aio.discovery_transport import DiscoveryTransport
from orderwire.cli.bootstrap_state import Keeper, must_recover, runtime_path
from orderwire.cli.joining import DEFAULT_DOMAIN
from orderwire.cli.output import EXIT_GOOD, emit, emit_json, progress
from orderwire.cli.protection import check_listen, credentials, protected
from orderwire.cli.running import run_until_stopped
from orderwire.discovery.bootstrap import BootstrapServer
from orderwire.discovery.settings import ID_SPACE_MAX, BootstrapSettings
from orderwire.kernel import NS_PER_S

DEFAULT_ADDRESS = "127.0.0.1:7400"


@click.command(epilog="Example:  orderwire bootstrap --listen 127.0.0.1:7400 --domain plant")
@click.option("--listen", default=DEFAULT_ADDRESS, show_default=True, help="Port 0: a free one.")
@click.option(
    "--advertise",
    metavar="HOST[:PORT]",
    help="What participants call, where --listen is 0.0.0.0 or a container's address.",
)
@click.option("--domain", default=DEFAULT_DOMAIN, show_default=True, help="Others are refused.")
@click.option(
    "--id-space",
    default=BootstrapSettings().id_space,
    show_default=True,
    type=click.IntRange(1, ID_SPACE_MAX),
    help="Most participants at a time.",
)
@click.option(
    "--lease",
    "lease_s",
    default=9.0,
    show_default=True,
    type=click.FloatRange(min=0, min_open=True),
    help="Seconds after which the id of a participant that is silent is free; they renew every 3.",
)
@click.option(
    "--state",
    "state_path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Says that a server was here before; by default a file in the runtime folder.",
)
@click.option(
    "--first",
    is_flag=True,
    help="Without a state: nobody holds an id yet, so issue ids at once.",
)
@protected
@click.option(
    "--json", "as_json", is_flag=True, help="Address and, at the end, counts as lines of JSON."
)
def command(
    listen: str,
    advertise: str | None,
    domain: str,
    id_space: int,
    lease_s: float,
    state_path: Path | None,
    first: bool,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_ca: Path | None,
    insecure: bool,
    as_json: bool,
) -> None:
    """Run the server that gives a domain's participants their ids, and tells them who is there.

    It is asked when a participant starts and renews its lease; participants find out all else from
    each other, and go on when it is gone.  Runs until SIGINT or SIGTERM.

    A server that follows another one learns for one lease who holds which id, and refuses newcomers
    for so long.  It does when the state says so, and when there is none, unless only this machine
    can reach it, or --first is given.
    """
    check_listen(listen, is_protected=tls_cert is not None or insecure)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)

    async def work(stop: asyncio.Event) -> int:
        transport = await DiscoveryTransport.open(
            listen,
            domain=domain,
            credentials=credentials(tls_cert, tls_key, tls_ca),
            advertise=advertise,
            insecure=insecure,
        )
        path = state_path or runtime_path(domain, transport.address)
        kept = Keeper(path, lasting=state_path is not None or split_address(listen)[1] != 0)
        recovering = must_recover(
            kept.before, address=transport.address, listen=listen, first=first
        )
        epoch, counter = divmod(time.time_ns(), NS_PER_S)
        if kept.before is not None and kept.before.epoch >= epoch:
            epoch = kept.before.epoch + 1
        kept.begin(epoch)
        settings = BootstrapSettings(id_space=id_space, lease_ns=round(lease_s * NS_PER_S))
        server = BootstrapServer(
            settings, monotonic_now(), epoch=epoch, counter=counter, recovering=recovering
        )
        if recovering:
            why = "there is no state" if kept.before is None else "another server was here"
            progress(f"{why} ({path}): learns for {lease_s:g} s who is there, then issues ids")
        host: DiscoveryHost[Any, Any] = DiscoveryHost(server, transport, lambda _: None)
        if as_json:
            told = {"listen": host.address, "domain": domain, "epoch": epoch}
            emit_json(told | {"recovering": recovering})
        else:
            emit(f"listening on {host.address}")
        await stop.wait()
        await host.close()
        held = bool(server.holders()) or server.is_recovering(monotonic_now())
        kept.end(server.epoch, held=held)  # It may have been shown incarnations of a later epoch.
        if as_json:
            emit_json(
                {
                    "requests": server.requests,
                    "renewals": server.renewals,
                    "held": len(server.holders()),
                    "malformed": host.malformed.total(),
                    "refused": {str(fault): count for fault, count in transport.faults.items()},
                    "refused_hosts": transport.refusals,
                }
            )
        refused = transport.refusals.total()
        progress(
            f"{server.requests} requests, {server.renewals} renewals, {len(server.holders())} ids"
            f" held, {host.malformed.total()} messages and {refused} connections refused"
        )
        return EXIT_GOOD

    run_until_stopped(work)
