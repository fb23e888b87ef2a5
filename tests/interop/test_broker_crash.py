"""kill -9 under load: what was acknowledged is there, once, in order; groups go on."""

import threading
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic
from kafka_raw import RawClient

from orderwire.aio.broker_process import BrokerProcess
from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.wire.apis import ApiKey
from orderwire.broker.wire.generated.heartbeat import HeartbeatRequest
from orderwire.broker.wire.generated.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from orderwire.broker.wire.generated.offset_fetch import OffsetFetchRequest
from orderwire.broker.wire.generated.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

pytestmark = pytest.mark.interop

SECONDS_MAX = 60.0


class Load:
    """An idempotent producer at full speed, with what it was told for every message."""

    def __init__(self, address: str, topic: str) -> None:
        self.acknowledged: dict[int, int] = {}
        self.failures: list[str] = []
        self._topic = topic
        self._sent = 0
        self._stop = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "linger.ms": 2,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def __enter__(self) -> "Load":
        return self

    def __exit__(self, *what: object) -> None:
        """A thread that goes on would keep the whole run of tests from ending."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            number = self._sent

            def delivered(error: KafkaError | None, message: Any, number: int = number) -> None:
                if error is None:
                    self.acknowledged[number] = message.offset()
                else:
                    self.failures.append(error.str())

            try:
                self._producer.produce(
                    self._topic, b"%d" % number, partition=0, on_delivery=delivered
                )
                self._sent += 1
            except BufferError:
                self._producer.poll(0.01)
            self._producer.poll(0)
            if self._sent % 200 == 0:
                self._stop.wait(0.002)

    def wait_for(self, count: int) -> None:
        """Return when this many messages are acknowledged."""
        until = time.monotonic() + SECONDS_MAX
        while len(self.acknowledged) < count:
            assert time.monotonic() < until, f"{len(self.acknowledged)} of {count} acknowledged"
            self._stop.wait(0.01)

    def finish(self) -> int:
        """Stop, wait for what is under way, and return how many messages were sent."""
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(SECONDS_MAX) == 0
        return self._sent


def read_all(address: str, topic: str) -> list[tuple[int, bytes]]:
    reader = Consumer(
        {"bootstrap.servers": address, "group.id": "nobody", "enable.partition.eof": True}
    )
    reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    records: list[tuple[int, bytes]] = []
    until = time.monotonic() + SECONDS_MAX
    try:
        while time.monotonic() < until:
            messages = reader.consume(10_000, 0.5)
            for message in messages:
                error = message.error()
                if error is not None:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    return records
                records.append((message.offset(), message.value()))
        raise AssertionError(f"no end of {topic} after {len(records)} messages")
    finally:
        reader.close()


@pytest.mark.parametrize("flush", ["none", "group"])
def test_acknowledged_messages_survive_kill_9_once_and_in_order(tmp_path: Path, flush: str) -> None:
    """Two kills under load.  The process dies, not the machine: flush=none keeps it all too."""
    with ExitStack() as stack:

        def start(listen: str = "127.0.0.1:0") -> BrokerProcess:
            begun = BrokerProcess.start(tmp_path / "data", "--flush", flush, listen=listen)
            return stack.enter_context(begun)

        broker = start()
        address = broker.address
        load = stack.enter_context(Load(address, "chaos"))
        for round_number in (1, 2):
            load.wait_for(2_000 * round_number)
            broker.kill()
            broker = start(address)
        load.wait_for(6_000)
        sent = load.finish()
        records = read_all(address, "chaos")
        assert broker.stop() == 0
    assert load.failures == []
    assert len(load.acknowledged) == sent
    assert [offset for offset, _ in records] == list(range(len(records)))
    values = [value for _, value in records]
    assert values == [b"%d" % n for n in range(sent)], "lost, doubled or out of order"
    told = {number: offset for number, offset in load.acknowledged.items() if offset >= 0}
    assert all(values[offset] == b"%d" % number for number, offset in told.items())


def test_groups_and_offsets_survive_kill_9(tmp_path: Path) -> None:
    """A member keeps its generation and assignment over the restart, and its commits."""
    with BrokerProcess.start(tmp_path / "data", "--rebalance-delay-ms", "0") as broker:
        address = broker.address
        admin = AdminClient({"bootstrap.servers": address})
        admin.create_topics([NewTopic("kept", 1)])["kept"].result(SECONDS_MAX)
        producer = Producer({"bootstrap.servers": address})
        for n in range(10):
            producer.produce("kept", b"%d" % n)
        assert producer.flush(SECONDS_MAX) == 0
        commit(address, "simple", TopicPartition("kept", 0, 7))
        with RawClient(address) as raw:
            member, generation = join_alone(raw, "strong")
        broker.kill()
    with BrokerProcess.start(tmp_path / "data", listen=address), RawClient(address) as raw:
        beat = raw.ask(ApiKey.HEARTBEAT, 3, HeartbeatRequest("strong", generation, member))
        assert beat.error_code == ErrorCode.NONE
        sync = raw.ask(ApiKey.SYNC_GROUP, 3, SyncGroupRequest("strong", generation, member))
        assert bytes(sync.assignment) == b"all of it"
        answer = raw.ask(ApiKey.OFFSET_FETCH, 5, OffsetFetchRequest("simple", None))
        assert [
            (topic.name, one.committed_offset)
            for topic in answer.topics
            for one in topic.partitions
        ] == [("kept", 7)]


def commit(address: str, group: str, place: TopicPartition) -> None:
    with closing(Consumer({"bootstrap.servers": address, "group.id": group})) as committer:
        committer.commit(offsets=[place], asynchronous=False)


def join_alone(raw: RawClient, group: str) -> tuple[str, int]:
    """Become the only member of a group, with an assignment."""
    ask = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol("range", b"m")],
    )
    joined = raw.ask(ApiKey.JOIN_GROUP, 3, ask)
    assert joined.error_code == ErrorCode.NONE
    given = [SyncGroupRequestAssignment(joined.member_id, b"all of it")]
    sync = SyncGroupRequest(group, joined.generation_id, joined.member_id, assignments=given)
    assert raw.ask(ApiKey.SYNC_GROUP, 3, sync).error_code == ErrorCode.NONE
    return joined.member_id, joined.generation_id


def test_torn_tail_is_cut_and_commits_never_point_behind_the_end(tmp_path: Path) -> None:
    """What a power failure leaves: half a batch, and a commit beyond what is left of the log."""
    with BrokerProcess.start(tmp_path / "data") as broker:
        address = broker.address
        producer = Producer({"bootstrap.servers": address, "linger.ms": 0})
        for n in range(20):
            producer.produce("torn", b"%d" % n, partition=0)
            assert producer.flush(SECONDS_MAX) == 0
        commit(address, "ahead", TopicPartition("torn", 0, 20))
        broker.kill()
    segment = next((tmp_path / "data" / "topics").glob("*/0/*.log"))
    with segment.open("r+b") as file:
        file.truncate(segment.stat().st_size - 10)
    with BrokerProcess.start(tmp_path / "data", listen=address):
        assert [value for _, value in read_all(address, "torn")] == [b"%d" % n for n in range(19)]
        with closing(Consumer({"bootstrap.servers": address, "group.id": "ahead"})) as reader:
            place = reader.committed([TopicPartition("torn", 0)], SECONDS_MAX)[0]
        assert place.offset == 19, "a commit behind the end would skip the next message"
