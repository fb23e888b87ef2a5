"""Full, bounded, two-hop and empty tags under drawn schedules: every promise kept, at its price.

The price is waiting for nothing, in ticks a delivery beyond what any algorithm must wait that
cannot know the fate of messages in flight.
"""

import json
from functools import cache
from itertools import islice, pairwise
from random import Random
from typing import Any

import pytest
from broken_bounded_twins import BOUNDED_TWINS, TwoHopsHoldTooShort
from broken_twins import LET_THROUGH_BY_STAMP, Twin
from hypothesis import given, note, settings
from hypothesis import strategies as st
from judging import broken
from small_scope import small_scope

from orderwire.kernel import Indicate, Instant, ProcessId, Send, destinations, ms, probes, us
from orderwire.ordering.adelstein_singhal import HOPS
from orderwire.ordering.catalog import ALGORITHMS, OrderingSettings
from orderwire.ordering.pdu import Discarded, Multicast
from orderwire.sim.drawn_schedules import draw_schedule
from orderwire.sim.schedule import Replayed, Schedule, ScheduledSend, replay
from orderwire.trace.events import EventKind
from orderwire.trace.schema import table_from_events
from orderwire.verify.audit import AuditOptions, audit
from orderwire.verify.delta import NO_NEEDLESS_WAITING, needless_waits
from orderwire.verify.history import rebuild
from orderwire.verify.source import TableSource

OVERTAKEN = "causal: overtaken by a later message of its sender"
EXACT = "yavatkar-mcp"
OWN = "rodrigues-deadline"
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    EXACT: (EXACT, {}),
    "paper 1": ("yoshimoto-maxcb", {"max_cb": 1}),
    "paper 2": ("yoshimoto-maxcb", {"max_cb": 2}),
    "paper 3": ("yoshimoto-maxcb", {"max_cb": 3}),
    "oldest 1": ("yoshimoto-maxcb-oldest", {"max_cb": 1}),
    "oldest 2": ("yoshimoto-maxcb-oldest", {"max_cb": 2}),
    "two hops": ("adelstein-singhal", {}),
    "fixed": ("fixed-delay", {}),
    OWN: (OWN, {}),
}
MODES: dict[str, dict[str, Any]] = {
    "exact clocks": {},
    "skewed clocks": {"skew_max": 15},
    "coarse timers": {"granularities": (2, 5)},
    "duplicates": {"duplicates": True},
    "everything": {"skew_max": 15, "granularities": (1, 2, 5), "duplicates": True},
}
CI_RUNS = 16
NIGHTLY_RUNS = 10_000
WAITING_RUNS = 160


def run(case: str, seed: int | Random, how: dict[str, Any]) -> tuple[Schedule, Replayed]:
    """Replay one schedule; it keeps every promise of its algorithm."""
    name, options = CASES[case]
    chance = seed if isinstance(seed, Random) else Random(f"{seed}/bounded")
    schedule = draw_schedule(chance, **how)
    overtaken = probes.hits[OVERTAKEN]
    replayed = replay(schedule, ALGORITHMS[name], **options)
    found = broken(schedule, replayed)
    if case not in (EXACT, OWN):
        found.pop(NO_NEEDLESS_WAITING, None)
    where = f"{case}, seed {seed}, {how}: {schedule}"
    assert found == {}, where
    assert probes.hits[OVERTAKEN] == overtaken, where
    return schedule, replayed


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", CASES)
def test_every_promise_is_kept(case: str, mode: str) -> None:
    for seed in range(CI_RUNS):
        run(case, seed, MODES[mode])


@pytest.mark.parametrize("seeds", [range(CI_RUNS)])
def test_full_tags_without_lifetimes_are_plain_causal_order(seeds: range) -> None:
    for seed in seeds:
        run(EXACT, seed, {"lifetime": False})


@pytest.mark.slow
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("case", CASES)
def test_nightly_sweep(case: str) -> None:
    modes = list(MODES.values())
    if case == EXACT:
        modes.append({"lifetime": False})
    for seed in range(CI_RUNS, NIGHTLY_RUNS):
        run(case, seed, modes[seed % len(modes)])


@settings(max_examples=40)
@given(chance=st.randoms(use_true_random=False), case=st.sampled_from(sorted(CASES)))
def test_promises_hold_for_drawn_chance(chance: Random, case: str) -> None:
    """The same with a chance that shrinks."""
    how: dict[str, Any] = {
        "processes_max": 4,
        "messages_max": 8,
        "skew_max": 5,
        "granularities": (1, 3),
    }
    schedule, _ = run(case, chance, how)
    note(repr(schedule))


# Waiting for nothing


@cache
def needless_ticks(case: str) -> float:
    """Mean per delivery, over drawn schedules."""
    total = count = 0
    for seed in range(WAITING_RUNS):
        _, replayed = run(case, seed, {})
        waits = needless_waits(rebuild(replayed.events))
        total += sum(waits.values())
        count += len(waits)
    return total / count


PUBLISHED = {
    "paper 1": 4.05,
    "paper 2": 2.74,
    "paper 3": 1.90,
    "oldest 2": 1.16,
    "two hops": 3.40,
    "fixed": 11.5,
}
"""Measured on 10,000 runs of the prototype, with schedules of its own.

Ours give 5.4, 3.6, 2.5, 1.3, 3.7 and 13.9 over 1,200 seeds; the mean of 160 lies between half and
twice the published one, because runs differ in Δ by a factor of 30.
"""


def test_full_tags_wait_for_nothing_needlessly() -> None:
    assert needless_ticks(EXACT) == 0


@pytest.mark.parametrize("case", PUBLISHED)
def test_needless_waiting_is_of_the_published_size(case: str) -> None:
    assert 0.5 < needless_ticks(case) / PUBLISHED[case] < 2


def test_needless_waiting_falls_with_what_tags_say() -> None:
    order = ("fixed", "paper 1", "paper 2", "paper 3", "oldest 2", EXACT)
    ticks = [needless_ticks(case) for case in order]
    assert all(more > 1.2 * less for more, less in pairwise(ticks)), ticks
    assert needless_ticks("fixed") > 2 * needless_ticks("two hops") > 2 * needless_ticks("oldest 2")


def test_with_one_message_named_both_rules_are_one() -> None:
    """The oldest of one is the newest."""
    assert needless_ticks("oldest 1") == pytest.approx(needless_ticks("paper 1"), rel=0.02)


@pytest.mark.parametrize("case", [case for case in CASES if case != "two hops"])
def test_small_scope_sampled(case: str) -> None:
    check_scope(case, 1_009)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", CASES)
def test_small_scope_exhausted(case: str) -> None:
    check_scope(case, 1)


def check_scope(case: str, step: int) -> None:
    name, options = CASES[case]
    for schedule in islice(small_scope(), 0, None, step):
        found = broken(schedule, replay(schedule, ALGORITHMS[name], **options))
        if case != EXACT:
            found.pop(NO_NEEDLESS_WAITING, None)
        assert found == {}, (case, schedule)


# Lifetimes of one's own


def outcomes(schedule: Schedule, replayed: Replayed) -> tuple[int, int]:
    """Judge every arrival by the message's own lifetime; return (in time, overtaken)."""
    assert schedule.lifetime is not None
    lifetimes = {send.id: send.lifetime or schedule.lifetime for send in schedule.sends}
    slack = schedule.timer_granularity - 1
    arrivals: dict[tuple[int, str], list[int]] = {}
    delivered: dict[tuple[int, str], int] = {}
    discarded: dict[tuple[int, str], list[tuple[int, str]]] = {}
    for event in replayed.events:
        if event.kind is EventKind.SEND or event.source == event.process or event.source < 0:
            continue
        key = (event.process, replayed.ids[event.source, event.number])
        if event.kind is EventKind.RECEIVE:
            arrivals.setdefault(key, []).append(event.clock_ns)
        elif event.kind is EventKind.DELIVER:
            delivered[key] = event.clock_ns
        elif event.kind is EventKind.DISCARD:
            discarded.setdefault(key, []).append((event.arrived_ns, event.reason))
    in_time = overtaken = 0
    for key, clocks in arrivals.items():
        message = replayed.messages[key[1]]
        deadline = message.stamp + lifetimes[key[1]]
        reasons = {reason for _, reason in discarded.get(key, [])}
        if min(clocks) > deadline:
            assert key not in delivered, key
            assert reasons <= {"expired", "late"}, key
            continue
        in_time += 1
        if key in delivered:
            assert delivered[key] <= deadline + slack, key
            assert reasons <= {"duplicate", "expired", "late"}, key
        else:
            overtaken += 1
            assert "overtaken" in reasons, key
    return in_time, overtaken


def wrong_or_premature(schedule: Schedule, replayed: Replayed) -> list[dict[str, Any]]:
    """What the audit finds; a schedule's network reports no losses."""
    slack = schedule.timer_granularity - 1
    options = AuditOptions(waiting=True, waiting_slack_ns=slack)
    _, found = audit(TableSource(table_from_events(replayed.events)), options)
    return [
        row
        for row in found.to_pylist()
        if (row["check"], row["kind"]) != ("C1", "missing")
        and not (row["kind"] == "overdue" and json.loads(row["detail"])["by_ns"] <= slack)
    ]


@pytest.mark.parametrize("mode", MODES)
def test_own_deadlines_are_kept_or_a_later_message_could_not_wait(mode: str) -> None:
    in_time = overtaken = 0
    for seed in range(4 * CI_RUNS):
        schedule, replayed = run(OWN, seed, MODES[mode] | {"own_lifetimes": True})
        found = outcomes(schedule, replayed)
        in_time += found[0]
        overtaken += found[1]
        assert not wrong_or_premature(schedule, replayed), f"seed {seed}"
    assert 0.01 < overtaken / in_time < 0.1


@pytest.mark.slow
@pytest.mark.timeout(1_200)
def test_own_deadlines_nightly() -> None:
    modes = list(MODES.values())
    for seed in range(4 * CI_RUNS, NIGHTLY_RUNS):
        outcomes(*run(OWN, seed, modes[seed % len(modes)] | {"own_lifetimes": True}))


def test_one_lifetime_for_all_overtakes_nothing() -> None:
    for seed in range(CI_RUNS):
        schedule, replayed = run(OWN, seed, {})
        assert outcomes(schedule, replayed)[1] == 0
        assert replayed.delivered == run(EXACT, seed, {})[1].delivered


# Traps


def test_a_third_of_the_lifetime_is_the_shortest_hold() -> None:
    """With one tick less, three messages in a row overtake a direct one that takes all of Δ."""
    delta = 30

    def chain(hold: int) -> Schedule:
        return Schedule(
            processes=4,
            lifetime=delta,
            sends=(
                ScheduledSend(id="m1", at=0, sender=0, to=(3,), arrive={3: delta}),
                ScheduledSend(id="m2", at=0, sender=0, to=(1,), arrive={1: 1 + hold}),
                ScheduledSend(id="m3", at=1 + hold, sender=1, to=(2,), arrive={2: 1 + 2 * hold}),
                ScheduledSend(
                    id="m4", at=1 + 2 * hold, sender=2, to=(3,), arrive={3: 1 + 3 * hold}
                ),
            ),
        )

    schedule = chain(delta // HOPS)
    found = broken(schedule, replay(schedule, ALGORITHMS["adelstein-singhal"]))
    assert not {"causal-order", "liveness"} & set(found)
    twin = Twin("short", TwoHopsHoldTooShort, "causal-order", {}).algorithm
    schedule = chain(delta // HOPS - 1)
    assert "causal-order" in broken(schedule, replay(schedule, twin))


def test_rounding_up_is_only_slow() -> None:
    """A coarser, newer stamp is waited for in vain, but never past the own deadline."""
    twin = next(twin for twin in BOUNDED_TWINS if twin.name == "full-rounds-up").algorithm
    for seed in range(40):
        schedule = draw_schedule(Random(seed))
        assert set(broken(schedule, replay(schedule, twin))) <= {NO_NEEDLESS_WAITING}, seed


def test_dropping_by_stamp_breaks_even_the_definition_that_it_reads_off() -> None:
    """[S001:def.2] m3 does not name m1, comes early, and then stands for it in the watermark."""
    schedule = LET_THROUGH_BY_STAMP
    twin = next(twin for twin in BOUNDED_TWINS if twin.name == "maxcb-drop-by-stamp").algorithm
    assert "delta-causal-order" in broken(schedule, replay(schedule, twin, max_cb=3))
    ours = replay(schedule, ALGORITHMS["yoshimoto-maxcb-oldest"], max_cb=3)
    assert set(broken(schedule, ours)) <= {NO_NEEDLESS_WAITING}


def test_a_tick_as_long_as_a_burst_lets_everything_live_too_long() -> None:
    """Fifty messages in 5 ms: with a tick of 1 ms the last is stamped 45 ms ahead of its time."""
    ahead = {}
    for tick in (ms(1), us(1)):
        group = OrderingSettings(members=2, lifetime_ns=ms(100), tick_ns=tick)
        for name in ("jang-delta", "fixed-delay"):
            core = ALGORITHMS[name].create(ProcessId(0), group)
            for index in range(50):
                at = Instant(ms(100) + index * us(100))
                effects = core.submit(Multicast(b"", destinations([1])), at)
            assert isinstance(effects[0], Send)
            late = Instant(at + group.lifetime_ns + ms(40))
            reader = ALGORITHMS[name].create(ProcessId(1), group)
            told = reader.receive(ProcessId(0), effects[0].pdu, late)
            ahead[name, tick] = not any(
                isinstance(effect, Indicate) and isinstance(effect.indication, Discarded)
                for effect in told
            )
    assert ahead == {key: key[1] == ms(1) for key in ahead}


FIRST_SEED = {"triangle-h0": 100}
"""Where the search for a broken run starts, when it would be long."""
VECTOR_ONLY = {"maxcb-cover-nofloor"}
"""Found by no drawn schedule in ten thousand: tests/vectors shows it."""


@pytest.mark.parametrize(
    "twin",
    [twin for twin in BOUNDED_TWINS if twin.breaks and twin.name not in VECTOR_ONLY],
    ids=lambda twin: twin.name,
)
def test_every_twin_is_rejected(twin: Twin) -> None:
    first = FIRST_SEED.get(twin.name, 0)
    for seed in range(first, first + 40):
        schedule = draw_schedule(Random(seed), **twin.drawn)
        if twin.breaks in broken(schedule, replay(schedule, twin.algorithm, max_cb=3)):
            return
    raise AssertionError(f"{twin.name} passed 40 runs")
