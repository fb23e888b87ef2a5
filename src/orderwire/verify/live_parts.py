"""What the parts of the audit of a run that still goes on share."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from orderwire.trace.schema import arrow_schema
from orderwire.verify.kernels.columns import I64, TIME_MAX, TIME_MIN, integers
from orderwire.verify.kernels.lives import Lives, lined_up
from orderwire.verify.kernels.total_columns import GROUP_NEEDED, GroupColumns, group_columns_of

KEPT = pa.schema([arrow_schema().field(name) for name in GROUP_NEEDED])
"""Events as they came: their lives may still be told apart anew."""


@dataclass(frozen=True, slots=True)
class Closing:
    """How far a run is closed now, and what is known of it."""

    run_id: str
    low: int
    """Events from here on are new, in nanoseconds."""
    high: int
    """Events from here on are not looked at yet."""
    window_ns: int
    """How long a message may be under way, and be stamped ahead."""
    settled_ns: int
    """Messages stamped before are settled: nobody sends or hands them over any more."""
    members: int
    lives: Lives
    late: frozenset[int]
    """Members of which something came too late to be looked at."""

    @property
    def last(self) -> bool:
        """Nothing is to come."""
        return self.settled_ns == TIME_MAX

    def arranged(self, table: pa.Table) -> tuple[pa.Table, GroupColumns]:
        """Return events sorted by process and position, each once, and as columns of these rows."""
        lined = lined_up(table, self.lives)
        process, position = integers(lined, "process"), integers(lined, "position")
        order = np.lexsort((position, process))
        again = np.zeros(len(order), np.bool_)
        again[1:] = (process[order][1:] == process[order][:-1]) & (
            position[order][1:] == position[order][:-1]
        )
        rows = pa.array(order[~again])
        columns = group_columns_of(lined.take(rows), self.members)
        return table.take(rows).combine_chunks(), columns

    def stamped(self, table: pa.Table, rows: I64, message: I64, count: int) -> I64:
        """Return the newest stamp of each of `count` messages that these rows are about.

        One too far ahead of its event's time counts as no more than a window ahead.
        """
        newest = np.full(count, TIME_MIN, np.int64)
        ahead = integers(table, "time_ns") + self.window_ns
        stamps = np.minimum(integers(table, "stamp_ns"), ahead)
        np.maximum.at(newest, message, stamps[rows])
        return newest


def pack(table: pa.Table) -> bytes:
    """Return a table as bytes: the same for the same rows."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def unpack(content: bytes) -> pa.Table:
    """Undo `pack`."""
    with pa.ipc.open_stream(content) as reader:
        return reader.read_all()
