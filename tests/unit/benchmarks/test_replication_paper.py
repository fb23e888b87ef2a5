"""The paper's evaluation on real processes: what is compared with what."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture(scope="module")
def paper() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield importlib.import_module("replication_paper")


def point(paper: Any, contestant: str, rate: float, repeat: int = 0) -> Any:
    return paper.Point(
        contestant=contestant,
        users=5,
        repeat=repeat,
        messages=2_000,
        seconds=10.0,
        rates={"produce": rate},
        brokers_cpu=0.5,
        load=1.0,
        synced_write_ms=1.0,
    )


def test_a_text_begins_again_where_it_is_too_short(paper: Any) -> None:
    parts = paper.messages_of(b"a" * 250, 5)
    assert [len(part) for part in parts] == [100, 100, 50, 100, 100]


def test_the_paper_sends_each_message_by_itself_in_both_designs(paper: Any) -> None:
    standby, active = list(paper.CONTESTANTS.values())[:2]
    assert (standby.mode, active.mode) == ("active-standby", "active-active")
    assert {(each.flush, each.acks, each.partitions) for each in (standby, active)} == {
        ("message", 1, 1)
    }
    assert dict(active.configs)["orderwire.coordination"] == "zookeeper"


@pytest.mark.paper("S004:tab.5")
def test_printed_numbers_stand_beside_ours(paper: Any) -> None:
    """[S004:tab.5] Each phase of the table has its number."""
    found = [paper.PRINTED["both, produced", 5], paper.PRINTED["both, consumed", 20]]
    assert found == [1.098, 1.346]
    assert paper.PRINTED["produce", 20] == 1.34


def test_gains_are_medians_of_rates_over_standbys_of_the_same_round(paper: Any) -> None:
    active = "active-active, the paper's"
    points = [
        point(paper, paper.STANDBY, 100.0),
        point(paper, active, 190.0),
        point(paper, paper.STANDBY, 1_000.0, 1),
        point(paper, active, 1_500.0, 1),
        point(paper, paper.STANDBY, 10.0, 2),
        point(paper, active, 90.0, 2),
        point(paper, "lanes, acks=all", 134.0),
    ]
    ratios = paper.compared(points)
    assert ratios == {"produce, 5 users": {"the paper": 1.9, active: 1.9, "lanes, acks=all": 1.34}}
    sigma = paper.explained(ratios)["produce, 5 users"]
    assert sigma == {"the paper": 0.053, active: 0.053, "lanes, acks=all": 0.493}
    beyond = paper.explained({"produce, 5 users": {"the paper": None, active: 2.5}})
    assert beyond == {"produce, 5 users": {"the paper": None, active: None}}


def test_points_are_kept(paper: Any, tmp_path: Path) -> None:
    path = tmp_path / "points"
    assert paper.kept(path) == paper.kept(None) == []
    points = [point(paper, "a", 1.0), point(paper, "b", 2.0)]
    path.write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in points))
    assert paper.kept(path) == points
