"""The evidence behind a violation of causal order: how the later message came to know the earlier.

Found on demand, for the few violations that somebody looks at; linear in the events given.
"""

import msgspec
import numpy as np
import pyarrow as pa

from orderwire.verify.kernels.columns import NEEDED, SEND, Columns, columns_of
from orderwire.verify.kernels.matching import match
from orderwire.verify.kernels.replay import replay_order, steps_of
from orderwire.verify.kernels.wellformed import drop_repeats


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a causal chain: a send, or a delivery."""

    process: int
    position: int
    kind: str
    time_ns: int
    source: int
    number: int


def causal_chain(
    table: pa.Table, earlier: tuple[int, int], later: tuple[int, int], members: int
) -> list[Link]:
    """Return the sends and deliveries that lead from the send of `earlier` to that of `later`.

    Messages are (source, number).  `table` holds one run's events, or at least those between the
    two sends.  Empty when the one did not happen before the other, as far as the events tell.
    """
    columns, _ = drop_repeats("", columns_of(table.select(list(NEEDED))))
    matches = match(columns, members)
    steps = steps_of(columns, matches)
    order = replay_order(steps, columns.time_ns[steps.rows])
    before: dict[int, int] = {}
    """Row of an event of the chain → row of the event before it."""
    knows: dict[int, int] = {}
    """Process → row of its first event that has the earlier message in its past."""
    told: dict[int, int] = {}
    """Message's index → row of its send, if the earlier message is in its past or is it."""
    for step in order.tolist():
        row, process, send = int(steps.rows[step]), int(steps.process[step]), int(steps.send[step])
        if steps.is_send[step]:
            name = (int(columns.source[row]), int(columns.number[row]))
            if name == earlier:
                knows.setdefault(process, row)
                told[send] = row
            elif process in knows:
                told[send] = row
                before[row] = knows[process]
            if name == later:
                return _walked(columns, before, row) if send in told and row in before else []
        elif process not in knows and send in told:
            knows[process] = row
            before[row] = told[send]
    return []


def _walked(columns: Columns, before: dict[int, int], row: int) -> list[Link]:
    rows = [row]
    while rows[-1] in before:
        rows.append(before[rows[-1]])
    return [
        Link(
            process=int(columns.process[row]),
            position=int(columns.position[row]),
            kind="send" if columns.kind[row] == SEND else "deliver",
            time_ns=int(columns.time_ns[row]),
            source=int(columns.source[row]),
            number=int(columns.number[row]),
        )
        for row in np.array(rows[::-1]).tolist()
    ]
