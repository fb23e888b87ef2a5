"""Worked scenarios of ST, replayed through its core.

Source: 20 scenarios: figures [S003:fig.2] [S003:fig.3] [S003:fig.4] [S003:fig.5] [S003:fig.6]
[S003:fig.7], formulas [S003:eq.1] to [S003:eq.5], and a counterexample for every defect of the
protocol as printed; format in selective-total/README.md.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from orderwire.sim.selective_total_vectors import check_selective_total
from orderwire.sim.vector_format import VectorError
from orderwire.sim.vectors import check_paths

FOLDER = Path(__file__).parent / "selective-total"
FILES = sorted(FOLDER.glob("*.json"))


def load(name: str) -> dict[str, Any]:
    raw = json.loads((FOLDER / f"{name}.json").read_text())
    assert isinstance(raw, dict)
    return raw


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_st_does_what_the_scenario_expects(path: Path) -> None:
    report = check_paths([path])
    assert report.failed == []
    assert report.not_covered == []
    assert report.checks == report.passed > 0


SPOILT = {
    "fig4-st": ("service", "SP"),
    "fig6-line": ("line", [2, 2, 2]),
    "fig6-run": ("control", 7),
    "fig7-sort": ("sorted", [["q", "b", "a", "x"], ["q", "a", "b"], ["p", "c", "x", "y"]]),
    "two-detectors": ("epoch", [[0, 1], [0, 2], [0, 1]]),
    "fig5-condition2-suspect": ("suspects", [[], [], []]),
    "window-closed": ("log", [[], ["a", "b", "c"]]),
    "tail-loss": ("delivered", [[], []]),
}


@pytest.mark.parametrize("name", SPOILT)
def test_another_expectation_is_not_met(name: str) -> None:
    raw = load(name)
    key, value = SPOILT[name]
    assert key in raw["expect"]
    raw["expect"][key] = value
    assert any(check_selective_total(raw))


def test_a_formula_that_is_off_is_told() -> None:
    raw = load("formulas-n10")
    raw["expect"][0]["corrected"]["U_over_L"] *= 1.001
    assert any(check_selective_total(raw))


@pytest.mark.parametrize(
    ("name", "change", "why"),
    [
        ("tail-loss", {"steps": [{"op": "fly"}]}, "unknown step 'fly'"),
        ("tail-loss", {"steps": [{"op": "null", "src": 9}]}, r"entities \[9\]"),
        ("tail-loss", {"n": 0}, "n is 0"),
        ("tail-loss", {"expect": {"wings": []}}, "unknown key 'wings'"),
        ("fig6-line", {"rank_order": [1, 1, 2]}, "does not name every entity once"),
        ("fig4-st", {"expect": {"wings": []}}, "unknown key 'wings'"),
    ],
)
def test_a_malformed_scenario_is_refused(name: str, change: dict[str, Any], why: str) -> None:
    with pytest.raises(VectorError, match=why):
        check_selective_total(load(name) | change)
