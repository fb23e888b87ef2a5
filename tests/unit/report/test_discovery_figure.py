"""The picture of a discovery shows what its trace says."""

from pathlib import Path

import numpy as np
import pytest

from orderwire.report.discovery_cost import hops_of, pairs_figure, traffic_figure
from orderwire.report.discovery_figure import Known, discovery_figure, known_of
from orderwire.report.style import save
from orderwire.trace.discovery_events import SILENT, DiscoveryTimeline
from orderwire.trace.events import NO_ORDER, DiscoveryRun, Event, RunSettings
from orderwire.trace.schema import table_from_events
from orderwire.verify.audit import audit
from orderwire.verify.discovery_synthetic import DomainSettings, synthetic_domain
from orderwire.verify.source import TableSource
from orderwire.verify.synthetic import SyntheticSettings, synthetic_table

MS = 1_000_000


def pair() -> list[Event]:
    """Participant 0 learns 1 after 40 ms; 1 never learns 0 and is killed at 80 ms."""
    events: list[Event] = []
    run = RunSettings(algorithm=NO_ORDER, members=2, discovery=DiscoveryRun())
    for process in range(2):
        line = DiscoveryTimeline("run", process, events.append)
        line.start(run, 0)
        line.boot(20 * MS * process)
        line.adopt((20 * process + 1) * MS, peer_id=process, incarnation=process + 1, version=1)
        if process == 0:
            line.learn(60 * MS, peer_id=1, incarnation=2, version=1, age_ns=0)
            line.expire(90 * MS, peer_id=1, incarnation=2, reason=SILENT, age_ns=0)
        else:
            line.gone(80 * MS)
        line.end(100 * MS)
    return events


def test_shares_and_latencies_are_those_of_the_trace() -> None:
    known = known_of(table_from_events(pair()), "run", {1: "bee"}, last_ms=100)
    assert known is not None
    assert known.names == ["0", "bee"]
    assert known.latencies_ms[0, 1] == 40
    assert np.isnan(known.latencies_ms[1, 0])
    at = {ms: int(np.searchsorted(known.times_ms, ms)) for ms in (10, 30, 70, 85)}
    assert [known.share[0, at[ms]] for ms in at] == [1, 0, 1, 1]
    assert known.share[1, at[70]] == 0
    assert np.isnan(known.share[1, [at[10], at[85]]]).all()
    assert known.boots_ms == [[0], [20]]
    assert known.ends_ms[1] == [80]
    assert np.isnan(known.ends_ms[0]).all()


def test_a_run_without_discovery_has_no_picture() -> None:
    table = synthetic_table(SyntheticSettings(events=200, members=3, fan_out=2))
    assert known_of(table, "synthetic") is None
    assert known_of(table, "another") is None


@pytest.mark.parametrize("participants", [2, 10, 60])
def test_a_domain_is_drawn_to_svg_and_png(tmp_path: Path, participants: int) -> None:
    trace = synthetic_domain(DomainSettings(participants=participants, run_id="d"))
    known = known_of(trace, "d")
    assert isinstance(known, Known)
    assert np.nanmax(known.share) == 1
    paths = save(discovery_figure(known), tmp_path, "discovery")
    again = save(discovery_figure(known), tmp_path / "again", "discovery")
    assert [path.suffix for path in paths] == [".svg", ".png"]
    assert [path.read_bytes() for path in paths] == [path.read_bytes() for path in again]


def test_hops_and_costs_are_drawn_to_the_same_bytes_in_every_run(tmp_path: Path) -> None:
    report, _ = audit(TableSource(synthetic_domain(DomainSettings(participants=9, run_id="d"))))
    found = report.runs[0].discovery
    assert found is not None
    hops = hops_of(found)
    assert sum(hops.values()) == sum(sum(each.hops.values()) for each in found.messages) > 0
    assert list(hops) == sorted(hops)
    for name, draw in (("pairs", pairs_figure), ("traffic", traffic_figure)):
        paths = save(draw(found), tmp_path, name)
        again = save(draw(found), tmp_path / "again", name)
        assert [path.read_bytes() for path in paths] == [path.read_bytes() for path in again]
