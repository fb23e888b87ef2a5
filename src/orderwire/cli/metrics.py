"""`orderwire metrics`: delay, waiting, control bytes and loss of a trace."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

from orderwire.cli.client_config import CLIENT_CONFIG, named
from orderwire.cli.output import emit_json, progress
from orderwire.cli.spark import JSON, MASTER, session

if TYPE_CHECKING:
    from orderwire.pipeline.lake import Lake
    from orderwire.pipeline.metrics_model import Counts, RunMetrics, Spread

_NS_PER_MS = 1_000_000
_APPLICATION = "metrics"
_MEMBERS_SHOWN_MAX = 40


@click.command()
@click.argument("source", metavar="SOURCE")
@click.option(
    "--window-ms", type=click.IntRange(1), help="Length of windows; about 60 when not given."
)
@click.option("--waiting", is_flag=True, help="Also tell needed waiting from needless.")
@click.option(
    "--lake",
    "lake_path",
    type=click.Path(file_okay=False, path_type=Path),
    help="Also add the result to the table metrics of this lake.",
)
@click.option("--follow", is_flag=True, help="Add windows to the lake as they close, until Ctrl-C.")
@CLIENT_CONFIG
@MASTER
@JSON
def command(
    source: str,
    window_ms: int | None,
    waiting: bool,
    lake_path: Path | None,
    follow: bool,
    client_config: dict[str, str],
    master: str,
    as_json: bool,
) -> None:
    """Measure every run of a trace: in total, by member, and over time.

    SOURCE is a trace file (.arrow, .parquet) or a folder of them, a lake or its table `events`, or
    TOPIC@HOST:PORT.  Delays are exact to a microsecond; those of windows are estimates.  Exit
    status: 0 done, 1 failed, 2 used wrongly.

    \b
    Example: orderwire metrics runs/demo/lake --json
             orderwire metrics trace@localhost:9092
    """
    if follow and lake_path is None:
        raise click.UsageError("--follow needs --lake: where the windows go")
    with session("metrics", master) as spark:
        from orderwire.pipeline.event_source import open_events, stream_events
        from orderwire.pipeline.lake import Lake
        from orderwire.pipeline.metrics import run_metrics
        from orderwire.pipeline.metrics_model import as_json as document
        from orderwire.trace.errors import TraceError

        try:
            found = named(source, client_config)
            if follow and lake_path is not None:
                _follow(stream_events(spark, found), Lake(lake_path), source, window_ms)
                return
            events = open_events(spark, found)
        except TraceError as error:
            raise click.UsageError(str(error)) from error
        window_ns = None if window_ms is None else window_ms * _NS_PER_MS
        runs = run_metrics(events, window_ns=window_ns, waiting=waiting)
        if lake_path is not None:
            _keep(Lake(lake_path), runs)
    if as_json:
        emit_json(document(runs))
    else:
        for run in runs:
            _print(run)


def _keep(lake: "Lake", runs: "list[RunMetrics]") -> None:
    from orderwire.pipeline.metrics_model import metric_rows

    last = lake.recorded("metrics", _APPLICATION)
    lake.append_table("metrics", metric_rows(runs), _APPLICATION, 0 if last is None else last + 1)


def _follow(events: Any, lake: "Lake", source: str, window_ms: int | None) -> None:
    """Run the stream of windows until it fails or is interrupted."""
    from orderwire.pipeline.ingest import CHECKPOINTS
    from orderwire.pipeline.metrics_stream import start_window_metrics

    checkpoint = lake.root / CHECKPOINTS / f"metrics.{source.partition('@')[0]}"
    window = f"{window_ms or 1_000} milliseconds"
    query = start_window_metrics(events, lake, checkpoint, window=window, every="1 second")
    progress(f"following {source}; Ctrl-C ends it")
    try:
        query.awaitTermination()
    finally:
        query.stop()


def _print(run: "RunMetrics") -> None:
    console = Console(highlight=False)
    total = run.total
    lifetime = "no lifetime" if run.lifetime_ms is None else f"Δ {run.lifetime_ms:g} ms"
    seconds = (run.last_ns - run.first_ns) / 1e9
    table = Table(
        "member", "sent", "meant", "delivered", "late", "lost", "delay p50", "p99", "held",
        "control B/copy", "payload B/message",
        title=f"{run.run_id}: {run.algorithm or 'unknown algorithm'}, {lifetime}, {seconds:.1f} s",
        title_justify="left",
    )  # fmt: skip
    for member, counts in sorted(run.members.items())[:_MEMBERS_SHOWN_MAX]:
        table.add_row(str(member), *_cells(counts))
    table.add_section()
    table.add_row("all", *_cells(total))
    console.print(table)
    if total.expired or total.overtaken:
        console.print(
            f"discarded: {total.expired:,} past a lifetime of their own, {total.overtaken:,} "
            "overtaken by what could not wait for them"
        )
    if total.duplicates or total.future or total.full or total.delivered_again:
        console.print(
            f"discarded: {total.duplicates:,} duplicate, {total.future:,} from the future, "
            f"{total.full:,} for want of room; delivered again: {total.delivered_again:,}"
        )
    if run.waiting is not None:
        console.print(
            f"waiting: {run.waiting.forced_mean_ms:.3f} ms needed and "
            f"{run.waiting.avoidable_mean_ms:.3f} ms needless in the mean, "
            f"{run.waiting.premature:,} premature deliveries"
        )
    if len(run.members) > _MEMBERS_SHOWN_MAX:
        console.print(f"{len(run.members) - _MEMBERS_SHOWN_MAX} members more: see --json")


def _cells(counts: "Counts") -> tuple[str, ...]:
    return (
        f"{counts.messages:,}",
        f"{counts.written:,}",
        f"{counts.delivered:,}",
        f"{counts.late:,}",
        f"{counts.lost:,}",
        _ms(counts.delay_ms, "p50"),
        _ms(counts.delay_ms, "p99"),
        "–" if counts.held_share is None else f"{100 * counts.held_share:.1f} %",
        _bytes(counts.control_bytes_per_copy),
        _bytes(counts.payload_bytes_per_message),
    )


def _ms(spread: "Spread | None", part: str) -> str:
    return "–" if spread is None else f"{getattr(spread, part):.3f} ms"


def _bytes(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"
