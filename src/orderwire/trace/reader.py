"""Reading and writing whole traces: a file, a folder of files, or the bytes of a topic record."""

from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from orderwire.trace.errors import TraceError
from orderwire.trace.events import Event, EventKind
from orderwire.trace.schema import (
    check_schema,
    sort_trace,
    table_from_events,
    up_to_date,
)
from orderwire.trace.sinks import IPC_COMPRESSION, open_sink

_IPC_MAGIC = b"ARROW1\0\0"
_PARQUET_MAGIC = b"PAR1"
TRACE_SUFFIXES = (".arrow", ".parquet")


def read_trace(path: Path | str) -> pa.Table:
    """Return the trace in this file, or in all trace files of this folder, sorted.

    Arrow IPC files without a footer (their writer was killed) give their whole batches.  Raises
    TraceError on anything that is no trace and TraceVersionError on an unknown version.
    """
    path = Path(path)
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix in TRACE_SUFFIXES)
        if not files:
            raise TraceError(
                f"no trace in {path}: it has no file that ends in {' or '.join(TRACE_SUFFIXES)}"
            )
        return sort_trace(pa.concat_tables([_read_file(file) for file in files]))
    return sort_trace(_read_file(path))


def write_trace(path: Path | str, trace: pa.Table | Iterable[Event]) -> None:
    """Write a whole trace, sorted, to an `.arrow` or `.parquet` file."""
    table = trace if isinstance(trace, pa.Table) else table_from_events(trace)
    ordered = sort_trace(up_to_date(table, "this table"))
    with open_sink(path) as sink:
        for batch in ordered.to_batches(max_chunksize=65_536):
            sink.write(batch)


def record_bytes(batch: pa.RecordBatch, *, compression: str | None = IPC_COMPRESSION) -> bytes:
    """Return the batch as one Arrow IPC stream: the value of one record of a topic."""
    buffer = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
    with pa.ipc.new_stream(buffer, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    value: bytes = buffer.getvalue().to_pybytes()
    return value


def read_record(value: bytes | memoryview, origin: str = "this record") -> pa.Table:
    """Return the events in the value of one record of a topic, in their order.

    Raises TraceError on anything that is no trace and TraceVersionError on an unknown version.
    """
    try:
        with pa.ipc.open_stream(pa.py_buffer(value)) as reader:
            check_schema(reader.schema, origin)
            return up_to_date(reader.read_all(), origin)
    except pa.ArrowInvalid as error:
        raise TraceError(f"{origin} is no Arrow IPC stream: {error}") from None


def open_processes(table: pa.Table) -> list[tuple[str, int]]:
    """Return the (run, process) pairs whose trace has no END event: it may be incomplete."""
    keys = table.select(["run_id", "process"])
    ended = keys.filter(pc.equal(table.column("kind"), EventKind.END.value))
    return sorted(_pairs(keys) - _pairs(ended))


def _pairs(keys: pa.Table) -> set[tuple[str, int]]:
    distinct = keys.group_by(keys.schema.names).aggregate([])
    return set(zip(*(column.to_pylist() for column in distinct.columns), strict=True))


def _read_file(path: Path) -> pa.Table:
    with path.open("rb") as file:
        magic = file.read(8)
    if magic[:4] == _PARQUET_MAGIC:
        import pyarrow.parquet as pq  # not before it is needed: it is slow to import

        try:
            table = pq.read_table(path, partitioning=None)
        except pa.ArrowInvalid as error:
            raise TraceError(
                f"{path} is a damaged Parquet file: {error}. Parquet keeps nothing when its writer"
                " is killed; trace to .arrow to keep what was written"
            ) from None
    elif magic == _IPC_MAGIC:
        table = read_ipc(path, check_schema)
    else:
        raise TraceError(f"{path} is neither an Arrow IPC nor a Parquet file: starts {magic!r}")
    return up_to_date(table, str(path))


def read_ipc(path: Path, check: Callable[[pa.Schema, str], None]) -> pa.Table:
    """Return the batches of an Arrow IPC file, also of one whose writer was killed.

    `check(schema, origin)` may refuse it.  Raises TraceError when it cannot be read at all.
    """
    try:
        reader = pa.ipc.open_file(pa.OSFile(str(path), "rb"))
    except pa.ArrowInvalid:
        return _read_headless(path, check)
    check(reader.schema, str(path))
    return reader.read_all()


def _read_headless(path: Path, check: Callable[[pa.Schema, str], None]) -> pa.Table:
    """Read an IPC file without its footer: behind the magic it is a stream."""
    content = pa.py_buffer(path.read_bytes())
    try:
        reader = pa.ipc.open_stream(content.slice(len(_IPC_MAGIC)))
    except (pa.ArrowInvalid, OSError) as error:
        raise TraceError(f"{path} is no readable Arrow file: {error}") from None
    check(reader.schema, str(path))
    batches = []
    while True:
        try:
            batches.append(reader.read_next_batch())
        except StopIteration:
            break
        except (pa.ArrowInvalid, OSError):
            break  # the last batch was torn off; everything before it is whole
    return pa.Table.from_batches(batches, reader.schema)
