"""O1 and O2: causal and FIFO order, in linear time.

Every process keeps K: how many sends of each process lie in its causal past.  A message carries
its sender's K, the send itself included.  A delivery of (j, s) at q is overtaken exactly when some
message delivered at q before it carried an entry for j above s: its send is then in that message's
past.  The first such delivery is the witness.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from orderwire.verify.kernels.columns import I64, Bools, Columns
from orderwire.verify.kernels.matching import Matches
from orderwire.verify.kernels.replay import Steps, replay_order, steps_of
from orderwire.verify.kernels.violations import Witness, no_violations, violations

Knowledge = npt.NDArray[np.int64] | npt.NDArray[np.int32]


def carried_vectors(columns: Columns, matches: Matches, steps: Steps) -> Knowledge:
    """Return for each send how many sends of each process its past holds, itself included."""
    order = replay_order(steps, columns.time_ns[steps.rows])
    numbers = columns.number[matches.send_rows]
    wide = numbers.max(initial=0) >= np.iinfo(np.int32).max
    carried = np.zeros((len(numbers), matches.members), np.int64 if wide else np.int32)
    rows = list(carried)
    known = list(np.zeros((matches.members, matches.members), carried.dtype))
    counts = (numbers + 1).tolist()
    maximum = np.fmax  # Of integers the same as np.maximum, whose third argument costs more.
    # A send's index is given as its complement: one test tells sends from deliveries.
    coded = np.where(steps.is_send, ~steps.send, steps.send)[order].tolist()
    for process, send in zip(steps.process[order].tolist(), coded, strict=True):
        mine = known[process]
        if send >= 0:
            maximum(mine, rows[send], mine)
        else:
            mine[process] = counts[~send]
            rows[~send][:] = mine
    return carried


def causal_order(
    run_id: str, columns: Columns, matches: Matches, core: Bools
) -> tuple[pa.Table, pa.Table]:
    """Return the violations of causal order (O1) and of FIFO order (O2) at the rows in `core`."""
    steps = steps_of(columns, matches)
    if len(steps.rows) == 0:
        return no_violations(), no_violations()
    carried = carried_vectors(columns, matches, steps)
    delivered = np.flatnonzero(~steps.is_send)
    rows, send = steps.rows[delivered], steps.send[delivered]
    causal: list[tuple[I64, I64]] = []
    process = columns.process[rows]
    bounds = np.searchsorted(process, np.arange(matches.members + 1))
    for start, stop in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        if stop - start > 1:
            causal.append(_overtaken(columns, carried, rows[start:stop], send[start:stop], core))
    return (
        _table(run_id, "O1", "overtaken", columns, causal),
        fifo_order(run_id, columns, rows, core, matches.members),
    )


def _overtaken(
    columns: Columns, carried: Knowledge, rows: I64, send: I64, core: Bools
) -> tuple[I64, I64]:
    """Return one process's overtaken deliveries and their witnesses, as rows."""
    source, number = columns.source[rows], columns.number[rows]
    told = np.maximum.accumulate(carried[send], axis=0)
    at = np.arange(1, len(rows))
    late = at[(told[at - 1, source[at]] > number[at]) & core[rows[at]]]
    witness = [
        int(np.searchsorted(told[:index, source[index]], number[index], side="right"))
        for index in late.tolist()
    ]
    return rows[late], rows[np.array(witness, np.int64)]


def fifo_order(run_id: str, columns: Columns, rows: I64, core: Bools, members: int) -> pa.Table:
    """Return the deliveries that a later message of the same sender overtook.

    `rows` are first deliveries, by process and position.
    """
    key = columns.process[rows] * members + columns.source[rows]
    order = np.argsort(key, kind="stable")
    key, rows = key[order], rows[order]
    number = columns.number[rows]
    opens = np.ones(len(key), np.bool_)
    opens[1:] = key[1:] != key[:-1]
    if np.all(opens[1:] | (number[1:] > number[:-1])):
        return no_violations()
    group = np.cumsum(opens) - 1
    step = int(number.max()) + 1
    highest = np.maximum.accumulate(number + group * step)
    before = np.full(len(key), -1, np.int64)
    before[1:] = np.where(opens[1:], -1, highest[:-1] - group[1:] * step)
    late = np.flatnonzero((before > number) & core[rows])
    witness = np.searchsorted(highest, (number + group * step)[late], side="right")
    return _table(run_id, "O2", "overtaken", columns, [(rows[late], rows[witness])])


def _table(
    run_id: str, check: str, kind: str, columns: Columns, found: list[tuple[I64, I64]]
) -> pa.Table:
    if not any(len(rows) for rows, _ in found):
        return no_violations()
    rows = np.concatenate([rows for rows, _ in found])
    witness = np.concatenate([witness for _, witness in found])
    proof = Witness(columns.source[witness], columns.number[witness], columns.position[witness])
    return violations(run_id, check, kind, columns, rows, witness=proof)
