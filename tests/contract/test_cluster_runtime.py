"""Brokers of one cluster in this process, with crude replicas: links, requests, topics, status."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority
from cluster_fake import crude_cluster
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka_raw import RawClient, fetch_errors, metadata_errors
from logs import batch

from orderwire.aio.broker_server import BrokerServer
from orderwire.aio.discovery_tls import Credentials
from orderwire.broker.cluster import GROUPS_TOPIC
from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.wire.apis import ApiKey
from orderwire.broker.wire.generated.create_topics import CreatableTopic, CreateTopicsRequest
from orderwire.broker.wire.generated.delete_topics import DeleteTopicsRequest, DeleteTopicState
from orderwire.broker.wire.generated.fetch import FetchPartition, FetchRequest, FetchTopic
from orderwire.broker.wire.generated.init_producer_id import InitProducerIdRequest
from orderwire.broker.wire.generated.metadata import MetadataRequest, MetadataRequestTopic
from orderwire.broker.wire.generated.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from orderwire.broker.wire.generated.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from orderwire.broker.wire.records import read_records

pytestmark = pytest.mark.network


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(60):
            await work()

    asyncio.run(limited())


async def elsewhere(work: Callable[[], Any]) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, work)


def address(server: BrokerServer) -> str:
    return "{}:{}".format(*server.address)


def create(name: str, partitions: int = 1, replication: int = -1) -> CreateTopicsRequest:
    return CreateTopicsRequest([CreatableTopic(name, partitions, replication)], 10_000)


def produce(topic: str, data: bytes, acks: int = -1) -> ProduceRequest:
    place = [PartitionProduceData(0, batch(data))]
    return ProduceRequest(None, acks, 15_000, [TopicProduceData(topic, partition_data=place)])


def fetch(topic: str, offset: int = 0, wait_ms: int = 2_000) -> FetchRequest:
    place = [FetchPartition(0, -1, offset, -1, -1, 1 << 20)]
    return FetchRequest(
        max_wait_ms=wait_ms, min_bytes=1, topics=[FetchTopic(topic, partitions=place)]
    )


async def all_connected(servers: list[BrokerServer]) -> None:
    for server in servers:
        assert server.host is not None
        while len(server.host.links.reached) < len(servers) - 1:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("tls", [False, True])
def test_what_one_broker_takes_every_broker_serves(tmp_path: Path, tls: bool) -> None:
    async def work() -> None:
        credentials = None
        if tls:
            authority = Authority(tmp_path, "cluster")
            cert, key = authority.issue("broker")
            credentials = Credentials.load(cert=cert, key=key, ca=authority.ca)
        async with crude_cluster(tmp_path, tls=credentials) as servers:
            await all_connected(servers)

            def client() -> None:
                with RawClient(address(servers[1])) as raw:
                    made = raw.ask(ApiKey.CREATE_TOPICS, 7, create("t")).topics[0]
                    assert made.error_code == ErrorCode.NONE
                    assert made.replication_factor == 3
                    about = raw.ask(
                        ApiKey.METADATA, 9, MetadataRequest([MetadataRequestTopic(name="t")])
                    )
                    assert [one.node_id for one in about.brokers] == [0, 1, 2]
                    place = about.topics[0].partitions[0]
                    assert (place.leader_id, place.leader_epoch) == (0, 0)
                    assert list(place.isr_nodes) == [0, 1, 2]
                    refused = raw.ask(ApiKey.PRODUCE, 9, produce("t", b"x")).responses[0]
                    error = refused.partition_responses[0].error_code
                    assert error == ErrorCode.NOT_LEADER_OR_FOLLOWER
                with RawClient(address(servers[0])) as raw:
                    raw.ask_again(ApiKey.FETCH, 12, fetch("t", wait_ms=0), fetch_errors)
                    for acks in (-1, 1):
                        frames = [
                            raw.frame(ApiKey.PRODUCE, 9, produce("t", b"%d" % n, acks))
                            for n in range(20)
                        ]
                        raw.send(b"".join(frames))
                        for n in range(20):
                            answer = raw.response(ApiKey.PRODUCE, 9).responses[0]
                            stored = answer.partition_responses[0]
                            assert stored.error_code == ErrorCode.NONE
                            assert stored.base_offset == n + (20 if acks == 1 else 0)
                for server in servers:
                    with RawClient(address(server)) as raw:
                        seen: list[bytes | None] = []
                        while len(seen) < 40:
                            ask = fetch("t", len(seen))
                            answer = raw.ask_again(ApiKey.FETCH, 12, ask, fetch_errors)
                            part = answer.responses[0].partitions[0]
                            assert part.error_code == ErrorCode.NONE
                            records = read_records(bytes(part.records))
                            seen += [one.value for one in records if one.offset >= len(seen)]
                        assert seen == [b"%d" % n for n in range(20)] * 2

            await elsewhere(client)
            status = servers[0].host.status()  # type: ignore[union-attr]
            assert status["partitions"][0]["high_watermark"] == 40
            assert status["connected"] == [1, 2]

    run(work)


def test_a_topic_goes_everywhere_and_goes_from_everywhere(tmp_path: Path) -> None:
    async def work() -> None:
        async with crude_cluster(tmp_path) as servers:
            await all_connected(servers)

            def client() -> None:
                with RawClient(address(servers[0])) as raw:
                    many = raw.ask(ApiKey.CREATE_TOPICS, 7, create("u", 1, 4)).topics[0]
                    assert many.error_code == ErrorCode.INVALID_REPLICATION_FACTOR
                    raw.ask(ApiKey.CREATE_TOPICS, 7, create("t"))
                    again = raw.ask(ApiKey.CREATE_TOPICS, 7, create("t")).topics[0]
                    assert again.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
                    ids = [
                        raw.ask(ApiKey.INIT_PRODUCER_ID, 4, InitProducerIdRequest(None)).producer_id
                        for _ in range(3)
                    ]
                    assert len(set(ids)) == 3
                    gone = raw.ask(
                        ApiKey.DELETE_TOPICS, 6, DeleteTopicsRequest([DeleteTopicState("t")])
                    )
                    assert gone.responses[0].error_code == ErrorCode.NONE

            await elsewhere(client)
            while any(list(server.broker.topics) for server in servers):  # others hear it later
                await asyncio.sleep(0.01)

    run(work)


def test_asking_for_a_topic_makes_it(tmp_path: Path) -> None:
    async def work() -> None:
        async with crude_cluster(tmp_path) as servers:
            await all_connected(servers)

            def client() -> None:
                with RawClient(address(servers[2])) as raw:
                    ask = MetadataRequest([MetadataRequestTopic(name="t")], True)
                    first = raw.ask(ApiKey.METADATA, 9, ask).topics[0]
                    assert first.error_code == ErrorCode.LEADER_NOT_AVAILABLE
                    found = raw.ask_again(ApiKey.METADATA, 9, ask, metadata_errors).topics[0]
                    assert found.partitions[0].leader_id == 0

            await elsewhere(client)

    run(work)


def test_a_group_has_one_coordinator_and_its_offsets_are_everywhere(tmp_path: Path) -> None:
    async def work() -> None:
        async with crude_cluster(tmp_path) as servers:
            await all_connected(servers)

            def client() -> None:
                with RawClient(address(servers[0])) as raw:
                    raw.ask(ApiKey.CREATE_TOPICS, 7, create("t"))
                settings = {
                    "bootstrap.servers": address(servers[2]),
                    "group.id": "readers",
                    "enable.auto.commit": False,
                    "auto.offset.reset": "earliest",
                }
                producer = Producer({"bootstrap.servers": address(servers[1])})
                for n in range(10):
                    producer.produce("t", b"%d" % n)
                assert producer.flush(20) == 0
                seen: list[bytes | None] = []
                end = time.monotonic() + 40
                with closing(Consumer(settings)) as consumer:
                    consumer.subscribe(["t"])
                    while len(seen) < 10 and time.monotonic() < end:
                        message = consumer.poll(1)
                        if message is not None and message.error() is None:
                            seen.append(message.value())
                    assert seen == [b"%d" % n for n in range(10)]
                    consumer.commit(offsets=[TopicPartition("t", 0, 7)], asynchronous=False)
                with closing(Consumer(settings)) as again:
                    place = again.committed([TopicPartition("t", 0)], 20)[0]
                    assert place.offset == 7

            await elsewhere(client)
            kept = [server.broker.topics.get(GROUPS_TOPIC) for server in servers]
            assert all(topic is not None and topic.partitions == 4 for topic in kept)

            def ends(server: BrokerServer) -> list[int]:
                return [
                    partition.log.end_offset
                    for partition in server.broker.all_partitions()
                    if partition.topic == GROUPS_TOPIC
                ]

            assert sum(ends(servers[0])) > 0
            while not ends(servers[0]) == ends(servers[1]) == ends(servers[2]):
                await asyncio.sleep(0.01)  # what was written when the member left
            with RawClient(address(servers[1])) as raw:
                ask = OffsetFetchRequest(groups=[OffsetFetchRequestGroup("readers", topics=None)])
                answer = await elsewhere(lambda: raw.ask(ApiKey.OFFSET_FETCH, 8, ask))
                assert answer.groups[0].error_code == ErrorCode.NOT_COORDINATOR
                own = await elsewhere(
                    lambda: raw.ask(ApiKey.PRODUCE, 9, produce(GROUPS_TOPIC, b"x"))
                )
                refused = own.responses[0].partition_responses[0]
                assert refused.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION

    run(work)
