"""`orderwire replay`: write a recorded file to its topics again."""

import asyncio
from collections.abc import Iterator
from typing import NamedTuple

import click
import msgspec

from orderwire.cli.joining import Joining, joins_group
from orderwire.cli.output import EXIT_GOOD, emit_json, progress
from orderwire.cli.running import first_of, run_until_stopped
from orderwire.kernel import NS_PER_MS, NS_PER_S
from orderwire.ordering.catalog import algorithm
from orderwire.participant import Participant, Topic, Writer
from orderwire.participant.qos import Order
from orderwire.participant.recording import Recording


class Row(NamedTuple):
    """What of a sample is written again."""

    topic: str
    stamp_ns: int
    data: bytes
    lifetime_ns: int | None
    """Its own, where it had one."""


def rows_of(recording: Recording, sources: tuple[str, ...]) -> Iterator[Row]:
    """Yield what is to be written, in the order it was read, of these sources or of all."""
    table = recording.table
    for batch in table.select(["topic", "source", "stamp_ns", "data", "lifetime_ns"]).to_batches():
        for topic, source, stamp, data, lifetime_ns in zip(
            *(column.to_pylist() for column in batch.columns), strict=True
        ):
            if not sources or source in sources:
                yield Row(topic, stamp, data, lifetime_ns)


async def write_again(
    participant: Participant,
    recording: Recording,
    order: Order,
    sources: tuple[str, ...],
    speed: float,
    wait_readers: int,
) -> None:
    """Write all rows with the gaps their stamps had, divided by `speed` (0: without).

    Lifetimes of their own that the order cannot give are left out, and told.
    """
    names = sorted({row.topic for row in rows_of(recording, sources)})
    writers: dict[str, Writer] = {name: participant.writer(Topic(name, order)) for name in names}
    for writer in writers.values():
        await writer.wait_matched(wait_readers)
    lives_ns = (order.lifetime_ns or 0) if algorithm(order.algorithm).own_lifetimes else 0
    lives = (row.lifetime_ns for row in rows_of(recording, sources))
    left_out = sum(own is not None and own > lives_ns for own in lives)
    if left_out:
        progress(f"{left_out} samples had lifetimes of their own that {order.key} cannot give")
    loop = asyncio.get_running_loop()
    started = loop.time()
    first: int | None = None
    for written, row in enumerate(rows_of(recording, sources)):
        first = row.stamp_ns if first is None else first
        if speed:
            due = started + (row.stamp_ns - first) / NS_PER_S / speed
            if due > loop.time():
                await asyncio.sleep(due - loop.time())
        own_ms = None
        if lives_ns and row.lifetime_ns is not None and row.lifetime_ns <= lives_ns:
            own_ms = row.lifetime_ns / NS_PER_MS
        writers[row.topic].write(row.data, lifetime_ms=own_ms)
        await writers[row.topic].drain()
        if not speed and written % 64 == 63:
            await asyncio.sleep(0)
    await participant.flush(timeout_s=30)


@click.command(
    epilog="Example: orderwire replay talk.arrow --speed 2 --me ana --member ana=127.0.0.1:7401"
    " --member ben=127.0.0.1:7402"
)
@joins_group(None)
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--speed", default=1.0, show_default=True, help="2 is twice as fast, 0 unpaced.")
@click.option("--source", "sources", multiple=True, help="Only what these members had written.")
@click.option("--wait-readers", default=1, show_default=True, help="Readers each topic waits for.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as a JSON object.")
def command(
    joining: Joining,
    file: str,
    speed: float,
    sources: tuple[str, ...],
    wait_readers: int,
    as_json: bool,
) -> None:
    """Write the samples of FILE to their topics again, all of them as ourselves.

    Their order is the recording's own unless --order says another one.
    """
    if speed < 0:
        raise click.UsageError(f"--speed {speed} is negative: 1 keeps the timing, 0 ignores it")
    if joining.order_name is None and (joining.lifetime_ms is not None or joining.domain):
        raise click.UsageError("--lifetime-ms and --domain have no effect without --order")

    async def work(stop: asyncio.Event) -> int:
        recording = Recording(file)
        order = recording.order if joining.order_name is None else joining.order()
        async with joining.participant() as participant:
            progress(f"writing {recording.table.num_rows} samples as {order.key}")
            writing = write_again(participant, recording, order, sources, speed, wait_readers)
            await first_of(writing, stop.wait())
            counters = participant.counters
        if as_json:
            emit_json({"file": file, "counters": msgspec.structs.asdict(counters)})
        else:
            progress(f"{counters.written} written, {counters.unread} that nobody read")
        return EXIT_GOOD

    run_until_stopped(work)
