"""A participant's timeline of discovery: what is told comes back from the trace, in its columns."""

import msgspec
import pytest

from orderwire.trace import (
    DISCOVERY_KINDS,
    NO_ORDER,
    DiscoveryRun,
    DiscoveryTimeline,
    Event,
    EventKind,
    MemorySink,
    RunSettings,
    Tracer,
    events_from_table,
    signed,
    table_from_events,
    unsigned,
)
from orderwire.trace.discovery_events import LEFT

BIG = 2**64 - 1
SETTINGS = RunSettings(algorithm=NO_ORDER, members=2, discovery=DiscoveryRun(fail_ns=5))


def tell(line: DiscoveryTimeline) -> None:
    line.boot(1)
    line.post(2, "REQUEST_ID", 40)
    line.adopt(3, peer_id=BIG, incarnation=2**63, version=1)
    line.hear(4, "JOIN", 368, hop=2, peer_id=7)
    line.learn(5, peer_id=7, incarnation=1, version=3, age_ns=4, clock=105)
    line.update(6, version=2)
    line.expire(7, peer_id=7, incarnation=1, reason=LEFT, age_ns=1)
    line.leave(8)
    line.gone(9)


def test_a_timeline_fills_the_columns() -> None:
    events: list[Event] = []
    line = DiscoveryTimeline("r", 1, events.append)
    line.start(SETTINGS, 0)
    tell(line)
    line.gone(10, process=0)
    line.end(11)
    assert [event.position for event in events] == list(range(12))
    assert {event.kind for event in events} == {
        *DISCOVERY_KINDS,
        EventKind.START,
        EventKind.END,
    }
    assert msgspec.json.decode(events[0].detail, type=RunSettings) == SETTINGS
    adopted, heard, learnt, updated, expired = events[3:8]
    assert (adopted.peer_id, adopted.incarnation, adopted.number) == (BIG, 2**63, 1)
    assert (heard.reason, heard.payload_bytes, heard.number, heard.peer_id) == ("JOIN", 368, 2, 7)
    assert (learnt.number, learnt.time_ns, learnt.clock_ns, learnt.arrived_ns) == (3, 5, 105, 101)
    assert (updated.number, updated.peer_id) == (2, None)
    assert (expired.reason, expired.arrived_ns) == ("left", 6)
    assert [event.source for event in events if event.kind is EventKind.GONE] == [1, 0]
    assert events_from_table(table_from_events(events)) == events


@pytest.mark.parametrize("batch_events", [1, 4, 100])
def test_a_timeline_on_a_tracer_shares_its_positions(batch_events: int) -> None:
    sink = MemorySink()
    tracer = Tracer("r", 1, sink, SETTINGS, 0, batch_events=batch_events)
    line = DiscoveryTimeline.on(tracer)
    tell(line)
    tracer.deliver(10, 0, 0, 1, 1, 1, 1)
    line.boot(11)
    tracer.close(12)
    events: list[Event] = []
    alone = DiscoveryTimeline("r", 1, events.append)
    alone.start(SETTINGS, 0)
    tell(alone)
    found = events_from_table(sink.table())
    assert found[:10] == events
    assert [event.position for event in found] == list(range(13))
    assert [event.kind.value for event in found[10:]] == ["deliver", "boot", "end"]


def test_numbers_of_64_bits_keep_them() -> None:
    for number in (0, 1, 2**63 - 1, 2**63, BIG):
        assert unsigned(signed(number)) == number
        assert -(2**63) <= signed(number) < 2**63
    for number in (-1, 2**64):
        with pytest.raises(AssertionError, match="no unsigned number"):
            signed(number)


def test_a_run_without_discovery_tells_its_settings_as_before() -> None:
    told = msgspec.json.encode(RunSettings(algorithm="fifo", members=2)).decode()
    assert "discovery" not in told
