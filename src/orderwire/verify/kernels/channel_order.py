"""T5: what came by the channel is a part of the channel's order.  [S003:sec.2]

The channel numbers its PDUs, an incarnation of it after the other: who receives must see pairs
(incarnation, number) that only grow, and the same PDU under the same pair as everybody else.
"""

import numpy as np
import pyarrow as pa

from orderwire.verify.kernels.columns import I64
from orderwire.verify.kernels.total_columns import GroupColumns
from orderwire.verify.kernels.violations import Witness, no_violations, violations


def channel_order(run_id: str, columns: GroupColumns) -> pa.Table:
    """Return the violations of T5.

    Kinds: `reordered` (after a higher place, or the same), `mixed` (after a later incarnation of
    the channel), `other-pdu` (somebody else received another PDU in this place).
    """
    inside = (columns.process >= 0) & (columns.process < columns.members)
    rows = np.flatnonzero(columns.received & inside)
    if len(rows) == 0:
        return no_violations()
    place = places(columns.incarnation[rows], columns.channel_number[rows])
    process = columns.process[rows]
    opens = np.ones(len(rows), np.bool_)
    opens[1:] = process[1:] != process[:-1]
    step = int(place.max()) + 1
    base = (np.cumsum(opens) - 1) * step
    highest = np.maximum.accumulate(place + base)
    wrong = np.flatnonzero(~opens[1:] & (highest[:-1] >= (place + base)[1:])) + 1
    tables = [no_violations()]
    if len(wrong):
        proof = np.searchsorted(highest, highest[wrong - 1])
        # Incarnations are told apart by equality only: places of later ones are higher.
        mixed = columns.incarnation[rows[wrong]] != columns.incarnation[rows[proof]]
        for kind, which in (("mixed", mixed), ("reordered", ~mixed)):
            tables.append(_table(run_id, kind, columns, rows[wrong[which]], rows[proof[which]]))
    first = firsts(place)
    other = np.flatnonzero(
        (columns.source[rows] != columns.source[rows[first]])
        | (columns.number[rows] != columns.number[rows[first]])
    )
    tables.append(_table(run_id, "other-pdu", columns, rows[other], rows[first[other]]))
    return pa.concat_tables(tables)


def places(incarnation: I64, number: I64) -> I64:
    """Return numbers in the order of (incarnation, number), the same for the same pair."""
    unsigned = incarnation.view(np.uint64)
    lowest, highest = int(number.min()), int(number.max())
    if np.all(unsigned == unsigned[0]) and highest - lowest <= 8 * len(number) + 1024:
        return number - lowest
    order = np.lexsort((number, unsigned))
    steps = np.zeros(len(order), np.bool_)
    steps[1:] = (unsigned[order][1:] != unsigned[order][:-1]) | (
        number[order][1:] != number[order][:-1]
    )
    places = np.empty(len(order), np.int64)
    places[order] = np.cumsum(steps)
    return places


def firsts(place: I64) -> I64:
    """Return for each entry the first one with the same place."""
    first = np.empty(int(place.max()) + 1, np.int64)
    first[place[::-1]] = np.arange(len(place))[::-1]
    return first[place]


def _table(run_id: str, kind: str, columns: GroupColumns, rows: I64, proof: I64) -> pa.Table:
    if len(rows) == 0:
        return no_violations()
    details: list[dict[str, object]] = [
        {"incarnation": str(incarnation), "channel_number": number, "at": process}
        for incarnation, number, process in zip(
            columns.incarnation[rows].view(np.uint64).tolist(),
            columns.channel_number[rows].tolist(),
            columns.process[proof].tolist(),
            strict=True,
        )
    ]
    witness = Witness(columns.source[proof], columns.number[proof], columns.position[proof])
    return violations(run_id, "T5", kind, columns, rows, witness=witness, details=details)
