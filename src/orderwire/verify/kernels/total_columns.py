"""A totally ordered group's run as numpy columns, with its messages numbered through.

Only what the checks T1 … T5 read: rows sorted by process and position, without repeats.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from orderwire.trace.events import EventKind
from orderwire.verify.kernels.columns import (
    DELIVER,
    I8,
    I64,
    KINDS,
    RECEIVE,
    SEND,
    Bools,
    codes_of,
    integers,
    order_of,
    whole,
)
from orderwire.verify.kernels.matching import first_of

GROUP_NEEDED = (
    *("run_id", "process", "position", "kind", "time_ns", "source", "number", "stamp_ns"),
    *("destinations", "incarnation", "channel_number"),
)
"""Columns of the trace that these checks read."""
GROUP_KINDS = tuple(
    kind.value
    for kind in (
        *(EventKind.START, EventKind.SEND, EventKind.RECEIVE, EventKind.DELIVER),
        *(EventKind.INSTALL, EventKind.END),
    )
)
"""Kinds of events that they read."""
_ROOMY = 4
"""Messages are named by subtraction when no more than so many names for each are left unused."""


@dataclass(frozen=True)
class GroupColumns:
    """One run's events of `GROUP_KINDS`, sorted by process and position."""

    members: int
    process: I64
    position: I64
    kind: I8
    time_ns: I64
    source: I64
    number: I64
    incarnation: I64
    """Of the channel: 64 bits of an unsigned number."""
    channel_number: I64
    received: Bools
    """Came by the channel, with a number of it."""
    destinations: pa.Array
    """Binary: little-endian bit masks."""

    def rows(self, *kinds: int) -> I64:
        """Return the rows of these kinds of members, ascending."""
        return np.flatnonzero(np.isin(self.kind, kinds) & self._inside)

    @cached_property
    def _inside(self) -> Bools:
        return (self.process >= 0) & (self.process < self.members)

    @cached_property
    def names(self) -> "Names":
        """The messages that were sent or delivered."""
        rows = self.rows(SEND, DELIVER)
        return name_messages(rows, self.source[rows], self.number[rows])

    @cached_property
    def sends(self) -> tuple[I64, I64]:
        """The first send of each message: rows, and which messages they are."""
        return self._firsts(SEND)

    @cached_property
    def deliveries(self) -> tuple[I64, I64]:
        """The first delivery of each message by each process: rows, and which they are."""
        rows, message = self._of(DELIVER)
        first = first_of(message, self.process[rows], self.members)
        return rows[first], message[first]

    def _firsts(self, kind: int) -> tuple[I64, I64]:
        rows, message = self._of(kind)
        first = np.full(self.names.count, -1, np.int64)
        first[message[::-1]] = np.arange(len(rows))[::-1]
        kept = np.sort(first[first >= 0])
        return rows[kept], message[kept]

    def _of(self, kind: int) -> tuple[I64, I64]:
        mine = self.kind[self.names.rows] == kind
        return self.names.rows[mine], self.names.message[mine]


@dataclass(frozen=True, slots=True)
class Names:
    """Numbers of messages, in the order of (source, number); some may be unused."""

    count: int
    rows: I64
    message: I64
    """Of each of these rows."""


def name_messages(rows: I64, source: I64, number: I64) -> Names:
    """Number the messages of these rows through."""
    if len(rows) == 0:
        return Names(0, rows, rows)
    sources, which = np.unique(source, return_inverse=True)
    lowest = np.full(len(sources), np.iinfo(np.int64).max)
    highest = np.full(len(sources), np.iinfo(np.int64).min)
    np.minimum.at(lowest, which, number)
    np.maximum.at(highest, which, number)
    # In floating point first: numbers of a damaged trace may span more than 64 bits.
    if np.sum(highest.astype(float) - lowest.astype(float) + 1) <= _ROOMY * len(rows) + 1024:
        sizes = highest - lowest + 1
        base = np.cumsum(sizes) - sizes
        return Names(int(sizes.sum()), rows, base[which] + number - lowest[which])
    order = np.lexsort((number, source))
    opens = np.ones(len(rows), np.bool_)
    opens[1:] = np.any(
        [source[order][1:] != source[order][:-1], number[order][1:] != number[order][:-1]], axis=0
    )
    message = np.empty(len(rows), np.int64)
    message[order] = np.cumsum(opens) - 1
    return Names(int(np.count_nonzero(opens)), rows, message)


def group_columns_of(table: pa.Table, members: int) -> GroupColumns:
    """Read one run's events out of a trace table with `GROUP_NEEDED`, in any order of rows.

    Of rows that repeat a (process, position) the first counts: `wellformed` reports the others.
    """
    table = table.filter(
        pc.is_in(
            table.column("kind"), value_set=pa.array(GROUP_KINDS, table.schema.field("kind").type)
        )
    ).combine_chunks()
    process, position = integers(table, "process"), integers(table, "position")
    order = order_of(process, position)
    if order is None:
        order = np.arange(len(process))
    again = np.zeros(len(order), np.bool_)
    again[1:] = (process[order][1:] == process[order][:-1]) & (
        position[order][1:] == position[order][:-1]
    )
    kept = order[~again]
    placed = whole(table, "channel_number")
    kind = codes_of(table, "kind", KINDS)[kept]
    known = placed.is_valid().to_numpy(zero_copy_only=False)[kept]
    return GroupColumns(
        members=members,
        process=process[kept],
        position=position[kept],
        kind=kind,
        time_ns=integers(table, "time_ns")[kept],
        source=integers(table, "source")[kept],
        number=integers(table, "number")[kept],
        incarnation=_or_zero(whole(table, "incarnation"))[kept],
        channel_number=_or_zero(placed)[kept],
        received=known & (kind == RECEIVE),
        destinations=whole(table, "destinations").take(pa.array(kept)),
    )


def _or_zero(column: pa.Array) -> I64:
    values: I64 = pc.fill_null(column, 0).to_numpy(zero_copy_only=False)
    return values
