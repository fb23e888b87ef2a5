"""aiokafka against a real broker."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from sealed_topic import TOPIC, VALUES

from orderwire.aio.broker_process import BrokerProcess

pytestmark = pytest.mark.interop

SECONDS_MAX = 30.0


def run(work: Any) -> None:
    async def limited() -> None:
        async with asyncio.timeout(2 * SECONDS_MAX):
            await work

    asyncio.run(limited())


def consumer(broker: BrokerProcess, *topics: str, group: str | None) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        *topics,
        bootstrap_servers=broker.address,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=6000,
        heartbeat_interval_ms=200,
        metadata_max_age_ms=1000,
    )


@asynccontextmanager
async def administrator(broker: BrokerProcess) -> AsyncIterator[AIOKafkaAdminClient]:
    """Closed whatever happens: one that stays open fails other tests."""
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.address)
    try:
        await admin.start()
        yield admin
    finally:
        await admin.close()


async def create(admin: AIOKafkaAdminClient, topic: str, partitions: int) -> None:
    """This client does not raise what the broker refuses."""
    answer = await admin.create_topics([NewTopic(topic, partitions, 1)])
    assert [error[1] for error in answer.topic_errors] == [0], answer


async def soon(holds: Callable[[], Awaitable[bool]]) -> None:
    """What one broker of a cluster did the others learn a moment later."""
    async with asyncio.timeout(SECONDS_MAX):
        while not await holds():
            await asyncio.sleep(0.05)


async def write(broker: BrokerProcess, topic: str, count: int, **settings: Any) -> list[bytes]:
    values = [b"%06d" % n + b"c" * 94 for n in range(count)]
    settings.setdefault("acks", "all")
    async with AIOKafkaProducer(bootstrap_servers=broker.address, **settings) as producer:
        futures = [await producer.send(topic, value) for value in values]
        assert [(await future).offset for future in futures] == list(range(count))
    return values


async def read_to_end(broker: BrokerProcess, topic: str) -> list[bytes]:
    place = TopicPartition(topic, 0)
    values: list[bytes] = []
    async with consumer(broker, group=None) as reader:
        reader.assign([place])
        await reader.seek_to_beginning(place)
        end = (await reader.end_offsets([place]))[place]
        while await reader.position(place) < end:
            for records in (await reader.getmany(timeout_ms=200)).values():
                values += [record.value for record in records]
    return values


async def until(true: Callable[[], bool], *readers: AIOKafkaConsumer) -> None:
    while not true():
        for reader in readers:
            await reader.getmany(timeout_ms=50)


def test_seals_are_stepped_over(sealed: BrokerProcess) -> None:
    """[S004:8.3] In the middle, and behind the last record: the position comes to the end."""

    async def work() -> None:
        assert await read_to_end(sealed, TOPIC) == VALUES

    run(work())


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_is_read_to_the_end(broker: BrokerProcess, codec: str | None) -> None:
    async def work() -> None:
        topic = f"aio-{codec}"
        values = await write(broker, topic, 500, compression_type=codec, linger_ms=20)
        assert await read_to_end(broker, topic) == values

    run(work())


def test_idempotent_producer(broker: BrokerProcess) -> None:
    async def work() -> None:
        values = await write(broker, "aio-idem", 200, enable_idempotence=True)
        assert await read_to_end(broker, "aio-idem") == values

    run(work())


def test_group_shares_partitions_and_takes_over(broker: BrokerProcess) -> None:
    async def work() -> None:
        async with administrator(broker) as admin:
            await create(admin, "aio-group", 4)
            async with consumer(broker, "aio-group", group="aio-g") as first:
                await until(lambda: len(first.assignment()) == 4, first)
                async with consumer(broker, "aio-group", group="aio-g") as second:
                    await until(
                        lambda: len(first.assignment()) == len(second.assignment()) == 2,
                        first,
                        second,
                    )
                    groups = await admin.list_consumer_groups()
                    assert "aio-g" in {group[0] for group in groups}
                await until(lambda: len(first.assignment()) == 4, first)

    run(work())


def test_group_commits_and_resumes(broker: BrokerProcess) -> None:
    async def work() -> None:
        await write(broker, "aio-commit", 50)
        async with consumer(broker, "aio-commit", group="aio-c") as first:
            for _ in range(20):
                await first.getone()
            await first.commit({TopicPartition("aio-commit", 0): 20})
        async with consumer(broker, "aio-commit", group="aio-c") as second:
            assert (await second.getone()).offset == 20
            assert await second.committed(TopicPartition("aio-commit", 0)) == 20

    run(work())


def test_administration(broker: BrokerProcess) -> None:
    async def work() -> None:
        async with administrator(broker) as admin:
            await create(admin, "aio-admin", 2)

            async def is_listed() -> bool:
                return "aio-admin" in await admin.list_topics()

            async def is_described() -> bool:
                (described,) = await admin.describe_topics(["aio-admin"])
                return len(described["partitions"]) == 2

            async def is_gone() -> bool:
                return not await is_listed()

            await soon(is_listed)
            await soon(is_described)
            await admin.delete_topics(["aio-admin"])
            await soon(is_gone)

    run(work())
