"""`orderwire channel` as a process, and members in processes of their own."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from total_groups import Told
from view_cluster import QUICK, Process, start_relay

from orderwire.aio.addresses import join_address
from orderwire.aio.total_views import group_path
from orderwire.aio.zookeeper_client import ZookeeperClient
from orderwire.aio.zookeeper_server import managed_zookeeper
from orderwire.cli.channel import command

pytestmark = [pytest.mark.network, pytest.mark.timeout(120)]

MEMBER = Path(__file__).parent.parent / "support" / "total_member.py"
CHANNEL = [sys.executable, "-m", "orderwire", "channel", "--listen", "127.0.0.1:0", "--json"]


def _told(process: "subprocess.Popen[str]") -> dict[str, object]:
    assert process.stdout is not None
    line = json.loads(process.stdout.readline())
    assert isinstance(line, dict)
    return line


@pytest.mark.parametrize("loss", ["0", "0.02"])
def test_three_processes_deliver_in_one_order(loss: str) -> None:
    count = 200
    channel = subprocess.Popen([*CHANNEL, "--loss", loss], stdout=subprocess.PIPE, text=True)
    members: list[subprocess.Popen[str]] = []
    try:
        where = str(_told(channel)["listen"])
        members = [
            subprocess.Popen(
                [sys.executable, str(MEMBER), where, str(me), "3", str(count)],
                stdout=subprocess.PIPE,
                text=True,
            )
            for me in range(3)
        ]
        told = Told(3)
        for me, member in enumerate(members):
            log = _told(member)
            for number, to in log["sent"]:  # type: ignore[attr-defined]
                told.wrote(me, number, to)
            told.received[me] = [(s, n) for s, n in log["received"]]  # type: ignore[attr-defined]
            assert member.wait(30) == 0
        logs = told.logs()
        assert logs.service() == "ST"
        assert logs.is_acyclic()
        channel.send_signal(signal.SIGINT)
        last = _told(channel)
        assert channel.wait(60) == 0
        assert int(str(last["pdus"])) > count
    finally:
        for process in (channel, *members):
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _standing(zookeeper: str, count: int) -> list[str]:
    """Wait until so many relays stand in the row; return their addresses."""

    async def look() -> list[str]:
        client = ZookeeperClient(zookeeper)
        await client.open()
        relays = f"{group_path('g')}/relays"
        try:
            while len(names := await client.children(relays)) != count:
                await asyncio.sleep(0.05)
            return [
                json.loads((await client.get(f"{relays}/{name}")).data)["address"] for name in names
            ]
        finally:
            await client.close()

    return asyncio.run(look())


def test_a_dead_relay_stands_in_the_row_for_the_length_of_its_session() -> None:
    relays: list[Process] = []
    with managed_zookeeper(settings=QUICK) as server:
        try:
            relays = [
                start_relay(server.address, "g", "--session-ms", length)
                for length in ("60000", "1000")
            ]
            both = _standing(server.address, 2)
            for relay in relays:
                relay.kill()
            [left] = _standing(server.address, 1)
            assert left == relays[0].told["listen"]
            assert sorted(both) == sorted(str(relay.told["listen"]) for relay in relays)
        finally:
            for relay in relays:
                relay.end()


def test_it_ends_with_its_input_where_that_is_wanted() -> None:
    channel = subprocess.Popen(
        [*CHANNEL, "--end-with-input"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        _told(channel)
        assert channel.stdin is not None
        channel.stdin.close()
        assert _told(channel)["pdus"] == 0
        assert channel.wait(60) == 0
    finally:
        channel.kill()
        channel.wait()
        if channel.stdout is not None:
            channel.stdout.close()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--listen=nonsense"], "expected HOST:PORT"),
        (["--listen=[::1]:0"], "expected an IPv4 address"),
        (["--listen=127.0.0.1:0", "--multicast=abc:7501"], "'abc' is no address of a multicast"),
        (["--listen=127.0.0.1:0", "--multicast=10.0.0.1:7501"], "224.0.0.0 to 239.255.255.255"),
        (["--listen=127.0.0.1:0", "--multicast=239.1.2.3:0"], "needs a port"),
        (
            ["--multicast=239.1.2.3:7501", "--multicast-interface=eth0"],
            "the IPv4 address of an interface",
        ),
        (["--multicast-interface=127.0.0.1"], "no effect without --multicast"),
        (["--receive-buffer=99999999999"], "expected 2304 to 1073741824"),
        (["--group=books"], "no effect without --zookeeper"),
        (["--session-ms=5000"], "no effect without --zookeeper"),
        (
            ["--listen=0.0.0.0:0", "--insecure", "--zookeeper=127.0.0.1:1"],
            "learn this address from ZooKeeper",
        ),
        (["--listen=127.0.0.1:0", "--zookeeper=rubbish"], "ZooKeeper at 'rubbish'"),
        (["--listen=127.0.0.1:0", "--zookeeper=127.0.0.1:1", "--group="], "no name of a group"),
    ],
)
def test_what_cannot_be_is_a_usage_error(options: list[str], sentence: str) -> None:
    done = CliRunner().invoke(command, options)
    assert done.exit_code == 2, done.output
    assert sentence in " ".join(done.output.split())


def test_an_address_in_use_is_named() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        where = join_address(*taken.getsockname())
        done = CliRunner().invoke(command, ["--listen", where])
    assert done.exit_code == 1
    assert f"{where}: Address already in use" in done.output


def test_it_does_not_listen_beyond_this_machine_without_a_word() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "orderwire", "channel", "--listen", "0.0.0.0:0"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "--insecure" in done.stderr
