"""`orderwire bootstrap`: the server that gives a domain's participants their ids."""

import asyncio
import logging
import os
import time
from pathlib import Path
from typing import Any

import click
import msgspec

from orderwire.aio.discovery_host import DiscoveryHost, monotonic_now
from orderwire.aio.discovery_transport import DiscoveryTransport
from orderwire.cli.joining import DEFAULT_DOMAIN
from orderwire.cli.output import EXIT_GOOD, emit, emit_json, progress
from orderwire.cli.protection import check_listen, credentials, protected
from orderwire.cli.running import run_until_stopped
from orderwire.discovery.bootstrap import BootstrapServer
from orderwire.discovery.settings import ID_SPACE_MAX, BootstrapSettings
from orderwire.kernel import NS_PER_S, LocalProtocolError, parsed

DEFAULT_ADDRESS = "127.0.0.1:7400"


class State(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What must survive a restart."""

    epoch: int
    """Of the last start: the next one's is larger. [FDP/1 R1]"""

    @classmethod
    def read(cls, path: Path) -> "State | None":
        """Return what was saved, or None at the first start.  Raises LocalProtocolError."""
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        what = f"--state {path} is no state of a server"
        return parsed(msgspec.json.Decoder(cls).decode, data, what, LocalProtocolError)

    def save(self, path: Path) -> None:
        """Replace the file, so that a crash leaves the old one or the new one."""
        new = path.with_name(f"{path.name}.new")
        with new.open("wb") as file:
            file.write(msgspec.json.encode(self))
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)


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
    help="Seconds after which the id of a participant that is silent is free.",
)
@click.option(
    "--state",
    "state_path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Keeps the epoch; a server that finds it learns for one lease who is there.",
)
@protected
@click.option("--json", "as_json", is_flag=True, help="Print the address as JSON once listening.")
def command(
    listen: str,
    advertise: str | None,
    domain: str,
    id_space: int,
    lease_s: float,
    state_path: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_ca: Path | None,
    insecure: bool,
    as_json: bool,
) -> None:
    """Run the server that gives a domain's participants their ids, and tells them who is there.

    It is asked when a participant starts and renews its lease; participants find out all else from
    each other, and go on when it is gone.  Runs until SIGINT or SIGTERM.

    Without --state the epoch is the wall clock's second, and a server that is started again may
    give an id that is in use: its earlier holder then takes another.
    """
    check_listen(listen, is_protected=tls_cert is not None or insecure)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)

    async def work(stop: asyncio.Event) -> int:
        before = None if state_path is None else State.read(state_path)
        epoch = max(int(time.time()), 0 if before is None else before.epoch + 1)
        transport = await DiscoveryTransport.open(
            listen,
            domain=domain,
            credentials=credentials(tls_cert, tls_key, tls_ca),
            advertise=advertise,
            insecure=insecure,
        )
        if state_path is not None:
            State(epoch).save(state_path)
        settings = BootstrapSettings(id_space=id_space, lease_ns=round(lease_s * NS_PER_S))
        server = BootstrapServer(
            settings, monotonic_now(), epoch=epoch, recovering=before is not None
        )
        host: DiscoveryHost[Any, Any] = DiscoveryHost(server, transport, lambda _: None)
        if as_json:
            emit_json({"listen": host.address, "domain": domain, "epoch": epoch})
        else:
            emit(f"listening on {host.address}")
        await stop.wait()
        await host.close()
        if state_path is not None:  # It may have been shown incarnations of a later epoch.
            State(server.epoch).save(state_path)
        refused = transport.refusals.total()
        progress(
            f"{server.requests} requests, {server.renewals} renewals, {len(server.holders())} ids"
            f" held, {host.malformed.total()} messages and {refused} connections refused"
        )
        return EXIT_GOOD

    run_until_stopped(work)
