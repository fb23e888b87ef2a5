"""librdkafka through confluent-kafka against a real broker."""

import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from kafka_raw import RawClient
from sealed_topic import TOPIC, VALUES

from orderwire.aio.broker_process import BrokerProcess
from orderwire.broker.wire.apis import ApiKey
from orderwire.broker.wire.generated.fetch import FetchPartition, FetchRequest, FetchTopic

pytestmark = pytest.mark.interop

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
SECONDS_MAX = 30.0


def produce(
    broker: BrokerProcess,
    topic: str,
    values: list[bytes],
    partition: int = -1,
    **settings: Any,
) -> list[int]:
    """Write all values and return their offsets in order of acknowledgement."""
    offsets: list[int] = []

    def delivered(error: KafkaError | None, message: Any) -> None:
        assert error is None, error
        offsets.append(message.offset())

    producer = Producer({"bootstrap.servers": broker.address, **settings})
    for value in values:
        producer.produce(topic, value, partition=partition, on_delivery=delivered)
        producer.poll(0)
    assert producer.flush(SECONDS_MAX) == 0
    return offsets


def consumer(broker: BrokerProcess, group: str, **settings: Any) -> closing[Consumer]:
    """Closed whatever happens: a member that stays holds up its group."""
    return closing(
        Consumer(
            {
                "bootstrap.servers": broker.address,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 200,
                **settings,
            }
        )
    )


def read_to_end(broker: BrokerProcess, topic: str, partition: int = 0) -> list[bytes]:
    values: list[bytes] = []
    until = time.monotonic() + SECONDS_MAX
    with consumer(broker, "nobody") as reader:
        reader.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
        while time.monotonic() < until:
            for message in reader.consume(1000, 0.2):
                error = message.error()
                if error is None:
                    values.append(message.value())
                else:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    return values
    raise AssertionError(f"no end of {topic} after {len(values)} messages")


def next_of(reader: Consumer) -> Any:
    """The next message; of a topic that is new the client may hear that nobody knows it yet."""
    until = time.monotonic() + SECONDS_MAX
    said = None
    while time.monotonic() < until:
        message = reader.poll(1)
        if message is not None and message.error() is None:
            return message
        said = said if message is None else message.error()
    raise AssertionError(f"no message; the last that was said is {said}")


def wait_until(true: Callable[[], bool], *consumers: Consumer) -> list[Any]:
    """Poll the consumers until something holds; returns the messages that came."""
    messages = []
    until = time.monotonic() + SECONDS_MAX
    while not true():
        assert time.monotonic() < until, "it did not come true in time"
        for each in consumers:
            message = each.poll(0.05)
            if message is not None and message.error() is None:
                messages.append(message)
    return messages


def test_seals_are_stepped_over(sealed: BrokerProcess) -> None:
    """[S004:8.3] In the middle, and behind the last record: the position comes to the end."""
    assert read_to_end(sealed, TOPIC) == VALUES


@pytest.mark.parametrize("codec", list(CODECS))
def test_every_codec_is_kept_as_written_and_read_to_the_end(
    broker: BrokerProcess, codec: str
) -> None:
    topic = f"confluent-{codec}"
    values = [b"%06d" % n + b"a" * 94 for n in range(2_000)]
    settings = {"compression.type": codec, "linger.ms": 20}
    assert produce(broker, topic, values, **settings) == list(range(2_000))
    assert read_to_end(broker, topic) == values
    assert stored_codecs(broker, topic) == {CODECS[codec]}


def stored_codecs(broker: BrokerProcess, topic: str) -> set[int]:
    """The codec bits in the attributes of every stored batch, as a raw fetch shows them."""
    ask = FetchRequest(
        max_wait_ms=0,
        topics=[FetchTopic(topic, partitions=[FetchPartition(0, -1, 0, -1, -1, 1 << 24)])],
    )
    with RawClient(broker.address) as raw:
        answer = raw.ask(ApiKey.FETCH, 4, ask)
    records = answer.responses[0].partitions[0].records
    codecs = set()
    at = 0
    while at + 23 <= len(records):
        codecs.add(int.from_bytes(records[at + 21 : at + 23], "big") & 7)
        at += 12 + int.from_bytes(records[at + 8 : at + 12], "big")
    return codecs


def test_idempotent_producer_keys_headers_and_time(broker: BrokerProcess) -> None:
    producer = Producer({"bootstrap.servers": broker.address, "enable.idempotence": True})
    failures: list[str] = []
    stamp = time.time_ns() // 1_000_000  # of today: retention removes what is old
    for n in range(100):
        producer.produce(
            "confluent-idem",
            b"v",
            b"k%d" % n,
            headers={"n": b"%d" % n},
            timestamp=stamp + n,
            on_delivery=lambda error, _: failures.append(str(error)) if error else None,
        )
    assert producer.flush(SECONDS_MAX) == 0
    assert failures == []
    place = TopicPartition("confluent-idem", 0)
    with consumer(broker, "nobody") as reader:
        reader.assign([TopicPartition("confluent-idem", 0, OFFSET_BEGINNING)])
        got = [next_of(reader) for _ in range(100)]
        assert [message.key() for message in got] == [b"k%d" % n for n in range(100)]
        assert got[7].headers() == [("n", b"7")]
        assert got[7].timestamp()[1] == stamp + 7
        wanted = TopicPartition("confluent-idem", 0, stamp + 42)
        assert reader.offsets_for_times([wanted], SECONDS_MAX)[0].offset == 42
        assert reader.get_watermark_offsets(place, timeout=SECONDS_MAX) == (0, 100)


def test_group_shares_partitions_and_takes_over(broker: BrokerProcess) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic("confluent-group", 4)])["confluent-group"].result(SECONDS_MAX)
    with consumer(broker, "confluent-g") as first:
        first.subscribe(["confluent-group"])
        wait_until(lambda: len(first.assignment()) == 4, first)
        with consumer(broker, "confluent-g") as second:
            second.subscribe(["confluent-group"])
            wait_until(
                lambda: len(first.assignment()) == 2 and len(second.assignment()) == 2,
                first,
                second,
            )
            asked = admin.describe_consumer_groups(["confluent-g"])["confluent-g"]
            described = asked.result(SECONDS_MAX)
            assert len(described.members) == 2
            assert described.state.name == "STABLE"
        wait_until(lambda: len(first.assignment()) == 4, first)


def test_group_commits_and_resumes(broker: BrokerProcess) -> None:
    produce(broker, "confluent-commit", [b"%d" % n for n in range(100)])
    with consumer(broker, "confluent-c") as first:
        first.subscribe(["confluent-commit"])
        for n in range(40):
            message = next_of(first)
            assert message.value() == b"%d" % n
            first.commit(message, asynchronous=False)
    with consumer(broker, "confluent-c") as second:
        second.subscribe(["confluent-commit"])
        assert next_of(second).value() == b"40"


def test_static_member_returns_without_a_rebalance(broker: BrokerProcess) -> None:
    produce(broker, "confluent-static", [b"x"])
    for _ in range(2):
        with consumer(broker, "confluent-s", **{"group.instance.id": "one"}) as member:
            member.subscribe(["confluent-static"])
            wait_until(lambda member=member: len(member.assignment()) == 1, member)


def wait_for(holds: Callable[[], bool]) -> None:
    """What one broker of a cluster did the others learn a moment later."""
    end = time.monotonic() + SECONDS_MAX
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_administration(broker: BrokerProcess) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    topic = "confluent-admin"
    made = NewTopic(topic, 2, config={"retention.ms": "3600000"})
    admin.create_topics([made])[topic].result(SECONDS_MAX)
    with pytest.raises(KafkaException, match="already exists"):
        admin.create_topics([made])[topic].result(SECONDS_MAX)
    with pytest.raises(KafkaException, match="compaction is not supported"):
        admin.create_topics([NewTopic("c", 1, config={"cleanup.policy": "compact"})])["c"].result(
            SECONDS_MAX
        )
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(SECONDS_MAX)
    resource = ConfigResource(ResourceType.TOPIC, topic)
    configs = admin.describe_configs([resource])[resource].result(SECONDS_MAX)
    assert configs["retention.ms"].value == "3600000"
    change = ConfigResource(
        ResourceType.TOPIC,
        topic,
        incremental_configs=[
            ConfigEntry("segment.bytes", "1048576", incremental_operation=AlterConfigOpType.SET),
            ConfigEntry("retention.ms", None, incremental_operation=AlterConfigOpType.DELETE),
        ],
    )
    admin.incremental_alter_configs([change])[change].result(SECONDS_MAX)
    configs = admin.describe_configs([resource])[resource].result(SECONDS_MAX)
    assert configs["segment.bytes"].value == "1048576"
    assert configs["retention.ms"].value == "604800000"
    cluster = admin.describe_cluster().result(SECONDS_MAX)
    assert sorted(node.id for node in cluster.nodes) in ([1], [0, 1, 2])
    assert produce(broker, topic, [b"%d" % n for n in range(10)], partition=0) == list(range(10))
    place = TopicPartition(topic, 0, 4)
    low = admin.delete_records([place])[place].result(SECONDS_MAX)
    assert low.low_watermark == 4
    place = TopicPartition(topic, 0)
    start = admin.list_offsets({place: OffsetSpec.earliest()})[place].result(SECONDS_MAX)
    assert start.offset == 4
    assert read_to_end(broker, topic) == [b"%d" % n for n in range(4, 10)]
    wait_for(lambda: len(admin.list_topics(timeout=SECONDS_MAX).topics[topic].partitions) == 3)
    admin.delete_topics([topic])[topic].result(SECONDS_MAX)
    wait_for(lambda: topic not in admin.list_topics(timeout=SECONDS_MAX).topics)


def test_groups_are_listed_and_deleted(broker: BrokerProcess) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    produce(broker, "confluent-gone", [b"x"])
    with consumer(broker, "confluent-gone-g") as reader:
        reader.subscribe(["confluent-gone"])
        wait_until(lambda: bool(reader.assignment()), reader)
        reader.commit(offsets=[TopicPartition("confluent-gone", 0, 1)], asynchronous=False)
        listed = admin.list_consumer_groups().result(SECONDS_MAX)
        assert "confluent-gone-g" in {group.group_id for group in listed.valid}
        with pytest.raises(KafkaException):
            admin.delete_consumer_groups(["confluent-gone-g"])["confluent-gone-g"].result(
                SECONDS_MAX
            )
    admin.delete_consumer_groups(["confluent-gone-g"])["confluent-gone-g"].result(SECONDS_MAX)
    listed = admin.list_consumer_groups().result(SECONDS_MAX)
    assert "confluent-gone-g" not in {group.group_id for group in listed.valid}


def test_transactions_are_refused_at_once(broker: BrokerProcess) -> None:
    producer = Producer({"bootstrap.servers": broker.address, "transactional.id": "t"})
    with pytest.raises(KafkaException) as refused:
        producer.init_transactions(SECONDS_MAX)
    assert refused.value.args[0].code() != KafkaError._TIMED_OUT
