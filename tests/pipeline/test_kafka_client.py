"""The confluent-kafka client against a broker of ours and librdkafka's mock cluster."""

import time
import uuid
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient

from orderwire.pipeline.client import ReadLimits
from orderwire.pipeline.errors import (
    DataLossError,
    OffsetsWentBackError,
    OptionError,
    PipelineError,
    ReadStuckError,
)
from orderwire.pipeline.kafka_client import ClientCache, KafkaClient
from orderwire.pipeline.offsets import OffsetRange, TopicPartition, Watermarks

pytestmark = pytest.mark.network

QUICK = ReadLimits(stuck_ms=1_500)
TOLERANT = ReadLimits(stuck_ms=5_000, fail_on_data_loss=False)


def fill(servers: str, topic: str, count: int, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": servers, "log_level": 0})
    for number in range(count):
        producer.produce(topic, b"v%d" % number, partition=partition)
    assert producer.flush(20) == 0


@pytest.fixture(scope="module")
def mock_servers() -> Iterator[str]:
    """HOST:PORT of librdkafka's mock cluster: topics of four partitions, made on demand."""
    settings = {"bootstrap.servers": "127.0.0.1:1", "test.mock.num.brokers": 1, "log_level": 0}
    owner = Producer(settings)
    brokers = owner.list_topics(timeout=10).brokers.values()
    yield ",".join(f"{broker.host}:{broker.port}" for broker in brokers)
    owner.flush(1)


@pytest.fixture(params=["ours", "mock"])
def filled(
    request: pytest.FixtureRequest, servers: str, mock_servers: str, new_topic: Callable[..., str]
) -> tuple[str, str]:
    """Servers and a topic with 2,500 records in partition 0."""
    if request.param == "ours":
        topic = new_topic("client")
        fill(servers, topic, 2_500)
        return servers, topic
    topic = f"client-{uuid.uuid4().hex[:8]}"
    fill(mock_servers, topic, 2_500)
    return mock_servers, topic


@pytest.fixture
def client(filled: tuple[str, str]) -> Iterator[KafkaClient]:
    made = KafkaClient([("bootstrap.servers", filled[0])])
    yield made
    made.close()


def offsets(client: KafkaClient, wanted: OffsetRange, limits: ReadLimits = QUICK) -> list[int]:
    return [m.offset() for messages in client.read(wanted, limits) for m in messages]


def test_metadata_and_watermarks(client: KafkaClient, filled: tuple[str, str]) -> None:
    topic = filled[1]
    partitions = client.partitions([topic, "no-such-topic"])
    assert partitions == [TopicPartition(topic, number) for number in range(4)]
    assert client.bounds(partitions) == {
        p: Watermarks(0, 2_500 if p.partition == 0 else 0) for p in partitions
    }
    assert client.bounds([]) == {}


def test_ranges_are_read_exactly(client: KafkaClient, filled: tuple[str, str]) -> None:
    topic = filled[1]
    for start, end in ((0, 2_500), (17, 18), (2_499, 2_500), (100, 1_300), (5, 5)):
        assert offsets(client, OffsetRange(topic, 0, start, end)) == list(range(start, end))
    sizes = [
        len(messages)
        for messages in client.read(
            OffsetRange(topic, 0, 0, 2_500), ReadLimits(chunk_messages=1_000)
        )
    ]
    assert max(sizes) <= 1_000
    (small, *_) = client.read(OffsetRange(topic, 0, 0, 2_500), ReadLimits(chunk_bytes=1))
    assert small


def test_a_range_at_the_end_of_the_log_ends_at_once(
    client: KafkaClient, filled: tuple[str, str]
) -> None:
    """No waiting for a time-out, 30 s, when the last record has come."""
    began = time.monotonic()
    place = OffsetRange(filled[1], 0, 2_000, 2_500)
    assert len(offsets(client, place, ReadLimits(stuck_ms=30_000))) == 500
    assert time.monotonic() - began < 10.0


def test_an_end_that_is_no_more_is_an_error_in_bounded_time(
    client: KafkaClient, filled: tuple[str, str]
) -> None:
    wanted = OffsetRange(filled[1], 0, 2_490, 2_510)
    with pytest.raises(OffsetsWentBackError, match=r"ends at 2500 now, below the planned end"):
        offsets(client, wanted, ReadLimits(stuck_ms=20_000))
    assert offsets(client, wanted, TOLERANT) == list(range(2_490, 2_500))


def test_a_stuck_read_names_the_place(client: KafkaClient, filled: tuple[str, str]) -> None:
    topic = filled[1]
    with pytest.raises(ReadStuckError, match=f"'{topic}', partition 9: stuck at position 4 of"):
        offsets(client, OffsetRange(topic, 9, 4, 6), ReadLimits(stuck_ms=300))


def test_a_trimmed_start_is_a_loss_in_bounded_time(
    servers: str, new_topic: Callable[..., str]
) -> None:
    """Out of range with `auto.offset.reset=error` once hung instead of failing."""
    topic = new_topic("trimmed")
    fill(servers, topic, 100)
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    (trimmed,) = admin.delete_records([ClientPartition(topic, 0, 60)]).values()
    assert trimmed.result(20).low_watermark == 60
    client = KafkaClient([("bootstrap.servers", servers)])
    began = time.monotonic()
    with pytest.raises(DataLossError, match=r"offset 10 is asked for .* still there is 60"):
        offsets(client, OffsetRange(topic, 0, 10, 80), ReadLimits())
    assert time.monotonic() - began < 5.0
    assert offsets(client, OffsetRange(topic, 0, 10, 80), TOLERANT) == list(range(60, 80))
    assert offsets(client, OffsetRange(topic, 0, 10, 50), TOLERANT) == []
    client.close()


def test_wrong_client_options_are_refused() -> None:
    with pytest.raises(OptionError, match=r"No such configuration property"):
        KafkaClient([("bootstrap.servers", "127.0.0.1:1"), ("no.such.option", "1")])
    with pytest.raises(OptionError, match=r"kafka.auto.offset.reset is set by the source"):
        KafkaClient([("bootstrap.servers", "127.0.0.1:1"), ("auto.offset.reset", "latest")])


def test_a_broker_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orderwire.pipeline.kafka_client.REQUEST_SECONDS_MAX", 0.3)
    client = KafkaClient([("bootstrap.servers", "127.0.0.1:1")])
    with pytest.raises(PipelineError, match=r"127\.0\.0\.1:1 gave no metadata: .*Connect"):
        client.partitions(["t"])
    client.close()


def test_clients_are_kept_by_configuration_and_closed_when_idle(servers: str) -> None:
    cache = ClientCache()
    one, other = (("bootstrap.servers", servers),), (("bootstrap.servers", servers), ("x", "y"))
    first = cache.borrow(one)
    second = cache.borrow(one)
    assert first is not second  # lent out: not shared
    cache.give_back(first, 60_000)
    assert cache.borrow(one) is first
    with pytest.raises(OptionError):
        cache.borrow(other)
    cache.give_back(first, 60_000)
    cache.give_back(second, 60_000)
    assert len(cache) == 2
    cache.sweep(0)
    assert len(cache) == 0
    assert cache.borrow(one) is not first
    cache.sweep(0)
    assert len(cache) == 1  # busy ones stay


class Moving:
    """A consumer whose first answers come from before an election."""

    def __init__(self, consumer: Consumer, code: int) -> None:
        self._consumer = consumer
        self._code = code
        self.fenced = 2
        self.refreshed = 0

    def offsets_for_times(self, asked: list[ClientPartition], timeout: float) -> object:
        if self.fenced:
            self.fenced -= 1
            raise KafkaException(KafkaError(self._code))
        return self._consumer.offsets_for_times(asked, timeout=timeout)

    def list_topics(self, timeout: float) -> object:
        self.refreshed += 1
        return self._consumer.list_topics(timeout=timeout)

    def __getattr__(self, name: str) -> object:
        return getattr(self._consumer, name)


def test_watermarks_are_asked_for_again_where_another_leads_now(
    mock_servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = uuid.uuid4().hex
    fill(mock_servers, topic, 3)
    client = KafkaClient({"bootstrap.servers": mock_servers})
    try:
        moving = Moving(client._consumer, KafkaError.FENCED_LEADER_EPOCH)
        monkeypatch.setattr(client, "_consumer", moving)
        where = TopicPartition(topic, 0)
        assert client.bounds([where]) == {where: Watermarks(0, 3)}
        assert moving.refreshed == 2
        monkeypatch.setattr(
            client, "_consumer", Moving(moving._consumer, KafkaError.TOPIC_AUTHORIZATION_FAILED)
        )
        with pytest.raises(PipelineError, match="watermarks"):
            client.bounds([where])
    finally:
        client.close()
