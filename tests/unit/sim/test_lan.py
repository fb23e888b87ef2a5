"""The LAN's queues: exact times, what is dropped where, receivers, hosts that are down."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import simpy

from orderwire.kernel import ms, stream, us
from orderwire.sim.lan import Lan, LanSettings
from orderwire.sim.world import COMMAND, World

HOP_NS = us(6)
WIRE_NS = 196 * 80
"""130 bytes of payload in a datagram at 100 Mbit/s."""


class Bench:
    """A LAN and what it delivered."""

    def __init__(self, hosts: int = 3, seed: int = 0, **settings: Any) -> None:
        self.world = World()
        self.got: list[tuple[int, int, int, Any]] = []
        self.broken: list[tuple[int, int, int]] = []
        self.lan = Lan(
            self.world, hosts, LanSettings(**settings), self._deliver, self._break, seed=seed
        )

    def at(self, time_ns: int, act: Callable[[], object]) -> None:
        self.world.at(time_ns, COMMAND, lambda *_: act())

    def _deliver(self, to: int, source: int, item: Any) -> None:
        self.got.append((self.world.now_ns, to, source, item))

    def _break(self, source: int, to: int) -> None:
        self.broken.append((self.world.now_ns, source, to))


def test_a_datagram_takes_both_links_and_the_switch() -> None:
    """Stored at the switch, then forwarded: twice the time on the wire, 5 µs, twice 1 µs."""
    bench = Bench()
    assert bench.lan.send_datagram(0, 1, 130, "a")
    bench.world.run(ms(1))
    assert bench.got == [(2 * WIRE_NS + HOP_NS + us(1), 1, 0, "a")]
    assert bench.world.events == 2


def test_a_small_datagram_fills_the_least_frame() -> None:
    bench = Bench()
    bench.lan.send_datagram(0, 1, 1, "a")
    bench.world.run(ms(1))
    assert bench.got[0][0] == 2 * 84 * 80 + us(7)
    assert bench.lan.counts[0].wire_bytes == 84


def test_a_host_queues_and_drops_what_does_not_fit() -> None:
    """150,000 bytes hold 765 datagrams of 196; the others cost no event.  [S002:tab.2]"""
    bench = Bench()
    taken = [bench.lan.send_datagram(0, 1, 130, i) for i in range(1_000)]
    assert sum(taken) == 765
    assert bench.lan.room(0, 130) == 0
    bench.world.run(ms(100))
    assert [item for *_, item in bench.got] == list(range(765))
    assert {b[0] - a[0] for a, b in zip(bench.got, bench.got[1:], strict=False)} == {WIRE_NS}
    assert bench.world.events == 2 * 765
    counts = bench.lan.counts[0]
    assert (counts.frames, counts.dropped_at_host, counts.payload_bytes) == (1_000, 235, 130_000)
    assert bench.lan.room(0, 130) == 765


def test_many_at_once_are_what_one_at_a_time_is() -> None:
    one, many = Bench(), Bench()
    for bench in (one, many):
        bench.lan.send_datagram(0, 2, 500, "before")
    for item in range(900):
        one.lan.send_datagram(0, 1, 130, item)
    room = many.lan.room(0, 130)
    assert room is not None
    many.lan.send_datagrams(0, 1, 130, range(room), offered=900)
    for bench in (one, many):
        bench.lan.send_datagram(0, 2, 1, "after")
        bench.world.run(ms(100))
    assert one.got == many.got
    for name in one.lan.counts[0].__slots__:
        assert getattr(one.lan.counts[0], name) == getattr(many.lan.counts[0], name)


def test_a_port_queues_and_drops_what_does_not_fit() -> None:
    """Two senders fill the port of one receiver at twice its rate."""
    bench = Bench(switch_queue_bytes=196 * 10)
    for item in range(100):
        bench.lan.send_datagram(0, 2, 130, item)
        bench.lan.send_datagram(1, 2, 130, item)
    bench.world.run(ms(100))
    counts = bench.lan.counts[2]
    assert counts.received + counts.dropped_at_switch == 200
    assert 100 <= counts.received <= 111
    assert counts.received == len(bench.got)


def test_a_multicast_goes_up_once_and_down_every_port() -> None:
    bench = Bench(hosts=5)
    bench.lan.multicast(1, 130, "m")
    bench.world.run(ms(1))
    assert {(at, source, item) for at, _, source, item in bench.got} == {
        (2 * WIRE_NS + us(7), 1, "m")
    }
    assert sorted(to for _, to, _, _ in bench.got) == [0, 2, 3, 4]
    assert bench.lan.counts[1].frames == 1


def test_no_limit_drops_nothing() -> None:
    bench = Bench(host_queue_bytes=None, switch_queue_bytes=None)
    for item in range(5_000):
        bench.lan.send_datagram(0, 1, 130, item)
    assert bench.lan.room(0, 130) is None
    bench.world.run(ms(100))
    assert len(bench.got) == 5_000


def test_a_receiver_serves_one_after_the_other_and_holds_only_so_many() -> None:
    """One is served, `receive_buffer` wait, the others are dropped."""
    bench = Bench(service_ns=ms(1), receive_buffer=4)
    for item in range(20):
        bench.lan.send_datagram(0, 1, 1, item)
    bench.world.run(ms(100))
    first_ns = 2 * 84 * 80 + us(7)
    assert [at for at, *_ in bench.got] == [first_ns + ms(1) * (i + 1) for i in range(5)]
    assert bench.lan.counts[1].dropped_at_receiver == 15


def test_loss_is_drawn_per_frame_and_by_seed() -> None:
    def received(seed: int) -> list[int]:
        bench = Bench(seed=seed, loss_ratio=0.05, host_queue_bytes=None, switch_queue_bytes=None)
        for item in range(4_000):
            bench.lan.send_datagram(0, 1, 100, item)
        bench.world.run(ms(1_000))
        assert bench.lan.counts[1].lost == 4_000 - len(bench.got)
        return [item for *_, item in bench.got]

    first = received(1)
    assert received(1) == first != received(2)
    assert 0.04 < 1 - len(first) / 4_000 < 0.06


@pytest.mark.parametrize("silent", [False, True])
def test_a_host_that_is_down_gets_no_datagram(silent: bool) -> None:
    bench = Bench()
    bench.lan.down(1, silent=silent)
    bench.lan.send_datagram(0, 1, 100, "lost")
    bench.world.run(ms(1))
    bench.lan.up(1)
    bench.lan.send_datagram(0, 1, 100, "got")
    bench.world.run(ms(2))
    assert [item for *_, item in bench.got] == ["got"]
    assert bench.lan.counts[1].dropped_while_down == 1


class SimpyLan:
    """The same switch as SimPy processes that share no code with ours.

    A queue is a store of frames, a link a process that sends one frame after the other; bytes are
    counted as they go, not as times.
    """

    def __init__(self, hosts: int, queue_bytes: int, ns_per_byte: int) -> None:
        self.env = simpy.Environment()
        self.ns_per_byte = ns_per_byte
        self.queue_bytes = queue_bytes
        self.uplinks = [simpy.Store(self.env) for _ in range(hosts)]
        self.ports = [simpy.Store(self.env) for _ in range(hosts)]
        self.up_end_ns = [0] * hosts
        self.queued: dict[tuple[str, int], list[list[int]]] = {}
        self.got: list[tuple[int, int, int, Any]] = []
        for host in range(hosts):
            self.env.process(self._link(("up", host), self.uplinks[host], self._to_port))
            self.env.process(self._link(("port", host), self.ports[host], self._to_host))

    def offer(self, where: tuple[str, int], store: simpy.Store, frame: tuple[Any, ...]) -> bool:
        """Queue it, if the bytes that are still to be sent leave room."""
        now = self.env.now
        entries = self.queued.setdefault(where, [])
        backlog = 0.0
        for size, started in entries:
            sent = 0 if started < 0 else (now - started) / self.ns_per_byte
            backlog += size - sent
        if backlog + frame[2] > self.queue_bytes:
            return False
        entry = [frame[2], -1]
        entries.append(entry)
        store.put((frame, entry))
        return True

    def _link(
        self, where: tuple[str, int], store: simpy.Store, then: Callable[..., Any]
    ) -> Iterator[Any]:
        while True:
            frame, entry = yield store.get()
            entry[1] = self.env.now
            yield self.env.timeout(frame[2] * self.ns_per_byte)
            self.queued[where].remove(entry)
            self.env.process(then(frame))

    def _to_port(self, frame: tuple[Any, ...]) -> Iterator[Any]:
        yield self.env.timeout(6_000)
        self.offer(("port", frame[1]), self.ports[frame[1]], frame)

    def _to_host(self, frame: tuple[Any, ...]) -> Iterator[Any]:
        yield self.env.timeout(1_000)
        self.got.append((self.env.now, frame[1], frame[0], frame[3]))


def test_simpy_agrees_on_every_arrival_and_every_drop() -> None:
    """Four hosts, 3,000 datagrams in bursts, queues of 6,000 bytes: the same, nanosecond by
    nanosecond."""
    chance = stream(7, "test/simpy")
    bench = Bench(hosts=4, host_queue_bytes=6_000, switch_queue_bytes=6_000)
    other = SimpyLan(4, 6_000, 80)
    taken: list[tuple[int, bool]] = []
    simpy_taken: list[tuple[int, bool]] = []

    def offer(sends: list[tuple[int, int, int, int, int]]) -> Iterator[Any]:
        for at, source, to, payload, serial in sends:
            yield other.env.timeout(at - other.env.now)
            size = max(payload + 66, 84)
            kept = other.offer(("up", source), other.uplinks[source], (source, to, size, serial))
            simpy_taken.append((serial, kept))

    sends = []
    at = 0
    for serial in range(3_000):
        if serial % 10 == 0:  # A burst of one host, most of it to one that many send to.
            at += chance.randrange(1, 400_001)
            source = chance.randrange(1, 4)
        to = 0 if chance.random() < 0.8 else source % 3 + 1
        at += chance.choice((1, 7, 50_000))  # No two at once: ties would be a matter of taste.
        sends.append((at, source, to, chance.randrange(1, 1_400), serial))
    for when, source, to, payload, serial in sends:
        bench.at(
            when,
            lambda s=source, t=to, p=payload, i=serial: taken.append(
                (i, bench.lan.send_datagram(s, t, p, i))
            ),
        )
    other.env.process(offer(sends))
    bench.world.run(ms(1_000))
    other.env.run(until=ms(1_000))
    assert taken == simpy_taken
    assert sorted(bench.got) == sorted(other.got)
    dropped = sum(counts.dropped_at_switch for counts in bench.lan.counts)
    assert dropped > 50
    assert sum(not kept for _, kept in taken) > 50
    assert len(bench.got) > 1_000
