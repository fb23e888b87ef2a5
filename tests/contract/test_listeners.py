"""Who does not say who it is: counted from the first byte on, before TLS is, and turned away."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from certificates import Authority
from quiet_links import quiet_links

from orderwire.aio import broker_server, cluster_link, cluster_links
from orderwire.aio.broker_server import BrokerLimits, BrokerServer
from orderwire.aio.cluster_links import STRANGERS_MAX

pytestmark = [pytest.mark.network, pytest.mark.timeout(120)]


@contextlib.contextmanager
def callers(address: tuple[str, int], count: int) -> Iterator[list[socket.socket]]:
    """Connections that say nothing."""
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_connection(address, timeout=30)) for _ in range(count)
        ]


def is_shut(caller: socket.socket) -> bool:
    caller.settimeout(0)
    try:
        return caller.recv(1) == b""
    except (BlockingIOError, ssl.SSLWantReadError):
        return False
    except ConnectionError:
        return True


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow this machine is: who is shut was turned away, and has not been too slow."""
    monkeypatch.setattr(broker_server, "_HANDSHAKE_S", 60.0)
    monkeypatch.setattr(cluster_link, "HELLO_WAIT_S", 60.0)
    monkeypatch.setattr(cluster_links, "HELLO_WAIT_S", 60.0)


async def shut(all_of_them: list[socket.socket], expected: int) -> None:
    async with asyncio.timeout(30):
        while sum(map(is_shut, all_of_them)) < expected:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    assert sum(map(is_shut, all_of_them)) == expected


def test_a_handshake_that_does_not_come_counts_as_a_connection(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "clients")
    cert, key = authority.issue("broker")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)

    async def work() -> None:
        limits = BrokerLimits(connections_per_address_max=5)
        server = await BrokerServer.start(tmp_path / "data", limits=limits, tls=context)
        try:
            with callers(server.address, 8) as silent:
                await shut(silent, 3)
                assert server.refusals.total() == 3
            trusting = ssl.create_default_context(cafile=authority.ca)
            async with asyncio.timeout(30):
                while True:  # those that have hung up make room
                    try:
                        _, writer = await asyncio.open_connection(*server.address, ssl=trusting)
                        break
                    except OSError:
                        await asyncio.sleep(0.05)
            writer.write((10).to_bytes(4, "big") + bytes.fromhex("0012 0000 00000007 ffff"))
            await writer.drain()
            writer.close()
        finally:
            await server.close()

    asyncio.run(work())


@pytest.mark.parametrize("tls", [False, True])
def test_strangers_between_brokers_are_few_and_leave_nothing(tmp_path: Path, tls: bool) -> None:
    credentials = Authority(tmp_path, "cluster").credentials("broker") if tls else None

    async def work() -> None:
        links = await quiet_links(credentials)
        try:
            with callers(links.address, STRANGERS_MAX + 6) as silent:
                await shut(silent, 6)
                for each in silent:
                    with contextlib.suppress(OSError):
                        each.send(b"\xff" * 64)
                await shut(silent, len(silent))
            with callers(links.address, STRANGERS_MAX) as silent:
                await asyncio.sleep(0.3)
                assert not any(map(is_shut, silent)), "those before have left nothing behind"
        finally:
            await links.close()

    asyncio.run(work())
