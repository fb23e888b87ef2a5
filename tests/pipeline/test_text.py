"""Counting a text in a topic, on Spark: equal to the file's own counts."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from orderwire.kernel import stream
from orderwire.pipeline.text import TextOrderError, TextWindow, count_stream, count_topic
from orderwire.pipeline.text_count import TextCounts, count_text, total

pytestmark = pytest.mark.spark

TEXT = (
    "Front matter, «quoted»\r\n\r\n   CHAPTER I\r\n\r\n"
    + "Alice was beginning — 한국어 — to get very tired\r\n" * 60
    + "   CHAPTER II\r\n"
    + "of sitting by her sister, é\u00a0日本語\r\n" * 40
).encode()
PIECES = [TEXT[at : at + 100] for at in range(0, len(TEXT), 100)]

SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
    ]
)
DDL = "key binary, value binary, partition int, offset long, timestamp timestamp"
EPOCH = datetime(2024, 1, 1, tzinfo=UTC)

Message = tuple[bytes | None, bytes | None, int]


def table(messages: Iterable[Message], start_s: float = 0.0, step_s: float = 0.05) -> pa.Table:
    rows = []
    offsets: dict[int, int] = {}
    for at, (key, value, partition) in enumerate(messages):
        offset = offsets.setdefault(partition, 0)
        offsets[partition] += 1
        when = EPOCH + timedelta(seconds=start_s + step_s * at)
        rows.append((key, value, partition, offset, when))
    return pa.table(dict(zip(SCHEMA.names, zip(*rows, strict=True), strict=True)), schema=SCHEMA)


def test_the_text_is_cut_inside_characters() -> None:
    assert any(piece[0] & 0xC0 == 0x80 for piece in PIECES)


def test_a_text_in_one_partition(spark: SparkSession) -> None:
    found = count_topic(spark.createDataFrame(table((None, piece, 2) for piece in PIECES)))
    assert found.chapters == count_text(TEXT)
    assert found.total == TextCounts(
        bytes=len(TEXT), characters=len(TEXT.decode()), words=len(TEXT.split())
    )
    assert (found.messages, found.duplicates, found.missing) == (len(PIECES), 0, 0)


def test_a_numbered_text_spread_and_sent_twice(spark: SparkSession) -> None:
    chance: Random = stream(3, "text")
    messages = [(b"%d" % at, piece, chance.randrange(3)) for at, piece in enumerate(PIECES)]
    messages += chance.sample(messages, 20)
    chance.shuffle(messages)
    found = count_topic(spark.createDataFrame(table(messages)))
    assert found.chapters == count_text(TEXT)
    assert (found.messages, found.duplicates, found.missing) == (len(PIECES), 20, 0)


def test_missing_pieces_are_counted(spark: SparkSession) -> None:
    kept = [(b"%d" % at, piece, 0) for at, piece in enumerate(PIECES) if at not in (4, 9)]
    found = count_topic(spark.createDataFrame(table(kept)))
    assert found.missing == 2
    assert found.total.bytes == len(TEXT) - 200


def test_a_text_without_order_is_refused(spark: SparkSession) -> None:
    messages = [(None, piece, at % 2) for at, piece in enumerate(PIECES)]
    with pytest.raises(TextOrderError, match="spread over 2 partitions"):
        count_topic(spark.createDataFrame(table(messages)))


def test_an_empty_topic(spark: SparkSession) -> None:
    found = count_topic(spark.createDataFrame([], DDL))
    assert (found.messages, found.total, found.chapters) == (0, TextCounts(), [])


def test_a_stream_counts_over_windows_and_drops_what_comes_twice(
    spark: SparkSession, checkpoint: str, tmp_path: Path
) -> None:
    source = tmp_path / "topic"
    source.mkdir()

    def messages() -> DataFrame:
        files = spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1)
        return files.parquet(str(source))

    numbered = [(b"%d" % at, piece, 0) for at, piece in enumerate(PIECES)]
    pq.write_table(table(numbered[:30]), source / "a.parquet")
    pq.write_table(table(numbered[20:], 20 * 0.05), source / "b.parquet")
    first = count_stream(messages(), checkpoint)
    assert sum(w.bytes for w in first) == len(TEXT)
    assert sum(w.characters for w in first) == len(TEXT.decode())
    assert sum(w.messages for w in first) == len(PIECES)
    assert first[0] == TextWindow(
        start_ms=int(EPOCH.timestamp() * 1000),
        messages=20,
        bytes=2_000,
        characters=total(count_text(TEXT[:2_000])).characters,
    )
    assert [w.start_ms - first[0].start_ms for w in first] == [1_000 * n for n in range(len(first))]
    pq.write_table(table([*numbered[:10], (None, b"more", 1)]), source / "c.parquet")
    again = count_stream(messages(), checkpoint)
    assert [(w.messages, w.bytes) for w in again] == [(21, 2_004)]


def test_state_stays_bounded(spark: SparkSession, checkpoint: str, tmp_path: Path) -> None:
    """[SPARK-19932] Deduplication without a watermark never frees its state."""
    from orderwire.pipeline.text import text_windows

    source = tmp_path / "topic"
    source.mkdir()
    batches = 8
    for batch in range(batches):
        part = [(b"%d" % (50 * batch + at), b"x", 0) for at in range(50)]
        pq.write_table(table(part, 10.0 * batch), source / f"{batch:02}.parquet")
    files = spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1).parquet(str(source))
    query = (
        text_windows(files, window="1 second", lateness="5 seconds")
        .writeStream.format("memory")
        .queryName("bounded")
        .outputMode("update")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    sizes = [
        operator.numRowsTotal
        for progress in query.recentProgress
        for operator in progress.stateOperators
        if operator.operatorName.startswith("dedupe")
    ]
    assert len(sizes) >= batches
    assert max(sizes) <= 3 * 50
