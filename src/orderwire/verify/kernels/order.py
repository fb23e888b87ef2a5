"""O1 and O2: causal and FIFO order, in linear time; and whether what was overtaken was.

Every process keeps K: how many sends of each process lie in its causal past.  A message carries
its sender's K, the send itself included.  A delivery of (j, s) at q is overtaken exactly when some
message delivered at q before it carried an entry for j above s: its send is then in that message's
past.  The first such delivery is the witness.  In the same way a copy may be discarded as overtaken
exactly when a message delivered before it has it in its past.
"""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from orderwire.verify.kernels.columns import DISCARD, I64, OVERTAKEN, Bools, Columns
from orderwire.verify.kernels.matching import Matches
from orderwire.verify.kernels.replay import Steps, replay_order, steps_of
from orderwire.verify.kernels.violations import Witness, no_violations, violations

Knowledge = npt.NDArray[np.int64] | npt.NDArray[np.int32]


def replay(columns: Columns, matches: Matches, steps: Steps) -> tuple[Knowledge, I64]:
    """Replay the steps; return what each send carried, and the deliveries that were overtaken.

    A row for each send: how many sends of each process its past holds, itself included.  The
    deliveries are indices of steps, ascending; copies to oneself are not judged here.
    """
    order = replay_order(steps, columns.time_ns[steps.rows])
    numbers = columns.number[matches.send_rows]
    wide = numbers.max(initial=0) >= np.iinfo(np.int32).max
    carried = np.zeros((len(numbers), matches.members), np.int64 if wide else np.int32)
    rows = list(carried)
    known = list(np.zeros((matches.members, matches.members), carried.dtype))
    maximum = np.fmax  # Of integers the same as np.maximum, whose third argument costs more.
    overtaken: list[int] = []
    for step, process, send, is_send, source, number in zip(
        order.tolist(),
        steps.process[order].tolist(),
        steps.send[order].tolist(),
        steps.is_send[order].tolist(),
        columns.source[steps.rows[order]].tolist(),
        columns.number[steps.rows[order]].tolist(),
        strict=True,
    ):
        mine = known[process]
        if is_send:
            mine[process] = number + 1
            rows[send][:] = mine
        else:
            if mine.item(source) > number and source != process:
                overtaken.append(step)
            maximum(mine, rows[send], mine)
    return carried, np.array(sorted(overtaken), np.int64)


def causal_order(
    run_id: str, columns: Columns, matches: Matches, core: Bools
) -> tuple[pa.Table, pa.Table, pa.Table]:
    """Return the violations of causal order (O1) and of FIFO order (O2) at the rows in `core`.

    And, as C2, the copies that were discarded as overtaken and were not: `not-overtaken`.
    """
    steps = steps_of(columns, matches)
    if len(steps.rows) == 0:
        return no_violations(), no_violations(), no_violations()
    carried, overtaken = replay(columns, matches, steps)
    delivered = np.flatnonzero(~steps.is_send)
    rows, send = steps.rows[delivered], steps.send[delivered]
    late = np.searchsorted(delivered, overtaken)
    late = np.union1d(late, _overtaken_to_oneself(columns, rows, send, carried))
    late = late[core[rows[late]]]
    return (
        _table(
            run_id, "O1", "overtaken", columns, _with_witness(columns, rows, send, carried, late)
        ),
        fifo_order(run_id, columns, rows, core, matches.members),
        _not_overtaken(run_id, columns, matches, (rows, send), carried, core),
    )


def _not_overtaken(
    run_id: str,
    columns: Columns,
    matches: Matches,
    delivered: tuple[I64, I64],
    carried: Knowledge,
    core: Bools,
) -> pa.Table:
    """Return the discards as overtaken that no delivery before them justifies.

    `delivered` are the rows of first deliveries, by process and position, and their sends.
    """
    mine = (columns.kind[matches.rows] == DISCARD) & (columns.reason[matches.rows] == OVERTAKEN)
    dropped = matches.rows[mine & (matches.send >= 0) & core[matches.rows]]
    if len(dropped) == 0:
        return no_violations()
    rows, send = delivered
    process = columns.process[rows]
    wrong = np.ones(len(dropped), np.bool_)
    pairs = np.stack([columns.process[dropped], columns.source[dropped]], axis=1)
    for (at, source), which in _groups(pairs):
        start, stop = np.searchsorted(process, [at, at + 1]).tolist()
        # A message is not in its own past: its number is what it carries, less itself.
        itself = columns.source[rows[start:stop]] == source
        told = np.maximum.accumulate(carried[send[start:stop], source] - itself)
        before = np.searchsorted(rows[start:stop], dropped[which])
        told = np.append(told, -1)[before - 1]  # −1: none was delivered before
        wrong[which] = (before == 0) | (told <= columns.number[dropped[which]])
    return violations(run_id, "C2", "not-overtaken", columns, dropped[wrong])


def _overtaken_to_oneself(columns: Columns, rows: I64, send: I64, carried: Knowledge) -> I64:
    """Return the deliveries to oneself that came after one with the message in its past.

    A process knows its own sends, so that only what it was told by deliveries counts.
    """
    process = columns.process[rows]
    own = np.flatnonzero(columns.source[rows] == process)
    if len(own) == 0:
        return own
    opens = np.ones(len(rows), np.bool_)
    opens[1:] = process[1:] != process[:-1]
    group = np.cumsum(opens) - 1
    step = int(carried.max()) + 1
    told = np.maximum.accumulate(carried[send, process].astype(np.int64) + group * step)
    before = np.where(opens[own], 0, told[own - 1] - group[own] * step)
    return own[before > columns.number[rows[own]]]


def _with_witness(
    columns: Columns, rows: I64, send: I64, carried: Knowledge, late: I64
) -> tuple[I64, I64]:
    """Return the overtaken deliveries and, for each, the first that proves it, as rows."""
    process = columns.process[rows]
    source, number = columns.source[rows[late]], columns.number[rows[late]]
    witness = np.empty(len(late), np.int64)
    pairs = np.stack([process[late], source], axis=1)
    for pair, which in _groups(pairs):
        start = int(np.searchsorted(process, pair[0]))
        stop = int(np.searchsorted(process, pair[0], side="right"))
        told = np.maximum.accumulate(carried[send[start:stop], pair[1]])
        witness[which] = start + np.searchsorted(told, number[which], side="right")
    return rows[late], rows[witness]


def _groups(pairs: I64) -> Iterator[tuple[tuple[int, int], I64]]:
    """Yield each distinct row of two numbers and where it stands."""
    if len(pairs) == 0:
        return
    order = np.lexsort((pairs[:, 1], pairs[:, 0]))
    ordered = pairs[order]
    opens = np.flatnonzero(np.append(True, np.any(ordered[1:] != ordered[:-1], axis=1)))
    for start, stop in pairwise([*opens.tolist(), len(order)]):
        first, second = ordered[start].tolist()
        yield (first, second), order[start:stop]


def fifo_order(run_id: str, columns: Columns, rows: I64, core: Bools, members: int) -> pa.Table:
    """Return the deliveries that a later message of the same sender overtook.

    `rows` are first deliveries, by process and position.
    """
    key = columns.process[rows] * members + columns.source[rows]
    # Sorting by 16 bits is linear.
    order = np.argsort(key.astype(np.uint16) if members <= 256 else key, kind="stable")
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
    return _table(run_id, "O2", "overtaken", columns, (rows[late], rows[witness]))


def _table(
    run_id: str, check: str, kind: str, columns: Columns, found: tuple[I64, I64]
) -> pa.Table:
    rows, witness = found
    if len(rows) == 0:
        return no_violations()
    proof = Witness(columns.source[witness], columns.number[witness], columns.position[witness])
    return violations(run_id, check, kind, columns, rows, witness=proof)
