"""C2: what came in time is delivered in time, what came late is discarded.

Every process judges by its own clock: `clock_ns` and `arrived_ns`, without ε.  A message's lifetime
is its own, which its send tells, or the run's.
"""

from typing import TypeVar

import numpy as np
import pyarrow as pa

from orderwire.trace.events import RunSettings
from orderwire.verify.kernels.columns import (
    DELIVER,
    DISCARD,
    EXPIRED,
    I64,
    LATE,
    SEND,
    TIME_MAX,
    TIME_MIN,
    Bools,
    Columns,
)
from orderwire.verify.kernels.matching import Matches
from orderwire.verify.kernels.violations import no_violations, violations

InstantT = TypeVar("InstantT", int, I64)


def expires(stamp_ns: InstantT, lifetime_ns: InstantT | int) -> InstantT:
    """Return the last instant at which a message is in time: a copy is late strictly after it."""
    return stamp_ns + lifetime_ns


def deadlines(columns: Columns, matches: Matches, settings: RunSettings) -> I64:
    """Return the deadline of each send of `matches`, TIME_MAX for messages that live for ever."""
    stamp_ns = columns.stamp_ns[matches.send_rows]
    if settings.lifetime_ns is None:
        deadline = np.full(len(stamp_ns), TIME_MAX, np.int64)
    else:
        deadline = expires(stamp_ns, settings.lifetime_ns)
    if columns.lifetime_ns is not None:
        own = columns.lifetime_ns[matches.send_rows]
        deadline = np.where(own != TIME_MIN, expires(stamp_ns, own), deadline)
    return deadline


def lifetime(
    run_id: str, columns: Columns, matches: Matches, settings: RunSettings, core: Bools
) -> pa.Table:
    """Return the violations of lifetimes at the rows in `core`.

    Kinds: `late-accepted` (arrived after its deadline, delivered all the same), `overdue`
    (delivered after its deadline by more than the timers' slack), `before-arrival`, `rejected`
    (arrived in time, discarded as late or as expired), `out-of-bounds` (a send's own lifetime is
    not positive, or longer than the run's).

    Late is what is past the run's lifetime, expired what is past its own.  What a send would tell
    that is not in view, as of expired copies that nobody sent, is not judged.
    """
    limits = _limits(columns, matches, settings)
    delivered = np.flatnonzero((columns.kind == DELIVER) & core)
    arrived, clock = columns.arrived_ns[delivered], columns.clock_ns[delivered]
    early = delivered[arrived > clock]
    tables = [violations(run_id, "C2", "before-arrival", columns, early)]
    if limits is not None or settings.lifetime_ns is not None:
        lives = settings.lifetime_ns if limits is None else limits[delivered]
        assert lives is not None
        deadline = expires(columns.stamp_ns[delivered], lives)
        late = (arrived >= 0) & (arrived > deadline)
        overdue = ~late & (clock > deadline + settings.timer_slack_ns)
        for kind, which, when in (("late-accepted", late, arrived), ("overdue", overdue, clock)):
            details = [{"by_ns": by} for by in (when - deadline)[which].tolist()]
            rows = delivered[which]
            tables.append(violations(run_id, "C2", kind, columns, rows, details=details))
    tables.append(_rejected(run_id, columns, matches, settings, core, limits))
    tables.append(_out_of_bounds(run_id, columns, settings, core))
    return pa.concat_tables(tables)


def _limits(columns: Columns, matches: Matches, settings: RunSettings) -> I64 | None:
    """Return the lifetime of each row's message, TIME_MAX / 2 for ever; None: all the run's."""
    if columns.lifetime_ns is None:
        return None
    usual = TIME_MAX // 2 if settings.lifetime_ns is None else settings.lifetime_ns
    own = columns.lifetime_ns[matches.send_rows]
    own = np.append(np.where(own == TIME_MIN, usual, own), usual)
    limits = np.full(len(columns), usual, np.int64)
    limits[matches.rows] = own[matches.send]  # −1, not in view, is the last
    return limits


def _rejected(
    run_id: str,
    columns: Columns,
    matches: Matches,
    settings: RunSettings,
    core: Bools,
    limits: I64 | None,
) -> pa.Table:
    dropped = (columns.kind == DISCARD) & core & (columns.stamp_ns >= 0)
    late, expired = dropped & (columns.reason == LATE), dropped & (columns.reason == EXPIRED)
    if expired.any():
        known = np.zeros(len(columns), np.bool_)
        known[matches.rows] = matches.send >= 0
        expired &= known
    rows = np.flatnonzero(late | expired)
    if len(rows) == 0:
        return no_violations()
    usual = TIME_MAX // 2 if settings.lifetime_ns is None else settings.lifetime_ns
    lives = np.full(len(rows), usual, np.int64)
    if limits is not None:
        lives = np.where(expired[rows], limits[rows], usual)
    deadline, arrived = expires(columns.stamp_ns[rows], lives), columns.arrived_ns[rows]
    for_ever = lives == TIME_MAX // 2
    in_time = ~for_ever & (arrived >= 0) & (arrived <= deadline)
    details = [{"early_ns": by} for by in (deadline - arrived)[in_time].tolist()]
    return pa.concat_tables(
        [
            violations(run_id, "C2", "rejected", columns, rows[for_ever]),
            violations(run_id, "C2", "rejected", columns, rows[in_time], details=details),
        ]
    )


def _out_of_bounds(run_id: str, columns: Columns, settings: RunSettings, core: Bools) -> pa.Table:
    own = columns.lifetime_ns
    if own is None:
        return no_violations()
    longest = TIME_MAX if settings.lifetime_ns is None else settings.lifetime_ns
    bad = (columns.kind == SEND) & core & (own != TIME_MIN) & ((own <= 0) | (own > longest))
    rows = np.flatnonzero(bad)
    details = [{"lifetime_ns": life} for life in own[rows].tolist()]
    return violations(run_id, "C2", "out-of-bounds", columns, rows, details=details)
