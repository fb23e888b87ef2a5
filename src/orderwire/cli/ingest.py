"""`orderwire ingest`: land topics in the lake, exactly once."""

from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table

from orderwire.cli.client_config import CLIENT_CONFIG
from orderwire.cli.output import emit_json, progress
from orderwire.cli.spark import JSON, MASTER, session

if TYPE_CHECKING:
    from orderwire.pipeline.ingest import Ingested

FOLLOW_SECONDS = 1


@click.command()
@click.option("--bootstrap", required=True, metavar="HOST:PORT,…", help="The broker.")
@click.option(
    "--lake",
    "lake_path",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="The lake's folder; made when it is not there.",
)
@click.option("--topic", "topics", multiple=True, help="Land its messages in raw_messages.")
@click.option("--trace-topic", "trace_topics", multiple=True, help="Land its events.")
@click.option("--follow", is_flag=True, help="Go on until Ctrl-C instead of ending at the end.")
@click.option(
    "--rows-max", type=click.IntRange(1), help="Most messages of a topic in one micro-batch."
)
@click.option(
    "--format",
    "source_format",
    default="orderwire",
    show_default=True,
    help="orderwire, or kafka where Spark's own connector is installed.",
)
@CLIENT_CONFIG
@MASTER
@JSON
def command(
    bootstrap: str,
    lake_path: Path,
    topics: tuple[str, ...],
    trace_topics: tuple[str, ...],
    follow: bool,
    rows_max: int | None,
    source_format: str,
    client_config: dict[str, str],
    master: str,
    as_json: bool,
) -> None:
    """Bring topics into a lake of Delta tables, exactly once.

    Runs again where it ended, also after a crash.  Exit status: 0 done, 1 failed, 2 used wrongly.

    \b
    Example: orderwire ingest --bootstrap localhost:9092 --lake lake --trace-topic conference.trace
    """
    if not topics and not trace_topics:
        raise click.UsageError("name at least one topic, with --topic or --trace-topic")
    with session("ingest", master) as spark:
        from orderwire.pipeline.ingest import TopicSource, ingest, start_ingest
        from orderwire.pipeline.lake import Lake

        source = TopicSource(
            bootstrap=bootstrap, format=source_format, rows_max=rows_max, client=client_config
        )
        lake = Lake(lake_path)
        if follow:
            every = f"{FOLLOW_SECONDS} second"
            queries = start_ingest(
                spark, source, lake, topics=topics, trace_topics=trace_topics, every=every
            )
            progress(f"following {', '.join((*topics, *trace_topics))}; Ctrl-C ends it")
            try:
                spark.streams.awaitAnyTermination()
            finally:
                for query in queries:
                    query.stop()
            return
        added = ingest(spark, source, lake, topics=topics, trace_topics=trace_topics)
        versions = {table: lake.version(table) for table in lake.tables()}
    if as_json:
        emit_json({"lake": str(lake.root), "added": added, "versions": versions})
    else:
        _print(added, versions)


def _print(added: "Ingested", versions: dict[str, int | None]) -> None:
    table = Table("table", "rows added", "version")
    for name in ("raw_messages", "events", "dests"):
        table.add_row(name, f"{getattr(added, name):,}", str(versions.get(name, "–")))
    Console(highlight=False).print(table)
