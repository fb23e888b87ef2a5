"""The oracles on traces written by hand: each promise broken once, with its evidence."""

from typing import Any

import msgspec
import pytest

from orderwire.kernel import destinations
from orderwire.trace.events import Event, EventKind, RunSettings
from orderwire.trace.schema import table_from_events
from orderwire.verify.audit import audit
from orderwire.verify.causal import (
    check_causal_order,
    check_delta_causal_order,
    vector_clock,
)
from orderwire.verify.delta import (
    check_liveness,
    check_no_duplicates,
    check_no_needless_waiting,
    needless_waits,
)
from orderwire.verify.fifo import check_fifo_order
from orderwire.verify.history import History, rebuild
from orderwire.verify.source import TableSource
from orderwire.verify.verdict import Verdict


class Writer:
    """Writes a trace, one process at a time."""

    def __init__(self, members: int = 3, lifetime: int | None = 100) -> None:
        self.settings = RunSettings(algorithm="by hand", members=members, lifetime_ns=lifetime)
        self.events: list[Event] = []
        self.positions = [0] * members
        self.stamps: dict[tuple[int, int], int] = {}

    def add(self, process: int, kind: EventKind, at: int, **columns: Any) -> None:
        self.events.append(
            Event(
                run_id="run",
                process=process,
                position=self.positions[process],
                kind=kind,
                time_ns=at,
                clock_ns=at,
                **columns,
            )
        )
        self.positions[process] += 1

    def send(
        self, process: int, number: int, at: int, *to: int, lifetime: int | None = None
    ) -> None:
        mask = destinations(to)
        self.stamps[process, number] = at
        self.add(
            process,
            EventKind.SEND,
            at,
            source=process,
            number=number,
            stamp_ns=at,
            destinations=mask.to_bytes(1, "little"),
            lifetime_ns=lifetime,
        )

    def _copy(self, source: int, number: int) -> dict[str, Any]:
        return {
            "source": source,
            "number": number,
            "stamp_ns": self.stamps.get((source, number), 0),
        }

    def deliver(
        self, process: int, source: int, number: int, at: int, arrived: int | None = None
    ) -> None:
        columns = self._copy(source, number)
        columns["arrived_ns"] = at if arrived is None else arrived
        self.add(process, EventKind.DELIVER, at, **columns)

    def discard(self, process: int, source: int, number: int, at: int, reason: str) -> None:
        columns = self._copy(source, number)
        self.add(process, EventKind.DISCARD, at, arrived_ns=at, reason=reason, **columns)

    def receive(self, process: int, source: int, number: int, at: int) -> None:
        columns = self._copy(source, number)
        self.add(process, EventKind.RECEIVE, at, **columns)

    def history(self, *, ended: bool = True) -> History:
        if ended:
            for process in range(self.settings.members):
                self.add(process, EventKind.END, 1_000)
        return rebuild(self.events, self.settings)


def overtaken() -> Writer:
    """Process 1 answers 0's question; 2 gets the answer first."""
    writer = Writer()
    writer.send(0, 0, 0, 1, 2)
    writer.deliver(1, 0, 0, 5)
    writer.send(1, 0, 6, 2)
    writer.deliver(2, 1, 0, 10)
    writer.deliver(2, 0, 0, 20)
    return writer


def test_an_overtaken_message_is_named_with_its_evidence() -> None:
    history = overtaken().history()
    for check in (check_causal_order(history), check_delta_causal_order(history)):
        assert check.verdict is Verdict.INVALID
        assert check.examined == 3
        (violation,) = check.violations
        assert (violation.process, violation.position) == (2, 1)
        assert (violation.source, violation.number) == (0, 0)
        assert (violation.other_source, violation.other_number) == (1, 0)
        assert violation.other_position == 0
        assert violation.why == (
            "message 0 of process 0 happened before message 0 of process 1, "
            "which was delivered first"
        )
    assert check_fifo_order(history).verdict is Verdict.VALID
    assert vector_clock(history, history.by_key[1, 0]) == [1, 0, 0]


@pytest.mark.parametrize(("sent", "weak"), [(100, Verdict.INVALID), (101, Verdict.VALID)])
def test_the_weaker_definition_looks_only_within_the_lifetime(sent: int, weak: Verdict) -> None:
    writer = Writer()
    writer.send(0, 0, 0, 1, 2)
    writer.deliver(1, 0, 0, 5)
    writer.send(1, 0, sent, 2)
    writer.deliver(2, 1, 0, sent)
    writer.deliver(2, 0, 0, sent, arrived=100)
    history = writer.history()
    assert check_causal_order(history).verdict is Verdict.INVALID
    assert check_delta_causal_order(history).verdict is weak


def test_sender_order_has_its_own_oracle() -> None:
    writer = Writer(members=2)
    writer.send(0, 0, 0, 1)
    writer.send(0, 1, 1, 1)
    writer.deliver(1, 0, 1, 5)
    writer.deliver(1, 0, 0, 6)
    (violation,) = check_fifo_order(writer.history()).violations
    assert (violation.position, violation.number, violation.other_number) == (1, 0, 1)


def test_an_incomplete_trace_is_unknown_unless_it_already_shows_a_violation() -> None:
    writer = Writer()
    writer.send(0, 0, 0, 1)
    writer.deliver(1, 0, 0, 5)
    check = check_causal_order(writer.history(ended=False))
    assert check.verdict is Verdict.UNKNOWN
    assert check.note == "no complete trace of process 0, 1, 2"
    assert check_causal_order(overtaken().history(ended=False)).verdict is Verdict.INVALID


def test_a_run_with_nothing_to_check_is_unknown() -> None:
    check = check_causal_order(Writer().history())
    assert (check.verdict, check.note) == (Verdict.UNKNOWN, "nothing to check")


def test_a_message_that_nobody_sent_is_a_violation_once_the_sender_has_ended() -> None:
    writer = Writer()
    writer.deliver(1, 0, 7, 5)
    (violation,) = check_causal_order(writer.history()).violations
    assert violation.why == "nobody sent message 7 of process 0"


def one_copy() -> Writer:
    writer = Writer(members=2)
    writer.send(0, 0, 0, 1)
    return writer


@pytest.mark.parametrize(
    ("delivered", "arrived", "slack", "why"),
    [
        (100, 100, 0, None),
        (101, 100, 1, None),
        (101, 100, 0, "delivered 1 ns after its deadline"),
        (101, 101, 0, "delivered although it arrived 1 ns after its deadline"),
        (50, 60, 0, "delivered at 50 ns, before it arrived"),
    ],
)
def test_deliveries_keep_their_deadline(
    delivered: int, arrived: int, slack: int, why: str | None
) -> None:
    writer = one_copy()
    writer.deliver(1, 0, 0, delivered, arrived=arrived)
    check = check_liveness(writer.history(), timer_slack_ns=slack)
    assert [violation.why for violation in check.violations] == ([] if why is None else [why])


@pytest.mark.parametrize(
    ("at", "reason", "why"),
    [
        (101, "late", None),
        (100, "late", "discarded although it arrived 0 ns before its deadline"),
        (50, "future", None),
        (50, "full", None),
        (50, "duplicate", "discarded as a duplicate, never delivered"),
    ],
)
def test_only_late_copies_are_discarded(at: int, reason: str, why: str | None) -> None:
    writer = one_copy()
    writer.discard(1, 0, 0, at, reason)
    check = check_liveness(writer.history())
    assert [violation.why for violation in check.violations] == ([] if why is None else [why])


def test_a_duplicate_of_a_delivered_message_may_be_discarded_at_any_time() -> None:
    writer = one_copy()
    writer.deliver(1, 0, 0, 5)
    writer.discard(1, 0, 0, 6, "duplicate")
    writer.discard(1, 0, 0, 500, "late")
    assert check_liveness(writer.history()).verdict is Verdict.VALID


def test_what_arrived_must_have_an_end() -> None:
    writer = one_copy()
    writer.receive(1, 0, 0, 50)
    (violation,) = check_liveness(writer.history()).violations
    assert violation.why == "arrived, and was neither delivered nor discarded"


def test_without_lifetime_nothing_is_late() -> None:
    writer = Writer(members=2, lifetime=None)
    writer.send(0, 0, 0, 1)
    writer.send(0, 1, 0, 1)
    writer.deliver(1, 0, 0, 10**12)
    writer.discard(1, 0, 1, 10**12, "late")
    (violation,) = check_liveness(writer.history()).violations
    assert violation.why == "discarded as late although messages live for ever"


def test_delivered_twice_or_to_a_stranger_is_a_violation() -> None:
    writer = Writer()
    writer.send(0, 0, 0, 1)
    writer.deliver(1, 0, 0, 5)
    writer.deliver(1, 0, 0, 6)
    writer.deliver(2, 0, 0, 7)
    assert [violation.why for violation in check_no_duplicates(writer.history()).violations] == [
        "message 0 of process 0 was delivered before, at position 0",
        "message 0 of process 0 was not addressed to process 2",
    ]


def waiting(lifetime: int | None, at: int) -> Writer:
    """An answer that arrived at 10 and was delivered at `at`; the question never came."""
    writer = Writer(lifetime=lifetime)
    writer.send(0, 0, 0, 1, 2)
    writer.deliver(1, 0, 0, 5)
    writer.send(1, 0, 6, 2)
    writer.deliver(2, 1, 0, at, arrived=10)
    return writer


@pytest.mark.parametrize(("at", "needless"), [(101, 0), (103, 2), (60, 0)])
def test_waiting_longer_than_causality_asks_for_is_needless(at: int, needless: int) -> None:
    history = waiting(100, at).history()
    assert needless_waits(history)[2, 0] == needless
    check = check_no_needless_waiting(history)
    assert check.verdict is (Verdict.INVALID if needless else Verdict.VALID)
    slack = check_no_needless_waiting(history, timer_slack_ns=2)
    assert slack.verdict is Verdict.VALID
    assert needless_waits(waiting(None, at).history())[2, 0] == 0


def test_traces_that_make_no_sense_are_refused() -> None:
    writer = one_copy()
    with pytest.raises(ValueError, match="no start event"):
        rebuild(writer.events)
    doubled = [*writer.events, *writer.events]
    with pytest.raises(ValueError, match="position 0, expected 1"):
        rebuild(doubled, writer.settings)
    writer = one_copy()
    writer.send(0, 0, 1, 1)
    with pytest.raises(ValueError, match="sends message 0 twice"):
        writer.history()
    circle = Writer(members=2)
    circle.deliver(0, 1, 0, 1)
    circle.send(0, 0, 2, 1)
    circle.deliver(1, 0, 0, 1)
    circle.send(1, 0, 2, 0)
    with pytest.raises(ValueError, match="its sending depends on that delivery"):
        circle.history()


def own_lifetimes() -> Writer:
    """m0 lives 20 ns, m1 as long as all, both from 0 to 2; m2 of 1 knows of m1."""
    trace = Writer()
    trace.send(0, 0, 10, 2, lifetime=20)
    trace.send(0, 1, 12, 1, 2)
    trace.deliver(1, 0, 1, 20)
    trace.send(1, 0, 21, 2, lifetime=30)
    return trace


def audited(trace: Writer) -> list[dict[str, Any]]:
    """What the kernels find, in a trace with START events before all others."""
    started = Writer(trace.settings.members)
    for process in range(trace.settings.members):
        detail = msgspec.json.encode(trace.settings).decode()
        started.add(process, EventKind.START, 0, detail=detail)
    later = [msgspec.structs.replace(e, position=e.position + 1) for e in trace.events]
    _, found = audit(TableSource(table_from_events([*started.events, *later])))
    return found.to_pylist()


def c2_of(trace: Writer) -> list[tuple[str, int]]:
    """What the kernels say of lifetimes, as (kind, position)."""
    return [(r["kind"], r["position"] - 1) for r in audited(trace) if r["check"] == "C2"]


@pytest.mark.parametrize(
    ("arrived", "kind"), [(29, "rejected"), (30, "rejected"), (31, None), (200, None)]
)
def test_expired_is_what_came_strictly_after_its_own_deadline(
    arrived: int, kind: str | None
) -> None:
    trace = own_lifetimes()
    trace.discard(2, 0, 0, arrived, "expired")
    check = check_liveness(trace.history())
    assert (check.verdict is Verdict.INVALID) == (kind is not None)
    assert c2_of(trace) == ([(kind, 0)] if kind else [])


@pytest.mark.parametrize(("arrived", "kind"), [(30, None), (31, "late-accepted")])
def test_nothing_is_delivered_after_its_own_deadline(arrived: int, kind: str | None) -> None:
    trace = own_lifetimes()
    trace.deliver(2, 0, 0, arrived)
    assert (check_liveness(trace.history()).verdict is Verdict.INVALID) == (kind is not None)
    assert c2_of(trace) == ([(kind, 0)] if kind else [])


def test_what_arrived_by_the_runs_lifetime_alone_is_not_late() -> None:
    """Late is past the run's lifetime; past its own is expired."""
    trace = own_lifetimes()
    trace.discard(2, 0, 0, 50, "late")
    (violation,) = check_liveness(trace.history()).violations
    assert "60 ns before its deadline" in violation.why
    assert c2_of(trace) == [("rejected", 0)]


@pytest.mark.parametrize("forced", [True, False])
def test_overtaken_is_what_a_delivered_message_has_in_its_past(forced: bool) -> None:
    trace = own_lifetimes()
    if forced:
        trace.deliver(2, 1, 0, 51, arrived=30)  # its own deadline
    trace.discard(2, 0, 1, 60, "overtaken")
    if not forced:
        trace.deliver(2, 1, 0, 61, arrived=30)
    check = check_liveness(trace.history(), timer_slack_ns=1_000)
    assert ("nothing behind it" in str(check.violations)) == (not forced)
    found = [row for row in c2_of(trace) if row[0] == "not-overtaken"]
    assert found == ([] if forced else [("not-overtaken", 0)])
    if forced:  # it waited for the other as long as it could, and no longer
        assert check_no_needless_waiting(trace.history(ended=False)).verdict is not Verdict.INVALID


@pytest.mark.parametrize("lifetime", [0, -5, 101])
def test_a_lifetime_out_of_bounds_is_told_with_its_value(lifetime: int) -> None:
    trace = Writer()
    trace.send(0, 0, 10, 1, lifetime=lifetime)
    (violation,) = check_liveness(trace.history()).violations
    assert violation.why == f"sent with a lifetime of {lifetime} ns, the run's is 100"
    assert c2_of(trace) == [("out-of-bounds", 0)]


def test_what_arrived_by_its_own_deadline_must_be_delivered() -> None:
    trace = own_lifetimes()
    trace.receive(2, 0, 0, 30)
    trace.receive(2, 0, 1, 113)  # after the run's lifetime: lost, as far as C2 is concerned
    trace.history()
    missed = {
        (r["check"], r["kind"], r["source"], r["number"])
        for r in audited(trace)
        if r["kind"] in ("undelivered", "missing") and r["process"] == 2
    }
    assert missed == {("C2", "undelivered", 0, 0), ("C1", "missing", 0, 1), ("C1", "missing", 1, 0)}
