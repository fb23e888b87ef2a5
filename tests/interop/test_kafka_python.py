"""kafka-python against a real broker."""

import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import TopicAlreadyExistsError
from sealed_topic import TOPIC, VALUES

from orderwire.aio.broker_process import BrokerProcess

pytestmark = pytest.mark.interop

SECONDS_MAX = 30.0


# Each client is closed whatever happens: one that stays open calls a broker that is gone for ever,
# leaves a socket behind each time, and fails other tests.


def administrator(broker: BrokerProcess) -> closing[KafkaAdminClient]:
    return closing(KafkaAdminClient(bootstrap_servers=broker.address))


def producer(broker: BrokerProcess, **settings: Any) -> closing[KafkaProducer]:
    return closing(KafkaProducer(bootstrap_servers=broker.address, **settings))


def consumer(broker: BrokerProcess, group: str | None, **settings: Any) -> closing[KafkaConsumer]:
    return closing(
        KafkaConsumer(
            bootstrap_servers=broker.address,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=6000,
            heartbeat_interval_ms=200,
            **settings,
        )
    )


def write(broker: BrokerProcess, topic: str, count: int, **settings: Any) -> list[bytes]:
    values = [b"%06d" % n + b"b" * 94 for n in range(count)]
    settings.setdefault("acks", "all")
    with producer(broker, **settings) as writer:
        futures = [writer.send(topic, value) for value in values]
        assert [future.get(SECONDS_MAX).offset for future in futures] == list(range(count))
    return values


def read_to_end(broker: BrokerProcess, topic: str) -> list[bytes]:
    """Read until the position reaches the end offset, which is how this client knows the end."""
    place = TopicPartition(topic, 0)
    values: list[bytes] = []
    with consumer(broker, None) as reader:
        reader.assign([place])
        reader.seek_to_beginning(place)
        end = reader.end_offsets([place])[place]
        until = time.monotonic() + SECONDS_MAX
        while reader.position(place) < end:
            assert time.monotonic() < until, f"position {reader.position(place)} of {end}"
            for records in reader.poll(200).values():
                values += [record.value for record in records]
    return values


def poll_until(true: Callable[[], bool], *readers: KafkaConsumer) -> None:
    until = time.monotonic() + SECONDS_MAX
    while not true():
        assert time.monotonic() < until, "it did not come true in time"
        for reader in readers:
            reader.poll(50)


def test_seals_are_stepped_over(sealed: BrokerProcess) -> None:
    """[S004:8.3] In the middle, and behind the last record: the position comes to the end."""
    assert read_to_end(sealed, TOPIC) == VALUES


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_is_read_to_the_end(broker: BrokerProcess, codec: str | None) -> None:
    topic = f"python-{codec}"
    values = write(broker, topic, 500, compression_type=codec, linger_ms=20)
    assert read_to_end(broker, topic) == values


def test_group_shares_partitions_and_takes_over(broker: BrokerProcess) -> None:
    with administrator(broker) as admin, consumer(broker, "python-g") as first:
        admin.create_topics({"python-group": {"num_partitions": 4, "replication_factor": 1}})
        first.subscribe(["python-group"])
        poll_until(lambda: len(first.assignment()) == 4, first)
        with consumer(broker, "python-g") as second:
            second.subscribe(["python-group"])
            poll_until(
                lambda: len(first.assignment()) == len(second.assignment()) == 2, first, second
            )
            described = admin.describe_groups(["python-g"])["python-g"]
            assert len(described["members"]) == 2
        poll_until(lambda: len(first.assignment()) == 4, first)


def test_group_commits_and_resumes(broker: BrokerProcess) -> None:
    write(broker, "python-commit", 50)
    with consumer(broker, "python-c", max_poll_records=1) as first:
        first.subscribe(["python-commit"])
        seen = 0
        until = time.monotonic() + SECONDS_MAX
        while seen < 20 and time.monotonic() < until:
            seen += sum(map(len, first.poll(200).values()))
            if seen:
                first.commit()
    with consumer(broker, "python-c", max_poll_records=1) as second:
        second.subscribe(["python-commit"])
        got: list[Any] = []
        poll_until(lambda: bool(got) or bool(extend(got, second)))
        assert got[0].offset == 20


def extend(got: list[Any], reader: KafkaConsumer) -> list[Any]:
    for records in reader.poll(200).values():
        got += records
    return got


def test_administration(broker: BrokerProcess) -> None:
    with administrator(broker) as admin:
        topic = "python-admin"
        wanted = {topic: {"num_partitions": 2, "replication_factor": 1}}
        admin.create_topics(wanted)
        with pytest.raises(TopicAlreadyExistsError):
            admin.create_topics(wanted)
        admin.create_partitions({topic: 3})
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "7200000"})
        admin.alter_configs([resource])
        asked = ConfigResource(ConfigResourceType.TOPIC, topic, None)

        def configured() -> bool:
            kept = admin.describe_configs([asked])["topic"][topic].get("retention.ms", {})
            return bool(kept.get("value") == "7200000")

        poll_until(configured)  # other brokers learn it a moment later
        assert topic in admin.list_topics()
        poll_until(lambda: len(admin.describe_topics([topic])[0]["partitions"]) == 3)
        with producer(broker) as writer:
            sent = [writer.send(topic, b"%d" % n, partition=0) for n in range(10)]
            assert [each.get(SECONDS_MAX).offset for each in sent] == list(range(10))
        admin.delete_records({TopicPartition(topic, 0): 6})
        assert len(read_to_end(broker, topic)) == 4
        admin.delete_topics([topic])
        until = time.monotonic() + SECONDS_MAX
        while topic in admin.list_topics():  # other brokers learn it a moment later
            assert time.monotonic() < until
            time.sleep(0.05)


def test_time_lookup(broker: BrokerProcess) -> None:
    start_ms = time.time_ns() // 1_000_000  # of today: retention removes what is old
    place = TopicPartition("python-time", 0)
    with producer(broker) as writer:
        sent = [
            writer.send(place.topic, b"x", timestamp_ms=start_ms + 10 * n, partition=0)
            for n in range(20)
        ]
        assert [each.get(SECONDS_MAX).offset for each in sent] == list(range(20))
    with consumer(broker, None) as reader:
        assert reader.offsets_for_times({place: start_ms + 95})[place].offset == 10
        assert reader.offsets_for_times({place: start_ms + 1_000_000})[place] is None
        assert reader.beginning_offsets([place])[place] == 0
