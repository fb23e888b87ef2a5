"""What a participant read, kept in a file: to look at, or to write again with its timing.

An Arrow IPC file with a row for each sample, in the order they were handed over.  The order QoS is
in the schema's metadata.
"""

from pathlib import Path

import msgspec
import pyarrow as pa

from orderwire.kernel import OrderwireError, parsed
from orderwire.participant.qos import DeltaCausal, Fifo, Order, Published, SelectiveTotal, Unordered
from orderwire.participant.samples import Sample
from orderwire.trace.errors import TraceError
from orderwire.trace.reader import read_ipc
from orderwire.trace.sinks import Closing

RECORDING_VERSION = b"2"
_READABLE_VERSIONS = (b"1", RECORDING_VERSION)
"""Version 1 did not tell a sample's own lifetime."""
BATCH_SAMPLES = 1_024
BATCH_BYTES = 4 << 20
"""A batch is written when it has so many samples or so many bytes of data."""

_VERSION_KEY = b"orderwire.recording.version"
_ORDER_KEY = b"orderwire.recording.order"
_order_decoder = msgspec.json.Decoder(Unordered | Fifo | DeltaCausal | Published | SelectiveTotal)
_FIELDS = [
    pa.field("topic", pa.string(), nullable=False),
    pa.field("source", pa.string(), nullable=False),
    pa.field("number", pa.int64(), nullable=False),
    pa.field("stamp_ns", pa.int64(), nullable=False),
    pa.field("arrived_ns", pa.int64(), nullable=False),
    pa.field("delivered_ns", pa.int64(), nullable=False),
    pa.field("data", pa.large_binary(), nullable=False),
    pa.field("lifetime_ns", pa.int64()),
]


class RecordingError(OrderwireError):
    """What was given is no readable recording."""


class Recorder(Closing):
    """Writes samples whose data are bytes.  Whole batches survive a crash."""

    def __init__(self, path: Path | str, order: Order) -> None:
        if Path(path).suffix != ".arrow":
            raise RecordingError(f"a recording is an Arrow file: end {str(path)!r} with .arrow")
        self.path = Path(path)
        self.samples = 0
        self.data_bytes = 0
        self._rows: list[Sample] = []
        self._bytes = 0
        metadata = {_VERSION_KEY: RECORDING_VERSION, _ORDER_KEY: msgspec.json.encode(order)}
        self._schema = pa.schema(_FIELDS, metadata=metadata)
        self._file = self.path.open("wb")
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        self._writer = pa.ipc.new_file(self._file, self._schema, options=options)

    def add(self, sample: Sample) -> None:
        """Keep this sample."""
        self._rows.append(sample)
        self.samples += 1
        self.data_bytes += len(sample.data)
        self._bytes += len(sample.data)
        if len(self._rows) >= BATCH_SAMPLES or self._bytes >= BATCH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        rows, self._rows, self._bytes = self._rows, [], 0
        if rows:
            columns = [
                [row.topic for row in rows],
                [row.source for row in rows],
                [row.number for row in rows],
                [row.stamp for row in rows],
                [row.arrived for row in rows],
                [row.delivered for row in rows],
                [row.data for row in rows],
                [row.lifetime_ns for row in rows],
            ]
            arrays = [
                pa.array(column, field.type) for column, field in zip(columns, _FIELDS, strict=True)
            ]
            self._writer.write_batch(pa.record_batch(arrays, schema=self._schema))
            self._file.flush()

    def close(self) -> None:
        """Write what waits, and the footer."""
        if not self._file.closed:
            self.flush()
            self._writer.close()
            self._file.close()


class Recording:
    """A recording, read: its order and a table with a row for each sample."""

    def __init__(self, path: Path | str) -> None:
        """Raises RecordingError and OSError."""
        try:
            self.table = read_ipc(Path(path), _check)
        except TraceError as error:
            raise RecordingError(str(error)) from None
        if "lifetime_ns" not in self.table.schema.names:
            none = pa.nulls(self.table.num_rows, pa.int64())
            self.table = self.table.append_column("lifetime_ns", none)
        self.order: Order = parsed(
            _order_decoder.decode,
            self.table.schema.metadata[_ORDER_KEY],
            f"{path} names no order",
            RecordingError,
        )


def _check(schema: pa.Schema, origin: str) -> None:
    metadata = schema.metadata or {}
    version = metadata.get(_VERSION_KEY)
    if version not in _READABLE_VERSIONS or _ORDER_KEY not in metadata:
        raise RecordingError(
            f"{origin} is no recording of version"
            f" {' or '.join(known.decode() for known in _READABLE_VERSIONS)}:"
            f" {'it has no version' if version is None else f'version {version.decode()}'}"
        )
