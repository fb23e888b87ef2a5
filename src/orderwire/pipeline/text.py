"""The count job: how long a text in a topic is, S004's own example.

A message may carry its number in the text as its key, in decimal: then a text may be spread over
partitions and messages may come twice.  Without keys the text is in one partition, in its order.
"""

from collections.abc import Iterable, Iterator

import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from orderwire.pipeline.errors import PipelineError
from orderwire.pipeline.text_count import CONTINUATION, Chapter, TextCounter, TextCounts, total

_LATIN = CONTINUATION.decode("latin-1")
_CHAPTER_COLUMNS = "heading string, bytes bigint, characters bigint, words bigint"
_CHAPTER_SCHEMA = pa.schema(
    [
        ("heading", pa.string()),
        ("bytes", pa.int64()),
        ("characters", pa.int64()),
        ("words", pa.int64()),
    ]
)


class TextOrderError(PipelineError):
    """The order of a text's messages cannot be told."""


class TextResult(msgspec.Struct, frozen=True, kw_only=True):
    """What was counted in a topic."""

    messages: int
    """Messages that count: each number once."""
    duplicates: int
    """Messages whose number had come before."""
    missing: int
    """Numbers below the highest that never came; 0 when messages have no numbers."""
    total: TextCounts
    chapters: list[Chapter]


class TextWindow(msgspec.Struct, frozen=True, kw_only=True):
    """What came during one window of time."""

    start_ms: int
    """Since 1970, by the messages' timestamps."""
    messages: int
    bytes: int
    characters: int


def characters(value: Column) -> Column:
    """How many bytes of a binary column begin a character."""
    return F.length(F.translate(F.decode(value, "ISO-8859-1"), _LATIN, ""))


def number_of(key: Column) -> Column:
    """The number in a message's key; null when there is none."""
    return F.try_to_number(
        F.when(F.decode(key, "ISO-8859-1").rlike("^[0-9]{1,18}$"), F.decode(key, "ISO-8859-1")),
        F.lit("9" * 18),
    ).cast("bigint")


def count_topic(messages: DataFrame) -> TextResult:
    """Count the text of a topic, with words and chapters: exact, wherever the cuts fall.

    `messages` has the source's columns partition, offset, key and value.  Raises TextOrderError
    when there are no numbers and more than one partition.
    """
    numbered = messages.where(F.col("value").isNotNull()).select(
        "partition", "offset", number_of(F.col("key")).alias("number"), "value"
    )
    about = numbered.agg(
        F.count("*").alias("messages"),
        F.count("number").alias("numbered"),
        F.countDistinct("number").alias("distinct"),
        F.max("number").alias("highest"),
        F.countDistinct("partition").alias("partitions"),
    ).collect()[0]
    has_numbers = about.messages > 0 and about.numbered == about.messages
    if not has_numbers and about.partitions > 1:
        raise TextOrderError(
            f"{about.messages - about.numbered} of {about.messages} messages carry no number as "
            f"their key and they are spread over {about.partitions} partitions: their order is "
            "lost. Write the text to one partition, or number its messages 0, 1, 2 … in their keys"
        )
    if has_numbers:
        kept = numbered.dropDuplicates(["number"])
        order, counted = ["number"], about.distinct
    else:
        kept, order, counted = numbered, ["partition", "offset"], about.messages
    rows = (
        kept.repartition(1)
        .sortWithinPartitions(*order)
        .select("value")
        .mapInArrow(count_pieces, _CHAPTER_COLUMNS)
        .collect()
    )
    chapters = [
        Chapter(
            heading=row.heading,
            counts=TextCounts(bytes=row.bytes, characters=row.characters, words=row.words),
        )
        for row in rows
    ]
    return TextResult(
        messages=counted,
        duplicates=about.messages - counted,
        missing=about.highest + 1 - counted if has_numbers else 0,
        total=total(chapters),
        chapters=chapters,
    )


def count_pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Count a text whose pieces come in order; a row for each chapter."""
    counter = TextCounter()
    for batch in batches:
        for piece in batch.column(0).to_pylist():
            if piece:
                counter.feed(piece)
    chapters = counter.finish()
    yield pa.RecordBatch.from_pylist(
        [{"heading": c.heading, **msgspec.structs.asdict(c.counts)} for c in chapters],
        schema=_CHAPTER_SCHEMA,
    )


def text_windows(messages: DataFrame, *, window: str, lateness: str) -> DataFrame:
    """Messages, bytes and characters of a stream over windows, every message once.

    A message that comes again within `lateness` is dropped, by its number where it has one; state
    is freed as the watermark passes.  Words need state across messages: see `count_topic`.
    """
    once = (
        messages.where(F.col("value").isNotNull())
        .select(
            "timestamp",
            "value",
            F.coalesce(
                F.concat(F.lit("n"), number_of(F.col("key")).cast("string")),
                F.concat_ws("/", F.col("partition").cast("string"), F.col("offset").cast("string")),
            ).alias("identity"),
        )
        .withWatermark("timestamp", lateness)
        .dropDuplicatesWithinWatermark(["identity"])
    )
    return once.groupBy(F.window("timestamp", window).alias("window")).agg(
        F.count("*").alias("messages"),
        F.sum(F.length("value").cast("bigint")).alias("bytes"),
        F.sum(characters(F.col("value")).cast("bigint")).alias("characters"),
    )


def count_stream(
    messages: DataFrame, checkpoint: str, *, window: str = "1 second", lateness: str = "1 minute"
) -> list[TextWindow]:
    """Count what a stream holds now, window by window; all windows of this query, ascending.

    Started again with the same checkpoint it goes on where it was and returns the windows that
    changed since.
    """
    latest: dict[int, TextWindow] = {}

    def keep(windows: DataFrame, _batch: int) -> None:
        rows = windows.select(
            F.unix_millis("window.start").alias("start_ms"), "messages", "bytes", "characters"
        ).collect()
        latest.update({row.start_ms: TextWindow(**row.asDict()) for row in rows})

    query = (
        text_windows(messages, window=window, lateness=lateness)
        .writeStream.foreachBatch(keep)
        .outputMode("update")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
    finally:
        query.stop()
    return [latest[start] for start in sorted(latest)]
