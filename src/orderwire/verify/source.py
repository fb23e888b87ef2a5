"""Where an audit reads a trace from: a table in memory, or Parquet files, piece by piece."""

import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from orderwire.kernel.parsing import UNREADABLE
from orderwire.trace.errors import TraceError
from orderwire.trace.events import EventKind, RunSettings
from orderwire.trace.reader import TRACE_SUFFIXES, read_trace
from orderwire.trace.schema import arrow_schema, check_schema, up_to_date
from orderwire.verify.kernels.columns import NEEDED, TIME_MAX, TIME_MIN

EVIDENCE = "vector_clock"
STARTS = ("run_id", "process", "position", "time_ns", "detail")
"""Columns of START events that tell a run's settings, and when its members' lives began."""


class TraceSource(Protocol):
    """A trace of one or more runs."""

    def batches(self, columns: Sequence[str], run_id: str | None) -> Iterator[pa.RecordBatch]:
        """Yield these columns of all events, or of one run's, in any order."""
        ...

    def read(
        self,
        run_id: str,
        low: int = TIME_MIN,
        high: int = TIME_MAX,
        columns: Sequence[str] = NEEDED,
    ) -> pa.Table:
        """Return one run's events with low ≤ time_ns < high."""
        ...

    def of_kinds(
        self,
        kinds: Sequence[str],
        columns: Sequence[str],
        run_id: str | None = None,
        processes: tuple[int, int] | None = None,
    ) -> pa.Table:
        """Return events of these kinds: of one run, of processes low ≤ process < high."""
        ...

    def starts(self) -> pa.Table:
        """Return `STARTS` of every START event."""
        ...


class TableSource:
    """A trace in memory."""

    def __init__(self, table: pa.Table, origin: str = "this table") -> None:
        self._table = table = up_to_date(table, origin)
        runs = pc.unique(table.column("run_id"))
        self._runs = dict.fromkeys(runs.to_pylist())

    def batches(self, columns: Sequence[str], run_id: str | None) -> Iterator[pa.RecordBatch]:
        """Yield the table's own batches."""
        table = self._table if run_id is None else self._of(run_id)
        yield from table.select(list(columns)).to_batches()

    def read(
        self,
        run_id: str,
        low: int = TIME_MIN,
        high: int = TIME_MAX,
        columns: Sequence[str] = NEEDED,
    ) -> pa.Table:
        """Filter the table."""
        table = self._of(run_id).select(list(columns))
        if low == TIME_MIN and high == TIME_MAX:
            return table
        return table.filter((pc.field("time_ns") >= low) & (pc.field("time_ns") < high))

    def of_kinds(
        self,
        kinds: Sequence[str],
        columns: Sequence[str],
        run_id: str | None = None,
        processes: tuple[int, int] | None = None,
    ) -> pa.Table:
        """Filter the table."""
        # The columns first: a filter copies all that it is given.
        table = self._table if run_id is None else self._of(run_id)
        table = table.select(list(dict.fromkeys((*columns, "process", "kind"))))
        return table.filter(_wanted(kinds, processes)).select(list(columns))

    def starts(self) -> pa.Table:
        """Filter the table."""
        return self.of_kinds([EventKind.START.value], STARTS)

    def _of(self, run_id: str) -> pa.Table:
        if len(self._runs) == 1 and run_id in self._runs:
            return self._table
        return self._table.filter(pc.equal(self._table.column("run_id"), run_id))


_COLUMNS = pa.schema([pa.field(field.name, field.type) for field in arrow_schema()])


class RowGroup(NamedTuple):
    """A piece of a Parquet file that can be read by itself."""

    file: int
    """Which of the source's files."""
    number: int
    """Which of the file's row groups."""
    events: int


class ParquetSource:
    """A trace in Parquet files; row groups outside the time range are not read.

    Files of a lake's table carry no version of the trace's schema: the table's own schema vouches
    for them, with `versioned=False`.
    """

    def __init__(self, files: Sequence[str], *, versioned: bool = True) -> None:
        if not files:
            raise TraceError("a trace of no file: expected at least one Parquet file")
        self.files = list(files)
        self.versioned = versioned
        try:
            # Named, since files of an older version lack columns: those read as null.
            self._data = ds.dataset(
                self.files, schema=_COLUMNS, format="parquet", partitioning=None
            )
            if versioned:
                for fragment in self._data.get_fragments():
                    check_schema(fragment.physical_schema, fragment.path)
        except pa.ArrowInvalid as error:
            raise TraceError(f"{self.files[0]} …: a damaged Parquet file: {error}") from None

    def groups(self) -> list[RowGroup]:
        """Return the row groups of all files, in their order; reads every footer."""
        fragments = enumerate(self._data.get_fragments())
        return [
            RowGroup(file, group.id, group.num_rows)
            for file, fragment in fragments
            for group in fragment.row_groups
        ]

    def part(self, groups: Sequence[RowGroup]) -> "ParquetSource":
        """Return a source of these row groups only."""
        wanted: dict[int, list[int]] = {}
        for group in groups:
            wanted.setdefault(group.file, []).append(group.number)
        fragments = list(self._data.get_fragments())
        part = copy.copy(self)
        part._data = ds.FileSystemDataset(
            [fragments[file].subset(row_group_ids=ids) for file, ids in wanted.items()],
            self._data.schema,
            self._data.format,
            self._data.filesystem,
        )
        return part

    def batches(self, columns: Sequence[str], run_id: str | None) -> Iterator[pa.RecordBatch]:
        """Scan the files."""
        rows = None if run_id is None else ds.field("run_id") == run_id
        yield from self._data.to_batches(columns=list(columns), filter=rows, use_threads=False)

    def read(
        self,
        run_id: str,
        low: int = TIME_MIN,
        high: int = TIME_MAX,
        columns: Sequence[str] = NEEDED,
    ) -> pa.Table:
        """Read the row groups that may hold such events."""
        rows = ds.field("run_id") == run_id
        if low != TIME_MIN:
            rows &= ds.field("time_ns") >= low
        if high != TIME_MAX:
            rows &= ds.field("time_ns") < high
        return self._data.to_table(columns=list(columns), filter=rows, use_threads=False)

    def of_kinds(
        self,
        kinds: Sequence[str],
        columns: Sequence[str],
        run_id: str | None = None,
        processes: tuple[int, int] | None = None,
    ) -> pa.Table:
        """Read the row groups that may hold such events."""
        rows = _wanted(kinds, processes)
        if run_id is not None:
            rows &= ds.field("run_id") == run_id
        return self._data.to_table(columns=list(columns), filter=rows, use_threads=False)

    def starts(self) -> pa.Table:
        """Scan the kinds."""
        return self.of_kinds([EventKind.START.value], STARTS)


def _wanted(kinds: Sequence[str], processes: tuple[int, int] | None) -> pc.Expression:
    # Typed, since there may be none.
    wanted = pc.field("kind").isin(pa.array(kinds, pa.string()))
    if processes is not None:
        low, high = processes
        wanted &= (pc.field("process") >= low) & (pc.field("process") < high)
    return wanted


def open_source(path: Path | str) -> TraceSource:
    """Open a trace file, or a folder of them.

    Parquet is read piece by piece, Arrow IPC into memory.  Raises TraceError.
    """
    path = Path(path)
    files = [path]
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix in TRACE_SUFFIXES)
    if files and all(file.suffix == ".parquet" for file in files):
        return ParquetSource([str(file) for file in files])
    return TableSource(read_trace(path), str(path))


def settings_of(starts: pa.Table, run_id: str) -> tuple[RunSettings | None, pa.Table]:
    """Return a run's settings and the START events that contradict them or cannot be read."""
    mine = starts.filter(pc.equal(starts.column("run_id"), run_id))
    mine = mine.sort_by([("process", "ascending"), ("position", "ascending")])
    settings: RunSettings | None = None
    odd = []
    for at, detail in enumerate(mine.column("detail").to_pylist()):
        try:
            read = msgspec.json.decode(detail, type=RunSettings)
        except UNREADABLE:
            odd.append(at)
            continue
        if settings is None:
            settings = read
        elif read != settings:
            odd.append(at)
    return settings, mine.take(pa.array(odd, pa.int64()))
