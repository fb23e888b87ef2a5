"""`orderwire zookeeper`: a ZooKeeper server from the jars that PySpark installs."""

import asyncio
from pathlib import Path

import click

from orderwire.aio.addresses import PORT_MAX, is_loopback
from orderwire.aio.zookeeper_server import (
    ZookeeperServerSettings,
    ZookeeperTls,
    managed_zookeeper,
)
from orderwire.cli.output import EXIT_FAILED, EXIT_GOOD, emit, emit_json, progress
from orderwire.cli.protection import credentials, protected
from orderwire.cli.running import run_until_stopped

_LOOK_S = 0.5


@click.command(epilog="Example:  orderwire zookeeper --port 2181 --data zookeeper-data")
@click.option(
    "--port",
    default=2181,
    show_default=True,
    type=click.IntRange(0, PORT_MAX),
    help="Port 0: a free one.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at.")
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keeps what it stores; without it nothing is left when the server ends.",
)
@protected
@click.option("--json", "as_json", is_flag=True, help="Print the address as JSON once serving.")
def command(
    port: int,
    host: str,
    data: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_ca: Path | None,
    insecure: bool,
    as_json: bool,
) -> None:
    """Run a ZooKeeper server, one alone, with mutual TLS where its files are given.

    It needs Java 17 and nothing else: the program comes with PySpark.  Runs until SIGINT or
    SIGTERM.  For several machines take an ensemble of ZooKeeper's own.
    """
    tls = None
    if credentials(tls_cert, tls_key, tls_ca) is not None:
        assert tls_cert is not None
        assert tls_key is not None
        assert tls_ca is not None
        tls = ZookeeperTls(cert=tls_cert, key=tls_key, ca=tls_ca)
    if not (insecure or tls is not None or is_loopback(host)):
        raise click.UsageError(
            f"--host {host} is reachable from other machines, and without TLS this server neither"
            " encrypts nor authenticates: listen on 127.0.0.1, give --tls-cert, --tls-key and"
            " --tls-ca, or say --insecure"
        )

    async def work(stop: asyncio.Event) -> int:
        settings = ZookeeperServerSettings(host=host, port=port, insecure=insecure, tls=tls)
        async with managed_zookeeper(data, settings) as server:
            if as_json:
                emit_json({"listen": server.address, "pid": server.pid, "data": str(server.data)})
            else:
                emit(f"serving on {server.address}, data in {server.data}")
            while server.is_running:
                try:
                    await asyncio.wait_for(stop.wait(), _LOOK_S)
                except TimeoutError:
                    continue
                return EXIT_GOOD
            progress(f"the server has ended by itself: {server.said()}")
        return EXIT_FAILED

    run_until_stopped(work)
