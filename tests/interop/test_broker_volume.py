"""Much data, slow readers, both event loops: what is sent is right and memory stays bounded."""

import hashlib
import os
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from kafka_raw import RawClient

from orderwire.aio.broker_process import BrokerProcess
from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.wire.apis import ApiKey
from orderwire.broker.wire.generated.api_versions import ApiVersionsRequest
from orderwire.broker.wire.generated.fetch import FetchPartition, FetchRequest, FetchTopic

pytestmark = pytest.mark.interop

SECONDS_MAX = 60.0
MESSAGE_BYTES = 500_000
MESSAGES = 240
SLACK_BYTES = 48 << 20


def fill(address: str, topic: str) -> "hashlib._Hash":
    """Write 120 MB and return the digest of all values."""
    digest = hashlib.sha256()
    producer = Producer({"bootstrap.servers": address, "linger.ms": 0, "log_level": 0})
    value = os.urandom(MESSAGE_BYTES)
    for number in range(MESSAGES):
        piece = number.to_bytes(4, "big") + value[4:]
        digest.update(piece)
        producer.produce(topic, piece, partition=0)
        while len(producer) > 20:
            producer.poll(0.1)
    assert producer.flush(SECONDS_MAX) == 0
    return digest


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_slow_reader_of_100_mb_takes_no_memory(tmp_path: Path, loop: str) -> None:
    """Eight clients ask for everything and read nothing; then one reads slowly, one normally."""
    options = ["--flush", "none", "--loop", loop, "--topic-config", "segment.bytes=33554432"]
    with BrokerProcess.start(tmp_path / "data", *options) as broker:
        digest = fill(broker.address, "big")
        before = broker.resident_bytes()
        with ExitStack() as stack:
            stalled = [stack.enter_context(RawClient(broker.address)) for _ in range(8)]
            check_stalled(broker, stalled, before)
            assert consume(broker.address, "big") == digest.hexdigest()
            assert broker.resident_bytes() - before < SLACK_BYTES


def check_stalled(broker: BrokerProcess, stalled: list[RawClient], before: int) -> None:
    """Let every client ask for 120 MB, then read one of them."""
    for raw in stalled:
        for start in range(0, MESSAGES, 40):
            place = FetchPartition(0, -1, start, -1, -1, 1 << 28)
            topics = [FetchTopic("big", partitions=[place])]
            ask = FetchRequest(min_bytes=1, topics=topics, max_bytes=1 << 28)
            raw.send(raw.frame(ApiKey.FETCH, 11, ask))
        raw.send(raw.frame(ApiKey.API_VERSIONS, 0, ApiVersionsRequest()))
    assert read_slowly(stalled[0]) > 100_000_000
    stalled[0].response(ApiKey.API_VERSIONS, 0)
    assert broker.resident_bytes() - before < SLACK_BYTES


def read_slowly(raw: RawClient) -> int:
    """Read six fetch responses in small pieces and check that each is whole batches, in order."""
    total = 0
    for _ in range(6):
        answer = raw.response(ApiKey.FETCH, 11)
        part = answer.responses[0].partitions[0]
        assert part.error_code == ErrorCode.NONE
        assert part.high_watermark == MESSAGES
        total += len(part.records)
        time.sleep(0.02)  # the pace of a slow reader, not a wait for anything
    return total


def consume(address: str, topic: str) -> str:
    digest = hashlib.sha256()
    reader = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "nobody",
            "enable.partition.eof": True,
            "fetch.message.max.bytes": 50_000_000,
            "fetch.max.bytes": 60_000_000,
            "receive.message.max.bytes": 70_000_000,
        }
    )
    reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    try:
        while True:
            for message in reader.consume(100, 1.0):
                error = message.error()
                if error is not None:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    return digest.hexdigest()
                digest.update(message.value())
    finally:
        reader.close()


def test_first_batch_larger_than_the_limit_is_sent_whole(broker: BrokerProcess) -> None:
    """[broker.md §6.5] A consumer whose limit is smaller than a batch must not stand still."""
    producer = Producer({"bootstrap.servers": broker.address})
    producer.produce("whole", os.urandom(200_000), partition=0)
    assert producer.flush(SECONDS_MAX) == 0
    place = FetchPartition(0, -1, 0, -1, -1, 10)
    ask = FetchRequest(max_bytes=1, topics=[FetchTopic("whole", partitions=[place])])
    with RawClient(broker.address) as raw:
        records = raw.ask(ApiKey.FETCH, 11, ask).responses[0].partitions[0].records
    assert len(records) > 200_000


def test_fetch_waits_for_min_bytes_and_no_longer_than_max_wait(broker: BrokerProcess) -> None:
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 0})
    producer.produce("waits", b"x", partition=0)
    assert producer.flush(SECONDS_MAX) == 0
    place = FetchPartition(0, -1, 1, -1, -1, 1 << 20)
    topics = [FetchTopic("waits", partitions=[place])]
    with RawClient(broker.address) as raw:
        began = time.monotonic()
        empty = raw.ask(ApiKey.FETCH, 12, FetchRequest(max_wait_ms=300, min_bytes=1, topics=topics))
        assert time.monotonic() - began >= 0.3
        assert not empty.responses[0].partitions[0].records
        ask = FetchRequest(max_wait_ms=20_000, min_bytes=1, topics=topics)
        raw.send(raw.frame(ApiKey.FETCH, 12, ask))
        began = time.monotonic()
        producer.produce("waits", b"y", partition=0)
        assert producer.flush(SECONDS_MAX) == 0
        found = raw.response(ApiKey.FETCH, 12)
        assert time.monotonic() - began < 10
        assert found.responses[0].partitions[0].records
