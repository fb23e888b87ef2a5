"""Streams on the LAN, fluid and in segments: order, handshakes, resets, silence, loss."""

from collections.abc import Callable
from typing import Any

import pytest

from orderwire.kernel import ms, stream, us
from orderwire.sim.lan import Lan, LanSettings
from orderwire.sim.lan_streams import MSS_BYTES
from orderwire.sim.world import COMMAND, World

MODELS = ("fluid", "segments")
S = ms(1_000)
BARE_NS = 90 * 80
"""A segment without payload at 100 Mbit/s."""
CROSSING_NS = 2 * BARE_NS + us(7)


class Bench:
    def __init__(self, model: str, hosts: int = 4, seed: int = 0, **settings: Any) -> None:
        settings = {"host_queue_bytes": None, "switch_queue_bytes": None} | settings
        self.world = World()
        self.got: list[tuple[int, int, int, Any]] = []
        self.broken: list[tuple[int, int, int]] = []
        self.lan = Lan(
            self.world,
            hosts,
            LanSettings(streams=model, **settings),
            lambda to, source, item: self.got.append((self.world.now_ns, to, source, item)),
            lambda source, to: self.broken.append((self.world.now_ns, source, to)),
            seed=seed,
        )

    def at(self, time_ns: int, act: Callable[[], object]) -> None:
        self.world.at(time_ns, COMMAND, lambda *_: act())

    def items(self, to: int, source: int) -> list[Any]:
        return [item for _, at, frm, item in self.got if (at, frm) == (to, source)]


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> str:
    return request.param


def test_the_first_message_waits_for_a_handshake_and_the_second_does_not(model: str) -> None:
    bench = Bench(model)
    bench.lan.send_stream(0, 1, 100, "first")
    bench.world.run(ms(10))
    message_ns = 2 * 190 * 80 + us(7)
    handshake_ns = 2 * CROSSING_NS
    # Its acknowledgement of the handshake leaves before it.
    assert bench.got == [(handshake_ns + BARE_NS + message_ns, 1, 0, "first")]
    bench.lan.send_stream(0, 1, 100, "second")
    bench.lan.send_stream(1, 0, 100, "back")
    bench.world.run(ms(20))
    assert [entry[0] for entry in bench.got[1:]] == [ms(10) + message_ns] * 2
    assert bench.lan.streams.opened == 1
    assert bench.lan.streams.connected(0, 1)
    assert bench.lan.streams.connected(1, 0)


def test_messages_of_all_sizes_arrive_whole_and_in_order_both_ways(model: str) -> None:
    bench = Bench(model)
    chance = stream(1, "test/sizes")
    for serial in range(300):
        size = chance.choice((1, 20, 1_448, 1_449, 5_000, 60_000))
        source = serial % 2
        bench.at(
            chance.randrange(S // 2),
            lambda s=source, n=size, i=serial: (
                sent[s].append(i),
                bench.lan.send_stream(s, 1 - s, n, i),
            ),
        )
    sent: tuple[list[int], list[int]] = ([], [])
    bench.world.run(10 * S)
    assert bench.items(1, 0) == sent[0]
    assert bench.items(0, 1) == sent[1]
    assert bench.broken == []


def test_a_large_message_takes_the_time_of_its_bytes(model: str) -> None:
    """10 MB at 100 Mbit/s; in segments it is no faster, and less than 5 % slower."""
    bench = Bench(model)
    bench.lan.send_stream(0, 1, 10_000_000, "large")
    bench.world.run(2 * S)
    least_ns = (10_000_000 + 90 * 6_907) * 80
    assert least_ns < bench.got[0][0] < 1.05 * least_ns
    assert bench.lan.counts[0].payload_bytes == 10_000_000


def test_two_that_open_at_once_share_one_connection(model: str) -> None:
    bench = Bench(model)
    for source, to in ((0, 1), (1, 0), (3, 2), (2, 3)):
        for serial in range(3):
            bench.lan.send_stream(source, to, 2_000, serial)
    bench.world.run(5 * S)
    assert bench.lan.streams.opened == 2
    assert bench.broken == []
    for source, to in ((0, 1), (1, 0), (3, 2), (2, 3)):
        assert bench.items(to, source) == [0, 1, 2]


def test_a_reset_tells_whoever_had_a_connection(model: str) -> None:
    bench = Bench(model)
    bench.lan.send_stream(0, 1, 100, "a")
    bench.lan.send_stream(1, 2, 100, "b")
    bench.world.run(ms(10))
    bench.lan.down(1)
    bench.world.run(ms(20))
    assert [(source, to) for _, source, to in bench.broken] == [(0, 1), (2, 1)]
    assert bench.broken[0][0] == ms(10) + CROSSING_NS


def test_a_host_that_is_down_refuses_and_a_new_process_accepts(model: str) -> None:
    bench = Bench(model)
    bench.lan.down(1)
    bench.lan.send_stream(0, 1, 100, "refused")
    bench.world.run(ms(10))
    assert bench.broken == [(2 * CROSSING_NS, 0, 1)]
    bench.lan.up(1)
    bench.lan.send_stream(0, 1, 100, "accepted")
    bench.world.run(ms(20))
    assert bench.items(1, 0) == ["accepted"]
    assert len(bench.broken) == 1


def test_the_handshake_is_the_first_round_trip_so_a_full_queue_of_ones_own_is_a_time_out() -> None:
    """[S002:dec.9] 40 windows of ten segments are 0.5 s at 10 Mbit/s, the handshakes a few ms."""
    bench = Bench("segments", hosts=41, bits_per_s=10_000_000)
    for to in range(1, 41):
        bench.lan.send_stream(0, to, 10 * MSS_BYTES, to)
    bench.world.run(5 * S)
    assert all(bench.items(to, 0) == [to] for to in range(1, 41))
    needed = 40 * (2 + 10)  # SYN, the acknowledgement of its answer, and data.
    assert bench.lan.counts[0].frames > 1.2 * needed


def test_silence_ends_a_connection_after_a_while_and_a_handshake_too(model: str) -> None:
    bench = Bench(model, give_up_ns=5 * S)
    bench.lan.send_stream(0, 1, 100, "a")
    bench.world.run(ms(10))
    bench.lan.down(1, silent=True)
    bench.world.run(S)
    assert bench.broken == []
    bench.lan.send_stream(0, 1, 100, "into silence")
    bench.lan.send_stream(2, 1, 100, "into silence")
    bench.world.run(60 * S)
    assert sorted(bench.broken)[0][1:] == (2, 1)
    told = {source: at for at, source, _ in bench.broken}
    assert sorted(told) == [0, 2]
    assert told[2] == 6 * S
    assert 6 * S <= told[0] <= 16 * S  # The time-outs double: it is looked at rarely.
    assert bench.items(1, 0) == ["a"]


def test_a_new_process_resets_the_connections_of_the_old_one(model: str) -> None:
    bench = Bench(model)
    bench.lan.send_stream(0, 1, 100, "a")
    bench.lan.send_stream(2, 1, 100, "a")
    bench.world.run(ms(10))
    bench.lan.down(1, silent=True)
    bench.lan.up(1)
    bench.lan.send_stream(0, 1, 100, "to the old one")
    bench.world.run(ms(20))
    assert bench.broken == [(ms(10) + 2 * 190 * 80 + us(7) + CROSSING_NS, 0, 1)]
    bench.lan.send_stream(1, 2, 100, "from the new one")
    bench.lan.send_stream(0, 1, 100, "to the new one")
    bench.world.run(ms(40))
    assert [(source, to) for _, source, to in bench.broken] == [(0, 1), (2, 1)]
    assert bench.items(2, 1) == ["from the new one"]
    assert bench.items(1, 0) == ["a", "to the new one"]


def test_a_host_that_comes_back_while_it_is_retried_answers_with_a_reset(model: str) -> None:
    bench = Bench(model)
    bench.lan.send_stream(0, 1, 100, "a")
    bench.world.run(ms(10))
    bench.lan.down(1, silent=True)
    bench.lan.send_stream(0, 1, 100, "b")
    bench.at(S, lambda: bench.lan.up(1))
    bench.world.run(20 * S)
    assert len(bench.broken) == 1
    assert S < bench.broken[0][0] < 3 * S


def test_a_message_under_way_to_a_host_that_goes_down_is_lost(model: str) -> None:
    bench = Bench(model)
    bench.lan.send_stream(0, 1, 1_000_000, "large")
    bench.at(ms(5), lambda: bench.lan.down(1))
    bench.world.run(S)
    assert bench.got == []
    assert [(source, to) for _, source, to in bench.broken] == [(0, 1)]


def test_closing_tells_the_other_end(model: str) -> None:
    bench = Bench(model)
    bench.lan.send_stream(0, 1, 100, "a")
    bench.world.run(ms(10))
    bench.lan.close(0, 1)
    bench.lan.close(0, 1)
    bench.world.run(ms(20))
    assert [(source, to) for _, source, to in bench.broken] == [(1, 0)]
    bench.lan.send_stream(1, 0, 100, "again")
    bench.world.run(ms(30))
    assert bench.items(0, 1) == ["again"]
    assert bench.lan.streams.opened == 2


@pytest.mark.parametrize("loss_ratio", [0.01, 0.05])
def test_segments_repair_loss(loss_ratio: float) -> None:
    bench = Bench("segments", loss_ratio=loss_ratio, seed=3)
    for serial in range(40):
        for source, to in ((0, 1), (1, 0), (2, 3)):
            bench.lan.send_stream(source, to, 20_000, serial)
    bench.world.run(60 * S)
    for source, to in ((0, 1), (1, 0), (2, 3)):
        assert bench.items(to, source) == list(range(40))
    assert sum(counts.lost for counts in bench.lan.counts) > 20
    assert bench.broken == []


def test_a_lost_segment_is_sent_again_after_three_duplicates_not_after_a_timeout() -> None:
    bench = Bench("segments", host_queue_bytes=None)
    bench.lan.send_stream(0, 1, 100, "open")
    bench.world.run(ms(10))
    drop = iter([False, True])
    bench.lan._draw = lambda: 0.0 if next(drop, False) else 1.0
    bench.lan.loss_ratio = 0.5
    bench.lan.send_stream(0, 1, 14_480, "ten segments")
    bench.world.run(ms(30))
    assert bench.items(1, 0) == ["open", "ten segments"]
    assert bench.lan.counts[1].lost == 1


def test_small_queues_slow_segments_down_and_lose_nothing() -> None:
    """Three senders share the port of one receiver: drops, and about its rate all the same."""
    bench = Bench("segments", switch_queue_bytes=30_000)
    for source in (0, 1, 2):
        for serial in range(100):
            bench.lan.send_stream(source, 3, 30_000, serial)
    bench.world.run(60 * S)
    assert bench.lan.counts[3].dropped_at_switch > 10
    for source in (0, 1, 2):
        assert bench.items(3, source) == list(range(100))
    assert bench.got[-1][0] < 4 * 9_000_000 * 80


def mesh_ns(model: str, participants: int, maps: list[int], **settings: Any) -> tuple[int, Bench]:
    """Everybody sends everybody its MAP; starts are spread over 0.25 s."""
    bench = Bench(model, hosts=participants, **settings)
    chance = stream(5, "test/starts")
    starts = [chance.randrange(S // 4) for _ in range(participants)]

    def start(me: int) -> None:
        for other in range(participants):
            if other != me and starts[other] <= starts[me]:
                bench.lan.send_stream(me, other, maps[me], "map")
                bench.lan.send_stream(other, me, maps[other], "map")

    for me in range(participants):
        bench.at(starts[me], lambda me=me: start(me))
    bench.world.run(60 * S)
    assert len(bench.got) == participants * (participants - 1)
    return max(at for at, *_ in bench.got), bench


def test_both_models_agree_where_queues_are_deep() -> None:
    """A mesh of 24 with the paper's MAPs at 100 Mbit/s: within 10 %, with far fewer events."""
    maps = [200 + 80 * (630 if i % 8 == 0 else 79) for i in range(24)]
    (fluid_ns, fluid), (segments_ns, segments) = (mesh_ns(m, 24, maps) for m in MODELS)
    assert abs(segments_ns - fluid_ns) < 0.1 * segments_ns
    assert segments.world.events > 5 * fluid.world.events
    assert fluid.lan.streams.opened == segments.lan.streams.opened == 24 * 23 // 2


@pytest.mark.slow
@pytest.mark.parametrize(("model", "expected_s"), [("fluid", 0.50), ("segments", 0.53)])
def test_a_mesh_of_64_takes_what_the_specification_measured(model: str, expected_s: float) -> None:
    maps = [200 + 80 * (630 if i % 8 == 0 else 79) for i in range(64)]
    took_ns, bench = mesh_ns(model, 64, maps)
    assert abs(took_ns / S - expected_s) < 0.1 * expected_s
    assert bench.lan.streams.opened == 2_016
