"""An audit fed in portions says what the audit of the whole trace says, in bounded memory."""

from random import Random

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from drawn_groups import RUN as GROUP_RUN
from drawn_groups import DrawnGroup
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from random_domains import S, nonsense, trio
from random_runs import FAULTS, OWN_FAULTS, RUN, RandomRun, damage, restarted

from orderwire.trace.events import Event, EventKind
from orderwire.trace.schema import table_from_events
from orderwire.verify import live as live_module
from orderwire.verify.audit import AuditOptions, audit
from orderwire.verify.kernels.violations import merge
from orderwire.verify.live import LiveRun
from orderwire.verify.report import RunReport
from orderwire.verify.source import TableSource
from orderwire.verify.synthetic import Faults, SyntheticSettings, synthetic_table
from orderwire.verify.verdict import Verdict


def portions(events: list[Event], chance: Random, again: float) -> list[list[Event]]:
    """Deal the events out, each process's in order; some portions come twice."""
    left: dict[int, list[Event]] = {}
    for event in events:
        left.setdefault(event.process, []).append(event)
    dealt: list[list[Event]] = []
    while any(left.values()):
        portion = []
        for timeline in left.values():
            count = min(len(timeline), chance.choice([0, 0, 1, 2, 5, 20]))
            portion += timeline[:count]
            del timeline[:count]
        chance.shuffle(portion)
        if portion:
            dealt.append(portion)
            if chance.random() < again:
                dealt.append(portion)
    return dealt


def fed(
    dealt: list[list[Event]], *, restart: bool, options: AuditOptions | None = None
) -> tuple[LiveRun, pa.Table, RunReport]:
    live = LiveRun(RUN, options)
    found = []
    for portion in dealt:
        found.append(live.feed(table_from_events(portion)))
        if restart:
            live = LiveRun.load(RUN, live.dump(), options)
    if live.left_behind:
        found.append(live.conclude())
    return live, merge(found), live.report()


def without_examples(report: RunReport) -> RunReport:
    """A live audit shows the earliest violations, the audit of a whole trace the first rows."""
    checks = [msgspec.structs.replace(check, examples=[]) for check in report.checks]
    return msgspec.structs.replace(report, checks=checks)


@given(
    seed=st.integers(0, 2**32),
    messages=st.integers(1, 40),
    faults=st.lists(st.sampled_from(OWN_FAULTS), max_size=2),
    restart=st.booleans(),
    own=st.booleans(),
)
@settings(max_examples=100)
def test_portions_say_what_the_whole_says(
    seed: int, messages: int, faults: list[str], restart: bool, own: bool
) -> None:
    chance = Random(seed)
    run = RandomRun(chance, own_lifetimes=own)
    events = run.run(messages)
    for fault in faults:
        events = damage(events, fault, chance)
    live, found, report = fed(portions(events, chance, 0.2), restart=restart)
    expected, rows = audit(TableSource(table_from_events(events)))
    assert live.finished
    assert live.held == 0
    if live.certain:
        assert found.to_pylist() == rows.to_pylist()
        assert without_examples(report) == without_examples(expected.runs[0])
    else:
        assert report.verdict is not Verdict.VALID


@given(seed=st.integers(0, 2**32), messages=st.integers(1, 40), restart=st.booleans())
@settings(max_examples=60)
def test_lives_that_count_anew_are_judged_like_the_whole(
    seed: int, messages: int, restart: bool
) -> None:
    chance = Random(seed)
    forms = restarted(RandomRun(chance).run(messages), chance)
    assume(forms is not None)
    assert forms is not None
    live, found, report = fed(portions(forms[0], chance, 0.2), restart=restart)
    expected, rows = audit(TableSource(table_from_events(forms[0])))
    assert live.finished
    if live.certain:
        assert found.to_pylist() == rows.to_pylist()
        # A loss that a link reports may be settled before it is known that its receiver crashed.
        told, whole = without_examples(report), without_examples(expected.runs[0])
        assert whole.accounting.pop("crashed") - told.accounting.pop("crashed") >= 0
        assert told == whole
    else:
        assert report.verdict is not Verdict.VALID


@given(seed=st.integers(0, 2**32), torn=st.booleans(), restart=st.booleans())
@settings(max_examples=80)
def test_discovery_in_portions_is_what_it_is_in_the_whole(
    seed: int, torn: bool, restart: bool
) -> None:
    chance = Random(seed)
    events, _ = nonsense(chance, RUN, torn=torn)
    live = LiveRun(RUN)
    found = []
    for portion in portions(events, chance, 0.2):
        found.append(live.feed(table_from_events(portion)))
        if not live.finished:
            assert live.report().verdict is not Verdict.VALID
        if restart:
            live = LiveRun.load(RUN, live.dump())
    if not live.finished:
        found.append(live.conclude())
    expected, rows = audit(TableSource(table_from_events(events)))
    assert live.held == 0
    if not live.state.late:
        assert merge(found).to_pylist() == rows.to_pylist()
        assert without_examples(live.report()) == without_examples(expected.runs[0])
    else:
        assert live.report().verdict is not Verdict.VALID


def test_the_view_at_the_horizon_is_told_before_the_end() -> None:
    events, lines = trio()
    told = [e for e in events if e.kind is not EventKind.END]
    ghost = next(e for e in told if e.process == 1 and e.kind is EventKind.EXPIRE)
    told.remove(ghost)
    for line in lines[:2]:
        line.resume(ghost.position if line.process == 1 else ghost.position + 1)
        line.hear(50 * S, "Sync", 99)
        line.end(60 * S)
    told += events[-4:]
    live = LiveRun("run")
    seen: list[tuple[int, int]] = []
    for event in told:
        found = live.feed(table_from_events([event]))
        report = live.report()
        checks = {check.id: check for check in report.checks}
        if "D1" in checks and not live.finished:
            assert checks["D1"].verdict is not Verdict.VALID
            seen.append((event.time_ns, checks["D1"].violations))
            assert found.num_rows == 0, "what a newcomer may change is not handed over yet"
    assert live.left_behind, "process 2 is gone, and has no END"
    found = live.conclude()
    assert max(count for _, count in seen) == 1, "the ghost is seen while the run goes on"
    assert found.column("kind").to_pylist() == ["ghost"]


@given(seed=st.integers(0, 2**32), kept=st.floats(0.1, 0.9))
@settings(max_examples=20)
def test_what_has_not_ended_is_never_valid(seed: int, kept: float) -> None:
    chance = Random(seed)
    run = RandomRun(chance)
    events = run.run(20)
    by_process: dict[int, list[Event]] = {}
    for event in events:
        by_process.setdefault(event.process, []).append(event)
    cut = chance.choice(sorted(by_process))
    shortened = [e for e in events if e.process != cut]
    shortened += by_process[cut][: max(1, int(kept * (len(by_process[cut]) - 1)))]
    live = LiveRun(RUN)
    _, rows = audit(TableSource(table_from_events(events)))
    true = rows.to_pylist()
    for portion in portions(shortened, chance, 0.0):
        live.feed(table_from_events(portion))
        report = live.report()
        assert not live.finished
        assert report.verdict is not Verdict.VALID
        assert cut in report.incomplete
        if live.certain and not any(row["check"] == "C1" for row in true):
            told = {check.id: check.violations for check in report.checks}
            assert told["C1"] == 0, "an interim report invents violations"


def test_memory_is_bounded_by_the_window_and_not_by_the_run() -> None:
    faults = Faults(delayed=0.002, lost=0.01, late=0.005)
    made = SyntheticSettings(events=60_000, faults=faults, interval_ns=300_000)
    table = synthetic_table(made)
    options = AuditOptions()
    live = LiveRun("synthetic", options)
    portion = 1_000
    held, state_bytes, found = [], [], []
    for start in range(0, table.num_rows, portion):
        found.append(live.feed(table.slice(start, portion)))
        held.append(live.held)
        state_bytes.append(len(live.dump()))
    assert live.finished
    expected, rows = audit(TableSource(table), options)
    assert merge(found).to_pylist() == rows.to_pylist()
    assert live.report().accounting == expected.runs[0].accounting
    per_second = made.events / (made.events // 5 * made.interval_ns / 1e9)
    window_events = per_second * live.window_ns / 1e9
    assert max(held) <= 4 * window_events + portion
    half = len(state_bytes) // 2
    assert max(state_bytes[half:]) <= 1.5 * max(state_bytes[:half])


def killed(events: list[Event], chance: Random) -> tuple[list[Event], list[Event], int]:
    """Cut one member's trace off somewhere; return what is left, the rest, and who it was."""
    victim = chance.choice(sorted({event.process for event in events}))
    own = [event for event in events if event.process == victim]
    kept = chance.randint(1, len(own) - 1)
    rest = own[kept:]
    return [event for event in events if event not in rest], rest, victim


def few_at_a_time(events: list[Event]) -> list[list[Event]]:
    return [events[start : start + 4] for start in range(0, len(events), 4)]


def events_end(events: list[Event]) -> int:
    return max(event.time_ns for event in events)


@given(
    seed=st.integers(0, 2**32),
    messages=st.integers(5, 60),
    faults=st.lists(st.sampled_from(FAULTS), max_size=1),
    restart=st.booleans(),
)
@settings(max_examples=30)
def test_a_killed_member_holds_nobody_up_and_is_judged_like_the_whole(
    seed: int, messages: int, faults: list[str], restart: bool
) -> None:
    chance = Random(seed)
    events = RandomRun(chance).run(messages)
    for fault in faults:
        events = damage(events, fault, chance)
    left, _, victim = killed(events, chance)
    dealt = few_at_a_time(sorted(left, key=lambda event: event.time_ns))
    options = AuditOptions(silence_ns=0)
    live, found, report = fed(dealt, restart=restart, options=options)
    expected, rows = audit(TableSource(table_from_events(left)))
    assert report.verdict is not Verdict.VALID
    assert victim in report.incomplete
    if live.certain and live.finished:
        assert found.to_pylist() == rows.to_pylist()
        assert without_examples(report) == without_examples(expected.runs[0])


@given(seed=st.integers(0, 2**32), messages=st.integers(5, 60), late=st.floats(0.0, 1.0))
@settings(max_examples=30)
def test_who_speaks_again_is_audited_and_nothing_is_made_up(
    seed: int, messages: int, late: float
) -> None:
    chance = Random(seed)
    events = RandomRun(chance).run(messages)
    left, rest, victim = killed(events, chance)
    stuck_until = rest[0].time_ns + int(late * (events_end(events) - rest[0].time_ns))
    arrivals = [(event.time_ns, event) for event in left]
    arrivals += [(max(event.time_ns, stuck_until), event) for event in rest]
    arrivals.sort(key=lambda arrival: arrival[0])
    dealt = few_at_a_time([event for _, event in arrivals])
    live, found, report = fed(dealt, restart=False, options=AuditOptions(silence_ns=0))
    expected, rows = audit(TableSource(table_from_events(events)))
    assert live.finished
    known = [
        (row["check"], row["kind"], row["process"], row["position"]) for row in rows.to_pylist()
    ]
    for row in found.to_pylist():
        assert (row["check"], row["kind"], row["process"], row["position"]) in known
    if live.state.late:
        assert list(live.state.late) == [victim]
        assert report.verdict is not Verdict.VALID
    elif live.certain:
        assert without_examples(report) == without_examples(expected.runs[0])


def test_memory_is_bounded_when_a_member_was_killed() -> None:
    made = SyntheticSettings(events=120_000, members=4, fan_out=2, interval_ns=300_000)
    whole = synthetic_table(made)
    time_ns = whole.column("time_ns")
    first, last = pc.min(time_ns).as_py(), pc.max(time_ns).as_py()
    dead = pc.and_(pc.equal(whole.column("process"), 2), pc.greater(time_ns, first + 500_000_000))
    table = whole.filter(pc.invert(dead))
    live = LiveRun("synthetic", AuditOptions(silence_ns=200_000_000))
    held, found = [], []
    for start in range(0, table.num_rows, 1_000):
        found.append(live.feed(table.slice(start, 1_000)))
        held.append(live.held)
    assert live.state.silent == [2]
    assert live.left_behind, "all others have ended"
    found.append(live.conclude())
    assert live.finished
    expected, rows = audit(TableSource(table))
    assert merge(found).to_pylist() == rows.to_pylist() == []
    report = live.report()
    assert without_examples(report) == without_examples(expected.runs[0])
    assert report.verdict is Verdict.UNKNOWN
    assert report.incomplete == [2]
    per_ns = table.num_rows / (last - first)
    waited = 200_000_000 + 4 * live.window_ns
    assert max(held) <= 1.2 * waited * per_ns + 1_000
    tail = whole.filter(dead)
    live.feed(tail)
    assert live.state.late == {2: tail.num_rows}
    assert live.report().verdict is Verdict.UNKNOWN


def test_what_is_handed_over_before_it_is_sent_is_told_when_its_send_comes() -> None:
    window = 8
    group = DrawnGroup(Random(0))
    group.founders, group.members = 2, 0b11
    for process in range(2):
        group.begin(process)
    fields = {"source": 0, "number": 0, "stamp_ns": 5 * window, "destinations": b"\x03"}
    group.now = 5 * window - 3
    group.add(1, EventKind.DELIVER, **fields)
    group.now += 1
    for process in range(2):
        group.add(process, EventKind.RECEIVE, source=-1, number=-1, channel_number=1)
    before = [event for timeline in group.events.values() for event in timeline]
    group.now = 5 * window
    group.add(0, EventKind.SEND, **fields)
    group.add(0, EventKind.DELIVER, **fields)
    for process in range(2):
        group.add(process, EventKind.END)
    events = [event for timeline in group.events.values() for event in timeline]
    _, rows = audit(TableSource(table_from_events(events)))
    live = LiveRun(GROUP_RUN, AuditOptions(newcomer_ns=0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live_module, "WINDOW_NS", window)
        assert live.feed(table_from_events(before)).num_rows == 0
        assert live.state.closed_ns == group.now - 2, "between the two"
        found = live.feed(table_from_events([event for event in events if event not in before]))
    assert live.finished
    early = pc.field("kind") == "early"
    assert found.filter(early).to_pylist() == rows.filter(early).to_pylist() != []
