"""The driver's side of an audit on Spark: what the slices hand on is settled and reported here.

How tasks run is the caller's: a round takes tasks and brings what they found.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from orderwire.pipeline.audit_tasks import (
    DEPARTED_PART,
    EXAMPLES_PART,
    EXTRA_COUNTS_PART,
    VIOLATIONS_PART,
    Found,
    Task,
    examples_of,
    unpack,
)
from orderwire.trace.events import RunSettings
from orderwire.verify.audit import AuditOptions, contradictions
from orderwire.verify.discovery_audit import Domain, conclude_discovery
from orderwire.verify.kernels.discovery_ids import judge_ids
from orderwire.verify.kernels.discovery_share import join_shares
from orderwire.verify.kernels.lives import NO_LIVES, Lives
from orderwire.verify.kernels.slices import Extent, Slice
from orderwire.verify.kernels.violations import merge
from orderwire.verify.report import (
    EXAMPLES_MAX,
    TOTAL_ORDER_CHECKS,
    Report,
    RunReport,
    combine,
    conclude,
    example_rows,
)
from orderwire.verify.report import Found as Counted
from orderwire.verify.settle import Settled, join_parts, settle
from orderwire.verify.total_audit import GROUP_PARTS

PAIRS_DDL = (
    "run_id string, process int, boot_ns bigint, of int, of_boot_ns bigint, peer_id string, "
    "incarnation string, learnt_ns bigint, from_start_ns bigint, from_both_ns bigint"
)
VIOLATIONS_DDL = (
    "run_id string, check string, kind string, process int, position bigint, time_ns bigint, "
    "source int, number bigint, witness_source int, witness_number bigint, "
    "witness_position bigint, detail string"
)


class SparkAudit:
    """What an audit found."""

    def __init__(
        self,
        report: Report,
        violations: Callable[[], DataFrame],
        pairs: Callable[[], DataFrame],
    ) -> None:
        self.report = report
        self._violations = violations
        self._pairs = pairs

    @cached_property
    def violations(self) -> DataFrame:
        """One row a violation, columns as in the lake's table of that name; made when asked for.

        Valid as long as the audit's context.
        """
        return self._violations()

    @cached_property
    def pairs(self) -> DataFrame:
        """When each participant of a discovery first listed each other one; made when asked for.

        Columns as `verify.kernels.discovery_measures.PAIRS`.  Valid as long as `violations`.
        """
        return self._pairs()


@dataclass(frozen=True, slots=True)
class Plan:
    """How to audit one run."""

    extent: Extent
    settings: RunSettings | None
    assumed: RunSettings
    odd: pa.Table
    """START events that contradict the settings."""
    slices: list[Slice]
    domain: Domain | None = None
    """Its discovery, if it has any."""
    lives: Lives = NO_LIVES
    """Of its processes."""
    total: bool = False
    """Its group has a total order, or should."""

    @property
    def alone(self) -> bool:
        """The run is about discovery only: there is no order to audit."""
        return self.domain is not None and self.domain.alone

    def tasks(self) -> list[Task]:
        """Return a task for each slice."""
        if self.alone:
            return []
        return [Task(piece=piece, settings=self.assumed, lives=self.lives) for piece in self.slices]

    def share_tasks(self) -> list[Task]:
        """Return a task for each share of its discovery."""
        if self.domain is None:
            return []
        return [
            Task(
                piece=Slice(run_id=share.run_id, low=share.low),
                settings=self.assumed,
                share=share,
                facts=self.domain.facts,
                lives=self.lives,
            )
            for share in self.domain.shares
        ]

    def group_tasks(self) -> list[Task]:
        """Return a task for each part of its total order."""
        if self.alone or not self.total:
            return []
        return [
            Task(
                piece=Slice(run_id=self.extent.run_id, low=at),
                settings=self.assumed,
                group=part,
                lives=self.lives,
            )
            for at, part in enumerate(GROUP_PARTS)
        ]

    def whole(self, extra: AuditOptions | None = None) -> Task:
        """Return the task that takes the run in one piece."""
        piece = Slice(run_id=self.extent.run_id)
        return Task(piece=piece, settings=self.assumed, extra=extra, lives=self.lives)


@dataclass(frozen=True, slots=True)
class Round:
    """What some tasks found: `parts` of each run, its slices in the order of time."""

    parts: dict[str, list[dict[str, pa.Table]]]
    """Without the violations."""
    kept: dict[str, list[pa.Table]]
    """Violations of each run that came along."""
    others: Callable[[Collection[str]], DataFrame | None]
    """Makes a frame of those of some runs that did not; None when there are none."""


def round_of(
    found: Iterable[Found], others: Callable[[Collection[str]], DataFrame | None]
) -> Round:
    """Bring what the tasks found into the order of runs and of time."""
    parts: dict[str, list[dict[str, pa.Table]]] = {}
    kept: dict[str, list[pa.Table]] = {}
    for slice_ in sorted(found, key=lambda found: (found.run_id, found.low)):
        tables = {name: unpack(payload) for name, payload in slice_.parts.items()}
        violations = tables.pop(VIOLATIONS_PART, None)
        if violations is not None:
            kept.setdefault(slice_.run_id, []).append(violations)
        parts.setdefault(slice_.run_id, []).append(tables)
    return Round(parts, kept, others)


class Rounds(Protocol):
    """Whatever runs tasks."""

    def __call__(self, tasks: Sequence[Task]) -> Round:
        """Run these tasks, of slices or of shares."""
        ...

    def pairs(self, tasks: Sequence[Task]) -> DataFrame:
        """Return a frame of `PAIRS_DDL` from these tasks of shares."""
        ...


def audit_in_rounds(
    spark: SparkSession, plans: Mapping[str, Plan], options: AuditOptions, run: Rounds
) -> SparkAudit:
    """Run all tasks, settle what they hand on, do again in one piece what must be."""
    ordered = {name: plan for name, plan in plans.items() if not plan.alone}
    rounds: list[tuple[Round, list[str]]] = []
    settled: dict[str, Settled] = {}
    parts: dict[str, list[dict[str, pa.Table]]] = {}
    if ordered:
        first = run([task for plan in ordered.values() for task in plan.tasks()])
        parts = dict(first.parts)
        settled = {name: _settle(plan, parts[name]) for name, plan in ordered.items()}
        again = [name for name, result in settled.items() if not result.slices_suffice]
        rounds = [(first, [name for name in ordered if name not in again])]
        if again:
            redone = run([plans[name].whole() for name in again])
            rounds.append((redone, again))
            for name in again:
                parts[name] = redone.parts[name]
                joined = join_parts(parts[name])
                settled[name] = settle(name, plans[name].assumed, joined, whole=True)
    extra: dict[str, list[dict[str, pa.Table]]] = {}
    if ordered and (options.waiting or options.clocks):
        checked = run([plan.whole(options) for plan in ordered.values()])
        rounds.append((checked, list(ordered)))
        extra = dict(checked.parts)
    group_tasks = [task for plan in plans.values() for task in plan.group_tasks()]
    if group_tasks:
        judged = run(group_tasks)
        rounds.append((judged, list(judged.parts)))
        for name, found in judged.parts.items():
            extra[name] = [*extra.get(name, []), *found]
    shares: dict[str, list[dict[str, pa.Table]]] = {}
    share_tasks = [task for plan in plans.values() for task in plan.share_tasks()]
    if share_tasks:
        judged = run(share_tasks)
        rounds.append((judged, [name for name, plan in plans.items() if plan.domain is not None]))
        shares = judged.parts
    own = merge(
        [result.violations for result in settled.values()]
        + [contradictions(name, plan.odd) for name, plan in plans.items()]
        + [judge_ids(plan.domain.facts) for plan in plans.values() if plan.domain is not None]
    )
    reports = [
        _report(
            plan,
            settled.get(name),
            [*parts.get(name, []), *extra.get(name, [])],
            shares.get(name, []),
            own,
            options,
        )
        for name, plan in plans.items()
    ]

    def violations() -> DataFrame:
        tables = [own]
        tables += [
            table for made, runs in rounds for name in runs for table in made.kept.get(name, ())
        ]
        frame = violations_frame(spark, pa.concat_tables(tables))
        for made, runs in rounds:
            more = made.others(runs)
            frame = frame if more is None else frame.unionByName(more)
        return frame

    def pairs() -> DataFrame:
        return run.pairs(share_tasks) if share_tasks else spark.createDataFrame([], PAIRS_DDL)

    return SparkAudit(combine(reports), violations, pairs)


def violations_frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    """Return violations as a DataFrame of `VIOLATIONS_DDL`."""
    nullable = pa.schema([pa.field(field.name, field.type) for field in table.schema])
    return spark.createDataFrame(table.cast(nullable))


def _settle(plan: Plan, parts: Sequence[dict[str, pa.Table]]) -> Settled:
    whole = len(plan.slices) == 1 and plan.slices[0].whole
    return settle(plan.extent.run_id, plan.assumed, join_parts(parts), whole=whole)


def _report(
    plan: Plan,
    settled: Settled | None,
    parts: Sequence[Mapping[str, pa.Table]],
    shares: Sequence[Mapping[str, pa.Table]],
    own: pa.Table,
    options: AuditOptions,
) -> RunReport:
    """Add up the counts of all slices and shares and keep the first examples of each check."""
    run_id = plan.extent.run_id
    mine = own.filter(pa.compute.equal(own.column("run_id"), run_id))
    tables = [examples_of(mine)]
    checked = dict.fromkeys(TOTAL_ORDER_CHECKS[:-1] if plan.total else (), 0)
    departed: list[int] = []
    for part in [*parts, *shares]:
        if EXAMPLES_PART in part:
            tables.append(part[EXAMPLES_PART])
        if EXTRA_COUNTS_PART in part:
            checked |= dict(zip(*part[EXTRA_COUNTS_PART].to_pydict().values(), strict=True))
        if DEPARTED_PART in part:
            departed += part[DEPARTED_PART].column("process").to_pylist()
    found = _counted(tables)
    base = None
    if settled is not None:
        base = conclude(
            run_id, plan.settings, settled, found, checked, options.expect, departed=departed
        )
    if plan.domain is None:
        assert base is not None
        return base
    return conclude_discovery(plan.domain, join_shares(shares), found, options.expect, base)


def _counted(tables: Iterable[pa.Table]) -> dict[str, Counted]:
    """Add up examples with their counts."""
    counts: dict[str, int] = {}
    rows: dict[str, list[pa.Table]] = {}
    for table in tables:
        for check in pa.compute.unique(table.column("check")).to_pylist():
            some = table.filter(pa.compute.equal(table.column("check"), check))
            counts[check] = counts.get(check, 0) + some.column("count")[0].as_py()
            rows.setdefault(check, []).append(some.drop_columns("count"))
    return {
        check: Counted(count, example_rows(merge(rows[check]).slice(0, EXAMPLES_MAX)))
        for check, count in counts.items()
    }
