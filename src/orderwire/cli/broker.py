"""`orderwire broker`: one broker for any client of the Kafka protocol."""

import asyncio
import logging
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from orderwire.aio.addresses import is_loopback, join_address
from orderwire.aio.broker_server import BrokerLimits, BrokerServer
from orderwire.aio.cluster_member import ClusterJoining
from orderwire.broker.coordination.layout import REPLICAS_MAX
from orderwire.broker.flush import Flush
from orderwire.broker.group_model import GroupSettings
from orderwire.broker.settings import BrokerSettings
from orderwire.broker.topic_config import check_configs
from orderwire.broker.topics import TopicSettings
from orderwire.cli.broker_security import security_of, security_options
from orderwire.cli.cluster_options import member_options, pairs, taken
from orderwire.cli.output import EXIT_FAILED, emit, emit_json, progress
from orderwire.cli.running import end_with_input
from orderwire.kernel import NS_PER_MS, NS_PER_S
from orderwire.kernel.errors import LocalProtocolError, OrderwireError

_PORT_MAX = 65_535


def parse_address(text: str, option: str) -> tuple[str, int]:
    """Split HOST:PORT; an IPv6 address stands in brackets.  Raises click.UsageError."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > _PORT_MAX:
        raise click.UsageError(f"{option} is {text!r}; expected HOST:PORT, as in 127.0.0.1:9092")
    return host.strip("[]"), int(port)


@click.command(
    epilog="Example:  orderwire broker --data /var/lib/orderwire --listen 127.0.0.1:9092"
)
@click.option("--data", required=True, type=click.Path(path_type=Path, file_okay=False))
@click.option("--listen", default="127.0.0.1:9092", show_default=True, help="Port 0: a free one.")
@click.option("--advertise", help="HOST:PORT that clients are told; default: what they reached.")
@click.option("--node-id", default=1, show_default=True, type=click.IntRange(0, (1 << 31) - 1))
@click.option(
    "--flush",
    default=Flush.GROUP.value,
    show_default=True,
    type=click.Choice([flush.value for flush in Flush]),
    help="When a produce is answered: in the page cache (none), on disk with those that wait at "
    "the same time (group), on disk each by itself (message).",
)
@click.option(
    "--scrub-bytes-per-s",
    default=4 << 20,
    show_default=True,
    type=click.IntRange(0, 1 << 40),
    help="How fast old records are read again in search of damage; 0: never.",
)
@click.option(
    "--partitions",
    default=1,
    show_default=True,
    type=click.IntRange(1, TopicSettings().partitions_max),
    help="Of topics that do not say.",
)
@click.option(
    "--replication",
    default=3,
    show_default=True,
    type=click.IntRange(1, REPLICAS_MAX),
    help="In a cluster: copies of topics that do not say; missing ones follow when brokers come.",
)
@click.option(
    "--preferred-after-s",
    default=30,
    show_default=True,
    type=click.IntRange(0),
    help="In a cluster: a partition's first replica that was in sync for so long takes it back as"
    " original; 0: never by itself.",
)
@click.option("--auto-create/--no-auto-create", default=True, show_default=True)
@click.option("--rebalance-delay-ms", default=300, show_default=True, type=click.IntRange(0))
@click.option("--topic-config", multiple=True, metavar="KEY=VALUE", help="Default of all topics.")
@click.option("--limit", multiple=True, metavar="NAME=N", help="A limit, as connections_max=100.")
@member_options
@security_options
@click.option("--insecure", is_flag=True, help="Listen beyond this machine without protection.")
@click.option("--loop", default="auto", type=click.Choice(["auto", "asyncio", "uvloop"]))
@click.option("--end-with-input", "tied", is_flag=True, hidden=True, help="End when input ends.")
@click.option("--json", "as_json", is_flag=True, help="Print the address as JSON once listening.")
def command(
    data: Path,
    listen: str,
    advertise: str | None,
    node_id: int,
    flush: str,
    scrub_bytes_per_s: int,
    partitions: int,
    replication: int,
    preferred_after_s: int,
    auto_create: bool,
    rebalance_delay_ms: int,
    topic_config: tuple[str, ...],
    limit: tuple[str, ...],
    insecure: bool,
    loop: str,
    tied: bool,
    as_json: bool,
    **member: Any,
) -> None:
    """Run one broker that speaks the Kafka wire protocol.

    It keeps its topics below --data and listens until SIGINT or SIGTERM.
    """
    host, port = parse_address(listen, "--listen")
    secured = security_of(member)
    if not insecure and not is_loopback(host) and not secured.is_protected:
        raise click.UsageError(
            f"--listen {listen} is reachable from other machines, and this listener does not "
            "both encrypt and authenticate: listen on 127.0.0.1, give --tls-cert, --tls-key and "
            "--sasl, or say --insecure"
        )
    security, users = secured.settings(), secured.accounts()
    defaults = pairs(topic_config, "--topic-config")
    refusal = check_configs(defaults)
    if refusal is not None:
        raise click.UsageError(f"--topic-config: {refusal.message}")
    try:
        joined = taken(member).joined(insecure=insecure)
        tls = secured.tls()
    except LocalProtocolError as error:
        raise click.UsageError(str(error)) from None
    if joined is not None:
        defaults.setdefault("min.insync.replicas", "2")
    settings = BrokerSettings(
        node_id=node_id,
        flush=Flush(flush),
        scrub_bytes_per_s=scrub_bytes_per_s,
        topics=TopicSettings(
            auto_create=auto_create, default_partitions=partitions, configs=defaults
        ),
        replication=replication,
        preferred_after_ns=preferred_after_s * NS_PER_S,
        groups=GroupSettings(initial_rebalance_delay_ns=rebalance_delay_ms * NS_PER_MS),
    )
    try:
        limits = msgspec.convert(pairs(limit, "--limit"), BrokerLimits, strict=False)
    except msgspec.ValidationError as error:
        raise click.UsageError(f"--limit: {error}") from None
    told = None if advertise is None else parse_address(advertise, "--advertise")
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)

    async def run() -> int:
        server = await BrokerServer.start(
            data,
            host,
            port,
            settings=settings,
            limits=limits,
            advertise=told,
            cluster=None if joined is None else ClusterJoining(joined, node_id),
            security=security,
            tls=tls,
        )
        await server.set_users(users)
        stop = asyncio.Event()
        if tied:
            end_with_input(server.loop, stop)
        for name in (signal.SIGINT, signal.SIGTERM):
            server.loop.add_signal_handler(name, stop.set)
        server.failed.add_done_callback(lambda _: stop.set())
        address = f"[{server.address[0]}]" if ":" in server.address[0] else server.address[0]
        address = f"{address}:{server.address[1]}"
        if as_json:
            listening = {"listen": address}
            if server.host is not None:
                listening["internal"] = join_address(*server.host.links.address)
            emit_json(listening)
        else:
            emit(f"listening on {address}")
        await stop.wait()
        failed = server.failed.result() if server.failed.done() else None
        await server.close()
        if failed is not None:
            progress(str(failed))
            return EXIT_FAILED
        return 0

    try:
        with asyncio.Runner(loop_factory=loop_factory(loop)) as runner:
            sys.exit(runner.run(run()))
    except (OrderwireError, OSError) as error:
        raise click.ClickException(str(error)) from error


def loop_factory(name: str) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes the event loop: uvloop when it is wanted, or installed and not unwanted."""
    if name == "asyncio":
        return None
    try:
        import uvloop
    except ImportError:
        if name == "uvloop":
            raise click.UsageError("--loop uvloop: uvloop is not installed") from None
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
