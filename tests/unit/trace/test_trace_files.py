"""The trace's schema, writers and readers: what was recorded comes back, and nothing else does."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orderwire.kernel import LocalProtocolError
from orderwire.trace import (
    Event,
    EventKind,
    IpcFileSink,
    MemorySink,
    ParquetFileSink,
    RunSettings,
    TraceError,
    Tracer,
    TraceVersionError,
    arrow_schema,
    events_from_table,
    open_processes,
    open_sink,
    read_record,
    read_trace,
    record_bytes,
    spark_ddl,
    table_from_events,
    write_trace,
)

SETTINGS = RunSettings(algorithm="jang-delta", members=3, lifetime_ns=250_000_000)

_int64 = st.integers(-(2**63), 2**63 - 1)
_int32 = st.integers(-(2**31), 2**31 - 1)
_uint64 = st.integers(0, 2**64 - 1)
_masks = st.integers(0, 2**130).map(lambda m: m.to_bytes((m.bit_length() + 7) // 8, "little"))


@st.composite
def event_lists(draw: st.DrawFn) -> list[Event]:
    count = draw(st.integers(0, 12))
    return [
        Event(
            run_id="run/1",
            process=2,
            position=1 + position,
            kind=draw(st.sampled_from(EventKind)),
            time_ns=draw(_int64),
            clock_ns=draw(_int64),
            source=draw(_int32),
            number=draw(_int64),
            stamp_ns=draw(_int64),
            arrived_ns=draw(_int64),
            destinations=draw(_masks),
            reason=draw(st.sampled_from(["", "late", "duplicate", "Grund ü"])),
            control_bytes=draw(_int32),
            payload_bytes=draw(_int32),
            detail=draw(st.text(max_size=5)),
            vector_clock=draw(st.none() | st.lists(_int64, max_size=4)),
            lifetime_ns=draw(st.none() | _int64),
            peer_id=draw(st.none() | _uint64),
            incarnation=draw(st.none() | _uint64),
            channel_number=draw(st.none() | _int64),
        )
        for position in range(count)
    ]


@settings(max_examples=30)
@given(event_lists())
def test_events_survive_the_table(events: list[Event]) -> None:
    table = table_from_events(events)
    assert table.schema.equals(arrow_schema(), check_metadata=True)
    assert events_from_table(table) == events


@settings(max_examples=30)
@given(event_lists(), st.integers(1, 5))
def test_events_survive_the_packed_columns(events: list[Event], batch_events: int) -> None:
    sink = MemorySink()
    tracer = Tracer("run/1", 2, sink, SETTINGS, 7, batch_events=batch_events)
    for event in events:
        tracer.record(event)
    tracer.flush()
    assert events_from_table(sink.table())[1:] == events
    assert max(batch.num_rows for batch in sink.batches) <= batch_events


@pytest.mark.parametrize("suffix", [".arrow", ".parquet"])
def test_a_process_timeline_is_dense_and_comes_back(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"trace{suffix}"
    with open_sink(path) as sink:
        tracer = Tracer("r", 1, sink, SETTINGS, 10, batch_events=4)
        tracer.send(11, 0, 11, 0b101, 9, 100)
        tracer.deliver(12, 2, 5, 4, 11, 6, 3)
        tracer.discard(13, 2, 6, 5, 12, "late", 6, 3)
        tracer.lost(14, 0, 2)
        tracer.close(15)
        tracer.close(16)
    events = events_from_table(read_trace(path))
    assert [event.position for event in events] == [0, 1, 2, 3, 4, 5]
    assert [event.kind.value for event in events] == [
        *("start", "send", "deliver", "discard", "lost", "end"),
    ]
    assert msgspec.json.decode(events[0].detail, type=RunSettings) == SETTINGS
    assert events[1] == Event(
        run_id="r",
        process=1,
        position=1,
        kind=EventKind.SEND,
        time_ns=11,
        clock_ns=11,
        source=1,
        number=0,
        stamp_ns=11,
        destinations=b"\x05",
        control_bytes=9,
        payload_bytes=100,
    )
    assert (events[2].source, events[2].arrived_ns) == (2, 11)
    assert (events[3].reason, events[4].number) == ("late", 2)


def test_a_tracer_refuses_an_event_that_is_not_its_next() -> None:
    tracer = Tracer("r", 1, MemorySink(), SETTINGS, 0)
    stray = Event(run_id="r", process=1, position=2, kind=EventKind.SEND, time_ns=0, clock_ns=0)
    with pytest.raises(LocalProtocolError, match=r"r/1/2 is not the next of this tracer, r/1/1"):
        tracer.record(stray)
    with pytest.raises(LocalProtocolError, match="run_id"):
        Tracer("", 1, MemorySink(), SETTINGS, 0)


def _trace_of(process: int) -> pa.Table:
    sink = MemorySink()
    tracer = Tracer("r", process, sink, SETTINGS, 0, batch_events=3)
    for number in range(10):
        tracer.deliver(number, 0, number, number, number, 1, 1)
    tracer.close(20)
    return sink.table()


def test_parquet_row_groups_are_bounded_and_sorted(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    with ParquetFileSink(path, row_group_events=5) as sink:
        tracers = [Tracer("r", process, sink, SETTINGS, 0, batch_events=2) for process in (1, 0)]
        for number in range(9):
            for tracer in tracers:
                tracer.deliver(number, 0, number, number, number, 1, 1)
        for tracer in tracers:
            tracer.close(9)
    file = pq.ParquetFile(path)
    assert [file.metadata.row_group(at).num_rows for at in range(file.num_row_groups)] == [
        *(5, 5, 5, 5, 2),
    ]
    assert file.metadata.row_group(0).column(0).compression == "ZSTD"
    for at in range(file.num_row_groups):
        keys = file.read_row_group(at).select(["process", "position"]).to_pylist()
        assert keys == sorted(keys, key=lambda row: (row["process"], row["position"]))
    assert read_trace(path).num_rows == 22


def test_a_folder_of_traces_is_one_trace(tmp_path: Path) -> None:
    write_trace(tmp_path / "b.arrow", _trace_of(1))
    write_trace(tmp_path / "a.parquet", _trace_of(3))
    (tmp_path / "deep").mkdir()
    write_trace(tmp_path / "deep" / "c.arrow", events_from_table(_trace_of(2)))
    table = read_trace(tmp_path)
    assert table.column("process").to_pylist() == [1] * 12 + [2] * 12 + [3] * 12
    assert open_processes(table) == []
    assert open_processes(table.slice(0, 20)) == [("r", 2)]


def test_a_killed_writer_leaves_its_whole_batches(tmp_path: Path) -> None:
    path = tmp_path / "t.arrow"
    sink = IpcFileSink(path)
    tracer = Tracer("r", 0, sink, SETTINGS, 0, batch_events=100)
    for number in range(250):
        tracer.deliver(number, 0, number, number, number, 1, 1)
    torn = path.read_bytes()
    assert len(read_trace(path)) == 200
    for cut in (1, 60, 300):
        path.write_bytes(torn[:-cut])
        assert len(read_trace(path)) in (100, 200)
    sink.close()


def test_what_is_no_trace_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"no trace in .*: it has no file that ends in \.arrow"):
        read_trace(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_trace(tmp_path / "none.arrow")
    text = tmp_path / "text.arrow"
    text.write_text("hello, world")
    with pytest.raises(TraceError, match="neither an Arrow IPC nor a Parquet file"):
        read_trace(text)
    with pytest.raises(TraceError, match=r"use \.arrow or \.parquet"):
        open_sink(tmp_path / "trace.csv")
    other = tmp_path / "other.parquet"
    pq.write_table(pa.table({"x": [1]}), other)
    with pytest.raises(TraceError, match="is no Orderwire trace"):
        read_trace(other)
    torn = tmp_path / "torn.parquet"
    write_trace(torn, _trace_of(0))
    torn.write_bytes(torn.read_bytes()[:-20])
    with pytest.raises(TraceError, match="damaged Parquet"):
        read_trace(torn)


def test_an_unknown_version_is_refused_by_name(tmp_path: Path) -> None:
    schema = arrow_schema().with_metadata({b"orderwire.trace.version": b"5"})
    table = _trace_of(0).cast(schema)
    path = tmp_path / "future.parquet"
    pq.write_table(table, path)
    refused = r"schema version '5'; this release reads versions '1', '2', '3', '4'"
    with pytest.raises(TraceVersionError, match=refused):
        read_trace(path)
    with pytest.raises(TraceVersionError, match="version '5'"):
        events_from_table(table)
    missing = _trace_of(0).drop_columns(["stamp_ns"])
    with pytest.raises(TraceError, match="has no column 'stamp_ns'"):
        events_from_table(missing)
    wrong = _trace_of(0).set_column(1, "process", pa.array([0] * 12, pa.int64()))
    with pytest.raises(TraceError, match="'process' is int64, expected int32"):
        events_from_table(wrong)
    kinds = _trace_of(0).set_column(3, "kind", pa.array(["dance"] * 12))
    with pytest.raises(TraceError, match="unknown kind 'dance' at process 0, position 0"):
        events_from_table(kinds)


def test_a_record_is_one_stream_of_one_batch() -> None:
    batch = _trace_of(4).combine_chunks().to_batches()[0]
    value = record_bytes(batch)
    assert read_record(value).to_batches() == [batch]
    with pytest.raises(TraceError, match="topic t, offset 3 is no Arrow IPC stream"):
        read_record(b"hello", "topic t, offset 3")


def test_the_spark_schema_has_the_same_columns() -> None:
    ddl = spark_ddl()
    assert [part.split()[0] for part in ddl.split(", ")] == arrow_schema().names
    assert "vector_clock ARRAY<BIGINT>" in ddl


SINCE_2 = ["lifetime_ns"]
SINCE_3 = ["peer_id", "incarnation"]
SINCE_4 = ["channel_number"]


def _older(table: pa.Table, version: bytes) -> pa.Table:
    """The trace as a release that wrote this version would have written it."""
    dropped = {
        b"1": SINCE_2 + SINCE_3 + SINCE_4,
        b"2": SINCE_3 + SINCE_4,
        b"3": SINCE_4,
    }[version]
    return table.drop_columns(dropped).replace_schema_metadata(
        {b"orderwire.trace.version": version}
    )


@pytest.mark.parametrize("version", [b"1", b"2", b"3"])
def test_a_trace_of_an_older_version_reads_as_one_with_nulls(
    tmp_path: Path, version: bytes
) -> None:
    expected = _trace_of(7)
    old = _older(expected, version)
    pq.write_table(old, tmp_path / "old.parquet", store_schema=True)
    with pa.ipc.new_file(tmp_path / "old.arrow", old.schema) as writer:
        writer.write_table(old)
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, old.schema) as writer:
        writer.write_table(old)
    for read in (
        read_trace(tmp_path / "old.parquet"),
        read_trace(tmp_path / "old.arrow"),
        read_record(stream.getvalue().to_pybytes()),
    ):
        assert read.schema.equals(arrow_schema(), check_metadata=True)
        assert events_from_table(read) == events_from_table(old) == events_from_table(expected)


@pytest.mark.parametrize(
    ("columns", "version", "missing"),
    [
        (b"1", b"2", "lifetime_ns"),
        (b"2", b"3", "peer_id"),
        (b"1", b"3", "lifetime_ns"),
        (b"3", b"4", "channel_number"),
    ],
)
def test_a_version_without_its_columns_is_refused(
    columns: bytes, version: bytes, missing: str
) -> None:
    old = _older(_trace_of(7), columns)
    lying = old.replace_schema_metadata({b"orderwire.trace.version": version})
    refused = f"version {version.decode()} but has no column '{missing}'"
    with pytest.raises(TraceError, match=refused):
        events_from_table(lying)


def test_an_own_lifetime_is_written_at_the_send() -> None:
    sink = MemorySink()
    tracer = Tracer("run", 0, sink, SETTINGS, 0, batch_events=3)
    for number in range(4):
        tracer.send(10, number, 10, 0b110, 5, 9, 7_000 if number % 2 else None)
        tracer.deliver(11, 1, number, 10, 11, 5, 9)
    tracer.close(12)
    sent = [e for e in events_from_table(sink.table()) if e.kind is EventKind.SEND]
    assert [event.lifetime_ns for event in sent] == [None, 7_000, None, 7_000]
    others = [e for e in events_from_table(sink.table()) if e.kind is not EventKind.SEND]
    assert {event.lifetime_ns for event in others} == {None}


def test_what_a_totally_ordered_group_records_comes_back() -> None:
    sink = MemorySink()
    tracer = Tracer("run", 1, sink, SETTINGS, 0, batch_events=4)
    tracer.install(1, 0, 0b111)
    tracer.receive(2, 2, 0, "", 2**63 + 1, 40)
    tracer.receive(3, 0, -1, "null", 2**63 + 1, 41)
    tracer.deliver(4, 2, 0, 1, 2, 30, 200, 0b110)
    tracer.deliver(5, 2, 1, 1, 2, 30, 200)
    tracer.install(6, 3, 0b101)
    tracer.close(7)
    events = events_from_table(sink.table())
    assert [event.kind.value for event in events] == [
        *("start", "install", "receive", "receive", "deliver", "deliver", "install", "end"),
    ]
    assert [(e.number, e.destinations) for e in events if e.kind is EventKind.INSTALL] == [
        (0, b"\7"),
        (3, b"\5"),
    ]
    received = [e for e in events if e.kind is EventKind.RECEIVE]
    assert [(e.source, e.number, e.reason, e.channel_number) for e in received] == [
        (2, 0, "", 40),
        (0, -1, "null", 41),
    ]
    assert {e.incarnation for e in received} == {2**63 + 1}
    assert [e.destinations for e in events if e.kind is EventKind.DELIVER] == [b"\6", b""]
    assert {e.channel_number for e in events if e.kind is not EventKind.RECEIVE} == {None}


def _event(tracer: Tracer, kind: EventKind, **more: object) -> Event:
    return Event(  # type: ignore[arg-type]
        run_id="run", process=0, position=tracer.events, kind=kind, time_ns=1, clock_ns=1, **more
    )


def test_a_batch_that_cannot_be_made_is_lost_with_a_hole_and_leaves_nothing_behind() -> None:
    """The next events neither get its destinations, kinds and reasons nor overrun the buffer."""
    sink = MemorySink()
    tracer = Tracer("run", 0, sink, SETTINGS, 0, batch_events=4)
    tracer.flush()
    tracer.send(1, 0, 1, 0b10, 1, 1, 5)
    tracer.discard(1, 1, 0, 1, 1, "late", 1, 1)
    clock = [2**70]  # no int64
    tracer.record(_event(tracer, EventKind.SEND, vector_clock=clock, detail="x"))
    with pytest.raises((OverflowError, pa.ArrowInvalid)):
        tracer.flush()
    for number in range(5):
        tracer.deliver(2, 1, number, 2, 2, 1, 1)
    tracer.close(3)
    events = events_from_table(sink.table())
    assert [event.position for event in events] == [0, 4, 5, 6, 7, 8, 9]
    for event in events[1:-1]:
        assert event.kind is EventKind.DELIVER
        assert (event.reason, event.destinations, event.detail) == ("", b"", "")
        assert (event.vector_clock, event.lifetime_ns) == (None, None)


def test_an_event_that_does_not_fit_leaves_nothing_to_the_next() -> None:
    sink = MemorySink()
    tracer = Tracer("run", 0, sink, SETTINGS, 0)
    huge = _event(tracer, EventKind.DISCARD, number=2**64, detail="x", vector_clock=[1])
    with pytest.raises(Exception, match=r"int|argument"):
        tracer.record(huge)
    tracer.deliver(2, 1, 0, 2, 2, 1, 1)
    tracer.close(3)
    delivered = events_from_table(sink.table())[1]
    assert (delivered.kind, delivered.detail, delivered.vector_clock) == (
        EventKind.DELIVER,
        "",
        None,
    )


def test_tracing_does_not_import_pandas() -> None:
    """It would hold a member up for a second or more, in the middle of a run."""
    program = """if True:
        import sys
        from orderwire.trace import MemorySink, RunSettings, Tracer
        tracer = Tracer("run", 0, MemorySink(), RunSettings(algorithm="x", members=2), 0)
        tracer.send(1, 0, 1, 2, 1, 1, 500)
        tracer.discard(1, 1, 0, 1, 1, "expired", 1, 1)
        tracer.close(2)
        print("pandas" in sys.modules)
    """
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert told.stdout == "False\n", told.stderr
