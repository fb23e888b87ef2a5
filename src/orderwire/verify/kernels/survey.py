"""Surveys: what a plan must know of a run before the run is cut, from one look at its events.

A survey of any part of a trace adds up with those of its other parts, so parts are surveyed where
they are read.  Events are counted by time in buckets of 2ᵏ ns; when surveys are joined, k grows so
that their number stays bounded.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from orderwire.kernel import GROUP_SIZE_MAX
from orderwire.trace.events import DISCOVERY_KINDS, EventKind, RunSettings
from orderwire.verify.kernels.columns import EXPIRED, I64, OVERTAKEN, REASONS, TIME_MAX, TIME_MIN
from orderwire.verify.kernels.slices import BUCKETS_MAX, Extent

SURVEYED = ("run_id", "kind", "time_ns", "stamp_ns", "process", "reason")
"""Columns of the trace that a survey reads."""
JUSTIFIED = (REASONS[EXPIRED], REASONS[OVERTAKEN])
"""Reasons of discards that are judged by the message's send, or by deliveries behind it."""
_BATCHES_MAX = 64
"""Surveys of batches that are kept before they are joined."""
OF_DISCOVERY = tuple(kind.value for kind in DISCOVERY_KINDS if kind is not EventKind.GONE)
"""Kinds that make a run one with discovery: that a member is gone may be said in any run."""
_DISCOVERY = pa.array(OF_DISCOVERY, pa.string())


@dataclass(frozen=True, slots=True)
class Survey:
    """One run, or the part of it that was looked at.  All times in nanoseconds."""

    run_id: str
    events: int
    first_ns: int
    last_ns: int
    age_ns: int
    """Largest `time_ns − stamp_ns` of a delivery, or of a discard for one of the reasons
    `JUSTIFIED`; TIME_MIN without any."""
    ahead_ns: int
    """Largest `stamp_ns − time_ns` of a send, TIME_MIN without any."""
    process: int
    """Highest process that could be a member of an ordering group."""
    participant: int
    """Highest process of all."""
    discovery: int
    """Events of discovery."""
    views: int
    """Views that were installed: the group has a total order."""
    shift: int
    """Buckets are 2^shift ns long."""
    buckets: I64
    """Buckets that hold events, ascending, as multiples of their length."""
    counts: I64

    def extent(self) -> Extent:
        """Return what a plan of slices needs."""
        window_ns = window_of(self.age_ns, self.ahead_ns)
        return Extent(self.run_id, self.events, self.first_ns, self.last_ns, window_ns)

    def starts_ns(self) -> I64:
        """Return where the buckets start."""
        return self.buckets << self.shift

    def assumed(self) -> RunSettings:
        """Return settings for a run without any: as many members as it shows, no lifetime."""
        return RunSettings(algorithm="", members=self.process + 1)


def survey(batches: Iterable[pa.RecordBatch]) -> dict[str, Survey]:
    """Look at all events of a trace: its runs, by name.  Batches hold the columns `SURVEYED`."""
    found: dict[str, list[Survey]] = {}
    for batch in batches:
        column = batch.column("run_id")
        names = pc.unique(column).to_pylist()
        for name in names:
            mine = batch if len(names) == 1 else batch.filter(pc.equal(column, name))
            kept = found.setdefault(name, [])
            kept.append(_look(name, mine))
            if len(kept) == _BATCHES_MAX:
                kept[:] = [join_surveys(kept)]
    return {name: join_surveys(kept) for name, kept in sorted(found.items())}


def join_surveys(parts: Sequence[Survey]) -> Survey:
    """Add up surveys of parts of one run."""
    if len(parts) == 1:
        return parts[0]
    first_ns = min(part.first_ns for part in parts)
    last_ns = max(part.last_ns for part in parts)
    shift = max(_shift(first_ns, last_ns), max(part.shift for part in parts))
    buckets, at = np.unique(
        np.concatenate([part.buckets >> (shift - part.shift) for part in parts]),
        return_inverse=True,
    )
    counts = np.zeros(len(buckets), np.int64)
    np.add.at(counts, at, np.concatenate([part.counts for part in parts]))
    return Survey(
        run_id=parts[0].run_id,
        events=sum(part.events for part in parts),
        first_ns=first_ns,
        last_ns=last_ns,
        age_ns=max(part.age_ns for part in parts),
        ahead_ns=max(part.ahead_ns for part in parts),
        process=max(part.process for part in parts),
        participant=max(part.participant for part in parts),
        discovery=sum(part.discovery for part in parts),
        views=sum(part.views for part in parts),
        shift=shift,
        buckets=buckets,
        counts=counts,
    )


def window_of(age_ns: int, ahead_ns: int) -> int:
    """Return W from the largest age of a stamp at delivery and the largest lead at sending."""
    return 0 if TIME_MIN in (age_ns, ahead_ns) else max(0, age_ns + ahead_ns)


def _look(run_id: str, batch: pa.RecordBatch) -> Survey:
    time_ns = batch.column("time_ns").to_numpy()
    age_ns = time_ns - batch.column("stamp_ns").to_numpy()
    kind = batch.column("kind")
    sent, delivered = (
        pc.equal(kind, wanted.value).to_numpy(zero_copy_only=False)
        for wanted in (EventKind.SEND, EventKind.DELIVER)
    )
    for reason in JUSTIFIED:
        delivered = delivered | pc.equal(batch.column("reason"), reason).to_numpy(
            zero_copy_only=False
        )
    process = batch.column("process").to_numpy()
    first_ns = int(time_ns.min(initial=TIME_MAX))
    last_ns = int(time_ns.max(initial=TIME_MIN))
    shift = _shift(first_ns, last_ns)
    counts = np.bincount((time_ns >> shift) - (first_ns >> shift))
    used = np.flatnonzero(counts)
    return Survey(
        run_id=run_id,
        events=len(time_ns),
        first_ns=first_ns,
        last_ns=last_ns,
        age_ns=int(age_ns[delivered].max(initial=TIME_MIN)),
        ahead_ns=int((-age_ns[sent]).max(initial=TIME_MIN)),
        process=int(process[process < GROUP_SIZE_MAX].max(initial=0)),
        participant=int(process.max(initial=0)),
        discovery=int(pc.sum(pc.is_in(kind, value_set=_DISCOVERY)).as_py() or 0),
        views=int(pc.sum(pc.equal(kind, EventKind.INSTALL.value)).as_py() or 0),
        shift=shift,
        buckets=used + (first_ns >> shift),
        counts=counts[used],
    )


def _shift(first_ns: int, last_ns: int) -> int:
    """Return the least k for which a run of this length has at most BUCKETS_MAX + 1 buckets."""
    return max(0, ((last_ns - first_ns) // BUCKETS_MAX).bit_length())
