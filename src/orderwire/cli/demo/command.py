"""The command: start everything, lead it, print what was found, leave nothing running."""

import asyncio
import contextlib
import signal
import sys
import time
from pathlib import Path
from typing import Any

import click
import msgspec
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from rich.console import Console
from rich.table import Table

from orderwire.chaos.clients import NOT_TOLD, Sent
from orderwire.cli.demo.brokers import REPLICAS, Brokers
from orderwire.cli.demo.children import Child, ChildError
from orderwire.cli.demo.conference import Conference
from orderwire.cli.demo.findings import Told
from orderwire.cli.demo.floor import trade
from orderwire.cli.demo.script import MEMBER_NAMES, ScriptError, read_text
from orderwire.cli.demo.settings import (
    DELIVERY_TOPIC,
    IMPAIRMENT,
    MESSAGE_BYTES,
    TEXT_TOPIC,
    TRACE_TOPIC,
    AnalystSettings,
)
from orderwire.cli.output import EXIT_FAILED, emit, emit_json, progress
from orderwire.kernel import OrderwireError

MEMBERS = 6
KAFKA_SECONDS_MAX = 20.0
SPARK_START_SECONDS_MAX = 180.0
ANALYSIS_SECONDS_MAX = 240.0
STEP_SECONDS = 2.0


class _Clock:
    """Tells the stages of the demo, with the seconds since its start."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._next_step = 0.0

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start

    def tell(self, text: str) -> None:
        progress(f"{self.seconds:6.1f} s  {text}")

    def step(self, said: int, read: int) -> None:
        """Tell how far the conference is, once in a while."""
        if self.seconds >= self._next_step:
            self._next_step = self.seconds + STEP_SECONDS
            self.tell(f"{said:6,} utterances said, {read:7,} messages read")


class _Interrupts:
    """SIGINT and SIGTERM end the demo at its next safe moment, from whatever stage it is in."""

    def __init__(self) -> None:
        self.came = False
        self._task: asyncio.Task[Any] | None = None
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._handle)

    def watch(self) -> None:
        """Cancel the running task when one comes, or at once when one has come."""
        self._task = asyncio.current_task()
        if self.came:
            self._cancel()

    def _handle(self, _number: int, _frame: object) -> None:
        self.came = True
        if self._task is not None:
            self._task.get_loop().call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        assert self._task is not None
        self._task.cancel()


@click.command()
@click.option(
    "--text",
    "text_path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The text that is told; by default one that every Python installation carries.",
)
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where report, figures and data go.  [default: orderwire-demo/<time>]",
)
@click.option(
    "--members",
    type=click.IntRange(3, len(MEMBER_NAMES)),
    default=MEMBERS,
    show_default=True,
    help="How many hold the conference.",
)
@click.option("--seed", default=0, show_default=True, help="Draws what the network does.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    text_path: Path | None, folder: Path | None, members: int, seed: int, as_json: bool
) -> None:
    """Hold an audited conference over real sockets, end to end.

    Six members find each other, tell each other a text and send voice, over loopback sockets that
    delay, lose and reorder, in Δ-causal order and beside it without order.  A guest is killed and
    comes back.  Four traders keep an order book in one order for all, whose relay is killed.
    Everything goes through three active-active brokers that speak Kafka's protocol,
    of which one is killed and comes back; Spark reads it from their logs, audits it and writes a
    report.  Takes about two minutes.  Exit status: 0 all promises held, 1 one did not.

    \b
    Example: orderwire demo --text book.txt
    """
    clock = _Clock()
    try:
        text = read_text(text_path)
    except ScriptError as error:
        raise click.UsageError(str(error)) from error
    run = time.strftime("%Y%m%d-%H%M%S")
    folder = (folder or Path("orderwire-demo") / run).resolve()
    if folder.exists() and any(folder.iterdir()):
        raise click.UsageError(f"{folder} is not empty: name a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    interrupts = _Interrupts()
    try:
        clock.tell("ZooKeeper and three active-active brokers start")
        brokers = Brokers.start(folder / "brokers")
        with contextlib.closing(brokers):
            clock.tell(f"brokers listen on {brokers.cluster.bootstrap}")
            found = asyncio.run(
                _hold(run, brokers, text, text_path, folder, members, seed, clock, interrupts)
            )
    except asyncio.CancelledError:
        progress("interrupted: everything is stopped")
        sys.exit(130)
    except (ChildError, OrderwireError, KafkaException) as error:
        progress(f"failed: {error}")
        sys.exit(EXIT_FAILED)
    found["seconds"] = round(clock.seconds, 1)
    if as_json:
        emit_json(found)
    else:
        _print(found)
    sys.exit(0 if found["verdict"] == "VALID" else EXIT_FAILED)


async def _hold(
    run: str,
    replicas: Brokers,
    text: bytes,
    text_path: Path | None,
    folder: Path,
    members: int,
    seed: int,
    clock: _Clock,
    interrupts: _Interrupts,
) -> dict[str, Any]:
    """Lead analyst, members and brokers; return what the analyst found."""
    interrupts.watch()
    brokers = replicas.cluster.bootstrap
    await asyncio.to_thread(_prepare_topics, brokers, members)
    started: list[Child] = []
    logs = folder / "logs"
    logs.mkdir()
    conference = None
    try:
        analyst = await Child.start(
            "analyst",
            "orderwire.cli.demo.analyst",
            AnalystSettings(
                run=run,
                members=list(MEMBER_NAMES[:members]),
                brokers=brokers,
                folder=str(folder),
                text_path=None if text_path is None else str(text_path.resolve()),
            ),
            logs,
        )
        started.append(analyst)
        prefix = f"text-{run}-"
        sent = await asyncio.to_thread(_write_text, brokers, text, prefix)
        clock.tell(f"the text, {len(text):,} bytes, is in topic {TEXT_TOPIC}; Spark starts")
        floor = asyncio.create_task(trade(run, replicas.cluster.zookeeper, folder, logs, started))
        try:
            await analyst.wait_for("listening", SPARK_START_SECONDS_MAX)
            book = await floor
        finally:
            floor.cancel()
            await asyncio.gather(floor, return_exceptions=True)
        clock.tell(
            f"traders have kept one book, {sum(each.written for each in book.traders):,} updates"
            " written; its relay was killed"
        )
        clock.tell("Spark audits the trace as it comes; the members gather")
        conference = await Conference.gather(
            run=run,
            count=members,
            brokers=brokers,
            text_path=text_path,
            impairment=msgspec.structs.replace(IMPAIRMENT, seed=1_000 * seed),
            folder=logs,
            started=started,
        )
        losing = asyncio.create_task(replicas.lose_one(TEXT_TOPIC))
        try:
            await conference.talk(clock.step)
            await losing
        finally:
            losing.cancel()
        await conference.leave()
        clock.tell("the conference is over; Spark closes its books")

        def tell(stage: dict[str, Any]) -> None:
            clock.tell(stage["text"])

        await analyst.wait_for("ingested", ANALYSIS_SECONDS_MAX, tell)
        kept = await replicas.found(TEXT_TOPIC, sent, prefix)
        await analyst.tell(Told(replicas=kept, floor=book))
        answer = await analyst.wait_for("found", ANALYSIS_SECONDS_MAX, tell)
        found: dict[str, Any] = answer["found"]
        found["discovery"] |= msgspec.to_builtins(conference.discovery)
        return found
    except asyncio.CancelledError:
        for child in started:
            child.kill()
        raise
    finally:
        await asyncio.gather(*(child.stop() for child in started))
        if conference is not None:
            await conference.close()


def _prepare_topics(brokers: str, members: int) -> None:
    """Create the run's topics: a partition a member for the trace, one for the text."""
    admin = AdminClient({"bootstrap.servers": brokers, "log_level": 2})
    partitions = {TRACE_TOPIC: members + 1, DELIVERY_TOPIC: 2, TEXT_TOPIC: 1}
    topics = [NewTopic(topic, count, REPLICAS) for topic, count in partitions.items()]
    for future in admin.create_topics(topics, operation_timeout=KAFKA_SECONDS_MAX).values():
        future.result(KAFKA_SECONDS_MAX)


def _write_text(brokers: str, text: bytes, prefix: str) -> list[Sent]:
    """Write the text to its durable topic in messages of 100 bytes; tell what came of each.

    Keys name the messages, for the audit of the replicas.  [S004:sec.4]
    """
    sent: list[Sent] = []
    producer = Producer(
        {"bootstrap.servers": brokers, "acks": "all", "enable.idempotence": True, "log_level": 2}
    )
    for number, at in enumerate(range(0, len(text), MESSAGE_BYTES)):
        one = Sent(f"{prefix}{number}", 0, "text", -1, time.monotonic())
        sent.append(one)

        def heard(error: KafkaError | None, message: Message, one: Sent = one) -> None:
            one.answered_s = time.monotonic()
            if error is None:
                offset = message.offset()
                one.offset = NOT_TOLD if offset is None else offset
            else:
                one.error = str(error)

        while True:
            with contextlib.suppress(BufferError):
                producer.produce(
                    TEXT_TOPIC,
                    text[at : at + MESSAGE_BYTES],
                    f"<{one.name}>".encode(),
                    on_delivery=heard,
                )
                break
            producer.poll(0.1)
        producer.poll(0)
    left = producer.flush(KAFKA_SECONDS_MAX)
    failed = [one.error for one in sent if one.error]
    if left or failed:
        raise ChildError(f"the broker did not take the whole text: {failed[:1] or 'no answer'}")
    return sent


def _print(found: dict[str, Any]) -> None:
    """Print the verdicts for people."""
    table = Table("group", "written", "delivered", "late", "lost", "order violations")
    for name in ("ordered", "control"):
        group = found[name]
        table.add_row(
            name,
            *(f"{group[column]:,}" for column in ("written", "delivered", "late", "lost")),
            f"{group['violations']:,}",
        )
    console = Console()
    console.print(table)
    text = found["text"]
    same = "equal to the file's own" if text["matches_file"] else "NOT those of the file"
    emit(
        f"text read back by Spark: {text['bytes']:,} bytes, {text['characters']:,} characters,"
        f" {text['words']:,} words, {same}"
    )
    seen = found["discovery"]
    emit(
        f"discovery: {seen['verdict']}, {seen['participants']} participants; all known"
        f" {_after(seen['known_s'])} the last start, the guest that was killed"
        f" {_after(seen['restart_known_s'])} it was back"
    )
    kept = found["replicas"]
    emit(
        f"replicas: {kept['replicas']} {kept['mode']}, broker {kept['killed']} was killed:"
        f" {kept['took_over_s']:.1f} s until others had taken over, {kept['in_sync_s']:.1f} s until"
        f" it was in sync again; {'all have committed the same' if kept['equal'] else 'NOT equal'};"
        f" I1 … I10 of the text: {kept['audit']['verdict']}"
    )
    book = found["book"]
    pause = max(each["longest_pause_ms"] for each in book["traders"])
    emit(
        f"order book: {len(book['traders'])} traders,"
        f" {sum(each['updates'] for each in book['traders']):,} updates read,"
        f" {'all in one order' if book['equal'] else 'NOT in one order'}; {pause / 1_000:.1f} s"
        f" without any when its relay was killed; T1 … T5: {book['audit']['verdict']}"
    )
    costs = ", ".join(f"{name} {value:,.1f}" for name, value in found["control_bytes"].items())
    emit(f"control bytes a copy: {costs}")
    emit(f"verdict: {found['verdict']} after {found['seconds']} s; report: {found['report']}")


def _after(seconds: float | None) -> str:
    return "never after" if seconds is None else f"{max(0.0, seconds) * 1_000:.0f} ms after"
