"""Topics into the lake: exactly once, whatever is killed or sent twice."""

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from orderwire.kernel import stream
from orderwire.pipeline.ingest import CHECKPOINTS, Ingested, TopicSource, application_of, ingest
from orderwire.pipeline.lake import Lake
from orderwire.trace.events import Event, EventKind
from orderwire.trace.reader import record_bytes
from orderwire.trace.schema import table_from_events

pytestmark = pytest.mark.spark
# That a second run adds nothing is shown in test_cli_jobs.


def events(run: str, process: int, positions: Iterable[int]) -> list[Event]:
    return [
        Event(
            run_id=run,
            process=process,
            position=position,
            kind=EventKind.SEND,
            time_ns=1_000 * position + process,
            clock_ns=1_000 * position,
            source=process,
            number=position,
            destinations=b"\x0b",
        )
        for position in positions
    ]


class Traces:
    """A trace topic and what was written to it."""

    def __init__(self, servers: str, name: str) -> None:
        self.name = name
        self.source = TopicSource(bootstrap=servers, rows_max=3)
        self.keys: set[tuple[str, int, int]] = set()
        self._producer = Producer({"bootstrap.servers": servers, "log_level": 0})

    def write(self, run: str, process: int, positions: Iterable[int]) -> None:
        chosen = list(positions)
        (batch,) = table_from_events(events(run, process, chosen)).combine_chunks().to_batches()
        self._producer.produce(
            self.name, record_bytes(batch), f"{run}/{process}", partition=process % 4
        )
        assert self._producer.flush(10) == 0
        self.keys |= {(run, process, position) for position in chosen}

    def junk(self, value: bytes) -> None:
        self._producer.produce(self.name, value, partition=0)
        assert self._producer.flush(10) == 0


@pytest.fixture
def traces(servers: str, new_topic: Callable[..., str]) -> Traces:
    return Traces(servers, new_topic("trace"))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


def landed(lake: Lake) -> list[tuple[str, int, int]]:
    """Keys of the events, as a reader that is not ours sees them."""
    table = DeltaTable(lake.path("events")).to_pyarrow_table()
    columns = (table.column(name).to_pylist() for name in ("run_id", "process", "position"))
    return sorted(zip(*columns, strict=True))


def check(lake: Lake, traces: Traces) -> None:
    assert landed(lake) == sorted(traces.keys)
    dests = lake.read_arrow("dests").to_pylist()
    copies = sorted((d["run_id"], d["source"], d["number"], d["destination"]) for d in dests)
    assert copies == sorted((*key, member) for key in traces.keys for member in (0, 1, 3))


def test_messages_land_once_as_they_were(
    spark: SparkSession, servers: str, new_topic: Callable[..., str], lake: Lake
) -> None:
    topic = new_topic("raw")
    producer = Producer({"bootstrap.servers": servers, "log_level": 0})
    now_ms = time.time_ns() // 1_000_000  # older ones would fall to the broker's retention
    for number in range(20):
        key = None if number % 2 else b"k"
        producer.produce(topic, b"v%d" % number, key, timestamp=now_ms + number)
    assert producer.flush(10) == 0
    source = TopicSource(bootstrap=servers, rows_max=8)
    assert ingest(spark, source, lake, topics=[topic]) == Ingested(20, 0, 0)
    rows = lake.read_arrow("raw_messages").to_pylist()
    assert sorted(int(row["value"][1:]) for row in rows) == list(range(20))
    assert all(row["timestamp_ms"] == now_ms + int(row["value"][1:]) for row in rows)
    assert {row["key"] for row in rows} == {None, b"k"}
    assert {(row["topic"], row["timestamp_type"]) for row in rows} == {(topic, 0)}
    assert lake.read(spark, "raw_messages").where("offset >= 0").count() == 20


def test_events_sent_twice_land_once(spark: SparkSession, lake: Lake, traces: Traces) -> None:
    traces.write("r", 0, range(5))
    traces.write("r", 0, range(3, 8))  # half of it again, within a micro-batch
    traces.write("r", 1, range(4))
    ingest(spark, traces.source, lake, trace_topics=[traces.name])
    traces.write("r", 0, range(5))  # and again, in a later one
    traces.write("r", 0, range(8, 10))
    traces.write("s", 0, range(3))
    made = ingest(spark, traces.source, lake, trace_topics=[traces.name])
    assert made == Ingested(0, 5, 15)
    check(lake, traces)


def test_unknown_trace_is_refused_by_name(spark: SparkSession, lake: Lake, traces: Traces) -> None:
    traces.write("r", 0, range(2))
    traces.junk(b"not a trace")
    with pytest.raises(StreamingQueryException, match=r"record trace-.*is no Arrow IPC stream"):
        ingest(spark, traces.source, lake, trace_topics=[traces.name])
    assert lake.read_arrow("events").num_rows == 0


class Killed(Exception):
    """What a process that is gone does: nothing more."""


@pytest.fixture
def kill(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Put a number into the list: so many commits from now, the writer dies before it."""
    counter: list[int] = []
    commit = Lake._commit

    def dying(self: Lake, *args: object) -> object:
        if counter:
            counter[0] -= 1
            if counter[0] < 0:
                counter.clear()
                raise Killed
        return commit(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Lake, "_commit", dying)
    return counter


def kill_and_restart(
    spark: SparkSession, lake: Lake, traces: Traces, kill: list[int], rounds: int, chance: Random
) -> None:
    """Die at a drawn commit in every round, sometimes forgetting Spark's own record of a batch."""
    checkpoint = lake.root / CHECKPOINTS / f"trace.{traces.name}"
    for number in range(rounds):
        traces.write("r", number % 3, range(5 * number, 5 * number + 5))
        if chance.random() < 0.3:
            traces.write("r", number % 3, range(5 * number, 5 * number + 5))
        kill[:] = [chance.randrange(3)]
        before = landed(lake) if lake.version("events") is not None else []
        try:
            ingest(spark, traces.source, lake, trace_topics=[traces.name])
        except StreamingQueryException:
            assert set(before) <= set(landed(lake)) <= traces.keys
        kill.clear()
        commits = sorted(int(f.name) for f in (checkpoint / "commits").glob("[0-9]*"))
        if commits and chance.random() < 0.5:
            (checkpoint / "commits" / str(commits[-1])).unlink()
            (checkpoint / "commits" / f".{commits[-1]}.crc").unlink(missing_ok=True)
    ingest(spark, traces.source, lake, trace_topics=[traces.name])
    check(lake, traces)
    application = application_of(checkpoint)
    for table in ("events", "dests"):
        assert lake.clean(table, application) == []


def test_killed_between_write_and_commit(
    spark: SparkSession, lake: Lake, traces: Traces, kill: list[int]
) -> None:
    traces.write("r", 0, range(5))
    for die_at in (0, 1):  # before the commit of events, then between it and that of dests
        kill[:] = [die_at]
        with pytest.raises(StreamingQueryException, match="Killed"):
            ingest(spark, traces.source, lake, trace_topics=[traces.name])
        assert len(landed(lake)) == 5 * die_at
        assert lake.read_arrow("dests").num_rows == 0
        written = list((lake.path("events") / "data").rglob("*.parquet"))
        assert written
    ingest(spark, traces.source, lake, trace_topics=[traces.name])
    check(lake, traces)


@pytest.mark.slow
def test_twenty_rounds_of_kill_and_restart(
    spark: SparkSession, lake: Lake, traces: Traces, kill: list[int]
) -> None:
    kill_and_restart(spark, lake, traces, kill, 20, stream(2, "kill"))


_DOOMED = """
import os, signal, sys
from orderwire.pipeline.ingest import TopicSource, ingest
from orderwire.pipeline.lake import Lake
from orderwire.pipeline.session import spark_session
Lake._commit = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
with spark_session() as spark:
    ingest(spark, TopicSource(bootstrap=sys.argv[1]), Lake(sys.argv[2]), trace_topics=[sys.argv[3]])
"""


@pytest.mark.slow
def test_a_process_killed_before_its_commit(
    spark: SparkSession, servers: str, lake: Lake, traces: Traces
) -> None:
    """The real thing: SIGKILL, then another process with the same checkpoint."""
    traces.write("r", 0, range(5))
    doomed = subprocess.run(
        [sys.executable, "-c", _DOOMED, servers, str(lake.root), traces.name],
        capture_output=True,
        timeout=200,
        check=False,
    )
    assert doomed.returncode == -signal.SIGKILL, doomed.stderr.decode()
    assert list((lake.path("events") / "data").rglob("*.parquet"))
    assert landed(lake) == []
    ingest(spark, traces.source, lake, trace_topics=[traces.name])
    check(lake, traces)


def test_a_new_checkpoint_is_not_taken_for_an_old_one(tmp_path: Path) -> None:
    """Its batches count from 0 again: under the old name they would pass for replays."""
    checkpoint = tmp_path / "trace.conference"
    first = application_of(checkpoint)
    assert application_of(checkpoint) == first
    shutil.rmtree(checkpoint)
    assert application_of(checkpoint) != first
