"""The Spark source: rows a second and CPU a row, in the JVM and in Python's workers.

Contestants read the same topic of the same broker of ours: with cached clients, with a new client
for every task, and with three columns only; beside them, without a network, the two ways to hand
rows to Spark: Arrow batches and tuples.  The figures of CPU are the steady ones; what a job of as
many tasks costs without any row (Spark starts a process to plan each) is told apart and taken off.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from harness import arguments, report
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from orderwire.aio.broker_process import BrokerProcess
from orderwire.pipeline.arrow import COLUMNS, binary_array
from orderwire.pipeline.datasource import SCHEMA
from orderwire.pipeline.session import SessionSettings, spark_session

MESSAGE_BYTES = 100
PARTITIONS = 32
MADE_UP_FACTOR = 4
"""Rows without a network are cheap: more of them, or the clock's ticks would show."""
TOPIC = "bench"
BATCH_ROWS = 10_000
COLUMN_NAMES = [name for name in COLUMNS if name != "headers"]


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """One run of one contestant."""

    rows: int
    wall_s: float
    jvm_s: float
    python_s: float


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Medians of one contestant."""

    rows: int
    rows_per_s: float
    jvm_us_per_row: float
    python_us_per_row: float


class MadeUp(DataSource):
    """Rows without a network: the same messages over and over, as Arrow batches or as tuples."""

    @classmethod
    def name(cls) -> str:
        return "made-up"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return MadeUpReader(int(self.options["rows"]), self.options["form"])


class MadeUpReader(DataSourceReader):
    """Cut into tasks like the topic."""

    def __init__(self, rows: int, form: str) -> None:
        self.rows = rows
        self.form = form

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        left = self.rows // PARTITIONS
        while left > 0:
            count = min(left, BATCH_ROWS)
            left -= count
            values, keys = _VALUES[:count], _KEYS[:count]
            if self.form == "arrow":
                yield _arrow(partition.value, values, keys)
            else:
                for at, (value, key) in enumerate(zip(values, keys, strict=True)):
                    yield (key, value, TOPIC, partition.value, at, _WHEN, 0)


_VALUES = [b"%0100d" % number for number in range(BATCH_ROWS)]
_KEYS = [b"k"] * BATCH_ROWS
_WHEN = datetime(2024, 1, 1, tzinfo=UTC)


def _arrow(partition: int, values: list[bytes], keys: list[bytes]) -> pa.RecordBatch:
    """Build a batch from Python bytes as the source does."""
    count = len(values)
    columns = [
        binary_array(keys),
        binary_array(values),
        pa.repeat(pa.scalar(TOPIC), count),
        pa.repeat(pa.scalar(partition, pa.int32()), count),
        pa.array(range(count), pa.int64()),
        pa.repeat(pa.scalar(_WHEN, COLUMNS["timestamp"]), count),
        pa.repeat(pa.scalar(0, pa.int32()), count),
    ]
    schema = pa.schema([(name, COLUMNS[name]) for name in COLUMN_NAMES])
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def cpu_of_children() -> tuple[float, float]:
    """CPU seconds of the JVM that this process started, and of the Python under it."""
    stats = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                text = (folder / "stat").read_text()
            except OSError:
                continue  # it has just ended
            name, _, rest = text.partition("(")[2].rpartition(")")
            fields = rest.split()
            times = [int(ticks) for ticks in fields[11:15]]
            stats[int(folder.name)] = (name, int(fields[1]), times)
    mine = {int(Path("/proc/self").resolve().name)}
    grown = True
    while grown:
        found = {pid for pid, (_, parent, _) in stats.items() if parent in mine}
        grown = not found <= mine
        mine |= found
    jvm = python = 0
    for pid in mine:
        name, parent, (user, system, dead_user, dead_system) = stats[pid]
        if name == "java":
            jvm += user + system
            python += dead_user + dead_system
        elif parent in mine and _under_java(pid, stats):
            python += user + system + dead_user + dead_system
    return jvm / 100, python / 100


def _under_java(pid: int, stats: dict[int, tuple[str, int, list[int]]]) -> bool:
    while pid in stats:
        pid = stats[pid][1]
        if pid in stats and stats[pid][0] == "java":
            return True
    return False


def fill(servers: str, rows: int) -> None:
    """Write the topic."""
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    for made in admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)]).values():
        made.result(30)
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 20, "log_level": 0})
    for number in range(rows):
        value = b"%0100d" % number
        while True:
            try:
                producer.produce(TOPIC, value, b"k", partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
        if not number % 1_000:
            producer.poll(0)
    assert producer.flush(60) == 0


def drain(frame: DataFrame) -> None:
    """Make Spark read all rows and keep none."""
    frame.write.format("noop").mode("overwrite").save()


_EMPTY = "no rows"


def contestants(spark: SparkSession, servers: str, rows: int) -> dict[str, Callable[[], DataFrame]]:
    """What is compared."""

    def topic(schema: str | None = None, **options: str) -> DataFrame:
        reader = spark.read.format("orderwire")
        if schema is not None:
            reader = reader.schema(schema)
        given = {"kafka.bootstrap.servers": servers, "subscribe": TOPIC} | options
        return reader.options(**given).load()

    def made_up(form: str, count: int) -> DataFrame:
        return spark.read.format("made-up").options(rows=str(count), form=form).load()

    return {
        "topic, cached clients": topic,
        "topic, a new client a task": lambda: topic(consumerIdleMs="0"),
        "topic, three columns": lambda: topic("partition int, offset long, value binary"),
        "no network, Arrow batches": lambda: made_up("arrow", MADE_UP_FACTOR * rows),
        "no network, tuples": lambda: made_up("tuples", MADE_UP_FACTOR * rows),
        _EMPTY: lambda: made_up("arrow", 0),
    }


def run(work: Callable[[], DataFrame], rows: int) -> Cost:
    """Measure one contestant once."""
    jvm, python = cpu_of_children()
    began = time.perf_counter()
    drain(work())
    wall = time.perf_counter() - began
    jvm_after, python_after = cpu_of_children()
    return Cost(rows=rows, wall_s=wall, jvm_s=jvm_after - jvm, python_s=python_after - python)


def without(costs: list[Cost], empty: list[Cost]) -> list[Cost]:
    """The same without the CPU of a job that has no rows."""
    jvm = statistics.median(cost.jvm_s for cost in empty)
    python = statistics.median(cost.python_s for cost in empty)
    return [
        msgspec.structs.replace(
            cost, jvm_s=max(0.0, cost.jvm_s - jvm), python_s=max(0.0, cost.python_s - python)
        )
        for cost in costs
    ]


def summary(costs: list[Cost]) -> Row:
    """Medians."""
    median = statistics.median
    return Row(
        rows=costs[0].rows,
        rows_per_s=round(median(c.rows / c.wall_s for c in costs)),
        jvm_us_per_row=round(median(1e6 * c.jvm_s / c.rows for c in costs), 3),
        python_us_per_row=round(median(1e6 * c.python_s / c.rows for c in costs), 3),
    )


def ratio(ours: list[Cost], theirs: list[Cost], figure: Callable[[Cost], float]) -> float:
    """Median over the rounds of theirs / ours."""
    return round(
        statistics.median(
            figure(b) / max(figure(a), 1e-9) for a, b in zip(ours, theirs, strict=True)
        ),
        2,
    )


def main() -> None:
    parser = arguments(__doc__, repeats=3)
    parser.add_argument("--rows", type=int, default=None, help="messages in the topic")
    options = parser.parse_args()
    rows = options.rows or (64_000 if options.quick else 480_000)
    rows -= rows % PARTITIONS
    with (
        tempfile.TemporaryDirectory(prefix="orderwire-bench-") as folder,
        BrokerProcess.start(Path(folder) / "broker") as broker,
    ):
        fill(broker.address, rows)
        with spark_session(SessionSettings(name="bench-source", quick=False)) as spark:
            spark.dataSource.register(MadeUp)
            works = contestants(spark, broker.address, rows)
            costs: dict[str, list[Cost]] = {name: [] for name in works}
            counted = works["topic, cached clients"]().count()
            assert counted == rows, f"{counted} rows read of {rows}"
            for work in works.values():
                drain(work())  # warm: JVM, workers, clients
            for _ in range(options.repeats):
                for name, work in works.items():
                    factor = MADE_UP_FACTOR if name.startswith("no network") else 1
                    costs[name].append(run(work, factor * rows))
    empty = costs.pop(_EMPTY)
    costs = {name: without(runs, empty) for name, runs in costs.items()}
    cached, fresh = costs["topic, cached clients"], costs["topic, a new client a task"]
    arrow, tuples = costs["no network, Arrow batches"], costs["no network, tuples"]
    table = {name: summary(runs) for name, runs in costs.items()}
    ours = "topic, cached clients"
    report(
        "source",
        ours={ours: table.pop(ours)},
        rivals=table,
        ratios={
            "tuples / Arrow, Python CPU a row": ratio(arrow, tuples, lambda c: c.python_s),
            "tuples / Arrow, CPU a row": ratio(arrow, tuples, lambda c: c.jvm_s + c.python_s),
            "new client / cached, wall": ratio(cached, fresh, lambda c: c.wall_s),
            "new client / cached, Python CPU": ratio(cached, fresh, lambda c: c.python_s),
        },
        repeats=options.repeats,
        as_json=options.json,
        workload={
            "rows": rows,
            "message_bytes": MESSAGE_BYTES,
            "partitions": PARTITIONS,
            "task_slots": 2,
        },
        a_job_without_rows={
            "jvm_s": statistics.median(cost.jvm_s for cost in empty),
            "python_s": statistics.median(cost.python_s for cost in empty),
            "wall_s": round(statistics.median(cost.wall_s for cost in empty), 2),
        },
    )


if __name__ == "__main__":
    sys.exit(main())
