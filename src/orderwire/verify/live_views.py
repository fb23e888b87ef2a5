"""T3 and T4 of a run that still goes on.

Views are few, and all are kept.  A message is judged when it is settled, and forgotten when all its
destinations have handed it over; one that lacks in one of them is judged again whenever more is
known of who went on to which view.  What only the end can tell is judged then: whether somebody who
never went on from its view was a member to the end, and owes what it lacks, or had crashed.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from orderwire.trace.events import EventKind
from orderwire.verify.kernels.columns import I64
from orderwire.verify.kernels.lives import Lives, lined_up
from orderwire.verify.kernels.stays import Views, views_of
from orderwire.verify.kernels.total_columns import GroupColumns, group_columns_of
from orderwire.verify.kernels.total_views import atomicity, lacking, view_agreement
from orderwire.verify.live_parts import KEPT, Closing

MARKS_MAX = 50_000
"""Beginnings, ends and views kept of one run; with more, nothing is VALID."""
LACKING_MAX = 20_000
"""Settled messages kept that some destination lacks, the newest; with more, nothing is VALID."""
_MARKS = (EventKind.START, EventKind.INSTALL, EventKind.END)
_ABOUT = (EventKind.SEND, EventKind.DELIVER)
Key = tuple[str, int, int, int, int]
"""(kind, process, position, source, number) of a violation."""


class ViewsState(msgspec.Struct, kw_only=True):
    """What is remembered between two closings, besides events."""

    installs: int = 0
    told: list[Key] = []
    """Violations that were reported, of what is kept."""
    blind: bool = False
    """Messages were forgotten when nobody had a view yet."""
    overfull: bool = False


class LiveViews:
    """Judges the views of one run's members, and what they handed over in them."""

    def __init__(self) -> None:
        self.state = ViewsState()
        self.marks = KEPT.empty_table()
        self.open = KEPT.empty_table()
        """Sends and deliveries of messages that are not settled, or that somebody lacks."""

    def close(self, new: pa.Table, closing: Closing) -> pa.Table:
        """Judge what is settled by now; return what was not reported so far."""
        marks = new.filter(_of(_MARKS))
        self.state.installs += marks.filter(_of([EventKind.INSTALL])).num_rows
        self.marks = pa.concat_tables([self.marks, marks]).combine_chunks()
        if self.marks.num_rows > MARKS_MAX:
            self.state.overfull = True
            self.marks = self.marks.slice(self.marks.num_rows - MARKS_MAX).combine_chunks()
        about = pa.concat_tables([self.open, new.filter(_of(_ABOUT))])
        table, columns = closing.arranged(about)
        rows, message = columns.names.rows, columns.names.message
        newest = closing.stamped(table, rows, message, columns.names.count)
        settled = newest < closing.settled_ns
        found = self._judged(table.take(pa.array(rows[settled[message]])), closing)
        self._forget(table, columns, newest, closing)
        return found

    def views(self, members: int, lives: Lives) -> Views:
        """Return the views so far."""
        return views_of(group_columns_of(lined_up(self.marks, lives), members))

    def _judged(self, settled: pa.Table, closing: Closing) -> pa.Table:
        known = pa.concat_tables([self.marks, settled])
        if not closing.last or closing.late:
            # An end tells nothing before it is known that nobody went on.
            known = known.filter(pc.field("kind") != EventKind.END.value)
        if closing.late:
            known = known.filter(~pc.field("process").isin(sorted(closing.late)))
        _, columns = closing.arranged(known)
        views = views_of(columns)
        self._see(bool(views.stays), settled.num_rows > 0)
        found = pa.concat_tables(
            [
                atomicity(closing.run_id, columns, views),
                view_agreement(closing.run_id, columns, views),
            ]
        )
        told = set(self.state.told)
        fresh = []
        for row, key in enumerate(_keys(found)):
            if key not in told:
                told.add(key)
                fresh.append(row)
        self.state.told = sorted(told)
        return found.take(pa.array(fresh, pa.int64()))

    def _see(self, stays: bool, forgets: bool) -> None:
        """Note that messages are forgotten which, before any view, were outside of all."""
        if stays:
            self.state.overfull |= self.state.blind
            self.state.blind = False
        elif forgets:
            self.state.blind = True

    def _forget(
        self, table: pa.Table, columns: GroupColumns, newest: I64, closing: Closing
    ) -> None:
        settled = newest < closing.settled_ns
        lacks = lacking(columns, settled)
        waiting = np.flatnonzero(lacks)
        if len(waiting) > LACKING_MAX:
            self.state.overfull = True
            lacks[waiting[np.argsort(newest[waiting], kind="stable")[:-LACKING_MAX]]] = False
        rows, message = columns.names.rows, columns.names.message
        kept = rows[(lacks | ~settled)[message] & (not closing.last)]
        self.open = table.take(pa.array(kept)).combine_chunks()
        if self.state.told:
            names = set(
                zip(columns.source[kept].tolist(), columns.number[kept].tolist(), strict=True)
            )
            self.state.told = [key for key in self.state.told if key[3] < 0 or key[3:] in names]


def _of(kinds: Sequence[EventKind]) -> pc.Expression:
    return pc.field("kind").isin([kind.value for kind in kinds])


def _keys(found: pa.Table) -> list[Key]:
    names = ("kind", "process", "position", "source", "number")
    return list(zip(*(found.column(name).to_pylist() for name in names), strict=True))
