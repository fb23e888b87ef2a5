"""Selectively totally ordered broadcast over real sockets.  [S003]"""

import asyncio
import socket
from typing import Any

import pytest
from discovered import in_a_loop
from loopback import free_members
from total_groups import Told, fixed_group, run_to_rest

from orderwire import LocalProtocolError, TotalGroup, TotalGroupSettings
from orderwire.aio.addresses import join_address
from orderwire.aio.total_frames import HELLO, Call, Up, encode_call, encode_pdu, encode_up
from orderwire.aio.total_port import Deaf
from orderwire.aio.total_relay import ChannelRelay, RelaySettings
from orderwire.kernel import Destinations
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
async def test_more_than_sixteen_leave_headers_out_and_repair_what_is_lost() -> None:
    settings = TotalGroupSettings(repeats=False)
    async with fixed_group(18, RelaySettings(loss=0.02, seed=5, repeats=False), settings) as (
        _,
        groups,
    ):
        told = Told(18)
        await run_to_rest(groups, told, 12, seed=2)
        _check(told)
        assert sum(group.counters().get("header lost", 0) for group in groups) > 0
        assert groups[0].counters()["epoch"] > 0


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
    where = join_address(*channel.address)
    with pytest.raises(TimeoutError, match=r"processes \[1, 2\] have not come to the relay"):
        await TotalGroup.join(where, me=0, members=3, wait_s=0.3)
    await channel.close()
    with pytest.raises(TimeoutError, match=f"the relay {where} has not answered after 0.1 s"):
        await TotalGroup.join(where, me=0, members=3, wait_s=0.1)


@in_a_loop
async def test_who_is_left_by_its_relay_is_told() -> None:
    channel = await ChannelRelay.open(("127.0.0.1", 0))
    where = join_address(*channel.address)
    group = await TotalGroup.join(where, me=0, members=1)
    await channel.close()
    again = await ChannelRelay.open(channel.address, incarnation=channel.incarnation + 1)
    async with asyncio.timeout(30):
        async for _ in group:
            pass
    assert "was started anew" in str(group.excluded)
    with pytest.raises(LocalProtocolError, match="knows nothing of this group"):
        await group.write(b"x")
    await group.close()
    await again.close()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"delivery": "ack"}, "Delivery.PREACK or Delivery.ACK"),
        ({"window": 0}, "window=0 must be a whole number from 1"),
        ({"window": "64"}, "window='64'"),
        ({"buffers": -5}, "buffers=-5"),
        ({"pack_bytes": 1_000_000}, "pack_bytes=1000000 must be a whole number from 1 to 48000"),
        ({"queue_messages_max": 0}, "queue_messages_max=0"),
        ({"fail_ns": 1}, "fail_ns=1 must be a whole number from 100000000"),
        ({"linger_ns": -1}, "linger_ns=-1"),
        ({"receive_bytes": 5}, "receive_bytes=5, expected 2304"),
        ({"receive_bytes": 1 << 40}, "receive_bytes=1099511627776"),
        ({"datagram_bytes_max": 1}, "datagram_bytes_max=1, expected 256 to 60000"),
        ({"multicast_interface": "eth0"}, "the IPv4 address of an interface"),
        ({"outages": ((0, 1),)}, "a tuple of Deaf"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(LocalProtocolError, match=sentence):
        TotalGroupSettings(**settings)


@in_a_loop
async def test_who_cannot_join_is_told_why() -> None:
    for wrong, sentence in (
        ({"me": 2, "members": 2}, "me=2 is not within 0 … 1"),
        ({"me": "0", "members": 2}, "me='0'"),
        ({"me": 0, "members": 0}, "members=0 is not within 1 … 4096"),
        ({"me": 0, "members": 2, "relay": "rubbish"}, "expected HOST:PORT"),
        ({"me": 0, "members": 2, "relay": "[::1]:7500"}, "expected an IPv4 address"),
    ):
        with pytest.raises(LocalProtocolError, match=sentence):
            await TotalGroup.join(**{"relay": "127.0.0.1:7500", **wrong})
    for wrong, sentence in (
        ({"least": 0}, "least=0 must be a whole number, at least 1"),
        ({"session_ns": 1}, "session_ns=1 must be at least 1000000000"),
        ({"name": ""}, "'' is no name of a group"),
        ({"zookeeper": "rubbish"}, "expected HOST:PORT"),
    ):
        with pytest.raises(LocalProtocolError, match=sentence):
            await TotalGroup.enter(**{"zookeeper": "127.0.0.1:1", "name": "g", **wrong})
    with pytest.raises(TimeoutError, match="has not answered after 0"):
        await TotalGroup.enter("127.0.0.1:1", "g", wait_s=0.2)


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
        wrong: Any
        for wrong in (-1, "1", 1 << 40, None):
            with pytest.raises(LocalProtocolError, match="is no id of a member"):
                await groups[0].write(b"x", [wrong])
        with pytest.raises(LocalProtocolError, match="is no mask of members"):
            await groups[0].write(b"x", Destinations(-2))
        with pytest.raises(LocalProtocolError, match="at least one destination"):
            await groups[0].write(b"x", [])
        await groups[0].close()
        with pytest.raises(LocalProtocolError, match="has left"):
            await groups[0].write(b"x")


@in_a_loop
async def test_what_is_no_bytes_is_refused_and_stops_nothing() -> None:
    async with fixed_group(1) as (_, groups):
        wrong: Any
        for wrong in ("text", None, 5):
            with pytest.raises(LocalProtocolError, match="a message is bytes, got"):
                await groups[0].write(wrong)
        with pytest.raises(LocalProtocolError, match="48001 bytes, at most 48000"):
            await groups[0].write(bytes(48_001))
        changing: Any = bytearray(b"before")
        await groups[0].write(changing)
        changing[:] = b"after!"
        async for message in groups[0]:
            assert message.payload == b"before"
            break


@in_a_loop
async def test_beyond_this_machine_needs_a_word() -> None:
    with pytest.raises(LocalProtocolError, match="insecure"):
        await TotalGroup.join("192.0.2.1:7500", me=0, members=2)


def _free_port() -> int:
    return int(free_members("group")["group"].rpartition(":")[2])
