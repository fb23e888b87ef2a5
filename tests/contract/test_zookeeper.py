"""The managed ZooKeeper server and its client, for real: starting, ending, crashing, refusing."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from certificates import Authority

from orderwire.aio.zookeeper_access import ZookeeperAccess
from orderwire.aio.zookeeper_client import ClientSettings, Session, ZookeeperClient
from orderwire.aio.zookeeper_errors import (
    NoZnode,
    ZnodeExists,
    ZnodeNotEmpty,
    ZookeeperRefused,
    ZookeeperUnavailable,
)
from orderwire.aio.zookeeper_server import (
    ZookeeperServerSettings,
    ZookeeperTls,
    managed_zookeeper,
)
from orderwire.kernel import NS_PER_MS, LocalProtocolError

pytestmark = [pytest.mark.network, pytest.mark.timeout(120)]

MAIN = "from orderwire.cli.main import main; main()"


def until(holds: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def is_there(pid: int) -> bool:
    """Whether a process runs: one that nobody has waited for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Command:
    """`orderwire zookeeper --json`, started."""

    def __init__(self, *options: str) -> None:
        order = [sys.executable, "-W", "error", "-c", MAIN, "zookeeper", "--json", *options]
        self.popen = subprocess.Popen(
            order, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.popen.stdout is not None
        self.told = json.loads(self.popen.stdout.readline())

    def end(self, number: signal.Signals) -> tuple[int, str]:
        self.popen.send_signal(number)
        _, errors = self.popen.communicate(timeout=30)
        return self.popen.returncode, errors


def test_command_keeps_its_data_and_leaves_no_process_however_it_ends(tmp_path: Path) -> None:
    data = tmp_path / "zoo keeper ü"
    first = Command("--port", "0", "--data", str(data))
    address, pid = first.told["listen"], first.told["pid"]
    port = address.rpartition(":")[2]

    async def remember() -> None:
        async with ZookeeperClient(f"{address}/at/a/folder") as client:
            await client.ensure("/kept", b"it")

    asyncio.run(remember())
    for options, why in (
        (["--data", str(data), "--port", "0"], "folder of a ZooKeeper that runs"),
        (["--port", port], "in use"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", MAIN, "zookeeper", *options],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode, done.stdout) == (1, "")
        assert why in done.stderr

    first.end(signal.SIGKILL)
    until(lambda: not is_there(pid), "the server outlived the process that started it")

    again = Command("--port", port, "--data", str(data))
    assert again.told["listen"] == address

    async def recall() -> bytes:
        async with ZookeeperClient(address) as client:
            return (await client.get("/at/a/folder/kept")).data

    assert asyncio.run(recall()) == b"it"
    assert again.end(signal.SIGTERM) == (0, "")
    assert not is_there(again.told["pid"])
    assert (data / "version-2").is_dir()


def test_temporary_data_go_with_a_process_that_is_killed() -> None:
    command = Command("--port", "0")
    data = Path(command.told["data"])
    assert data.is_dir()
    # A closed connection to what it listens on must not keep the port: it is given out again.
    host, _, port = command.told["listen"].rpartition(":")
    socket.create_connection((host, int(port))).close()
    command.end(signal.SIGKILL)
    until(lambda: not is_there(command.told["pid"]), "the server outlived its parent")
    until(lambda: not data.exists(), f"{data} is still there")


def test_command_tells_when_the_server_ends_by_itself() -> None:
    command = Command("--port", "0")
    os.kill(command.told["pid"], signal.SIGKILL)
    _, errors = command.popen.communicate(timeout=30)
    assert command.popen.returncode == 1
    assert "the server has ended" in errors
    assert not Path(command.told["data"]).exists()


def test_client_over_one_life_of_a_server(tmp_path: Path) -> None:
    settings = ZookeeperServerSettings(tick_ms=100, session_ms_min=200)
    told: list[Session] = []
    times = ClientSettings(session_ns=8_000 * NS_PER_MS, reply_ns=4_000 * NS_PER_MS)

    async def work() -> None:
        async with managed_zookeeper(tmp_path / "data", settings) as server:
            async with ZookeeperClient(server.address, times, on_session=told.append) as client:
                await client.ensure("/a/b", b"first")
                await client.ensure("/a/b", b"again")
                znode = await client.get("/a/b")
                assert (znode.data, znode.version) == (b"first", 0)
                assert abs(znode.created_ms / 1_000 - time.time()) < 60
                names = [await client.create("/a/b/n-", sequence=True) for _ in range(3)]
                assert names == [f"/a/b/n-{number:010}" for number in range(3)]
                assert sorted(await client.children("/a/b")) == [name[5:] for name in names]
                with pytest.raises(ZnodeExists, match="/a/b"):
                    await client.create("/a/b")
                for doomed in (client.get("/c"), client.children("/c"), client.delete("/c")):
                    with pytest.raises(NoZnode, match="/c"):
                        await doomed
                with pytest.raises(ZnodeNotEmpty, match="/a/b"):
                    await client.delete("/a/b")
                await client.delete(names[0])
                await client.create("/a/mine", b"x", ephemeral=True)

            async with ZookeeperClient(server.address, times, on_session=told.append) as client:
                with pytest.raises(NoZnode):
                    await client.get("/a/mine")  # Closing has ended the session at once.
                await asyncio.to_thread(server.kill)
                with pytest.raises(ZookeeperUnavailable):
                    await client.get("/a/b")
                assert client.session is Session.SUSPENDED
        with pytest.raises(ZookeeperUnavailable, match="no ZooKeeper at"):
            async with ZookeeperClient(
                server.address, ClientSettings(reply_ns=200 * NS_PER_MS)
            ) as client:
                await client.get("/a/b")

    asyncio.run(work())
    assert told == [Session.CONNECTED, Session.CONNECTED, Session.SUSPENDED]


# kazoo leaves the socket of a handshake that failed to the collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_only_who_has_a_certificate_reaches_an_ensemble_with_tls(tmp_path: Path) -> None:
    """And the others hear why: no TLS, a CA that is not the server's, no certificate of its CA."""
    authority, stranger = Authority(tmp_path, "ours"), Authority(tmp_path, "other")
    server_cert, server_key = authority.issue("server")
    cert, key = authority.issue("client")
    other_cert, other_key = stranger.issue("stranger")
    tls = ZookeeperTls(cert=server_cert, key=server_key, ca=authority.ca)
    settings = ZookeeperServerSettings(tls=tls)

    async def work() -> None:
        async with managed_zookeeper(settings=settings) as server:
            access = ZookeeperAccess(ca=authority.ca, cert=cert, key=key)
            async with ZookeeperClient(server.address, access=access) as client:
                await client.ensure("/a/b", b"data")
                assert (await client.get("/a/b")).data == b"data"
            for wrong, why in (
                (None, "we need its CA"),
                (ZookeeperAccess(ca=stranger.ca, cert=cert, key=key), "CERTIFICATE_VERIFY_FAILED"),
                (ZookeeperAccess(ca=authority.ca), "no ZooKeeper at"),
                (
                    ZookeeperAccess(ca=authority.ca, cert=other_cert, key=other_key),
                    "no ZooKeeper at",
                ),
            ):
                short = ClientSettings(reply_ns=1_500 * NS_PER_MS)
                async with ZookeeperClient(server.address, short, access=wrong) as client:
                    with pytest.raises(ZookeeperUnavailable, match=why):
                        await client.get("/a/b")

    asyncio.run(work())


def test_what_a_user_makes_is_that_users_alone() -> None:
    async def work() -> None:
        async with managed_zookeeper() as server:
            ana, ben = [ZookeeperAccess(digest=f"{name}:secret") for name in ("ana", "ben")]
            async with ZookeeperClient(f"{server.address}/ana", access=ana) as client:
                await client.ensure("/a", b"ana's")
                assert (await client.get("/a")).data == b"ana's"
            for other in (ben, None):
                async with ZookeeperClient(f"{server.address}/ana", access=other) as client:
                    with pytest.raises(ZookeeperRefused, match="another user's"):
                        await client.get("/a")

    asyncio.run(work())


def test_an_ensemble_that_takes_no_more_connections_of_us_is_told() -> None:
    """ZooKeeper's own limit is 60 of one address; it closes what comes above it without a word."""

    async def work() -> None:
        async with managed_zookeeper(settings=ZookeeperServerSettings(connections_max=2)) as server:
            short = ClientSettings(reply_ns=1_500 * NS_PER_MS)
            async with (
                ZookeeperClient(server.address) as one,
                ZookeeperClient(server.address) as two,
            ):
                await asyncio.gather(one.ensure("/a"), two.ensure("/b"))
                async with ZookeeperClient(server.address, short) as third:
                    with pytest.raises(ZookeeperUnavailable, match="maxClientCnxns"):
                        await third.get("/a")

    asyncio.run(work())


def test_access_that_contradicts_itself_is_refused(tmp_path: Path) -> None:
    cert, key = Authority(tmp_path, "ca").issue("c")
    for given, why in (
        ({"cert": cert}, "needs its key"),
        ({"cert": cert, "key": key}, "need the ensemble's CA"),
        ({"ca": tmp_path / "none"}, "there is no file"),
        ({"ca": key}, "TLS to ZooKeeper"),
        ({"digest": "nobody"}, "user:password"),
    ):
        with pytest.raises(LocalProtocolError, match=why):
            ZookeeperAccess(**given)  # type: ignore[arg-type]
