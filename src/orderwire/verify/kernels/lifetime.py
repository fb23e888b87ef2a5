"""C2: what came in time is delivered in time, what came late is discarded.

Every process judges by its own clock: `clock_ns` and `arrived_ns`, without ε.
"""

from typing import TypeVar

import numpy as np
import pyarrow as pa

from orderwire.trace.events import RunSettings
from orderwire.verify.kernels.columns import DELIVER, DISCARD, I64, LATE, Bools, Columns
from orderwire.verify.kernels.violations import violations

InstantT = TypeVar("InstantT", int, I64)


def expires(stamp_ns: InstantT, lifetime_ns: int) -> InstantT:
    """Return the last instant at which a message is in time: a copy is late strictly after it."""
    return stamp_ns + lifetime_ns


def lifetime(run_id: str, columns: Columns, settings: RunSettings, core: Bools) -> pa.Table:
    """Return the violations of the lifetime at the rows in `core`.

    Kinds: `late-accepted` (arrived after its deadline, delivered all the same), `overdue`
    (delivered after its deadline by more than the timers' slack), `before-arrival`, `rejected`
    (arrived in time, discarded as late).
    """
    delivered = np.flatnonzero((columns.kind == DELIVER) & core)
    discarded = np.flatnonzero(
        (columns.kind == DISCARD) & (columns.reason == LATE) & core & (columns.stamp_ns >= 0)
    )
    early = delivered[columns.arrived_ns[delivered] > columns.clock_ns[delivered]]
    tables = [violations(run_id, "C2", "before-arrival", columns, early)]
    if settings.lifetime_ns is None:
        tables.append(violations(run_id, "C2", "rejected", columns, discarded))
        return pa.concat_tables(tables)
    deadline = expires(columns.stamp_ns[delivered], settings.lifetime_ns)
    arrived, clock = columns.arrived_ns[delivered], columns.clock_ns[delivered]
    late = (arrived >= 0) & (arrived > deadline)
    overdue = ~late & (clock > deadline + settings.timer_slack_ns)
    for kind, which, when in (("late-accepted", late, arrived), ("overdue", overdue, clock)):
        details = [{"by_ns": by} for by in (when - deadline)[which].tolist()]
        tables.append(violations(run_id, "C2", kind, columns, delivered[which], details=details))
    deadline = expires(columns.stamp_ns[discarded], settings.lifetime_ns)
    arrived = columns.arrived_ns[discarded]
    in_time = (arrived >= 0) & (arrived <= deadline)
    details = [{"early_ns": by} for by in (deadline - arrived)[in_time].tolist()]
    rows = discarded[in_time]
    tables.append(violations(run_id, "C2", "rejected", columns, rows, details=details))
    return pa.concat_tables(tables)
