"""Clients that are broken, slow or hostile: each is dropped, nobody else notices."""

import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from kafka_raw import RawClient

from orderwire.aio.broker_process import BrokerProcess
from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.wire.apis import APIS, ApiKey
from orderwire.broker.wire.generated.api_versions import ApiVersionsRequest
from orderwire.broker.wire.generated.fetch import FetchPartition, FetchRequest, FetchTopic
from orderwire.broker.wire.generated.heartbeat import HeartbeatRequest
from orderwire.broker.wire.generated.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from orderwire.broker.wire.generated.metadata import MetadataRequest, MetadataRequestTopic
from orderwire.broker.wire.generated.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from orderwire.broker.wire.generated.sasl_handshake import SaslHandshakeRequest

pytestmark = pytest.mark.interop

LIMITS = {
    "request_bytes_max": 4 << 20,
    "connections_per_address_max": 60,
    "first_request_ns": 1_000_000_000,
    "frame_ns": 1_000_000_000,
    "receive_bytes_max": 64 << 20,
}


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with small limits."""
    folder: Path = tmp_path_factory.mktemp("strict")
    options = [f"--limit={name}={value}" for name, value in LIMITS.items()]
    with BrokerProcess.start(folder / "data", "--no-auto-create", *options) as broker:
        yield broker
    assert "Traceback" not in broker.log.read_text()


def assert_serves(broker: BrokerProcess) -> None:
    with RawClient(broker.address) as raw:
        answer = raw.ask(ApiKey.API_VERSIONS, 3, ApiVersionsRequest("test", "1"))
        assert answer.error_code == ErrorCode.NONE


def header(key: int, version: int) -> bytes:
    return struct.pack(">hhih", key, version, 7, -1)


def framed(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
        bytes(64),
        b"\xff" * 64,
        struct.pack(">i", -1),
        struct.pack(">i", (4 << 20) + 1),
        framed(b"\0"),
        framed(header(999, 0)),
        framed(header(ApiKey.FETCH, 99)),
        framed(header(ApiKey.FETCH, 3)),
        framed(header(ApiKey.PRODUCE, 2)),
        framed(header(ApiKey.METADATA, 1) + b"\x7f\xff\xff\xff"),
        framed(struct.pack(">hhih", ApiKey.METADATA, 1, 7, 3) + b"\xff\xfe\xfd" + bytes(4)),
        framed(header(ApiKey.METADATA, 12) + b"\xff\xff\xff\xff\xff\xff\xff"),
        framed(header(24, 0)),
    ],
    ids=lambda data: data[:12].hex(),
)
def test_garbage_closes_its_connection_only(strict: BrokerProcess, data: bytes) -> None:
    with RawClient(strict.address) as bystander:
        bystander.ask(ApiKey.API_VERSIONS, 0, ApiVersionsRequest())
        with RawClient(strict.address) as raw:
            raw.send(data)
            assert raw.is_closed()
        bystander.ask(ApiKey.API_VERSIONS, 0, ApiVersionsRequest())


def test_replies_before_garbage_still_arrive(strict: BrokerProcess) -> None:
    with RawClient(strict.address) as raw:
        good = raw.frame(ApiKey.API_VERSIONS, 0, ApiVersionsRequest())
        raw.send(good + framed(header(999, 0)))
        assert raw.response(ApiKey.API_VERSIONS, 0).error_code == ErrorCode.NONE
        assert raw.is_closed()


def test_unknown_api_versions_version_is_answered_in_version_0(strict: BrokerProcess) -> None:
    with RawClient(strict.address) as raw:
        raw.send(framed(header(ApiKey.API_VERSIONS, 77) + b"\0whatever"))
        answer = raw.response(ApiKey.API_VERSIONS, 0)
        assert raw.last_correlation == 7
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
        ranges = {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}
        assert ranges[ApiKey.PRODUCE] == (0, 13)
        assert ranges[ApiKey.API_VERSIONS] == (0, 4)
        assert not ranges.keys() & {24, 25, 26, 27, 28}
        assert raw.ask(ApiKey.API_VERSIONS, 4, ApiVersionsRequest("t", "1")).error_code == 0


def test_every_advertised_version_of_simple_requests_is_served(strict: BrokerProcess) -> None:
    """Default requests of every API and version; the broker must answer each, whatever it says."""
    with RawClient(strict.address) as raw:
        for api in sorted(APIS, key=lambda api: api.key):
            module = api.decode_request.__module__
            request = getattr(__import__(module, fromlist=["x"]), f"{api.name}Request")()
            for version in range(api.oldest, api.newest + 1):
                if api.key == ApiKey.PRODUCE:
                    request = ProduceRequest(acks=1)
                raw.ask(api.key, version, request)


def test_long_frame_that_never_comes_takes_no_memory(strict: BrokerProcess) -> None:
    before = strict.resident_bytes()
    clients = [RawClient(strict.address) for _ in range(50)]
    for client in clients:
        client.send(struct.pack(">i", 4 << 20) + header(ApiKey.PRODUCE, 9))
    assert_serves(strict)
    assert strict.resident_bytes() - before < 80 << 20
    for client in clients:
        client.close()


def test_slow_loris_and_silence_are_cut_off(strict: BrokerProcess) -> None:
    silent = RawClient(strict.address)
    slow = RawClient(strict.address)
    slow.ask(ApiKey.API_VERSIONS, 0, ApiVersionsRequest())
    frame = slow.frame(ApiKey.METADATA, 1, MetadataRequest([MetadataRequestTopic(name="x" * 200)]))
    slow.socket.settimeout(0.1)
    closed = False
    for byte in frame[:150]:
        try:
            slow.send(bytes([byte]))
            closed = slow.socket.recv(1) == b""
        except TimeoutError:
            continue
        except OSError:
            closed = True
        if closed:
            break
    assert closed, "150 bytes in 15 s were taken for a client that works"
    assert silent.is_closed()
    silent.close()
    slow.close()


def test_half_open_connection_gets_its_answers_and_is_closed(strict: BrokerProcess) -> None:
    with RawClient(strict.address) as raw:
        frames = [raw.frame(ApiKey.METADATA, 1, MetadataRequest(None)) for _ in range(300)]
        raw.send(b"".join(frames))
        raw.socket.shutdown(socket.SHUT_WR)
        for _ in range(300):
            raw.response(ApiKey.METADATA, 1)
        assert raw.last_correlation == 300
        assert raw.is_closed()


def test_pipelined_requests_are_answered_in_order_byte_by_byte_too(strict: BrokerProcess) -> None:
    with RawClient(strict.address) as raw:
        frames = b"".join(
            raw.frame(ApiKey.API_VERSIONS, version % 5, ApiVersionsRequest("t", "1"))
            for version in range(10)
        )
        for byte in frames:
            raw.send(bytes([byte]))
        for number in range(10):
            raw.response(ApiKey.API_VERSIONS, number % 5)
            assert raw.last_correlation == number + 1


def test_connections_of_one_address_are_limited(strict: BrokerProcess) -> None:
    clients = [RawClient(strict.address) for _ in range(70)]
    refused = 0
    for client in clients:
        try:
            client.ask(ApiKey.API_VERSIONS, 0, ApiVersionsRequest())
        except (EOFError, ConnectionError):
            refused += 1
    for client in clients:
        client.close()
    assert refused >= 10


def test_errors_that_clients_retry_at_once_are_delayed(strict: BrokerProcess) -> None:
    """[broker.md §10.8] A client that spins on an error asks at most 40 times a second."""
    topic = [ListOffsetsTopic("missing", [ListOffsetsPartition(0, -1, -1)])]
    fetch = [FetchTopic("missing", partitions=[FetchPartition(0, -1, 0, -1, -1, 100)])]
    batch = TopicProduceData("missing", partition_data=[PartitionProduceData(0, bytes(70))])
    asks = [
        (ApiKey.FETCH, 11, FetchRequest(max_wait_ms=500, min_bytes=1, topics=fetch)),
        (ApiKey.LIST_OFFSETS, 5, ListOffsetsRequest(-1, 0, topic)),
        (ApiKey.METADATA, 8, MetadataRequest([MetadataRequestTopic(name="missing")])),
        (ApiKey.PRODUCE, 8, ProduceRequest(None, 1, 1000, [batch])),
    ]
    with RawClient(strict.address) as raw:
        for key, version, ask in asks:
            began = time.monotonic()
            for _ in range(4):
                raw.ask(key, version, ask)
            assert 4 / (time.monotonic() - began) < 40, key


def test_produce_without_acknowledgement_to_a_missing_topic_closes(strict: BrokerProcess) -> None:
    batch = TopicProduceData("missing", partition_data=[PartitionProduceData(0, bytes(70))])
    with RawClient(strict.address) as raw:
        raw.send(raw.frame(ApiKey.PRODUCE, 8, ProduceRequest(None, 0, 1000, [batch])))
        assert raw.is_closed()


def test_sasl_is_answered_as_not_enabled(strict: BrokerProcess) -> None:
    with RawClient(strict.address) as raw:
        answer = raw.ask(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest("PLAIN"))
        assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert list(answer.mechanisms) == []


def test_a_parked_request_of_a_vanished_client_is_dropped(broker: BrokerProcess) -> None:
    producer = Producer({"bootstrap.servers": broker.address})
    producer.produce("vanish", b"x")
    assert producer.flush(20) == 0
    topics = [FetchTopic("vanish", partitions=[FetchPartition(0, -1, 1, -1, -1, 100)])]
    ask = FetchRequest(max_wait_ms=30_000, min_bytes=1, topics=topics)
    for _ in range(20):
        with RawClient(broker.address) as raw:
            raw.send(raw.frame(ApiKey.FETCH, 11, ask))
            raw.send(raw.frame(ApiKey.HEARTBEAT, 0, HeartbeatRequest("g", 0, "m")))
    producer.produce("vanish", b"y")
    assert producer.flush(20) == 0
    assert_serves(broker)
