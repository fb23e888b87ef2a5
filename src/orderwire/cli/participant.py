"""`orderwire participant`: join a group from the shell."""

import asyncio
import base64
import os
import sys
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from typing import Any

import click
import msgspec

from orderwire.cli.joining import Joining, joins_group
from orderwire.cli.output import EXIT_GOOD, emit, emit_json, progress
from orderwire.cli.running import first_of, run_until_stopped
from orderwire.cli.watching import watch
from orderwire.kernel import NS_PER_MS, OrderwireError
from orderwire.participant import Sample, Topic, Writer

LINES_WAITING_MAX = 1_000
"""Lines read from standard input and not written yet."""

PIECE_BYTES = 64 << 10


def sample_json(sample: Sample) -> dict[str, Any]:
    """Return a sample as a JSON object; data that are no text are in base64."""
    fields: dict[str, Any] = {
        "topic": sample.topic,
        "source": sample.source,
        "number": sample.number,
        "stamp_ns": sample.stamp,
        "delay_ms": round(sample.delay_ms, 3),
        "held_ms": round(sample.held_ms, 3),
        "dropped_before": sample.dropped_before,
    }
    if sample.lifetime_ns is not None:
        fields["lifetime_ms"] = sample.lifetime_ns / NS_PER_MS
    try:
        return fields | {"data": sample.data.decode()}
    except UnicodeDecodeError:
        return fields | {"data_base64": base64.b64encode(sample.data).decode()}


def stdin_lines(loop: asyncio.AbstractEventLoop) -> "asyncio.Queue[bytes | None]":
    """Return a bounded queue of the lines of standard input, None at its end.

    A thread that nobody waits for reads it: a terminal that sends nothing must not delay the end.
    It reads the descriptor: the interpreter aborts when it ends while a thread holds `sys.stdin`.
    """
    descriptor = sys.stdin.fileno()
    lines: asyncio.Queue[bytes | None] = asyncio.Queue(LINES_WAITING_MAX)

    def put(line: bytes | None) -> None:
        putting = lines.put(line)
        try:
            asyncio.run_coroutine_threadsafe(putting, loop).result()
        except RuntimeError:
            putting.close()
            raise

    def read() -> None:
        rest = b""
        try:
            while piece := os.read(descriptor, PIECE_BYTES):
                *whole, rest = (rest + piece).split(b"\n")
                for line in whole:
                    put(line.rstrip(b"\r"))
            if rest:
                put(rest.rstrip(b"\r"))
            put(None)
        except (RuntimeError, CancelledError):
            pass  # the loop has ended before the input

    threading.Thread(target=read, name="stdin", daemon=True).start()
    return lines


async def write_lines(writer: Writer, wait_readers: int, lifetime_ms: float | None) -> None:
    """Write standard input, a message a line."""
    if wait_readers:
        await writer.wait_matched(wait_readers)
    lines = stdin_lines(asyncio.get_running_loop())
    while (line := await lines.get()) is not None:
        if writer.write(line, lifetime_ms=lifetime_ms) is None:
            progress(f"nobody reads {writer.topic.name}: {line[:60]!r} was not sent")
        await writer.drain()
    await writer.flush(timeout_s=30)


@click.command(
    epilog="Example: echo hello | orderwire participant --me ana --bootstrap 127.0.0.1:7400"
    " --write chat/room --wait-readers 1"
)
@joins_group("delta-causal")
@click.option("--read", "patterns", multiple=True, metavar="PATTERN", help="Read these topics.")
@click.option("--write", "topic", metavar="TOPIC", help="Write each line of standard input.")
@click.option("--wait-readers", default=0, help="Write once the topic has so many readers.")
@click.option(
    "--message-lifetime-ms",
    type=float,
    metavar="MS",
    help="Lifetime of each line, shorter than Δ; --order rodrigues-deadline only.",
)
@click.option("--own", is_flag=True, help="Read what we write, too.")
@click.option("--count", type=click.IntRange(min=1), help="End after so many samples.")
@click.option("--watch", "watching", is_flag=True, help="Show who is there and what they offer.")
@click.option("--json", "as_json", is_flag=True, help="A JSON object a line.")
def command(
    joining: Joining,
    patterns: tuple[str, ...],
    topic: str | None,
    wait_readers: int,
    message_lifetime_ms: float | None,
    own: bool,
    count: int | None,
    watching: bool,
    as_json: bool,
) -> None:
    """Join a group: print what is read, write the lines of standard input, watch who is there.

    Ends when standard input does, or when --count samples were read; with --read or --watch alone
    on Ctrl-C.  With --json each sample is one line, and the last line is {"counters": …}, which
    tells under "discovery" what peers and strangers did wrong; --watch prints {"participants": …,
    "topics": …} whenever they change.
    """
    if not patterns and topic is None and not watching:
        raise click.UsageError("nothing to do: give --read PATTERN, --write TOPIC or --watch")
    if watching and not joining.finds_others:
        raise click.UsageError(
            "--watch shows what discovery finds: give --bootstrap, --seed or --zookeeper"
        )
    if topic is None and wait_readers:
        raise click.UsageError("--wait-readers has no effect without --write")
    if message_lifetime_ms is not None:
        if topic is None:
            raise click.UsageError("--message-lifetime-ms has no effect without --write")
        try:
            joining.order().own_lifetime_ns(message_lifetime_ms)
        except OrderwireError as error:
            raise click.UsageError(f"--message-lifetime-ms: {error}") from None

    async def work(stop: asyncio.Event) -> int:
        order = joining.order()
        async with joining.participant() as participant:
            left = count

            def on_sample(sample: Sample) -> None:
                nonlocal left
                if left == 0:
                    return
                if as_json:
                    emit_json(sample_json(sample))
                else:
                    text = sample.data.decode(errors="replace")
                    emit(f"{sample.topic} {sample.source} +{sample.delay_ms:.1f} ms: {text}")
                if left is not None:
                    left -= 1
                    if left == 0:
                        stop.set()

            for pattern in patterns:
                participant.reader(pattern, order=order, callback=on_sample, own=own)
            writing = None
            if topic is not None:
                writer = participant.writer(Topic(topic, order))
                writing = write_lines(writer, wait_readers, message_lifetime_ms)
            watched = None
            if watching:
                watched = asyncio.create_task(watch(participant, stop, as_json=as_json))
            losing = asyncio.create_task(participant.lost())
            losing.add_done_callback(lambda _: stop.set())
            await _serve(writing, count, stop)
            if losing.done():
                losing.result()
            losing.cancel()
            if watched is not None:
                stop.set()
                await watched
            counters = participant.counters
            found = participant.discovery_counters if joining.finds_others else None
        if as_json:
            emit_json({"counters": counters} | ({"discovery": found} if found else {}))
        else:
            told = {name: n for name, n in msgspec.structs.asdict(counters).items() if n}
            if told:
                progress("  ".join(f"{name} {n}" for name, n in told.items()))
        return EXIT_GOOD

    run_until_stopped(work)


async def _serve(
    writing: Coroutine[Any, Any, None] | None, count: int | None, stop: asyncio.Event
) -> None:
    if writing is None:
        await stop.wait()
        return
    await first_of(writing, stop.wait())
    if count is not None:
        await stop.wait()
