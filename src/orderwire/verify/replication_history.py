"""Events of replication to Arrow rows and back, to files and records and back."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from orderwire.trace.errors import TraceError
from orderwire.trace.reader import TRACE_SUFFIXES, read_ipc
from orderwire.trace.replication_schema import (
    LISTS,
    PARTITION_COLUMNS,
    as_current,
    check_history,
    history_schema,
    is_history,
)
from orderwire.verify.replication import (
    Acknowledged,
    Batch,
    Committed,
    Delivered,
    Elected,
    Event,
    Held,
    LogStart,
    Lost,
    Missing,
    OnDisk,
    Republished,
    Requested,
    RoundEnd,
    Settled,
    TookLower,
    WentBack,
)
from orderwire.verify.replication_merge import Noted, merged

PART_ITEMS_MAX = 4_096
"""Batches or messages in one row; a longer event goes over several."""
_ROWS_MAX = 1_024
"""Rows that are built at a time."""
_IPC_MAGIC = b"ARROW1"

_COLUMNS: Mapping[type, Mapping[str, str]] = {
    Requested: {"session": "who", "messages": "messages", "acks": "acks"},
    Acknowledged: {"messages": "messages", "acks": "acks", "base_offset": "start"},
    Delivered: {
        "consumer": "who",
        "broker": "broker",
        "position": "start",
        "next_position": "end",
        "high_watermark": "high_watermark",
    },
    Committed: {
        "broker": "broker",
        "life": "life",
        "start": "start",
        "high_watermark": "high_watermark",
    },
    Held: {"broker": "broker", "in_sync": "flag", "high_watermark": "high_watermark"},
    OnDisk: {"acks_one_lost": "flag"},
    Elected: {"epoch": "epoch", "broker": "broker"},
    RoundEnd: {"epoch": "epoch", "start": "start", "end": "end"},
    TookLower: {"broker": "broker", "epoch": "epoch", "known": "known_epoch"},
    Republished: {"new_offset": "start"},
    LogStart: {"offset": "start"},
    Lost: {"epoch": "epoch", "broker": "broker", "start": "start", "end": "end", "unclean": "flag"},
    WentBack: {
        "broker": "broker",
        "life": "life",
        "high_watermark": "high_watermark",
        "empty": "flag",
    },
    Missing: {"what": "who", "rows": "end"},
    Settled: {"in_sync": "members", "replicas": "replicas", "acks_one_lost": "flag"},
}
"""Which column each field of an event fills; batches, records and message sets are apart."""
_KINDS: Mapping[str, type] = {kind.__name__: kind for kind in _COLUMNS}
_BATCH_COLUMNS = ("firsts", "lasts", "epochs", "digests", "seals", "counts")
Key = tuple[str, str, int]
"""Run, topic and partition."""


def rows_of(event: Event) -> Iterator[dict[str, Any]]:
    """The rows of an event, but for whose it is and where."""
    kind = type(event)
    row: dict[str, Any] = {"kind": kind.__name__}
    for field, column in _COLUMNS[kind].items():
        value = getattr(event, field)
        row[column] = list(value) if isinstance(value, tuple) else value
    match event:
        case Committed() | Held():
            yield from _with_batches(row, event.batches)
        case Delivered():
            yield {
                **row,
                "offsets": [offset for offset, _ in event.records],
                "messages": [message for _, message in event.records],
            }
        case OnDisk():
            names = sorted(event.messages)
            for at in range(0, max(len(names), 1), PART_ITEMS_MAX):
                yield {**row, "messages": names[at : at + PART_ITEMS_MAX]}
        case _:
            yield row


def _with_batches(row: dict[str, Any], batches: Sequence[Batch]) -> Iterator[dict[str, Any]]:
    piece: list[Batch] = []
    size = 0
    for batch in batches:
        piece.append(batch)
        size += 1 + len(batch.messages)
        if size >= PART_ITEMS_MAX:
            yield {**row, **_columns_of(piece)}
            piece, size = [], 0
    if piece or not batches:
        yield {**row, **_columns_of(piece)}


def _columns_of(batches: Sequence[Batch]) -> dict[str, Any]:
    return {
        "firsts": [batch.first for batch in batches],
        "lasts": [batch.last for batch in batches],
        "epochs": [batch.epoch for batch in batches],
        "digests": [batch.digest for batch in batches],
        "seals": [batch.seal for batch in batches],
        "counts": [len(batch.messages) for batch in batches],
        "messages": [message for batch in batches for message in batch.messages],
    }


def batches_from(
    run_id: str, topic: str, partition: int, events: Iterable[Event]
) -> Iterator[pa.RecordBatch]:
    """A partition's history as Arrow batches."""
    noted = ((position, None, event) for position, event in enumerate(events))
    return noted_batches(run_id, topic, partition, None, noted)


def noted_batches(
    run_id: str,
    topic: str,
    partition: int,
    writer: str | None,
    noted: Iterable[tuple[int, int | None, Event]],
) -> Iterator[pa.RecordBatch]:
    """What one writer noted of a partition (position, time in ns, event) as Arrow batches."""
    names = history_schema().names
    whose = {"run_id": run_id, "topic": topic, "partition": partition, "writer": writer}
    rows: list[dict[str, Any]] = []
    for position, time_ns, event in noted:
        for part, row in enumerate(rows_of(event)):
            rows.append({**whose, "position": position, "part": part, "time_ns": time_ns, **row})
            if len(rows) >= _ROWS_MAX:
                yield _batch(names, rows)
                rows = []
    if rows:
        yield _batch(names, rows)


def _batch(names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    schema = history_schema()
    columns = [pa.array([row.get(name) for row in rows], schema.field(name).type) for name in names]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def table_of(histories: Mapping[Key, Iterable[Event]]) -> pa.Table:
    """Several histories as one table."""
    batches = [batch for key, events in histories.items() for batch in batches_from(*key, events)]
    return pa.Table.from_batches(batches, history_schema())


class Parts(msgspec.Struct, frozen=True):
    """One partition's events, before they are one history."""

    own: list[Event]
    """Of those who have no writer's name: they are in order."""
    written: dict[str, list[Noted]]
    """By writer."""
    holes: list[Missing]
    """What of these was lost."""


def events_from(table: pa.Table) -> Iterable[Event]:
    """The events of one partition's rows, which need not be sorted.

    What several writers noted is put in one order.  Raises TraceError.
    """
    if table.column("writer").null_count == table.num_rows:
        return (event for _, _, event in _noted(table, whole=True))
    parts = parts_from(table)
    return merged(parts.own, parts.written, parts.holes)


def parts_from(table: pa.Table) -> Parts:
    """What each wrote in one partition's rows.  Raises TraceError."""
    column = table.column("writer")
    own = [event for _, _, event in _noted(table.filter(pc.is_null(column)), whole=True)]
    written: dict[str, list[Noted]] = {}
    holes: list[Missing] = []
    for writer in sorted(pc.unique(column.drop_null()).to_pylist()):
        noted = list(_noted(table.filter(pc.equal(column, writer)), whole=False))
        written[writer] = [Noted(time_ns, event) for _, time_ns, event in noted]
        lacking = sum(
            position - before - 1
            for before, position in pairwise([-1, *(position for position, _, _ in noted)])
        )
        if lacking:
            holes.append(Missing(f"rows of {writer}", lacking))
    return Parts(own, written, holes)


def _noted(table: pa.Table, *, whole: bool) -> Iterator[tuple[int, int, Event]]:
    """Position, time and event of one writer's rows, by position; rows may come twice unless they
    have to be `whole`.  Raises TraceError."""
    table = table.sort_by([("position", "ascending"), ("part", "ascending")])
    columns = _columns(table)
    total = table.num_rows
    positions, parts, times = columns["position"], columns["part"], columns["time_ns"]
    at = 0
    expected = 0
    while at < total:
        position = positions[at]
        if parts[at] != 0 or (whole and position != expected):
            raise TraceError(
                f"the history of {columns['topic'][at]}-{columns['partition'][at]} has position"
                f" {position}, part {parts[at]}; expected {expected}, 0: it is not whole"
            )
        rows = [at]
        at += 1
        while at < total and positions[at] == position:
            if parts[at] == len(rows):
                rows.append(at)
            elif whole or parts[at] != len(rows) - 1:
                raise TraceError(f"position {position} lacks its part {len(rows)}")
            at += 1
        yield position, times[rows[0]], _event(columns, rows)
        expected = position + 1


class _Lists:
    """A column of lists: what they hold is converted once, and cut where it is asked for."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        array = column.combine_chunks()
        self._offsets = array.offsets.to_pylist()
        self._begin = self._offsets[0]
        end = self._offsets[-1]
        self._values: list[Any] = array.values.slice(self._begin, end - self._begin).to_pylist()

    def __getitem__(self, row: int) -> list[Any]:
        """The list in this row; empty when there is none."""
        begin = self._begin
        return self._values[self._offsets[row] - begin : self._offsets[row + 1] - begin]


class _Column(Protocol):
    def __getitem__(self, row: int) -> Any: ...


def _columns(table: pa.Table) -> dict[str, _Column]:
    """The columns as Python's values, those that are empty at little cost."""
    total = table.num_rows
    found: dict[str, _Column] = {}
    for name in history_schema().names:
        column = table.column(name)
        if total and column.null_count == total:
            found[name] = ((),) * total if name in LISTS else (None,) * total
        elif name in LISTS:
            found[name] = _Lists(column) if total else ()
        else:
            found[name] = column.to_pylist()
    return found


_PLAIN: Mapping[type, Sequence[tuple[str, str]]] = {
    kind: [each for each in columns.items() if each[1] not in LISTS]
    for kind, columns in _COLUMNS.items()
}
_LISTED: Mapping[type, Sequence[tuple[str, str]]] = {
    kind: [each for each in columns.items() if each[1] in LISTS]
    for kind, columns in _COLUMNS.items()
}


def _event(columns: Mapping[str, _Column], rows: Sequence[int]) -> Event:
    at = rows[0]
    kind = _KINDS.get(columns["kind"][at])
    if kind is None:
        raise TraceError(f"unknown kind {columns['kind'][at]!r}; known are {', '.join(_KINDS)}")
    fields: dict[str, Any] = {field: columns[column][at] for field, column in _PLAIN[kind]}
    for field, column in _LISTED[kind]:
        fields[field] = tuple(columns[column][at])
    if kind is Delivered:
        offsets, messages = columns["offsets"][at], columns["messages"][at]
        fields["records"] = tuple(zip(offsets, messages, strict=True))
    elif kind is OnDisk:
        fields["messages"] = frozenset(
            message for row in rows for message in columns["messages"][row]
        )
    elif kind is Committed or kind is Held:
        batches: list[Batch] = []
        for row in rows:
            batches += _batches(columns, row)
        fields["batches"] = tuple(batches)
    event: Event = kind(**fields)
    return event


def _batches(columns: Mapping[str, _Column], row: int) -> list[Batch]:
    found: list[Batch] = []
    messages = columns["messages"][row]
    at = 0
    for first, last, epoch, digest, seal, count in zip(
        *(columns[name][row] for name in _BATCH_COLUMNS), strict=True
    ):
        found.append(Batch(first, last, epoch, digest, tuple(messages[at : at + count]), seal))
        at += count
    return found


def histories_from(table: pa.Table) -> dict[Key, list[Event]]:
    """The events of each partition.  Raises TraceError."""
    return {key: list(events_from(rows)) for key, rows in by_partition(table)}


def by_partition(table: pa.Table) -> Iterator[tuple[Key, pa.Table]]:
    """Each partition's rows."""
    if table.num_rows == 0:
        return
    table = table.sort_by([(name, "ascending") for name in PARTITION_COLUMNS]).combine_chunks()
    changes = np.zeros(table.num_rows, np.bool_)
    changes[0] = True
    for name in PARTITION_COLUMNS:
        column = table.column(name).combine_chunks()
        changes[1:] |= pc.not_equal(column[1:], column[:-1]).to_numpy(zero_copy_only=False)
    begins = np.flatnonzero(changes).tolist()
    for at, end in zip(begins, [*begins[1:], table.num_rows], strict=True):
        run_id, topic, partition = (table.column(name)[at].as_py() for name in PARTITION_COLUMNS)
        yield (run_id, topic, partition), table.slice(at, end - at)


def write_history(path: Path | str, histories: Mapping[Key, Iterable[Event]]) -> int:
    """Write histories to an `.arrow` or `.parquet` file; returns its rows.  Raises TraceError."""
    path = Path(path)
    rows = 0
    batches = (batch for key, events in histories.items() for batch in batches_from(*key, events))
    if path.suffix == ".arrow":
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        with (
            pa.OSFile(str(path), "wb") as file,
            pa.ipc.new_file(file, history_schema(), options=options) as writer,
        ):
            for batch in batches:
                rows += batch.num_rows
                writer.write_batch(batch)
    elif path.suffix == ".parquet":
        import pyarrow.parquet as pq  # not before it is needed: it is slow to import

        with pq.ParquetWriter(
            path, history_schema(), compression="zstd", store_schema=True
        ) as parquet:
            for batch in batches:
                rows += batch.num_rows
                parquet.write_batch(batch)
    else:
        raise TraceError(f"cannot tell the format from {str(path)!r}: use .arrow or .parquet")
    return rows


def history_files(path: Path | str) -> list[Path]:
    """The files of replication histories here; empty when what is here is something else.

    Raises TraceError when a folder holds both histories and traces.
    """
    path = Path(path)
    files = [path]
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix in TRACE_SUFFIXES)
    found = [file for file in files if is_history(_schema_of(file))]
    if found and len(found) != len(files):
        other = next(file for file in files if file not in found)
        raise TraceError(f"{path} holds histories of replication and others, as {other.name}")
    return found


def read_history_file(path: Path) -> pa.Table:
    """Return a file's rows; where its writer was killed, those of whole batches.

    Raises TraceError.
    """
    if _is_ipc(path):
        return as_current(read_ipc(path, check_history))
    import pyarrow.parquet as pq

    table = pq.read_table(path, partitioning=None)
    check_history(table.schema, str(path))
    return as_current(table)


def _is_ipc(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_IPC_MAGIC)) == _IPC_MAGIC


def _schema_of(path: Path) -> pa.Schema:
    if _is_ipc(path):
        try:
            return pa.ipc.open_file(pa.OSFile(str(path), "rb")).schema
        except pa.ArrowInvalid:
            return pa.ipc.open_stream(pa.py_buffer(path.read_bytes()).slice(8)).schema
    import pyarrow.parquet as pq

    try:
        return pq.read_schema(path)
    except pa.ArrowInvalid as error:
        raise TraceError(f"{path} is no Arrow or Parquet file: {error}") from None
