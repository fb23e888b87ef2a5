"""A total order judged while its run goes on is judged as in the whole, in bounded memory."""

import json
from random import Random
from typing import Any

import pyarrow.compute as pc
import pytest
from drawn_groups import FAULTS, RUN, DrawnGroup, broken
from hypothesis import given, note, settings
from hypothesis import strategies as st

from orderwire.trace.events import Event, EventKind
from orderwire.trace.schema import table_from_events
from orderwire.verify import live as live_module
from orderwire.verify import live_order, live_views
from orderwire.verify.audit import AuditOptions, audit
from orderwire.verify.group_synthetic import GroupTraceSettings, synthetic_group
from orderwire.verify.group_views import Group
from orderwire.verify.kernels.violations import merge
from orderwire.verify.live import LiveRun
from orderwire.verify.report import TOTAL_ORDER_CHECKS, RunReport
from orderwire.verify.source import TableSource
from orderwire.verify.verdict import Verdict

WINDOW = 8
"""Nanoseconds: a drawn group does something every 1.5 ns."""
LAG = 2
Rows = list[dict[str, Any]]


def followed(
    events: list[Event],
    chance: Random,
    *,
    restart: bool,
    portions: tuple[int, ...] = (2, 10, 20, 40),
) -> tuple[LiveRun, Rows, RunReport]:
    """Feed a run in the order of time, a few events at once, some of them twice."""
    events = sorted(events, key=lambda event: (event.time_ns, event.process, event.position))
    options = AuditOptions(silence_ns=WINDOW, newcomer_ns=0)
    live = LiveRun(RUN, options)
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live_module, "WINDOW_NS", WINDOW)
        at = 0
        while at < len(events):
            count = chance.choice(portions)
            found.append(live.feed(table_from_events(events[max(0, at - 1) : at + count])))
            at += count
            if restart:
                live = LiveRun.load(RUN, live.dump(), options)
        if not live.finished:
            found.append(live.conclude())
        report = live.report()
    assert live.held == 0
    return live, merge(found).to_pylist(), report


def keys(rows: Rows, *kinds: str) -> list[tuple[object, ...]]:
    names = ("check", "kind", "process", "position", "source", "number")
    return sorted(tuple(row[name] for name in names) for row in rows if row["kind"] in kinds)


def disagreeing(rows: Rows) -> set[tuple[int, int]]:
    """Pairs of members of which T1 tells."""
    told = [row for row in rows if row["check"] == "T1"]
    pairs = [(row["process"], json.loads(row["detail"])["other"]) for row in told]
    assert len(pairs) == len(set(pairs)), "two members disagree once"
    return set(pairs)


def taken_twice(rows: Rows) -> set[tuple[str, int]]:
    """Places of the channel of which it is told that two PDUs came in them."""
    details = [json.loads(row["detail"]) for row in rows if row["kind"] == "other-pdu"]
    return {(detail["incarnation"], detail["channel_number"]) for detail in details}


def assert_agreement(events: list[Event], live: LiveRun, found: Rows, report: RunReport) -> None:
    """What was told while the run went on is what the audit of the whole trace tells."""
    whole, table = audit(TableSource(table_from_events(events)))
    rows = table.to_pylist()
    if report.verdict is Verdict.INVALID:
        assert whole.verdict is Verdict.INVALID, "nothing is made up"
    if not live.certain:
        assert report.verdict is not Verdict.VALID
        return
    (expected,) = whole.runs
    assert report.verdict is expected.verdict
    assert report.incomplete == expected.incomplete
    verdicts = {check.id: (check.verdict, check.promised) for check in report.checks}
    assert verdicts == {check.id: (check.verdict, check.promised) for check in expected.checks}
    assert disagreeing(found) == disagreeing(rows)
    knots = Group(events).knots()
    told = [(row["source"], row["number"]) for row in found if row["check"] == "T2"]
    assert all(any(name in told for name in knot) for knot in knots)
    assert all(any(name in knot for knot in knots) for name in told)
    exact = ("missing", "undelivered", "messages", "outside", "view", "backwards", "skipped")
    for kind in (*exact, "reordered", "mixed"):
        assert keys(found, kind) == keys(rows, kind)
    assert set(keys(rows, "members")) <= set(keys(found, "members"))
    views = {row["number"] for row in rows if row["kind"] == "members"}
    assert {row["number"] for row in found if row["kind"] == "members"} == views
    assert taken_twice(found) == taken_twice(rows)


@given(
    seed=st.integers(0, 2**32),
    messages=st.integers(1, 60),
    faults=st.lists(st.sampled_from(FAULTS), max_size=2),
    lag=st.sampled_from([0, LAG]),
    changes=st.sampled_from([0.15, 0.02]),
    restart=st.booleans(),
)
@settings(max_examples=60)
def test_a_total_order_is_judged_as_in_the_whole(
    seed: int, messages: int, faults: list[str], lag: int, changes: float, restart: bool
) -> None:
    chance = Random(seed)
    events = DrawnGroup(chance, lag_max=lag, changes=changes).run(messages)
    for fault in faults:
        events = broken(events, fault, chance)
    note("\n".join(map(str, events)))
    live, found, report = followed(events, chance, restart=restart)
    assert_agreement(events, live, found, report)


CAUGHT = {
    "swap": {"T1", "T2"},
    "drop": {"T3", "T4"},
    "move": {"T4"},
    "view": {"T4"},
    "mask": {"T4"},
    "misplace": {"T5"},
    "reborn": {"T5"},
}


@pytest.mark.parametrize("fault", CAUGHT)
def test_each_fault_is_told_before_the_end(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "WINDOW_NS", WINDOW)
    early: set[str] = set()
    for seed in range(12):
        chance = Random(seed)
        events = broken(DrawnGroup(chance).run(60), fault, chance)
        live = LiveRun(RUN, AuditOptions(silence_ns=WINDOW, newcomer_ns=0))
        events.sort(key=lambda event: (event.time_ns, event.process, event.position))
        for start in range(0, 9 * len(events) // 10, 25):
            found = live.feed(table_from_events(events[start : start + 25]))
            early.update(found.column("check").to_pylist())
        assert not live.finished
        assert live.report().verdict is not Verdict.VALID
        if CAUGHT[fault] <= early:
            return
    pytest.fail(f"only {sorted(early)}")


@pytest.mark.parametrize("members", [3, 6])
def test_a_cycle_over_many_windows_is_found(members: int) -> None:
    """Each member has its own message before the next one's, and has that a window later."""
    group = DrawnGroup(Random(0))
    group.founders, group.members = members, (1 << members) - 1
    group.now = 100
    for process in range(members):
        group.begin(process)
    told = []
    for process in range(members):
        other, later = (process + 1) % members, 100 + 7 * (members - process)
        to = bytes([1 << process | 1 << (process - 1) % members])
        sent = {"source": process, "number": 0, "stamp_ns": later, "destinations": to}
        told.append((later, process, EventKind.SEND, sent))
        told.append((later, process, EventKind.DELIVER, sent))
        seen = later + 1 if other else 100 + 7 * members + 1
        stamp_ns = 100 + 7 * (members - other)
        handed = {"source": other, "number": 0, "stamp_ns": stamp_ns, "destinations": b""}
        told.append((seen, process, EventKind.DELIVER, handed))
    for group.now, process, kind, fields in sorted(told, key=lambda each: each[0]):
        group.add(process, kind, **fields)
    group.now = 100 + 7 * members + 60
    for process in range(members):
        group.add(process, EventKind.END)
    events = [event for timeline in group.events.values() for event in timeline]
    live, found, report = followed(events, Random(1), restart=True, portions=(1,))
    assert live.certain
    assert_agreement(events, live, found, report)
    (cycle,) = [row for row in found if row["check"] in ("T1", "T2")]
    assert json.loads(cycle["detail"])["messages"] == members


FAULTY = {
    "nothing": GroupTraceSettings(messages=3_000, view_every=500),
    "swapped": GroupTraceSettings(messages=3_000, view_every=500, swapped=9),
    "dropped": GroupTraceSettings(messages=3_000, view_every=500, dropped=7),
}


@pytest.mark.parametrize("fault", FAULTY)
def test_memory_is_bounded_by_the_window(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table = synthetic_group(FAULTY[fault])
    whole, rows = audit(TableSource(table))
    table = table.sort_by([("time_ns", "ascending"), ("process", "ascending")])
    span = pc.max(table.column("time_ns")).as_py() - pc.min(table.column("time_ns")).as_py()
    monkeypatch.setattr(live_module, "WINDOW_NS", span // 40)
    live = LiveRun("group")
    found, held, state_bytes = [], [], []
    for start in range(0, table.num_rows, 200):
        found.append(live.feed(table.slice(start, 200)))
        held.append(live.held)
        state_bytes.append(len(live.dump()))
    assert live.finished
    assert live.certain or fault == "swapped", "there something comes before it is sent"
    assert live.held == 0
    assert max(held) < table.num_rows // 5
    half = len(state_bytes) // 2
    assert max(state_bytes[half:]) < 1.3 * max(state_bytes[:half])
    told = merge(found)
    report = live.report()
    wrong = {check.id: check.violations for check in report.checks if check.violations}
    expected = {check.id: check.violations for check in whole.runs[0].checks if check.violations}
    assert wrong == expected
    assert report.verdict is (Verdict.VALID if fault == "nothing" else Verdict.INVALID)
    assert disagreeing(told.to_pylist()) == disagreeing(rows.to_pylist())
    for part in ("T3", "T4", "T5"):
        mine = pc.field("check") == part
        assert told.filter(mine).to_pylist() == rows.filter(mine).to_pylist()


@given(seed=st.integers(0, 2**32), until=st.floats(0.0, 1.0))
@settings(max_examples=20)
def test_who_speaks_too_late_is_not_accused(seed: int, until: float) -> None:
    chance = Random(seed)
    events = DrawnGroup(chance).run(60)
    events.sort(key=lambda event: (event.time_ns, event.process, event.position))
    victim = chance.choice(sorted({event.process for event in events}))
    own = [event for event in events if event.process == victim]
    stuck = chance.choice(own)
    arrives = int(stuck.time_ns + until * (events[-1].time_ns - stuck.time_ns))

    def arrival(event: Event) -> int:
        held_up = event.process == victim and event.position >= stuck.position
        return max(event.time_ns, arrives) if held_up else event.time_ns

    dealt = sorted(events, key=arrival)
    live = LiveRun(RUN, AuditOptions(silence_ns=WINDOW, newcomer_ns=0))
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live_module, "WINDOW_NS", WINDOW)
        for start in range(0, len(dealt), 12):
            found.append(live.feed(table_from_events(dealt[start : start + 12])))
        found.append(live.conclude())
        report = live.report()
    told = [row for row in merge(found).to_pylist() if row["check"] in TOTAL_ORDER_CHECKS]
    assert told == []
    assert not (live.state.late and report.verdict is Verdict.VALID)


def test_who_ended_owes_nothing_when_others_went_on_without_it() -> None:
    group = DrawnGroup(Random(0))
    group.founders, group.members = 3, 0b111
    for process in range(3):
        group.begin(process)
    views = group.views

    def say(number: int, mask: int, *to: int) -> None:
        fields = {
            "source": 0,
            "number": number,
            "stamp_ns": group.now,
            "destinations": bytes([mask]),
        }
        group.add(0, EventKind.SEND, **fields)
        for process in to:
            group.add(process, EventKind.DELIVER, **fields)

    say(0, 0b111, 0, 1)
    group.add(2, EventKind.END)
    for number in range(1, 9):
        group.now += WINDOW
        say(number, 0b011, 0, 1)
    group.members, group.views = 0b011, views + 1
    for process in (0, 1):
        group.install(process)
        group.add(process, EventKind.END)
    events = [event for timeline in group.events.values() for event in timeline]
    live, found, report = followed(events, Random(4), restart=False)
    assert live.certain
    assert found == []
    assert_agreement(events, live, found, report)


def test_what_is_wrong_long_after_is_found() -> None:
    """A place of the channel far ahead, a message that a member lacks when it goes on, and at the
    end.
    """
    group = DrawnGroup(Random(0))
    group.founders, group.members = 2, 0b11
    for process in range(2):
        group.begin(process)
    place = {"incarnation": 0, "source": -1, "number": -1}
    group.add(1, EventKind.RECEIVE, **place, channel_number=1_000)
    for number in range(20):
        fields = {"source": 0, "number": number, "stamp_ns": group.now, "destinations": b"\x03"}
        group.add(0, EventKind.SEND, **fields)
        for process in range(2):
            group.add(process, EventKind.RECEIVE, **place, channel_number=number)
            if process == 0 or number not in (0, 12):
                group.add(process, EventKind.DELIVER, **fields)
        group.now += WINDOW
        if number == 10:
            group.views += 1
            for process in range(2):
                group.install(process)
    for process in range(2):
        group.add(process, EventKind.END)
    events = [event for timeline in group.events.values() for event in timeline]
    live, found, report = followed(events, Random(5), restart=True)
    assert live.certain
    assert_agreement(events, live, found, report)
    kinds = [row["kind"] for row in found if row["check"] in TOTAL_ORDER_CHECKS]
    assert sorted(kinds) == ["messages", "missing", "missing", *["reordered"] * 20]


def pair(late_ns: int, ahead_ns: int = 0) -> list[Event]:
    """Two members; each message comes to the other one so late, stamped so far ahead."""
    group = DrawnGroup(Random(0))
    group.founders, group.members = 2, 0b11
    for process in range(2):
        group.begin(process)
    told: list[tuple[int, int, EventKind, int]] = []
    for number in range(40):
        at = 10 * WINDOW * number
        told += [(at, 0, EventKind.SEND, number), (at, 0, EventKind.DELIVER, number)]
        told.append((at + late_ns, 1, EventKind.DELIVER, number))
    for group.now, process, kind, number in sorted(told, key=lambda each: each[0]):
        stamp_ns = 10 * WINDOW * number + ahead_ns
        fields = {"source": 0, "number": number, "stamp_ns": stamp_ns, "destinations": b"\x03"}
        group.add(process, kind, **fields)
    for process in range(2):
        group.add(process, EventKind.RECEIVE, source=0, number=0, channel_number=1, incarnation=0)
        group.add(process, EventKind.END)
    return [event for timeline in group.events.values() for event in timeline]


@pytest.mark.parametrize(
    ("late_ns", "ahead_ns", "verdict"),
    [
        (WINDOW, 0, Verdict.VALID),
        (6 * WINDOW, 0, Verdict.UNKNOWN),
        (0, WINDOW, Verdict.VALID),
        (0, WINDOW + 1, Verdict.UNKNOWN),
    ],
)
def test_what_a_window_does_not_hold_is_never_valid_and_breaks_nothing(
    late_ns: int, ahead_ns: int, verdict: Verdict
) -> None:
    events = pair(late_ns, ahead_ns)
    whole, _ = audit(TableSource(table_from_events(events)))
    assert whole.verdict is Verdict.VALID
    _, found, report = followed(events, Random(2), restart=True)
    assert found == []
    assert report.verdict is verdict


def test_limits_are_kept_and_then_nothing_is_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    events = [event for event in pair(0) if event.process == 0 or event.kind is EventKind.START]
    for name, limit in (("LACKING_MAX", 5), ("MARKS_MAX", 1)):
        with monkeypatch.context() as patch:
            patch.setattr(live_views, name, limit)
            live = LiveRun(RUN, AuditOptions(silence_ns=WINDOW, newcomer_ns=0))
            patch.setattr(live_module, "WINDOW_NS", WINDOW)
            held = []
            for event in events:
                live.feed(table_from_events([event]))
                held.append(live.held)
            live.conclude()
            assert not live.certain
            assert name != "LACKING_MAX" or max(held) <= 16
    with monkeypatch.context() as patch:
        patch.setattr(live_order, "DELIVERIES_MAX", 1)
        live, _, report = followed(DrawnGroup(Random(5)).run(60), Random(3), restart=True)
        assert not live.certain
        assert report.verdict is Verdict.UNKNOWN
