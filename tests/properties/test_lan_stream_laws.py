"""Streams on the LAN under drawn faults: in order, never twice, lost only with a `broken`."""

from typing import Any

import pytest

from orderwire.kernel import ms, stream
from orderwire.sim.lan import Lan, LanSettings
from orderwire.sim.world import COMMAND, World

S = ms(1_000)
HOSTS = 4


class Faulty:
    """Hosts that send each other numbers, crash and come back; then all is calm."""

    def __init__(self, model: Any, seed: int) -> None:
        self.chance = stream(seed, "test/faults")
        self.world = World()
        loss_ratio = self.chance.choice((0.0, 0.02)) if model == "segments" else 0.0
        queue = self.chance.choice((None, 20_000)) if model == "segments" else None
        self.lan = Lan(
            self.world,
            HOSTS,
            LanSettings(
                streams=model,
                loss_ratio=loss_ratio,
                host_queue_bytes=None,
                switch_queue_bytes=queue,
                give_up_ns=4 * S,
            ),
            self.deliver,
            self.broken,
            seed=seed,
        )
        self.lives = [0] * HOSTS
        self.next = 0
        self.sent: dict[tuple[int, int], list[int]] = {}
        """By lives' sender and receiver: numbers sent since the sender's last `broken`."""
        self.got: dict[tuple[int, int, int, int], list[int]] = {}
        """By receiver and its life, sender and its life."""
        self.owner: dict[int, tuple[int, int]] = {}
        self.told: list[tuple[int, int]] = []

    def send(self, source: int, to: int) -> None:
        if self.lan.is_down(source):
            return
        self.next += 1
        self.owner[self.next] = (source, self.lives[source])
        self.sent.setdefault((source, to), []).append(self.next)
        self.lan.send_stream(source, to, self.chance.choice((1, 500, 30_000)), self.next)

    def deliver(self, to: int, source: int, number: int) -> None:
        assert not self.lan.is_down(to)
        assert self.owner[number][0] == source
        self.got.setdefault((to, self.lives[to], source, self.owner[number][1]), []).append(number)

    def broken(self, source: int, to: int) -> None:
        assert not self.lan.is_down(source)
        self.told.append((source, to))
        self.sent[source, to] = []

    def crash(self, host: int) -> None:
        if not self.lan.is_down(host):
            self.lan.down(host, silent=self.chance.random() < 0.5)

    def rise(self, host: int) -> None:
        if self.lan.is_down(host):
            self.lives[host] += 1
            for pair in self.sent:
                if pair[0] == host:
                    self.sent[pair] = []
            self.lan.up(host)

    def run(self) -> None:
        chance, world = self.chance, self.world
        for _ in range(120):
            source, to = chance.sample(range(HOSTS), 2)
            world.at(chance.randrange(6 * S), COMMAND, self.send, source, to)
        for _ in range(chance.randrange(6)):
            host, at_ns = chance.randrange(HOSTS), chance.randrange(5 * S)
            world.at(at_ns, COMMAND, lambda host, _: self.crash(host), host)
            world.at(
                at_ns + chance.randrange(3 * S), COMMAND, lambda host, _: self.rise(host), host
            )
        world.run(9 * S)
        for host in range(HOSTS):
            self.rise(host)
        world.run(60 * S)


@pytest.mark.parametrize("model", ["fluid", "segments"])
@pytest.mark.parametrize("seed", range(25))
def test_streams_are_in_order_and_lose_only_with_a_broken(model: str, seed: int) -> None:
    faulty = Faulty(model, seed)
    faulty.run()
    for numbers in faulty.got.values():
        assert numbers == sorted(set(numbers))
    everything = [number for numbers in faulty.got.values() for number in numbers]
    assert len(everything) == len(set(everything))
    # What was sent since the last `broken` has arrived, whoever lives there now.
    arrived = set(everything)
    for (source, to), numbers in faulty.sent.items():
        assert set(numbers) <= arrived, f"{source}→{to}: lost and not told"
    # All is calm: whoever sends now gets through, at the second try at the latest.
    for source in range(HOSTS):
        for to in range(HOSTS):
            if source != to:
                faulty.send(source, to)
    faulty.world.run(90 * S)
    again = [pair for pair in faulty.sent if not faulty.sent[pair]]
    for source, to in again:
        faulty.send(source, to)
    faulty.world.run(120 * S)
    arrived = {number for numbers in faulty.got.values() for number in numbers}
    for (source, to), numbers in faulty.sent.items():
        assert set(numbers) <= arrived, f"{source}→{to}"
        assert numbers
