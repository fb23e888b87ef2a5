"""An order in which sends and deliveries can be replayed: every cause before its effects.

Sorted by time where the clock allows it, which is checked; otherwise topologically.  Both are
linear, and the knowledge that a replay computes is the same in any such order.
"""

import heapq
from dataclasses import dataclass

import numpy as np

from orderwire.verify.kernels.columns import DELIVER, I64, Bools, Columns
from orderwire.verify.kernels.matching import Matches, first_of


@dataclass(frozen=True, slots=True)
class Steps:
    """Sends and first deliveries, by process and position."""

    rows: I64
    """Row of each step, ascending."""
    process: I64
    send: I64
    """Index of the message's send among the matches."""
    is_send: Bools


def steps_of(columns: Columns, matches: Matches) -> Steps:
    """Return what carries causality: each send, and the first delivery of each copy.

    A copy that was discarded carries none; nor does a delivery whose send is not in view.
    """
    delivered = columns.kind[matches.rows] == DELIVER
    rows, send = matches.rows[delivered], matches.send[delivered]
    first = first_of(send, columns.process[rows], matches.members)
    message = np.full(len(columns), -1, np.int64)
    message[rows[first]] = send[first]
    message[matches.send_rows] = np.arange(len(matches.send_rows))
    is_send = np.zeros(len(columns), np.bool_)
    is_send[matches.send_rows] = True
    rows = np.flatnonzero(message >= 0)
    return Steps(rows, columns.process[rows], message[rows], is_send[rows])


def replay_order(steps: Steps, time_ns: I64) -> I64:
    """Return the steps' indices in an order that puts every cause before its effects.

    `time_ns` is the time of each step.  In a trace whose happened-before has a cycle, which no
    real run has, deliveries on the cycle come before their sends.
    """
    order = np.argsort(time_ns, kind="stable")
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    same = steps.process[1:] == steps.process[:-1]
    local = bool(np.all(rank[1:][same] > rank[:-1][same]))
    sent = np.empty(int(np.count_nonzero(steps.is_send)), np.int64)
    sent[steps.send[steps.is_send]] = rank[steps.is_send]
    carried = bool(np.all(sent[steps.send[~steps.is_send]] < rank[~steps.is_send]))
    if local and carried:
        return order
    return _topological(steps, time_ns)


def _topological(steps: Steps, time_ns: I64) -> I64:
    """Run every process until it waits for a message whose send is still to come."""
    process, send, is_send = steps.process.tolist(), steps.send.tolist(), steps.is_send.tolist()
    count = len(process)
    sent = [False] * count
    waiting: dict[int, list[int]] = {}
    starts = [at for at in range(count) if at == 0 or process[at] != process[at - 1]]
    ready = starts[::-1]
    blocked: list[tuple[int, int]] = []
    freed: set[int] = set()
    order: list[int] = []
    while ready or blocked:
        if not ready:
            _, at = heapq.heappop(blocked)
            if at in freed:
                continue
            freed.add(at)
        else:
            at = ready.pop()
        if not is_send[at] and not sent[send[at]] and at not in freed:
            waiting.setdefault(send[at], []).append(at)
            heapq.heappush(blocked, (int(time_ns[at]), at))
            continue
        order.append(at)
        if is_send[at]:
            sent[send[at]] = True
            for waiter in waiting.pop(send[at], ()):
                if waiter not in freed:
                    freed.add(waiter)
                    ready.append(waiter)
        if at + 1 < count and process[at + 1] == process[at]:
            ready.append(at + 1)
    assert len(order) == count, f"replayed {len(order)} of {count} steps"
    return np.array(order, np.int64)
