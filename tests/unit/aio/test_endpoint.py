"""Endpoints and channels on real sockets: both loops, offload on and off, multicast, garbage."""

import asyncio
import socket
from collections.abc import Sequence
from random import Random

import pytest
from endpoints import Log, endpoints, run, until

from orderwire.aio import channel as channel_module
from orderwire.aio import presence as presence_module
from orderwire.aio.channel import PDU_BYTES_MAX
from orderwire.aio.endpoint import Endpoint, EndpointSettings
from orderwire.aio.frames import HEAD, HEAD_BYTES, Kind
from orderwire.aio.impairment import Impairment
from orderwire.aio.roundtrip import SILENT_PINGS
from orderwire.aio.stream import Hello
from orderwire.kernel import Instant, LocalProtocolError, ProcessId, Via, ms

pytestmark = pytest.mark.network

A, B, C = ProcessId(0), ProcessId(1), ProcessId(2)
LOOPS = ("asyncio", "uvloop")
OFFLOADS = {
    "loopback": EndpointSettings(),
    "ethernet": EndpointSettings(datagram_bytes_max=1_472),
    "ethernet, one by one": EndpointSettings(datagram_bytes_max=1_472, offload=False),
}


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("settings", OFFLOADS.values(), ids=OFFLOADS)
def test_all_sizes_arrive_in_order_between_all(loop: str, settings: EndpointSettings) -> None:
    async def test() -> None:
        async with endpoints(3, settings) as members:
            channels = [each.channel(1) for each in members]
            logs = [Log(each) for each in channels]
            sizes = [0, 1, 63, 64, 500, 1_400, 1_441, 1_473, 9_000, 59_900, 60_001, 200_000]
            sent: dict[int, list[bytes]] = {}
            for sender, channel in enumerate(channels):
                for index, size in enumerate(sizes * 5):
                    data = bytes([sender, index]) * (size // 2) + b"x" * (size % 2)
                    sent.setdefault(sender, []).append(data)
                    channel.broadcast(data)
                    if index % 7 == 0:
                        await asyncio.sleep(0)
            for channel in channels:
                await channel.drain(empty=True)
            for me, log in enumerate(logs):
                for sender, data in sent.items():
                    if sender != me:
                        assert sorted(log.got[sender]) == sorted(data)
                assert log.settled > 0
                assert log.lost == {}

    run(test(), loop)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("settings", OFFLOADS.values(), ids=OFFLOADS)
def test_small_messages_of_one_turn_share_datagrams(loop: str, settings: EndpointSettings) -> None:
    async def test() -> None:
        async with endpoints(2, settings) as (one, two):
            sender, log = one.channel(1), Log(two.channel(1))
            for index in range(5_000):
                sender.send(B, b"%05d" % index)
            await sender.drain(empty=True)
            assert log.got[A] == [b"%05d" % index for index in range(5_000)]
            assert sender.counters(B).sent == 5_000
            calls = one.sends
            assert calls < 200

    run(test(), loop)


@pytest.mark.parametrize("lifetime_ns", [None, ms(2_000)])
@pytest.mark.parametrize("settings", OFFLOADS.values(), ids=OFFLOADS)
def test_what_the_network_loses_is_repaired(
    settings: EndpointSettings, lifetime_ns: int | None
) -> None:
    worse = Impairment(
        seed=3, loss_ratio=0.2, duplicate_ratio=0.1, delay_ms=0.2, jitter_mean_ms=0.5
    )

    async def test() -> None:
        async with endpoints(3, settings, worse) as members:
            channels = [each.channel(9, lifetime_ns) for each in members]
            logs = [Log(each) for each in channels]
            for index in range(600):
                for channel in channels:
                    channel.broadcast(b"%d" % index + bytes(index))
                if index % 4 == 0:
                    await asyncio.sleep(0)
            await until(
                lambda: all(
                    len(log.got.get(other, ())) == 600
                    for me, log in enumerate(logs)
                    for other in range(3)
                    if other != me
                ),
                "every copy is there",
            )
            for me, log in enumerate(logs):
                for other in {0, 1, 2} - {me}:
                    assert [len(each) for each in sorted(log.got[other], key=len)] == sorted(
                        len(b"%d" % index) + index for index in range(600)
                    )
            counters = [channels[0].counters(peer) for peer in (B, C)]
            assert all(each.retransmitted > 0 and each.duplicate > 0 for each in counters)

    run(test())


def test_what_cannot_be_repaired_in_time_is_told() -> None:
    async def test() -> None:
        worse = Impairment(seed=1, loss_ratio=0.3, delay_ms=3)
        async with endpoints(2, None, worse) as (one, two):
            sender, log = one.channel(1, ms(5)), Log(two.channel(1, ms(5)))
            for index in range(200):
                sender.send(B, b"%d" % index)
                await asyncio.sleep(0)
            await sender.drain(empty=True)
            assert log.accounted(A) == 200  # the tail included
            counters = two.link(A).lanes[1].counters
            assert counters.lost == len(log.lost[A]) > 0
            assert {int(each) for each in log.got[A]}.isdisjoint(log.lost[A])

    run(test())


@pytest.mark.parametrize("loop", LOOPS)
def test_a_broadcast_is_one_multicast_where_there_is_a_group(loop: str) -> None:
    settings = EndpointSettings(multicast=("239.255.77.7", 29_777))

    async def test() -> None:
        async with endpoints(3, settings) as members:
            channels = [each.channel(4) for each in members]
            logs = [Log(each) for each in channels]
            before = members[0].sends
            unknown = [each.unknown for each in members]
            for index in range(100):
                channels[0].broadcast(b"%d" % index)
                channels[0].send(B, b"only for B %d" % index)
            for index in range(3_000):
                channels[1].broadcast(b"%d" % index)
            for channel in channels:
                await channel.drain(empty=True)
            # Multicasts come through a socket of their own: they may overtake the others.
            assert sorted(logs[2].got[0], key=int) == [b"%d" % index for index in range(100)]
            assert sorted(logs[1].got[0]) == sorted(
                text % index for index in range(100) for text in (b"%d", b"only for B %d")
            )
            for me in (0, 2):
                assert sorted(map(int, logs[me].got[1])) == list(range(3_000))
            assert members[0].sends - before < 230  # not 300: broadcasts went out once
            assert [each.unknown for each in members] == unknown

    run(test(), loop)


class DropFirst:
    """Loses the first copy of every datagram with PDUs, to one process."""

    def __init__(self, to: ProcessId) -> None:
        self._to = to
        self._seen: set[bytes] = set()

    def fate(self, to: ProcessId, data: bytes) -> Sequence[int]:
        first = to == self._to and data[0] in (Kind.DATA, Kind.MULTICAST)
        if not first or data in self._seen:
            return (0,)
        self._seen.add(data)
        return ()


def test_a_lost_part_of_a_multicast_is_repaired_for_who_lost_it() -> None:
    settings = EndpointSettings(multicast=("239.255.77.8", 29_778))

    async def test() -> None:
        async with endpoints(3, settings, fates=lambda me: DropFirst(C)) as members:
            channels = [each.channel(4) for each in members]
            logs = [Log(each) for each in channels]
            for index in range(20):
                channels[0].broadcast(b"%d" % index)
                await asyncio.sleep(0)
            await channels[0].drain(empty=True)
            for log in logs[1:]:
                assert sorted(map(int, log.got[0])) == list(range(20))
            assert channels[0].counters(C).retransmitted >= 20
            assert channels[0].counters(B).retransmitted == 0

    run(test())


def test_a_pdu_beyond_the_limit_is_refused_by_name() -> None:
    async def test() -> None:
        async with endpoints(2) as (one, two):
            sender, log = one.channel(1), Log(two.channel(1))
            with pytest.raises(LocalProtocolError, match=f"PDU_BYTES_MAX = {PDU_BYTES_MAX}"):
                sender.send(B, bytes(PDU_BYTES_MAX + 1))
            sender.send(B, bytes(PDU_BYTES_MAX))
            sender.send(B, b"small", via=Via.STREAM)
            sender.send(B, b"smaller")
            await sender.drain(empty=True)
            assert sorted(map(len, log.got[A])) == [5, 7, PDU_BYTES_MAX]
            with pytest.raises(LocalProtocolError, match="process 7 is not a peer"):
                sender.send(ProcessId(7), b"")
            with pytest.raises(LocalProtocolError, match="open already"):
                one.channel(1)
            with pytest.raises(LocalProtocolError, match="expected 0 to"):
                one.channel(70_000)

    run(test())


def test_streams_carry_control_messages_in_order() -> None:
    async def test() -> None:
        got: list[tuple[int, int, bytes]] = []
        connected: list[tuple[int, int]] = []
        me = [ProcessId(index) for index in range(3)]
        members = [await Endpoint.open(each, {each: ("127.0.0.1", 0)}) for each in me]
        for each in members:
            each.on_control(lambda source, data, me=each.me: got.append((me, source, bytes(data))))
            each.on_connected(lambda peer, me=each.me: connected.append((me, peer)))
        for each in members:
            for other in members:
                if each is not other:
                    await each.add_peer(other.me, other.address)
                    for index in range(20):  # before any connection stands
                        each.send_control(other.me, b"%d" % index)
        await until(lambda: len(got) == 120, "all control messages are there")
        for to in me:
            for source in me:
                texts = [data for a, b, data in got if (a, b) == (to, source)]
                assert texts == [b"%d" % index for index in range(20) if to != source]
        assert sorted(connected) == [(a, b) for a in range(3) for b in range(3) if a != b]
        with pytest.raises(LocalProtocolError, match="not a peer"):
            members[0].send_control(ProcessId(9), b"")
        for each in members:
            await each.close()
            await each.close()

    run(test())


@pytest.mark.parametrize("loop", LOOPS)
def test_the_kernel_watches_both_ends_of_a_stream(loop: str) -> None:
    async def test() -> None:
        async with endpoints(2, EndpointSettings(silence_s=8)) as members:
            for each in members:
                [stream] = each.connections._streams.values()
                assert stream._transport is not None
                tcp = stream._transport.get_extra_info("socket")
                assert tcp.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
                options = ("KEEPIDLE", "KEEPINTVL", "KEEPCNT", "USER_TIMEOUT")
                values = [
                    tcp.getsockopt(socket.IPPROTO_TCP, getattr(socket, f"TCP_{name}"))
                    for name in options
                ]
                assert values == [2, 2, 3, 8_000]
        with pytest.raises(LocalProtocolError, match="silence_s=0 must be"):
            EndpointSettings(silence_s=0)

    run(test(), loop)


def test_a_member_that_says_nothing_is_given_up_and_met_again() -> None:
    """Its stream stands, as that of a stopped process, but none of its datagrams comes."""

    class Cut:
        deaf = False

        def fate(self, to: ProcessId, data: bytes) -> Sequence[int]:
            return () if self.deaf else (0,)

    async def test() -> None:
        cuts = [Cut(), Cut()]
        gone: list[int] = []
        settings = EndpointSettings(silence_s=0.2)
        async with endpoints(2, settings, fates=lambda me: cuts[me]) as (one, two):
            one.on_disconnected(gone.append)
            sender, log = one.channel(1), Log(two.channel(1))
            sender.send(B, b"before")
            await sender.drain(empty=True)
            cuts[0].deaf = cuts[1].deaf = True
            sender.send(B, b"into nothing")
            await sender.drain(empty=True)
            assert sender.counters(B).unconfirmed == 1
            await until(lambda: gone == [1], "the stream was cut")
            cuts[0].deaf = cuts[1].deaf = False
            await until(lambda: one.is_connected(B), "they have met again")
            sender.send(B, b"after")
            await until(lambda: log.accounted(A) == 3, "the loss was told")
            assert log.got[A] == [b"before", b"after"]
            assert log.lost[A] == [1]
            assert one.link(B).restarts == 0

    run(test())


def test_who_comes_back_is_not_blamed_for_what_it_left_unanswered() -> None:
    async def test() -> None:
        async with endpoints(2) as (one, two):
            trip = two.link(A).trip
            silent: list[bool] = []
            two.on_connected(lambda _: silent.append(trip.is_silent(two.clock.now())))
            trip.pinged(Instant(0))  # long ago, and nothing was heard since
            trip.unanswered = SILENT_PINGS
            assert trip.is_silent(two.clock.now())
            one.connections.cut(B)
            await until(lambda: len(silent) == 1, "they have met again")
            assert silent == [False]

    run(test())


@pytest.mark.parametrize("loop", LOOPS)
def test_a_member_that_leaves_and_returns_is_met_afresh(loop: str) -> None:
    async def test() -> None:
        restarted: list[int] = []
        gone: list[int] = []
        async with endpoints(2) as (one, two):
            one.on_restarted(restarted.append)
            one.on_disconnected(gone.append)
            sender, log = one.channel(1), Log(one.channel(2))
            first = two.channel(2)
            first.send(A, b"before")
            await first.drain(empty=True)
            address = two.address
            await two.close()
            await until(lambda: gone == [1], "the stream has broken")
            sender.send(B, b"while you were away")
            again = await Endpoint.open(B, {B: address, A: one.address})
            try:
                heard = Log(again.channel(1))
                again.channel(2).send(A, b"after")
                await until(lambda: log.got.get(1) == [b"before", b"after"], "both were heard")
                assert restarted == [1]
                # Late words of the first incarnation, and of one that nobody met.
                for session in (two.session, two.session + 1):
                    ghost, writer = await asyncio.open_connection(
                        *one.address, local_addr=("127.0.0.1", 0)
                    )
                    hello = Hello(B, session).encode()
                    writer.write(b"%c\0\0\0\0" % (len(hello) + 1) + hello)
                    assert await ghost.read() == b""
                    writer.close()
                    assert one.link(B).peer_session == again.session
                sender.send(B, b"now that you are back")
                await until(lambda: heard.accounted(0) > 0, "it was heard")
                # What was meant for the earlier incarnation is neither handed over nor lost.
                assert heard.got == {0: [b"now that you are back"]}
                assert heard.lost == {}
                counters = sender.counters(B)
                assert (counters.sent, counters.unconfirmed + counters.dropped) == (2, 1)
                assert (again.restarted, one.restarted) == (True, False)
            finally:
                await again.close()

    run(test(), loop)


def test_a_channel_that_opens_late_gets_what_was_kept_for_it() -> None:
    async def test() -> None:
        async with endpoints(2) as (one, two):
            sender = one.channel(1)
            for index in range(50):
                sender.send(B, b"%d" % index)
            await until(lambda: two.link(A).unclaimed > 0, "something came too early")
            log = Log(two.channel(1))
            await sender.drain(empty=True)
            assert sorted(map(int, log.got[A])) == list(range(50))

    run(test())


def test_a_channel_that_nobody_answers_stops_no_other() -> None:
    async def test() -> None:
        async with endpoints(2) as (one, two):
            unanswered, answered = one.channel(1), one.channel(2)
            log = Log(two.channel(2))
            for index in range(500):
                unanswered.send(B, bytes(10_000))
                answered.send(B, b"%d" % index)
            async with asyncio.timeout(10):
                await answered.drain(empty=True)
            assert len(log.got[A]) == 500
            unanswered.close()

    run(test())


def test_nobody_waits_for_the_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that died with a full queue stops neither drain nor the others."""
    monkeypatch.setattr(channel_module, "FULL_BYTES", 1 << 20)
    monkeypatch.setattr(presence_module, "GONE_AFTER_S", 0.05)

    async def test() -> None:
        async with endpoints(3) as (one, two, three):
            sender, log = one.channel(1), Log(three.channel(1))
            while not sender.full:  # nobody takes it: `two` has no such channel
                sender.send(B, bytes(10_000))
            address = two.address
            await two.close()
            async with asyncio.timeout(10):
                await sender.drain(empty=True)
            assert not sender.full
            assert sender.counters(B).dropped > 0
            assert one.link(B).flight_cost == 0
            sender.send(ProcessId(2), b"alive")
            await sender.drain(empty=True)
            assert log.got[A] == [b"alive"]
            again = await Endpoint.open(B, {B: address, A: one.address})
            try:
                receiver = again.channel(1)
                heard = Log(receiver)
                await until(lambda: again.is_connected(A), "they have met")
                await until(lambda: one.link(B).restarts == 1, "it is known to be back")
                sender.send(B, b"welcome back")
                await sender.drain(empty=True)
                assert heard.got[A] == [b"welcome back"]
                assert receiver.counters(A).lost == 0
            finally:
                await again.close()

    run(test())


class _LosesAll:
    """No datagram with a copy comes through."""

    def fate(self, to: ProcessId, data: bytes) -> Sequence[int]:
        kind, _, _, _, count, *_ = HEAD.unpack_from(data)
        return () if kind == Kind.DATA and count else (0,)


def test_only_copies_with_deadlines_of_their_own_share_one() -> None:
    async def test() -> None:
        async with endpoints(2, fates=lambda me: _LosesAll()) as (one, _):
            sender = one.channel(1, ms(60_000))
            now = one.clock.now()
            own = [Instant(now + ms(20_000)), Instant(now + ms(30_000)), Instant(now + ms(10_000))]
            sender.send(B, b"usual")
            sender.send(B, b"usual, too")
            for deadline in own:
                sender.send(B, b"own", deadline)
            sender.send(B, b"usual again")
            sender.broadcast(b"own, to all", own[0])
            sender.send(B, bytes(100_000), own[1])
            sender.broadcast(b"usual, to all")
            sender.send(B, b"longer than usual", Instant(now + ms(90_000)))
            assert sender.counters(B).sent == 10
            flight = one.link(B).lanes[1].outbound.flight
            await until(lambda: len(flight) == 7, "all is under way")
            packed = [(packet.first, packet.last) for packet in flight]
            assert packed == [(0, 1), (2, 4), (5, 5), (6, 6), (7, 7), (8, 8), (9, 9)]
            usual = {0, 5, 8, 9}
            for packet in flight:
                told = HEAD.unpack_from(packet.data)[8]
                assert told >= now + ms(60_000)
                if packet.first in usual:
                    assert packet.deadline == told
                else:
                    assert packet.deadline == {2: own[1], 6: own[0], 7: own[1]}[packet.first]
            for_ever = one.channel(2)
            with pytest.raises(LocalProtocolError, match="which has no lifetime"):
                for_ever.send(B, b"", own[0])
            with pytest.raises(LocalProtocolError, match="which has no lifetime"):
                for_ever.send(B, bytes(100_000), own[0])

    run(test())


class _LosesFirst:
    """Every datagram with the first copy is lost."""

    def fate(self, to: ProcessId, data: bytes) -> Sequence[int]:
        kind, _, _, _, count, _, _, first, _ = HEAD.unpack_from(data)
        return () if kind == Kind.DATA and count and first == 0 else (0,)


def test_what_the_dead_did_not_send_again_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else has it: who waits for it learns that it will not come."""
    monkeypatch.setattr(presence_module, "GONE_AFTER_S", 0.05)

    async def test() -> None:
        async with endpoints(2, fates=lambda me: _LosesFirst()) as (one, two):
            sender, receiver = one.channel(1), two.channel(1)
            log = Log(receiver)
            for data in (b"lost", b"came"):
                sender.send(B, data)
                await asyncio.sleep(0)
            await until(lambda: log.got.get(A) == [b"came"])
            settled = log.settled
            await asyncio.sleep(0.1)
            assert log.lost == {}
            await one.close()
            await until(lambda: log.lost == {A: [0]}, "the loss is known")
            assert receiver.counters(A).lost == 1
            assert log.settled > settled

    run(test())


def test_a_full_channel_says_so_and_drains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "FULL_BYTES", 1 << 20)
    monkeypatch.setattr(channel_module, "WAITING_BYTES_MAX", 2 << 20)

    async def test() -> None:
        async with endpoints(2) as (one, two):
            sender, log = one.channel(1), Log(two.channel(1))
            sent = 0

            def flood() -> None:
                nonlocal sent
                while True:
                    sender.send(B, bytes(10_000))
                    sent += 1

            with pytest.raises(LocalProtocolError, match=r"await drain\(\)"):
                flood()
            assert sender.full
            await sender.drain()
            assert not sender.full
            sender.send(B, b"more")
            await sender.drain(empty=True)
            assert len(log.got[A]) == sent + 1

    run(test())


def test_who_drains_after_each_message_is_never_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "FULL_BYTES", 1 << 20)

    async def test() -> None:
        async with endpoints(2) as (one, two):
            sender, log = one.channel(1), Log(two.channel(1))
            for _ in range(1_000):
                sender.send(B, bytes(20_000))
                await sender.drain()
                await asyncio.sleep(0)  # what was open is packed
                assert not sender.full
            await sender.drain(empty=True)
            assert len(log.got[A]) == 1_000

    run(test())


def test_a_channel_with_a_lifetime_drops_the_oldest_and_tells(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channel_module, "FULL_BYTES", 1 << 19)
    monkeypatch.setattr(channel_module, "WAITING_BYTES_MAX", 1 << 20)

    async def test() -> None:
        async with endpoints(2) as (one, two):
            sender, log = one.channel(1, ms(5_000)), Log(two.channel(1, ms(5_000)))
            for _ in range(1_000):
                sender.send(B, bytes(10_000))
            await until(lambda: log.accounted(A) == 1_000, "every copy is accounted for")
            assert sender.counters(B).dropped == len(log.lost[A]) > 0

    run(test())


def test_floods_lose_nothing() -> None:
    """More than any socket buffer holds, to two receivers, one of them slow."""

    async def test() -> None:
        async with endpoints(3) as members:
            sender = members[0].channel(1)
            logs = [Log(each.channel(1)) for each in members[1:]]
            for index in range(40_000):
                sender.broadcast(b"%08d" % index + bytes(500))
                if index % 64 == 0:
                    await asyncio.sleep(0)
                    await sender.drain()
            await sender.drain(empty=True)
            for log in logs:
                assert [int(each[:8]) for each in log.got[A]] == list(range(40_000))

    run(test())


def test_arrivals_are_read_from_the_group_clock() -> None:
    async def test() -> None:
        async with endpoints(2) as (one, two):
            sender, log = one.channel(1), Log(two.channel(1))
            before = one.clock.now()
            sender.send(B, b"x")
            await sender.drain(empty=True)
            assert before - ms(1) <= log.arrived[0] <= two.clock.now()

    run(test())


def test_a_failing_callback_costs_only_its_own_message() -> None:
    async def test() -> list[object]:
        failed: list[object] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: failed.append(context["exception"]))
        async with endpoints(2) as (one, two):
            sender, receiver = one.channel(1), two.channel(1)
            got: list[bytes] = []

            def on_pdu(source: ProcessId, data: memoryview, arrived: Instant) -> None:
                if data == b"2":
                    raise RuntimeError("bad callback")
                got.append(bytes(data))

            receiver.attach(on_pdu, lambda *_: None, lambda: None)
            for index in range(5):
                sender.send(B, b"%d" % index)
            await sender.drain(empty=True)
            assert got == [b"0", b"1", b"3", b"4"]
        return failed

    assert [str(each) for each in run(test())] == ["bad callback"]


def test_strangers_and_garbage_are_dropped_and_counted() -> None:
    async def test() -> None:
        async with endpoints(2) as (one, two):
            sender, log = one.channel(1), Log(two.channel(1))
            chance = Random(5)
            before = two.unknown  # pings that came before their sender was known
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
                for _ in range(200):
                    stranger.sendto(chance.randbytes(chance.randrange(100)), two.address)
            await until(lambda: two.unknown == before + 200, "every stranger was counted")
            # What a member sends may be anything as well.
            link = two.link(A)
            good = HEAD.pack(Kind.DATA, 0, A, 1, 3, one.session, two.session, 0, 0)
            for bad in (b"", b"\x00", good, good[:-1]):
                one.datagrams(B, [bad])
            for _ in range(500):
                data = bytearray(good + chance.randbytes(chance.randrange(60)))
                data[0] = chance.choice([*Kind, 0])
                for _ in range(chance.randrange(4)):
                    at = chance.choice([*range(8), *range(24, HEAD_BYTES)])
                    data[at] = chance.randrange(256)
                one.datagrams(B, [bytes(data)])
            await until(lambda: link.malformed > 100, "garbage was counted")
            assert two.link(A).restarts == 0

            sender.send(B, b"still here")
            fresh = one.channel(2)
            heard = Log(two.channel(2))
            fresh.send(B, b"still here")
            await fresh.drain(empty=True)
            assert heard.got[A] == [b"still here"]
            assert len(link.lanes[1].inbound.gaps) <= 1_024
            assert log.settled > 0

    run(test())


def test_strangers_on_the_listener_are_closed() -> None:
    async def test() -> None:
        async with endpoints(2) as (one, two):
            before = two.connections.unknown  # `one` may have called before it was known
            for data in (
                b"GET / HTTP/1.0\r\n\r\n",
                b"\x03\x00\x00\x00\x01hi",
                b"\x17\x00\x00\x00\x00OWS2\x09\x00\x01" + bytes(15),
            ):
                reader, writer = await asyncio.open_connection(*two.address)
                writer.write(data)
                async with asyncio.timeout(10):
                    # Our hello, and then nothing more: the connection is closed on us.
                    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                        await reader.readexactly(1_000)
                writer.close()
            assert two.connections.unknown == before + 1
            assert one.is_connected(B)

    run(test())
