"""The audit of a run's discovery: what its shares found, added up and reported.

`audit_discovery` runs the shares here, one after the other; whoever runs them elsewhere takes
`Domain` to say what to run and `conclude_discovery` to say what came of it.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import msgspec
import numpy as np
import pyarrow as pa

from orderwire.trace.events import NO_ORDER, RunSettings
from orderwire.verify.kernels.columns import I64, KINDS, integers
from orderwire.verify.kernels.discovery_columns import DISCOVERY_NEEDED
from orderwire.verify.kernels.discovery_cuts import TOLD_KINDS, cuts_of
from orderwire.verify.kernels.discovery_facts import Facts, discovery_of, facts_of
from orderwire.verify.kernels.discovery_ids import conflicts, judge_ids
from orderwire.verify.kernels.discovery_measures import (
    AGE,
    FROM_BOTH,
    FROM_START,
    PAIRS,
    Histogram,
    instants_of,
    lives_at,
)
from orderwire.verify.kernels.discovery_share import (
    GHOSTS,
    OUTDATED,
    RIGHT,
    Share,
    audit_share,
    join_shares,
    pairs_of_share,
    plan_shares,
    share_columns,
    share_kinds,
)
from orderwire.verify.kernels.lives import NO_LIVES, Lives, lined_up
from orderwire.verify.kernels.survey import Survey
from orderwire.verify.kernels.violations import merge
from orderwire.verify.report import (
    DISCOVERY_CHECKS,
    DISCOVERY_PROMISES,
    TITLES,
    CheckReport,
    DiscoveryReport,
    Durations,
    Found,
    Instant,
    MessageReport,
    RunReport,
    judge,
    tally_found,
    worst,
)
from orderwire.verify.source import TraceSource


@dataclass(frozen=True)
class Domain:
    """A run's discovery that is to be audited."""

    run_id: str
    settings: RunSettings | None
    assumed: RunSettings
    """The settings, or what to assume without any."""
    truth: pa.Table
    """The run's events of the kinds `TOLD_KINDS`, with the columns `DISCOVERY_NEEDED`, of which
    `lives` have been lined up."""
    first_ns: int
    last_ns: int
    events: int
    """Of the run."""
    discovery: int
    """Of them, those of discovery."""
    participant: int
    """Highest process."""
    share_events: int = 0
    """Events a share should hold; 0 chooses."""
    lives: Lives = NO_LIVES
    cuts: tuple[tuple[int, int], ...] = ()
    """(process, time) of the last events of lives of which the end is not told."""

    @property
    def alone(self) -> bool:
        """The run is about discovery only."""
        return is_alone(self.settings)

    @cached_property
    def facts(self) -> Facts:
        """What is true of it."""
        return facts_of(
            self.run_id, self.truth, self.assumed, self.first_ns, self.last_ns, self.cuts
        )

    @property
    def cut_off(self) -> list[int]:
        """Processes whose last life has no end that anybody tells."""
        begun = self.lives.starts_ns
        return [p for p, time_ns in self.cuts if time_ns >= begun.get(p, (time_ns,))[-1]]

    @cached_property
    def shares(self) -> list[Share]:
        """The parts that can be judged by themselves."""
        events = self.events if self.alone else self.discovery
        return plan_shares(self.run_id, events, self.participant + 1, self.share_events)

    def audit(self, share: Share, table: pa.Table) -> dict[str, pa.Table]:
        """Judge one share by its events."""
        return audit_share(table, share, self.facts, self.assumed)


def is_alone(settings: RunSettings | None) -> bool:
    """Whether a run is about discovery only."""
    return settings is not None and settings.algorithm == NO_ORDER


def domain_of(
    surveyed: Survey,
    settings: RunSettings | None,
    truth: pa.Table,
    share_events: int = 0,
    *,
    lives: Lives,
    times_of: Callable[[int], I64],
) -> Domain | None:
    """Return what there is to audit of a run's discovery; None where it has none.

    `truth` may hold those events of other runs too.  `times_of` tells the times of all events of a
    process of the run: it is asked where the end of one is not told.
    """
    if not (surveyed.discovery or is_alone(settings)):
        return None
    told = lined_up(truth.filter(pa.compute.equal(truth.column("run_id"), surveyed.run_id)), lives)
    return Domain(
        run_id=surveyed.run_id,
        settings=settings,
        assumed=settings or surveyed.assumed(),
        truth=told,
        first_ns=surveyed.first_ns,
        last_ns=surveyed.last_ns,
        events=surveyed.events,
        discovery=surveyed.discovery,
        participant=surveyed.participant,
        share_events=share_events,
        lives=lives,
        cuts=cuts_of(told, times_of),
    )


def open_domain(
    source: TraceSource,
    surveyed: Survey,
    settings: RunSettings | None,
    share_events: int = 0,
    *,
    lives: Lives = NO_LIVES,
) -> Domain | None:
    """Read what participants tell of themselves; None where the run has no discovery."""
    if not (surveyed.discovery or is_alone(settings)):
        return None
    truth = source.of_kinds(TOLD_KINDS, DISCOVERY_NEEDED, surveyed.run_id)
    times_of = times_in(source, surveyed.run_id)
    return domain_of(surveyed, settings, truth, share_events, lives=lives, times_of=times_of)


def times_in(source: TraceSource, run_id: str) -> Callable[[int], I64]:
    """Return what reads the times of all events of a process of this run."""

    def times_of(process: int) -> I64:
        table = source.of_kinds(KINDS, ("time_ns",), run_id, (process, process + 1))
        return integers(table, "time_ns")

    return times_of


def read_share(source: TraceSource, share: Share, settings: RunSettings, lives: Lives) -> pa.Table:
    """Read the events of one share, lined up."""
    kinds, columns = share_kinds(settings), share_columns(settings)
    table = source.of_kinds(kinds, columns, share.run_id, (share.low, share.high))
    return lined_up(table, lives)


def audit_discovery(
    source: TraceSource,
    domain: Domain,
    expect: str | None = None,
    *,
    base: RunReport | None = None,
    more: pa.Table,
) -> tuple[RunReport, pa.Table]:
    """Audit a run's discovery here; return its report and every violation as a row.

    `base` is the report of the run's order, which this one adds to; `more` are violations that
    were found before.
    """
    parts = [
        domain.audit(share, read_share(source, share, domain.assumed, domain.lives))
        for share in domain.shares
    ]
    rows = merge([more, judge_ids(domain.facts), *(part["violations"] for part in parts)])
    joined = join_shares(parts)
    return conclude_discovery(domain, joined, tally_found(rows), expect, base), rows


def discovery_pairs(source: TraceSource, domain: Domain) -> pa.Table:
    """Return when each participant first listed each other one: rows of `PAIRS`, sorted."""
    tables = [
        pairs_of_share(read_share(source, share, domain.assumed, domain.lives), domain.facts)
        for share in domain.shares
    ]
    return pa.concat_tables([PAIRS.empty_table(), *tables]).sort_by(
        [(name, "ascending") for name in ("process", "boot_ns", "of", "of_boot_ns")]
    )


def conclude_discovery(
    domain: Domain,
    joined: Mapping[str, pa.Table],
    found: Mapping[str, Found],
    expect: str | None = None,
    base: RunReport | None = None,
) -> RunReport:
    """Turn what the shares found into verdicts.

    `joined` adds up their tables, `found` counts the violations of the run.
    """
    settings, facts = domain.settings, domain.facts
    sums = dict(zip(*joined["sums"].to_pydict().values(), strict=True))
    incomplete = _incomplete(domain, joined["members"])
    told = settings is not None and settings.discovery is not msgspec.UNSET
    amounts = {
        "D1": sums["pairs_judged"],
        "D3": sums["listings"],
        "D4": len(facts.tenures),
    }
    assert tuple(amounts) == DISCOVERY_CHECKS
    protocol = discovery_of(domain.assumed).protocol
    held_to = expect if expect is not None and expect in DISCOVERY_PROMISES else protocol
    promises = DISCOVERY_PROMISES.get(held_to, frozenset(DISCOVERY_CHECKS))
    if base is None:
        amounts = {"W1": sums["events"], **amounts}
    checks = [] if base is None else list(base.checks)
    for check, amount in amounts.items():
        seen = found.get(check, Found(0, []))
        unsure = not told or amount == 0 or bool(incomplete)
        checks.append(
            CheckReport(
                id=check,
                title=TITLES[check],
                verdict=judge(seen.count, unsure),
                promised=check in promises or check == "W1",
                violations=seen.count,
                examples=seen.examples,
            )
        )
    return RunReport(
        run_id=domain.run_id,
        verdict=worst([check.verdict for check in checks if check.promised]),
        settings=settings,
        events=sums["events"] if base is None else base.events,
        incomplete=sorted({*incomplete, *(() if base is None else base.incomplete)}),
        accounting={} if base is None else base.accounting,
        checks=checks,
        discovery=_measured(domain, protocol, joined, sums),
    )


def _incomplete(domain: Domain, members: pa.Table) -> list[int]:
    """Return who has no whole trace: without START, or without END and not known to be gone.

    In an open run, of those that appear: others may list an id of which there is no trace at all.
    """
    settings = domain.settings
    processes = members.column("process").to_numpy()
    # A stranger may have had the id of one whose trace is whole, so each row is looked at.
    whole = members.column("started").to_numpy(zero_copy_only=False) & (
        members.column("ended").to_numpy(zero_copy_only=False)
        | (np.isin(processes, domain.facts.gone) & ~np.isin(processes, domain.cut_off))
    )
    closed = settings is not None and not settings.is_open
    expected = np.arange(domain.assumed.members) if closed else processes
    missing = set(expected.tolist()) - set(processes.tolist())
    return sorted(missing | set(processes[~whole].tolist()))


def _measured(
    domain: Domain, protocol: str, joined: Mapping[str, pa.Table], sums: Mapping[str, int]
) -> DiscoveryReport:
    facts = domain.facts
    longest = dict(zip(*joined["longest"].to_pydict().values(), strict=True))

    def durations(measure: str) -> Durations:
        counted = Histogram.of(joined["durations"], measure)
        most = longest.get(measure)
        p50, p99 = counted.quantile(0.5), counted.quantile(0.99)
        return Durations(
            count=counted.total,
            p50_ns=None if p50 is None or most is None else min(p50, most),
            p99_ns=None if p99 is None or most is None else min(p99, most),
            max_ns=most,
        )

    return DiscoveryReport(
        protocol=protocol,
        participants=len(np.unique(facts.lives.process)),
        lives=len(facts.lives),
        events=domain.discovery,
        quiet=len(facts.stretches),
        conflicts=conflicts(facts),
        pairs=sums["pairs_together"],
        learnt=sums["pairs_learnt"],
        from_start=durations(FROM_START),
        from_both=durations(FROM_BOTH),
        evidence=durations(AGE),
        messages=_messages(joined["traffic"]),
        series=list(_thinned(series(facts, joined["series"]))),
    )


def series(facts: Facts, summed: pa.Table) -> list[Instant]:
    """Return D2 at all instants of the run's series."""
    instants, lives = instants_of(facts.first_ns, facts.end_ns), lives_at(facts)
    level = {}
    for name in (RIGHT, OUTDATED, GHOSTS):
        mine = summed.filter(pa.compute.equal(summed.column("measure"), name))
        level[name] = np.zeros(len(instants), np.int64)
        level[name][mine.column("at").to_numpy()] = mine.column("count").to_numpy()
    pairs = lives * (lives - 1)
    columns = (instants, pairs, pairs - level[RIGHT], level[OUTDATED], level[GHOSTS])
    return [
        Instant(time_ns=time_ns, pairs=among, missing=missing, outdated=outdated, ghosts=ghosts)
        for time_ns, among, missing, outdated, ghosts in zip(
            *(column.tolist() for column in columns), strict=True
        )
    ]


def _thinned(instants: list[Instant]) -> Iterator[Instant]:
    """Leave out what does not differ from what was before and what comes after."""

    def level(at: int) -> tuple[int, int, int, int]:
        one = instants[at]
        return one.pairs, one.missing, one.outdated, one.ghosts

    for at, instant in enumerate(instants):
        inner = 0 < at < len(instants) - 1
        if not inner or not level(at - 1) == level(at) == level(at + 1):
            yield instant


def _messages(traffic: pa.Table) -> list[MessageReport]:
    found: dict[str, list[dict[str, int]]] = {}
    for row in traffic.to_pylist():
        found.setdefault(row.pop("message"), []).append(row)
    return [
        MessageReport(
            message=message,
            **{
                name: sum(row[name] for row in rows)
                for name in ("posted", "posted_bytes", "heard", "heard_bytes")
            },
            hops={row["hop"]: row["heard"] for row in rows if row["hop"] > 0 and row["heard"]},
        )
        for message, rows in sorted(found.items())
    ]
