"""Where batches of a trace go: an Arrow IPC file, a Parquet file, or memory.

A sink takes batches in order from one thread.  What it took is on its way to the disk when `write`
returns and readable once `close` has returned.
"""

from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import pyarrow as pa

from orderwire.trace.errors import TraceError
from orderwire.trace.schema import arrow_schema, sort_trace

ROW_GROUP_EVENTS = 131_072
"""Rows of one Parquet row group: small enough to sort in memory, large enough to compress well."""

IPC_COMPRESSION = "lz4"
"""lz4 costs a batch a third of what zstd costs; a trace is written while protocols run."""
PARQUET_COMPRESSION = "zstd"

FILE_BUFFER_BYTES = 1 << 18
"""Of an Arrow file, emptied after each batch: a batch is then one or two writes."""


class Sink(Protocol):
    """A place for batches; several tracers of one thread may share it."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Take the next batch.  Raises TraceError or OSError when an earlier one was lost."""
        ...

    def close(self) -> None:
        """Return when all that was written is safe; raises when it is not.  Twice is once."""
        ...


class Closing:
    """What `with` closes at its end."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Finish; twice is once."""
        raise NotImplementedError


class MemorySink(Closing):
    """Keep the batches; `table()` gives them back."""

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []

    def write(self, batch: pa.RecordBatch) -> None:
        """Keep this batch."""
        self.batches.append(batch)

    def close(self) -> None:
        """Nothing to do."""

    def table(self) -> pa.Table:
        """All events so far, sorted."""
        return sort_trace(pa.Table.from_batches(self.batches, arrow_schema()))


class IpcFileSink(Closing):
    """An Arrow IPC file (`.arrow`), compressed; each batch is written when it comes.

    A file whose writer was killed has no footer; `read_trace` still reads its whole batches.
    """

    def __init__(self, path: Path | str, *, compression: str | None = IPC_COMPRESSION) -> None:
        self.path = Path(path)
        # Arrow's own file: a Python one would take the interpreter for each of a hundred buffers.
        self._file = pa.BufferedOutputStream(pa.OSFile(str(self.path), "wb"), FILE_BUFFER_BYTES)
        options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
        self._writer = pa.ipc.new_file(self._file, arrow_schema(), options=options)
        self._open = True

    def write(self, batch: pa.RecordBatch) -> None:
        """Append this batch to the file."""
        _refuse_closed(self._open, self.path)
        self._writer.write_batch(batch)
        self._file.flush()

    def close(self) -> None:
        """Write the footer."""
        if self._open:
            self._open = False
            self._writer.close()
            self._file.close()


class ParquetFileSink(Closing):
    """A Parquet file; each row group is sorted by run, process and position.

    Batches wait in memory until a row group is full, at most `row_group_events` rows.
    """

    def __init__(self, path: Path | str, *, row_group_events: int = ROW_GROUP_EVENTS) -> None:
        assert row_group_events > 0
        import pyarrow.parquet as pq  # not before it is needed: it is slow to import

        self.path = Path(path)
        self._row_group_events = row_group_events
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_events = 0
        self._writer = pq.ParquetWriter(
            self.path, arrow_schema(), compression=PARQUET_COMPRESSION, store_schema=True
        )
        self._open = True

    def write(self, batch: pa.RecordBatch) -> None:
        """Keep this batch; write a row group when there is one."""
        _refuse_closed(self._open, self.path)
        self._waiting.append(batch)
        self._waiting_events += batch.num_rows
        while self._waiting_events >= self._row_group_events:
            self._write_group()

    def close(self) -> None:
        """Write what waits, and the footer."""
        if self._open:
            self._open = False
            while self._waiting_events:
                self._write_group()
            self._writer.close()

    def _write_group(self) -> None:
        table = pa.Table.from_batches(self._waiting, arrow_schema())
        group = table.slice(0, self._row_group_events)
        rest = table.slice(group.num_rows)
        self._writer.write_table(sort_trace(group), row_group_size=self._row_group_events)
        self._waiting = rest.to_batches()
        self._waiting_events = rest.num_rows


def open_sink(path: Path | str) -> IpcFileSink | ParquetFileSink:
    """Return the file sink for this name: `.arrow` or `.parquet`.  Raises TraceError."""
    suffix = Path(path).suffix
    if suffix == ".arrow":
        return IpcFileSink(path)
    if suffix == ".parquet":
        return ParquetFileSink(path)
    raise TraceError(f"cannot tell the trace's format from {str(path)!r}: use .arrow or .parquet")


def _refuse_closed(is_open: bool, path: Path) -> None:
    if not is_open:
        raise TraceError(f"the trace file {path} is closed already: open another one")
