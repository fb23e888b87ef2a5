"""eclipse-cyclonedds/cyclonedds-cxx 421: a throughput example counted nearly all as out of order.

Our benchmarks check order and completeness themselves; here their checker is given bad traces.
"""

import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


checker = load("checker")


def found(numbers: Iterable[int], sent: int, **more: Any) -> list[str]:
    stream = checker.Stream()
    for number in numbers:
        stream.got(number)
    result: list[str] = checker.problems(stream.told(), sent, **{"ordered": True, **more})
    return result


@pytest.mark.parametrize("count", [0, 1, 1_000])
def test_a_good_trace_is_good(count: int) -> None:
    assert found(range(count), count) == []


@pytest.mark.parametrize(
    ("numbers", "sent", "sentence"),
    [
        ([0, 2, 1, 3], 4, "1 messages came behind later ones"),
        ([3, 2, 1, 0], 4, "3 messages came behind later ones"),
        ([0, 1, 3], 4, "1 of 4 messages are missing"),
        ([1, 2, 3], 4, "1 of 4 messages are missing"),
        ([0, 1, 2], 4, "1 of 4 messages are missing"),
        ([], 4, "4 of 4 messages are missing"),
        ([0, 1, 1, 2, 3], 4, "1 messages came twice"),
        ([0, 1, 2, 3, 0], 4, "1 messages came twice"),
        ([0, 1, 2, 3, 4], 4, "5 messages up to number 4, 4 sent"),
        ([0, 1, 2, 9], 4, "4 messages up to number 9, 4 sent"),
    ],
)
def test_a_bad_trace_is_named(numbers: list[int], sent: int, sentence: str) -> None:
    assert found(numbers, sent) == [sentence]


def test_what_is_not_promised_is_no_fault() -> None:
    assert found([0, 2, 1, 3], 4, ordered=False) == []
    assert found([0, 1, 3], 4, dropped=1) == []
    assert found([0, 3, 1, 3], 4, ordered=False, dropped=1) == ["1 messages came twice"]


def test_a_swap_that_is_made_up_for_by_a_loss_is_seen() -> None:
    assert found([0, 3, 2], 4) == [
        "1 of 4 messages are missing",
        "1 messages came behind later ones",
    ]


def test_a_benchmark_refuses_to_report_it() -> None:
    checker.refuse("here", [])
    with pytest.raises(SystemExit, match="here: 1 of 4 messages are missing"):
        checker.refuse("here", ["1 of 4 messages are missing"])


def test_a_run_of_the_shipped_benchmark_is_refused_when_its_trace_is_bad(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From the members' own words on: what they tell of a swap ends the run."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in ("checker", "harness"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    benchmark = load("delta_causal_host")
    told = {"received": 9, "swapped": 0, "repeated": 0, "next": 10}
    good: list[dict[str, Any]] = [
        {"sent": 10, "dropped": 0, "streams": {}},
        {"sent": 0, "dropped": 1, "streams": {"0": told}},
    ]
    benchmark.check("fifo", "flood", good)
    for bad in (
        told | {"swapped": 1},
        told | {"received": 8},
        told | {"repeated": 2},
    ):
        good[1]["streams"]["0"] = bad
        with pytest.raises(SystemExit, match="fifo flood, member 1"):
            benchmark.check("fifo", "flood", good)
    good[1]["streams"]["0"] = told | {"swapped": 1}
    benchmark.check("unordered", "flood", good)
