"""The audit in one process: no engine but numpy and Arrow, the same findings as on Spark."""

from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa

from orderwire.trace.events import RunSettings
from orderwire.verify.discovery_audit import audit_discovery, open_domain
from orderwire.verify.kernels.columns import NEEDED, columns_of
from orderwire.verify.kernels.lives import Lives, lined_up, lives_of
from orderwire.verify.kernels.matching import match
from orderwire.verify.kernels.slices import (
    Slice,
    audit_slice,
    plan_slices,
)
from orderwire.verify.kernels.stamps import audit_clocks, recorded_clocks
from orderwire.verify.kernels.survey import SURVEYED, Survey, survey
from orderwire.verify.kernels.violations import merge, no_violations, violation_rows
from orderwire.verify.kernels.waiting import waiting
from orderwire.verify.kernels.wellformed import drop_repeats
from orderwire.verify.report import Report, RunReport, combine, conclude, tally_found
from orderwire.verify.settle import Settled, join_parts, settle
from orderwire.verify.source import EVIDENCE, TraceSource, settings_of
from orderwire.verify.total_audit import audit_group, has_total_order


class AuditOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to check beyond the usual, and how."""

    waiting: bool = False
    """Measure waiting (O3); reads each run in one piece."""
    waiting_slack_ns: int = 1_000_000
    """Avoidable waiting up to this is not listed."""
    clocks: bool = False
    """Check recorded vector clocks (S1); reads each run in one piece."""
    slice_events: int = 0
    """Events a slice of time or a share of participants should hold; 0 chooses."""
    silence_ns: int = 10_000_000_000
    """While a run goes on: a member holds the audit up by so much of the others' time at most."""
    newcomer_ns: int = 5_000_000_000
    """While a run of members that find each other goes on: so much later at most than the others'
    the first events of a newcomer come."""
    expect: str | None = None
    """Hold every run to the promises of this algorithm, whatever its own are."""


def audit(source: TraceSource, options: AuditOptions | None = None) -> tuple[Report, pa.Table]:
    """Audit all runs of a trace; return the report and every violation as a row."""
    options = options or AuditOptions()
    starts = source.starts()
    reports, found = [], []
    for surveyed in survey(source.batches(SURVEYED, None)).values():
        report, rows = audit_run(source, surveyed, starts, options)
        reports.append(report)
        found.append(rows)
    return combine(reports), merge(found)


def audit_run(
    source: TraceSource, surveyed: Survey, starts: pa.Table, options: AuditOptions
) -> tuple[RunReport, pa.Table]:
    """Audit one run, slice by slice where its clock allows."""
    run_id = surveyed.run_id
    settings, odd = settings_of(starts, run_id)
    lives = lives_of(starts, run_id)
    domain = open_domain(source, surveyed, settings, options.slice_events, lives=lives)
    odd_rows = contradictions(run_id, odd)
    if domain is not None and domain.alone:
        return audit_discovery(source, domain, options.expect, more=odd_rows)
    assumed = settings or surveyed.assumed()
    slices = plan_run(surveyed, settings, options.slice_events)
    rows, settled = _audit_slices(source, slices, assumed, lives)
    if not settled.slices_suffice:
        rows, settled = _audit_slices(source, [Slice(run_id=run_id)], assumed, lives)
    extra, checked = extra_checks(source, run_id, assumed, options, lives)
    found = [rows, settled.violations, odd_rows, extra]
    departed: list[int] = []
    if has_total_order(settings, surveyed.views, options.expect):
        group = audit_group(source, run_id, assumed, lives)
        found.append(group.violations)
        checked |= group.checked
        departed = group.departed
    rows = merge(found)
    report = conclude(
        run_id, settings, settled, tally_found(rows), checked, options.expect, departed=departed
    )
    if domain is None:
        return report, rows
    return audit_discovery(source, domain, options.expect, base=report, more=rows)


def plan_run(surveyed: Survey, settings: RunSettings | None, slice_events: int = 0) -> list[Slice]:
    """Cut a run into slices."""
    return plan_slices(
        surveyed.extent(), settings, surveyed.starts_ns(), surveyed.counts, slice_events
    )


def contradictions(run_id: str, odd: pa.Table) -> pa.Table:
    """Return a violation for each START event whose settings are not the run's, or no settings."""
    process = odd.column("process").to_numpy().astype(np.int64)
    nobody = np.full(len(process), -1, np.int64)
    return violation_rows(
        run_id,
        "W1",
        "settings",
        process=process,
        position=odd.column("position").to_numpy(),
        source=nobody,
        number=nobody,
        details=[{"settings": detail[:200]} for detail in odd.column("detail").to_pylist()],
    )


def _audit_slices(
    source: TraceSource, slices: Sequence[Slice], settings: RunSettings, lives: Lives
) -> tuple[pa.Table, Settled]:
    parts = []
    for piece in slices:
        table = source.read(piece.run_id, piece.view_low, piece.view_high)
        parts.append(audit_slice(lined_up(table, lives), piece, settings).parts())
    joined = join_parts(parts)
    whole = len(slices) == 1 and slices[0].whole
    return joined["violations"], settle(slices[0].run_id, settings, joined, whole=whole)


def extra_checks(
    source: TraceSource,
    run_id: str,
    settings: RunSettings,
    options: AuditOptions,
    lives: Lives,
) -> tuple[pa.Table, dict[str, int]]:
    """Run the checks that need a run in one piece; tell how much each had to check."""
    if not (options.waiting or options.clocks):
        return no_violations(), {}
    table = lined_up(source.read(run_id, columns=(*NEEDED, EVIDENCE)), lives)
    columns, _ = drop_repeats(run_id, columns_of(table))
    matches = match(columns, settings.members)
    found, checked = [], {}
    if options.waiting:
        slack = max(options.waiting_slack_ns, settings.timer_slack_ns)
        rows, measured = waiting(run_id, columns, matches, settings, slack)
        found.append(rows)
        checked["O3"] = len(measured.rows)
    if options.clocks:
        recorded, whole = recorded_clocks(table, columns, matches)
        found.append(audit_clocks(run_id, columns, matches, recorded, whole))
        checked["S1"] = int(np.count_nonzero(whole))
    return merge(found), checked
