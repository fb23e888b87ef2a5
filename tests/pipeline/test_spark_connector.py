"""The same topics through our source and through Spark's own connector, from three replicas."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sealed_topic
from cluster_client import QUIET, in_sync, make_topic, until
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession

from orderwire.aio.broker_process import BrokerProcess
from orderwire.aio.cluster_process import ClusterProcess
from orderwire.broker.replication.settings import Mode

pytestmark = [
    pytest.mark.spark,
    pytest.mark.network,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("connector"),
]
FORMATS = ("orderwire", "kafka")
PARTITIONS = 3
SECONDS_MAX = 90.0
IMPATIENT = {"kafka.request.timeout.ms": "3000", "kafka.default.api.timeout.ms": "6000"}
"""Java's administrator asks a leader that it was told just before it was killed until its time is
over, whatever the metadata say since: by default a minute."""


@pytest.fixture(scope="module", params=list(Mode), ids=lambda mode: mode.value)
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClusterProcess]:
    folder = tmp_path_factory.mktemp("cluster")
    with ClusterProcess.start(folder, mode=request.param) as process:
        yield process
    for broker in process.brokers:
        assert "Traceback" not in broker.log.read_text()


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("sealed") / "data"
    sealed_topic.leave_sealed_topic(folder)
    with BrokerProcess.start(folder) as broker:
        yield broker


def source(reader: Any, kind: str, servers: str, topic: str, **options: str) -> Any:
    return (
        reader.format(kind)
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic)
        .options(**options)
    )


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, frame.collect()), key=lambda row: (row[3], row[4]))


def write(servers: str, topic: str, first: int, end: int, **settings: Any) -> None:
    """Numbers as values, over the partitions in turn; every seventh has no key, no value or a
    header."""
    told = {"bootstrap.servers": servers, "acks": "all", "linger.ms": 2, **QUIET, **settings}
    producer = Producer(told)
    failed: list[Any] = []
    for number in range(first, end):
        producer.produce(
            topic,
            None if number % 7 == 1 else b"%d" % number,
            None if number % 7 == 2 else b"key %d" % number,
            partition=number % PARTITIONS,
            headers=[("n", None), ("h", b"%d" % number)] if number % 7 == 3 else None,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
    assert producer.flush(60) == 0
    assert not failed, failed[0]


def test_both_read_the_same_rows(spark: SparkSession, cluster: ClusterProcess) -> None:
    topic = "read"
    make_topic(cluster.bootstrap, topic, PARTITIONS)
    for at, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        write(cluster.bootstrap, topic, at * 90, at * 90 + 90, **{"compression.codec": codec})
    ours, theirs = (
        rows(source(spark.read, kind, cluster.bootstrap, topic, includeHeaders="true").load())
        for kind in FORMATS
    )
    assert len(ours) == 450
    assert ours == theirs
    assert [row[4] for row in ours] == [*range(150)] * PARTITIONS
    part = {
        "startingOffsets": '{"read": {"0": 10, "1": 149, "2": -2}}',
        "endingOffsets": '{"read": {"0": 90, "1": -1, "2": 3}}',
    }
    ours, theirs = (
        rows(source(spark.read, kind, cluster.bootstrap, topic, **part).load()) for kind in FORMATS
    )
    assert len(ours) == 80 + 1 + 3
    assert ours == theirs


@pytest.mark.parametrize(
    ("first", "end", "count"), [(0, 1_020, 20), (0, 300, 10), (100, 600, 10), (520, 1_020, 0)]
)
def test_both_step_over_seals(
    spark: SparkSession, sealed: BrokerProcess, first: int, end: int, count: int
) -> None:
    """[S004:8.3] Ranges that begin or end within one, or hold nothing else, end too."""
    part = {
        "startingOffsets": f'{{"{sealed_topic.TOPIC}": {{"0": {first}}}}}',
        "endingOffsets": f'{{"{sealed_topic.TOPIC}": {{"0": {end}}}}}',
    }
    ours, theirs = (
        rows(source(spark.read, kind, sealed.address, sealed_topic.TOPIC, **part).load())
        for kind in FORMATS
    )
    assert len(ours) == count
    assert ours == theirs


@pytest.mark.parametrize("idempotent", [True, False], ids=["idempotent", "plain"])
def test_what_the_connector_writes_is_there_once(
    spark: SparkSession, cluster: ClusterProcess, idempotent: bool
) -> None:
    topic = f"written-{idempotent}"
    make_topic(cluster.bootstrap, topic, PARTITIONS)
    frame = spark.range(300, numPartitions=3).selectExpr(
        "cast(id as string) as key", "cast(id * id as string) as value", "int(id % 3) as partition"
    )
    (
        frame.write.format("kafka")
        .option("kafka.bootstrap.servers", cluster.bootstrap)
        .option("topic", topic)
        .option("kafka.acks", "all")
        .option("kafka.enable.idempotence", str(idempotent).lower())
        .save()
    )
    for kind in FORMATS:
        read = source(spark.read, kind, cluster.bootstrap, topic).load()
        found = read.selectExpr("int(cast(key as string))", "int(cast(value as string))").collect()
        assert sorted(map(tuple, found)) == [(number, number**2) for number in range(300)]


def streaming(
    spark: SparkSession, kind: str, servers: str, topic: str, into: Path, **trigger: Any
) -> Any:
    more = IMPATIENT if kind == "kafka" else {}
    return (
        source(spark.readStream, kind, servers, topic, startingOffsets="earliest", **more)
        .load()
        .selectExpr("partition", "offset", "cast(value as string) as value")
        .writeStream.format("parquet")
        .option("path", str(into / "rows"))
        .option("checkpointLocation", str(into / "checkpoint"))
        .trigger(**trigger)
        .start()
    )


def landed(query: Any) -> int:
    assert query.exception() is None, query.exception()
    return sum(one.numInputRows for one in query.recentProgress)


def stream_through_a_kill(
    spark: SparkSession, cluster: ClusterProcess, kind: str, into: Path
) -> None:
    """Kill the first partition's original under the query, stop the query, and go on from its
    checkpoint: each message lands once, at its offset."""
    topic = f"streamed-{kind}"
    servers = cluster.bootstrap
    make_topic(servers, topic, PARTITIONS)
    write(servers, topic, 0, 300)
    query = streaming(spark, kind, servers, topic, into, processingTime="200 milliseconds")
    until(lambda: landed(query) >= 300, "nothing comes", SECONDS_MAX)
    admin = AdminClient({"bootstrap.servers": servers, **QUIET})
    original = admin.list_topics(topic, 30).topics[topic].partitions[0].leader
    cluster.brokers[original].kill()
    settings = {"enable.idempotence": True}
    writing = threading.Thread(target=write, args=(servers, topic, 300, 600), kwargs=settings)
    writing.start()
    until(lambda: landed(query) >= 600, "the query does not go on", SECONDS_MAX)
    writing.join(60)
    query.stop()
    cluster.restart(original)
    until(lambda: in_sync(servers, topic) == [0, 1, 2], "it did not come back")
    write(servers, topic, 600, 660)
    query = streaming(spark, kind, servers, topic, into, availableNow=True)
    assert query.awaitTermination(int(SECONDS_MAX))
    assert landed(query) == 60
    found = spark.read.parquet(str(into / "rows")).collect()
    batch = source(spark.read, "orderwire", servers, topic).load()
    assert sorted(tuple(row)[:2] for row in found) == [row[3:5] for row in rows(batch)]
    assert sorted(int(row.value) for row in found if row.value is not None) == [
        number for number in range(660) if number % 7 != 1
    ]
    assert len(found) == 660


@pytest.mark.parametrize("cluster", [Mode.ACTIVE_ACTIVE], indirect=True, ids=["active-active"])
def test_a_stream_goes_on_when_the_original_is_killed(
    spark: SparkSession, cluster: ClusterProcess, tmp_path: Path
) -> None:
    stream_through_a_kill(spark, cluster, "kafka", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", FORMATS)
def test_streams_go_on_in_every_mode(
    spark: SparkSession, cluster: ClusterProcess, tmp_path: Path, kind: str
) -> None:
    stream_through_a_kill(spark, cluster, kind, tmp_path)
