"""Reliability of a link, in a time of its own: nothing here waits or opens a socket."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from two_links import End, Network, meet, pair

from orderwire.aio.frames import HEAD, HEAD_BYTES, Kind
from orderwire.aio.link import SILENCE_NS, WINDOW_BYTES_MAX, WINDOW_BYTES_MIN
from orderwire.aio.outbound import HEARTBEATS_AFTER_EXPIRY_MAX
from orderwire.kernel import Instant, ms, us

DELAY = ms(1)


def kind_of(data: bytes) -> int:
    return HEAD.unpack_from(data)[0]


def is_first_data(data: bytes) -> bool:
    kind, _, _, _, count, *_ = HEAD.unpack_from(data)
    return kind == Kind.DATA and count > 0


def talk(network: Network, sender: End, messages: int, pause_ns: int = us(500)) -> list[bytes]:
    """Send messages one after another, two a datagram."""
    sent = []
    for index in range(0, messages, 2):
        pdus = [b"%d" % index, b"%d" % (index + 1)]
        sender.send(*pdus)
        sent += pdus
        network.run(network.now + pause_ns)
    return sent


def check(sender: End, receiver: End, sent: list[bytes]) -> None:
    """Every copy is received once or told lost, and nothing is kept."""
    got = [int(each) for each in receiver.got]
    assert len(set(got)) == len(got)
    assert set(got) | receiver.lost_numbers == set(range(len(sent)))
    assert set(got).isdisjoint(receiver.lost_numbers)
    out = sender.lane.outbound
    assert not out.flight
    assert not out.queue
    assert out.flight_cost == sender.link.flight_cost == 0
    assert receiver.lane.counters.lost == len(receiver.lost_numbers)


def test_without_loss_nothing_is_asked_for_or_sent_again() -> None:
    network, sender, receiver = pair(lambda *_: (DELAY,))
    sent = talk(network, sender, 200)
    network.run(network.now + ms(2_000))
    assert receiver.got == sent
    check(sender, receiver, sent)
    assert sender.lane.counters.retransmitted == 0
    assert receiver.lane.counters.nacked == 0
    assert sender.lane.counters.heartbeats <= 1


def test_a_lost_copy_comes_a_round_trip_after_the_next_one() -> None:
    """Asked for the moment the next one shows that it is missing, and sent again at once."""
    network, sender, receiver = pair(lambda *_: (DELAY,))
    network.fate = lambda _, at, __: () if at == 0 else (DELAY,)
    start = network.now
    sender.send(b"0")
    network.run(start + us(300))
    sender.send(b"1")
    network.run(start + ms(5))
    assert receiver.got == [b"1", b"0"]
    assert [at - start for at in receiver.arrivals] == [us(300) + DELAY, us(300) + 3 * DELAY]
    assert sender.lane.counters.retransmitted == receiver.lane.counters.nacked == 1


def test_a_way_that_reorders_is_not_asked_in_vain_again_and_again() -> None:
    """Every tenth datagram is overtaken by the next one: one of two copies is asked for, once."""
    network, sender, receiver = pair(lambda _, at, __: (DELAY + us(700) * (at % 10 == 5),))
    receiver.link.ping(Instant(network.now))
    network.run(network.now + ms(5))
    sent = talk(network, sender, 400)
    network.run(network.now + ms(500))
    assert sorted(receiver.got, key=int) == sent != receiver.got
    assert sender.lane.counters.retransmitted <= 2


@pytest.mark.parametrize("lifetime_ns", [None, ms(250)])
def test_whichever_datagram_is_lost_all_arrive(lifetime_ns: int | None) -> None:
    """Lose the n-th datagram, reports and heartbeats included, for every n of the run."""
    index = -1
    total = 1
    while index < total:
        dropped = index
        network, sender, receiver = pair(
            lambda _source, at, _data, dropped=dropped: () if at == dropped else (DELAY,),
            lifetime_ns,
        )
        sent = talk(network, sender, 20)
        network.run(network.now + ms(300))
        assert sorted(receiver.got, key=int) == sent, f"datagram {dropped} lost"
        check(sender, receiver, sent)
        assert sender.lane.counters.retransmitted <= 2
        total = len(network.sent)
        index += 1
    assert total > 12


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("lifetime_ns", [None, ms(250)])
def test_with_a_fifth_lost_and_time_enough_all_arrive(seed: int, lifetime_ns: int | None) -> None:
    chance = Random(seed)

    def fate(source: int, at: int, data: bytes) -> list[int]:
        if chance.random() < 0.2:
            return []
        delays = [us(200) + round(chance.expovariate(1 / us(500)))]
        return delays * 2 if chance.random() < 0.1 else delays

    network, sender, receiver = pair(fate, lifetime_ns)
    sent = talk(network, sender, 400)
    network.run(network.now + ms(3_000))
    assert sorted(receiver.got, key=int) == sent
    check(sender, receiver, sent)
    assert sender.lane.counters.retransmitted < 300


@given(chance=st.randoms(use_true_random=False), lifetime_ms=st.integers(1, 40))
def test_every_copy_is_received_once_or_told_lost(chance: Random, lifetime_ms: int) -> None:
    """Whatever the network does, for any lifetime."""
    loss = chance.choice([0.0, 0.1, 0.5, 0.9])
    slowest = chance.choice([1, 5, 50])

    def fate(source: int, at: int, data: bytes) -> list[int]:
        if chance.random() < loss:
            return []
        return [round(chance.random() * ms(slowest)) for _ in range(chance.choice([1, 1, 1, 2]))]

    network, sender, receiver = pair(fate, ms(lifetime_ms))
    sent = talk(network, sender, 30, us(300))
    network.fate = lambda *_: (us(100),)  # healed: what was lost at the tail is told
    network.run(network.now + ms(20_000))
    check(sender, receiver, sent)


def test_a_blackout_is_told_as_loss_once_it_ends() -> None:
    network, sender, receiver = pair(lambda *_: (), ms(20))
    sent = talk(network, sender, 10)
    network.run(network.now + ms(50))
    assert receiver.lost == []
    network.fate = lambda *_: (DELAY,)
    network.run(network.now + ms(5_000))
    check(sender, receiver, sent)
    assert receiver.lost_numbers == set(range(10))


def test_nobody_calls_for_ever_for_what_has_expired() -> None:
    network, sender, _ = pair(lambda *_: (), ms(20))
    talk(network, sender, 10)
    network.run(network.now + ms(60_000))
    assert sender.lane.counters.heartbeats <= HEARTBEATS_AFTER_EXPIRY_MAX + 12
    assert sender.link.next_due(Instant(network.now)) is None


@pytest.mark.parametrize("lifetime_ms", [1, 3, 10])
def test_nothing_is_asked_for_or_sent_again_after_its_deadline(lifetime_ms: int) -> None:
    lost = {2, 3, 4, 7}
    network, sender, receiver = pair(lambda *_: (DELAY,), ms(lifetime_ms))
    for end in (sender, receiver):
        end.link.ping(Instant(network.now))
    network.run(network.now + ms(5))
    index = 0
    deadlines: dict[int, int] = {}

    def fate(source: int, at: int, data: bytes) -> tuple[int, ...]:
        nonlocal index
        if source == 0 and is_first_data(data):
            *_, first, last = HEAD.unpack_from(data)
            again = first in deadlines
            deadlines[first] = last
            if again:
                return ()  # every repair is lost as well
            index += 1
            return () if index - 1 in lost else (DELAY,)
        return (DELAY,)

    network.fate = fate
    sent = talk(network, sender, 20, us(100))
    network.run(network.now + ms(1_000))
    check(sender, receiver, sent)
    latest = max(deadlines.values())
    repairs = 0
    seen: set[int] = set()
    for at, source, data in network.sent:
        *_, first, last = HEAD.unpack_from(data)
        if source == 0 and is_first_data(data):
            if first in seen:
                repairs += 1
                assert at <= last, "sent again after its deadline"
            seen.add(first)
        elif source == 1 and kind_of(data) == Kind.REPORT:
            asked = any(
                data[HEAD_BYTES + 8 + 17 * index + 16] for index in range(HEAD.unpack_from(data)[4])
            )
            assert not asked or at + 2 * DELAY <= latest, "asked for what cannot be in time"
    # A round trip takes 2 ms: with less to live nothing can be repaired, so nothing is tried.
    assert (repairs > 0) is (lifetime_ms == 10)
    assert receiver.lane.counters.lost == 8


def test_the_repair_of_a_copy_ends_at_its_own_deadline() -> None:
    """It lives 10 ms, those before and behind it a second; the way lets nothing of it through."""
    network, sender, receiver = pair(lambda *_: (DELAY,), ms(1_000))
    for end in (sender, receiver):
        end.link.ping(Instant(network.now))
    network.run(network.now + ms(5))
    start = network.now
    tries: dict[int, list[int]] = {0: [], 1: []}

    def fate(source: int, at: int, data: bytes) -> tuple[int, ...]:
        number = HEAD.unpack_from(data)[7]
        if source == 0 and is_first_data(data) and number in tries:
            tries[number].append(network.now - start)
            return () if number == 1 or network.now < start + ms(50) else (DELAY,)
        return (DELAY,)

    network.fate = fate
    sender.send(b"long")
    sender.send(b"short", lifetime_ns=ms(10))
    sender.send(b"next")
    network.run(start + ms(20))
    assert receiver.got == [b"next"]
    assert receiver.lost_numbers == {1}
    assert len(tries[1]) > 1
    assert max(tries[1]) <= ms(10) < max(tries[0])
    network.run(start + ms(200))
    assert receiver.got == [b"next", b"long"]
    assert receiver.lost_numbers == {1}
    assert sender.link.flight_cost == 0


def test_gaps_are_told_by_the_sender_when_it_has_dropped_them() -> None:
    """A peer that comes late learns at once what is gone, whatever the lifetime."""
    network, sender, receiver = pair(lambda *_: (), ms(10))
    talk(network, sender, 10)
    network.run(network.now + ms(30))
    network.fate = lambda *_: (DELAY,)
    sender.lifetime_ns = None  # the next has no deadline: the gap before it has none either
    sender.send(b"10")
    network.run(network.now + ms(20))
    assert receiver.got == [b"10"]
    assert receiver.lost_numbers == set(range(10))
    assert sender.lane.counters.retransmitted == 0


def test_a_restarted_peer_is_met_afresh() -> None:
    network, sender, receiver = pair(lambda *_: (DELAY,))
    talk(network, sender, 10)
    network.run(network.now + ms(100))
    fresh = End(network, 0, 1, None, session=2)
    meet(fresh, receiver)
    fresh.send(b"0", b"1")
    network.run(network.now + ms(100))
    assert receiver.got == [b"%d" % each for each in [*range(10), 0, 1]]
    assert (receiver.link.restarts, receiver.restarts) == (1, 1)
    assert receiver.link.first_session == 1
    # What its former life still has under way is stale.
    sender.send(b"ghost")
    network.run(network.now + ms(100))
    assert b"ghost" not in receiver.got
    assert receiver.link.stale >= 1


def test_what_a_peer_left_open_when_it_restarted_is_lost_at_once() -> None:
    network, sender, receiver = pair(lambda *_: (DELAY,))
    network.fate = lambda source, _, data: () if b"never" in data else (DELAY,)
    for text in (b"0", b"never", b"never", b"3"):
        sender.send(text)
    network.run(network.now + ms(3))
    assert receiver.lost == []
    meet(End(network, 0, 1, None, session=2), receiver)
    assert receiver.lost_numbers == {1, 2}
    assert receiver.lane.counters.lost == 2
    assert receiver.lane.inbound.expected == 0


def test_a_restarted_receiver_gets_and_misses_nothing_of_its_predecessors() -> None:
    """Copies settled, under way and waiting when it ended are neither handed over nor lost."""
    network, sender, receiver = pair(lambda *_: (DELAY,))
    talk(network, sender, 10)
    network.run(network.now + ms(100))
    sender.send(b"under way")
    network.run(network.now + DELAY // 2)
    again = End(network, 1, 0, None, session=2)
    network.run(network.now + ms(100))  # it hears what was meant for its predecessor
    meet(sender, again)
    for index in range(5):
        sender.send(b"new %d" % index)
    network.run(network.now + ms(3_000))
    assert again.got == [b"new %d" % index for index in range(5)]
    assert again.lost == []
    assert again.link.stale > 0
    assert again.lane.counters.lost == 0
    assert receiver.got == [b"%d" % each for each in range(10)]
    assert sender.lane.outbound.unconfirmed == 1
    assert sender.link.flight_cost == sender.lane.outbound.flight_cost == 0
    assert not sender.lane.outbound.unsettled


def test_nothing_is_sent_to_a_peer_that_has_not_said_who_it_is() -> None:
    network = Network(lambda *_: (DELAY,))
    sender, receiver = End(network, 0, 1, ms(50)), End(network, 1, 0, ms(50))
    sender.send(b"0")
    network.run(network.now + ms(60))
    assert [
        kind_of(data) for _, source, data in network.sent if source == 0 and is_first_data(data)
    ] == []
    sender.send(b"1")
    meet(sender, receiver)
    sender.send(b"2")
    network.run(network.now + ms(1_000))
    assert receiver.got == [b"1", b"2"]
    assert receiver.lost_numbers == {0}  # its time was over before they met
    assert sender.lane.outbound.dropped == 1


def test_a_peer_that_answers_nothing_is_silent_only_when_asked_often_enough() -> None:
    network, sender, _ = pair(lambda *_: (DELAY,))
    sender.send(b"0")
    network.run(network.now + ms(2_000))
    network.fate = lambda *_: ()
    network.now += 20 * SILENCE_NS  # as if stopped: nobody was asked meanwhile
    sender.send(b"1")
    sender.link.on_timer(Instant(network.now))
    assert not sender.link.is_silent(Instant(network.now))
    network.run(network.now + SILENCE_NS - ms(1_500))
    assert not sender.link.is_silent(Instant(network.now))
    network.run(network.now + ms(4_000))
    assert sender.link.is_silent(Instant(network.now))


@pytest.mark.parametrize("lifetime_ms", [20, 500])
def test_nobody_waits_for_a_silent_peer_beyond_the_lifetime(lifetime_ms: int) -> None:
    network, sender, _ = pair(lambda *_: (DELAY,), ms(lifetime_ms))
    talk(network, sender, 4)
    sender.link.ping(Instant(network.now))
    network.run(network.now + ms(10))
    network.fate = lambda *_: ()
    sender.send(b"last")
    network.run(network.now + ms(lifetime_ms))
    assert sender.lane.outbound.unsettled
    network.run(network.now + ms(150))
    assert not sender.lane.outbound.unsettled


def test_the_window_bounds_what_is_under_way_and_reports_open_it() -> None:
    network, sender, receiver = pair(lambda *_: (DELAY,))
    for index in range(200):
        sender.send(b"%d" % index + bytes(8_000))
    assert sender.link.flight_cost < WINDOW_BYTES_MAX
    assert sender.lane.outbound.queue
    network.run(network.now + ms(1_000))
    assert len(receiver.got) == 200
    assert not sender.lane.outbound.queue


def test_loss_shrinks_the_window_but_not_below_its_floor() -> None:
    chance = Random(1)
    network, sender, receiver = pair(lambda *_: () if chance.random() < 0.3 else (DELAY,))
    before = sender.link.window
    sent = talk(network, sender, 400, us(100))
    network.run(network.now + ms(3_000))
    assert len(receiver.got) == len(sent)
    assert WINDOW_BYTES_MIN <= sender.link.window < before


def test_round_trips_are_measured() -> None:
    network, sender, _ = pair(lambda *_: (ms(3),))
    sender.link.ping(Instant(network.now))
    network.run(network.now + ms(10))
    assert sender.link.trip.rtt_ns == sender.link.trip.fastest_ns == ms(6)


def test_a_measurement_of_a_process_that_was_starting_is_not_taken_for_the_way() -> None:
    """Its first answer takes 400 ms, the way 2 ms: a lost copy waits for no half second."""
    network, sender, receiver = pair(lambda *_: (DELAY,))
    network.fate = lambda source, at, data: (ms(400) if kind_of(data) == Kind.PONG else DELAY,)
    for end in (sender, receiver):
        end.link.ping(Instant(network.now))
    network.run(network.now + ms(402))
    assert receiver.link.trip.rtt_ns > ms(400)
    network.fate = lambda *_: (DELAY,)
    for _ in range(100):
        sender.send(b"hello")
        network.run(network.now + ms(2))
    assert sender.link.trip.rtt_ns == receiver.link.trip.rtt_ns == 2 * DELAY
    lost_at = network.now

    def fate(source: int, at: int, data: bytes) -> tuple[int, ...]:
        is_lost = HEAD.unpack_from(data)[7] == 100 and network.now < lost_at + ms(20)
        return () if source == 0 and is_first_data(data) and is_lost else (DELAY,)

    network.fate = fate
    sender.send(b"lost")
    sender.send(b"next")
    network.run(lost_at + ms(30))
    assert receiver.got[-2:] == [b"next", b"lost"]


@given(data=st.binary(max_size=100), kind=st.sampled_from(sorted(Kind)))
def test_garbage_behind_a_good_head_does_no_harm(data: bytes, kind: Kind) -> None:
    network, _, receiver = pair(lambda *_: (DELAY,))
    chance = Random(data)
    head = HEAD.pack(
        kind,
        chance.choice([0, 1, 255]),
        0,
        7,
        chance.choice([0, 1, 2, 5, 4_000, 0xFFFF]),
        1,
        1,
        chance.choice([0, 1, 9, 1 << 31, (1 << 64) - 1]),
        chance.choice([0, 1, network.now + ms(5), (1 << 64) - 1]),
    )
    receiver.receive(head + data)
    receiver.receive(data)
    network.run(network.now + ms(200))
    receiver.link.greet(1)
    assert len(receiver.lane.inbound.gaps) <= 1
