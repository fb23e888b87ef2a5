"""Trace records to rows: plain Arrow, no Spark; Spark's workers call these a batch at a time."""

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from orderwire.pipeline.tables import TABLES
from orderwire.trace.reader import read_record, read_trace

DESTS_SCHEMA = TABLES["dests"].schema
EVENTS_SCHEMA = TABLES["events"].schema


def decode_trace_records(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Turn records of a trace topic (topic, partition, offset, value) into events.

    Raises TraceVersionError or TraceError, naming the record; a record without a value is none.
    """
    for batch in batches:
        columns = (batch.column(name) for name in ("topic", "partition", "offset", "value"))
        for topic, partition, offset, value in zip(*columns, strict=True):
            data = value.as_buffer()
            if data is None:
                continue
            table = read_record(data, f"record {topic}/{partition}@{offset}")
            yield from _plain(table).to_batches()


def read_trace_files(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Turn paths of trace files (column `path`) into their events."""
    for batch in batches:
        for path in batch.column("path").to_pylist():
            yield from _plain(read_trace(path)).to_batches(max_chunksize=65_536)


def destination_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Turn sends (run_id, source, number, destinations) into one row for each intended copy."""
    for batch in batches:
        row, member = set_bits(batch.column("destinations"))
        index = pa.array(row)
        columns = [batch.column(name).take(index) for name in ("run_id", "source", "number")]
        yield pa.RecordBatch.from_arrays([*columns, pa.array(member)], schema=DESTS_SCHEMA)


def set_bits(masks: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return row and bit number of every bit set in a column of little-endian masks."""
    count = len(masks)
    if not count:
        return np.zeros(0, np.int64), np.zeros(0, np.int32)
    assert masks.type == pa.binary(), f"masks are {masks.type}"
    _, offsets, data = masks.buffers()
    bounds = np.frombuffer(offsets, np.int32, count + 1, masks.offset * 4).astype(np.int64)
    if masks.null_count:
        filled = pa.array([value or b"" for value in masks.to_pylist()], pa.binary())
        return set_bits(filled)
    content = np.frombuffer(data or b"", np.uint8)[bounds[0] : bounds[-1]]
    bits = np.flatnonzero(np.unpackbits(content, bitorder="little"))
    starts = (bounds - bounds[0]) * 8
    row = np.searchsorted(starts, bits, side="right") - 1
    return row, (bits - starts[row]).astype(np.int32)


def _plain(table: pa.Table) -> pa.Table:
    return table.select(EVENTS_SCHEMA.names).cast(EVENTS_SCHEMA)
