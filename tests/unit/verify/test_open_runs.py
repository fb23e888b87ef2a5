"""Runs of members that find each other: who never appears is not awaited, who appears must tell."""

from collections import Counter
from collections.abc import Iterable

import msgspec
import pytest

from orderwire.trace.discovery_events import DiscoveryTimeline
from orderwire.trace.events import NO_ORDER, DiscoveryRun, Event, EventKind, RunSettings
from orderwire.trace.schema import table_from_events
from orderwire.verify.audit import audit
from orderwire.verify.report import RunReport
from orderwire.verify.source import TableSource
from orderwire.verify.verdict import Verdict

S = 1_000_000_000
RUN = RunSettings(algorithm="fifo", members=256, open=True)


def event(process: int, position: int, kind: EventKind, time_ns: int, **more: object) -> Event:
    fields = {"run_id": "run", "process": process, "position": position, "kind": kind}
    fields |= {"time_ns": time_ns, "clock_ns": time_ns}
    return Event(**(fields | more))  # type: ignore[arg-type]


def timeline(process: int, *steps: tuple[EventKind, dict[str, object]]) -> list[Event]:
    """Return a whole timeline, an event every ten seconds from the process's number on."""
    detail = msgspec.json.encode(RUN).decode()
    first = event(process, 0, EventKind.START, process, detail=detail)
    middle = [
        event(process, at, kind, process + at * 10, **more)
        for at, (kind, more) in enumerate(steps, 1)
    ]
    return [first, *middle, event(process, len(steps) + 1, EventKind.END, 1_000)]


def sent(source: int, to: Iterable[int], number: int = 0) -> tuple[EventKind, dict[str, object]]:
    mask = sum(1 << each for each in to)
    destinations = mask.to_bytes((mask.bit_length() + 7) // 8, "little")
    fields = {"source": source, "number": number, "stamp_ns": source, "destinations": destinations}
    return EventKind.SEND, dict(fields)


def delivered(source: int, number: int = 0) -> tuple[EventKind, dict[str, object]]:
    return EventKind.DELIVER, {"source": source, "number": number, "stamp_ns": source}


def judged(events: list[Event]) -> RunReport:
    return audit(TableSource(table_from_events(events)))[0].runs[0]


def test_ids_that_never_appear_are_not_awaited() -> None:
    events = [*timeline(3, sent(3, [200])), *timeline(200, delivered(3))]
    report = judged(events)
    assert (report.verdict, report.incomplete) == (Verdict.VALID, [])
    closed = msgspec.json.encode(msgspec.structs.replace(RUN, open=msgspec.UNSET)).decode()
    told = [msgspec.structs.replace(e, detail=closed) if e.detail else e for e in events]
    report = judged(told)
    assert report.verdict is Verdict.UNKNOWN
    assert len(report.incomplete) == 254


@pytest.mark.parametrize(
    "appears",
    [timeline(3, sent(3, [200, 9])), timeline(3, delivered(9), sent(3, [200]))],
    ids=["sent to", "heard of"],
)
def test_who_appears_without_a_trace_leaves_the_verdict_open(appears: list[Event]) -> None:
    report = judged([*appears, *timeline(200, delivered(3))])
    assert (report.verdict, report.incomplete) == (Verdict.UNKNOWN, [9])


def test_a_killed_member_is_no_gap_when_somebody_says_that_it_is_gone() -> None:
    events = [*timeline(3, sent(3, [200]), sent(3, [200], 1)), *timeline(200, delivered(3))[:-1]]
    report = judged(events)
    assert (report.verdict, report.incomplete) == (Verdict.UNKNOWN, [200])
    end = events[3]
    assert end.kind is EventKind.END
    events[3:4] = [
        event(3, 3, EventKind.GONE, 900, source=200),
        msgspec.structs.replace(end, position=4),
    ]
    report = judged(events)
    assert (report.verdict, report.incomplete) == (Verdict.VALID, [])
    assert report.accounting["crashed"] == 1
    assert report.discovery is None


def pair(**settings: object) -> tuple[list[Event], list[DiscoveryTimeline]]:
    """Two participants, 10 and 11, that know each other."""
    events: list[Event] = []
    promise = DiscoveryRun(fail_ns=6 * S, settle_ns=10 * S)
    run = RunSettings(algorithm=NO_ORDER, members=256, discovery=promise, open=True)
    lines = [DiscoveryTimeline("run", process, events.append) for process in (10, 11)]
    for line, other in zip(lines, (11, 10), strict=True):
        line.start(run, 0)
        line.boot(1)
        line.adopt(2, peer_id=line.process, incarnation=line.process, version=1)
        line.learn(3, peer_id=other, incarnation=other, version=1, age_ns=0)
    return events, lines


def found(events: list[Event]) -> tuple[RunReport, Counter[str]]:
    report, rows = audit(TableSource(table_from_events(events)))
    return report.runs[0], Counter(rows.column("kind").to_pylist())


def test_a_participant_without_a_trace_is_neither_invented_nor_a_ghost() -> None:
    events, lines = pair()
    lines[0].learn(4, peer_id=77, incarnation=5, version=1, age_ns=0)
    for line in lines:
        line.end(40 * S)
    report, kinds = found(events)
    assert kinds == {}
    assert (report.verdict, report.incomplete) == (Verdict.UNKNOWN, [77])


def test_another_incarnation_of_a_traced_id_may_be_a_stranger_s_too() -> None:
    events, lines = pair()
    lines[0].learn(4, peer_id=11, incarnation=9, version=1, age_ns=0)
    lines[0].expire(5, peer_id=11, incarnation=9, reason="left", age_ns=0)
    lines[0].learn(6, peer_id=11, incarnation=11, version=1, age_ns=0)
    for line in lines:
        line.end(40 * S)
    report, kinds = found(events)
    assert kinds == {}
    assert (report.verdict, report.incomplete) == (Verdict.UNKNOWN, [11])


def killed_and_restarted(
    *, told: bool, away_s: int = 2, expire_s: int | None = None
) -> list[Event]:
    """Participant 11 dies in silence after its last event, at 20 s, and comes back."""
    events, lines = pair()
    line, other = lines[1], lines[0]
    line.hear(20 * S, "Sync", 100)
    back = (21 + away_s) * S
    if told:
        other.gone(21 * S, process=11)
    if expire_s is not None:
        at = (20 + expire_s) * S
        other.expire(at, peer_id=11, incarnation=11, reason="silent", age_ns=6 * S)
    run = msgspec.json.decode(events[0].detail, type=RunSettings)
    again = DiscoveryTimeline("run", 11, events.append)
    again.start(run, back)
    again.boot(back)
    again.adopt(back + 1, peer_id=11, incarnation=12, version=1)
    again.learn(back + 2, peer_id=10, incarnation=10, version=1, age_ns=0)
    other.learn(back + 2, peer_id=11, incarnation=12, version=1, age_ns=0)
    for each in (other, again):
        each.end(back + 40 * S)
    return events


@pytest.mark.parametrize("told", [True, False])
def test_a_killed_and_restarted_participant_is_valid(told: bool) -> None:
    report, kinds = found(killed_and_restarted(told=told))
    assert kinds == {}
    assert (report.verdict, report.incomplete) == (Verdict.VALID, [])
    assert report.discovery is not None
    assert report.discovery.lives == 3


@pytest.mark.parametrize("told", [True, False])
def test_the_dead_may_be_forgotten_long_before_they_come_back(told: bool) -> None:
    events = killed_and_restarted(told=told, away_s=30, expire_s=7)
    report, kinds = found(events)
    assert (report.verdict, kinds) == (Verdict.VALID, {})


def test_a_death_that_nobody_tells_is_no_fault_of_those_who_forget_it_or_not() -> None:
    for forgets in (True, False):
        events, lines = pair()
        if forgets:
            lines[0].expire(7 * S, peer_id=11, incarnation=11, reason="silent", age_ns=6 * S)
        lines[0].end(60 * S)
        report, kinds = found(events)
        assert kinds == {}
        assert (report.verdict, report.incomplete) == (Verdict.UNKNOWN, [11])


def test_a_ghost_of_an_earlier_life_is_found() -> None:
    events = killed_and_restarted(told=False)
    left = [e for e in events if not (e.kind is EventKind.LEARN and e.incarnation == 12)]
    counted: Counter[int] = Counter()
    renumbered = []
    for each in left:
        if each.process == 10:
            each = msgspec.structs.replace(each, position=counted[10])
            counted[10] += 1
        renumbered.append(each)
    report, kinds = found(renumbered)
    assert report.verdict is Verdict.INVALID
    assert kinds == {"ghost": 1, "missing": 1}
