"""S001: one test per statement of the paper, and per decision where we went beyond it."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest
from broken_bounded_twins import CoversWithoutFloor
from broken_twins import AnyCodec
from judging import broken

from orderwire.kernel import Indicate, Instant, ProcessId, members_of
from orderwire.ordering.bounded_jang_codec import NO_FLOOR
from orderwire.ordering.catalog import ALGORITHMS, Algorithm, OrderingSettings
from orderwire.ordering.fixed_delay import FixedDelay
from orderwire.ordering.pdu import Delivered
from orderwire.sim.causal_vectors import read_scenario, schedule_of
from orderwire.sim.drawn_schedules import draw_schedule
from orderwire.sim.schedule import Replayed, Schedule, ScheduledSend, replay
from orderwire.sim.vectors import check_paths
from orderwire.verify.causal import check_causal_order, check_delta_causal_order, violating_pairs
from orderwire.verify.history import rebuild

VECTORS = Path(__file__).parents[1] / "vectors" / "causal"
DELTA = 20
BOUNDED = ("yoshimoto-maxcb", "yoshimoto-maxcb-oldest", "bounded-jang")


def send(name: str, at: int, sender: int, arrive: Mapping[int, int | None]) -> ScheduledSend:
    """One message to the processes of `arrive`."""
    to = tuple(sorted(arrive))
    return ScheduledSend(id=name, at=at, sender=sender, to=to, arrive=arrive)


def run(
    name: str, *sends: ScheduledSend, processes: int = 6, **options: Any
) -> tuple[Schedule, Replayed]:
    schedule = Schedule(processes=processes, lifetime=DELTA, sends=sends)
    return schedule, replay(schedule, ALGORITHMS[name], **options)


def sets_of(replayed: Replayed, name: str) -> dict[int, list[str]]:
    """CB of a message: destination → names of the messages, newest first."""
    pdu = next(iter(replayed.messages[name].pdus.values()))
    at_stamp = {(m.stamp, m.sender): m.id for m in replayed.messages.values()}
    return {k: [at_stamp[sending] for sending in sent] for k, sent in pdu.sets.items()}


def fan_in(slow: int | None = None) -> Iterator[ScheduledSend]:
    """Three messages to 0 that process 1 has, too; the first may be slow at 0; then 1 writes to 0.

    Sent at 1, 2 and 3 by the processes 2, 3 and 4; 1's own is sent at 8 and arrives at 9.
    """
    for index in range(3):
        at = index + 1
        arrives = slow if slow is not None and index == 0 else at + 3
        yield send(f"m{at}", at, index + 2, {0: arrives, 1: at + 2})
    yield send("m", 8, 1, {0: 9})


@pytest.mark.paper("S001:def.1")
@pytest.mark.paper("S001:fig.1")
def test_a_message_waits_for_its_causal_predecessor() -> None:
    """[S001:fig.1] m3, sent after m2 was delivered, waits at P3 for m1, sent before m2."""
    assert check_paths([VECTORS / "001-fig1-causal-wait.json"]).failed == []


@pytest.mark.paper("S001:def.2")
@pytest.mark.paper("S001:fig.2")
def test_no_waiting_for_what_is_older_than_the_lifetime() -> None:
    """[S001:fig.2] m3 is sent more than Δ after m1: it is delivered at once, m1 is discarded."""
    path = VECTORS / "001-fig2-delta-no-wait.json"
    assert check_paths([path]).failed == []


@pytest.mark.paper("S001:def.2")
def test_order_is_asked_of_pairs_sent_within_the_lifetime_only() -> None:
    """[S001:def.2] m1 →Δ m2 →Δ m3, but m1 is more than Δ older than m3: not transitive."""
    sends = (
        send("m1", 0, 0, {2: 19}),
        send("m2", 15, 0, {1: 16}),
        send("m3", 17, 1, {2: 18}),
    )
    history = rebuild(run("unordered", *sends)[1].events)
    assert len(violating_pairs(history, within_lifetime=True)) == 1
    sends = (
        send("m1", 0, 0, {2: 19}),
        send("m2", 15, 0, {1: 16}),
        send("m3", 30, 1, {2: 31}),
    )
    schedule = Schedule(
        processes=3, lifetime=DELTA, sends=sends, epsilon=15, clock_offsets=(15, 15, 0)
    )
    slow = replay(schedule, ALGORITHMS["unordered"])
    assert [name for name, _ in slow.delivered[2]] == ["m1", "m3"]
    skewed = (send("m1", 0, 0, {2: 33}), *sends[1:])
    schedule = Schedule(
        processes=3, lifetime=DELTA, sends=skewed, epsilon=15, clock_offsets=(15, 15, 0)
    )
    history = rebuild(replay(schedule, ALGORITHMS["unordered"]).events)
    assert len(violating_pairs(history)) == 1
    assert violating_pairs(history, within_lifetime=True) == []


@pytest.mark.paper("S001:def.2")
def test_with_agreeing_clocks_it_asks_no_less_than_s000() -> None:
    """[S001:def.2] Stamps are clock readings, late ones discarded: both definitions say the same.

    One send a tick, no latency of 0: then no stamp runs ahead of its clock.
    """
    compared = violating = 0
    for seed in range(60):
        schedule = draw_schedule(Random(f"{seed}/definitions"))
        for name in ("unordered", "fifo"):
            replayed = replay(schedule, ALGORITHMS[name])
            sent_at = {item.id: item.at for item in schedule.sends}
            if any(m.stamp != sent_at[m.id] for m in replayed.messages.values()):
                continue
            history = rebuild(replayed.events)
            compared += 1
            strong, weak = check_causal_order(history), check_delta_causal_order(history)
            assert strong.verdict is weak.verdict
            violating += bool(strong.violations)
    assert compared > 15
    assert violating > 3


@pytest.mark.paper("S001:sec.3.1")
def test_a_message_waits_for_its_deadline() -> None:
    """[S001:sec.3.1] With TS(m) as the only tag, m is delivered at TS(m) + Δ, not before."""
    _, replayed = run("fixed-delay", send("m", 3, 1, {0: 5}))
    core = FixedDelay(ProcessId(0), OrderingSettings(members=6, lifetime_ns=DELTA, tick_ns=1))
    assert core.receive(ProcessId(1), replayed.messages["m"].pdus[0], Instant(5)) == []
    assert core.next_deadline() == 3 + DELTA
    assert core.wake(Instant(3 + DELTA - 1)) == []
    (effect,) = core.wake(Instant(3 + DELTA))
    assert isinstance(effect, Indicate)
    assert isinstance(effect.indication, Delivered)


@pytest.mark.paper("S001:sec.3.1")
def test_deadlines_put_messages_in_order_whatever_is_lost() -> None:
    """[S001:sec.3.1] What is not there at its deadline never comes, and nobody waits for it."""
    schedule, replayed = run(
        "fixed-delay",
        send("m1", 0, 1, {0: 19, 2: 1}),
        send("lost", 1, 1, {0: None}),
        send("m2", 2, 2, {0: 3}),
    )
    assert replayed.delivered[0] == [("m1", DELTA), ("m2", 2 + DELTA)]
    assert not {"causal-order", "liveness"} & set(broken(schedule, replayed))


@pytest.mark.paper("S001:sec.3.2")
def test_a_tag_names_what_may_be_undelivered_at_each_destination() -> None:
    """[S001:sec.3.2] CB of m: all live messages of its past, per destination, newest first."""
    _, replayed = run("yoshimoto-maxcb", *fan_in(), max_cb=4)
    assert sets_of(replayed, "m") == {0: ["m3", "m2", "m1"], 1: ["m3", "m2", "m1"]}
    assert sets_of(replayed, "m1") == {}
    _, replayed = run("yoshimoto-maxcb", *fan_in(), send("n", 22, 1, {5: 23}), max_cb=4)
    assert sets_of(replayed, "n")[0] == ["m", "m3", "m2"]  # m1 is dead at 22.


@pytest.mark.paper("S001:sec.3")
@pytest.mark.paper("S001:sec.3.2")
@pytest.mark.parametrize("max_cb", [1, 2, 3])
def test_a_tag_names_at_most_max_cb_messages_of_a_destination(max_cb: int) -> None:
    """[S001:sec.3.2] The newest MAX_CB stay, so a tag has n · MAX_CB pairs at most."""
    _, replayed = run("yoshimoto-maxcb", *fan_in(), max_cb=max_cb)
    assert sets_of(replayed, "m")[0] == ["m3", "m2", "m1"][:max_cb]
    for seed in range(20):
        schedule = draw_schedule(Random(f"{seed}/bound"))
        replayed = replay(schedule, ALGORITHMS["yoshimoto-maxcb"], max_cb=max_cb)
        for message in replayed.messages.values():
            for pdu in message.pdus.values():
                assert len(pdu.sets) <= schedule.processes
                assert all(len(sendings) <= max_cb for sendings in pdu.sets.values())


@pytest.mark.paper("S001:sec.3.2")
def test_a_set_below_the_bound_is_complete_and_is_waited_for_as_usual() -> None:
    """[S001:sec.3.2] |T| < MAX_CB: m waits for what it names, and no longer."""
    _, replayed = run("yoshimoto-maxcb", *fan_in(slow=15), max_cb=4)
    assert replayed.delivered[0][-2:] == [("m1", 15), ("m", 15)]
    _, replayed = run("yoshimoto-maxcb", *fan_in(), max_cb=4)
    assert replayed.delivered[0][-1] == ("m", 9)


@pytest.mark.paper("S001:sec.3.2")
def test_behind_a_full_set_a_message_waits_until_its_newest_has_expired() -> None:
    """[S001:sec.3.2] |T| = MAX_CB: what was cut is older than m3, and expires before it."""
    for slow, expected in ((15, [("m1", 15), ("m", 3 + DELTA + 1)]), (None, [("m", 24)])):
        schedule, replayed = run("yoshimoto-maxcb", *fan_in(slow=slow), max_cb=2)
        assert replayed.delivered[0][-len(expected) :] == expected
        assert "causal-order" not in broken(schedule, replayed)


@pytest.mark.paper("S001:sec.3.2")
def test_the_wait_behind_a_full_set_ends_by_the_own_deadline() -> None:
    """[S001:sec.3.2] The newest named one is stamped before m: one tick less, and it is in time."""
    schedule, replayed = run(
        "yoshimoto-maxcb",
        send("m1", 1, 2, {0: None, 1: 1}),
        send("m", 2, 1, {0: 3}),
        max_cb=1,
    )
    assert replayed.delivered[0] == [("m", 2 + DELTA)]
    assert "liveness" not in broken(schedule, replayed)


@pytest.mark.paper("S001:sec.3.2")
def test_taking_covered_messages_out_of_a_cut_set_breaks_the_order() -> None:
    """[S001:sec.3.2] A set that was cut, and lost another one, looks complete."""
    path = VECTORS / "maxcb-rules.json"
    assert check_paths([path]).failed == []
    schedule = schedule_of(read_scenario(json.loads(path.read_text())))
    twin = Algorithm(
        name="covers-without-floor", summary="", create=CoversWithoutFloor, codec=AnyCodec
    )
    assert "causal-order" in broken(schedule, replay(schedule, twin, max_cb=3))


@pytest.mark.paper("S001:dec.1")
def test_the_oldest_rule_waits_until_the_oldest_named_one_has_expired() -> None:
    """[S001:dec.1] What was cut is not newer than m2, the oldest that is named."""
    _, replayed = run("yoshimoto-maxcb-oldest", *fan_in(), max_cb=2)
    assert sets_of(replayed, "m")[0] == ["m3", "m2"]
    assert replayed.delivered[0][-1] == ("m", 2 + DELTA + 1)


@pytest.mark.paper("S001:dec.1")
def test_what_newer_messages_stand_for_is_not_named() -> None:
    """[S001:dec.1] Of each sender its newest; after a send to a destination that message alone."""
    sends = (
        send("a", 1, 2, {0: 30, 1: 2}),
        send("b", 3, 2, {0: 31, 1: 4}),
        send("c", 5, 3, {0: 32, 1: 6}),
        send("d", 7, 1, {5: 8}),
        send("e", 9, 1, {0: 10}),
        send("f", 11, 1, {5: 12}),
    )
    _, replayed = run("yoshimoto-maxcb-oldest", *sends, max_cb=4)
    assert sets_of(replayed, "d")[0] == ["c", "b"]
    assert sets_of(replayed, "f")[0] == ["e"]
    _, replayed = run("yoshimoto-maxcb", *sends, max_cb=4)
    assert sets_of(replayed, "f")[0] == ["e", "c", "b", "a"]


@pytest.mark.paper("S001:dec.2")
def test_a_floor_stands_where_messages_were_cut() -> None:
    """[S001:dec.2] F is the newest that was cut; m waits for what it names and until F has died."""
    _, replayed = run("bounded-jang", *fan_in(), floor_cap=2)
    (pdu,) = replayed.messages["m"].pdus.values()
    assert pdu.floor == 1
    assert replayed.delivered[0][-1] == ("m", 1 + DELTA + 1)
    _, replayed = run("bounded-jang", *fan_in(), floor_cap=3)
    (pdu,) = replayed.messages["m"].pdus.values()
    assert pdu.floor == NO_FLOOR
    assert replayed.delivered[0][-1] == ("m", 9)


@pytest.mark.paper("S001:dec.2")
def test_floors_travel_and_a_send_forgets_its_own() -> None:
    """[S001:dec.2] F goes with every message to others, and with m to its own destination ends."""
    sends = (
        *list(fan_in())[:3],
        send("a", 6, 1, {5: 7}),
        send("b", 8, 1, {0: 9}),
        send("c", 10, 1, {5: 11}),
    )
    _, replayed = run("bounded-jang", *sends, floor_cap=2)
    (a,), (b,), (c,) = (replayed.messages[name].pdus.values() for name in "abc")
    floors = {
        name: {p for mask, _ in pdu.floors for p in members_of(mask)}
        for name, pdu in (("a", a), ("b", b), ("c", c))
    }
    assert 0 in floors["a"]
    assert b.floor == 1
    assert 0 not in floors["b"] | floors["c"]


@pytest.mark.paper("S001:sec.3")
@pytest.mark.parametrize("name", BOUNDED)
def test_more_room_means_less_waiting(name: str) -> None:
    """[S001:sec.3] The bound trades the size of tags for waiting; order is kept with any."""
    option = "floor_cap" if name == "bounded-jang" else "max_cb"
    waits = []
    for bound in (1, 2, 4):
        total = 0
        for seed in range(10):
            schedule = draw_schedule(Random(f"{seed}/room"), traffics=("multicast",))
            replayed = replay(schedule, ALGORITHMS[name], **{option: bound})
            assert "causal-order" not in broken(schedule, replayed)
            total += sum(
                event.clock_ns - event.arrived_ns
                for event in replayed.events
                if event.kind.name == "DELIVER" and event.source != event.process
            )
        waits.append(total)
    assert waits[0] > waits[1] > waits[2]
