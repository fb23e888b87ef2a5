"""The broker's server in this process: starting, stopping, failing, limits of a listener."""

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from kafka_raw import RawClient
from logs import batch

from orderwire.aio.broker_files import DataDirectoryInUse
from orderwire.aio.broker_process import BrokerDidNotStart, BrokerProcess
from orderwire.aio.broker_server import BrokerLimits, BrokerServer
from orderwire.broker.flush import Flush
from orderwire.broker.log import StorageError
from orderwire.broker.node import Commit
from orderwire.broker.settings import BrokerSettings
from orderwire.broker.wire.apis import ApiKey
from orderwire.broker.wire.generated.metadata import MetadataRequest, MetadataRequestTopic
from orderwire.broker.wire.generated.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)

pytestmark = pytest.mark.network


def produce_request(acks: int = -1, data: bytes = b"x") -> ProduceRequest:
    topics = [TopicProduceData("t", partition_data=[PartitionProduceData(0, batch(data))])]
    return ProduceRequest(None, acks, 1000, topics)


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(60):
            await work()

    asyncio.run(limited())


async def elsewhere(work: Callable[[], Any]) -> Any:
    """Run a blocking client beside the loop."""
    return await asyncio.get_running_loop().run_in_executor(None, work)


@pytest.mark.parametrize("flush", list(Flush))
def test_pipelined_produce_is_answered_in_order(tmp_path: Path, flush: Flush) -> None:
    async def work() -> None:
        server = await BrokerServer.start(tmp_path, settings=BrokerSettings(flush=flush))
        address = "{}:{}".format(*server.address)

        def client() -> list[int]:
            with RawClient(address) as raw:
                for _ in range(50):
                    raw.send(raw.frame(ApiKey.PRODUCE, 9, produce_request()))
                    raw.send(raw.frame(ApiKey.METADATA, 9, MetadataRequest([])))
                offsets = []
                for number in range(50):
                    answer = raw.response(ApiKey.PRODUCE, 9)
                    assert raw.last_correlation == 2 * number + 1
                    offsets.append(answer.responses[0].partition_responses[0].base_offset)
                    raw.response(ApiKey.METADATA, 9)
                return offsets

        assert await elsewhere(client) == list(range(50))
        await server.close()

    run(work)


@pytest.mark.parametrize("flush", list(Flush))
@pytest.mark.parametrize("pipelined_max", [1, 7, 1_000])
def test_requests_that_differ_in_nothing_are_each_answered(
    tmp_path: Path, flush: Flush, pipelined_max: int
) -> None:
    """They may be stored and answered together: nobody can tell."""

    async def work() -> None:
        server = await BrokerServer.start(
            tmp_path,
            settings=BrokerSettings(flush=flush),
            limits=BrokerLimits(pipelined_max=pipelined_max),
        )
        address = "{}:{}".format(*server.address)

        def client() -> None:
            with RawClient(address) as raw:
                frames = [raw.frame(ApiKey.PRODUCE, 9, produce_request()) for _ in range(100)]
                frames.append(raw.frame(ApiKey.METADATA, 9, MetadataRequest([])))
                raw.send(b"".join(frames)[:-5])
                raw.send(frames[-1][-5:])
                for number in range(100):
                    answer = raw.response(ApiKey.PRODUCE, 9)
                    assert raw.last_correlation == number + 1
                    assert answer.responses[0].partition_responses[0].base_offset == number
                raw.response(ApiKey.METADATA, 9)

        await elsewhere(client)
        await server.close()

    run(work)


def test_requests_are_served_together_when_they_become_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        server = await BrokerServer.start(tmp_path, settings=BrokerSettings(flush=Flush.NONE))
        alone: list[int] = []
        serve = server.broker.serve

        def counted(data: memoryview, *rest: Any) -> Any:
            alone.append(len(data))
            return serve(data, *rest)

        monkeypatch.setattr(server.broker, "serve", counted)
        address = "{}:{}".format(*server.address)

        def client() -> None:
            with RawClient(address) as raw:
                for size in (1, 100):
                    request = produce_request(1, bytes(size))
                    raw.send(b"".join(raw.frame(ApiKey.PRODUCE, 9, request) for _ in range(200)))
                    for _ in range(200):
                        raw.response(ApiKey.PRODUCE, 9)
                assert len(alone) < 150

        await elsewhere(client)
        await server.close()

    run(work)


def test_close_under_load_ends(tmp_path: Path) -> None:
    """Clients that never pause do not keep a broker from stopping; it takes no more of them."""

    async def work() -> None:
        server = await BrokerServer.start(tmp_path)
        address = "{}:{}".format(*server.address)
        started = asyncio.Event()
        loop = asyncio.get_running_loop()

        def client() -> int:
            with RawClient(address) as raw:
                answered = 0
                try:
                    while True:
                        raw.send(raw.frame(ApiKey.PRODUCE, 9, produce_request()) * 4)
                        for _ in range(4):
                            raw.response(ApiKey.PRODUCE, 9)
                            answered += 1
                        loop.call_soon_threadsafe(started.set)
                except (EOFError, ConnectionError):
                    return answered

        load = [asyncio.ensure_future(elsewhere(client)) for _ in range(3)]
        await started.wait()
        await server.close()
        answered = sum(await asyncio.gather(*load))
        again = await BrokerServer.start(tmp_path)
        partition = again.broker.partition("t", 0)
        assert partition is not None
        assert partition.log.recovery.clean
        assert partition.high_watermark >= answered
        await again.close()

    run(work)


def test_failed_disk_stops_the_broker_before_it_promises_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        server = await BrokerServer.start(tmp_path)
        address = "{}:{}".format(*server.address)

        def fail(_: Commit) -> None:
            raise StorageError("cannot sync: input/output error")

        monkeypatch.setattr(Commit, "run", fail)

        def client() -> bool:
            with RawClient(address) as raw:
                raw.send(raw.frame(ApiKey.PRODUCE, 9, produce_request()))
                return raw.is_closed()

        assert await elsewhere(client)
        assert "input/output error" in str(await server.failed)
        await server.close()

    run(work)


def test_close_answers_what_is_on_its_way_to_the_disk(tmp_path: Path) -> None:
    async def work() -> None:
        server = await BrokerServer.start(tmp_path)
        address = "{}:{}".format(*server.address)
        raw = await elsewhere(lambda: RawClient(address))
        raw.send(raw.frame(ApiKey.METADATA, 9, MetadataRequest([MetadataRequestTopic(name="t")])))
        await elsewhere(lambda: raw.response(ApiKey.METADATA, 9))
        raw.send(raw.frame(ApiKey.PRODUCE, 9, produce_request()))
        while not server.broker.has_unsynced and not server._committing:
            await asyncio.sleep(0)
        await server.close()
        answer = await elsewhere(lambda: raw.response(ApiKey.PRODUCE, 9))
        assert answer.responses[0].partition_responses[0].error_code == 0
        raw.close()
        again = await BrokerServer.start(tmp_path)
        partition = again.broker.partition("t", 0)
        assert partition is not None
        assert partition.high_watermark == 1
        assert partition.log.recovery.clean
        await again.close()

    run(work)


def test_data_directory_has_one_owner(tmp_path: Path) -> None:
    async def work() -> None:
        server = await BrokerServer.start(tmp_path)
        with pytest.raises(DataDirectoryInUse, match="another broker"):
            await BrokerServer.start(tmp_path)
        await server.close()
        again = await BrokerServer.start(tmp_path)
        await again.close()

    run(work)


def test_address_in_use_gives_the_directory_free(tmp_path: Path) -> None:
    async def work() -> None:
        taken = socket.create_server(("127.0.0.1", 0))
        with pytest.raises(OSError, match="address already in use"):
            await BrokerServer.start(tmp_path, port=taken.getsockname()[1])
        taken.close()
        server = await BrokerServer.start(tmp_path)
        await server.close()

    run(work)


def test_clients_are_told_the_address_that_they_reached_or_the_advertised_one(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        for told in (None, ("broker.example", 9999)):
            server = await BrokerServer.start(tmp_path, advertise=told)
            address = "{}:{}".format(*server.address)

            def client(address: str = address) -> Any:
                with RawClient(address) as raw:
                    return raw.ask(ApiKey.METADATA, 9, MetadataRequest([])).brokers[0]

            node = await elsewhere(client)
            assert (node.host, node.port) == (told or server.address)
            await server.close()

    run(work)


def test_many_connections_are_refused_beyond_the_limit(tmp_path: Path) -> None:
    async def work() -> None:
        server = await BrokerServer.start(tmp_path, limits=BrokerLimits(connections_max=3))
        address = "{}:{}".format(*server.address)

        def client() -> int:
            clients = [RawClient(address) for _ in range(6)]
            served = 0
            for raw in clients:
                try:
                    raw.ask(ApiKey.METADATA, 9, MetadataRequest([]))
                    served += 1
                except (EOFError, ConnectionError):
                    pass
            for raw in clients:
                raw.close()
            return served

        assert await elsewhere(client) == 3
        assert server.refusals["127.0.0.1"] == 3
        await server.close()

    run(work)


def test_receive_buffers_are_limited_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        limits = BrokerLimits(receive_bytes_max=2 << 20)
        server = await BrokerServer.start(tmp_path, limits=limits)
        address = "{}:{}".format(*server.address)

        def client() -> bool:
            first, second, third = (RawClient(address) for _ in range(3))
            first.send((1 << 20).to_bytes(4, "big") + bytes(100))
            for _ in range(2):  # the second answer comes after the first client's bytes were seen
                third.ask(ApiKey.METADATA, 9, MetadataRequest([]))
            second.send((1 << 20).to_bytes(4, "big") + bytes(100))
            closed = second.is_closed()
            for raw in (first, second, third):
                raw.close()
            return closed

        assert await elsewhere(client)
        await server.close()
        assert server._received_bytes == 0

    run(work)


def test_interrupt_ends_the_process_properly(tmp_path: Path) -> None:
    for name in (signal.SIGINT, signal.SIGTERM):
        broker = BrokerProcess.start(tmp_path / "data")
        with RawClient(broker.address) as raw:
            raw.ask(ApiKey.METADATA, 9, MetadataRequest([MetadataRequestTopic(name="t")]))
            broker._process.send_signal(name)
            assert broker._process.wait(20) == 0
        broker.stop()
    with pytest.raises(BrokerDidNotStart, match="no-such-option"):
        BrokerProcess.start(tmp_path / "data", "--no-such-option")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--listen", "0.0.0.0:0"], "--insecure"),
        (["--listen", "[::]:0"], "--insecure"),
        (["--listen", "nonsense"], "HOST:PORT"),
        (["--limit", "connections_max"], "KEY=VALUE"),
        (["--limit", "no_such=1"], "no_such"),
        (["--topic-config", "cleanup.policy=compact"], "compaction"),
    ],
)
def test_wrong_use_exits_with_2(tmp_path: Path, options: list[str], why: str) -> None:
    order = [sys.executable, "-c", "from orderwire.cli.main import main; main()", "broker"]
    done = subprocess.run(
        [*order, "--data", str(tmp_path), *options], capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert why in done.stderr.decode()


def test_public_address_needs_a_word(tmp_path: Path) -> None:
    with BrokerProcess.start(tmp_path / "data", "--insecure", listen="0.0.0.0:0") as broker:
        port = broker.address.rpartition(":")[2]
        with RawClient(f"127.0.0.1:{port}") as raw:
            node = raw.ask(ApiKey.METADATA, 9, MetadataRequest([])).brokers[0]
            assert (node.host, node.port) == ("127.0.0.1", int(port))
