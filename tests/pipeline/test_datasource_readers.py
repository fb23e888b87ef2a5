"""The source's readers over topics in memory: every public bug report that applies, as a test."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from pyspark.sql.types import StructType

from orderwire.pipeline.client import MemoryClient
from orderwire.pipeline.errors import (
    DataLossError,
    OffsetsWentBackError,
    OptionError,
    PipelineError,
    ReadStuckError,
    UnknownTopicError,
)
from orderwire.pipeline.offsets import TopicPartition
from orderwire.pipeline.options import parse_options
from orderwire.pipeline.readers import (
    MISSING_ANSWERS_MAX,
    OrderwireReader,
    OrderwireStreamReader,
)

LEAST = {
    "kafka.bootstrap.servers": "memory:1",
    "subscribe": "a",
    "fetchOffset.retryIntervalMs": "0",
}
SCHEMA = StructType().add("partition", "integer").add("offset", "long").add("value", "binary")
A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


@pytest.fixture
def client() -> MemoryClient:
    """Topic a: ten records in partition 0, four in partition 1."""
    client = MemoryClient()
    client.create("a", 2)
    client.append("a", 0, *(b"p0-%d" % at for at in range(10)))
    client.append("a", 1, *(b"p1-%d" % at for at in range(4)))
    return client


def batch(client: MemoryClient, **more: str) -> OrderwireReader:
    return OrderwireReader(parse_options(LEAST | more), SCHEMA, lambda _: client)


def stream(client: MemoryClient, **more: str) -> OrderwireStreamReader:
    options = parse_options(LEAST | {"startingOffsets": "earliest"} | more)
    return OrderwireStreamReader(options, SCHEMA, lambda _: client)


def rows(reader: Any, partitions: list[InputPartition]) -> list[tuple[int, int]]:
    batches = [b for partition in partitions for b in reader.read(partition)]
    if not batches:
        return []
    table = pa.Table.from_batches(batches)
    return list(zip(*(table.column(n).to_pylist() for n in ("partition", "offset")), strict=True))


def every(*ends: int, start: tuple[int, ...] = (0, 0)) -> list[tuple[int, int]]:
    return [(p, at) for p, end in enumerate(ends) for at in range(start[p], end)]


# --- batch


def test_batch_reads_everything_once_by_default(client: MemoryClient) -> None:
    reader = batch(client)
    assert rows(reader, list(reader.partitions())) == every(10, 4)


def test_batch_bounds_are_options(client: MemoryClient) -> None:
    reader = batch(
        client,
        startingOffsets='{"a": {"0": 8, "1": -2}}',
        endingOffsets='{"a": {"0": 9, "1": 2}}',
    )
    assert rows(reader, list(reader.partitions())) == [(0, 8), (1, 0), (1, 1)]


def test_batch_is_cut_into_more_tasks(client: MemoryClient) -> None:
    reader = batch(client, minPartitions="7")
    partitions = list(reader.partitions())
    assert len(partitions) == 7
    assert rows(reader, partitions) == every(10, 4)


def test_empty_batch_answers_sparks_stand_in_partition() -> None:
    """Spark calls `read(InputPartition(None))` when there are no partitions."""
    client = MemoryClient()
    client.create("a", 2)
    reader = batch(client)
    assert list(reader.partitions()) == []
    assert list(reader.read(InputPartition(None))) == []


def test_partitions_of_another_version_are_refused_not_skipped(client: MemoryClient) -> None:
    with pytest.raises(PipelineError, match="different versions"):
        list(batch(client).read(InputPartition("a/0 [0, 4)")))


@pytest.mark.parametrize(
    "more", [{"startingOffsets": "latest"}, {"endingOffsets": "earliest"}], ids=str
)
def test_batch_refuses_bounds_that_read_nothing(client: MemoryClient, more: dict[str, str]) -> None:
    with pytest.raises(OptionError, match="reads nothing"):
        batch(client, **more)


def test_missing_topic_is_named(client: MemoryClient) -> None:
    with pytest.raises(UnknownTopicError, match="topic b does not exist on memory:1"):
        batch(client, subscribe="a,b").partitions()


def test_one_batch_never_exceeds_its_rows(client: MemoryClient) -> None:
    reader = batch(client, arrowBatchRows="3")
    sizes = [b.num_rows for p in reader.partitions() for b in reader.read(p)]
    assert sizes == [3, 3, 3, 1, 3, 1]


# --- stream: offsets


def test_stream_starts_at_latest_by_default(client: MemoryClient) -> None:
    options = parse_options(LEAST)
    reader = OrderwireStreamReader(options, SCHEMA, lambda _: client)
    assert reader.initialOffset() == {"a": {"0": 10, "1": 4}}


@pytest.mark.parametrize("hidden", [{A0, A1}, {A1}], ids=["all", "one"])
def test_poor_metadata_answer_changes_nothing(
    client: MemoryClient, hidden: set[TopicPartition]
) -> None:
    """[SPARK-41375] One empty answer made the next batch read every partition from its start."""
    reader = stream(client)
    start = reader.initialOffset()
    middle = reader.latestOffset(start, ReadAllAvailable())
    client.append("a", 0, b"new")
    client.hidden = hidden
    after = reader.latestOffset(middle, ReadAllAvailable())
    client.hidden = set()
    end = reader.latestOffset(after, ReadAllAvailable())
    read = [
        row
        for a, b in [(start, middle), (middle, after), (after, end)]
        for row in rows(reader, reader.partitions(a, b))
    ]
    assert sorted(read) == every(11, 4)
    assert len(read) == 15


def test_partitions_that_stay_away_are_a_loss(client: MemoryClient) -> None:
    reader = stream(client)
    start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    client.hidden = {A1}
    for _ in range(MISSING_ANSWERS_MAX):
        assert reader.latestOffset(start, ReadAllAvailable()) == start
    with pytest.raises(DataLossError, match="first a/1"):
        reader.latestOffset(start, ReadAllAvailable())
    patient = stream(client, failOnDataLoss="false")
    for _ in range(2 * MISSING_ANSWERS_MAX):
        assert patient.latestOffset(start, ReadAllAvailable()) == start


def test_a_silent_leader_is_no_loss_and_no_data_is_skipped(client: MemoryClient) -> None:
    reader = stream(client)
    start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    client.append("a", 0, b"new")
    client.append("a", 1, b"new")
    client.silent = {A1}
    for _ in range(2 * MISSING_ANSWERS_MAX):
        end = reader.latestOffset(start, ReadAllAvailable())
        assert end == {"a": {"0": 11, "1": 4}}
    with pytest.raises(PipelineError, match="the leader of a/1 does not answer"):
        batch(client).partitions()
    client.silent = set()
    bounded = stream(client)
    bounded.prepareForTriggerAvailableNow()
    client.silent = {A1}
    with pytest.raises(PipelineError, match="the leader of a/1 does not answer"):
        bounded.latestOffset(start, ReadAllAvailable())


class _Liar(MemoryClient):
    """Answers "latest" with "earliest" some times."""

    lies = 0

    def bounds(self, partitions: Any) -> Any:
        told = super().bounds(partitions)
        if self.lies:
            self.lies -= 1
            return {p: marks._replace(high=marks.low) for p, marks in told.items()}
        return told


@pytest.mark.parametrize(("lies", "retries"), [(1, "3"), (3, "3"), (4, "3"), (1, "0")])
def test_latest_below_the_start_is_asked_again_then_refused(lies: int, retries: str) -> None:
    """[SPARK-26267] A broker answered "latest" with "earliest"; data was processed again."""
    client = _Liar()
    client.create("a", 1)
    client.append("a", 0, *[b"x"] * 5)
    reader = stream(client, **{"fetchOffset.numRetries": retries})
    start = {"a": {"0": 5}}
    client.append("a", 0, b"y")
    client.lies = lies
    if lies <= int(retries):
        assert reader.latestOffset(start, ReadAllAvailable()) == {"a": {"0": 6}}
    else:
        with pytest.raises(OffsetsWentBackError, match="a/0 ends at 0, but offset 5 was read"):
            reader.latestOffset(start, ReadAllAvailable())


def test_going_back_is_waited_out_when_loss_is_allowed(client: MemoryClient) -> None:
    reader = stream(client, failOnDataLoss="false")
    start = {"a": {"0": 50, "1": 2}}
    assert reader.latestOffset(start, ReadAllAvailable()) == {"a": {"0": 50, "1": 4}}


def test_new_partition_is_read_from_its_first_record(client: MemoryClient) -> None:
    reader = stream(client)
    start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    client.create("a", 3)
    client.append("a", 2, b"n0", b"n1", b"n2")
    end = reader.latestOffset(start, ReadMaxRows(2))
    assert end == {"a": {"0": 10, "1": 4, "2": 2}}
    assert rows(reader, reader.partitions(start, end)) == [(2, 0), (2, 1)]


def test_new_partition_that_lost_its_beginning_is_a_loss(client: MemoryClient) -> None:
    start = stream(client).latestOffset({"a": {"0": 0, "1": 0}}, ReadAllAvailable())
    client.create("a", 3)
    client.append("a", 2, *[b"n"] * 5)
    client.trim("a", 2, 3)
    end = {"a": {"0": 10, "1": 4, "2": 5}}
    with pytest.raises(DataLossError, match="new partition a/2 begins at offset 3"):
        stream(client).partitions(start, end)
    tolerant = stream(client, failOnDataLoss="false")
    assert rows(tolerant, tolerant.partitions(start, end)) == [(2, 3), (2, 4)]


def test_a_thousand_partitions_restart_from_their_checkpoint() -> None:
    """[SPARK-19517] The checkpoint broke on restart with many partitions."""
    client = MemoryClient()
    client.create("a", 1_000)
    for number in range(1_000):
        client.append("a", number, b"x")
    first = stream(client)
    end = first.latestOffset(first.initialOffset(), ReadMaxRows(700))
    assert sum(end["a"].values()) == 1_000  # at least one record for each lagging partition
    again = stream(client)
    assert again.latestOffset(end, ReadMaxRows(700)) == end
    client.append("a", 999, b"y")
    moved = again.latestOffset(end, ReadMaxRows(700))
    assert rows(again, again.partitions(end, moved)) == [(999, 1)]


# --- stream: admission


def test_admission_uses_the_real_limit_object(client: MemoryClient) -> None:
    """[SPARK-56367] The field is `max_rows`, whatever the docstring says."""
    reader = stream(client, maxOffsetsPerTrigger="7")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(7)
    start = reader.initialOffset()
    end = reader.latestOffset(start, limit)
    assert len(rows(reader, reader.partitions(start, end))) == 7


def test_reading_all_ignores_the_option(client: MemoryClient) -> None:
    reader = stream(client, maxOffsetsPerTrigger="3")
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert end == {"a": {"0": 10, "1": 4}}


def test_a_limit_that_cannot_be_kept_is_refused(client: MemoryClient) -> None:
    reader = stream(client)
    with pytest.raises(OptionError, match="ReadMaxBytes"):
        reader.latestOffset(reader.initialOffset(), ReadMaxBytes(5))


@given(st.lists(st.integers(0, 30), min_size=1, max_size=4), st.integers(1, 12))
def test_rows_mean_progress_and_nothing_is_read_twice(sizes: list[int], rows_max: int) -> None:
    """[SPARK-55416] Rows with an unchanged offset filled the driver's memory."""
    client = MemoryClient()
    client.create("a", len(sizes))
    for number, size in enumerate(sizes):
        client.append("a", number, *[b"x"] * size)
    reader = stream(client)
    start, read = reader.initialOffset(), []
    while True:
        end = reader.latestOffset(start, ReadMaxRows(rows_max))
        got = rows(reader, reader.partitions(start, end))
        assert bool(got) == (end != start)
        if not got:
            break
        read += got
        start = end
    assert sorted(read) == every(*sizes, start=(0,) * len(sizes))
    assert len(read) == sum(sizes)


# --- availableNow


def test_available_now_stops_at_its_target(client: MemoryClient) -> None:
    reader = stream(client)
    reader.prepareForTriggerAvailableNow()
    client.append("a", 0, b"late")
    client.create("a", 3)
    client.append("a", 2, b"later")
    start = reader.initialOffset()
    start["a"].pop("2")  # the query began before the partition was added
    end = reader.latestOffset(start, ReadMaxRows(9))
    end = reader.latestOffset(end, ReadMaxRows(9))
    assert end == {"a": {"0": 10, "1": 4}}
    assert reader.latestOffset(end, ReadMaxRows(9)) == end


def test_replay_after_a_partition_was_added_ends(client: MemoryClient) -> None:
    """[SPARK-53560] An uncommitted batch replayed after a partition was added: crash loop."""
    before = stream(client)
    before.prepareForTriggerAvailableNow()
    start = before.initialOffset()
    logged = before.latestOffset(start, ReadMaxRows(6))
    client.create("a", 3)
    client.append("a", 2, b"new")
    again = stream(client)
    replayed = rows(again, again.partitions(start, logged))
    again.prepareForTriggerAvailableNow()
    end = logged
    read = list(replayed)
    for _ in range(4):
        following = again.latestOffset(end, ReadMaxRows(6))
        read += rows(again, again.partitions(end, following))
        end = following
    assert end == {"a": {"0": 10, "1": 4, "2": 1}}
    assert sorted(read) == every(10, 4, 1, start=(0, 0, 0))


def test_topic_recreated_under_available_now_is_a_clear_error(client: MemoryClient) -> None:
    """[SPARK-41387] Partitions lost, or offsets beyond the target: no endless loop."""
    reader = stream(client)
    reader.prepareForTriggerAvailableNow()
    end = reader.latestOffset(reader.initialOffset(), ReadMaxRows(2))
    client.delete("a")
    client.create("a", 2)
    client.append("a", 0, *[b"z"] * 5)
    client.append("a", 1, *[b"z"] * 5)
    with pytest.raises(OffsetsWentBackError, match="a/0 ends at 5, below 10"):
        reader.latestOffset(end, ReadMaxRows(2))


def test_topic_gone_under_available_now_is_a_clear_error(client: MemoryClient) -> None:
    reader = stream(client)
    reader.prepareForTriggerAvailableNow()
    end = reader.latestOffset(reader.initialOffset(), ReadMaxRows(2))
    client.delete("a")
    with pytest.raises(DataLossError, match="2 known partitions are gone"):
        reader.latestOffset(end, ReadMaxRows(2))


# --- gaps and loss


GAPS: dict[str, Callable[[MemoryClient], None]] = {
    "whole": lambda c: c.append("a", 0, gap=4),
    "first": lambda c: (c.append("a", 0, gap=1), c.append("a", 0, b"x", b"y", b"z"))[0],
    "last": lambda c: c.append("a", 0, b"x", b"y", b"z", gap=1),
    "middle": lambda c: (c.append("a", 0, b"x", gap=2), c.append("a", 0, b"y"))[0],
}


@pytest.mark.parametrize("shape", GAPS)
def test_offset_gaps_end_a_range(shape: str) -> None:
    """[SPARK-25005] Transactions leave offsets without a record: count positions, not rows."""
    client = MemoryClient()
    client.create("a", 1)
    GAPS[shape](client)
    reader = stream(client)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end == {"a": {"0": 4}}
    expected = {"whole": [], "first": [1, 2, 3], "last": [0, 1, 2], "middle": [0, 3]}[shape]
    assert [at for _, at in rows(reader, reader.partitions(start, end))] == expected
    assert reader.latestOffset(end, ReadAllAvailable()) == end


def test_trimmed_range_is_a_loss_or_skipped_and_counted(client: MemoryClient) -> None:
    """[SPARK-18373, SPARK-23685] Both settings of failOnDataLoss."""
    end = {"a": {"0": 10, "1": 4}}
    client.trim("a", 0, 6)
    with pytest.raises(DataLossError, match=r"a/0: offsets 2 to 5 are gone \(4 records\)"):
        stream(client).partitions({"a": {"0": 2, "1": 4}}, end)
    tolerant = stream(client, failOnDataLoss="false")
    planned = tolerant.partitions({"a": {"0": 2, "1": 4}}, end)
    assert rows(tolerant, planned) == [(0, 6), (0, 7), (0, 8), (0, 9)]
    assert tolerant.skipped == 4


def test_records_trimmed_between_plan_and_read(client: MemoryClient) -> None:
    start, end = {"a": {"0": 0, "1": 4}}, {"a": {"0": 10, "1": 4}}
    strict, tolerant = stream(client), stream(client, failOnDataLoss="false")
    planned = strict.partitions(start, end)
    client.trim("a", 0, 8)
    with pytest.raises(DataLossError, match=r"a/0 \[0, 10\): offset 0 .* still there is 8"):
        rows(strict, planned)
    assert rows(tolerant, planned) == [(0, 8), (0, 9)]


def test_a_time_out_is_not_a_loss(client: MemoryClient) -> None:
    client.stuck = {A0}
    reader = stream(client, failOnDataLoss="false")
    planned = reader.partitions({"a": {"0": 3, "1": 4}}, {"a": {"0": 10, "1": 4}})
    with pytest.raises(ReadStuckError, match=r"topic 'a', partition 0: stuck at position 3"):
        rows(reader, planned)


def test_user_schema_is_what_the_reader_builds(client: MemoryClient) -> None:
    schema = _struct("offset long, partition integer")
    reader = OrderwireReader(parse_options(LEAST), schema, lambda _: client)
    (first, *_) = reader.read(reader.partitions()[0])
    assert first.schema.names == ["offset", "partition"]
    with pytest.raises(OptionError, match="unknown column 'size'"):
        OrderwireReader(parse_options(LEAST), _struct("size integer"), lambda _: client)


def _struct(ddl: str) -> StructType:
    made = StructType()
    for part in ddl.split(","):
        name, kind = part.split()
        made.add(name, kind)
    return made
