"""The source inside Spark, on a real port: batch, stream, restart, replay."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

Read = Callable[..., DataFrame]


class Topic:
    """A fresh topic of four partitions."""

    def __init__(self, servers: str, name: str) -> None:
        self.servers = servers
        self.name = name
        self._producer = Producer({"bootstrap.servers": servers, "linger.ms": 1, "log_level": 0})
        self._sent = 0

    def write(self, count: int, headers: Any = None) -> None:
        for _ in range(count):
            self._producer.produce(
                self.name,
                b"v%d" % self._sent,
                b"k%d" % self._sent,
                partition=self._sent % 4,
                headers=headers,
            )
            self._sent += 1
        assert self._producer.flush(10) == 0


@pytest.fixture
def topic(servers: str, new_topic: Callable[..., str]) -> Topic:
    return Topic(servers, new_topic("t"))


def source(reader: Any, topic: Topic, **options: str) -> Any:
    return (
        reader.format("orderwire")
        .option("kafka.bootstrap.servers", topic.servers)
        .option("subscribe", topic.name)
        .options(**options)
    )


def land(
    spark: SparkSession, topic: Topic, checkpoint: str, into: Path, **options: str
) -> list[tuple[int, int]]:
    """Run the stream to the end of what is there; return all rows ever landed."""

    def write(frame: DataFrame, batch_id: int) -> None:
        frame.write.mode("overwrite").parquet(str(into / str(batch_id)))

    query = (
        source(spark.readStream, topic, startingOffsets="earliest", **options)
        .load()
        .select("partition", "offset")
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    landed = spark.read.schema("partition int, offset long").parquet(str(into / "*"))
    return sorted((row.partition, row.offset) for row in landed.collect())


def test_batch_has_the_connectors_columns_without_registering(
    spark: SparkSession, topic: Topic
) -> None:
    topic.write(40, headers=[("h", b"1"), ("n", None)])
    frame = source(spark.read, topic, includeHeaders="true").load()
    assert frame.columns == [
        "key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers",
    ]  # fmt: skip
    got = frame.orderBy("offset", "partition").collect()
    assert [bytes(row.value) for row in got] == [b"v%d" % at for at in range(40)]
    assert {bytes(row.key) for row in got} == {b"k%d" % at for at in range(40)}
    assert [(h.key, h.value) for h in got[0].headers] == [("h", b"1"), ("n", None)]
    assert {row.topic for row in got} == {topic.name}
    assert frame.where("timestamp > '2020-01-01' and timestampType = 0").count() == 40


def test_user_schema_prunes_columns(spark: SparkSession, topic: Topic) -> None:
    topic.write(12)
    frame = source(spark.read.schema("offset long, partition int"), topic, minPartitions="8").load()
    assert frame.columns == ["offset", "partition"]
    assert frame.rdd.getNumPartitions() == 8
    assert frame.selectExpr("sum(offset)").first()[0] == 4 * 3


def test_filters_work_with_the_default_configuration(spark: SparkSession, topic: Topic) -> None:
    """[SPARK-51271] Pushdown is off by default; a source that asks for it would fail."""
    topic.write(12)
    assert source(spark.read, topic).load().where("partition = 1 and offset >= 1").count() == 2


def test_empty_topic_is_an_empty_frame(spark: SparkSession, topic: Topic) -> None:
    assert source(spark.read, topic).load().collect() == []


def test_errors_reach_the_user_by_name(spark: SparkSession, topic: Topic) -> None:
    with pytest.raises(PySparkException, match=r"OptionError.*unknown option 'subscribed'"):
        source(spark.read, topic, subscribed="x").load().count()
    topic.write(4)
    starts = json.dumps({topic.name: {str(p): 90 for p in range(4)}})
    ends = json.dumps({topic.name: {str(p): 91 for p in range(4)}})
    with pytest.raises(PySparkException, match=r"DataLossError.*offsets 90 to 90 are gone"):
        source(spark.read, topic, startingOffsets=starts, endingOffsets=ends).load().count()


def test_stream_restart_and_replay_lose_and_double_nothing(
    spark: SparkSession, topic: Topic, checkpoint: str, tmp_path: Path
) -> None:
    into = tmp_path / "landed"
    topic.write(50)
    land(spark, topic, checkpoint, into, maxOffsetsPerTrigger="20")
    offsets = sorted(
        int(f.name) for f in (Path(checkpoint) / "offsets").iterdir() if f.name.isdigit()
    )
    assert offsets == [0, 1, 2]
    logged = (Path(checkpoint) / "offsets" / "2").read_text().splitlines()[-1]
    assert sum(json.loads(logged)[topic.name].values()) == 50
    # Kill after the last batch was written and before it was committed.
    for name in ("2", ".2.crc"):
        (Path(checkpoint) / "commits" / name).unlink(missing_ok=True)
    topic.write(10)
    landed = land(spark, topic, checkpoint, into, maxOffsetsPerTrigger="20")
    assert landed == sorted((at % 4, at // 4) for at in range(60))
