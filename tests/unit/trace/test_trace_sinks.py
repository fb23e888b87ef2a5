"""Sinks that work elsewhere: a thread, a topic.  What they lose, they tell."""

import threading
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer

from orderwire.trace import (
    BackgroundSink,
    Event,
    MemorySink,
    RunSettings,
    TraceError,
    Tracer,
    events_from_table,
    read_record,
    sort_trace,
)
from orderwire.trace.events import EventKind
from orderwire.trace.publish import RECORD_BYTES_MAX, TopicSink

SETTINGS = RunSettings(algorithm="fifo", members=2)


def record_run(sink: Any, events: int, *, process: int = 0) -> Tracer:
    tracer = Tracer("r", process, sink, SETTINGS, 0, batch_events=10)
    for number in range(events):
        tracer.deliver(number, 1, number, number, number, 1, 1)
    tracer.close(events)
    return tracer


def record_runs(sink: Any, runs: int) -> None:
    for _ in range(runs):
        record_run(sink, 95)


def test_a_background_sink_keeps_order_and_closes_the_other() -> None:
    inner = MemorySink()
    sink = BackgroundSink(inner, queued_batches_max=2)
    record_run(sink, 95)
    sink.close()
    sink.close()
    positions = [n for batch in inner.batches for n in batch.column("position").to_pylist()]
    assert positions == list(range(97))
    with pytest.raises(TraceError, match="closed already"):
        sink.write(inner.batches[0])


def test_a_full_background_sink_holds_the_caller_up_and_loses_nothing() -> None:
    class Slow(MemorySink):
        def __init__(self) -> None:
            super().__init__()
            self.gate = threading.Semaphore(0)

        def write(self, batch: pa.RecordBatch) -> None:
            assert self.gate.acquire(timeout=30)
            super().write(batch)

    inner = Slow()
    sink = BackgroundSink(inner, queued_batches_max=1)
    writing = threading.Thread(target=record_run, args=(sink, 95))
    writing.start()
    for _ in range(10):
        inner.gate.release()
    writing.join(30)
    sink.close()
    assert inner.table().num_rows == 97


def test_what_a_background_sink_loses_is_told() -> None:
    class Broken(MemorySink):
        def write(self, batch: pa.RecordBatch) -> None:
            raise OSError("no space left on device")

    sink = BackgroundSink(Broken())
    with pytest.raises(TraceError, match="the trace is incomplete: no space left on device"):
        record_runs(sink, 100)
    with pytest.raises(TraceError, match="no space left"):
        sink.close()


@pytest.mark.network
@pytest.mark.timeout(60)
def test_a_topic_holds_one_stream_of_one_batch_a_record_by_process() -> None:
    """The broker is librdkafka's mock cluster: real client, real protocol, real sockets."""
    mock = Producer({"bootstrap.servers": "unused", "test.mock.num.brokers": 1, "log_level": 0})
    broker = next(iter(mock.list_topics(timeout=10).brokers.values()))
    with TopicSink(f"{broker.host}:{broker.port}", "trace") as sink:
        for process in (0, 1):
            record_run(sink, 45, process=process)
    assert sink.acknowledged == 10
    consumer = Consumer(
        {
            "bootstrap.servers": f"{broker.host}:{broker.port}",
            "group.id": "test",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(["trace"])
    found: dict[bytes, list[pa.Table]] = {}
    while sum(map(len, found.values())) < 10:
        for message in consumer.consume(10, timeout=1.0):
            assert message.error() is None
            key, value = message.key(), message.value()
            assert isinstance(key, bytes)
            assert isinstance(value, bytes)
            found.setdefault(key, []).append(read_record(value))
    consumer.close()
    assert set(found) == {b"r/0", b"r/1"}
    for tables in found.values():
        assert all(len(table.to_batches()) == 1 for table in tables)
        events = events_from_table(sort_trace(pa.concat_tables(tables)))
        assert [event.position for event in events] == list(range(47))


@pytest.mark.network
@pytest.mark.timeout(60)
def test_a_batch_too_large_for_a_record_is_cut() -> None:
    mock = Producer({"bootstrap.servers": "unused", "test.mock.num.brokers": 1, "log_level": 0})
    broker = next(iter(mock.list_topics(timeout=10).brokers.values()))
    clock = list(range(1_000_000, 1_000_000 + 10_000))
    with TopicSink(f"{broker.host}:{broker.port}", "trace") as sink:
        tracer = Tracer("r", 0, sink, SETTINGS, 0, batch_events=1_000)
        for position in range(1, 40):
            tracer.record(
                Event(
                    run_id="r",
                    process=0,
                    position=position,
                    kind=EventKind.SEND,
                    time_ns=0,
                    clock_ns=0,
                    vector_clock=[(n * 7_919 * position) % 2**61 for n in clock[:5_000]],
                )
            )
        tracer.close(1)
    assert sink.acknowledged > 1
    with (
        pytest.raises(TraceError, match=f"more than a record holds .{RECORD_BYTES_MAX}."),
        TopicSink(f"{broker.host}:{broker.port}", "trace") as sink,
    ):
        record_large(sink)


def record_large(sink: TopicSink) -> None:
    tracer = Tracer("r", 1, sink, SETTINGS, 0)
    huge = [(n * 6_700_417) ** 3 % 2**62 for n in range(150_000)]
    event = Event(
        run_id="r",
        process=1,
        position=1,
        kind=EventKind.SEND,
        time_ns=0,
        clock_ns=0,
        vector_clock=huge,
    )
    tracer.record(event)
    tracer.flush()


@pytest.mark.network
@pytest.mark.timeout(60)
def test_records_that_reach_no_broker_are_told() -> None:
    sink = TopicSink("127.0.0.1:1", "trace", timeout_s=0.3, producer_settings={"log_level": 0})
    record_run(sink, 25)
    with pytest.raises(TraceError, match=r"3 trace records did not reach topic 'trace'"):
        sink.close()
