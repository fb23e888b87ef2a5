"""The heap: total order of events, phases, and what may not be scheduled."""

import gc

import pytest

from orderwire.sim.world import ARRIVAL, COMMAND, EARLY_COMMAND, FAULT, TIMER, World


def test_one_instant_runs_by_priority_then_by_schedule() -> None:
    world, seen = World(), []
    for name, priority in (
        ("timer", TIMER),
        ("command", COMMAND),
        ("second arrival", ARRIVAL),
        ("early", EARLY_COMMAND),
        ("third arrival", ARRIVAL),
        ("fault", FAULT),
    ):
        world.at(5, priority, lambda first, _: seen.append(first), name)
    world.run(5)
    assert seen == ["fault", "early", "second arrival", "third arrival", "command", "timer"]


def test_run_ends_at_its_end_and_not_before() -> None:
    world, seen = World(), []
    for time_ns in (9, 10, 11):
        world.at(time_ns, COMMAND, lambda *_: seen.append(world.now_ns))
    world.run(10)
    assert seen == [9, 10]
    assert world.now_ns == 10
    assert world.next_ns() == 11
    assert world.events == 2
    world.run(20)
    assert (seen, world.now_ns, world.events, world.next_ns()) == ([9, 10, 11], 20, 3, None)


def test_what_an_event_schedules_at_its_own_instant_still_happens() -> None:
    world, seen = World(), []

    def first(*_: object) -> None:
        world.at(world.now_ns, TIMER, lambda *_: seen.append("timer"))
        world.at(world.now_ns, ARRIVAL, lambda *_: seen.append("arrival"))

    world.at(3, COMMAND, first)
    world.run(3)
    assert seen == ["arrival", "timer"]
    assert world.events == 3


def test_the_past_cannot_be_scheduled() -> None:
    world = World()
    world.run(10)
    with pytest.raises(AssertionError, match="9 ns has passed, it is 10 ns"):
        world.at(9, COMMAND, print)


def test_an_error_leaves_the_collector_as_it_was() -> None:
    world = World()
    before = gc.get_threshold()

    def fail(*_: object) -> None:
        raise RuntimeError("a core failed")

    world.at(1, COMMAND, fail)
    with pytest.raises(RuntimeError, match="a core failed"):
        world.run(2)
    assert gc.get_threshold() == before
