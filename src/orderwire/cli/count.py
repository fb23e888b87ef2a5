"""`orderwire count`: how long a text in a topic is, by the reckoning of `wc`."""

import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table

from orderwire.cli.client_config import CLIENT_CONFIG
from orderwire.cli.output import EXIT_FAILED, emit_json
from orderwire.cli.spark import JSON, MASTER, session

if TYPE_CHECKING:
    from orderwire.pipeline.text import TextResult, TextWindow
    from orderwire.pipeline.text_count import TextCounts

_TOPIC = re.compile(r"([A-Za-z0-9._-]{1,249})@(.+:\d+)")


@click.command()
@click.argument("source", metavar="SOURCE")
@click.option("--topic", help="The topic, when SOURCE is a lake.")
@click.option(
    "--file",
    "file_path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Compare with this file; exit status 1 when it differs.",
)
@click.option("--stream", is_flag=True, help="Also count as a stream, over windows of time.")
@click.option("--window", default="1 second", show_default=True, help="Length of windows.")
@click.option(
    "--lateness",
    default="10 minutes",
    show_default=True,
    help="How late a message, or its duplicate, may come in the stream.",
)
@CLIENT_CONFIG
@MASTER
@JSON
def command(
    source: str,
    topic: str | None,
    file_path: Path | None,
    stream: bool,
    window: str,
    lateness: str,
    client_config: dict[str, str],
    master: str,
    as_json: bool,
) -> None:
    """Count the bytes, characters and words of a text in a topic, in total and by chapter.

    SOURCE is TOPIC@HOST:PORT, or a lake with --topic.  A word is a run of bytes without ASCII white
    space; a character is a byte that does not continue one in UTF-8.  Messages numbered in their
    keys may be spread over partitions and come twice.

    \b
    Example: orderwire count book@localhost:9092 --file book.txt
    """
    found = _TOPIC.fullmatch(source)
    lake_folder = Path(source)
    if found is None and (topic is None or not lake_folder.is_dir()):
        raise click.UsageError(f"{source!r} is neither TOPIC@HOST:PORT nor a lake with --topic")
    if stream and found is None:
        raise click.UsageError("--stream reads a topic: give TOPIC@HOST:PORT")
    windows: list[TextWindow] | None = None
    with session("count", master) as spark:
        from orderwire.pipeline.ingest import TopicSource, landed_messages
        from orderwire.pipeline.lake import Lake
        from orderwire.pipeline.text import count_stream, count_topic
        from orderwire.pipeline.text_count import count_text, total

        if found is not None:
            reader = TopicSource(bootstrap=found[2], client=client_config)
            result = count_topic(reader.batch(spark, found[1]))
            if stream:
                with tempfile.TemporaryDirectory(prefix="orderwire-count-") as checkpoint:
                    windows = count_stream(
                        reader.stream(spark, found[1]), checkpoint, window=window, lateness=lateness
                    )
        else:
            assert topic is not None
            result = count_topic(landed_messages(spark, Lake(lake_folder), topic))
    file_counts = None if file_path is None else total(count_text(file_path.read_bytes()))
    if as_json:
        emit_json(_document(result, windows, file_counts))
    else:
        _print(result, windows, file_counts)
    if not _matches(result, windows, file_counts):
        sys.exit(EXIT_FAILED)


def _matches(
    result: "TextResult", windows: "list[TextWindow] | None", file_counts: "TextCounts | None"
) -> bool:
    """Whether batch, stream and file agree, as far as they were asked for."""
    streamed = windows is None or (
        sum(window.bytes for window in windows) == result.total.bytes
        and sum(window.characters for window in windows) == result.total.characters
    )
    return streamed and file_counts in (None, result.total)


def _document(
    result: "TextResult", windows: "list[TextWindow] | None", file_counts: "TextCounts | None"
) -> dict[str, object]:
    counts = result.total
    return {
        "messages": result.messages,
        "duplicates": result.duplicates,
        "missing": result.missing,
        "bytes": counts.bytes,
        "characters": counts.characters,
        "words": counts.words,
        "chapters": result.chapters,
        "windows": windows,
        "file": file_counts,
        "matches_file": None if file_counts is None else file_counts == counts,
    }


def _print(
    result: "TextResult", windows: "list[TextWindow] | None", file_counts: "TextCounts | None"
) -> None:
    table = Table("chapter", "bytes", "characters", "words")
    for chapter in result.chapters:
        table.add_row(chapter.heading or "(before the first)", *_cells(chapter.counts))
    table.add_section()
    table.add_row("all", *_cells(result.total))
    if file_counts is not None:
        table.add_row("the file", *_cells(file_counts))
    console = Console(highlight=False)
    console.print(table)
    console.print(
        f"{result.messages:,} messages, {result.duplicates:,} duplicates, "
        f"{result.missing:,} missing"
    )
    if windows is not None:
        streamed = sum(window.bytes for window in windows)
        console.print(f"as a stream: {len(windows):,} windows, {streamed:,} bytes")


def _cells(counts: "TextCounts") -> tuple[str, str, str]:
    return f"{counts.bytes:,}", f"{counts.characters:,}", f"{counts.words:,}"
