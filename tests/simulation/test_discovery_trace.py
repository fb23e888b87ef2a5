"""The trace of a simulated domain is judged as the simulator judges it, by other code."""

from functools import partial

import msgspec
from recorded_domain import RecordedDomain, begin

from orderwire.discovery.settings import LITERAL, DiscoverySettings
from orderwire.kernel import NS_PER_S
from orderwire.trace.events import RunSettings
from orderwire.trace.schema import table_from_events
from orderwire.verify.audit import audit
from orderwire.verify.report import Report
from orderwire.verify.source import TableSource
from orderwire.verify.verdict import Verdict

S = NS_PER_S


def judged(domain: RecordedDomain, members: int) -> tuple[Report, list[dict[str, object]]]:
    """Audit the trace, told how many participants it has."""
    events, run = domain.finish()
    run = msgspec.structs.replace(run, members=members)
    detail = msgspec.json.encode(run).decode()
    told = [
        msgspec.structs.replace(event, detail=detail) if event.detail else event for event in events
    ]
    report, rows = audit(TableSource(table_from_events(told)))
    assert isinstance(report.runs[0].settings, RunSettings)
    return report, rows.to_pylist()


def test_a_domain_with_crashes_leaves_updates_and_restarts_is_valid() -> None:
    domain = RecordedDomain(4)
    begin(domain, 10, 0.5)
    for time_s, act in (
        (12, partial(domain.change, "p3", b"newer")),
        (13, partial(domain.crash, "p1", silent=True)),
        (13, partial(domain.crash, "p2")),
        (14, partial(domain.leave, "p4")),
        (15, partial(domain.start, "p2", b"again")),
        (30, partial(domain.change, "p0", b"newest")),
    ):
        domain.at(time_s * S, act)
    domain.run(50 * S)
    assert domain.faults_of_views() == []
    report, rows = judged(domain, 10)
    assert rows == []
    assert report.verdict is Verdict.VALID
    found = report.runs[0].discovery
    assert found is not None
    assert (found.lives, found.quiet) == (11, 3)
    assert found.series[-1].missing == 0
    joins = {message.message: message for message in found.messages}["Join"]
    assert joins.hops[1] > joins.hops[max(joins.hops)] > 0
    assert found.from_both.max_ns is not None
    assert found.from_both.max_ns < 2 * S


def test_the_literal_protocol_misses_the_pairs_that_the_simulator_counts() -> None:
    domain = RecordedDomain(5, settings=DiscoverySettings(mechanisms=LITERAL))
    begin(domain, 16, 0.01)
    domain.run(30 * S)
    wrong = domain.faults_of_views()
    assert len([fault for fault in wrong if "misses" in fault]) == len(wrong) > 0
    report, rows = judged(domain, 16)
    missing = [row for row in rows if row["kind"] == "missing"]
    assert len(missing) == len(wrong)
    found = report.runs[0].discovery
    assert found is not None
    assert found.series[-1].missing == len(wrong)
    assert report.verdict is Verdict.VALID, "it promises nothing"
    checks = {check.id: check.verdict for check in report.checks}
    assert checks["D1"] is Verdict.INVALID
