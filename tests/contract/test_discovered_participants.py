"""Participants that find each other: matching follows the view, on real sockets."""

import asyncio
import functools
import json
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority
from discovered import domain, first, in_a_loop, until
from loopback import free_members

from orderwire import DeltaCausal, Participant, Topic
from orderwire.aio.discovery_host import DiscoveryHost, monotonic_now
from orderwire.aio.discovery_transport import DiscoveryTransport
from orderwire.aio.zookeeper_access import ZookeeperAccess
from orderwire.aio.zookeeper_server import (
    ZookeeperServerSettings,
    ZookeeperTls,
    managed_zookeeper,
)
from orderwire.discovery.bootstrap import BootstrapServer
from orderwire.discovery.settings import BootstrapSettings
from orderwire.kernel import LocalProtocolError

pytestmark = [pytest.mark.network, pytest.mark.timeout(240)]

DOMAIN = "test"
CHAT = Topic("chat/a", DeltaCausal(lifetime_ms=2_000))
NEWS = Topic("news", CHAT.order)
MAIN = "from orderwire.cli.main import main; main()"


server = functools.partial(domain, DOMAIN)


def member(name: str, bootstrap: str, **more: Any) -> Participant:
    return Participant(name, domain=DOMAIN, bootstrap=bootstrap, **more)


async def meet(parts: list[Participant]) -> None:
    """Let three participants find each other, one of them writing to the others."""
    ana, ben, carl = parts
    async with ana, ben, carl:
        writer = ana.writer(CHAT)
        readers = [each.reader(CHAT) for each in (ben, carl)]
        await writer.wait_matched(2, timeout_s=60)
        writer.write(b"both")
        assert [await first(reader) for reader in readers] == [b"both", b"both"]
        assert len({each.id for each in parts}) == 3


@in_a_loop
async def test_a_reader_that_appears_gets_what_is_written_from_then_on() -> None:
    async with server() as at, member("ana", at) as ana, member("ben", at) as ben:
        writer = ana.writer(CHAT)
        assert writer.write(b"nobody") is None
        reader = ben.reader("chat/*", order=CHAT.order)
        await writer.wait_matched(1, timeout_s=60)
        writer.write(b"one")
        assert await first(reader) == b"one"
        assert ana.members == tuple(name for _, name in sorted([(ana.id, "ana"), (ben.id, "ben")]))
        (seen,) = ana.peers()
        assert (seen.name, seen.id) == ("ben", ben.id)
        await until(lambda: [each.topic for each in ana.peers()[0].map.endpoints] == ["chat/*"])


@in_a_loop
async def test_members_connect_only_when_one_reads_what_the_other_writes() -> None:
    async with AsyncExitStack() as stack:
        at = await stack.enter_async_context(server())
        ana, ben, carl = [
            await stack.enter_async_context(member(name, at)) for name in ("ana", "ben", "carl")
        ]
        writer = ana.writer(CHAT)
        reader = ben.reader(CHAT)
        ana.reader(NEWS)
        carl.writer(Topic("else", CHAT.order))
        await writer.wait_matched(1, timeout_s=60)
        await until(lambda: len(ana.members) == len(carl.members) == 3)
        assert ana.connected == ("ben",)
        assert carl.connected == ()
        carl.writer(NEWS)
        await until(lambda: "carl" in ana.connected)
        reader.close()
        await until(lambda: ana.connected == ("carl",))
        assert writer.matched == 0


@in_a_loop
async def test_a_leaver_is_off_all_destination_sets_at_once() -> None:
    async with server() as at, member("ana", at) as ana:
        writer = ana.writer(CHAT)
        async with member("ben", at) as ben:
            ben.reader(CHAT)
            await writer.wait_matched(1, timeout_s=60)
        await until(lambda: writer.matched == 0 and ana.members == ("ana",))


@in_a_loop
async def test_members_find_each_other_through_seeds() -> None:
    async with server() as at:  # any free port
        pass
    names = ("ana", "ben", "carl")
    listens = (at, "127.0.0.1:0", "127.0.0.1:0")
    parts = [
        Participant(name, domain=DOMAIN, seeds=[at], listen=listen)
        for name, listen in zip(names, listens, strict=True)
    ]
    await meet(parts)


@in_a_loop
async def test_members_find_each_other_through_zookeeper() -> None:
    async with managed_zookeeper() as zookeeper:
        parts = [
            Participant(name, domain=DOMAIN, zookeeper=zookeeper.address)
            for name in ("ana", "ben", "carl")
        ]
        await meet(parts)


def everywhere(name: str, bootstrap: str, advertise: str, **more: Any) -> Participant:
    """Return a member that listens on all interfaces and is called at one."""
    options = {"listen": "0.0.0.0:0", "insecure": True, "advertise": advertise} | more
    return member(name, bootstrap, **options)


@in_a_loop
async def test_members_find_each_other_through_an_ensemble_with_tls_and_a_user() -> None:
    with tempfile.TemporaryDirectory() as folder:
        authority = Authority(Path(folder), "zookeeper")
        server_cert, server_key = authority.issue("server")
        cert, key = authority.issue("members")
        tls = ZookeeperTls(cert=server_cert, key=server_key, ca=authority.ca)
        async with managed_zookeeper(settings=ZookeeperServerSettings(tls=tls)) as zookeeper:
            access = ZookeeperAccess(ca=authority.ca, cert=cert, key=key, digest="plant:secret")
            where = f"{zookeeper.address}/plant"
            parts = [
                Participant(name, domain=DOMAIN, zookeeper=where, zookeeper_access=access)
                for name in ("ana", "ben", "carl")
            ]
            await meet(parts)
            user = Path(folder, "user")
            user.write_text("plant:secret\n")
            options = [f"--zookeeper-ca={authority.ca}", f"--zookeeper-cert={cert}"]
            options += [f"--zookeeper-key={key}", f"--zookeeper-user={user}"]
            shown = shell("--me=eye", f"--zookeeper={where}", "--watch", *options)
            try:
                line = await asyncio.to_thread(shown.stdout.readline)  # type: ignore[union-attr]
                assert json.loads(line)["participants"] == []
            finally:
                shown.kill()
                shown.communicate()


@in_a_loop
async def test_a_member_whose_id_is_taken_falls_silent_and_says_so() -> None:
    """A server that lost its table and does not wait gives an id again; the larger incarnation
    keeps it.  What the other said under that number would be taken for the new holder's."""
    transport = await DiscoveryTransport.open("127.0.0.1:0", domain=DOMAIN)
    core = BootstrapServer(BootstrapSettings(id_space=16), monotonic_now(), epoch=1)
    host: DiscoveryHost[Any, Any] = DiscoveryHost(core, transport, lambda indication: None)
    told: list[tuple[str, bool]] = []
    try:
        carl = member("carl", host.address, on_member=lambda *what: told.append(what))
        ana = member("ana", host.address)
        async with carl, ana:
            writer, reader = ana.writer(CHAT), ana.reader(NEWS)
            listening = carl.reader(CHAT)
            idle = asyncio.create_task(ana.writer(NEWS).wait_matched(9))
            shown = shell("--me=eye", f"--bootstrap={host.address}", "--read=x",
                          f"--discovery-domain={DOMAIN}")  # fmt: skip
            try:
                await writer.wait_matched(1, timeout_s=60)
                await until(lambda: len(carl.members) == 3, 120)
                losing = asyncio.create_task(ana.lost())
                lost = {"ana": ana.id}
                lost |= {peer.name: peer.id for peer in carl.peers() if peer.name == "eye"}
                for name, identity in lost.items():
                    core._free(identity)
                    other = member(f"not {name}", host.address, wish=identity)
                    async with other:
                        assert other.id == identity
                        taking = other.writer(CHAT)
                        await until(lambda: name not in carl.members)  # noqa: B023
                        await taking.wait_matched(1, timeout_s=60)
                        taking.write(name.encode())
                        assert await first(listening) == name.encode()
                for waiting in (losing, idle, reader.read(60), ana.flush()):
                    with pytest.raises(LocalProtocolError, match="another participant has taken"):
                        await waiting
                with pytest.raises(LocalProtocolError, match="make a new one"):
                    writer.write(b"mine?")
                assert await asyncio.to_thread(shown.wait, 60) == 2
            finally:
                shown.kill()
                shown.communicate()
        assert ("ana", False) in told
        async with member("ana", host.address) as again:
            assert again.members == ("ana",)
    finally:
        await host.close()


@in_a_loop
async def test_members_that_listen_everywhere_are_called_where_they_say() -> None:
    """As behind several interfaces: each at an address of its own, discovery and data."""
    transport = await DiscoveryTransport.open(
        "0.0.0.0:0", domain=DOMAIN, advertise="127.0.0.9", insecure=True
    )
    core = BootstrapServer(BootstrapSettings(id_space=16), monotonic_now(), epoch=1)
    host: DiscoveryHost[Any, Any] = DiscoveryHost(core, transport, lambda indication: None)
    data_port = int(next(iter(free_members("data").values())).rpartition(":")[2])
    try:
        assert host.address.startswith("127.0.0.9:")
        places = [f"127.0.0.{last}" for last in (2, 3, 4)]
        parts = [
            everywhere(name, host.address, place, data_port=data_port)
            for name, place in zip(("ana", "ben", "carl"), places, strict=True)
        ]
        await meet(parts)
        ana = everywhere("ana", host.address, "127.0.0.2")
        ben = everywhere("ben", host.address, "127.0.0.3", data_port=data_port)
        async with ana, ben:
            await until(
                lambda: [each.address for each in ana.peers()] == [("127.0.0.3", data_port)]
            )
            assert ana.peers()[0].listens == ben.listens
            assert ben.listens.startswith("127.0.0.3:")
    finally:
        await host.close()


@in_a_loop
async def test_addresses_that_nobody_can_call_are_refused() -> None:
    async with server() as at:
        for options, why in (
            ({"listen": "0.0.0.0:0", "insecure": True}, "say with advertise"),
            ({"listen": "0.0.0.0:0", "advertise": "127.0.0.2"}, "reachable from other machines"),
            ({"advertise": "0.0.0.0"}, "no address that others can call"),
            ({"advertise": "[::1]:7400"}, "IPv4 alone"),
            ({"listen": "[::1]:0"}, "data go over IPv4 alone"),
            ({"bootstrap": "[::1]:7400"}, "participants listen on IPv4"),
            ({"data_port": 65_536}, "from 0 to 65535"),
        ):
            with pytest.raises(LocalProtocolError, match=why):
                async with member("ana", **{"bootstrap": at} | options):  # type: ignore[arg-type]
                    pass
        # Behind a translation that does not show the advertised host, nobody answers.
        with pytest.raises(TimeoutError, match=r"must see what we send come from 192\.0\.2\.1"):
            async with everywhere("ana", at, "192.0.2.1", join_s=1.0):
                pass


@in_a_loop
async def test_a_full_domain_refuses_the_surplus_member() -> None:
    async with server(id_space=2) as at, member("ana", at) as ana, member("ben", at):
        with pytest.raises(TimeoutError, match=r"'carl' has not joined.*it is full"):
            async with member("carl", at, join_s=1.5):
                pass
        await until(lambda: len(ana.members) == 2)


@in_a_loop
async def test_what_contradicts_itself_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="one of the two"):
        Participant("ana", members={"ana": "127.0.0.1:1"}, domain=DOMAIN)
    with pytest.raises(LocalProtocolError, match="one of the two"):
        Participant("ana")
    with pytest.raises(LocalProtocolError, match="one of the three"):
        Participant("ana", domain=DOMAIN)
    with pytest.raises(LocalProtocolError, match="one of the three"):
        Participant("ana", domain=DOMAIN, bootstrap="127.0.0.1:1", seeds=["127.0.0.1:2"])


@in_a_loop
async def test_nobody_at_the_bootstrap_address_is_told() -> None:
    told = r"through 127\.0\.0\.1:1 within 0\.3 s: there was no answer, 127\.0\.0\.1:1: .*111"
    with pytest.raises(TimeoutError, match=told):
        async with Participant("ana", domain=DOMAIN, bootstrap="127.0.0.1:1", join_s=0.3):
            pass


@in_a_loop
async def test_an_ensemble_that_is_none_leaves_no_listener_behind() -> None:
    async with server() as at:  # any free port
        pass
    with pytest.raises(LocalProtocolError, match="no address"):
        async with Participant("ana", domain=DOMAIN, zookeeper="no address", listen=at):
            pass
    transport = await DiscoveryTransport.open(at, domain=DOMAIN)
    await transport.close()


def shell(*order: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", MAIN, "participant", *order, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        text=True,
    )


@in_a_loop
async def test_a_killed_member_is_not_written_to_and_a_new_one_in_its_place_is() -> None:
    async with server() as at, member("ana", at) as ana:
        writer = ana.writer(CHAT)
        options = ("--me", "ben", "--bootstrap", at, "--discovery-domain", DOMAIN)
        reading = ("--read", "chat/*", "--lifetime-ms", "2000", "--count", "1")
        killed = shell(*options, *reading)
        try:
            await writer.wait_matched(1, timeout_s=120)
            (before,) = ana.peers()
            killed.send_signal(signal.SIGKILL)
            await until(lambda: writer.matched == 0)  # its connection has broken: at once
            restarted = shell(*options, *reading)
            try:
                await writer.wait_matched(1, timeout_s=120)
                # Before it reads its sample, and leaves.
                assert any(each.inc > before.inc for each in ana.peers())
                writer.write(f"at {time.time()}".encode())
                line = await asyncio.to_thread(restarted.stdout.readline)  # type: ignore[union-attr]
                assert json.loads(line)["source"] == "ana"
            finally:
                restarted.kill()
                restarted.communicate()
        finally:
            killed.kill()
            killed.communicate()
        # Off the list when there has been no evidence for 9 s.
        await until(lambda: ana.members == ("ana",))


@in_a_loop
async def test_the_shell_shows_who_is_there() -> None:
    async with server() as at, member("ana", at) as ana:
        ana.writer(CHAT)
        options = ("--me", "eye", "--bootstrap", at, "--discovery-domain", DOMAIN)
        fitting = ("--read", "chat/*", "--lifetime-ms", "2000")
        watching = shell(*options, "--watch", *fitting)
        other = shell("--me", "other", *options[2:], "--read", "**", "--order", "fifo")
        try:
            while True:
                line = await asyncio.to_thread(watching.stdout.readline)  # type: ignore[union-attr]
                told = json.loads(line)
                named = {each["name"]: each for each in told["participants"]}
                seen = named.get("ana", {"connected": False})
                if seen["connected"] and told["topics"] and told["topics"][0]["readers"]:
                    break
            assert seen["writes"] == seen["shared"] == ["chat/a"]
            while not told["topics"][0]["other_order"]:
                line = await asyncio.to_thread(watching.stdout.readline)  # type: ignore[union-attr]
                told = json.loads(line)
            (topic,) = told["topics"]
            assert (topic["topic"], topic["writers"], topic["readers"]) == (
                "chat/a",
                ["ana"],
                ["eye"],
            )
            assert topic["other_order"][0].startswith("other (fifo")
            for each in (watching, other):
                each.send_signal(signal.SIGTERM)
                assert await asyncio.to_thread(each.wait, 60) == 0
        finally:
            for each in (watching, other):
                each.kill()
                each.communicate()
        await until(lambda: ana.members == ("ana",))
