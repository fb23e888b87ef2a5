"""Verdicts: what a run promised, what was found, what can be said."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from orderwire.trace.events import NO_ORDER, RunSettings
from orderwire.verify.settle import Settled
from orderwire.verify.verdict import Verdict

EXAMPLES_MAX = 5
"""Violations of one check that a report shows."""


TITLES: Mapping[str, str] = {
    "W1": "the trace is well formed",
    "C1": "every copy delivered once, to its destinations only, or accounted for",
    "C2": "in time means delivered in time, late means discarded",
    "O1": "causal order",
    "O2": "FIFO order of each sender",
    "O3": "no delivery waits longer than causal order needs, none is premature",
    "S1": "recorded vector clocks are those of the run",
    "T1": "selective total order: two members agree on the order of what both have",
    "T2": "all orders fit into one",
    "T3": "atomic: all destinations that stay in the view have a message, or none has",
    "T4": "members agree on their views, and on what was handed over in each",
    "T5": "what came by the channel is in the channel's order",
    "D1": "when all is quiet, each participant lists the living ones, with their newest MAPs",
    "D3": "nobody comes back to life; evidence is young, and of what there was",
    "D4": "incarnations and versions grow, ids are one participant's",
}
ALWAYS = ("W1", "C1", "C2", "O1", "O2")
_ORDER_PROMISES: Mapping[str, frozenset[str]] = {
    "unordered": frozenset(),
    "fifo": frozenset({"O2"}),
    **dict.fromkeys(
        (
            "tachikawa-st",
            "total-to",
            "st-go-back",
            "st-csn",
            "sequencer-pb-resilient",
            "xamp",
            "totem-safe",
        ),
        frozenset({"O2", "T1", "T2", "T3", "T4", "T5"}),
    ),
    "source-sp": frozenset({"O2", "T3", "T4", "T5"}),
    # What a member delivers that crashes then, these promise nothing about.
    **dict.fromkeys(
        ("sequencer-pb", "sequencer-bb", "skeen", "totem-agreed"), frozenset({"O2", "T5"})
    ),
}
TOTAL_ORDER_CHECKS = ("T1", "T2", "T3", "T4", "T5")
_CAUSAL = frozenset({"O1", "O2"})
DISCOVERY_CHECKS = ("D1", "D3", "D4")
_ALL_OF_DISCOVERY = frozenset(DISCOVERY_CHECKS)
DISCOVERY_PROMISES: Mapping[str, frozenset[str]] = {
    "fdp": _ALL_OF_DISCOVERY,
    "bifdp": _ALL_OF_DISCOVERY,
    "mesh": _ALL_OF_DISCOVERY,
    "omg-sdp": _ALL_OF_DISCOVERY,
    "sdp-bloom": _ALL_OF_DISCOVERY,
    "fdp-literal": frozenset(),
    "bifdp-literal": frozenset(),
}
"""What protocols of discovery promise; one that is not here is held to all."""


class Durations(msgspec.Struct, frozen=True, kw_only=True):
    """How long something took, in nanoseconds; None where there was nothing."""

    count: int
    p50_ns: int | None
    p99_ns: int | None
    """Quantiles are at most 0.1 % too long."""
    max_ns: int | None


class MessageReport(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of discovery of one type."""

    message: str
    posted: int
    posted_bytes: int
    heard: int
    heard_bytes: int
    hops: dict[int, int]
    """How many were heard after so many hops of a broadcast."""


class Instant(msgspec.Struct, frozen=True, kw_only=True):
    """D2 and more at one instant: what is wrong in all views together."""

    time_ns: int
    pairs: int
    """Of participants that live."""
    missing: int
    """Pairs of which one does not list the other with a MAP."""
    outdated: int
    """Listings with a MAP that is not the newest."""
    ghosts: int
    """Listings of somebody who is not there."""


class DiscoveryReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a run's discovery took and cost."""

    protocol: str
    participants: int
    lives: int
    events: int
    quiet: int
    """Stretches of time in which D1 could be judged."""
    conflicts: int
    """Ids that somebody took while another participant had them."""
    pairs: int
    """Of lives that overlap, each both ways."""
    learnt: int
    """Of them, those of which one learnt the other's MAP."""
    from_start: Durations
    """From the start of the participant that was learnt."""
    from_both: Durations
    """From when both were there."""
    evidence: Durations
    """Age of the evidence when somebody was learnt or a newer MAP of it."""
    messages: list[MessageReport]
    series: list[Instant]
    """At up to 1,025 equally spaced instants, those left out at which nothing is new."""


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """One check of one run, or of all runs together."""

    id: str
    title: str
    verdict: Verdict
    promised: bool
    """False: the run's algorithm does not promise this; the check informs, it decides nothing."""
    violations: int
    examples: list[dict[str, Any]]


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """The audit of one run."""

    run_id: str
    verdict: Verdict
    settings: RunSettings | None
    events: int
    incomplete: list[int]
    """Members without a whole trace: without START, or without END."""
    accounting: dict[str, int]
    checks: list[CheckReport]
    discovery: DiscoveryReport | None = None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The audit of a source: all its runs."""

    verdict: Verdict
    checks: list[CheckReport]
    runs: list[RunReport]


def promised(settings: RunSettings | None, expect: str | None = None) -> frozenset[str]:
    """Return the checks that a run's algorithm promises to pass, or one that you `expect`.

    An algorithm that this table does not know is taken to promise causal order.
    """
    if expect in DISCOVERY_PROMISES:
        expect = None
    algorithm = expect or ("" if settings is None else settings.algorithm)
    timely = settings is not None and settings.lifetime_ns is not None
    order = _ORDER_PROMISES.get(algorithm, _CAUSAL)
    return frozenset({"W1", "C1", "S1"}) | order | (frozenset({"C2"}) if timely else frozenset())


class Found(msgspec.Struct, frozen=True):
    """How many violations of one check there are, and the first of them."""

    count: int
    examples: list[dict[str, Any]]


def tally_found(violations: pa.Table) -> dict[str, Found]:
    """Count the violations of one run by check, and pick examples in the table's order."""
    found: dict[str, Found] = {}
    for entry in violations.group_by("check").aggregate([([], "count_all")]).to_pylist():
        check = entry["check"]
        rows = violations.filter(pa.compute.equal(violations.column("check"), check))
        found[check] = Found(entry["count_all"], example_rows(rows.slice(0, EXAMPLES_MAX)))
    return found


def example_rows(violations: pa.Table) -> list[dict[str, Any]]:
    """Return violations as JSON objects: only what they say, `detail` taken apart."""
    examples = []
    for row in violations.to_pylist():
        detail = row.pop("detail")
        example = {name: value for name, value in row.items() if value != -1}
        if detail:
            example["detail"] = msgspec.json.decode(detail)
        examples.append(example)
    return examples


def conclude(
    run_id: str,
    settings: RunSettings | None,
    settled: Settled,
    found: Mapping[str, Found],
    extra_checked: Mapping[str, int] | None = None,
    expect: str | None = None,
    uncertain: bool = False,
    departed: Sequence[int] = (),
) -> RunReport:
    """Turn findings into verdicts.

    `extra_checked`: how much optional checks had to check.  `uncertain`: some of the trace could
    not be judged, so that nothing is VALID.  A run without an order has only its trace to judge.
    `departed` are members that the views of others have left behind: they need no END.
    """
    promises = promised(settings, expect)
    incomplete = [process for process in settled.incomplete if process not in departed]
    total = dict.fromkeys((check for check in TOTAL_ORDER_CHECKS[:-1] if check in promises), 0)
    checked = {
        "W1": settled.events,
        "C1": settled.accounting["written"],
        "C2": settled.outcomes,
        "O1": settled.deliveries,
        "O2": settled.deliveries,
        **total,
        **(extra_checked or {}),
    }
    if settings is not None and settings.algorithm == NO_ORDER:
        checked = {"W1": settled.events}
    checks = []
    for check in (check for check in TITLES if check in checked):
        amount = checked[check]
        seen = found.get(check, Found(0, []))
        unsure = uncertain or amount == 0 or bool(incomplete)
        unsure |= check == "C1" and settled.accounting["unfinished"] > 0
        unsure |= check == "C2" and (settings is None or settings.lifetime_ns is None)
        checks.append(
            CheckReport(
                id=check,
                title=TITLES[check],
                verdict=judge(seen.count, unsure),
                promised=check in promises,
                violations=seen.count,
                examples=seen.examples,
            )
        )
    return RunReport(
        run_id=run_id,
        verdict=worst([check.verdict for check in checks if check.promised]),
        settings=settings,
        events=settled.events,
        incomplete=incomplete,
        accounting=settled.accounting,
        checks=checks,
    )


def combine(runs: Sequence[RunReport]) -> Report:
    """Join the reports of all runs: a check counts the runs that promise it, if any does."""
    checks = []
    ids = dict.fromkeys(check.id for run in runs for check in run.checks)
    for check_id in ids:
        of = [check for run in runs for check in run.checks if check.id == check_id]
        promising = [check for check in of if check.promised]
        counted = promising or of
        checks.append(
            CheckReport(
                id=check_id,
                title=TITLES[check_id],
                verdict=worst([check.verdict for check in counted]),
                promised=bool(promising),
                violations=sum(check.violations for check in counted),
                examples=[row for check in counted for row in check.examples][:EXAMPLES_MAX],
            )
        )
    return Report(verdict=worst([run.verdict for run in runs]), checks=checks, runs=list(runs))


def worst(verdicts: Sequence[Verdict]) -> Verdict:
    """Return INVALID if any is, else UNKNOWN if any is or there is none, else VALID."""
    if Verdict.INVALID in verdicts:
        return Verdict.INVALID
    if not verdicts or Verdict.UNKNOWN in verdicts:
        return Verdict.UNKNOWN
    return Verdict.VALID


def judge(violations: int, unsure: bool) -> Verdict:
    """Return INVALID with any violation, else UNKNOWN when unsure."""
    if violations:
        return Verdict.INVALID
    return Verdict.UNKNOWN if unsure else Verdict.VALID
