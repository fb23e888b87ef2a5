"""Members that were started again under the same number: their timelines, one behind the other.

On sockets a process that starts again knows nothing of its past: positions and numbers of messages
count from 0 again.  A START at position 0 begins such a *life*.  An event belongs to the last life
of its process that began by then; the message it is about, to the last life of its sender that
began by the message's stamp.  The k-th life's positions and numbers are put k · 2^32 higher, so
that names are unique and grow.  Traces without second lives stay as they are, and so do simulated
ones, whose restarted processes go on counting.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from orderwire.trace.events import EventKind
from orderwire.verify.kernels.columns import I64, Bools, integers

LIFE_BITS = 32
"""Events of one life, and messages sent in it: below 2 to this power."""
LIVES_MAX = 1 << 10
"""Of one process; those beyond count as the last."""
_OF_MESSAGES = (EventKind.SEND, EventKind.RECEIVE, EventKind.DELIVER, EventKind.DISCARD)


def life_in(position: I64) -> I64:
    """Return the life that each of these positions, or message numbers, is in."""
    return position >> LIFE_BITS


def opens_life(position: I64) -> Bools:
    """Tell which positions are a later life's first."""
    opens: Bools = (position > 0) & (position & ((1 << LIFE_BITS) - 1) == 0)
    return opens


@dataclass(frozen=True, slots=True)
class Lives:
    """When the lives of those processes began that have several, in nanoseconds, ascending."""

    starts_ns: dict[int, tuple[int, ...]]

    def __bool__(self) -> bool:
        return bool(self.starts_ns)

    def ranks(self, process: I64, time_ns: I64) -> I64:
        """Return which life of its process each of these times is in."""
        ranks = np.zeros(len(process), np.int64)
        for one, starts in self.starts_ns.items():
            mine = np.flatnonzero(process == one)
            found = np.searchsorted(np.array(starts[1:]), time_ns[mine], side="right")
            ranks[mine] = np.minimum(found, LIVES_MAX - 1)
        return ranks


NO_LIVES = Lives({})
"""Every process has one, or goes on counting."""


def lives_of(starts: pa.Table, run_id: str) -> Lives:
    """Read the lives of a run's processes out of its START events, repeated or not."""
    first = (pc.field("run_id") == run_id) & (pc.field("position") == 0)
    mine = starts.filter(first)
    return lives_from(
        zip(mine.column("process").to_pylist(), mine.column("time_ns").to_pylist(), strict=True)
    )


def lives_from(starts: Iterable[tuple[int, int]]) -> Lives:
    """Return the lives that began so: pairs of process and time of a START at position 0."""
    times: dict[int, set[int]] = {}
    for process, time_ns in starts:
        times.setdefault(process, set()).add(time_ns)
    return Lives({p: tuple(sorted(mine)) for p, mine in sorted(times.items()) if len(mine) > 1})


def lined_up(table: pa.Table, lives: Lives) -> pa.Table:
    """Return a run's events with the positions and numbers of their lives."""
    if not lives or not table.num_rows:
        return table
    names = table.schema.names
    process = integers(table, "process")
    table = _raised(table, "position", lives.ranks(process, integers(table, "time_ns")))
    if not {"kind", "source", "number", "stamp_ns"} <= set(names):
        return table
    kinds = pa.array([kind.value for kind in _OF_MESSAGES], pa.string())
    about = pc.is_in(table.column("kind"), value_set=kinds).to_numpy()
    sender = lives.ranks(integers(table, "source"), integers(table, "stamp_ns"))
    sent = pc.equal(table.column("kind"), EventKind.SEND.value).to_numpy()
    sender[sent] = life_in(integers(table, "position"))[sent]
    return _raised(table, "number", np.where(about, sender, 0))


def _raised(table: pa.Table, name: str, ranks: I64) -> pa.Table:
    at = table.schema.get_field_index(name)
    values = integers(table, name) + (ranks << LIFE_BITS)
    return table.set_column(at, table.schema.field(at), pa.chunked_array([pa.array(values)]))
