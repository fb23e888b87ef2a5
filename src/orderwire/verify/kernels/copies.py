"""C1: no copy is missing, delivered twice, delivered to a non-destination, or made up.

A copy is a message and one of its destinations.  Its send and what became of it lie at most one
window apart, so a slice settles nearly all copies by itself; what it cannot settle, it hands on as
a residue: copies without an outcome and outcomes without a send.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from orderwire.trace.events import RunSettings
from orderwire.verify.kernels.columns import (
    DELIVER,
    DISCARD,
    EXPIRED,
    FULL,
    FUTURE,
    I64,
    LATE,
    LOST,
    OVERTAKEN,
    RECEIVE,
    START,
    Bools,
    Columns,
)
from orderwire.verify.kernels.lifetime import deadlines
from orderwire.verify.kernels.matching import Matches, first_of
from orderwire.verify.kernels.violations import Witness, no_violations, violations

DROPS = ("late", "expired", "overtaken", "refused")
"""What becomes of copies that are discarded: past the run's lifetime or their own, overtaken, or
refused for a stamp from the future or a full buffer.  A copy that came several times and was
discarded each time is counted once, by the first of its discards."""
DROP_OF = {
    LATE: "late",
    EXPIRED: "expired",
    OVERTAKEN: "overtaken",
    FUTURE: "refused",
    FULL: "refused",
}
"""By the discard's reason; a duplicate says nothing about the copy."""
TALLIES = ("written", "delivered", *DROPS, "missing", "reported_lost")
"""What is counted of each (source, destination) pair, in copies."""


@dataclass(frozen=True, slots=True)
class Copies:
    """What a slice says about copies."""

    violations: pa.Table
    tallies: dict[str, I64]
    """(members × members) counts by source and destination, for each of `TALLIES`."""
    missing: pa.Table
    """Copies without an outcome, columns of `MISSING`."""
    stray: pa.Table
    """Outcomes without a send in view, columns of `STRAY`."""


MISSING = pa.schema(
    [
        ("source", pa.int32()),
        ("number", pa.int64()),
        ("process", pa.int32()),
        ("stamp_ns", pa.int64()),
        ("deadline_ns", pa.int64()),
        ("time_ns", pa.int64()),
        ("received_ns", pa.int64()),
    ]
)
"""`process` is the destination, `time_ns` the send's, `received_ns` the arrival's clock or −1.
`deadline_ns` is the message's own, TIME_MAX without one."""

STRAY = pa.schema(
    [
        ("source", pa.int32()),
        ("number", pa.int64()),
        ("process", pa.int32()),
        ("position", pa.int64()),
        ("time_ns", pa.int64()),
        ("kind", pa.int8()),
        ("reason", pa.int8()),
    ]
)


def audit_copies(
    run_id: str,
    columns: Columns,
    matches: Matches,
    settings: RunSettings,
    core: Bools,
    decided: Bools,
) -> Copies:
    """Settle the copies of the sends marked in `decided` (by index), judge the rows in `core`.

    Kinds: `duplicate`, `non-destination`, `altered` (the delivered stamp is not the sent one).
    """
    process = columns.process[matches.rows]
    kind, reason = columns.kind[matches.rows], columns.reason[matches.rows]
    known = matches.send >= 0
    shape = matches.intended.shape
    send, to = np.nonzero(matches.intended & decided[:, None])
    delivered = _marked(shape, matches, process, known & (kind == DELIVER))[send, to]
    pair = columns.source[matches.send_rows[send]] * matches.members + to
    tallies = {
        "written": _by_pair(pair, matches.members),
        "delivered": _by_pair(pair[delivered], matches.members),
        "reported_lost": _reported(columns, core, matches.members),
    }
    missing = ~delivered
    dropped = np.flatnonzero(known & (kind == DISCARD) & np.isin(reason, list(DROP_OF)))
    dropped = dropped[first_of(matches.send[dropped], process[dropped], matches.members)]
    for name in DROPS:
        codes = [code for code, drop in DROP_OF.items() if drop == name]
        which = np.zeros(len(send), np.bool_)
        mine = dropped[np.isin(reason[dropped], codes)]
        if len(mine):
            which = ~delivered & _marked(shape, matches, process, mine)[send, to]
            missing &= ~which
        tallies[name] = _by_pair(pair[which], matches.members)
    tallies["missing"] = _by_pair(pair[missing], matches.members)
    stray = np.flatnonzero(~known & core[matches.rows] & (kind != RECEIVE))
    return Copies(
        pa.concat_tables(_misdelivered(run_id, columns, matches, core)),
        tallies,
        _missing_table(columns, matches, settings, send[missing], to[missing]),
        _stray_table(columns, matches.rows[stray]),
    )


def _marked(shape: tuple[int, ...], matches: Matches, process: I64, which: Bools | I64) -> Bools:
    marks = np.zeros(shape, np.bool_)
    marks[matches.send[which], process[which]] = True
    return marks


def _by_pair(pair: I64, members: int) -> I64:
    """Count copies by source and destination."""
    counts: I64 = np.bincount(pair, minlength=members * members).reshape(members, members)
    return counts


def _reported(columns: Columns, core: Bools, members: int) -> I64:
    """Count what each link said it had lost: LOST events, by source and destination."""
    counts = np.zeros((members, members), np.int64)
    rows = np.flatnonzero((columns.kind == LOST) & core)
    source, process = columns.source[rows], columns.process[rows]
    inside = (source >= 0) & (source < members) & (process >= 0) & (process < members)
    np.add.at(counts, (source[inside], process[inside]), columns.number[rows][inside])
    return counts


def _misdelivered(run_id: str, columns: Columns, matches: Matches, core: Bools) -> list[pa.Table]:
    deliveries = np.flatnonzero((columns.kind[matches.rows] == DELIVER) & (matches.send >= 0))
    rows, send = matches.rows[deliveries], matches.send[deliveries]
    process = columns.process[rows]
    judged = core[rows]
    tables = [no_violations()]
    again = np.flatnonzero(judged & ~first_of(send, process, matches.members))
    if len(again):
        key = send * matches.members + process
        _, first, which = np.unique(key, return_index=True, return_inverse=True)
        proof = rows[first[which[again]]]
        # Who crashed in between has forgotten the first one: that is no fault.
        starts = np.flatnonzero(columns.kind == START)
        crashed = np.searchsorted(starts, proof) < np.searchsorted(starts, rows[again])
        again, proof = again[~crashed], proof[~crashed]
        tables.append(_with_proof(run_id, "duplicate", columns, rows[again], proof))
    astray = np.flatnonzero(judged & ~matches.intended[send, process])
    tables.append(violations(run_id, "C1", "non-destination", columns, rows[astray]))
    origin = matches.send_rows[send]
    altered = np.flatnonzero(judged & (columns.stamp_ns[rows] != columns.stamp_ns[origin]))
    if len(altered):
        stamps = columns.stamp_ns[origin[altered]].tolist()
        tables.append(
            violations(
                run_id,
                "C1",
                "altered",
                columns,
                rows[altered],
                details=[
                    {"sent_stamp_ns": sent, "delivered_stamp_ns": got}
                    for sent, got in zip(
                        stamps, columns.stamp_ns[rows[altered]].tolist(), strict=True
                    )
                ],
            )
        )
    return tables


def _with_proof(run_id: str, kind: str, columns: Columns, rows: I64, proof: I64) -> pa.Table:
    witness = Witness(columns.source[proof], columns.number[proof], columns.position[proof])
    return violations(run_id, "C1", kind, columns, rows, witness=witness)


def _missing_table(
    columns: Columns, matches: Matches, settings: RunSettings, send: I64, process: I64
) -> pa.Table:
    rows = matches.send_rows[send]
    received = np.full(len(send), -1, np.int64)
    receipts = np.flatnonzero((columns.kind[matches.rows] == RECEIVE) & (matches.send >= 0))
    if len(receipts) and len(send):
        at = matches.rows[receipts]
        key = matches.send[receipts] * matches.members + columns.process[at]
        key, first = np.unique(key, return_index=True)
        wanted = send * matches.members + process
        found = np.minimum(np.searchsorted(key, wanted), len(key) - 1)
        hit = key[found] == wanted
        received[hit] = columns.clock_ns[at[first[found[hit]]]]
    return _table(
        MISSING,
        columns.source[rows],
        columns.number[rows],
        process,
        columns.stamp_ns[rows],
        deadlines(columns, matches, settings)[send],
        columns.time_ns[rows],
        received,
    )


def _stray_table(columns: Columns, rows: I64) -> pa.Table:
    return _table(
        STRAY,
        columns.source[rows],
        columns.number[rows],
        columns.process[rows],
        columns.position[rows],
        columns.time_ns[rows],
        columns.kind[rows],
        columns.reason[rows],
    )


def _table(schema: pa.Schema, *values: object) -> pa.Table:
    return pa.table(
        [pa.array(value).cast(field.type) for value, field in zip(values, schema, strict=True)],
        schema=schema,
    )
