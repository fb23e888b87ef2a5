"""Trace records to rows, without Spark."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderwire.pipeline.trace_records import (
    DESTS_SCHEMA,
    EVENTS_SCHEMA,
    decode_trace_records,
    destination_rows,
    set_bits,
)
from orderwire.trace.errors import TraceError, TraceVersionError
from orderwire.trace.events import Event, EventKind
from orderwire.trace.reader import record_bytes
from orderwire.trace.schema import VERSION_KEY, table_from_events

EVENTS = [
    Event(
        run_id="r",
        process=2,
        position=position,
        kind=EventKind.SEND,
        time_ns=position,
        clock_ns=position,
        source=2,
        number=position,
        destinations=b"\x05\x80",
        vector_clock=[1, 2],
    )
    for position in range(3)
]


def records(*values: bytes | None) -> pa.RecordBatch:
    count = len(values)
    return pa.record_batch(
        {
            "topic": ["trace"] * count,
            "partition": pa.array([4] * count, pa.int32()),
            "offset": pa.array(range(7, 7 + count), pa.int64()),
            "value": pa.array(values, pa.binary()),
        }
    )


def record(events: list[Event]) -> bytes:
    (batch,) = table_from_events(events).combine_chunks().to_batches()
    return record_bytes(batch)


def test_records_become_their_events() -> None:
    made = list(decode_trace_records([records(record(EVENTS[:2]), None, record(EVENTS[2:]))]))
    table = pa.Table.from_batches(made)
    assert table.schema.equals(EVENTS_SCHEMA)
    assert table.to_pylist() == table_from_events(EVENTS).to_pylist()


def test_unknown_version_is_refused_by_name_and_place() -> None:
    (batch,) = table_from_events(EVENTS).combine_chunks().to_batches()
    other = batch.replace_schema_metadata({VERSION_KEY: b"7"})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, other.schema) as writer:
        writer.write_batch(other)
    with pytest.raises(TraceVersionError, match=r"record trace/4@7 .* version '7'"):
        list(decode_trace_records([records(sink.getvalue().to_pybytes())]))


def test_what_is_no_trace_is_refused_by_place() -> None:
    with pytest.raises(TraceError, match="record trace/4@8 is no Arrow IPC stream"):
        list(decode_trace_records([records(record(EVENTS), b"hello, this is text")]))


@given(st.lists(st.sets(st.integers(0, 40), max_size=6), max_size=12), st.integers(0, 3))
def test_masks_become_members(sets: list[set[int]], skip: int) -> None:
    masks = [sum(1 << member for member in members) for members in sets]
    column = pa.array(
        [mask.to_bytes((mask.bit_length() + 7) // 8, "little") for mask in masks], pa.binary()
    ).slice(skip)
    row, member = set_bits(column)
    expected = [(at, m) for at, members in enumerate(sets[skip:]) for m in sorted(members)]
    assert list(zip(row.tolist(), member.tolist(), strict=True)) == expected


def test_sends_become_intended_copies() -> None:
    sends = table_from_events(EVENTS).select(["run_id", "source", "number", "destinations"])
    made = pa.Table.from_batches(destination_rows(sends.to_batches()))
    assert made.schema.equals(DESTS_SCHEMA)
    assert [row["destination"] for row in made.to_pylist()] == [0, 2, 15] * 3
    assert {(row["source"], row["run_id"]) for row in made.to_pylist()} == {(2, "r")}
