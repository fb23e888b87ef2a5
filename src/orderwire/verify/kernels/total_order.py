"""T1 and T2: selective total order, two logs at a time and all at once, in linear time.

Messages are the nodes of a graph, with an edge from each delivery to the process's next one.  All
logs fit into one order exactly when the graph has no cycle (T2).  Two logs that disagree about two
messages make a cycle of these, so only messages on cycles can break T1: its strongly connected
components are found in linear time, and no two logs are compared but in what is inside them.
Three logs may make a cycle of which no two disagree: T2 is more than T1.
"""

from collections import deque
from itertools import pairwise

import numpy as np
import pyarrow as pa

from orderwire.verify.kernels.columns import I64, Bools
from orderwire.verify.kernels.total_columns import GroupColumns
from orderwire.verify.kernels.violations import Witness, no_violations, violation_rows, violations

STEPS_MAX = 64
"""Of a cycle that a violation lists; a longer one is cut off."""


def total_order(run_id: str, columns: GroupColumns) -> pa.Table:
    """Return the violations of T1 and T2.

    T1, `order`: at this process the message comes after the witness, at the other one, of which
    `detail` tells, before it.  A row for every two processes that disagree: the first message that
    is too late at the lower one, the first before it that should not be, and how many are late.
    T2, `cycle`: a row for every knot of messages that must all be before each other, named by the
    lowest of them, with one cycle: each step is a message, and the process that has the next one
    after it.
    """
    rows, message = columns.deliveries
    knots = knots_of(columns)
    inside = np.flatnonzero(knots[message] >= 0) if len(message) else message
    if len(inside) == 0:
        return no_violations()
    rows, message = rows[inside], message[inside]
    return pa.concat_tables(
        [
            _disagreements(run_id, columns, rows, message),
            _cycles(run_id, columns, rows, message, knots),
        ]
    )


def knots_of(columns: GroupColumns) -> I64:
    """Return of each message the number of its strongly connected component; −1: it is alone."""
    earlier, later = _steps(columns)
    count = columns.names.count
    if len(earlier) == 0:
        return np.full(count, -1, np.int64)
    # Not before it is needed: few runs have a total order.
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import connected_components

    graph = csr_matrix((np.ones(len(earlier)), (earlier, later)), shape=(count, count))
    _, labels = connected_components(graph, directed=True, connection="strong")
    sizes = np.bincount(labels, minlength=1)
    knots: I64 = np.where(sizes[labels] > 1, labels, -1).astype(np.int64)
    return knots


def behind(columns: GroupColumns, start: Bools) -> Bools:
    """Return which messages are among those of `start`, or after them in some log, step by step.

    One cycle that a delivery of a message closes lies behind that message.
    """
    count = columns.names.count
    earlier, later = _steps(columns)
    first = np.flatnonzero(start)
    if len(earlier) == 0 or len(first) == 0:
        return start.copy()
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import breadth_first_order

    edges = np.append(earlier, np.full(len(first), count)), np.append(later, first)
    graph = csr_matrix((np.ones(len(edges[0])), edges), shape=(count + 1, count + 1))
    found = np.zeros(count + 1, np.bool_)
    found[breadth_first_order(graph, count, return_predecessors=False)] = True
    return found[:count]


def _steps(columns: GroupColumns) -> tuple[I64, I64]:
    """Return each delivery's message, and that of the next one in the same log."""
    rows, message = columns.deliveries
    process = columns.process[rows]
    same = process[1:] == process[:-1]
    return message[:-1][same], message[1:][same]


def _disagreements(run_id: str, columns: GroupColumns, rows: I64, message: I64) -> pa.Table:
    """Compare the logs two by two, in messages that are in knots; the rest is in order."""
    _, message = np.unique(message, return_inverse=True)
    process = columns.process[rows]
    who, starts = np.unique(process, return_index=True)
    edges = [*starts.tolist(), len(rows)]
    logs = [slice(start, stop) for start, stop in pairwise(edges)]
    place = np.full(int(message.max()) + 1, -1, np.int64)
    late_rows, early_rows, theirs, details = [], [], [], []
    for other, log in enumerate(logs):
        place[message[log]] = np.arange(log.start, log.stop)
        for one in range(other):
            common = np.flatnonzero(place[message[logs[one]]] >= 0) + logs[one].start
            there = place[message[common]]
            if len(there) < 2:
                continue
            highest = np.maximum.accumulate(there)
            late = np.flatnonzero(highest > there)
            if len(late) == 0:
                continue
            early = int(np.searchsorted(highest, there[late[0]], side="right"))
            late_rows.append(rows[common[late[0]]])
            early_rows.append(rows[common[early]])
            theirs.append(int(who[other]))
            details.append(
                {
                    "other": int(who[other]),
                    "position_there": int(columns.position[rows[there[late[0]]]]),
                    "witness_position_there": int(columns.position[rows[there[early]]]),
                    "late": len(late),
                }
            )
        place[message[log]] = -1
    if not late_rows:
        return no_violations()
    order = np.lexsort((np.array(theirs), columns.process[np.array(late_rows)]))
    late_at, early_at = np.array(late_rows)[order], np.array(early_rows)[order]
    proof = Witness(columns.source[early_at], columns.number[early_at], columns.position[early_at])
    return violations(
        run_id,
        "T1",
        "order",
        columns,
        late_at,
        witness=proof,
        details=[details[at] for at in order.tolist()],
    )


def _cycles(run_id: str, columns: GroupColumns, rows: I64, message: I64, knots: I64) -> pa.Table:
    """Return one cycle of each knot, through its lowest message, by as few steps as there are."""
    process = columns.process[rows]
    after: dict[int, list[tuple[int, int]]] = {}
    name: dict[int, tuple[int, int]] = {}
    for row, at in zip(rows.tolist(), message.tolist(), strict=True):
        name.setdefault(at, (int(columns.source[row]), int(columns.number[row])))
    same = (process[1:] == process[:-1]) & (knots[message[1:]] == knots[message[:-1]])
    for at in np.flatnonzero(same).tolist():
        after.setdefault(int(message[at]), []).append((int(message[at + 1]), int(process[at])))
    lowest: dict[int, int] = {}
    sizes: dict[int, int] = {}
    for at in sorted(name):
        lowest.setdefault(int(knots[at]), at)
        sizes[int(knots[at])] = sizes.get(int(knots[at]), 0) + 1
    found = [(start, _cycle(after, start)) for start in sorted(lowest.values())]
    nobody = np.full(len(found), -1, np.int64)
    firsts = np.array([name[start] for start, _ in found], np.int64).reshape(-1, 2)
    nexts = np.array([name[steps[1][0]] for _, steps in found], np.int64).reshape(-1, 2)
    return violation_rows(
        run_id,
        "T2",
        "cycle",
        process=nobody,
        source=firsts[:, 0],
        number=firsts[:, 1],
        witness=Witness(nexts[:, 0], nexts[:, 1], nobody),
        details=[
            {
                "messages": sizes[int(knots[start])],
                "steps": len(steps),
                "cycle": [[*name[at], process] for at, process in steps[:STEPS_MAX]],
            }
            for start, steps in found
        ],
    )


def _cycle(after: dict[int, list[tuple[int, int]]], start: int) -> list[tuple[int, int]]:
    """Return the steps of a cycle from `start` back to it: (message, by which log it goes on).

    Found breadth first by single deliveries, then joined where a log goes on by itself.
    """
    before: dict[int, tuple[int, int]] = {}
    todo = deque([start])
    while start not in before:
        here = todo.popleft()
        for later, process in after.get(here, ()):
            if later not in before:
                before[later] = (here, process)
                todo.append(later)
    steps: list[tuple[int, int]] = []
    at = start
    while not steps or at != start:
        at, process = before[at]
        steps.append((at, process))
    steps.reverse()
    joined = [steps[0]]
    for step in steps[1:]:
        if step[1] != joined[-1][1]:
            joined.append(step)
    return joined
