"""Slices: a long run, audited piece by piece, with the same result as in one piece.

A delivery at t whose message took at most W can only have been overtaken by what was sent,
forwarded and delivered within [t − W, t].  So a slice [low, high) of deliveries is judged from the
events in [low − W, high), starting from no knowledge: nothing is missed, nothing made up.  Clocks
that differ by ε widen both ends by ε.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from orderwire.trace.events import RunSettings
from orderwire.verify.kernels.columns import (
    DELIVER,
    DISCARD,
    END,
    GONE,
    I64,
    INSTALL,
    START,
    TIME_MAX,
    TIME_MIN,
    Columns,
    columns_of,
)
from orderwire.verify.kernels.copies import TALLIES, audit_copies
from orderwire.verify.kernels.lifetime import lifetime
from orderwire.verify.kernels.matching import match
from orderwire.verify.kernels.order import causal_order
from orderwire.verify.kernels.violations import merge
from orderwire.verify.kernels.wellformed import (
    drop_repeats,
    early_effects,
    stretches,
    timelines,
)

EVENTS_TARGET = 200_000
"""Events of one slice: large enough to hide the cost of starting, small enough for memory."""
EVENTS_MIN = 5_000
CELLS_MAX = 16_000_000
"""Largest (sends × members) matrix that a slice should need, in entries."""
LENGTH_WINDOWS_MIN = 8
"""A slice is at least so many windows long: at most an eighth is read twice."""
BUCKETS_MAX = 4_096
"""Resolution of the plan: events are counted in at most so many stretches of time (and one)."""


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a run: the events it judges and those it must see."""

    run_id: str
    low: int = TIME_MIN
    """Judges the events with low ≤ time_ns < high."""
    high: int = TIME_MAX
    window_ns: int = 0
    """W: the longest time from a send to a delivery in the run."""
    epsilon_ns: int = 0

    @property
    def view_low(self) -> int:
        """Earliest time of an event that the slice must see."""
        return TIME_MIN if self.low == TIME_MIN else self.low - self.window_ns - self.epsilon_ns

    @property
    def view_high(self) -> int:
        """The slice must see the events before this time."""
        return TIME_MAX if self.high == TIME_MAX else self.high + self.epsilon_ns

    @property
    def whole(self) -> bool:
        """It is the run in one piece."""
        return self.low == TIME_MIN and self.high == TIME_MAX


@dataclass(frozen=True, slots=True)
class Extent:
    """What a plan needs to know of a run."""

    run_id: str
    events: int
    first_ns: int
    last_ns: int
    window_ns: int
    """Upper bound of the time from a send to a delivery, or to a discard that its send or later
    deliveries must justify: the largest `time_ns − stamp_ns` of these plus the largest
    `stamp_ns − time_ns` of a send, for stamps may run ahead of time."""


def events_target(members: int) -> int:
    """Return how many events a slice should hold in a run of this many members."""
    return max(EVENTS_MIN, min(EVENTS_TARGET, CELLS_MAX // max(1, members)))


def plan_slices(
    extent: Extent, settings: RunSettings | None, buckets: I64, counts: I64, target: int = 0
) -> list[Slice]:
    """Cut a run into slices, in the order of time.

    `buckets` are the starts of the buckets that hold events, ascending.  A run without a shared
    clock is one slice, as is one that is short.
    """
    members = 1 if settings is None else settings.members
    target = target or events_target(members)
    whole = Slice(run_id=extent.run_id)
    if settings is None or settings.clock != "shared" or extent.events < 2 * target:
        return [whole]
    window = max(0, extent.window_ns)
    length_min = LENGTH_WINDOWS_MIN * (window + 2 * settings.epsilon_ns)
    cuts: list[int] = []
    held, since = 0, extent.first_ns
    for start, count in zip(buckets.tolist(), counts.tolist(), strict=True):
        if held >= target and start - since >= length_min:
            cuts.append(start)
            held, since = 0, start
        held += count
    if cuts and held < target // 4:
        cuts.pop()
    edges = [TIME_MIN, *cuts, TIME_MAX]
    return [
        Slice(
            run_id=extent.run_id,
            low=low,
            high=high,
            window_ns=window,
            epsilon_ns=settings.epsilon_ns,
        )
        for low, high in pairwise(edges)
    ]


@dataclass(frozen=True, slots=True)
class Findings:
    """All that a slice says of a run, as tables: they travel, and are joined in `settle`."""

    violations: pa.Table
    tallies: pa.Table
    missing: pa.Table
    stray: pa.Table
    timelines: pa.Table
    """One row a life of a process: its stretch, see `STRETCHES`."""
    edges: pa.Table
    """START and END events, and GONE: `source` is who is gone; INSTALL, of groups with views."""
    counts: pa.Table
    """How much there was to check."""

    def parts(self) -> dict[str, pa.Table]:
        """Return the tables by name."""
        return {name: getattr(self, name) for name in PARTS}


PARTS = ("violations", "tallies", "missing", "stray", "timelines", "edges", "counts")
TALLY = pa.schema(
    [("source", pa.int32()), ("process", pa.int32()), *((name, pa.int64()) for name in TALLIES)]
)
STRETCHES = pa.schema(
    [
        ("low", pa.int64()),
        ("process", pa.int64()),
        ("first", pa.int64()),
        ("last", pa.int64()),
        ("first_number", pa.int64()),
        ("last_number", pa.int64()),
        ("ends", pa.bool_()),
        ("sound", pa.bool_()),
    ]
)
EDGES = pa.schema(
    [
        ("process", pa.int64()),
        ("position", pa.int64()),
        ("kind", pa.int8()),
        ("time_ns", pa.int64()),
        ("clock_ns", pa.int64()),
        ("source", pa.int64()),
    ]
)
COUNTS = pa.schema([("events", pa.int64()), ("deliveries", pa.int64()), ("outcomes", pa.int64())])


def audit_slice(table: pa.Table, piece: Slice, settings: RunSettings) -> Findings:
    """Audit one slice of one run.

    `table` holds the trace's events of the run with view_low ≤ time_ns < view_high; more do no
    harm.  Whatever order and chunks its rows have, and repeated ones, the findings are the same.
    """
    return audit_columns(columns_of(table), piece, settings)


def audit_columns(columns: Columns, piece: Slice, settings: RunSettings) -> Findings:
    """Audit one slice of one run, its events given as columns."""
    run_id, members = piece.run_id, settings.members
    seen = (columns.time_ns >= piece.view_low) & (columns.time_ns < piece.view_high)
    if not seen.all():
        columns = columns.take(seen)
    columns, conflicts = drop_repeats(run_id, columns)
    conflicts = conflicts.filter(_between(conflicts.column("time_ns"), piece))
    core = (columns.time_ns >= piece.low) & (columns.time_ns < piece.high)
    shared = settings.clock == "shared"
    matches = match(columns, members)
    sent = columns.time_ns[matches.send_rows]
    window = piece.window_ns
    decided = np.ones(len(sent), np.bool_)
    copied = matches
    if piece.low != TIME_MIN:
        decided &= sent >= piece.low - window
        # What became of earlier sends is for the slice before, even where ε lets us see them.
        settled = np.append(sent < piece.low - window, False)[matches.send]
        copied = replace(matches, send=np.where(settled, -1, matches.send))
    if piece.high != TIME_MAX:
        decided &= sent < piece.high - window
    copies = audit_copies(run_id, columns, copied, settings, core, decided)
    found: list[pa.Table] = [conflicts, copies.violations]
    if shared:
        found.append(early_effects(run_id, columns, matches, core, settings.epsilon_ns))
    found.append(lifetime(run_id, columns, matches, settings, core))
    found.extend(causal_order(run_id, columns, matches, core))
    own = columns.take(core) if not core.all() else columns
    if piece.whole:
        found.append(timelines(run_id, own, members))
    delivered = int(np.count_nonzero(own.kind == DELIVER))
    discarded = int(np.count_nonzero(own.kind == DISCARD))
    return Findings(
        violations=merge(found),
        tallies=_tally_table(copies.tallies),
        missing=copies.missing,
        stray=copies.stray,
        timelines=_stretch_table(own, piece, members),
        edges=_edge_table(own),
        counts=pa.table([[len(own)], [delivered], [delivered + discarded]], schema=COUNTS),
    )


def _between(time_ns: pa.ChunkedArray, piece: Slice) -> pa.ChunkedArray:
    return pc.and_(pc.greater_equal(time_ns, piece.low), pc.less(time_ns, piece.high))


def _tally_table(tallies: dict[str, I64]) -> pa.Table:
    any_copy = np.zeros_like(tallies["written"], dtype=np.bool_)
    for counts in tallies.values():
        any_copy |= counts != 0
    source, process = np.nonzero(any_copy)
    values: Sequence[I64] = [source, process, *(tallies[name][source, process] for name in TALLIES)]
    return pa.table(
        [pa.array(value).cast(field.type) for value, field in zip(values, TALLY, strict=True)],
        schema=TALLY,
    )


def _stretch_table(columns: Columns, piece: Slice, members: int) -> pa.Table:
    part = stretches(columns, members)
    return pa.table(
        [
            np.full(len(part.process), piece.low),
            part.process,
            part.first,
            part.last,
            part.first_number,
            part.last_number,
            part.ends,
            part.sound,
        ],
        schema=STRETCHES,
    )


def _edge_table(columns: Columns) -> pa.Table:
    rows = np.flatnonzero(np.isin(columns.kind, (START, END, GONE, INSTALL)))
    return pa.table(
        [
            columns.process[rows],
            columns.position[rows],
            columns.kind[rows],
            columns.time_ns[rows],
            columns.clock_ns[rows],
            columns.source[rows],
        ],
        schema=EDGES,
    )
