"""Many partitions at three brokers: what an idle one costs, and what a message costs.  Counted."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_fake import FakeDriver, RealJoining, crude_cluster
from kafka_raw import RawClient, produce_errors
from logs import batch

from orderwire.aio.broker_server import BrokerServer
from orderwire.aio.cluster_link import Link
from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.replicas import Replicas
from orderwire.broker.wire.apis import ApiKey
from orderwire.broker.wire.generated.create_topics import CreatableTopic, CreateTopicsRequest
from orderwire.broker.wire.generated.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)

pytestmark = [pytest.mark.network, pytest.mark.timeout(120)]

PARTITIONS = 100
FRAMES_MAX = {"active-standby": 6, "active-active": 10, "active-active-lanes": 10}
"""Of one message with acks=all, between three brokers; what one message in a partition needs."""


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Frames and writes between brokers, calls of replicas, and effects for ZooKeeper."""
    counted: Counter[str] = Counter()

    def count(kind: type, name: str) -> None:
        original = getattr(kind, name)

        def counting(self: object, *arguments: object, **options: object) -> object:
            counted[f"{kind.__name__}.{name}"] += 1
            return original(self, *arguments, **options)

        monkeypatch.setattr(kind, name, counting)

    count(Link, "send")
    count(Replicas, "have")
    count(FakeDriver, "carry_out")
    return counted


def address(server: BrokerServer) -> str:
    return "{}:{}".format(*server.address)


def originals(server: BrokerServer) -> dict[int, int]:
    """The original of each partition, as this broker knows."""
    return {
        partition.index: partition.replica.view.original
        for partition in server.broker.all_partitions()
        if partition.replica is not None
        and partition.replica.view is not None
        and partition.replica.view.original is not None
        and not partition.replica.status()["is_blank"]
    }


async def quiet(counts: Counter[str]) -> None:
    """Until nobody has anything to do any more."""
    while True:
        before = counts.total()
        await asyncio.sleep(0.3)
        if counts.total() == before:
            return


@pytest.mark.parametrize("mode", FRAMES_MAX)
def test_idle_partitions_do_nothing_and_a_message_costs_its_own_partition(
    tmp_path: Path, counts: Counter[str], mode: str
) -> None:
    async def work() -> None:
        configs = {"orderwire.mode": mode, "min.insync.replicas": "2"}
        async with crude_cluster(tmp_path, joining=RealJoining, configs=configs) as servers:
            loop = asyncio.get_running_loop()
            while any(len(each.host.links.reached) < 2 for each in servers if each.host):
                await asyncio.sleep(0.01)

            def make() -> None:
                wish = CreateTopicsRequest([CreatableTopic("t", PARTITIONS, 3)], 30_000)
                with RawClient(address(servers[0])) as raw:
                    made = raw.ask(ApiKey.CREATE_TOPICS, 7, wish).topics[0]
                    assert made.error_code == ErrorCode.NONE

            await loop.run_in_executor(None, make)
            while any(len(originals(each)) < PARTITIONS for each in servers):
                await asyncio.sleep(0.05)
            await quiet(counts)

            def produce(leader: int) -> int:
                """One message to each partition of this broker, all at once."""
                mine = [index for index, who in originals(servers[leader]).items() if who == leader]
                places = [PartitionProduceData(index, batch(b"x")) for index in mine]
                wish = ProduceRequest(
                    None, -1, 15_000, [TopicProduceData("t", partition_data=places)]
                )
                with RawClient(address(servers[leader])) as raw:
                    answers = raw.ask_again(ApiKey.PRODUCE, 9, wish, produce_errors).responses
                told = [place for answer in answers for place in answer.partition_responses]
                assert {place.error_code for place in told} <= {ErrorCode.NONE}
                return len(told)

            for _ in range(2):  # the first finds files to be made
                counts.clear()
                total = 0
                for leader in range(3):
                    total += await loop.run_in_executor(None, produce, leader)
                assert total == PARTITIONS
                await quiet(counts)
            frames = counts["Link.send"] / PARTITIONS
            print(f"{mode}: {frames:.1f} frames, {counts['Replicas.have'] / PARTITIONS:.1f} calls")
            assert frames <= FRAMES_MAX[mode]
            assert counts["Replicas.have"] <= 2 * counts["Link.send"] + 3 * PARTITIONS

            # What all have nobody talks of; and who was armed has woken once, in vain.
            await asyncio.sleep(2.5)
            counts.clear()
            await asyncio.sleep(2.5)
            assert counts["Link.send"] == counts["FakeDriver.carry_out"] == 0
            assert counts["Replicas.have"] == 0

    asyncio.run(work())
