"""Worked scenarios of discovery, replayed through the ring, the roster, the server and FDP/1.

Source: 14 scenarios computed by hand and by a separate prototype; format in discovery/README.md.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from orderwire.sim.discovery_script import ScriptError
from orderwire.sim.discovery_vectors import check_discovery
from orderwire.sim.vectors import check_paths

FOLDER = Path(__file__).parent / "discovery"
FILES = sorted(FOLDER.glob("*.json"))


def load(name: str) -> dict[str, Any]:
    raw = json.loads((FOLDER / f"{name}.json").read_text())
    assert isinstance(raw, dict)
    return raw


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_discovery_does_what_the_scenario_expects(path: Path) -> None:
    report = check_paths([path])
    assert report.failed == []
    assert report.not_covered == []
    assert report.checks == report.passed > 0


def test_the_printed_protocol_fails_when_joins_overlap() -> None:
    raw = load("12-concurrent-joins")
    raw["params"]["mode"] = "paper"
    (why,) = check_discovery(raw)
    assert why is not None
    assert "x misses 7" in why
    assert "y misses 6" in why


@pytest.mark.parametrize("kind", ["rows", "tree", "size", "merge", "bootstrap", "joinack"])
def test_a_wrong_expectation_is_found(kind: str) -> None:
    raw = next(each for path in FILES if (each := json.loads(path.read_text()))["kind"] == kind)
    spoilt = json.loads(json.dumps(raw).replace("LIVE", "LEFT").replace('"ID 1"', '"ID 7"'))
    expect = spoilt["expect"]
    for name in ("rows", "maps", "join_ack"):
        if name in expect:
            expect[name][next(iter(expect[name]))] = [9, 9]
    if "hops" in expect:
        expect["hops"] = {"1": 99}
    assert any(why is not None for why in check_discovery(spoilt))


@pytest.mark.parametrize(
    "change",
    [
        {"params": {"M": 8, "unheard": 1}},
        {"params": {"M": 8, "mode": "other"}},
        {"events": [{"at": 0.0, "do": "explode", "who": "i"}]},
        {"events": [{"at": 0.0, "do": "leave"}]},
    ],
)
def test_a_malformed_script_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ScriptError):
        check_discovery(load("04-fig7-join") | change)
