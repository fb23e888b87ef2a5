"""A run's trace as numpy columns: what every kernel reads.

Rows are sorted by (process, position) and hold one run.  Masks of destinations become a matrix of
bits, one row a send.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from orderwire.trace.events import EventKind

I64 = npt.NDArray[np.int64]
I8 = npt.NDArray[np.int8]
U8 = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]

KINDS = tuple(kind.value for kind in EventKind)
START, SEND, RECEIVE, DELIVER, DISCARD, LOST, END = range(7)
BOOT, ADOPT, UPDATE, LEAVE, GONE, LEARN, EXPIRE, POST, HEAR, INSTALL = range(7, len(KINDS))
REASONS = ("late", "duplicate", "future", "full", "expired", "overtaken")
LATE, DUPLICATE, FUTURE, FULL, EXPIRED, OVERTAKEN = range(len(REASONS))
TIME_MIN = -(2**62)
TIME_MAX = 2**62
OTHER = -1
"""Code of a kind or reason that the audit does not know and passes over."""

NEEDED = (
    "run_id",
    "process",
    "position",
    "kind",
    "time_ns",
    "clock_ns",
    "source",
    "number",
    "stamp_ns",
    "arrived_ns",
    "destinations",
    "reason",
    "lifetime_ns",
)
"""Columns of the trace that the audit reads, `detail` and `vector_clock` left aside."""

assert KINDS[:7] == ("start", "send", "receive", "deliver", "discard", "lost", "end")
assert KINDS[7:12] == ("boot", "adopt", "update", "leave", "gone")
assert KINDS[12:] == ("learn", "expire", "post", "hear", "install")


@dataclass(frozen=True, slots=True)
class Columns:
    """One run's events, sorted by process and position.  All times in nanoseconds."""

    process: I64
    position: I64
    kind: I8
    time_ns: I64
    clock_ns: I64
    source: I64
    number: I64
    stamp_ns: I64
    arrived_ns: I64
    reason: I8
    destinations: pa.Array
    """Binary: little-endian bit masks, of sends."""
    lifetime_ns: I64 | None = None
    """Own lifetimes of messages, at their sends; TIME_MIN where there is none.  None: nowhere."""

    def __len__(self) -> int:
        return len(self.process)

    def rows(self, kind: int) -> I64:
        """Return the rows of this kind, ascending."""
        return np.flatnonzero(self.kind == kind)

    def take(self, rows: I64 | Bools) -> "Columns":
        """Return these rows only."""
        if rows.dtype == np.bool_:
            rows = np.flatnonzero(rows)
        return Columns(
            process=self.process[rows],
            position=self.position[rows],
            kind=self.kind[rows],
            time_ns=self.time_ns[rows],
            clock_ns=self.clock_ns[rows],
            source=self.source[rows],
            number=self.number[rows],
            stamp_ns=self.stamp_ns[rows],
            arrived_ns=self.arrived_ns[rows],
            reason=self.reason[rows],
            destinations=self.destinations.take(pa.array(rows)),
            lifetime_ns=None if self.lifetime_ns is None else self.lifetime_ns[rows],
        )


def columns_of(table: pa.Table) -> Columns:
    """Read one run's events out of a trace table, in any order of rows.

    Rows that repeat a (process, position) are all kept: see `wellformed.drop_repeats`.
    """
    table = table.combine_chunks()
    columns = Columns(
        process=integers(table, "process"),
        position=integers(table, "position"),
        kind=codes_of(table, "kind", KINDS),
        time_ns=integers(table, "time_ns"),
        clock_ns=integers(table, "clock_ns"),
        source=integers(table, "source"),
        number=integers(table, "number"),
        stamp_ns=integers(table, "stamp_ns"),
        arrived_ns=integers(table, "arrived_ns"),
        reason=codes_of(table, "reason", REASONS),
        destinations=whole(table, "destinations"),
        lifetime_ns=_lifetimes(table),
    )
    order = order_of(columns.process, columns.position)
    return columns if order is None else columns.take(order)


def order_of(process: I64, position: I64) -> I64 | None:
    """Return the order that sorts by process and position; None when all is sorted already."""
    if len(process) < 2:
        return None
    same = process[1:] == process[:-1]
    if np.all((process[1:] > process[:-1]) | (same & (position[1:] >= position[:-1]))):
        return None
    if (
        process.min() >= 0
        and process.max() < 2**20
        and position.min() >= 0
        and position.max() < 2**42
    ):
        key = process << 42 | position  # one sort, of keys that are mostly in order
        return np.argsort(key, kind="stable")
    return np.lexsort((position, process))


def bits_of(masks: pa.Array, members: int) -> tuple[Bools, Bools]:
    """Return a row of `members` bits for each mask, and which masks name a process beyond them."""
    count = len(masks)
    if masks.type != pa.binary():
        masks = masks.cast(pa.binary())
    buffers = masks.buffers()
    offsets = np.frombuffer(buffers[1], np.int32)[masks.offset : masks.offset + count + 1]
    data = np.frombuffer(buffers[2], np.uint8) if buffers[2] is not None else np.zeros(0, np.uint8)
    sizes = np.diff(offsets)
    width = (members + 7) // 8
    wide = int(sizes.max(initial=0))
    matrix = np.zeros((count, max(width, wide)), np.uint8)
    for at in range(wide):
        has = np.flatnonzero(sizes > at)
        matrix[has, at] = data[offsets[has] + at]
    bits = np.unpackbits(matrix, axis=1, bitorder="little").view(np.bool_)
    strange = np.asarray(bits[:, members:].any(axis=1))
    return bits[:, :members], strange


def whole(table: pa.Table, name: str) -> pa.Array:
    """Return a column in one piece."""
    column = table.column(name)
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def integers(table: pa.Table, name: str) -> I64:
    """Return a column of integers without nulls."""
    column: I64 = whole(table, name).to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return column


def _lifetimes(table: pa.Table) -> I64 | None:
    column = whole(table, "lifetime_ns")
    if column.null_count == len(column):
        return None
    lifetimes: I64 = pc.fill_null(column, TIME_MIN).to_numpy(zero_copy_only=False)
    return lifetimes


def codes_of(table: pa.Table, name: str, known: Sequence[str]) -> I8:
    """Return the index of each value among those that are known, else OTHER."""
    column = whole(table, name)
    found = pc.index_in(column, value_set=pa.array(known, column.type))
    codes: I8 = pc.fill_null(found, OTHER).to_numpy(zero_copy_only=False).astype(np.int8)
    return codes
