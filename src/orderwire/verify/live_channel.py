"""T5 of a run that still goes on.

Of each member the highest place is kept that it has received, of each place of the last window who
came in it.  A place that is forgotten and still comes to somebody is too late to be judged.
"""

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from orderwire.trace.events import EventKind
from orderwire.verify.kernels.channel_order import channel_order, firsts, places
from orderwire.verify.kernels.columns import I64, Bools
from orderwire.verify.kernels.total_columns import GroupColumns
from orderwire.verify.live_parts import KEPT, Closing

Place = tuple[int, int]
"""Incarnation of the channel, and number there."""


class ChannelState(msgspec.Struct, kw_only=True):
    """What is remembered between two closings, besides receipts."""

    received: int = 0
    forgotten: Place | None = None
    """The highest place that was forgotten."""
    told: list[Place] = []
    """Places, as far as they are kept, of which it was reported that two PDUs came in them."""
    slow: bool = False
    """Something came in a place that may have been forgotten."""


class LiveChannel:
    """Compares what one run's members received with the channel's order."""

    def __init__(self) -> None:
        self.state = ChannelState()
        self.kept = KEPT.empty_table()

    def close(self, new: pa.Table, closing: Closing) -> pa.Table:
        """Judge new receipts too; return what was not reported so far."""
        numbered = pc.field("channel_number").is_valid()
        new = new.filter((pc.field("kind") == EventKind.RECEIVE.value) & numbered)
        table, columns = closing.arranged(pa.concat_tables([self.kept, new]))
        rows = np.flatnonzero(
            columns.received & (columns.process >= 0) & (columns.process < closing.members)
        )
        if len(rows) == 0:
            return channel_order(closing.run_id, columns)
        place = places(columns.incarnation[rows], columns.channel_number[rows])
        fresh = columns.time_ns[rows] >= closing.low
        self.state.received += int(np.count_nonzero(fresh))
        self._look_for_slow(columns, rows, place, fresh)
        found = self._news(channel_order(closing.run_id, columns), closing)
        self._forget(table, columns, rows, place, closing)
        return found

    def _look_for_slow(self, columns: GroupColumns, rows: I64, place: I64, fresh: Bools) -> None:
        if self.state.forgotten is None:
            return
        known = np.zeros(int(place.max()) + 1, np.bool_)
        known[place[~fresh]] = True
        incarnation, number = self.state.forgotten
        above = columns.incarnation[rows].view(np.uint64)
        low = (above < incarnation) | (
            (above == incarnation) & (columns.channel_number[rows] <= number)
        )
        self.state.slow |= bool(np.any(fresh & low & ~known[place]))

    def _news(self, found: pa.Table, closing: Closing) -> pa.Table:
        told = set(self.state.told)
        rows = []
        names = ("kind", "time_ns", "detail")
        for row, (kind, time_ns, detail) in enumerate(
            zip(*(found.column(name).to_pylist() for name in names), strict=True)
        ):
            if kind != "other-pdu":
                new = time_ns >= closing.low
            else:
                said = msgspec.json.decode(detail)
                place = int(said["incarnation"]), int(said["channel_number"])
                new = place not in told
                told.add(place)
            if new:
                rows.append(row)
        self.state.told = sorted(told)
        return found.take(pa.array(rows, pa.int64()))

    def _forget(
        self, table: pa.Table, columns: GroupColumns, rows: I64, place: I64, closing: Closing
    ) -> None:
        process = columns.process[rows]
        order = np.lexsort((np.arange(len(rows)), -place, process))
        opens = np.ones(len(rows), np.bool_)
        opens[1:] = process[order][1:] != process[order][:-1]
        kept = np.zeros(len(rows), np.bool_)
        kept[order[opens]] = True  # the highest of each member, where it came first
        first = firsts(place) == np.arange(len(rows))
        recent = columns.time_ns[rows] >= closing.settled_ns
        kept |= first & recent
        self._note(columns, rows[first & ~kept])
        kept &= not closing.last
        self.kept = table.take(pa.array(rows[kept])).combine_chunks()
        if self.state.told:
            there = set(_places_of(columns, rows[kept]))
            self.state.told = [told for told in self.state.told if told in there]

    def _note(self, columns: GroupColumns, rows: I64) -> None:
        """Note the highest of the places that are forgotten."""
        if len(rows):
            highest = max(_places_of(columns, rows))
            self.state.forgotten = max(self.state.forgotten or highest, highest)


def _places_of(columns: GroupColumns, rows: I64) -> list[Place]:
    incarnations = columns.incarnation[rows].view(np.uint64).tolist()
    return list(zip(incarnations, columns.channel_number[rows].tolist(), strict=True))
