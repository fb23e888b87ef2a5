"""Verdicts: what a run promised, what was found, what can be said."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from orderwire.trace.events import RunSettings
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
}
ALWAYS = ("W1", "C1", "C2", "O1", "O2")
_ORDER_PROMISES: Mapping[str, frozenset[str]] = {
    "unordered": frozenset(),
    "fifo": frozenset({"O2"}),
}
_CAUSAL = frozenset({"O1", "O2"})


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


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The audit of a source: all its runs."""

    verdict: Verdict
    checks: list[CheckReport]
    runs: list[RunReport]


def promised(settings: RunSettings | None, expect: str | None = None) -> frozenset[str]:
    """Return the checks that a run's algorithm promises to pass, or one that you `expect`.

    An algorithm that this table does not know is taken to promise causal order.
    """
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
) -> RunReport:
    """Turn findings into verdicts.

    `extra_checked`: how much optional checks had to check.  `uncertain`: some of the trace could
    not be judged, so that nothing is VALID.
    """
    checked = {
        "W1": settled.events,
        "C1": settled.accounting["written"],
        "C2": settled.outcomes,
        "O1": settled.deliveries,
        "O2": settled.deliveries,
        **(extra_checked or {}),
    }
    promises = promised(settings, expect)
    checks = []
    for check, amount in checked.items():
        seen = found.get(check, Found(0, []))
        unsure = uncertain or amount == 0 or bool(settled.incomplete)
        unsure |= check == "C1" and settled.accounting["unfinished"] > 0
        unsure |= check == "C2" and (settings is None or settings.lifetime_ns is None)
        checks.append(
            CheckReport(
                id=check,
                title=TITLES[check],
                verdict=_verdict(seen.count, unsure),
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
        incomplete=settled.incomplete,
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


def _verdict(violations: int, unsure: bool) -> Verdict:
    if violations:
        return Verdict.INVALID
    return Verdict.UNKNOWN if unsure else Verdict.VALID
