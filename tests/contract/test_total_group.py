"""Selectively totally ordered broadcast over real sockets.  [S003]"""

import asyncio
import socket

import pytest
from discovered import in_a_loop
from total_groups import Told, fixed_group, run_to_rest

from orderwire import LocalProtocolError, TotalGroup, TotalGroupSettings
from orderwire.aio.total_frames import HELLO, Call, Up, encode_call, encode_pdu, encode_up
from orderwire.aio.total_port import Deaf
from orderwire.aio.total_relay import ChannelRelay, RelaySettings
from orderwire.ordering.total.settings import Delivery

pytestmark = [pytest.mark.network, pytest.mark.timeout(120)]


def _check(told: Told) -> None:
    logs = told.logs()
    assert logs.service() == "ST"
    assert logs.is_acyclic()


@pytest.mark.parametrize("delivery", list(Delivery))
@pytest.mark.parametrize("multicast", [False, True])
def test_three_members_deliver_in_one_order(delivery: Delivery, multicast: bool) -> None:
    @in_a_loop
    async def run() -> None:
        relay = RelaySettings(multicast=("239.77.1.1", _free_port()) if multicast else None)
        async with fixed_group(3, relay, TotalGroupSettings(delivery=delivery)) as (_, groups):
            told = Told(3)
            await run_to_rest(groups, told, 100, seed=1)
            _check(told)

    run()


@pytest.mark.parametrize("repeats", [False, True])
def test_what_is_lost_is_repaired_and_the_order_kept(repeats: bool) -> None:
    @in_a_loop
    async def run() -> None:
        relay = RelaySettings(loss=0.02, seed=5, repeats=repeats)
        settings = TotalGroupSettings(repeats=repeats)
        async with fixed_group(4, relay, settings) as (channel, groups):
            told = Told(4)
            await run_to_rest(groups, told, 150, seed=2)
            _check(told)
            assert channel.counters["lost on purpose"] > 0
            if not repeats:
                assert groups[0].counters()["epoch"] > 0

    run()


@in_a_loop
async def test_a_member_that_is_deaf_for_a_while_gets_what_it_missed() -> None:
    deaf = TotalGroupSettings(outages=(Deaf(from_s=0.1, until_s=0.25),))
    async with fixed_group(3, settings={2: deaf}) as (_, groups):
        told = Told(3)
        await run_to_rest(groups, told, 200, seed=3)
        _check(told)
        assert groups[2].counters()["lost on purpose"] > 0


@in_a_loop
async def test_a_receive_buffer_that_overruns_is_only_loss() -> None:
    small = TotalGroupSettings(receive_bytes=4_608)
    async with fixed_group(3, settings=small) as (_, groups):
        told = Told(3)
        await run_to_rest(groups, told, 200, seed=4)
        _check(told)


@in_a_loop
async def test_datagrams_that_no_member_sends_change_nothing() -> None:
    async with fixed_group(2) as (channel, groups):
        told = Told(2)
        running = asyncio.create_task(run_to_rest(groups, told, 50, seed=6))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            relay = channel.incarnation
            for data in (
                b"",
                b"garbage",
                encode_call(HELLO, Call(relay, 0, 1)),
                encode_up(Up(relay, 0, 1, 1)) + encode_pdu(0, b"\0"),
                encode_up(Up(relay, 0, 1, 1)) + b"\0",
                encode_call(HELLO, Call(relay, 5_000, 1)),
            ):
                stranger.sendto(data, channel.address)
                for group in groups:
                    stranger.sendto(data, group.address)
        await running
        _check(told)
        assert channel.counters["malformed"] >= 2
        assert channel.counters["refused"] == 1
        assert channel.counters["from nobody here"] == 2


@in_a_loop
async def test_a_second_process_of_the_same_id_is_refused() -> None:
    async with fixed_group(2) as (channel, _):
        host, port = channel.address
        with pytest.raises(LocalProtocolError, match="process 1 was here"):
            await TotalGroup.join(f"{host}:{port}", me=1, members=2)


@in_a_loop
async def test_a_group_waits_until_all_are_there() -> None:
    channel = await ChannelRelay.open(("127.0.0.1", 0))
    host, port = channel.address
    with pytest.raises(TimeoutError):
        await TotalGroup.join(f"{host}:{port}", me=0, members=2, wait_s=0.2)
    await channel.close()


@in_a_loop
async def test_who_does_not_read_makes_writers_wait_and_loses_nothing() -> None:
    settings = TotalGroupSettings(buffers=16, queue_messages_max=32, pack_bytes=64, window=8)
    async with fixed_group(2, settings=settings) as (_, groups):
        one, other = groups

        async def write() -> None:
            for number in range(400):
                await one.write(number.to_bytes(4, "little") * 16, [1])

        writing = asyncio.create_task(write())
        await asyncio.sleep(0.3)
        assert not writing.done()
        found = []
        async for message in other:
            found.append(message.number)
            if len(found) == 400:
                break
        await writing
        assert found == list(range(400))


@in_a_loop
async def test_writing_to_who_is_no_member_is_refused() -> None:
    async with fixed_group(2) as (_, groups):
        with pytest.raises(LocalProtocolError, match="are no members"):
            await groups[0].write(b"x", [2])
        with pytest.raises(LocalProtocolError, match="at least one destination"):
            await groups[0].write(b"x", [])
        await groups[0].close()
        with pytest.raises(LocalProtocolError, match="has left"):
            await groups[0].write(b"x")


@in_a_loop
async def test_beyond_this_machine_needs_a_word() -> None:
    with pytest.raises(LocalProtocolError, match="insecure"):
        await TotalGroup.join("192.0.2.1:7500", me=0, members=2)


def _free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
