"""S1: recorded vector clocks are followed, and every forged entry is noticed."""

from random import Random

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from random_runs import RandomRun

from orderwire.trace.events import Event, EventKind
from orderwire.trace.schema import table_from_events
from orderwire.verify.audit import AuditOptions, audit
from orderwire.verify.causal import vector_clock
from orderwire.verify.history import rebuild
from orderwire.verify.source import TableSource
from orderwire.verify.verdict import Verdict

OPTIONS = AuditOptions(clocks=True)


def with_clocks(events: list[Event]) -> list[Event]:
    """Record with each send how many sends of each process lie in its past."""
    history = rebuild(events)
    return [
        msgspec.structs.replace(
            event, vector_clock=vector_clock(history, history.by_key[event.source, event.number])
        )
        if event.kind is EventKind.SEND
        else event
        for event in events
    ]


def clocks_of(events: list[Event]) -> tuple[Verdict, set[tuple[str, int, int]]]:
    report, rows = audit(TableSource(table_from_events(events)), OPTIONS)
    (check,) = (check for check in report.checks if check.id == "S1")
    return check.verdict, {
        (row["kind"], row["process"], row["position"])
        for row in rows.to_pylist()
        if row["check"] == "S1"
    }


@given(seed=st.integers(0, 2**32))
@settings(max_examples=30)
def test_true_clocks_are_valid_and_a_forged_entry_is_not(seed: int) -> None:
    chance = Random(seed)
    run = RandomRun(chance)
    events = with_clocks(run.run(12))
    assert clocks_of(events) == (Verdict.VALID, set())
    at = chance.choice([i for i, event in enumerate(events) if event.kind is EventKind.SEND])
    clock = list(events[at].vector_clock or [])
    clock[chance.randrange(len(clock))] += 1
    events[at] = msgspec.structs.replace(events[at], vector_clock=clock)
    verdict, found = clocks_of(events)
    assert verdict is Verdict.INVALID
    assert ("forged", events[at].process, events[at].position) in found


def test_a_send_without_its_clock_is_told() -> None:
    events = with_clocks(RandomRun(Random(3)).run(12))
    at = [i for i, event in enumerate(events) if event.kind is EventKind.SEND][-1]
    events[at] = msgspec.structs.replace(events[at], vector_clock=None)
    assert ("absent", events[at].process, events[at].position) in clocks_of(events)[1]


def test_a_trace_without_clocks_has_nothing_to_check() -> None:
    assert clocks_of(RandomRun(Random(3)).run(12)) == (Verdict.UNKNOWN, set())
