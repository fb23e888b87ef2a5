"""Topics of a cluster as clients see them: where they end, begin, and which brokers have them."""

import json
import os
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from cluster_client import (
    QUIET,
    SECONDS_MAX,
    Acked,
    in_sync,
    make,
    make_topic,
    quick_in,
    read_all,
    until,
)
from confluent_kafka import Consumer, ElectionType, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer
from kafka import TopicPartition as OtherPartition
from kafka_raw import RawClient, fetch_errors

from orderwire.aio.cluster_process import ClusterProcess
from orderwire.broker.cluster import named_leader
from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.replication.settings import Mode
from orderwire.broker.replication.view import BrokerId
from orderwire.broker.wire.apis import ApiKey
from orderwire.broker.wire.generated.fetch import FetchPartition, FetchRequest, FetchTopic

pytestmark = [pytest.mark.network, pytest.mark.timeout(180)]
EVERY_MODE = pytest.mark.parametrize("mode", list(Mode), ids=lambda mode: mode.value)
MAIN = "from orderwire.cli.main import main; main()"
FAR = 1_000


def partitions(cluster: ClusterProcess, topic: str) -> dict[int, list[dict[str, Any]]]:
    """What every broker that answers says of its replicas of a topic."""
    order = ("cluster", "status", "--zookeeper", cluster.zookeeper, "--json", "--topic", topic)
    done = subprocess.run(
        [sys.executable, "-c", MAIN, *order], capture_output=True, text=True, timeout=60
    )
    brokers = json.loads(done.stdout)["brokers"]
    return {one["broker"]: one["partitions"] for one in brokers}


def ids_of_every_leader() -> dict[int, str]:
    """A client id for each broker that lanes name as leader to it."""
    found: dict[int, str] = {}
    members = [BrokerId(each) for each in range(3)]
    for number in range(100):
        found.setdefault(named_leader(f"c{number}", "127.0.0.1", members), f"c{number}")
    return found


@EVERY_MODE
def test_16_an_offset_behind_the_end_is_out_of_range_at_every_replica(
    tmp_path: Path, mode: Mode
) -> None:
    """librdkafka #5158: a client whose offset will never be has to hear it, and begins anew."""
    with ClusterProcess.start(tmp_path, mode=mode) as cluster:
        make_topic(cluster.bootstrap, "t")
        every = Acked(cluster.bootstrap, "t")
        every.send(5)
        every.flush()
        for broker in cluster.brokers:
            place = [FetchPartition(0, -1, FAR, -1, -1, 1 << 20)]
            ask = FetchRequest(
                max_wait_ms=500, min_bytes=1, topics=[FetchTopic("t", partitions=place)]
            )
            with RawClient(broker.address) as client:
                found = client.ask_again(ApiKey.FETCH, 12, ask, fetch_errors)
                answer = found.responses[0].partitions[0]
                assert answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        for name in ids_of_every_leader().values():
            consumer = Consumer(
                {
                    "bootstrap.servers": cluster.bootstrap,
                    "group.id": "far",
                    "client.id": name,
                    "auto.offset.reset": "earliest",
                    **QUIET,
                }
            )
            seen: list[bytes | None] = []
            until_s = time.monotonic() + SECONDS_MAX
            with closing(consumer):
                consumer.assign([TopicPartition("t", 0, FAR)])
                while len(seen) < 5 and time.monotonic() < until_s:
                    message = consumer.poll(1)
                    if message is not None and message.error() is None:
                        seen.append(message.value())
            assert seen == [b"%d" % number for number in range(5)]
            other = KafkaConsumer(
                bootstrap_servers=cluster.bootstrap.split(","),
                client_id=name,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                consumer_timeout_ms=20_000,
            )
            with closing(other):
                other.assign([OtherPartition("t", 0)])
                other.seek(OtherPartition("t", 0), FAR)
                assert next(other).offset == 0


@EVERY_MODE
def test_deleted_records_do_not_come_back_with_another_original(tmp_path: Path, mode: Mode) -> None:
    with ClusterProcess.start(tmp_path, mode=mode, session_ms=2_000) as cluster:
        make_topic(cluster.bootstrap, "t")
        every = Acked(cluster.bootstrap, "t")
        every.send(100)
        every.flush()
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
        place = TopicPartition("t", 0, 60)
        assert admin.delete_records([place])[place].result(SECONDS_MAX).low_watermark == 60
        told = partitions(cluster, "t")
        assert [told[each][0]["start_offset"] for each in range(3)] == [60] * 3
        cluster.brokers[told[0][0]["original"]].kill()
        consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "first", **QUIET})

        begins: list[int] = []

        def is_told() -> bool:
            try:
                consumer.list_topics("t", 5)
                begins[:] = consumer.get_watermark_offsets(TopicPartition("t", 0), timeout=3)[:1]
            except KafkaException:  # the client still asks the one that was killed
                return False
            return True

        with closing(consumer):
            until(is_told, "nobody says where it begins")
        assert begins == [60]
        found = read_all(cluster.bootstrap, "t", 40, **{"auto.offset.reset": "earliest"})
        assert sorted(found) == list(range(60, 100))


def committed(cluster: ClusterProcess, group: str) -> int:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group, **QUIET})
    try:
        return int(consumer.committed([TopicPartition("t", 0)], timeout=10)[0].offset)
    except KafkaException:  # another coordinates since a moment
        return -1
    finally:
        consumer.close()


def commit(cluster: ClusterProcess, group: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group, **QUIET})
    place = TopicPartition("t", 0, offset)
    end = time.monotonic() + SECONDS_MAX
    with closing(consumer):
        while True:
            try:
                consumer.commit(offsets=[place], asynchronous=False)
                return
            except KafkaException:
                assert time.monotonic() < end
                time.sleep(0.2)


@quick_in(Mode.ACTIVE_ACTIVE_LANES)
def test_what_was_made_while_one_broker_lived_has_copies_when_others_come(
    tmp_path: Path, mode: Mode
) -> None:
    """A topic made by itself, and the one that keeps the groups."""
    with ClusterProcess.start(tmp_path, mode=mode, session_ms=2_000) as cluster:
        for index in (1, 2):
            cluster.brokers[index].kill()
        admin = AdminClient({"bootstrap.servers": cluster.brokers[0].address, **QUIET})
        until(lambda: len(admin.list_topics(timeout=SECONDS_MAX).brokers) == 1, "the dead live on")
        made = admin.create_topics([NewTopic("refused", 1, 3)])["refused"]
        with pytest.raises(KafkaException) as refusal:
            made.result(SECONDS_MAX)
        assert refusal.value.args[0].code() == KafkaError.INVALID_REPLICATION_FACTOR
        every = Acked(cluster.bootstrap, "t")
        every.send(50)
        every.flush()
        commit(cluster, "g", 7)
        (alone,) = partitions(cluster, "t")[0]
        assert alone["replicas"] == [0]
        cluster.restart(1)
        cluster.restart(2)
        until(
            lambda: all(
                sorted(one["isr"]) == [0, 1, 2]
                for topic in ("t", "__consumer_offsets")
                for one in partitions(cluster, topic)[0]
            ),
            "there are no copies",
        )
        every.send(50)
        every.flush()
        cluster.brokers[0].kill()
        assert (
            read_all(cluster.bootstrap, "t", 100, **{"auto.offset.reset": "earliest"}) == every.at
        )
        until(lambda: committed(cluster, "g") == 7, "the group's offset is gone")


def test_a_topic_deleted_while_a_broker_was_down_leaves_nothing_there(tmp_path: Path) -> None:
    with ClusterProcess.start(tmp_path, session_ms=2_000) as cluster:
        for name in ("stays", "goes"):
            make_topic(cluster.bootstrap, name)
            every = Acked(cluster.bootstrap, name)
            every.send(20)
            every.flush()
        folder = tmp_path / "broker-2" / "topics"
        before = set(os.listdir(folder))
        assert len(before) == 2
        cluster.brokers[2].kill()
        admin = AdminClient({"bootstrap.servers": cluster.brokers[0].address, **QUIET})
        admin.delete_topics(["goes"])["goes"].result(SECONDS_MAX)
        assert set(os.listdir(folder)) == before
        (folder / "notes").mkdir()
        cluster.restart(2)
        until(lambda: len(os.listdir(folder)) == 2, "it is still there")
        left = set(os.listdir(folder))
        assert len(left & before) == 1
        assert "notes" in left, "what no broker has made is left alone"
        until(lambda: in_sync(cluster.bootstrap, "stays") == [0, 1, 2], "it did not come back")
        make_topic(cluster.bootstrap, "goes")
        assert read_all(cluster.bootstrap, "stays", 20, **{"auto.offset.reset": "earliest"})


def leader_of(cluster: ClusterProcess) -> int | None:
    """What broker 0 says; None while it knows of none, or has not heard of the topic."""
    told = partitions(cluster, "t").get(0)
    return told[0]["original"] if told else None


@EVERY_MODE
def test_a_broker_that_returns_takes_its_partitions_back_and_nobody_is_hurt(
    tmp_path: Path, mode: Mode
) -> None:
    """By itself after a second in sync, then by ElectLeaders; under load, without idempotence."""
    option = "--preferred-after-s=1"
    with ClusterProcess.start(tmp_path, option, mode=mode, session_ms=2_000) as cluster:
        make(cluster.bootstrap, NewTopic("t", 1, replica_assignment=[[1, 0, 2]]))
        until(lambda: leader_of(cluster) == 1, "another was elected first")
        every = Acked(cluster.bootstrap, "t", **{"enable.idempotence": False, "retries": 1_000})
        every.send(20)
        every.flush()
        cluster.brokers[1].kill()
        until(lambda: leader_of(cluster) in (0, 2), "nobody took over")
        cluster.restart(1)
        until(lambda: in_sync(cluster.bootstrap, "t") == [0, 1, 2], "it did not come back")
        every.send(500, 0.01)
        every.flush()
        until(lambda: leader_of(cluster) == 1, "it did not take the partition back")
        assert not every.errors
        found = read_all(cluster.bootstrap, "t", 520, **{"auto.offset.reset": "earliest"})
        assert found == every.at, "nothing is lost, and nothing is there twice"
        assert sorted(found) == list(range(520)), "no hole, no copy"
        for broker in cluster.brokers:
            assert "Traceback" not in broker.log.read_text()


def test_elections_are_held_when_somebody_asks_for_them(tmp_path: Path) -> None:
    option = "--preferred-after-s=0"
    with ClusterProcess.start(tmp_path, option, session_ms=2_000) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
        make(cluster.bootstrap, NewTopic("t", 2, replica_assignment=[[2, 0, 1], [0, 1, 2]]))
        until(lambda: leader_of(cluster) == 2, "another was elected first")
        cluster.brokers[2].kill()
        until(lambda: leader_of(cluster) in (0, 1), "nobody took over")
        place = TopicPartition("t", 0)
        away = admin.elect_leaders(ElectionType.PREFERRED, [place]).result(SECONDS_MAX)[place]
        assert away is not None
        assert away.code() == KafkaError.PREFERRED_LEADER_NOT_AVAILABLE
        cluster.restart(2)
        until(lambda: in_sync(cluster.bootstrap, "t") == [0, 1, 2], "it did not come back")
        time.sleep(1)
        assert leader_of(cluster) in (0, 1), "never by itself"

        def is_given() -> bool:  # who is asked may learn a moment later that it is in sync
            asked = admin.elect_leaders(ElectionType.PREFERRED, [place])
            error = asked.result(SECONDS_MAX)[place]
            assert error is None or error.code() in (
                KafkaError.PREFERRED_LEADER_NOT_AVAILABLE,
                KafkaError.ELECTION_NOT_NEEDED,
                KafkaError.REQUEST_TIMED_OUT,
            ), error
            return leader_of(cluster) == 2

        until(is_given, "it is not given back")
        again = admin.elect_leaders(ElectionType.PREFERRED, [place]).result(SECONDS_MAX)[place]
        assert again is not None
        assert again.code() == KafkaError.ELECTION_NOT_NEEDED
        assert admin.elect_leaders(ElectionType.PREFERRED).result(SECONDS_MAX) == {}
