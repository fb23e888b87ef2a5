"""`orderwire cluster`: several brokers as one, and how they are."""

import asyncio
import contextlib
import tempfile
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import click

from orderwire.aio.broker_process import BrokerDidNotStart
from orderwire.aio.cluster_process import REPLICAS_MAX, ClusterProcess
from orderwire.aio.cluster_status import ask_status, find_brokers
from orderwire.aio.history_options import HISTORY_TOPIC
from orderwire.aio.zookeeper_access import SESSION_MS_MIN
from orderwire.aio.zookeeper_client import ZookeeperClient
from orderwire.broker.replication.settings import Mode
from orderwire.cli.output import EXIT_FAILED, EXIT_GOOD, EXIT_USAGE, emit, emit_json, progress
from orderwire.cli.protection import FILE, credentials
from orderwire.cli.running import run_until_stopped
from orderwire.cli.zookeeper_options import ZookeeperOptions, zookeeper_options
from orderwire.kernel import OrderwireError

_LOOK_S = 0.5
_LONG_S = 10.0
"""A start that takes longer is told of."""
_HEAD = (
    "TOPIC",
    "PART",
    "MODE",
    "EPOCH",
    "ORIGINAL",
    "ISR",
    "SYNCSTART",
    "SYNCEND",
    "LAG OF EACH",
    "ROUNDS",
    "SEALED",
    "ORPHANS",
    "BROKERS",
)


@click.group()
def command() -> None:
    """Run brokers that keep every partition the same, and show how they are."""


@command.command(epilog="Example:  orderwire cluster up --replicas 3 --mode active-active")
@click.option(
    "--replicas",
    default=3,
    show_default=True,
    type=click.IntRange(1, REPLICAS_MAX),
    help="How many brokers.",
)
@click.option(
    "--replication",
    default=3,
    show_default=True,
    type=click.IntRange(1, REPLICAS_MAX),
    help="Copies of topics that do not say, if there are so many brokers.",
)
@click.option(
    "--mode",
    default=Mode.ACTIVE_STANDBY.value,
    show_default=True,
    type=click.Choice([mode.value for mode in Mode]),
    help="How topics are kept that do not say: one takes messages and others follow, one hands them"
    " to all in turn, or all take them.",
)
@click.option("--zookeeper", metavar="HOST:PORT,…[/FOLDER]", help="An ensemble that runs already.")
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keeps everything; without it nothing is left when the cluster ends.",
)
@click.option("--listen", multiple=True, metavar="HOST:PORT", help="One for each broker.")
@click.option("--session-ms", default=6_000, show_default=True, type=click.IntRange(SESSION_MS_MIN))
@click.option(
    "--history",
    is_flag=True,
    help=f"Brokers write what happens to their replicas into the topic {HISTORY_TOPIC}.",
)
@click.option("--broker-option", multiple=True, metavar="OPTION", help="As --flush=none.")
@click.option("--json", "as_json", is_flag=True, help="Print the addresses as JSON once it runs.")
def up(
    replicas: int,
    replication: int,
    mode: str,
    zookeeper: str | None,
    data: Path | None,
    listen: tuple[str, ...],
    session_ms: int,
    history: bool,
    broker_option: tuple[str, ...],
    as_json: bool,
) -> None:
    """Start brokers, and a ZooKeeper where none is given; run until SIGINT or SIGTERM.

    If a broker ends by itself the others go on: that is what they are for.
    """
    if listen and len(listen) != replicas:
        raise click.UsageError(f"{len(listen)} --listen for {replicas} replicas")

    async def work(stop: asyncio.Event) -> int:
        with contextlib.ExitStack() as stack:
            folder = data
            if folder is None:
                folder = Path(
                    stack.enter_context(tempfile.TemporaryDirectory(prefix="orderwire-cluster-"))
                )
            start = partial(
                ClusterProcess.start,
                folder,
                f"--replication={replication}",
                *([f"--history-topic={HISTORY_TOPIC}"] if history else []),
                *broker_option,
                replicas=replicas,
                mode=Mode(mode),
                zookeeper=zookeeper,
                listen=listen,
                session_ms=session_ms,
            )
            cluster = await _started(stop, start, folder)
            if cluster is None:
                return EXIT_GOOD
            try:
                _tell(cluster, as_json=as_json)
                running = set(range(replicas))
                while running:
                    for index in sorted(running):
                        if not cluster.brokers[index].is_running:
                            running.discard(index)
                            progress(f"broker {index} has ended: {cluster.brokers[index].log}")
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(stop.wait(), _LOOK_S)
                        return EXIT_GOOD
                progress("no broker is left")
                return EXIT_FAILED
            finally:
                await asyncio.to_thread(cluster.stop)

    run_until_stopped(work)


async def _started(
    stop: asyncio.Event, start: Callable[..., ClusterProcess], folder: Path
) -> ClusterProcess | None:
    """Start a cluster; None if it is to stop before it runs.

    Raises BrokerDidNotStart where options are wrong, click.ClickException, and what `start` does.
    """
    given_up = threading.Event()
    starting = asyncio.ensure_future(asyncio.to_thread(start, given_up=given_up))
    stopping = asyncio.ensure_future(stop.wait())
    try:
        while not await _ended(starting, stopping):
            progress(f"the brokers do not run yet; they write to {folder}/broker-*.log")
        if stop.is_set():
            given_up.set()
        return await starting
    except BrokerDidNotStart as error:
        if stop.is_set():
            return None
        if error.status == EXIT_USAGE:
            raise
        raise click.ClickException(str(error)) from None
    except asyncio.CancelledError:
        given_up.set()
        raise
    finally:
        stopping.cancel()


async def _ended(*work: "asyncio.Future[Any]") -> bool:
    done, _ = await asyncio.wait(work, timeout=_LONG_S, return_when=asyncio.FIRST_COMPLETED)
    return bool(done)


def _tell(cluster: ClusterProcess, *, as_json: bool) -> None:
    if as_json:
        brokers = [
            {"id": index, "listen": one.address, "internal": one.internal, "pid": one.pid}
            for index, one in enumerate(cluster.brokers)
        ]
        emit_json(
            {"bootstrap": cluster.bootstrap, "zookeeper": cluster.zookeeper, "brokers": brokers}
        )
    else:
        emit(f"bootstrap servers: {cluster.bootstrap}")
        emit(f"ZooKeeper: {cluster.zookeeper}")


@command.command(epilog="Example:  orderwire cluster status --zookeeper 127.0.0.1:2181")
@click.option("--zookeeper", metavar="HOST:PORT,…[/FOLDER]", help="Where the cluster is kept.")
@zookeeper_options
@click.option("--broker", multiple=True, metavar="HOST:PORT", help="Internal listeners to ask.")
@click.option("--internal-cert", type=FILE, help="PEM: a certificate of the cluster's CA.")
@click.option("--internal-key", type=FILE, help="PEM: the certificate's key.")
@click.option("--internal-ca", type=FILE, help="PEM: the CA of the cluster's brokers.")
@click.option("--topic", multiple=True, help="These topics only.")
@click.option("--json", "as_json", is_flag=True, help="Print what every broker says as JSON.")
def status(
    zookeeper: str | None,
    broker: tuple[str, ...],
    internal_cert: Path | None,
    internal_key: Path | None,
    internal_ca: Path | None,
    topic: tuple[str, ...],
    as_json: bool,
    **access: Path | None,
) -> None:
    """Show replicas, epochs, originals, in-sync sets, syncStart, syncEnd, lags, rounds, seals and
    orphans of every partition."""
    if bool(broker) == bool(zookeeper):
        raise click.UsageError("give --zookeeper, or one --broker or more")

    async def work(stop: asyncio.Event) -> int:
        tls = credentials(internal_cert, internal_key, internal_ca, options="--internal")
        addresses = list(broker)
        if zookeeper is not None:
            granted = ZookeeperOptions(**access).access()
            async with ZookeeperClient(zookeeper, access=granted) as client:
                addresses = [one.internal for one in (await find_brokers(client)).values()]
            if not addresses:
                raise click.ClickException(f"no broker of a cluster lives at {zookeeper}")
        asked = [ask_status(address, tls) for address in addresses]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        told: list[dict[str, Any]] = []
        for address, answer in zip(addresses, answers, strict=True):
            if isinstance(answer, OSError | TimeoutError | OrderwireError):
                progress(f"{address} does not answer: {str(answer) or 'not in time'}")
            elif isinstance(answer, BaseException):
                raise answer
            else:
                told.append(answer)
        _keep(told, topic)
        if as_json:
            emit_json({"brokers": told})
        else:
            for line in lines(told) if told else ():
                emit(line)
        return EXIT_GOOD if told and len(told) == len(addresses) else EXIT_FAILED

    run_until_stopped(work)


def _keep(told: list[dict[str, Any]], topics: tuple[str, ...]) -> None:
    """Leave these topics only, if any are named.  Raises click.ClickException without one."""
    known = {one["topic"] for answer in told for one in answer["partitions"]}
    missing = [each for each in topics if each not in known]
    if told and missing:
        raise click.ClickException(f"no broker knows a topic {missing[0]!r}")
    for answer in told:
        kept = [one for one in answer["partitions"] if not topics or one["topic"] in topics]
        answer["partitions"] = kept


def lines(told: list[dict[str, Any]]) -> list[str]:
    """Lay out what the brokers said: one line for each partition, from its original's words.

    Orphans are those of all brokers together; rounds and sealed offsets those of this epoch.
    """
    places: dict[tuple[str, int], dict[int, Mapping[str, Any]]] = {}
    for answer in told:
        for one in answer["partitions"]:
            places.setdefault((one["topic"], one["partition"]), {})[answer["broker"]] = one
    rows = [_HEAD]
    for (topic, index), said in sorted(places.items()):
        newest = max(said.values(), key=lambda one: one.get("epoch", -1))
        original = newest.get("original")
        if original in said:
            newest = said[original]
        committed = newest["high_watermark"]
        rows.append(
            (
                topic,
                str(index),
                newest["mode"],
                str(newest.get("epoch", -1)),
                "-" if original is None else str(original),
                ",".join(map(str, newest.get("isr", ()))),
                str(newest["sync_start"]),
                str(newest["sync_end"]),
                " ".join(
                    f"{broker}:{committed - said[broker]['high_watermark']}"
                    for broker in sorted(said)
                ),
                str(newest.get("rounds", 0)),
                str(newest.get("sealed", 0)),
                str(sum(one.get("orphans", 0) for one in said.values())),
                ",".join(map(str, newest["replicas"])),
            )
        )
    widths = [max(len(row[at]) for row in rows) for at in range(len(_HEAD))]
    return [
        *(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ),
        *_lost(places),
        *(_scrubbed(answer["broker"], answer["scrub"]) for answer in told if "scrub" in answer),
    ]


def _lost(places: Mapping[tuple[str, int], Mapping[int, Mapping[str, Any]]]) -> list[str]:
    """What was committed and is nowhere, by partition and epoch."""
    found: list[str] = []
    for (topic, index), said in sorted(places.items()):
        newest = max(said.values(), key=lambda one: one.get("epoch", -1))
        for loss in newest.get("lost", ()):
            said_of = f"lost offsets {loss['from']} … {loss['to'] - 1}, told in epoch"
            if loss.get("unclean"):
                said_of = f"lost is what was committed from offset {loss['from']} on and nobody has"
                said_of += ", by an unclean election, told in epoch"
            if loss.get("unclean") or loss["to"] > loss["from"]:
                found.append(f"{topic}-{index}: {said_of} {loss['epoch']}")
    return found


def _scrubbed(broker: int, scrub: Mapping[str, Any]) -> str:
    """When a broker last read all of its logs again, and what it found."""
    ended = "not yet"
    if scrub["ended_ms"] >= 0:
        at = datetime.fromtimestamp(scrub["ended_ms"] / 1_000, UTC)
        ended = at.isoformat(sep=" ", timespec="seconds")
    return (
        f"broker {broker}: last scrub {ended}, {scrub['passes']} passes, {scrub['bytes']} bytes"
        f" read, damaged found {scrub['damaged']}"
    )
