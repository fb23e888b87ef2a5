"""What is true of a domain: who lives, under which id, with which MAP, and when all is quiet.

Read from the few events by which participants tell of themselves; all that is judged of their views
is judged against this.

*   A life of a participant lasts from BOOT (or from an ADOPT outside any life) to the first of
    LEAVE, GONE and the next BOOT in its timeline, or to a GONE that another process tells of it
    later than it began, or to the end of the run.
*   A tenure is the time a life holds an id: from ADOPT to the next ADOPT of another id or
    incarnation, or to the life's end.
*   An incarnation is an id with its incarnation number.  It is the life's that had it first, and
    lasts from the start of that life's first tenure of it to the end of its last.  That nobody else
    has it is for D4 to say.
*   A life of which nobody tells the end may be over just after its last event (`discovery_cuts`):
    nobody must list it from then on, and nobody is wrong who does until it is surely over.
*   Its MAP's version at a time is the largest that was told by then.
*   The run is quiet from `settle_ns` after one of these events to the next one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from orderwire.trace.events import DiscoveryRun, RunSettings
from orderwire.verify.kernels.columns import (
    ADOPT,
    BOOT,
    GONE,
    I64,
    KINDS,
    LEAVE,
    TIME_MAX,
    TIME_MIN,
    UPDATE,
)
from orderwire.verify.kernels.discovery_columns import (
    U64,
    DiscoveryColumns,
    discovery_columns_of,
)

TRUTH_KINDS = tuple(KINDS[code] for code in (BOOT, ADOPT, UPDATE, LEAVE, GONE))
"""Events by which participants tell of themselves."""
VERSION_MAX = 2**40 - 1
"""Versions above this one count as this one."""
POSITION_BITS = 42
"""Positions are below 2 to this power, processes below 2^21."""


@dataclass(frozen=True, slots=True)
class Lives:
    """Sorted by process and position.  Half-open spans of time."""

    process: I64
    position: I64
    """Of its first event."""
    boot_ns: I64
    adopted_ns: I64
    """Its first id; TIME_MAX without any."""
    end_ns: I64

    def __len__(self) -> int:
        return len(self.process)


@dataclass(frozen=True, slots=True)
class Tenures:
    """In the order of lives, then of time."""

    life: I64
    process: I64
    position: I64
    """Of the ADOPT."""
    id: U64
    incarnation: U64
    from_ns: I64
    to_ns: I64
    over_ns: I64
    """When it was surely over: later than `to_ns` where nobody tells the end of the life."""

    def __len__(self) -> int:
        return len(self.life)

    def held(self, life: I64, time_ns: I64) -> I64:
        """Return the tenure of each of these lives at its time, which is in one.  For a few."""
        found = np.zeros(len(life), np.int64)
        for row, (whose, when) in enumerate(zip(life.tolist(), time_ns.tolist(), strict=True)):
            low, high = np.searchsorted(self.life, [whose, whose + 1])
            found[row] = low + np.searchsorted(self.from_ns[low:high], when, side="right") - 1
        return found


@dataclass(frozen=True, slots=True)
class Incarnations:
    """Sorted by id, then by incarnation."""

    ids: U64
    """Distinct, ascending."""
    numbers: U64
    """Distinct, ascending."""
    pair: I64
    """Index in `ids` times the number of `numbers` plus index there, ascending."""
    life: I64
    from_ns: I64
    to_ns: I64
    over_ns: I64
    """As of tenures."""

    def __len__(self) -> int:
        return len(self.pair)

    def find(self, id: U64, number: U64) -> I64:
        """Return the index of each of these incarnations, −1 where there is no such."""
        if not len(self):
            return np.full(len(id), -1, np.int64)
        at_id = np.minimum(np.searchsorted(self.ids, id), len(self.ids) - 1)
        at_number = np.minimum(np.searchsorted(self.numbers, number), len(self.numbers) - 1)
        wanted = at_id * len(self.numbers) + at_number
        at = np.minimum(np.searchsorted(self.pair, wanted), len(self.pair) - 1)
        same = (self.ids[at_id] == id) & (self.numbers[at_number] == number)
        found: I64 = np.where(same & (self.pair[at] == wanted), at, -1)
        return found


@dataclass(frozen=True, slots=True)
class Versions:
    """When each incarnation's version grew: sorted by incarnation and version."""

    key: I64
    """Incarnation times 2^40 plus version, ascending."""
    time_ns: I64

    def reached(self, incarnation: I64, version: I64) -> I64:
        """Return when the version was at least this one; TIME_MAX if it never was."""
        wanted = incarnation << 40 | np.clip(version, 0, VERSION_MAX)
        at = np.searchsorted(self.key, wanted)
        if not len(self.key):
            return np.full(len(wanted), TIME_MAX)
        at_most = np.minimum(at, len(self.key) - 1)
        there = (at < len(self.key)) & (self.key[at_most] >> 40 == incarnation)
        return np.where(there, self.time_ns[at_most], TIME_MAX)

    def at(self, incarnation: I64, time_ns: I64) -> I64:
        """Return the version at each of these times, 0 before the first.  For a few."""
        found = np.zeros(len(incarnation), np.int64)
        for row, (which, when) in enumerate(
            zip(incarnation.tolist(), time_ns.tolist(), strict=True)
        ):
            low, high = np.searchsorted(self.key, [which << 40, (which + 1) << 40])
            told = int(np.searchsorted(self.time_ns[low:high], when, side="right"))
            found[row] = int(self.key[low + told - 1]) & VERSION_MAX if told else 0
        return found


@dataclass(frozen=True, slots=True)
class Stretches:
    """When the run is quiet: half-open, ascending, apart."""

    from_ns: I64
    to_ns: I64

    def __len__(self) -> int:
        return len(self.from_ns)

    def first_in(self, low: I64, high: I64) -> I64:
        """Return the earliest quiet instant in each [low, high), TIME_MAX where there is none."""
        if not len(self):
            return np.full(len(low), TIME_MAX)
        at = np.searchsorted(self.to_ns, low, side="right")
        instant = np.maximum(self.from_ns[np.minimum(at, len(self) - 1)], low)
        found: I64 = np.where((at < len(self)) & (instant < high), instant, TIME_MAX)
        return found


@dataclass(frozen=True, slots=True)
class Facts:
    """What is true of one run."""

    run_id: str
    first_ns: int
    end_ns: int
    """Just after the last event of any kind."""
    gone: I64
    """Processes of which anybody says that they are gone, ascending."""
    lives: Lives
    tenures: Tenures
    incarnations: Incarnations
    versions: Versions
    stretches: Stretches
    regressions: tuple[I64, I64, I64, I64, I64]
    """Versions told that are not above the one before: process, position, time, version, before."""
    open: bool = False
    """An incarnation that nobody had may be a participant's without a trace."""

    def life_of(self, process: I64, position: I64, time_ns: I64) -> I64:
        """Return the life that each of these events is in, −1 outside all."""
        lives = self.lives
        if not len(lives):
            return np.full(len(process), -1, np.int64)
        starts = lives.process << POSITION_BITS | lives.position
        at = np.searchsorted(starts, process << POSITION_BITS | position, side="right") - 1
        inside = (at >= 0) & (lives.process[at] == process) & (time_ns < lives.end_ns[at])
        return np.where(inside, at, -1)


class _Life:
    """A life that is being read."""

    def __init__(self, process: int, position: int, boot_ns: int) -> None:
        self.process = process
        self.position = position
        self.boot_ns = boot_ns
        self.end_ns = TIME_MAX
        self.over_ns = TIME_MAX
        """When it had surely ended."""
        self.tenures: list[tuple[int, int, int, int]] = []
        """(position, id, incarnation, from)."""
        self.told: list[tuple[int, int, int]] = []
        """(tenure, time, version)."""

    @property
    def holds(self) -> tuple[int, int] | None:
        """The id and incarnation adopted last."""
        return self.tenures[-1][1:3] if self.tenures else None


def facts_of(
    run_id: str,
    told: pa.Table,
    settings: RunSettings,
    first_ns: int,
    last_ns: int,
    cuts: Sequence[tuple[int, int]] = (),
) -> Facts:
    """Read what participants tell of themselves in one run, whose events end at `last_ns`.

    `told` holds its events of the kinds `TRUTH_KINDS`, others do no harm; `cuts` are the
    (process, time) of the last events of lives without an end.
    """
    kinds = pa.array(TRUTH_KINDS, pa.string())
    columns = discovery_columns_of(told.filter(pc.is_in(told.column("kind"), value_set=kinds)))
    lives, regressions = _read(columns)
    over = [(process, time_ns + 1) for process, time_ns in cuts]
    _end(lives, columns, over, last_ns + 1)
    lives = [life for life in lives if life.end_ns > life.boot_ns]
    tenures = _tenures(lives)
    incarnations = _incarnations(tenures)
    return Facts(
        run_id=run_id,
        first_ns=first_ns,
        end_ns=last_ns + 1,
        gone=np.unique(columns.source[columns.kind == GONE]),
        lives=Lives(
            process=_column(life.process for life in lives),
            position=_column(life.position for life in lives),
            boot_ns=_column(life.boot_ns for life in lives),
            adopted_ns=_column(life.tenures[0][3] if life.tenures else TIME_MAX for life in lives),
            end_ns=_column(life.end_ns for life in lives),
        ),
        tenures=tenures,
        incarnations=incarnations,
        versions=_versions(lives, incarnations),
        stretches=_stretches(columns, over, settings, last_ns + 1),
        regressions=regressions,
        open=settings.is_open,
    )


def _column(values: Iterator[int]) -> I64:
    return np.fromiter(values, np.int64)


def _read(columns: DiscoveryColumns) -> tuple[list[_Life], tuple[I64, I64, I64, I64, I64]]:
    """Read lives, their ends but for what others tell, and versions that do not grow."""
    lives: list[_Life] = []
    life: _Life | None = None
    version = 0
    odd: list[tuple[int, int, int, int, int]] = []
    for process, position, kind, time_ns, source, number, peer, incarnation in zip(
        columns.process.tolist(),
        columns.position.tolist(),
        columns.kind.tolist(),
        columns.time_ns.tolist(),
        columns.source.tolist(),
        columns.number.tolist(),
        columns.peer.tolist(),
        columns.incarnation.tolist(),
        strict=True,
    ):
        if life is not None and life.process != process:
            life = None
        if kind == BOOT or (kind == ADOPT and life is None):
            if life is not None:
                life.end_ns = time_ns
            life = _Life(process, position, time_ns)
            lives.append(life)
        if life is None:
            continue
        if kind == ADOPT and life.holds != (peer, incarnation):
            life.tenures.append((position, peer, incarnation, time_ns))
            version = 0
        if kind in (ADOPT, UPDATE) and life.tenures:
            if number <= version and not (kind == ADOPT and number == version):
                odd.append((process, position, time_ns, number, version))
            version = max(version, number)
            life.told.append((len(life.tenures) - 1, time_ns, number))
        if kind == LEAVE or (kind == GONE and source == process):
            life.end_ns = time_ns
            life = None
    found = np.array(odd, np.int64).reshape(-1, 5).T
    return lives, (found[0], found[1], found[2], found[3], found[4])


def _end(
    lives: list[_Life], columns: DiscoveryColumns, over: Sequence[tuple[int, int]], end_ns: int
) -> None:
    """End lives where others tell that a process is gone, where its trace does, with the run."""
    rows = np.flatnonzero((columns.kind == GONE) & (columns.source != columns.process))
    told: dict[int, list[int]] = {}
    for process, time_ns in zip(
        columns.source[rows].tolist(), columns.time_ns[rows].tolist(), strict=True
    ):
        told.setdefault(process, []).append(time_ns)
    for life in lives:
        after = [time_ns for time_ns in told.get(life.process, ()) if time_ns > life.boot_ns]
        maybe = [t for process, t in over if process == life.process and t > life.boot_ns]
        life.over_ns = min([life.end_ns, end_ns, *after])
        life.end_ns = min([life.over_ns, *maybe])


def _tenures(lives: list[_Life]) -> Tenures:
    rows = []
    for at, life in enumerate(lives):
        follow = [tenure[3] for tenure in life.tenures[1:]] + [life.end_ns]
        for tenure, until in zip(life.tenures, follow, strict=False):
            position, peer, incarnation, from_ns = tenure
            to_ns = min(until, life.end_ns)
            if from_ns < to_ns:
                over_ns = life.over_ns if to_ns == life.end_ns else to_ns
                rows.append(
                    (at, life.process, position, peer, incarnation, from_ns, to_ns, over_ns)
                )
    return Tenures(
        life=_column(row[0] for row in rows),
        process=_column(row[1] for row in rows),
        position=_column(row[2] for row in rows),
        id=np.fromiter((row[3] for row in rows), np.uint64),
        incarnation=np.fromiter((row[4] for row in rows), np.uint64),
        from_ns=_column(row[5] for row in rows),
        to_ns=_column(row[6] for row in rows),
        over_ns=_column(row[7] for row in rows),
    )


def _incarnations(tenures: Tenures) -> Incarnations:
    ids, at_id = np.unique(tenures.id, return_inverse=True)
    numbers, at_number = np.unique(tenures.incarnation, return_inverse=True)
    pair, at = np.unique(at_id * len(numbers) + at_number, return_inverse=True)
    life = np.zeros(len(pair), np.int64)
    backwards = np.lexsort((tenures.life, tenures.from_ns))[::-1]
    life[at[backwards]] = tenures.life[backwards]
    own = tenures.life == life[at]
    from_ns = np.full(len(pair), TIME_MAX)
    to_ns, over_ns = np.full(len(pair), TIME_MIN), np.full(len(pair), TIME_MIN)
    np.minimum.at(from_ns, at[own], tenures.from_ns[own])
    np.maximum.at(to_ns, at[own], tenures.to_ns[own])
    np.maximum.at(over_ns, at[own], tenures.over_ns[own])
    return Incarnations(ids, numbers, pair, life, from_ns, to_ns, over_ns)


def _versions(lives: list[_Life], incarnations: Incarnations) -> Versions:
    told = [
        (peer, number, time_ns, version)
        for life in lives
        for tenure, time_ns, version in life.told
        if time_ns < life.end_ns
        for _, peer, number, _ in [life.tenures[tenure]]
    ]
    which = incarnations.find(
        np.fromiter((row[0] for row in told), np.uint64),
        np.fromiter((row[1] for row in told), np.uint64),
    )
    time_ns = _column(row[2] for row in told)
    version = np.clip(_column(row[3] for row in told), 0, VERSION_MAX)
    known = which >= 0
    which, time_ns, version = which[known], time_ns[known], version[known]
    order = np.lexsort((-version, time_ns, which))
    key, time_ns = (which << 40 | version)[order], time_ns[order]
    highest = np.maximum.accumulate(key) if len(key) else key
    grows = np.ones(len(key), np.bool_)
    grows[1:] = key[1:] > highest[:-1]
    return Versions(key[grows], time_ns[grows])


def _stretches(
    columns: DiscoveryColumns,
    over: Sequence[tuple[int, int]],
    settings: RunSettings,
    end_ns: int,
) -> Stretches:
    ends = np.array([time_ns for _, time_ns in over if time_ns < end_ns], np.int64)
    changes = np.unique(np.concatenate([columns.time_ns, ends]))
    from_ns = changes + discovery_of(settings).settle_ns + 2 * settings.epsilon_ns
    to_ns = np.append(changes[1:], end_ns)[: len(changes)]
    quiet = from_ns < to_ns
    return Stretches(from_ns[quiet], to_ns[quiet])


def discovery_of(settings: RunSettings) -> DiscoveryRun:
    """Return what a run promises of its discovery; the usual where it does not say."""
    told = settings.discovery
    return told if isinstance(told, DiscoveryRun) else DiscoveryRun()
