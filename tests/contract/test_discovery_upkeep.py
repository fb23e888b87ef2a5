"""What a domain of participants costs on real sockets when nothing happens, and what it tells."""

import asyncio
import json
import signal
import subprocess
import sys
from contextlib import AsyncExitStack
from typing import Any

import pytest
from loopback import free_members

from orderwire import DeltaCausal, Participant, Topic
from orderwire.aio.addresses import split_address
from orderwire.aio.discovery_frames import VERSION, FrameKind, Hello, frame
from orderwire.aio.discovery_host import DiscoveryHost, monotonic_now
from orderwire.aio.discovery_transport import DiscoveryTransport
from orderwire.discovery.bootstrap import BootstrapServer
from orderwire.discovery.settings import BootstrapSettings

pytestmark = [pytest.mark.network, pytest.mark.timeout(200)]

DOMAIN = "upkeep"
MEMBERS = 8
SETTLE_S = 6.0
IDLE_S = 20.0
MAIN = "from orderwire.cli.main import main; main()"


async def server(stack: AsyncExitStack) -> "DiscoveryHost[Any, Any]":
    transport = await DiscoveryTransport.open("127.0.0.1:0", domain=DOMAIN)
    core = BootstrapServer(BootstrapSettings(), monotonic_now(), epoch=1)
    host: DiscoveryHost[Any, Any] = DiscoveryHost(core, transport, lambda indication: None)
    stack.push_async_callback(host.close)
    return host


def test_at_most_three_messages_a_second_and_participant_leases_included() -> None:
    async def work() -> None:
        async with AsyncExitStack() as stack:
            host = await server(stack)
            members = []
            for number in range(MEMBERS):
                member = Participant(f"m{number}", domain=DOMAIN, bootstrap=host.address)
                members.append(await stack.enter_async_context(member))
                topic = Topic(f"topic/{number}", DeltaCausal(lifetime_ms=250))
                member.writer(topic)
                member.reader(f"topic/{(number + 1) % MEMBERS}", order=topic.order)

            def sent() -> int:
                own = sum(each.discovery_counters.sent for each in members)
                return own + host.posted.total()

            async with asyncio.timeout(60):
                while not all(len(each.peers()) == MEMBERS - 1 for each in members):
                    await asyncio.sleep(0.05)
            await asyncio.sleep(SETTLE_S)
            before, began = sent(), asyncio.get_running_loop().time()
            await asyncio.sleep(IDLE_S)
            took_s = asyncio.get_running_loop().time() - began
            rate = (sent() - before) / took_s / MEMBERS
            assert 1.5 <= rate <= 3.0, rate
            for each in members:
                counters = each.discovery_counters
                assert (counters.malformed, counters.refused) == (0, {}), counters
                assert set(counters.dropped.values()) == {0}, counters

    asyncio.run(work())


def test_what_strangers_do_is_told_by_the_shell() -> None:
    """Of another domain, malformed, oversized, slow, silent: each has its count at the end."""

    async def work() -> None:
        async with AsyncExitStack() as stack:
            host = await server(stack)
            (listen,) = free_members("eye").values()
            order = ["participant", "--me=eye", f"--bootstrap={host.address}", "--json"]
            order += [f"--discovery-domain={DOMAIN}", f"--listen={listen}", "--watch"]
            watching = await asyncio.create_subprocess_exec(
                sys.executable, "-c", MAIN, *order, stdout=subprocess.PIPE
            )
            stack.callback(lambda: watching.returncode is None and watching.kill())
            assert watching.stdout is not None
            await asyncio.wait_for(watching.stdout.readline(), 60)
            where = split_address(listen)

            # Ports that come before any free one: whose address is the smaller chooses.
            def hello(port: int, domain: str = DOMAIN) -> bytes:
                said = Hello(VERSION, domain, f"127.0.0.1:{port}", listen, port, 1)
                return frame(FrameKind.HELLO, said.encode())

            chosen = frame(FrameKind.CHOSEN)
            huge = frame(FrameKind.FIRST, b"\xff\xff\xff\xff" + bytes(9))
            begun = frame(FrameKind.FIRST, b"\x00\x00\x01\x00" + bytes(9))
            calls = []
            for data in (
                hello(1, "another"),
                b"GET / HTTP/1.1\r\n\r\n" * 9,
                hello(10) + chosen + huge,
                hello(11) + chosen + begun,
                b"",
                hello(12) + chosen + frame(FrameKind.MESSAGE, b"\xc1" * 99),
            ):
                reader, writer = await asyncio.open_connection(*where)
                writer.write(data)
                calls.append((reader, writer))
            for reader, _ in calls[:5]:  # The silent one and the slow one after 10 s.
                await asyncio.wait_for(reader.read(), 60)
                while not reader.at_eof():
                    await asyncio.wait_for(reader.read(1 << 16), 60)
            watching.send_signal(signal.SIGTERM)
            told = (await asyncio.wait_for(watching.stdout.read(), 60)).splitlines()
            assert await watching.wait() == 0
            found = json.loads(told[-1])["discovery"]
            assert found["malformed"] >= 1, found
            kinds = ("stranger", "malformed", "oversized", "slow", "silent")
            assert found["refused"] == dict.fromkeys(kinds, 1), found
            assert found["refused_hosts"] == {"127.0.0.1": 5}
            for _, writer in calls:
                writer.transport.abort()

    asyncio.run(work())
