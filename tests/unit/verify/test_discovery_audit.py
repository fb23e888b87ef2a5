"""Discovery is judged valid where it was, and every way in which it can be broken is told."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from random_domains import SECONDS, S, trio

from orderwire.trace.discovery_events import DiscoveryTimeline
from orderwire.trace.events import Event, EventKind, RunSettings
from orderwire.trace.reader import write_trace
from orderwire.trace.schema import events_from_table, table_from_events
from orderwire.verify.audit import AuditOptions, audit
from orderwire.verify.discovery import Domain as Definitions
from orderwire.verify.discovery_audit import discovery_pairs, open_domain
from orderwire.verify.discovery_synthetic import DomainFaults, DomainSettings, synthetic_domain
from orderwire.verify.kernels.survey import SURVEYED, survey
from orderwire.verify.report import Report, RunReport
from orderwire.verify.source import ParquetSource, TableSource, settings_of
from orderwire.verify.synthetic import SyntheticSettings, synthetic_table
from orderwire.verify.verdict import Verdict

SMALL = DomainSettings(participants=7, crash_ratio=0.3, leave_ratio=0.3, heartbeats=1, seed=2)


def verdicts(report: Report) -> dict[str, Verdict]:
    return {check.id: check.verdict for check in report.checks}


def audited(table: pa.Table, expect: str | None = None) -> tuple[Report, Counter[str]]:
    report, rows = audit(TableSource(table), AuditOptions(expect=expect))
    return report, Counter(rows.column("kind").to_pylist())


def test_a_domain_as_it_should_be_is_valid_and_measured() -> None:
    table = synthetic_domain(SMALL)
    report, kinds = audited(table)
    assert report.verdict is Verdict.VALID, kinds
    assert set(verdicts(report)) == {"W1", "D1", "D3", "D4"}
    (run,) = report.runs
    found = run.discovery
    assert found is not None
    domain = Definitions(events_from_table(table), SMALL.run_settings())
    pairs = domain.pairs()
    assert (found.pairs, found.learnt) == (domain.pairs_together(), len(pairs))
    assert 7 * 6 < found.learnt <= found.pairs
    for told, exact in (
        (found.from_start, sorted(pair.from_start_ns for pair in pairs)),
        (found.from_both, sorted(pair.from_both_ns for pair in pairs)),
    ):
        assert told.count == len(exact)
        assert told.max_ns == exact[-1]
        assert told.p50_ns is not None
        assert 1 <= told.p50_ns / exact[(len(exact) + 1) // 2 - 1] < 1.001
    assert found.series[-1].missing == found.series[-1].ghosts == 0
    assert max(instant.missing for instant in found.series) > 0
    traffic = domain.traffic()
    for told_of in found.messages:
        name = told_of.message
        mine = {
            hop: n
            for (m, hop, k, w), n in traffic.items()
            if m == name and w == "messages" and k is EventKind.HEAR and hop
        }
        assert told_of.hops == mine
        assert told_of.posted == sum(
            n
            for (m, _, k, w), n in traffic.items()
            if m == name and w == "messages" and k is EventKind.POST
        )


@pytest.mark.parametrize(
    ("faults", "kinds", "check"),
    [
        (DomainFaults(unheard=0.15), {"missing"}, "D1"),
        (DomainFaults(outdated=0.2), {"outdated"}, "D1"),
        (DomainFaults(immortal=0.4), {"ghost"}, "D1"),
        (DomainFaults(risen=0.5), {"ghost", "resurrected", "stale", "after-left"}, "D3"),
        (DomainFaults(stale=0.2), {"stale"}, "D3"),
    ],
)
def test_a_broken_twin_is_rejected(faults: DomainFaults, kinds: set[str], check: str) -> None:
    table = synthetic_domain(msgspec.structs.replace(SMALL, faults=faults))
    report, found = audited(table)
    assert report.verdict is Verdict.INVALID
    assert verdicts(report)[check] is Verdict.INVALID
    assert set(found) == kinds
    domain = Definitions(events_from_table(table), SMALL.run_settings())
    assert found == Counter(finding.kind for finding in domain.findings())


def replaced(at: Callable[[Event], bool], **fields: object) -> Callable[[list[Event]], list[Event]]:
    def change(events: list[Event]) -> list[Event]:
        assert any(at(event) for event in events)
        return [
            msgspec.structs.replace(event, **fields) if at(event) else event for event in events
        ]

    return change


def of(process: int, kind: EventKind, peer_id: int | None = None) -> Callable[[Event], bool]:
    def matches(event: Event) -> bool:
        return (
            (event.process, event.kind) == (process, kind)
            and (peer_id is None or event.peer_id == peer_id)
        )  # fmt: skip

    return matches


def without(at: Callable[[Event], bool]) -> Callable[[list[Event]], list[Event]]:
    """Drop events; the positions of those behind close up."""

    def change(events: list[Event]) -> list[Event]:
        kept: list[Event] = []
        counts: Counter[int] = Counter()
        for event in events:
            if not at(event):
                kept.append(msgspec.structs.replace(event, position=counts[event.process]))
                counts[event.process] += 1
        return kept

    return change


ADOPT, LEARN, EXPIRE = EventKind.ADOPT, EventKind.LEARN, EventKind.EXPIRE


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda events: events, set()),
        (without(of(0, LEARN, 11)), {("D1", "missing")}),
        (replaced(of(0, LEARN, 11), number=0), {("D1", "missing")}),
        (without(of(0, EXPIRE)), {("D1", "ghost")}),
        (replaced(of(1, EXPIRE), incarnation=2), {("D1", "ghost")}),
        (without(of(1, ADOPT)), {("D1", "no-id"), ("D1", "ghost"), ("D3", "invented")}),
        (replaced(of(0, LEARN, 11), number=2), {("D1", "ahead"), ("D3", "invented")}),
        (
            replaced(of(1, ADOPT), number=2),
            {("D1", "outdated")},
        ),
        (
            replaced(of(1, ADOPT), peer_id=10, incarnation=2),
            {("D1", "missing"), ("D1", "ghost"), ("D3", "invented"), ("D4", "shared")},
        ),
        (
            replaced(of(0, LEARN, 12), arrived_ns=-7 * S),
            {("D3", "stale")},
        ),
        (without(of(2, EventKind.GONE)), {("D1", "missing")}),
        (
            replaced(of(0, EXPIRE), kind=LEARN, number=1, time_ns=28 * S, clock_ns=28 * S),
            {("D1", "ghost"), ("D3", "resurrected"), ("D3", "stale")},
        ),
        (
            replaced(
                of(0, EXPIRE), kind=LEARN, number=1, arrived_ns=25 * S
            ),
            {("D1", "ghost"), ("D3", "too-fresh")},
        ),
    ],
)  # fmt: skip
def test_each_way_of_being_wrong_has_its_name(
    change: Callable[[list[Event]], list[Event]], expected: set[tuple[str, str]]
) -> None:
    events = change(trio()[0])
    _, rows = audit(TableSource(table_from_events(events)))
    found = {(row["check"], row["kind"]) for row in rows.to_pylist()}
    assert found == expected, rows.to_pylist()


def test_who_is_missing_is_told_with_its_id_and_since_when() -> None:
    events = without(of(0, LEARN, 11))(trio()[0])
    _, rows = audit(TableSource(table_from_events(events)))
    (row,) = rows.to_pylist()
    assert (row["process"], row["source"], row["time_ns"]) == (0, 1, 10 * S + 2)
    assert msgspec.json.decode(row["detail"]) == {
        "peer_id": "11",
        "incarnation": "2",
        "since_ns": 2,
    }


@pytest.mark.parametrize(("incarnation", "kinds"), [(4, set()), (3, {"not-newer", "ghost"})])
def test_an_id_comes_back_only_with_a_larger_incarnation(incarnation: int, kinds: set[str]) -> None:
    events, _ = trio()
    del events[-3:]
    counts = Counter(event.process for event in events)
    lines = []
    for process in range(3):
        line = DiscoveryTimeline("run", process, events.append)
        line.resume(counts[process])
        lines.append(line)
    lines[2].boot(28 * S)
    lines[2].adopt(29 * S, peer_id=12, incarnation=incarnation, version=1)
    for other in range(2):
        lines[2].learn(30 * S, peer_id=10 + other, incarnation=1 + other, version=1, age_ns=0)
        lines[other].learn(30 * S, peer_id=12, incarnation=incarnation, version=1, age_ns=0)
    for line in lines:
        line.end(60 * S)
    _, rows = audit(TableSource(table_from_events(events)))
    found = set(rows.column("kind").to_pylist())
    assert found >= kinds
    assert bool(found) == bool(kinds)


def test_ids_of_64_bits_are_told_as_decimals() -> None:
    big = 2**64 - 1
    events = replaced(of(1, ADOPT), peer_id=big, incarnation=big)(trio()[0])
    events = replaced(of(0, LEARN, 11), peer_id=big, incarnation=big, number=7)(events)
    report, rows = audit(TableSource(table_from_events(events)))
    ahead = [row for row in rows.to_pylist() if row["kind"] == "ahead"]
    assert [(row["process"], row["source"], row["number"]) for row in ahead] == [(0, 1, 7)]
    assert msgspec.json.decode(ahead[0]["detail"]) == {
        "peer_id": str(big),
        "incarnation": str(big),
        "newest_version": 1,
        "age_ns": 0,
    }
    assert report.verdict is Verdict.INVALID


def test_protocols_promise_and_can_be_held_to_more() -> None:
    broken = msgspec.structs.replace(
        SMALL, faults=DomainFaults(unheard=0.2), protocol="fdp-literal"
    )
    table = synthetic_domain(broken)
    report, _ = audited(table)
    assert report.verdict is Verdict.VALID
    assert verdicts(report)["D1"] is Verdict.INVALID
    assert audited(table, expect="fdp")[0].verdict is Verdict.INVALID
    fine = synthetic_domain(SMALL)
    assert audited(fine, expect="jang-delta")[0].verdict is Verdict.VALID


def test_an_incomplete_trace_is_not_valid_unless_somebody_says_why() -> None:
    events, _ = trio()
    cut = [event for event in events if not of(2, EventKind.END)(event)]
    assert audited(table_from_events(cut))[0].verdict is Verdict.VALID, "it is known to be gone"
    cut = [event for event in events if not of(1, EventKind.END)(event)]
    report, _ = audited(table_from_events(cut))
    assert report.verdict is Verdict.UNKNOWN
    assert report.runs[0].incomplete == [1]
    holed = [event for event in events if not of(1, EventKind.BOOT)(event)]
    report, kinds = audited(table_from_events(holed))
    assert verdicts(report)["W1"] is Verdict.INVALID
    assert kinds == {"hole": 1}


def test_a_killed_participant_is_ended_by_whoever_killed_it() -> None:
    events, _ = trio()
    killed = [
        e
        for e in events
        if e.process != 2 or e.kind in (*(EventKind.START, EventKind.BOOT), ADOPT, LEARN)
    ]
    told = DiscoveryTimeline("run", 0, killed.append, lambda: 99)
    told.gone(20 * S, process=2)
    ended = killed.pop()
    at = next(i for i, e in enumerate(killed) if of(0, EXPIRE)(e))
    killed.insert(at, msgspec.structs.replace(ended, position=killed[at].position))
    for later in range(at + 1, len(killed)):
        if killed[later].process == 0:
            killed[later] = msgspec.structs.replace(
                killed[later], position=killed[later].position + 1
            )
    report, kinds = audited(table_from_events(killed))
    assert report.verdict is Verdict.VALID, kinds


def test_order_and_discovery_in_one_run_are_both_judged() -> None:
    ordered = synthetic_table(SyntheticSettings(events=2_000, members=4, fan_out=2))
    other = synthetic_domain(SMALL)
    report, _ = audited(pa.concat_tables([ordered, other]))
    assert [run.run_id for run in report.runs] == ["domain", "synthetic"]
    assert report.verdict is Verdict.VALID
    assert {"W1", "C1", "C2", "O1", "O2", "D1", "D3", "D4"} == set(verdicts(report))
    mixed = mix(trio()[0])
    report, _ = audited(table_from_events(mixed))
    assert {check: verdict for check, verdict in verdicts(report).items() if check != "C2"} == (
        dict.fromkeys(("W1", "C1", "O1", "O2", "D1", "D3", "D4"), Verdict.VALID)
    )
    broken = without(of(0, LEARN, 11))(mixed)
    report, _ = audited(table_from_events(broken))
    assert [check.id for check in report.checks if check.violations] == ["D1"]


def mix(events: list[Event]) -> list[Event]:
    """Let process 0 send a message to process 1 just before they end."""
    run = RunSettings(algorithm="fifo", members=3, discovery=SECONDS)
    detail = msgspec.json.encode(run).decode()
    message = {"source": 0, "number": 0, "stamp_ns": 30 * S}
    mixed: list[Event] = []
    for event in events:
        fields: dict[str, object] = {}
        if event.kind is EventKind.START:
            fields["detail"] = detail
        if event.kind is EventKind.END and event.process < 2:
            kind = (EventKind.SEND, EventKind.DELIVER)[event.process]
            mixed.append(
                Event(
                    run_id="run",
                    process=event.process,
                    position=event.position,
                    kind=kind,
                    time_ns=(30 + event.process) * S,
                    clock_ns=(30 + event.process) * S,
                    arrived_ns=31 * S if kind is EventKind.DELIVER else -1,
                    destinations=b"\x02" if kind is EventKind.SEND else b"",
                    **message,
                )
            )
            fields["position"] = event.position + 1
        mixed.append(msgspec.structs.replace(event, **fields))
    return mixed


def test_settings_that_say_nothing_of_discovery_leave_it_unknown() -> None:
    events = mix(trio()[0])
    silent = msgspec.json.encode(RunSettings(algorithm="fifo", members=3)).decode()
    events = replaced(lambda event: event.kind is EventKind.START, detail=silent)(events)
    report, _ = audited(table_from_events(events))
    assert verdicts(report)["D1"] is Verdict.UNKNOWN


def test_pairs_tell_who_learnt_whom_when() -> None:
    source = TableSource(table_from_events(trio()[0]))
    (surveyed,) = survey(source.batches(SURVEYED, None)).values()
    settings, _ = settings_of(source.starts(), "run")
    domain = open_domain(source, surveyed, settings, share_events=1)
    assert domain is not None
    assert len(domain.shares) == 3
    pairs = discovery_pairs(source, domain)
    assert pairs.num_rows == 6
    assert pairs.slice(0, 1).to_pylist() == [
        {
            "run_id": "run",
            "process": 0,
            "boot_ns": 1,
            "of": 1,
            "of_boot_ns": 1,
            "peer_id": "11",
            "incarnation": "2",
            "learnt_ns": 3,
            "from_start_ns": 2,
            "from_both_ns": 2,
        }
    ]


def test_a_run_of_order_alone_has_no_discovery() -> None:
    report, _ = audited(synthetic_table(SyntheticSettings(events=500, members=4, fan_out=2)))
    runs: list[RunReport] = report.runs
    assert [run.discovery for run in runs] == [None]


def test_sources_read_kinds_of_a_run_and_of_processes(tmp_path: Path) -> None:
    table = pa.concat_tables([table_from_events(trio()[0]), synthetic_domain(SMALL)])
    path = tmp_path / "trace.parquet"
    write_trace(path, table)
    columns = ("run_id", "process", "position")
    for source in (TableSource(table), ParquetSource([str(path)])):
        assert source.of_kinds((), columns).num_rows == 0
        adopted = source.of_kinds(("adopt", "boot"), columns, "run", (1, 3))
        assert sorted(zip(*adopted.to_pydict().values(), strict=True)) == [
            ("run", process, position) for process in (1, 2) for position in (1, 2)
        ]
        assert source.of_kinds(("start",), columns).num_rows == 3 + SMALL.participants
