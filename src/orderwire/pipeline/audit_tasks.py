"""What Spark's workers run for an audit: plain functions over Arrow tables.

A task is a slice of a run's time, or a share of the participants of its discovery.

Everything that they return has a bounded size: the kernels' small tables, packed, and violations
as far as their slice may keep them.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from orderwire.trace.events import RunSettings
from orderwire.verify.audit import AuditOptions, audit, extra_checks
from orderwire.verify.discovery_audit import read_share
from orderwire.verify.kernels.columns import NEEDED
from orderwire.verify.kernels.discovery_columns import DISCOVERY_NEEDED
from orderwire.verify.kernels.discovery_cuts import TOLD_KINDS
from orderwire.verify.kernels.discovery_facts import Facts
from orderwire.verify.kernels.discovery_share import Share, audit_share, pairs_of_share
from orderwire.verify.kernels.lives import NO_LIVES, Lives, lined_up
from orderwire.verify.kernels.slices import Slice, audit_slice
from orderwire.verify.kernels.survey import SURVEYED, Survey, survey
from orderwire.verify.kernels.violations import VIOLATIONS
from orderwire.verify.report import EXAMPLES_MAX, Report
from orderwire.verify.source import ParquetSource, RowGroup
from orderwire.verify.total_audit import audit_part, read_part

FOUND_DDL = "run_id string, low bigint, part string, payload binary"
FOUND = pa.schema(
    [("run_id", pa.string()), ("low", pa.int64()), ("part", pa.string()), ("payload", pa.binary())]
)
VIOLATIONS_PART = "violations"
EXAMPLES_PART = "examples"
"""The first violations of each check in the slice, and how many there are."""
EXTRA_COUNTS_PART = "extra_counts"
DEPARTED_PART = "departed"
EXAMPLES = VIOLATIONS.append(pa.field("count", pa.int64()))


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One slice of one run to audit."""

    piece: Slice
    settings: RunSettings
    extra: AuditOptions | None = None
    """Do the checks that need the run in one piece instead."""
    group: str | None = None
    """Judge this part of its total order instead, which needs the run in one piece."""
    share: Share | None = None
    """Judge these participants of its discovery instead, against `facts`."""
    facts: Facts | None = None
    lives: Lives = NO_LIVES
    """Of the run's processes: what is read is lined up by them."""


@dataclass(frozen=True, slots=True)
class Files:
    """The trace of an audit, as its workers open it."""

    names: tuple[str, ...]
    versioned: bool
    audit: int
    """Which of the session's audits: workers outlive an audit, and files may be written anew."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a worker says of one slice: the kernels' tables by name, packed."""

    run_id: str
    low: int
    parts: Mapping[str, bytes]


def audit_whole(
    parts: Iterable[object], files: Files, options: AuditOptions
) -> Iterator[tuple[Report, bytes]]:
    """Audit a small trace in one piece: its report, and its violations, packed."""
    for _ in parts:
        report, violations = audit(_opened(files), options)
        yield report, pack(violations)


def survey_groups(
    parts: Iterable[list[RowGroup]], files: Files
) -> Iterator[tuple[list[Survey], bytes, bytes]]:
    """Survey the runs of these row groups: all that a plan needs.

    With it come START events, and what participants of discovery tell of themselves, packed.
    """
    for groups in parts:
        source = _opened(files).part(groups)
        found = survey(source.batches(SURVEYED, None))
        kinds = TOLD_KINDS if any(part.discovery for part in found.values()) else ()
        truth = source.of_kinds(kinds, DISCOVERY_NEEDED)
        yield list(found.values()), pack(source.starts()), pack(truth)


def audit_from_files(tasks: Iterable[Task], files: Files, keep_bytes: int) -> Iterator[Found]:
    """Audit these slices, reading each one's time range from Parquet files.

    Violations of more than `keep_bytes` stay behind; whoever wants them has the slice done again.
    """
    for task in tasks:
        parts = {name: pack(table) for name, table in _audited(task, files).items()}
        if len(parts.get(VIOLATIONS_PART, b"")) > keep_bytes:
            del parts[VIOLATIONS_PART]
        yield Found(task.piece.run_id, task.piece.low, parts)


def violations_from_files(tasks: Iterable[Task], files: Files) -> Iterator[tuple[bytes]]:
    """Audit these slices, and return their violations only, packed."""
    for task in tasks:
        yield (pack(_audited(task, files)[VIOLATIONS_PART]),)


def audit_from_rows(
    batches: Iterable[pa.RecordBatch], tasks: Mapping[int, Task]
) -> Iterator[pa.RecordBatch]:
    """Audit the slices whose events these batches hold; column `slice` tells which is whose."""
    held = [batch for batch in batches if batch.num_rows]
    if not held:
        return
    table = pa.Table.from_batches(held)
    numbers = table.column("slice").to_numpy()
    for number in np.unique(numbers).tolist():
        task = tasks[number]
        events = table.filter(pa.array(numbers == number))
        yield found_rows(task.piece.run_id, task.piece.low, _parts(_judged(events, task)))


def pairs_from_files(tasks: Iterable[Task], files: Files) -> Iterator[tuple[bytes]]:
    """Return when the participants of these shares first listed each other one, packed."""
    for task in tasks:
        assert task.share is not None
        assert task.facts is not None
        table = read_share(_opened(files), task.share, task.settings, task.lives)
        yield (pack(pairs_of_share(table, task.facts)),)


def pairs_from_rows(
    batches: Iterable[pa.RecordBatch], tasks: Mapping[int, Task]
) -> Iterator[pa.RecordBatch]:
    """Do the same from the events of shares; column `slice` tells which is whose."""
    held = [batch for batch in batches if batch.num_rows]
    if not held:
        return
    table = pa.Table.from_batches(held)
    numbers = table.column("slice").to_numpy()
    for number in np.unique(numbers).tolist():
        facts = tasks[number].facts
        assert facts is not None
        events = lined_up(table.filter(pa.array(numbers == number)), tasks[number].lives)
        yield from pairs_of_share(events, facts).to_batches()


def rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Unpack payloads into rows."""
    for batch in batches:
        for payload in batch.column("payload"):
            yield from unpack(payload.as_buffer()).to_batches()


def found_rows(run_id: str, low: int, parts: Mapping[str, pa.Table]) -> pa.RecordBatch:
    """Return a slice's tables as rows."""
    return pa.record_batch(
        [
            [run_id] * len(parts),
            [low] * len(parts),
            list(parts),
            [pack(table) for table in parts.values()],
        ],
        schema=FOUND,
    )


def pack(table: pa.Table) -> bytes:
    """Return a table as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def unpack(payload: pa.Buffer | bytes) -> pa.Table:
    """Undo `pack`."""
    with pa.ipc.open_stream(payload) as reader:
        return reader.read_all()


def examples_of(violations: pa.Table) -> pa.Table:
    """Return the first rows of each check, each with how many the check has."""
    checks = violations.column("check")
    tables = [EXAMPLES.empty_table()]
    for entry in pc.value_counts(checks).to_pylist() if len(checks) else []:
        rows = violations.filter(pc.equal(checks, entry["values"])).slice(0, EXAMPLES_MAX)
        count = pa.array([entry["counts"]] * rows.num_rows, pa.int64())
        tables.append(rows.append_column(EXAMPLES.field("count"), count))
    return pa.concat_tables(tables)


def _audited(task: Task, files: Files) -> dict[str, pa.Table]:
    source, run_id = _opened(files), task.piece.run_id
    if task.extra is not None:
        rows, counts = extra_checks(source, run_id, task.settings, task.extra, task.lives)
        return _extra_parts(rows, counts)
    if task.share is not None:
        table = read_share(source, task.share, task.settings, NO_LIVES)
    elif task.group is not None:
        table = read_part(source, task.group, run_id)
    else:
        table = source.read(run_id, task.piece.view_low, task.piece.view_high)
    return _parts(_judged(table, task))


def _judged(table: pa.Table, task: Task) -> dict[str, pa.Table]:
    if task.group is not None:
        found = audit_part(task.piece.run_id, task.group, table, task.settings, task.lives)
        departed = pa.array(found.departed, pa.int64())
        return {
            "violations": found.violations,
            EXTRA_COUNTS_PART: _counts(found.checked),
            DEPARTED_PART: pa.table({"process": departed}),
        }
    table = lined_up(table, task.lives)
    if task.share is not None:
        assert task.facts is not None
        return audit_share(table, task.share, task.facts, task.settings)
    return audit_slice(table.select(list(NEEDED)), task.piece, task.settings).parts()


def _parts(found: dict[str, pa.Table]) -> dict[str, pa.Table]:
    violations = found["violations"]
    parts = {name: table for name, table in found.items() if name != "violations"}
    if violations.num_rows:
        parts[VIOLATIONS_PART] = violations
        parts[EXAMPLES_PART] = examples_of(violations)
    return parts


def _extra_parts(rows: pa.Table, counts: Mapping[str, int]) -> dict[str, pa.Table]:
    return _parts({"violations": rows, EXTRA_COUNTS_PART: _counts(counts)})


def _counts(counts: Mapping[str, int]) -> pa.Table:
    return pa.table(
        {
            "check": pa.array(list(counts), pa.string()),
            "count": pa.array(list(counts.values()), pa.int64()),
        }
    )


@lru_cache(maxsize=4)
def _opened(files: Files) -> ParquetSource:
    """Keep footers from one slice to the next: a worker gets many slices of the same files."""
    return ParquetSource(files.names, versioned=files.versioned)
