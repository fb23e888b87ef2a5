"""Jang's algorithm under drawn schedules: every promise kept, fast form = literal form."""

from collections.abc import Iterable
from itertools import islice
from random import Random
from typing import Any

import pytest
from broken_twins import (
    LET_THROUGH_BY_STAMP,
    ORDER,
    TWINS,
    DropsByStamp,
    DropsByStampExactly,
    Twin,
)
from hypothesis import given, note, settings
from hypothesis import strategies as st
from judging import broken, history_of, tags, what_happened
from small_scope import (
    LONG_SCOPE_SCHEDULES,
    SMALL_SCOPE_SCHEDULES,
    WIDE_SCOPE_SCHEDULES,
    long_scope,
    small_scope,
    wide_scope,
)

from orderwire.kernel import probes
from orderwire.ordering.catalog import ALGORITHMS, Algorithm
from orderwire.sim.drawn_schedules import draw_schedule
from orderwire.sim.schedule import Schedule, replay
from orderwire.trace.events import EventKind
from orderwire.verify.causal import (
    check_causal_order,
    needless_waits_by_vector_clock,
    overtaken_by_vector_clock,
)
from orderwire.verify.delta import needless_waits
from orderwire.verify.history import History

FAST = ALGORITHMS["jang-delta"]
LITERAL = ALGORITHMS["jang-delta-reference"]
OVERTAKEN = "causal: overtaken by a later message of its sender"
MODES: dict[str, dict[str, Any]] = {
    "exact clocks": {},
    "skewed clocks": {"skew_max": 15},
    "coarse timers": {"granularities": (2, 5)},
    "duplicates": {"duplicates": True},
    "FIFO channels": {"fifo_channels": True},
    "for ever": {"lifetime": False},
    "everything": {"skew_max": 15, "granularities": (1, 2, 5), "duplicates": True},
}
CI_RUNS = 40
NIGHTLY_RUNS = 3_000


def run_both(seed: int | Random, mode: str, *, send_empty_entries: bool) -> None:
    """Replay one schedule through both forms; they agree in everything and keep every promise."""
    chance = seed if isinstance(seed, Random) else Random(f"{seed}/{mode}")
    schedule = draw_schedule(chance, **MODES[mode])
    overtaken = probes.hits[OVERTAKEN]
    fast = replay(schedule, FAST, send_empty_entries=send_empty_entries)
    literal = replay(schedule, LITERAL, send_empty_entries=send_empty_entries)
    where = f"mode {mode!r}, seed {seed}: {schedule}"
    assert tags(fast) == tags(literal), where
    assert what_happened(fast) == what_happened(literal), where
    assert fast.wakes == literal.wakes, where
    assert broken(schedule, fast) == {}, where
    assert probes.hits[OVERTAKEN] == overtaken, where


@pytest.mark.parametrize("send_empty_entries", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_fast_and_literal_form_agree_and_keep_every_promise(
    mode: str, send_empty_entries: bool
) -> None:
    for seed in range(CI_RUNS):
        run_both(seed, mode, send_empty_entries=send_empty_entries)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_nightly_sweep(mode: str) -> None:
    for seed in range(CI_RUNS, NIGHTLY_RUNS):
        run_both(seed, mode, send_empty_entries=bool(seed & 1))


@settings(max_examples=60)
@given(chance=st.randoms(use_true_random=False), empties=st.booleans())
def test_promises_hold_for_drawn_chance(chance: Random, empties: bool) -> None:
    """The same with a chance that shrinks."""
    schedule = draw_schedule(
        chance, processes_max=4, messages_max=8, skew_max=5, granularities=(1, 3), duplicates=True
    )
    note(repr(schedule))
    fast = replay(schedule, FAST, send_empty_entries=empties)
    assert tags(fast) == tags(replay(schedule, LITERAL, send_empty_entries=empties))
    assert broken(schedule, fast) == {}


FIRST_SEED = {
    "jang-drop-by-stamp-exactly": 6,
    "jang-eps0": 272,
    "jang-merges-discarded": 650,
    "jang-wait-nonstrict": 48,
}
"""Where the search for a broken run starts, when it would be long."""


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.name)
def test_every_twin_gets_its_verdict(twin: Twin) -> None:
    """A broken twin is rejected by the check it must break; a merely wasteful one by none."""
    first = FIRST_SEED.get(twin.name, 0)
    for seed in range(first, first + 40):
        schedule = draw_schedule(Random(seed), **twin.drawn)
        found = broken(schedule, replay(schedule, twin.algorithm))
        if twin.breaks in found:
            return
        assert twin.breaks or not found, (seed, found)
    assert not twin.breaks, f"{twin.name} passed 40 runs"


def written_bytes(twin: Algorithm, drawn: dict[str, Any]) -> int:
    """Control information of some runs together, with empty entries."""
    schedules = [draw_schedule(Random(seed), **drawn) for seed in range(40)]
    runs = [replay(schedule, twin, send_empty_entries=True) for schedule in schedules]
    sent = [e for run in runs for e in run.events if e.kind is EventKind.SEND]
    return sum(event.control_bytes for event in sent)


@pytest.mark.parametrize("twin", [t for t in TWINS if not t.breaks], ids=lambda twin: twin.name)
def test_every_wasteful_twin_is_found_by_its_size(twin: Twin) -> None:
    """Nothing it does is late or out of order, only longer; or, without empties, shorter."""
    ours, its = written_bytes(LITERAL, twin.drawn), written_bytes(twin.algorithm, twin.drawn)
    if twin.name == "jang-covers-nothing":
        assert its == ours
    elif twin.name == "jang-keeps-none-empty":
        # Fewer entries, but what they would have eliminated stays on the wire.
        schedules = [draw_schedule(Random(seed), **twin.drawn) for seed in range(40)]
        entries = [
            sum(
                bool(mask)
                for sent in replay(schedule, algorithm, send_empty_entries=True).messages.values()
                for pdu in sent.pdus.values()
                for group in pdu.entries.values()
                for _, mask in group
            )
            for algorithm in (twin.algorithm, LITERAL)
            for schedule in schedules
        ]
        assert sum(entries[:40]) > 1.005 * sum(entries[40:])
    else:
        assert its > 1.005 * ours


def test_dropping_by_stamp_breaks_even_s001s_definition_with_a_watermark() -> None:
    """m3 comes early and stands for m1 in the watermark: m2 no longer waits for m1."""
    schedule = LET_THROUGH_BY_STAMP
    watermark = replay(schedule, Twin("watermark", DropsByStamp, ORDER, {}).algorithm)
    assert [name for name, _ in watermark.delivered[0]] == ["m3", "m2", "m1"]
    assert {"causal-order", "delta-causal-order"} <= set(broken(schedule, watermark))
    exact = replay(schedule, Twin("exact", DropsByStampExactly, ORDER, {}).algorithm)
    assert [name for name, _ in exact.delivered[0]] == ["m3", "m1", "m2"]
    assert set(broken(schedule, exact)) == {"causal-order", "fifo-order"}
    assert broken(schedule, replay(schedule, FAST)) == {}


def test_dropping_by_stamp_keeps_s001s_definition_without_a_watermark() -> None:
    twin = Twin("exact", DropsByStampExactly, ORDER, {}).algorithm
    for seed in range(4 * CI_RUNS):
        schedule = draw_schedule(Random(seed), processes_max=5, messages_max=16, skew_max=15)
        assert "delta-causal-order" not in broken(schedule, replay(schedule, twin)), seed


def histories() -> list[tuple[str, History]]:
    """Runs of the real algorithm, of every twin and of the control group."""
    skewed = {"skew_max": 10, "granularities": (1, 1, 3)}
    drawn = [(ALGORITHMS[name], skewed) for name in ("jang-delta", "unordered", "fifo")]
    drawn += [(twin.algorithm, twin.drawn) for twin in TWINS if twin.breaks]
    return [
        (f"{entry.name} {seed}", history_of(draw_schedule(Random(seed), **how), entry))
        for entry, how in drawn
        for seed in range(20)
    ]


def test_vector_clocks_say_the_same_as_exact_pasts() -> None:
    """Order and needless waiting: both forms agree, on good and on broken runs."""
    violating = waiting = 0
    for name, history in histories():
        exact = {
            (violation.process, violation.position)
            for violation in check_causal_order(history).violations
        }
        assert overtaken_by_vector_clock(history) == exact, name
        waits = needless_waits(history)
        assert needless_waits_by_vector_clock(history) == waits, name
        violating += bool(exact)
        waiting += any(waits.values())
    assert violating > 30
    assert waiting > 10


def test_the_control_group_is_rejected() -> None:
    """Unordered breaks sender order and causal order; FIFO keeps the one and breaks the other."""
    rejected: dict[str, set[str]] = {"unordered": set(), "fifo": set()}
    for seed in range(30):
        schedule = draw_schedule(Random(seed))
        for name, checks in rejected.items():
            checks.update(broken(schedule, replay(schedule, ALGORITHMS[name])))
    assert {"causal-order", "delta-causal-order", "fifo-order"} <= rejected["unordered"]
    assert "causal-order" in rejected["fifo"]
    assert not {"fifo-order", "liveness", "no-duplicates"} & rejected["fifo"]
    assert not {"liveness", "no-duplicates"} & rejected["unordered"]


def check_scope(schedules: Iterable[Schedule]) -> int:
    count = 0
    for schedule in schedules:
        fast = replay(schedule, FAST)
        assert tags(fast) == tags(replay(schedule, LITERAL)), schedule
        assert broken(schedule, fast) == {}, schedule
        count += 1
    return count


SCOPES = {
    "small": (small_scope, SMALL_SCOPE_SCHEDULES),
    "wide": (wide_scope, WIDE_SCOPE_SCHEDULES),
    "long": (long_scope, LONG_SCOPE_SCHEDULES),
}


@pytest.mark.parametrize("scope", SCOPES)
def test_small_scope_sampled(scope: str) -> None:
    schedules, count = SCOPES[scope]
    step = count // 300
    assert check_scope(islice(schedules(), 0, None, step)) == -(-count // step)


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("scope", SCOPES)
def test_small_scope_exhausted(scope: str) -> None:
    schedules, count = SCOPES[scope]
    assert check_scope(schedules()) == count
