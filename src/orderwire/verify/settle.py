"""Join the findings of a run's slices: what no slice could settle by itself is settled here."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

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
)
from orderwire.verify.kernels.copies import DROP_OF, DROPS, TALLIES
from orderwire.verify.kernels.lifetime import expires
from orderwire.verify.kernels.lives import LIFE_BITS, life_in
from orderwire.verify.kernels.slices import PARTS
from orderwire.verify.kernels.violations import merge, violation_rows


@dataclass(frozen=True, slots=True)
class Settled:
    """What a run's slices say together."""

    violations: pa.Table
    """Those that only the whole shows: missing, made up and undelivered copies."""
    accounting: dict[str, int]
    """Copies: `written` = `delivered` + `late` + `expired` + `overtaken` + `refused` + `lost`; of
    the lost, `reported_lost` were told by the links, `crashed` were sent before their destination
    last started anew or was gone for good, or in a group with views, `unfinished` might still have
    come when it ended, and `unaccounted` are violations."""
    pairs: pa.Table
    """The same by source and destination (`process`)."""
    incomplete: list[int]
    """Members whose trace has no START, or no END although nobody says that they are gone.

    In an open run only those that appear: as a process, a sender or a destination."""
    events: int
    deliveries: int
    outcomes: int
    slices_suffice: bool
    """False: something is so wrong with the trace that it must be audited in one piece."""


def join_parts(parts: Sequence[Mapping[str, pa.Table]]) -> dict[str, pa.Table]:
    """Concatenate the tables of several slices, by name."""
    return {
        name: pa.concat_tables([part[name] for part in parts]).combine_chunks()
        for name in PARTS
        if name in parts[0]
    }


def settle(
    run_id: str,
    settings: RunSettings,
    parts: Mapping[str, pa.Table],
    *,
    whole: bool,
    spent: Mapping[tuple[int, int], int] | None = None,
) -> Settled:
    """Settle the residue of a run's slices.

    `parts` joins the tables of all slices; `whole` tells that there was one slice only, the run.
    `spent` is how many of each (source, destination) pair's reported losses have been accounted
    for already, so that their copies are not in `parts`.
    """
    members = settings.members
    order = [("low", "ascending"), ("process", "ascending"), ("first", "ascending")]
    sound, sends = _joined(parts["timelines"].sort_by(order))
    ends = _ends(parts["edges"], members)
    gone = _gone(parts["edges"])
    whole_lives = _ended_lives(parts["edges"])
    started = _having(parts["edges"], START)
    expected = appearing(parts) if settings.is_open else range(members)
    incomplete = [p for p in expected if p not in started or not (p in ends or p in gone)]
    missing, stray = _Residue.read(parts["missing"]), parts["stray"]
    tallies = _sum(parts["tallies"], members)
    suffice = whole or sound
    made_up = []
    outcomes = zip(*(stray.column(name).to_pylist() for name in _STRAY_ROW), strict=True)
    for source, number, process, position, time_ns, kind, reason in outcomes:
        if kind == DISCARD:
            if reason in DROP_OF and missing.take(source, number, process):
                tallies[DROP_OF[reason]][source, process] += 1
                tallies["missing"][source, process] -= 1
        elif kind == DELIVER:
            life = source, number >> LIFE_BITS
            beyond = number >= sends.get(life, life[1] << LIFE_BITS)
            if 0 <= source < members and life not in whole_lives and beyond:
                continue  # its sender's trace was cut off: it may well have sent it
            if whole or beyond or not 0 <= source < members:
                made_up.append((process, position, time_ns, source, number))
            else:
                suffice = False
    tables = [_rows(run_id, "C1", "spurious", made_up)]
    reported = tallies["reported_lost"].copy()
    for pair, count in (spent or {}).items():
        reported[pair] -= count
    again = restarts(parts["edges"]) | dict.fromkeys(gone, TIME_MAX)
    # Of a group with views T3 tells who owes what.
    viewed = bool(pc.any(pc.equal(parts["edges"].column("kind"), INSTALL)).as_py())
    crashed = missing.forget(
        lambda process, time_ns: viewed or time_ns < again.get(process, TIME_MIN)
    )
    lost, undelivered, unfinished, unaccounted = _judge_missing(missing, settings, ends, reported)
    tables.append(_rows(run_id, "C1", "missing", [(p, -1, -1, s, n) for s, n, p in lost]))
    tables.append(
        _rows(run_id, "C2", "undelivered", [(p, -1, -1, s, n) for s, n, p in undelivered])
    )
    counts = parts["counts"]
    events, deliveries, judged = (
        int(np.sum(counts.column(name).to_numpy())) for name in ("events", "deliveries", "outcomes")
    )
    sums = {name: int(tallies[name].sum()) for name in TALLIES}
    return Settled(
        violations=merge(tables),
        accounting={
            "written": sums["written"],
            "delivered": sums["delivered"],
            **{name: sums[name] for name in DROPS},
            "lost": sums["missing"],
            "reported_lost": sums["reported_lost"],
            "crashed": crashed,
            "unfinished": unfinished,
            "unaccounted": unaccounted,
        },
        pairs=_pairs(tallies),
        incomplete=incomplete,
        events=events,
        deliveries=deliveries,
        outcomes=judged,
        slices_suffice=suffice,
    )


_STRAY_ROW = ("source", "number", "process", "position", "time_ns", "kind", "reason")
_MISSING_VALUES = ("stamp_ns", "deadline_ns", "time_ns", "received_ns")
_Copy = tuple[int, int, int]
"""(source, number, destination)."""


class _Residue:
    """Copies without an outcome, which a later slice may still have seen."""

    def __init__(self, copies: dict[_Copy, tuple[int, int, int, int]]) -> None:
        self._copies = copies

    @classmethod
    def read(cls, table: pa.Table) -> "_Residue":
        """Read a table of `copies.MISSING`."""
        key = [table.column(name).to_pylist() for name in ("source", "number", "process")]
        value = [table.column(name).to_pylist() for name in _MISSING_VALUES]
        return cls(dict(zip(zip(*key, strict=True), zip(*value, strict=True), strict=True)))

    def take(self, source: int, number: int, process: int) -> bool:
        """Remove this copy; false when it is not there."""
        return self._copies.pop((source, number, process), None) is not None

    def forget(self, excused: Callable[[int, int], bool]) -> int:
        """Remove the copies that this says of their (destination, send time); return how many."""
        gone = [copy for copy, value in self._copies.items() if excused(copy[2], value[2])]
        for copy in gone:
            del self._copies[copy]
        return len(gone)

    def by_pair(self) -> dict[tuple[int, int], list[tuple[int, int, int, int, int]]]:
        """Return (number, stamp, deadline, time, received) of each pair's copies, by number."""
        pairs: dict[tuple[int, int], list[tuple[int, int, int, int, int]]] = {}
        for (source, number, process), value in sorted(self._copies.items()):
            pairs.setdefault((source, process), []).append((number, *value))
        return pairs


def _judge_missing(
    missing: _Residue, settings: RunSettings, ends: Mapping[int, tuple[int, int]], reported: I64
) -> tuple[list[_Copy], list[_Copy], int, int]:
    """Return the missing copies that are violations: (unaccounted, undelivered), and counts.

    A copy that arrived in time must be delivered; one that did not arrive must have been reported
    lost.  Links report in the order of sending, so the reports stand for the earliest ones.  Where
    the destination ended before the copy's deadline, or has no END at all, nobody can say.  A link
    that hears nothing goes by the run's lifetime, so that a report may come after the copy's own
    deadline.
    """
    lost: list[_Copy] = []
    undelivered: list[_Copy] = []
    unfinished = 0
    for (source, process), copies in sorted(missing.by_pair().items()):
        end = ends.get(process)
        told = int(reported[source, process])
        for number, stamp_ns, deadline_ns, time_ns, received_ns in copies:
            if settings.lifetime_ns is None:
                over = end is not None and time_ns < end[0]
            else:
                over = end is not None and expires(stamp_ns, settings.lifetime_ns) < end[1]
            if 0 <= received_ns <= deadline_ns:
                if over or (end is not None and deadline_ns < end[1]):
                    undelivered.append((source, number, process))
                else:
                    unfinished += 1
            elif told > 0:
                told -= 1
            elif over:
                lost.append((source, number, process))
            else:
                unfinished += 1
    return lost, undelivered, unfinished, len(lost) + len(undelivered)


def appearing(parts: Mapping[str, pa.Table]) -> list[int]:
    """Return who appears in a run: has events, sends to somebody, or is sent to."""
    seen: set[int] = set(parts["edges"].column("process").to_pylist())
    seen.update(parts["timelines"].column("process").to_pylist())
    for name in ("tallies", "missing", "stray"):
        for column in ("source", "process"):
            seen.update(pc.unique(parts[name].column(column)).to_pylist())
    return sorted(process for process in seen if process >= 0)


def _joined(timelines: pa.Table) -> tuple[bool, dict[tuple[int, int], int]]:
    """Tell whether the stretches make whole timelines, and how many sends each life made.

    A life is (process, which of its); what it sent counts from its first number.
    """
    expected: dict[tuple[int, int], tuple[int, int]] = {}
    ended: set[tuple[int, int]] = set()
    sound = True
    names = ("process", "first", "last", "first_number", "last_number", "ends", "sound")
    for row in zip(*(timelines.column(name).to_pylist() for name in names), strict=True):
        process, first, last, first_number, last_number, ends, clean = row
        life = process, first >> LIFE_BITS
        begin = life[1] << LIFE_BITS
        position, number = expected.get(life, (begin, begin))
        sound = sound and clean and life not in ended and first == position
        if first_number >= 0:
            sound = sound and first_number == number
            number = last_number + 1
        expected[life] = (last + 1, number)
        if ends:
            ended.add(life)
    return sound, {life: number for life, (_, number) in expected.items()}


def _ends(edges: pa.Table, members: int) -> dict[int, tuple[int, int]]:
    """Return the (time, clock) of the END of each member's last life, where it has one."""
    names = ("position", "process", "kind", "time_ns", "clock_ns")
    rows = sorted(zip(*(edges.column(name).to_pylist() for name in names), strict=True))
    ends: dict[int, tuple[int, int]] = {}
    for position, process, kind, time_ns, clock_ns in rows:
        if kind == END and 0 <= process < members:
            ends[process] = (time_ns, clock_ns)
        elif kind == START and position >> LIFE_BITS:
            ends.pop(process, None)
    return ends


def _ended_lives(edges: pa.Table) -> set[tuple[int, int]]:
    """Return the lives, as (process, which of its), that have an END."""
    ends = edges.filter(pc.field("kind") == END)
    lives = life_in(ends.column("position").to_numpy()).tolist()
    return set(zip(ends.column("process").to_pylist(), lives, strict=True))


def _gone(edges: pa.Table) -> set[int]:
    """Return who others say is gone for good: it has not started since, and has no END."""
    names = ("time_ns", "process", "kind", "source")
    gone: set[int] = set()
    for _, process, kind, source in sorted(
        zip(*(edges.column(name).to_pylist() for name in names), strict=True)
    ):
        if kind == GONE:
            gone.add(source)
        elif kind in (START, END):
            gone.discard(process)
    return gone


def restarts(edges: pa.Table) -> dict[int, int]:
    """Return when each process that crashed last started anew, in the run's time."""
    again = edges.filter((pc.field("kind") == START) & (pc.field("position") > 0))
    times: dict[int, int] = {}
    for process, time_ns in zip(
        again.column("process").to_pylist(), again.column("time_ns").to_pylist(), strict=True
    ):
        times[process] = max(time_ns, times.get(process, time_ns))
    return times


def _having(edges: pa.Table, wanted: int) -> set[int]:
    pairs = zip(edges.column("process").to_pylist(), edges.column("kind").to_pylist(), strict=True)
    return {process for process, kind in pairs if kind == wanted}


def _sum(table: pa.Table, members: int) -> dict[str, I64]:
    source = table.column("source").to_numpy()
    process = table.column("process").to_numpy()
    sums = {}
    for name in TALLIES:
        counts = np.zeros((members, members), np.int64)
        np.add.at(counts, (source, process), table.column(name).to_numpy())
        sums[name] = counts
    return sums


def _pairs(tallies: Mapping[str, I64]) -> pa.Table:
    source, process = np.nonzero(np.any([counts != 0 for counts in tallies.values()], axis=0))
    values = {name: tallies[name][source, process] for name in TALLIES}
    return pa.table({"source": source, "process": process, **values})


def _rows(
    run_id: str, check: str, kind: str, rows: Sequence[tuple[int, int, int, int, int]]
) -> pa.Table:
    process, position, time_ns, source, number = np.array(rows, np.int64).reshape(-1, 5).T
    return violation_rows(
        run_id,
        check,
        kind,
        process=process,
        position=position,
        time_ns=time_ns,
        source=source,
        number=number,
    )
