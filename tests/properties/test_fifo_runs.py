"""Sender order under drawn schedules."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from judging import broken

from orderwire.ordering.catalog import ALGORITHMS
from orderwire.sim.drawn_schedules import draw_schedule
from orderwire.sim.schedule import replay

MODES: dict[str, dict[str, Any]] = {
    "exact clocks": {},
    "skewed clocks": {"skew_max": 15},
    "coarse timers": {"granularities": (2, 5)},
    "duplicates": {"duplicates": True},
}


@pytest.mark.parametrize("mode", MODES)
def test_order_kept_in_time_delivered_nothing_twice(mode: str) -> None:
    """Without waiting for ever: in time means delivered by the deadline, whatever is lost."""
    for seed in range(40):
        schedule = draw_schedule(Random(f"fifo/{seed}/{mode}"), **MODES[mode])
        found = broken(schedule, replay(schedule, ALGORITHMS["fifo"]))
        kept = {"fifo-order", "liveness", "no-duplicates"} & set(found)
        assert not kept, (seed, found)


def test_without_lifetime_a_lost_copy_only_delays() -> None:
    """Every copy that came is delivered or given up as late, after the patience at most."""
    given_up = 0
    for seed in range(40):
        drawn = draw_schedule(Random(seed), duplicates=True)
        schedule = replace(drawn, lifetime=None)
        replayed = replay(schedule, ALGORITHMS["fifo"])
        found = broken(schedule, replayed)
        assert not {"fifo-order", "no-duplicates"} & set(found), (seed, found)
        for process in range(schedule.processes):
            come = {
                send.id
                for send in schedule.sends
                if send.arrive.get(process) is not None or process in send.again
            }
            own = {send.id for send in schedule.sends if process == send.sender in send.to}
            ended = {name for name, _ in replayed.delivered[process]}
            late = {name for name, _ in replayed.discarded[process]}
            assert ended | late == come | own, seed
        given_up += max(event.time_ns for event in replayed.events) > 5_000_000_000
    assert given_up > 5
