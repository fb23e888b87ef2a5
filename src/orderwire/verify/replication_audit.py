"""The audit of replication histories: I1–I10 for each partition, then together.  [S004:4.5]"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import pyarrow as pa

from orderwire.trace.replication_schema import PARTITION_COLUMNS
from orderwire.verify.replication import (
    Acknowledged,
    Committed,
    Delivered,
    Elected,
    Event,
    Held,
    Judge,
    Missing,
    OnDisk,
    Requested,
    RoundEnd,
    Settled,
    TookLower,
)
from orderwire.verify.replication_history import Key, events_from, histories_from
from orderwire.verify.report import EXAMPLES_MAX, worst
from orderwire.verify.report import judge as verdict_of
from orderwire.verify.verdict import Verdict

TITLES: Mapping[str, str] = {
    "I1": "acknowledged by all: committed there, and there for ever",
    "I2": "what is committed is the same on every replica",
    "I3": "consumers get every committed message in order, and nothing else",
    "I4": "acknowledged by one: committed, or on some disk",
    "I5": "no message is committed twice, none that nobody sent",
    "I6": "high watermarks and syncStart never go back, S ≤ E",
    "I7": "one original in each epoch, nothing stored for a lower one",
    "I8": "after the faults everybody is in sync and all that is acknowledged committed",
    "I9": "each session's messages are committed in their order",
    "I10": "logs have no gaps and do not end in one",
}
BREACHES_MAX = 100_000
"""Of one partition; more are not counted."""


class PartitionFindings(msgspec.Struct, frozen=True):
    """One invariant at one partition."""

    run_id: str
    topic: str
    partition: int
    invariant: str
    examined: int
    """How many events or messages could have broken it."""
    promised: bool
    """False: the history says that it is not promised."""
    sentences: list[str]
    """One for each breach, in the order in which they were found."""
    missing: list[str]
    """What the history lacks: without a breach the verdict is not known."""


class HistoryCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One invariant over all partitions."""

    id: str
    title: str
    verdict: Verdict
    promised: bool
    examined: int
    violations: int
    examples: list[dict[str, str | int]]


class HistoryPartition(msgspec.Struct, frozen=True, kw_only=True):
    """One partition, in short."""

    run_id: str
    topic: str
    partition: int
    verdict: Verdict
    violations: dict[str, int]
    missing: list[str] = []
    """What its history lacks."""


class HistoryReport(msgspec.Struct, frozen=True, kw_only=True):
    """The audit of replication histories."""

    verdict: Verdict
    checks: list[HistoryCheck]
    partitions: list[HistoryPartition]


def judge_partition(key: Key, events: Iterable[Event]) -> list[PartitionFindings]:
    """Judge one partition's history."""
    judge = Judge(breaches_max=BREACHES_MAX)
    examined = dict.fromkeys(TITLES, 0)
    promised = True
    missing: list[str] = []
    for event in events:
        judge.take(event)
        if isinstance(event, Missing):
            missing.append(f"{event.what} ({event.rows} rows)" if event.rows else event.what)
        promised = _count(event, examined, promised)
    found: dict[str, list[str]] = defaultdict(list)
    for breach in judge.breaches:
        found[breach.invariant].append(breach.sentence)
    return [
        PartitionFindings(
            *key, each, examined[each], promised or each != "I4", found[each], missing
        )
        for each in TITLES
    ]


def _count(event: Event, examined: dict[str, int], promised: bool) -> bool:
    """Note what an event could have broken; returns whether acks=1 is still a promise."""
    match event:
        case Requested():
            examined["I9"] += len(event.messages)
        case Acknowledged():
            examined["I1" if event.acks == -1 else "I4"] += len(event.messages)
        case Delivered():
            examined["I3"] += len(event.records)
        case Committed():
            examined["I6"] += 1
            examined["I5"] += sum(len(batch.messages) for batch in event.batches)
            examined["I10"] += len(event.batches)
        case Held():
            examined["I2"] += len(event.batches)
        case Elected() | TookLower():
            examined["I7"] += 1
        case RoundEnd():
            examined["I6"] += 1
        case OnDisk():
            return promised and not event.acks_one_lost
        case Settled():
            examined["I8"] += 1
            return promised and not event.acks_one_lost
    return promised


def judge_rows(table: pa.Table) -> list[PartitionFindings]:
    """Judge the rows of one partition.  Raises TraceError."""
    key = tuple(table.column(name)[0].as_py() for name in PARTITION_COLUMNS)
    return judge_partition((key[0], key[1], key[2]), events_from(table))


def audit_table(table: pa.Table) -> HistoryReport:
    """Judge all partitions of a table, in one process.  Raises TraceError."""
    findings = [
        each
        for key, events in histories_from(table).items()
        for each in judge_partition(key, events)
    ]
    counted = [
        Counted(
            each.run_id,
            each.topic,
            each.partition,
            each.invariant,
            each.examined,
            each.promised,
            len(each.sentences),
            each.sentences[:EXAMPLES_MAX],
            each.missing,
        )
        for each in findings
    ]
    return conclude(counted)


class Counted(msgspec.Struct, frozen=True):
    """Findings with no more sentences than a report shows."""

    run_id: str
    topic: str
    partition: int
    invariant: str
    examined: int
    promised: bool
    violations: int
    examples: list[str]
    missing: list[str]


def conclude(findings: Sequence[Counted]) -> HistoryReport:
    """Put the findings of all partitions together."""
    checks = []
    for invariant, title in TITLES.items():
        of = [each for each in findings if each.invariant == invariant]
        violations = sum(each.violations for each in of)
        examined = sum(each.examined for each in of)
        examples: list[dict[str, str | int]] = [
            {
                "run_id": each.run_id,
                "topic": each.topic,
                "partition": each.partition,
                "sentence": sentence,
            }
            for each in of
            for sentence in each.examples
        ]
        checks.append(
            HistoryCheck(
                id=invariant,
                title=title,
                verdict=verdict_of(
                    violations, unsure=examined == 0 or any(each.missing for each in of)
                ),
                # Where nobody asked for acks=1 there is nothing to promise.
                promised=any(
                    each.promised and (each.examined > 0 or invariant != "I4") for each in of
                ),
                examined=examined,
                violations=violations,
                examples=examples[:EXAMPLES_MAX],
            )
        )
    partitions = []
    for key in sorted({(each.run_id, each.topic, each.partition) for each in findings}):
        of = [each for each in findings if (each.run_id, each.topic, each.partition) == key]
        broken = {each.invariant: each.violations for each in of if each.violations}
        missing = of[0].missing
        partitions.append(
            HistoryPartition(
                run_id=key[0],
                topic=key[1],
                partition=key[2],
                verdict=verdict_of(len(broken), unsure=bool(missing)),
                violations=broken,
                missing=missing,
            )
        )
    verdict = worst([check.verdict for check in checks if check.promised])
    return HistoryReport(verdict=verdict, checks=checks, partitions=partitions)
