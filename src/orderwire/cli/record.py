"""`orderwire record`: write what a participant reads to a file."""

import asyncio

import click
import msgspec

from orderwire.cli.joining import Joining, joins_group
from orderwire.cli.output import EXIT_GOOD, emit_json, progress
from orderwire.cli.running import first_of, run_until_stopped
from orderwire.participant import Sample
from orderwire.participant.recording import Recorder

FLUSH_INTERVAL_S = 1.0
"""A crash costs at most what was read in this time."""


@click.command(
    epilog="Example: orderwire record talk.arrow --me carl --member ana=127.0.0.1:7401"
    " --member carl=127.0.0.1:7403 --read 'chat/**'"
)
@joins_group("delta-causal")
@click.argument("file", type=click.Path(dir_okay=False, writable=True))
@click.option(
    "--read", "patterns", multiple=True, default=("**",), show_default=True, metavar="PATTERN"
)
@click.option("--count", type=click.IntRange(min=1), help="End after so many samples.")
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), help="End after this time.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as a JSON object.")
def command(
    joining: Joining,
    file: str,
    patterns: tuple[str, ...],
    count: int | None,
    seconds: float | None,
    as_json: bool,
) -> None:
    """Write what is read to FILE, an Arrow file: topic, source, stamp, data, timing.

    Ends on Ctrl-C, after --count samples or after --seconds.  `orderwire replay` writes it again.
    """

    async def work(stop: asyncio.Event) -> int:
        order = joining.order()
        participant = joining.participant()
        with Recorder(file, order) as recorder:
            async with participant:

                def on_sample(sample: Sample) -> None:
                    if count is None or recorder.samples < count:
                        recorder.add(sample)
                    if count is not None and recorder.samples >= count:
                        stop.set()

                async def flush() -> None:
                    while True:
                        await asyncio.sleep(FLUSH_INTERVAL_S)
                        recorder.flush()

                readers = [
                    participant.reader(pattern, order=order, callback=on_sample)
                    for pattern in patterns
                ]
                progress(f"recording to {file}; Ctrl-C ends it")
                waits = [flush(), stop.wait()]
                if seconds is not None:
                    waits.append(asyncio.sleep(seconds))
                await first_of(*waits)
                counters = participant.counters
                dropped = sum(r.counters.dropped + r.counters.expired for r in readers)
        summary = {
            "file": file,
            "samples": recorder.samples,
            "data_bytes": recorder.data_bytes,
            "dropped": dropped,
            "counters": msgspec.structs.asdict(counters),
        }
        if as_json:
            emit_json(summary)
        else:
            progress(f"{recorder.samples} samples, {recorder.data_bytes} bytes, {dropped} dropped")
        return EXIT_GOOD

    run_until_stopped(work)
