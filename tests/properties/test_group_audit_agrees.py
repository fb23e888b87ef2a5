"""The linear checks of total order agree with the quadratic definitions, row for row."""

import json
from collections import Counter
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from drawn_groups import FAULTS, RUN, DrawnGroup, broken
from hypothesis import given, note, settings
from hypothesis import strategies as st

from orderwire.trace.events import Event, EventKind
from orderwire.trace.schema import table_from_events
from orderwire.verify.audit import audit
from orderwire.verify.group_views import Group
from orderwire.verify.report import TOTAL_ORDER_CHECKS, Report
from orderwire.verify.selective_total import Logs
from orderwire.verify.source import TableSource
from orderwire.verify.verdict import Verdict

NAMES = ("check", "kind", "process", "position", "source", "number")
NAMES += ("witness_source", "witness_number", "witness_position")


def audited(events: list[Event]) -> tuple[Report, list[dict[str, Any]]]:
    report, found = audit(TableSource(table_from_events(events)))
    return report, found.to_pylist()


def by_definition(group: Group) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for check in (group.order, group.atomicity, group.views, group.channel):
        rows += check()
    return sorted(rows)


def is_cycle(group: Group, steps: list[list[int]]) -> bool:
    """Whether each step's message is before the next one's in the log of the step's process."""
    for at, (source, number, process) in enumerate(steps):
        names = [(event.source, event.number) for event in group.logs[process]]
        following = steps[(at + 1) % len(steps)]
        if names.index((source, number)) >= names.index((following[0], following[1])):
            return False
    return True


def assert_agreement(events: list[Event]) -> list[dict[str, Any]]:
    report, rows = audited(events)
    group = Group(events)
    mine = [row for row in rows if row["check"] in TOTAL_ORDER_CHECKS]
    found = sorted(tuple(row[name] for name in NAMES) for row in mine if row["check"] != "T2")
    assert found == by_definition(group)
    logs = Logs(
        sent={},
        received={
            process: [(event.source, event.number) for event in log]
            for process, log in group.logs.items()
        },
        destinations={},
    )
    knots = group.knots()
    cycles = [row for row in mine if row["check"] == "T2"]
    assert bool(cycles) is not logs.is_acyclic()
    assert [(row["source"], row["number"]) for row in cycles] == [min(knot) for knot in knots]
    for row, knot in zip(cycles, knots, strict=True):
        detail = _detail(row)
        assert detail["messages"] == len(knot)
        assert detail["steps"] == len(detail["cycle"])
        assert {(source, number) for source, number, _ in detail["cycle"]} <= knot
        assert is_cycle(group, detail["cycle"])
    pairs = {(row["process"], _detail(row)["other"]) for row in mine if row["check"] == "T1"}
    for one in group.logs:
        for other in group.logs:
            if one < other:
                assert ((one, other) not in pairs) is logs.are_order_equivalent(one, other)
    for row in mine:
        if row["check"] == "T1":
            assert _detail(row)["late"] == group.late(row["process"], _detail(row)["other"])
    checks = {check.id: check for check in report.checks}
    counted = Counter(str(row["check"]) for row in mine)
    assert {name: checks[name].violations for name in counted} == dict(counted)
    return mine


def _detail(row: dict[str, object]) -> dict[str, Any]:
    return dict(json.loads(str(row["detail"])))


@given(chance=st.randoms(use_true_random=False), messages=st.integers(0, 30))
@settings(max_examples=60)
def test_a_group_that_keeps_its_promises_is_valid(chance: Random, messages: int) -> None:
    events = DrawnGroup(chance).run(messages)
    assert assert_agreement(events) == []
    report, rows = audited(events)
    assert [row for row in rows if row["check"] in ("W1", "C1", "O2")] == []
    assert report.verdict is not Verdict.INVALID
    delivered = any(event.kind is EventKind.DELIVER for event in events)
    received = any(event.kind is EventKind.RECEIVE for event in events)
    if delivered and received:
        assert report.verdict is Verdict.VALID, report.runs[0].incomplete


@given(
    chance=st.randoms(use_true_random=False),
    messages=st.integers(1, 30),
    faults=st.lists(st.sampled_from(FAULTS), min_size=1, max_size=4),
)
@settings(max_examples=120)
def test_kernels_equal_the_definitions(chance: Random, messages: int, faults: list[str]) -> None:
    events = DrawnGroup(chance).run(messages)
    for fault in faults:
        events = broken(events, fault, chance)
    note("\n".join(map(str, events)))
    assert_agreement(events)


CAUGHT = {
    "swap": {"T1", "T2"},
    "drop": {"T3"},
    "move": {"T4"},
    "view": {"T4"},
    "mask": {"T4"},
    "unview": {"T4"},
    "misplace": {"T5"},
    "reborn": {"T5"},
}


@pytest.mark.parametrize("fault", CAUGHT)
def test_each_fault_is_caught_by_its_check(fault: str) -> None:
    seen: Counter[str] = Counter()
    for seed in range(12):
        chance = Random(seed)
        events = broken(DrawnGroup(chance).run(30), fault, chance)
        seen.update({str(row["check"]) for row in assert_agreement(events)})
    assert CAUGHT[fault] <= set(seen), seen


def test_rows_may_come_in_any_order_and_more_than_once() -> None:
    chance = Random(11)
    events = DrawnGroup(chance).run(60)
    for fault in ("swap", "drop", "mask", "misplace"):
        events = broken(events, fault, chance)
    table = table_from_events(events)
    report, expected = audit(TableSource(table))
    assert report.verdict is Verdict.INVALID
    at = [*range(table.num_rows), *range(0, table.num_rows, 3)]
    chance.shuffle(at)
    _, found = audit(TableSource(table.take(pa.array(at))))
    assert found.to_pylist() == expected.to_pylist()


def cyclic() -> list[Event]:
    """a < b at 0, b < c at 1, c < a at 2: no two disagree, and they fit into no one order."""
    chance = Random(0)
    group = DrawnGroup(chance)
    group.founders, group.members = 3, 0b111
    for process in range(3):
        group.begin(process)
    masks = {0: 0b101, 1: 0b011, 2: 0b110}
    for source, mask in masks.items():
        to = bytes([mask])
        group.add(source, EventKind.SEND, source=source, number=0, stamp_ns=0, destinations=to)
    for process, order in ((0, (0, 1)), (1, (1, 2)), (2, (2, 0))):
        for source in order:
            group.add(process, EventKind.DELIVER, source=source, number=0, stamp_ns=0)
    for process in range(3):
        group.add(process, EventKind.END)
    return [event for process in range(3) for event in group.events[process]]


def test_pairwise_order_without_one_order_is_told_apart() -> None:
    (row,) = assert_agreement(cyclic())
    assert (row["check"], row["kind"]) == ("T2", "cycle")
    assert _detail(row)["cycle"] == [[0, 0, 0], [1, 0, 1], [2, 0, 2]]
    report, _ = audited(cyclic())
    verdicts = {check.id: check.verdict for check in report.checks}
    assert verdicts["T1"] is Verdict.VALID
    assert verdicts["T2"] is report.verdict is Verdict.INVALID
    assert RUN in {run.run_id for run in report.runs}
