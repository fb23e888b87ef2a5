"""What members of a totally ordered group trace, audited.  [S003:sec.2]"""

import asyncio
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from discovered import in_a_loop
from total_groups import Told, read_all, run_to_rest, swapped, write_to_subsets

from orderwire import TotalGroup, TotalGroupSettings, Trace
from orderwire.aio.total_relay import ChannelRelay, RelaySettings
from orderwire.trace.errors import TraceError
from orderwire.trace.events import EventKind
from orderwire.trace.reader import read_trace
from orderwire.trace.schema import events_from_table
from orderwire.trace.sinks import MemorySink
from orderwire.verify.audit import audit
from orderwire.verify.report import TOTAL_ORDER_CHECKS
from orderwire.verify.source import TableSource, open_source
from orderwire.verify.verdict import Verdict

pytestmark = [pytest.mark.network, pytest.mark.timeout(120)]

RUN = "group"
NO_REPEATS = TotalGroupSettings(repeats=False)


async def _joined(
    channel: ChannelRelay, members: int, settings: TotalGroupSettings, trace: Trace
) -> list[TotalGroup]:
    host, port = channel.address
    joining = [
        TotalGroup.join(f"{host}:{port}", me=me, members=members, settings=settings, trace=trace)
        for me in range(members)
    ]
    return list(await asyncio.gather(*joining))


def test_a_group_that_loses_and_recovers_is_audited_clean(tmp_path: Path) -> None:
    told = Told(3)

    @in_a_loop
    async def run() -> None:
        settings = RelaySettings(loss=0.02, seed=5, repeats=False)
        channel = await ChannelRelay.open(("127.0.0.1", 0), settings)
        groups = await _joined(channel, 3, NO_REPEATS, Trace(run=RUN, path=tmp_path))
        await run_to_rest(groups, told, 200, seed=1)
        await asyncio.gather(*(group.close() for group in groups))
        await channel.close()

    run()
    assert len(list(tmp_path.glob("member-*.arrow"))) == 3
    report, violations = audit(open_source(tmp_path))
    assert violations.to_pylist() == []
    assert report.verdict is Verdict.VALID
    assert {c.id for c in report.checks if c.promised} >= {"W1", "C1", "O2", *TOTAL_ORDER_CHECKS}
    events = events_from_table(read_trace(tmp_path))
    for member in range(3):
        mine = [event for event in events if event.process == member]
        handed = [(e.source, e.number) for e in mine if e.kind is EventKind.DELIVER]
        assert handed == told.received[member]
        sent = [(e.source, e.number) for e in mine if e.kind is EventKind.SEND]
        assert sent == told.sent[member]
    kinds = {e.reason for e in events if e.kind is EventKind.RECEIVE}
    assert kinds >= {"", "null", "rstpak", "rstack"}, "it has recovered"


@in_a_loop
async def test_one_swap_in_such_a_trace_is_found() -> None:
    channel = await ChannelRelay.open(("127.0.0.1", 0))
    sink = MemorySink()
    groups = await _joined(channel, 3, TotalGroupSettings(), Trace(run=RUN, sink=sink))
    await run_to_rest(groups, Told(3), 100, seed=2)
    await asyncio.gather(*(group.close() for group in groups))
    await channel.close()
    table = sink.table()
    assert audit(TableSource(table))[0].verdict is Verdict.VALID
    report, violations = audit(TableSource(swapped(table)))
    assert report.verdict is Verdict.INVALID
    assert "T1" in {row["check"] for row in violations.to_pylist()}


@in_a_loop
async def test_who_leaves_before_all_has_come_leaves_a_trace_without_an_end() -> None:
    channel = await ChannelRelay.open(("127.0.0.1", 0))
    sink = MemorySink()
    groups = await _joined(channel, 2, TotalGroupSettings(), Trace(run=RUN, sink=sink))
    reading = [asyncio.create_task(read_all(group, Told(2))) for group in groups]
    await write_to_subsets(groups[0], Told(2), 20, Random(3))
    await groups[1].close(wait_s=0.0)
    await groups[0].write(b"to who is gone", [1])
    await groups[0].close(wait_s=0.2)
    await asyncio.gather(*reading)
    await channel.close()
    assert EventKind.END.value not in sink.table().column("kind").to_pylist()
    report, violations = audit(TableSource(sink.table()))
    assert (report.verdict, violations.num_rows) == (Verdict.UNKNOWN, 0)


class _Full(MemorySink):
    def write(self, batch: pa.RecordBatch) -> None:
        raise OSError("no space left on device")


@in_a_loop
async def test_a_trace_that_cannot_be_written_stops_no_group() -> None:
    channel = await ChannelRelay.open(("127.0.0.1", 0))
    trace = Trace(run=RUN, sink=_Full(), flush_interval_ms=10)
    groups = await _joined(channel, 2, TotalGroupSettings(), trace)
    await run_to_rest(groups, Told(2), 50, seed=4)
    for group in groups:
        with pytest.raises(TraceError, match="no space left"):
            await group.close()
    await channel.close()
