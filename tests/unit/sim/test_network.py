"""Links: what happens to copies, in streams and as datagrams, cut, healed and restarted."""

from typing import Any

import pytest

from orderwire.kernel import Via, stream
from orderwire.sim.delays import Bimodal, Constant, Uniform
from orderwire.sim.network import LinkDelay, Network, NetworkSettings
from orderwire.sim.world import World

DATAGRAM, STREAM = Via.DATAGRAM, Via.STREAM


class Links:
    """A network of three, and what comes of what it is given."""

    def __init__(self, **settings: Any) -> None:
        self.world = World()
        self.lost: list[tuple[int, int, int, int]] = []
        self.told: list[tuple[int, tuple[int, int, int, int]]] = []
        self.arrived: list[tuple[int, int, int, bytes]] = []
        self.network = Network(
            self.world,
            3,
            NetworkSettings(**{"delay": Constant(delay_ns=10)} | settings),
            stream(1, "network"),
            on_lost=lambda *copy: self.lost.append(copy),
            tell_lost=lambda *copy: self.told.append((self.world.now_ns, copy)),
        )
        for to in range(3):
            self.network.attach(
                lambda source, data, to=to: self.arrived.append(
                    (self.world.now_ns, source, to, data)
                )
            )
        self.senders = [self.network.sender(source) for source in range(3)]

    def send(self, source: int, to: int, data: bytes, via: Via = DATAGRAM) -> None:
        self.senders[source](to, data, via)


def test_copies_arrive_after_their_delay() -> None:
    links = Links(links=(LinkDelay(source=0, to=2, delay=Constant(delay_ns=3)),))
    links.send(0, 1, b"a")
    links.send(0, 2, b"b")
    links.world.run(100)
    assert links.arrived == [(3, 0, 2, b"b"), (10, 0, 1, b"a")]
    assert links.network.last_arrival_ns == 10


def test_lost_copies_are_counted_and_told_by_link_index() -> None:
    links = Links(loss_ratio=1.0, give_up_ns=50)
    links.send(0, 1, b"a")
    links.send(0, 2, b"b")
    links.send(0, 1, b"c")
    assert links.lost == [(0, 1, 0, 0), (0, 2, 0, 0), (0, 1, 0, 1)]
    links.world.run(100)
    assert links.arrived == []
    assert links.told == [(50, (0, 1, 0, 0)), (50, (0, 2, 0, 0)), (50, (0, 1, 0, 1))]
    assert links.network.counts.lost == 3


def test_duplicates_take_their_own_way() -> None:
    links = Links(duplicate_ratio=1.0, delay=Uniform(low_ns=0, high_ns=1_000))
    links.send(0, 1, b"a")
    links.world.run(2_000)
    assert [data for _, _, _, data in links.arrived] == [b"a", b"a"]
    assert links.arrived[0][0] != links.arrived[1][0]


def test_copies_overtake_each_other_unless_in_order() -> None:
    far = Bimodal(near_ns=1, far_ns=500, far_ratio=0.5)
    for in_order in (False, True):
        links = Links(delay=far, in_order=in_order)
        for index in range(40):
            links.send(0, 1, b"%d" % index)
        links.world.run(1_000)
        arrived = [int(data) for _, _, _, data in links.arrived]
        assert (arrived == sorted(arrived)) is in_order


def test_held_back_copies_come_later() -> None:
    links = Links(reorder_ratio=1.0, reorder_ns=1_000)
    for index in range(20):
        links.send(0, 1, b"%d" % index)
    links.world.run(5_000)
    assert max(time_ns for time_ns, *_ in links.arrived) > 10
    assert links.network.counts.held_back == 20


def test_grid_puts_arrivals_off() -> None:
    links = Links(grid_ns=64)
    links.send(0, 1, b"a")
    links.world.run(100)
    assert links.arrived == [(64, 0, 1, b"a")]


def test_uplink_sends_one_after_another() -> None:
    links = Links(uplink_bits_per_s=8_000_000_000)
    links.send(0, 1, b"x" * 100)
    links.send(0, 2, b"y" * 100)
    links.send(1, 2, b"z" * 100)
    links.world.run(1_000)
    assert [(time_ns, source) for time_ns, source, _, _ in links.arrived] == [
        (110, 0),
        (110, 1),
        (210, 0),
    ]


def test_a_cut_loses_datagrams_and_holds_streams() -> None:
    links = Links()
    links.network.cut(0, 1)
    links.send(0, 1, b"datagram")
    links.send(0, 1, b"first", STREAM)
    links.send(0, 1, b"second", STREAM)
    links.send(1, 0, b"other way")
    links.world.run(100)
    assert links.arrived == [(10, 1, 0, b"other way")]
    links.network.heal(0, 1)
    links.world.run(200)
    assert links.arrived[1:] == [(110, 0, 1, b"first"), (110, 0, 1, b"second")]
    assert links.lost == [(0, 1, 0, 0)]
    assert links.network.counts.cut == 1


def test_overlapping_cuts_heal_one_by_one() -> None:
    links = Links()
    links.network.cut(0, 1)
    links.network.cut(0, 1)
    links.network.heal(0, 1)
    links.send(0, 1, b"a")
    links.network.heal(0, 1)
    links.send(0, 1, b"b")
    links.world.run(100)
    assert [data for *_, data in links.arrived] == [b"b"]


def test_a_stream_is_in_order_and_never_lossy() -> None:
    links = Links(delay=Uniform(low_ns=0, high_ns=1_000), loss_ratio=0.9, duplicate_ratio=0.9)
    for index in range(30):
        links.send(0, 1, b"%d" % index, STREAM)
    links.world.run(10_000)
    assert [int(data) for *_, data in links.arrived] == list(range(30))


@pytest.mark.parametrize("restarting", [0, 1])
def test_a_restart_of_either_end_loses_the_stream(restarting: int) -> None:
    links = Links()
    links.send(0, 1, b"stream", STREAM)
    links.send(0, 1, b"datagram")
    links.network.restarted(restarting, 1)
    links.world.run(100)
    assert [data for *_, data in links.arrived] == [b"datagram"]


def test_a_restarted_sender_counts_from_0_and_old_losses_are_not_told() -> None:
    links = Links(loss_ratio=1.0, give_up_ns=50)
    links.send(0, 1, b"old")
    links.network.restarted(0, 1)
    links.send(0, 1, b"new")
    links.world.run(100)
    assert links.lost == [(0, 1, 0, 0), (0, 1, 1, 0)]
    assert links.told == [(50, (0, 1, 1, 0))]


def test_calm_ends_every_fault() -> None:
    links = Links(loss_ratio=1.0, duplicate_ratio=0.5, reorder_ratio=0.5, grid_ns=64)
    links.network.cut(0, 1)
    links.network.calm(Constant(delay_ns=4))
    links.send(0, 1, b"a")
    links.world.run(100)
    assert links.arrived == [(4, 0, 1, b"a")]


@pytest.mark.parametrize(
    "settings",
    [
        {"loss_ratio": 1.1},
        {"duplicate_ratio": -0.1},
        {"grid_ns": 0},
        {"give_up_ns": -1},
        {"uplink_bits_per_s": 0},
    ],
)
def test_senseless_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        NetworkSettings(**settings)
