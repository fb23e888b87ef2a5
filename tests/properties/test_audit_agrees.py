"""The linear kernels agree with the quadratic definitions, row for row, on damaged random runs."""

from collections import Counter
from itertools import pairwise
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from random_runs import FAULTS, OWN_FAULTS, RUN, RandomRun, damage

from orderwire.trace.events import Event, EventKind, RunSettings
from orderwire.trace.schema import table_from_events
from orderwire.verify.audit import AuditOptions, audit
from orderwire.verify.causal import check_causal_order
from orderwire.verify.delta import check_liveness, needless_waits
from orderwire.verify.fifo import check_fifo_order
from orderwire.verify.history import History, rebuild
from orderwire.verify.kernels.columns import columns_of
from orderwire.verify.kernels.matching import match
from orderwire.verify.kernels.slices import Slice, audit_slice
from orderwire.verify.kernels.waiting import waits
from orderwire.verify.source import TableSource
from orderwire.verify.verdict import Violation


def rows(table: pa.Table, check: str) -> set[tuple[object, ...]]:
    names = ("kind", "process", "position", "source", "number")
    names += ("witness_source", "witness_number", "witness_position")
    return {
        tuple(row[name] for name in names) for row in table.to_pylist() if row["check"] == check
    }


def first_deliveries(history: History) -> dict[tuple[int, int, int], int]:
    """Position of the first delivery of each (source, number, process)."""
    first: dict[tuple[int, int, int], int] = {}
    for process, timeline in history.timelines.items():
        for event, message in timeline.deliveries:
            first.setdefault((message.source, message.number, process), event.position)
    return first


def ordered(violations: list[Violation], history: History) -> set[tuple[object, ...]]:
    """Violations of order among first deliveries, as the kernels write them."""
    first = first_deliveries(history)
    return {
        (
            "overtaken",
            violation.process,
            violation.position,
            violation.source,
            violation.number,
            violation.other_source,
            violation.other_number,
            violation.other_position,
        )
        for violation in violations
        if violation.other_source >= 0
        and first[violation.source, violation.number, violation.process] == violation.position
    }


DROPS = {"late": "late", "expired": "expired", "overtaken": "overtaken"}
DROPS |= {"future": "refused", "full": "refused"}
"""What is counted of a copy that was discarded, by the first reason."""


def copies_by_definition(
    events: list[Event], run: RunSettings
) -> tuple[set[tuple[object, ...]], Counter[str]]:
    """C1, copy by copy: (kind, process, source, number) of violations, and the accounting."""
    sends = {(e.source, e.number): e for e in events if e.kind is EventKind.SEND}
    ends = {e.process: e for e in events if e.kind is EventKind.END}
    wrong: set[tuple[object, ...]] = set()
    count: Counter[str] = Counter()
    delivered: Counter[tuple[int, int, int]] = Counter()
    dropped: dict[tuple[int, int, int], str] = {}
    reported: Counter[tuple[int, int]] = Counter()
    for event in events:
        key = (event.source, event.number, event.process)
        if event.kind is EventKind.DELIVER:
            delivered[key] += 1
            sent = sends.get(key[:2])
            if sent is None:
                wrong.add(("spurious", event.process, event.source, event.number))
                continue
            if delivered[key] > 1:
                wrong.add(("duplicate", event.process, event.source, event.number))
            if not int.from_bytes(sent.destinations, "little") >> event.process & 1:
                wrong.add(("non-destination", event.process, event.source, event.number))
            if sent.stamp_ns != event.stamp_ns:
                wrong.add(("altered", event.process, event.source, event.number))
        elif event.kind is EventKind.DISCARD:
            if event.reason in DROPS:
                dropped.setdefault(key, DROPS[event.reason])
        elif event.kind is EventKind.LOST:
            reported[event.source, event.process] += event.number
    for source, number in sorted(sends):
        sent = sends[source, number]
        for process in range(run.members):
            if not int.from_bytes(sent.destinations, "little") >> process & 1:
                continue
            key = (source, number, process)
            count["written"] += 1
            if delivered[key]:
                count["delivered"] += 1
            elif key in dropped:
                count[dropped[key]] += 1
            else:
                count["lost"] += 1
                if reported[source, process] > 0:
                    reported[source, process] -= 1
                    continue
                end = ends[process]
                over = (
                    sent.time_ns < end.time_ns
                    if run.lifetime_ns is None
                    else sent.stamp_ns + run.lifetime_ns < end.clock_ns
                )
                if over:
                    wrong.add(("missing", process, source, number))
    return wrong, count


@given(
    chance=st.randoms(use_true_random=False),
    messages=st.integers(1, 40),
    faults=st.lists(st.sampled_from(OWN_FAULTS), max_size=3),
    own=st.booleans(),
)
@settings(max_examples=120)
def test_kernels_equal_the_definitions(
    chance: Random, messages: int, faults: list[str], own: bool
) -> None:
    run = RandomRun(chance, own_lifetimes=own)
    events = run.run(messages)
    for fault in faults:
        events = damage(events, fault, chance)
    note(str(run.settings))
    table = table_from_events(events)
    report, found = audit(TableSource(table))
    assert rows(found, "W1") <= {row for row in rows(found, "W1") if row[0] == "early"}

    history = rebuild(events)
    assert rows(found, "O1") == ordered(check_causal_order(history).violations, history)
    assert rows(found, "O2") == ordered(check_fifo_order(history).violations, history)

    wrong, count = copies_by_definition(events, run.settings)
    assert {(r[0], r[1], r[3], r[4]) for r in rows(found, "C1")} == wrong
    accounting = report.runs[0].accounting
    assert {name: accounting[name] for name in count} == dict(count)
    parts = ("delivered", *DROPS.values(), "lost")
    assert accounting["written"] == sum(accounting[name] for name in set(parts))

    timely = {
        (violation.process, violation.position)
        for violation in check_liveness(history).violations
        if "duplicate" not in violation.why
    }
    unsent = {(p, e.position) for p, t in history.timelines.items() for e in t.unsent}
    judged = {(r[1], r[2]) for r in rows(found, "C2") if r[0] != "undelivered"}
    if "forge" not in faults:
        assert judged - unsent == timely


@given(
    chance=st.randoms(use_true_random=False),
    messages=st.integers(1, 40),
    faults=st.lists(st.sampled_from(OWN_FAULTS), max_size=2),
    slice_events=st.integers(1, 60),
    own=st.booleans(),
)
@settings(max_examples=160)
def test_slices_find_what_the_whole_finds(
    chance: Random, messages: int, faults: list[str], slice_events: int, own: bool
) -> None:
    run = RandomRun(chance, own_lifetimes=own)
    events = run.run(messages)
    for fault in faults:
        events = damage(events, fault, chance)
    source = TableSource(table_from_events(events))
    whole_report, whole = audit(source, AuditOptions(slice_events=10**9))
    sliced_report, sliced = audit(source, AuditOptions(slice_events=slice_events))
    assert sliced.to_pylist() == whole.to_pylist()
    assert sliced_report == whole_report


@given(chance=st.randoms(use_true_random=False), cuts=st.lists(st.integers(1, 150), max_size=6))
@settings(max_examples=40)
def test_any_cuts_find_the_same_order_and_too_small_a_window_invents_nothing(
    chance: Random, cuts: list[int]
) -> None:
    run = RandomRun(chance)
    table = table_from_events(run.run(40))
    whole = audit_slice(table, Slice(run_id=RUN), run.settings).violations
    edges = [-(2**62), *sorted(set(cuts)), 2**62]
    full, partial = [], []
    for low, high in pairwise(edges):
        for window, into in ((run.latency_max, full), (run.latency_max // 8, partial)):
            piece = Slice(
                run_id=RUN,
                low=low,
                high=high,
                window_ns=window,
                epsilon_ns=run.settings.epsilon_ns,
            )
            into.append(audit_slice(table, piece, run.settings).violations)
    for check in ("O1", "O2", "C2"):
        assert rows(pa.concat_tables(full), check) == rows(whole, check)
    assert rows(pa.concat_tables(partial), "O1") <= rows(whole, "O1")


@given(chance=st.randoms(use_true_random=False), messages=st.integers(1, 30), own=st.booleans())
@settings(max_examples=120)
def test_waiting_equals_its_definition(chance: Random, messages: int, own: bool) -> None:
    run = RandomRun(chance, own_lifetimes=own)
    events = run.run(messages)
    columns = columns_of(table_from_events(events))
    measured = waits(columns, match(columns, run.settings.members), run.settings)
    found = {
        (int(columns.process[row]), int(columns.position[row])): max(0, int(avoidable))
        for row, avoidable in zip(measured.rows, measured.avoidable, strict=True)
    }
    assert found == needless_waits(rebuild(events))


@pytest.mark.parametrize("order", ["shuffled", "twice"])
def test_rows_may_come_in_any_order_and_more_than_once(order: str) -> None:
    chance = Random(7)
    run = RandomRun(chance)
    table = table_from_events(run.run(60))
    _, expected = audit(TableSource(table))
    at = list(range(table.num_rows))
    if order == "twice":
        at += at[::3]
    chance.shuffle(at)
    _, found = audit(TableSource(table.take(at)))
    assert found.to_pylist() == expected.to_pylist()


@pytest.mark.parametrize("seed", [122, 228, 346, 536])
def test_late_discards_at_a_slice_edge_belong_to_one_slice(seed: int) -> None:
    """With ε > 0 a slice sees sends that the slice before has to settle."""
    chance = Random(seed)
    run = RandomRun(chance)
    events = run.run(chance.randint(1, 40))
    for _ in range(chance.randint(0, 3)):
        events = damage(events, chance.choice(FAULTS), chance)
    source = TableSource(table_from_events(events))
    expected, _ = audit(source)
    for slice_events in range(10, 41, 5):
        assert audit(source, AuditOptions(slice_events=slice_events))[0] == expected
