"""`orderwire channel`: the relay that puts the messages of a group in one order."""

import asyncio
import contextlib
import ipaddress
import logging
from typing import Any

import click
from click.core import ParameterSource

from orderwire.aio.addresses import is_loopback, join_address, looked_up_ipv4, split_address
from orderwire.aio.datagram import Address
from orderwire.aio.total_relay import ChannelRelay, RelaySettings
from orderwire.aio.total_views import SESSION_NS, RelayPlace
from orderwire.aio.zookeeper_access import SESSION_MS_MIN
from orderwire.aio.zookeeper_client import ClientSettings
from orderwire.cli.output import EXIT_GOOD, emit, emit_json, progress
from orderwire.cli.running import end_with_input, run_until_stopped
from orderwire.cli.zookeeper_options import ZookeeperOptions, zookeeper_options
from orderwire.kernel import NS_PER_MS, LocalProtocolError

DEFAULT_ADDRESS = "127.0.0.1:7500"


@click.command(
    epilog="Example:  orderwire channel --listen 127.0.0.1:7500 --multicast 239.1.2.3:7501"
)
@click.option("--listen", default=DEFAULT_ADDRESS, show_default=True, help="Port 0: a free one.")
@click.option(
    "--multicast",
    metavar="GROUP:PORT",
    help="Send to this group of IP multicast; else to each member by itself.",
)
@click.option(
    "--multicast-interface",
    default=RelaySettings().multicast_interface,
    show_default=True,
    help="Address of the interface for multicasts.",
)
@click.option(
    "--loss",
    default=0.0,
    show_default=True,
    type=click.FloatRange(0, 1, max_open=True),
    help="Share of the datagrams that is lost on purpose, up and down, at each member by itself.",
)
@click.option("--seed", default=0, show_default=True, help="Of what is lost.")
@click.option(
    "--repeats/--no-repeats",
    default=True,
    show_default=True,
    help="Whether each datagram carries what the one before it carried once more.",
)
@click.option(
    "--receive-buffer",
    "receive_bytes",
    type=int,
    metavar="BYTES",
    help="SO_RCVBUF; by default as much as the kernel gives.",
)
@click.option(
    "--zookeeper",
    metavar="HOST:PORT,…",
    help="Stand in the row of a group's relays there: the oldest works, the others stand by.",
)
@click.option("--group", default="group", show_default=True, help="The group's name there.")
@click.option(
    "--session-ms",
    default=SESSION_NS // NS_PER_MS,
    show_default=True,
    type=click.IntRange(SESSION_MS_MIN),
    help="With --zookeeper: when it is silent for so long, the next relay takes over.",
)
@zookeeper_options
@click.option("--insecure", is_flag=True, help="Listen beyond this machine, without protection.")
@click.option("--end-with-input", "tied", is_flag=True, hidden=True, help="End when input ends.")
@click.option(
    "--json", "as_json", is_flag=True, help="Address and, at the end, counts as lines of JSON."
)
def command(
    listen: str,
    multicast: str | None,
    multicast_interface: str,
    loss: float,
    seed: int,
    repeats: bool,
    receive_bytes: int | None,
    zookeeper: str | None,
    group: str,
    session_ms: int,
    insecure: bool,
    tied: bool,
    as_json: bool,
    **ensemble: Any,
) -> None:
    """Run the relay of a group with one total order (`TotalGroup`).

    Members send it their messages; it numbers them and sends them to all members.  What is lost on
    the way the members repair among themselves.  Runs until SIGINT or SIGTERM.

    With --zookeeper a group has several relays: when the one that works dies, the next takes over
    with a change of views, and nothing is lost.  The setting of losses is that of the relay in use.

    Nothing encrypts or authenticates its datagrams: it listens on this machine only, unless
    --insecure is given.
    """
    try:
        host, _ = split_address(listen)
    except LocalProtocolError as error:
        raise click.UsageError(f"--listen: {error}") from None
    _refuse_idle(zookeeper, multicast)
    if zookeeper is not None and _is_unspecified(host):
        raise click.UsageError(
            f"--listen {listen}: members learn this address from ZooKeeper and call it, so name one"
            " of this machine's that they can reach"
        )
    if not insecure and not is_loopback(host):
        raise click.UsageError(
            f"--listen {listen} is reachable from other machines, and nothing encrypts or"
            " authenticates a channel's datagrams: listen on 127.0.0.1, or say --insecure"
        )
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)

    async def work(stop: asyncio.Event) -> int:
        if tied:
            end_with_input(asyncio.get_running_loop(), stop)
        address = await looked_up_ipv4(listen)
        settings = RelaySettings(
            multicast=_group(multicast),
            multicast_interface=multicast_interface,
            loss=loss,
            seed=seed,
            repeats=repeats,
            receive_bytes=receive_bytes,
        )
        access = ZookeeperOptions(**ensemble).access()
        async with contextlib.AsyncExitStack() as stack:
            relay = await ChannelRelay.open(address, settings)
            stack.push_async_callback(relay.close)
            where = join_address(*relay.address)
            if zookeeper is not None:
                relay.reuses_ids = True
                client = ClientSettings(session_ns=session_ms * NS_PER_MS)
                place = RelayPlace(
                    zookeeper, group, where, renewed=relay.renew, client=client, access=access
                )
                stack.push_async_callback(place.close)
                await place.enter()
            told = {"listen": where, "multicast": multicast, "incarnation": relay.incarnation}
            if as_json:
                emit_json(told)
            else:
                emit(f"listening on {where}")
            await stop.wait()
        counts = {"pdus": relay.next_csn - 1, "send_errors": relay.send_errors}
        if as_json:
            emit_json({**counts, "counters": dict(sorted(relay.counters.items()))})
        did = ", ".join(f"{count} {what}" for what, count in sorted(relay.counters.items()))
        progress(f"{counts['pdus']} PDUs in order; {did or 'nothing came'}")
        return EXIT_GOOD

    run_until_stopped(work)


def _group(text: str | None) -> Address | None:
    """Read GROUP:PORT.  Raises LocalProtocolError."""
    return None if text is None else split_address(text)


def _refuse_idle(zookeeper: str | None, multicast: str | None) -> None:
    """Refuse what would have no effect."""
    context = click.get_current_context()
    for name, needed, given in (
        ("group", "--zookeeper", zookeeper),
        ("session_ms", "--zookeeper", zookeeper),
        ("multicast_interface", "--multicast", multicast),
    ):
        if given is None and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            option = name.replace("_", "-")
            raise click.UsageError(f"--{option} has no effect without {needed}")


def _is_unspecified(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
