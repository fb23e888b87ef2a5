"""The other causal algorithms under drawn schedules: what each of them promises, beside Jang's.

Every causal algorithm of the catalog takes part.  An exact one promises what Jang's does, another
one the deadline; one in between stands in PARTLY.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from dataclasses import replace as changed
from functools import cache
from itertools import islice
from random import Random
from typing import Any

import pytest
from broken_bounded_twins import KnowsNoDeliveries
from hypothesis import given, note, settings
from hypothesis import strategies as st
from judging import broken, what_happened
from msgspec.structs import replace
from small_scope import SMALL_SCOPE_SCHEDULES, small_scope

from orderwire.kernel import ms, us
from orderwire.ordering.catalog import ALGORITHMS, OrderingSettings
from orderwire.sim.delays import Exponential
from orderwire.sim.drawn_schedules import TRAFFICS, draw_schedule
from orderwire.sim.measure import Plan, measure
from orderwire.sim.network import NetworkSettings
from orderwire.sim.scenario import Workload
from orderwire.sim.schedule import Replayed, Schedule, replay

JANG = ALGORITHMS["jang-delta"]
NEEDLESS = "no-needless-waiting"
BROADCAST = ("broadcast",)


@dataclass(frozen=True, kw_only=True)
class Promise:
    """What an algorithm promises besides order, lateness and no duplicates."""

    exact: tuple[str, ...] = TRAFFICS
    """Traffic in which it delivers every message at the instant of `jang-delta`."""
    plain: tuple[str, ...] = TRAFFICS
    """Traffic for which it needs no lifetime."""


DEADLINE = Promise(exact=(), plain=())
"""In order and in time, but it may wait until the deadline."""

PARTLY: Mapping[str, Promise] = {
    "baldoni-broadcast": Promise(exact=BROADCAST, plain=BROADCAST),
}
"""Algorithms that promise more than the deadline, but less than the exact ones."""
FAMILY: Mapping[str, Promise] = {
    name: Promise() if entry.expectation == "exact" else PARTLY.get(name, DEADLINE)
    for name, entry in ALGORITHMS.items()
    if entry.expectation and name not in ("jang-delta", "jang-delta-reference")
}
MODES: dict[str, dict[str, Any]] = {
    "exact clocks": {},
    "skewed clocks": {"skew_max": 15},
    "coarse timers": {"granularities": (2, 5)},
    "duplicates": {"duplicates": True},
    "for ever": {"lifetime": False},
    "everything": {"skew_max": 15, "granularities": (1, 2, 5), "duplicates": True},
}
CI_RUNS = 25
NIGHTLY_RUNS = 1_700
"""Per mode: more than 10,000 in all."""


def without_sizes(replayed: Replayed) -> list[Any]:
    """All events, but not how large the control information was."""
    return [replace(event, control_bytes=-1) for event in what_happened(replayed)]


@cache
def drawn(seed: int, mode: str, traffics: tuple[str, ...]) -> tuple[Schedule, list[Any]]:
    """A schedule, and what Jang's algorithm makes of it."""
    schedule = draw_schedule(Random(f"{seed}/{mode}"), traffics=traffics, **MODES[mode])
    return schedule, without_sizes(replay(schedule, JANG))


def check(name: str, schedule: Schedule, reference: list[Any], *, exact: bool, where: str) -> None:
    """Replay a schedule; every promise is kept."""
    replayed = replay(schedule, ALGORITHMS[name])
    found = broken(schedule, replayed)
    if exact:
        assert without_sizes(replayed) == reference, where
    else:
        found.pop(NEEDLESS, None)
    assert found == {}, where


def run(name: str, seed: int, mode: str) -> None:
    promise = FAMILY[name]
    is_plain = MODES[mode].get("lifetime") is False
    for traffics in {TRAFFICS, promise.exact}:
        allowed = promise.plain if is_plain else TRAFFICS
        traffics = tuple(traffic for traffic in traffics if traffic in allowed)
        if traffics:
            schedule, reference = drawn(seed, mode, traffics)
            where = f"{name}, mode {mode!r}, seed {seed}, {traffics}: {schedule}"
            exact = set(traffics) <= set(promise.exact)
            check(name, schedule, reference, exact=exact, where=where)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", FAMILY)
def test_every_promise_is_kept(name: str, mode: str) -> None:
    for seed in range(CI_RUNS):
        run(name, seed, mode)


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", FAMILY)
def test_every_promise_is_kept_nightly(name: str, mode: str) -> None:
    for seed in range(CI_RUNS, NIGHTLY_RUNS):
        run(name, seed, mode)
        drawn.cache_clear()


@pytest.mark.parametrize("name", FAMILY)
@settings(max_examples=10)
@given(chance=st.randoms(use_true_random=False))
def test_promises_hold_for_drawn_chance(name: str, chance: Random) -> None:
    """The same with a chance that shrinks."""
    schedule = draw_schedule(
        chance, processes_max=4, messages_max=8, skew_max=5, granularities=(1, 3), duplicates=True
    )
    note(repr(schedule))
    reference = without_sizes(replay(schedule, JANG))
    exact = FAMILY[name].exact == TRAFFICS
    check(name, schedule, reference, exact=exact, where=name)


@pytest.mark.parametrize("mode", MODES)
def test_the_printed_log_and_the_one_by_sender_send_the_same(mode: str) -> None:
    for seed in range(CI_RUNS):
        schedule, _ = drawn(seed, mode, TRAFFICS)
        by_sender, flat = (
            {
                (message, process): dict(pdu.entries)
                for message, sent in replay(schedule, ALGORITHMS[name]).messages.items()
                for process, pdu in sent.pdus.items()
            }
            for name in ("kshemkalyani-singhal", "kshemkalyani-singhal-flat")
        )
        assert by_sender == flat, (mode, seed)


def test_without_known_deliveries_prakash_is_as_right_and_larger() -> None:
    """K changes no delivery.  It saves what is published: 17 to 37 % without it."""
    ours = ALGORITHMS["prakash-raynal-singhal"]
    twin = changed(ours, create=KnowsNoDeliveries)
    for mode in MODES:
        for seed in range(CI_RUNS):
            schedule, reference = drawn(seed, mode, TRAFFICS)
            assert without_sizes(replay(schedule, twin)) == reference, (mode, seed)
    for lifetime_ns in (ms(250), None):
        plan = Plan(
            settings=OrderingSettings(members=10, lifetime_ns=lifetime_ns, tick_ns=us(100)),
            workload=Workload(messages=400, gap_mean_ns=ms(100), fan_out=3),
            network=NetworkSettings(delay=Exponential(offset_ns=ms(5), mean_ns=ms(45))),
            warm_up=200,
        )
        sizes = [measure(plan, each, 1).printed_bytes for each in (twin, ours)]
        assert 1.1 < sizes[0] / sizes[1] < 1.45


def test_a_barrier_for_all_waits_needlessly_when_not_everything_is_for_all() -> None:
    """Safe under multicast, but it waits for messages addressed to others."""
    waits = 0
    for seed in range(CI_RUNS):
        schedule, _ = drawn(seed, "exact clocks", TRAFFICS)
        waits += NEEDLESS in broken(schedule, replay(schedule, ALGORITHMS["baldoni-broadcast"]))
    assert waits > CI_RUNS // 3


def check_scope(name: str, schedules: Iterable[Schedule]) -> int:
    count = 0
    exact = FAMILY[name].exact == TRAFFICS
    for schedule in schedules:
        reference = without_sizes(replay(schedule, JANG)) if exact else []
        check(name, schedule, reference, exact=exact, where=f"{name}: {schedule}")
        count += 1
    return count


@pytest.mark.parametrize("name", FAMILY)
def test_small_scope_sampled(name: str) -> None:
    assert check_scope(name, islice(small_scope(), 0, None, 397)) == 77


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("name", FAMILY)
def test_small_scope_exhausted(name: str) -> None:
    assert check_scope(name, small_scope()) == SMALL_SCOPE_SCHEDULES
