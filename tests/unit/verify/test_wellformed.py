"""W1: every way in which a trace itself can be unsound is found, and named."""

from collections.abc import Callable

import msgspec
import pytest

from orderwire.trace.events import Event, EventKind, RunSettings
from orderwire.trace.schema import table_from_events
from orderwire.verify.audit import AuditOptions, audit
from orderwire.verify.kernels.columns import columns_of
from orderwire.verify.kernels.wellformed import Head, timelines
from orderwire.verify.source import TableSource
from orderwire.verify.verdict import Verdict

SETTINGS = RunSettings(algorithm="fifo", members=2)
Events = list[Event]


def event(process: int, position: int, kind: EventKind, time_ns: int, **more: object) -> Event:
    return Event(  # type: ignore[arg-type]
        run_id="r",
        process=process,
        position=position,
        kind=kind,
        time_ns=time_ns,
        clock_ns=time_ns,
        **more,
    )


def sound() -> Events:
    """Process 0 sends two messages to process 1."""
    detail = msgspec.json.encode(SETTINGS).decode()
    first = {"source": 0, "number": 0, "stamp_ns": 10}
    second = {"source": 0, "number": 1, "stamp_ns": 20}
    return [
        event(0, 0, EventKind.START, 0, detail=detail),
        event(0, 1, EventKind.SEND, 10, destinations=b"\x02", **first),
        event(0, 2, EventKind.SEND, 20, destinations=b"\x02", **second),
        event(0, 3, EventKind.END, 50),
        event(1, 0, EventKind.START, 0, detail=detail),
        event(1, 1, EventKind.DELIVER, 15, arrived_ns=15, **first),
        event(1, 2, EventKind.DELIVER, 25, arrived_ns=25, **second),
        event(1, 3, EventKind.END, 50),
    ]


def change(at: int, **fields: object) -> Callable[[Events], Events]:
    def changed(events: Events) -> Events:
        events[at] = msgspec.structs.replace(events[at], **fields)
        return events

    return changed


def found(events: Events) -> list[tuple[str, int, int]]:
    _, rows = audit(TableSource(table_from_events(events)))
    return [
        (row["kind"], row["process"], row["position"])
        for row in rows.to_pylist()
        if row["check"] == "W1"
    ]


def test_a_sound_trace_is_valid() -> None:
    report, rows = audit(TableSource(table_from_events(sound())))
    assert rows.num_rows == 0
    assert report.verdict is Verdict.VALID
    assert report.runs[0].accounting["written"] == report.runs[0].accounting["delivered"] == 2


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (change(7, position=5), [("hole", 1, 5)]),
        (change(0, kind=EventKind.LOST, number=0), [("no-start", 0, 0)]),
        (change(3, kind=EventKind.LOST, number=0), []),
        (change(1, kind=EventKind.END), [("after-end", 0, 2), ("numbering", 0, 2)]),
        (change(6, time_ns=14), [("backwards", 1, 2), ("early", 1, 2)]),
        (change(2, number=2), [("numbering", 0, 2)]),
        (change(2, source=1), [("numbering", 0, 2)]),
        (change(5, time_ns=9), [("early", 1, 1)]),
        (change(4, detail="{}"), [("settings", 1, 0)]),
        (change(7, process=3, position=0), [("no-start", 3, 0), ("stranger", 3, 0)]),
    ],
)
def test_damage_is_named(
    damage: Callable[[Events], Events], expected: list[tuple[str, int, int]]
) -> None:
    assert found(damage(sound())) == expected


def test_two_events_of_one_name_that_differ_are_a_conflict() -> None:
    events = sound()
    events.append(msgspec.structs.replace(events[2], stamp_ns=21))
    assert ("conflict", 0, 2) in found(events)


def test_a_repeated_event_is_none() -> None:
    events = sound()
    assert found([*events, events[5]]) == []


def test_other_settings_of_one_process_are_a_violation() -> None:
    other = msgspec.json.encode(RunSettings(algorithm="fifo", members=3)).decode()
    assert found(change(4, detail=other)(sound())) == [("settings", 1, 0)]


def test_a_process_without_an_end_leaves_every_check_unknown() -> None:
    report, rows = audit(TableSource(table_from_events(sound()[:-1])))
    assert rows.num_rows == 0
    assert {check.verdict for check in report.checks} == {Verdict.UNKNOWN}
    assert report.runs[0].incomplete == [1]


def test_a_run_with_nothing_to_check_is_unknown() -> None:
    events = [e for e in sound() if e.kind in (EventKind.START, EventKind.END)]
    events = [msgspec.structs.replace(e, position=min(e.position, 1)) for e in events]
    report, _ = audit(TableSource(table_from_events(events)))
    verdicts = {check.id: check.verdict for check in report.checks}
    assert verdicts["W1"] is Verdict.VALID
    assert verdicts["C1"] is verdicts["O2"] is report.verdict is Verdict.UNKNOWN


def test_timelines_go_on_from_their_heads() -> None:
    columns = columns_of(table_from_events(sound()[2:4]))
    heads = {0: Head(position=2, number=1, time_ns=10)}
    assert timelines("r", columns, 2, heads).num_rows == 0
    assert timelines("r", columns, 2).num_rows > 0
    late = {0: Head(position=2, number=1, time_ns=21)}
    assert timelines("r", columns, 2, late).column("kind").to_pylist() == ["backwards"]


def test_a_run_without_settings_is_audited_all_the_same() -> None:
    events = [e for e in sound() if e.kind is not EventKind.START]
    report, rows = audit(TableSource(table_from_events(events)), AuditOptions())
    assert report.runs[0].settings is None
    assert report.verdict is Verdict.INVALID
    assert {row["kind"] for row in rows.to_pylist()} == {"hole"}
