"""What a core does becomes events, before and after it has an id, and when it loses that."""

import subprocess
import sys
from pathlib import Path

import pytest
from recorded_domain import RecordedDomain, begin

from orderwire import Participant, Trace
from orderwire.discovery.fdp import FdpNode
from orderwire.discovery.settings import FEW_MESSAGES
from orderwire.kernel import NS_PER_S, LocalProtocolError, ProcessId
from orderwire.participant.discovery_trace import (
    DiscoveryJournal,
    DiscoveryRecorder,
    discovery_run,
    run_settings,
)
from orderwire.trace.events import EventKind
from orderwire.trace.schema import events_from_table
from orderwire.trace.sinks import MemorySink

SETTINGS = run_settings(FEW_MESSAGES, members=256, one_machine=True, timer_slack_ns=0)
AHEAD_NS = 1_000


def domain(seconds: int) -> RecordedDomain:
    made = RecordedDomain(4)
    begin(made, 4, 0.2)
    made.run(seconds * NS_PER_S)
    return made


def core_of(made: RecordedDomain, name: str) -> FdpNode:
    core = made.processes[name].core
    assert isinstance(core, FdpNode)
    return core


def journal(recorder: DiscoveryRecorder) -> tuple[DiscoveryJournal, MemorySink]:
    sink = MemorySink()
    return DiscoveryJournal("run", sink, SETTINGS, AHEAD_NS, recorder), sink


def test_what_happens_before_there_is_an_id_is_kept() -> None:
    core = core_of(domain(5), "p0")
    recorder = DiscoveryRecorder(core, 10)
    recorder.posted(11, object(), 40)
    recorder.heard(12, object(), 50)
    kept, sink = journal(recorder)
    kept.begin(7, recorder.began)
    recorder.leaving(20)
    kept.close(30)
    events = events_from_table(sink.table())
    assert [event.kind.value for event in events] == [
        *("start", "boot", "post", "hear", "leave", "end"),
    ]
    assert {event.process for event in events} == {7}
    assert [event.time_ns - AHEAD_NS for event in events] == [10, 10, 11, 12, 20, 30]
    assert {event.run_id for event in events} == {"run/discovery"}


def test_who_gets_another_id_goes_on_as_another_participant() -> None:
    made = domain(5)
    core = core_of(made, "p0")
    recorder = DiscoveryRecorder(core, 10)
    kept, sink = journal(recorder)
    kept.begin(7, 10)
    kept.begin(9, 20)
    kept.close(30)
    events = events_from_table(sink.table())
    first = [event for event in events if event.process == 7]
    second = [event for event in events if event.process == 9]
    assert [event.kind.value for event in first] == ["start", "boot", "gone", "end"]
    kinds = [event.kind for event in second]
    assert kinds[:2] == [EventKind.START, EventKind.BOOT]
    assert kinds[2:-1] == [EventKind.LEARN] * 3, "what it knows of the others stays"
    assert {event.peer_id for event in second[2:-1]} == set(core.live())


def test_an_end_tells_its_reason() -> None:
    made = RecordedDomain(4)
    begin(made, 4, 0.2)
    made.run(5 * NS_PER_S)
    made.leave("p1")
    made.crash("p2", silent=True)
    made.run(20 * NS_PER_S)
    made.crash("p3")
    made.start("p3", b"again")
    made.run(30 * NS_PER_S)
    mine = [event for event in made.events if event.process == made.lines["p0"].process]
    reasons = {event.reason for event in mine if event.kind is EventKind.EXPIRE}
    assert reasons == {"left", "silent", "replaced"}


def test_views_are_promised_after_t_fail_and_a_look_and_a_margin() -> None:
    promise = discovery_run(FEW_MESSAGES, timer_slack_ns=NS_PER_S)
    assert promise.fail_ns == FEW_MESSAGES.fail_ns
    assert promise.margin_ns == 3 * NS_PER_S
    assert promise.settle_ns == FEW_MESSAGES.fail_ns * 5 // 4 + 3 * NS_PER_S


def test_each_life_in_a_folder_has_a_file_of_its_own(tmp_path: Path) -> None:
    trace = Trace(run="run", path=tmp_path)
    for _ in range(3):
        trace.open("ben").close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("ben-2.arrow", "ben-3.arrow", "ben.arrow"),
    ]


def test_only_a_traced_member_tells_of_the_dead() -> None:
    participant = Participant("ana", domain="d", bootstrap="127.0.0.1:1")
    with pytest.raises(LocalProtocolError, match="not open"):
        participant.trace_gone(ProcessId(1))


def test_what_tracing_needs_is_loaded_before_others_know_us() -> None:
    """Arrow takes a second to load on a busy machine: a member that joined first would be deaf."""
    program = (
        "import asyncio, sys\n"
        "from orderwire import Participant, Trace\n"
        "from orderwire.participant.discovering import Discovering\n"
        "async def opened(self):\n"
        "    print('pyarrow' in sys.modules)\n"
        "    raise TimeoutError\n"
        "Discovering.open = opened\n"
        "trace = Trace(run='r', path='unused')\n"
        "assert 'pyarrow' not in sys.modules\n"
        "try:\n"
        "    asyncio.run(Participant('a', domain='d', bootstrap='h:1', trace=trace).__aenter__())\n"
        "except TimeoutError:\n"
        "    pass\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=True
    )
    assert told.stdout == "True\n"
