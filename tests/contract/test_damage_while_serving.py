"""Bits that flip under a running broker: never served, told at once, mended by the others.

Real brokers, files, links and replicas; ZooKeeper is a dictionary.  [S004:R8, 9.10, 10.4]
"""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from cluster_fake import RealJoining, crude_cluster
from kafka_raw import RawClient
from logs import batch

from orderwire.aio.broker_server import BrokerServer
from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.partitions import Partition
from orderwire.broker.replication.settings import Mode
from orderwire.broker.wire.apis import ApiKey
from orderwire.broker.wire.generated.create_topics import CreatableTopic, CreateTopicsRequest
from orderwire.broker.wire.generated.fetch import FetchPartition, FetchRequest, FetchTopic
from orderwire.broker.wire.generated.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from orderwire.broker.wire.records import read_records
from orderwire.cli.cluster import lines
from orderwire.kernel import NS_PER_MS

pytestmark = pytest.mark.network
MODES = list(Mode)
NAMES = [mode.value for mode in MODES]
COUNT = 6
VALUES = [b"%d" % number * 20 for number in range(COUNT)]


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(60):
            await work()

    asyncio.run(limited())


async def ask(server: BrokerServer, key: int, version: int, body: Any) -> Any:
    def work() -> Any:
        with RawClient("{}:{}".format(*server.address)) as client:
            return client.ask(key, version, body)

    return await asyncio.get_running_loop().run_in_executor(None, work)


async def create(server: BrokerServer, replication: int) -> None:
    body = CreateTopicsRequest([CreatableTopic("t", 1, replication)], 10_000)
    assert (await ask(server, ApiKey.CREATE_TOPICS, 7, body)).topics[0].error_code == 0


async def produce(server: BrokerServer, data: bytes) -> tuple[int, int]:
    place = [PartitionProduceData(0, batch(data))]
    body = ProduceRequest(None, -1, 15_000, [TopicProduceData("t", partition_data=place)])
    answer = (await ask(server, ApiKey.PRODUCE, 9, body)).responses[0].partition_responses[0]
    return answer.error_code, answer.base_offset


async def fetched(server: BrokerServer, offset: int = 0) -> tuple[int, list[bytes]]:
    place = [FetchPartition(0, -1, offset, -1, -1, 1 << 20)]
    topics = [FetchTopic("t", partitions=place)]
    body = FetchRequest(max_wait_ms=200, min_bytes=1, topics=topics)
    found = (await ask(server, ApiKey.FETCH, 10, body)).responses[0].partitions[0]
    records = read_records(bytes(found.records or b""))
    return found.error_code, [bytes(each.value or b"") for each in records if each.offset >= offset]


def partition(server: BrokerServer) -> Partition | None:
    return server.broker.partition("t", 0)


def folder(server: BrokerServer, data: Path) -> Path:
    topic = server.broker.topics.get("t")
    assert topic is not None
    return data / str(server.broker.settings.node_id) / "topics" / topic.topic_id.hex() / "0"


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0x10]))


async def until(what: object, seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not what():  # type: ignore[operator]
            await asyncio.sleep(0.01)


def original_of(servers: list[BrokerServer]) -> BrokerServer | None:
    for server in servers:
        found = partition(server)
        if (
            found is not None
            and found.replica is not None
            and server.broker.replicas is not None
            and server.broker.replicas.is_original(found)
            and found.replica.takes_produce
        ):
            return server
    return None


async def filled(servers: list[BrokerServer]) -> BrokerServer:
    """Make the topic, and commit some batches everywhere; returns the original."""
    for server in servers:
        assert server.host is not None
        await until(lambda links=server.host.links: len(links.reached) == 2)
    await create(servers[0], 3)
    await until(lambda: original_of(servers))
    original = original_of(servers)
    assert original is not None
    for value in VALUES:
        assert (await produce(original, value))[0] == 0
    await until(lambda: highs(servers) == {COUNT})
    return original


def highs(servers: list[BrokerServer]) -> set[int]:
    found = [partition(server) for server in servers]
    return {-1 if each is None else each.high_watermark for each in found}


def whole(servers: list[BrokerServer]) -> bool:
    for server in servers:
        found = partition(server)
        if found is None or found.replica is None or found.replica.view is None:
            return False
        view = found.replica.view
        if view.isr != (0, 1, 2) or view.original is None or found.high_watermark < COUNT:
            return False
        if found.replica.status()["is_blank"]:
            return False
    return True


@pytest.mark.paper("S004:R8")
@pytest.mark.parametrize("at_original", [True, False], ids=["original", "member"])
@pytest.mark.parametrize("mode", MODES, ids=NAMES)
def test_a_flipped_bit_is_not_served_and_its_replica_begins_anew(
    tmp_path: Path, mode: Mode, at_original: bool
) -> None:
    async def work() -> None:
        configs = {"orderwire.mode": mode.value}
        async with crude_cluster(tmp_path, joining=RealJoining, configs=configs) as servers:
            original = await filled(servers)
            victim = original
            if not at_original:
                victim = next(each for each in servers if each is not original)
            path = folder(victim, tmp_path) / f"{0:020}.log"
            good = path.read_bytes()
            flip(path, len(good) // 2)
            error, values = await fetched(victim)
            assert error == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert not values
            await until(lambda: whole(servers))
            for server in servers:
                assert (folder(server, tmp_path) / f"{0:020}.log").read_bytes() == good
                assert await fetched(server) == (ErrorCode.NONE, VALUES)
            assert list(folder(victim, tmp_path).glob("aside-*.kept"))
            assert victim.host is not None
            assert victim.broker.replicas is not None
            assert victim.broker.replicas.lost.count == 1
            # And it goes on.
            await until(lambda: original_of(servers))
            now = original_of(servers)
            assert now is not None
            assert await produce(now, b"more") == (0, COUNT)

    run(work)


@pytest.mark.paper("S004:R8")
def test_a_damaged_lane_is_not_ordered(tmp_path: Path) -> None:
    """What nobody has ordered is told as not stored; the partition goes on."""

    async def work() -> None:
        configs = {"orderwire.mode": Mode.ACTIVE_ACTIVE_LANES.value}
        async with crude_cluster(tmp_path, joining=RealJoining, configs=configs) as servers:
            original = await filled(servers)
            victim = next(each for each in servers if each is not original)
            found = partition(victim)
            assert found is not None
            lane = found.replica.store.lane  # type: ignore[union-attr]
            append = lane.append

            def damaged(records: bytes) -> int:
                position: int = append(records)
                path = max(folder(victim, tmp_path).glob("lane-0*"))
                flip(path, path.stat().st_size - 2)
                return position

            lane.append = damaged
            error, _ = await produce(victim, b"lost")
            assert error == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
            await until(lambda: whole(servers))
            await until(lambda: partition(victim).replica.takes_produce)  # type: ignore[union-attr]
            assert await produce(victim, b"again") == (0, COUNT)
            assert not list(folder(victim, tmp_path).glob("aside-*.kept"))

    run(work)


def test_a_broker_that_is_alone_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        server = await BrokerServer.start(tmp_path)
        try:
            await create(server, 1)
            for value in VALUES:
                assert (await produce(server, value))[0] == 0
            topic = server.broker.topics.get("t")
            assert topic is not None
            path = tmp_path / "topics" / topic.topic_id.hex() / "0" / f"{0:020}.log"
            size = len(batch(VALUES[0]))
            flip(path, 3 * size + size - 4)
            for _ in range(2):
                assert await fetched(server) == (ErrorCode.KAFKA_STORAGE_ERROR, [])
            assert await fetched(server, 4) == (ErrorCode.NONE, VALUES[4:]), "the rest is served"
        finally:
            await server.close()

    run(work)
    said = [each.getMessage() for each in caplog.records if "damaged" in each.getMessage()]
    assert len(said) == 1
    assert "t-0 is damaged" in said[0]


@pytest.mark.parametrize("mode", MODES, ids=NAMES)
def test_a_scrub_finds_a_flipped_bit_that_nobody_asks_for(tmp_path: Path, mode: Mode) -> None:
    async def work() -> None:
        configs = {"orderwire.mode": mode.value, "segment.bytes": "1024"}
        async with crude_cluster(
            tmp_path,
            joining=RealJoining,
            configs=configs,
            scrub_bytes_per_s=1 << 20,
            scrub_pause_ns=100 * NS_PER_MS,
        ) as servers:
            original = await filled(servers)
            victim = next(each for each in servers if each is not original)
            await until(lambda: all(each.broker.scrub.passes for each in servers))
            assert not any(each.broker.scrub.damaged for each in servers)
            path = folder(victim, tmp_path) / f"{0:020}.log"
            good = path.read_bytes()
            flip(path, len(good) // 2)
            await until(lambda: victim.broker.scrub.damaged)
            await until(lambda: whole(servers))
            assert path.read_bytes() == good
            assert await fetched(victim) == (ErrorCode.NONE, VALUES)
            assert victim.host is not None
            told = victim.host.status()
            assert told["scrub"]["damaged"] == 1
            assert told["scrub"]["ended_ms"] > 0
            assert any(
                line.startswith(f"broker {told['broker']}: last scrub 2")
                and line.endswith("damaged found 1")
                for line in lines([told])
            )

    run(work)
