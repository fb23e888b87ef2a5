"""T1 and T2 of a run that still goes on.

A delivery adds to the graph of messages (`kernels.total_order`) an edge to its message, which has
not been settled then.  So every cycle that is still to come lies behind messages that are not
settled, and deliveries of others are forgotten.
"""

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from orderwire.verify.kernels.columns import I64, integers
from orderwire.verify.kernels.total_columns import GroupColumns
from orderwire.verify.kernels.total_order import behind, knots_of, total_order
from orderwire.verify.kernels.violations import no_violations
from orderwire.verify.live_parts import KEPT, Closing

DELIVERIES_MAX = 500_000
"""Deliveries kept behind messages that are not settled; with more, nothing is VALID."""
Message = tuple[int, int]


class OrderState(msgspec.Struct, kw_only=True):
    """What is remembered between two closings, besides deliveries."""

    disagreeing: list[tuple[int, int]] = []
    """Pairs of members that were reported."""
    knotted: list[Message] = []
    """Messages in cycles that were reported, as far as their deliveries are kept."""
    overfull: bool = False


class LiveOrder:
    """Compares the logs of one run's members, as far as all have come."""

    def __init__(self) -> None:
        self.state = OrderState()
        self.kept = KEPT.empty_table()

    def close(self, new: pa.Table, closing: Closing) -> pa.Table:
        """Judge new deliveries too.

        Return a row for every two members that disagree and did not so far (T1), and for every
        knot in which nothing was reported yet (T2).
        """
        table, columns = closing.arranged(pa.concat_tables([self.kept, new]))
        found = total_order(closing.run_id, columns)
        pairs = self._new_pairs(found.filter(pc.field("check") == "T1"))
        knots = self._new_knots(found.filter(pc.field("check") == "T2"), columns)
        self._forget(table, columns, closing)
        return pa.concat_tables([pairs, knots])

    def _new_pairs(self, found: pa.Table) -> pa.Table:
        told = set(self.state.disagreeing)
        rows = []
        details = found.column("detail").to_pylist()
        for row, (process, detail) in enumerate(
            zip(found.column("process").to_pylist(), details, strict=True)
        ):
            pair = process, msgspec.json.decode(detail)["other"]
            if pair not in told:
                told.add(pair)
                rows.append(row)
        self.state.disagreeing = sorted(told)
        return _taken(found, rows)

    def _new_knots(self, found: pa.Table, columns: GroupColumns) -> pa.Table:
        if not found.num_rows:
            return found
        knots = knots_of(columns)
        inside: dict[int, set[Message]] = {}
        label: dict[Message, int] = {}
        deliveries, message = columns.deliveries
        tied = knots[message] >= 0
        for row, knot in zip(deliveries[tied].tolist(), knots[message[tied]].tolist(), strict=True):
            name = int(columns.source[row]), int(columns.number[row])
            inside.setdefault(knot, set()).add(name)
            label[name] = knot
        told = set(self.state.knotted)
        rows = []
        names = zip(*(found.column(name).to_pylist() for name in ("source", "number")), strict=True)
        for row, name in enumerate(names):
            members = inside[label[name]]
            if not members & told:
                rows.append(row)
            told |= members
        self.state.knotted = sorted(told)
        return _taken(found, rows)

    def _forget(self, table: pa.Table, columns: GroupColumns, closing: Closing) -> None:
        """Keep what lies behind messages that are not settled: the end of each log."""
        rows, message = columns.deliveries
        newest = closing.stamped(table, rows, message, columns.names.count)
        kept = behind(columns, newest >= closing.settled_ns)[message]
        self.kept = table.take(pa.array(rows[kept])).combine_chunks()
        if self.kept.num_rows > DELIVERIES_MAX:
            self.state.overfull = True
            times = integers(self.kept, "time_ns")
            newer = np.sort(np.argsort(times, kind="stable")[-DELIVERIES_MAX:])
            self.kept = self.kept.take(pa.array(newer)).combine_chunks()
        if self.state.knotted:
            self.state.knotted = sorted(set(self.state.knotted) & _names(columns, rows[kept]))


def _names(columns: GroupColumns, rows: I64) -> set[Message]:
    return set(zip(columns.source[rows].tolist(), columns.number[rows].tolist(), strict=True))


def _taken(found: pa.Table, rows: list[int]) -> pa.Table:
    return found.take(pa.array(rows, pa.int64())) if rows else no_violations()
