"""O3: how long each delivery waited, and how much of it causal order needed.

A copy (m, q) is resolved at q when it is delivered, when it expires, or when a message that has it
in its past is delivered at or after that one's own deadline, which it need not wait past.  Every
message carries, for each process, the latest resolution among the messages of its past, itself
included.  The earliest lawful instant of a delivery is its arrival, or the latest resolution in its
past but at most its own deadline, whichever is later; all instants are readings of the delivering
process's own clock.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from orderwire.trace.events import RunSettings
from orderwire.verify.kernels.columns import I64, TIME_MAX, Columns
from orderwire.verify.kernels.lifetime import deadlines
from orderwire.verify.kernels.matching import Matches
from orderwire.verify.kernels.order import replay
from orderwire.verify.kernels.replay import Steps, replay_order, steps_of
from orderwire.verify.kernels.violations import violations

NEVER = TIME_MAX
"""Resolution of a copy that is never delivered and never expires."""
LONG_AGO = -(2**62)


@dataclass(frozen=True, slots=True)
class Waits:
    """First deliveries of copies with a known arrival, and their waits in nanoseconds."""

    rows: I64
    forced: I64
    """Needed by causal order."""
    avoidable: I64
    """Beyond that; negative for a premature delivery."""


def waits(columns: Columns, matches: Matches, settings: RunSettings) -> Waits:
    """Measure every delivery of a whole run."""
    steps = steps_of(columns, matches)
    deadline = deadlines(columns, matches, settings)
    carried = _resolutions(columns, matches, steps, deadline)
    delivered = ~steps.is_send
    rows, send = steps.rows[delivered], steps.send[delivered]
    arrived = columns.arrived_ns[rows]
    known = arrived >= 0
    rows, send, arrived = rows[known], send[known], arrived[known]
    resolved = np.minimum(carried[send, columns.process[rows]], deadline[send])
    lawful = np.maximum(arrived, resolved)
    return Waits(rows, lawful - arrived, columns.clock_ns[rows] - lawful)


def waiting(
    run_id: str, columns: Columns, matches: Matches, settings: RunSettings, slack_ns: int
) -> tuple[pa.Table, Waits]:
    """Return the deliveries that waited longer than needed by more than `slack_ns`, or too short.

    Kinds: `avoidable`, `premature` (before a message of its past was delivered or had expired).
    """
    measured = waits(columns, matches, settings)
    tables = []
    for kind, which in (
        ("avoidable", measured.avoidable > slack_ns),
        ("premature", measured.avoidable < 0),
    ):
        details = [
            {"forced_ns": forced, f"{kind}_ns": abs(beyond)}
            for forced, beyond in zip(
                measured.forced[which].tolist(), measured.avoidable[which].tolist(), strict=True
            )
        ]
        rows = measured.rows[which]
        tables.append(violations(run_id, "O3", kind, columns, rows, details=details))
    return pa.concat_tables(tables), measured


def _resolutions(columns: Columns, matches: Matches, steps: Steps, deadline: I64) -> I64:
    """Return for each send, by process, the latest resolution there in the send's past."""
    count, members = matches.intended.shape
    # Late is strictly after the last instant in time, so waiting ends one nanosecond later.
    expiry = np.where(deadline == TIME_MAX, NEVER, deadline + 1)
    delivered = ~steps.is_send
    at = np.full((count, members), NEVER, np.int64)
    at[steps.send[delivered], steps.process[delivered]] = columns.clock_ns[steps.rows[delivered]]
    if columns.lifetime_ns is not None:
        np.minimum(at, _passed_over(columns, matches, steps, deadline), out=at)
    own = np.where(matches.intended, np.minimum(at, expiry[:, None]), LONG_AGO)
    carried = np.full((count, members), LONG_AGO, np.int64)
    rows, settled = list(carried), list(own)
    known = list(np.full((members, members), LONG_AGO, np.int64))
    coded = np.where(steps.is_send, ~steps.send, steps.send)
    order = replay_order(steps, columns.time_ns[steps.rows])
    maximum = np.maximum
    for process, send in zip(steps.process[order].tolist(), coded[order].tolist(), strict=True):
        mine = known[process]
        if send >= 0:
            maximum(mine, rows[send], out=mine)
            maximum(mine, settled[send], out=mine)
        else:
            rows[~send][:] = mine
            maximum(mine, settled[~send], out=mine)
    return carried


def _passed_over(columns: Columns, matches: Matches, steps: Steps, deadline: I64) -> I64:
    """Return when, at each process, a message was delivered that could no longer wait for a send.

    NEVER where none was.  With one lifetime for all there is none: what a message waits for expires
    before the message itself does.
    """
    carried, _ = replay(columns, matches, steps)
    passed = np.full(matches.intended.shape, NEVER, np.int64)
    numbers, sources = columns.number[matches.send_rows], columns.source[matches.send_rows]
    clock = columns.clock_ns[steps.rows]
    forced = ~steps.is_send & (clock >= deadline[steps.send])
    for process in np.unique(steps.process[forced]).tolist():
        mine = forced & (steps.process == process)
        told = np.maximum.accumulate(carried[steps.send[mine]], axis=0)
        when = np.append(clock[mine], NEVER)
        for source in range(matches.members):
            sent = np.flatnonzero(sources == source)
            first = np.searchsorted(told[:, source], numbers[sent], side="right")
            passed[sent, process] = when[first]
    return passed
