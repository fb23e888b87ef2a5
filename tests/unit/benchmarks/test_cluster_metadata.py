"""Who leads what, asked of clusters: what is asked, and what is compared."""

import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orderwire.broker.wire.generated.metadata import decode_metadata_request

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture(scope="module")
def benchmark() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield importlib.import_module("cluster_metadata")


def test_a_refresh_names_every_topic_and_makes_none(benchmark: Any) -> None:
    frame = memoryview(benchmark.asking(3))
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    at = 4 + 2 + 2 + 4 + 2 + len("bench") + 1
    request, end = decode_metadata_request(frame, at, benchmark.VERSION)
    assert end == len(frame)
    assert [one.name for one in request.topics or ()] == ["topic-000", "topic-001", "topic-002"]
    assert not request.allow_auto_topic_creation


def test_ratios_are_of_the_rounds_and_over_the_other(benchmark: Any) -> None:
    results = benchmark.Results()
    for turn in (1, 2, 3):  # the machine is slower each round, the ratio is not
        for name, cpu_s, delay in (("cluster", 2.0, 30.0), ("alone", 1.0, 10.0)):
            run = benchmark.harness.Measured(units=100, wall_s=1.0, cpu_s=cpu_s * turn)
            results.note("load", name, run, [delay * turn] * 10)
    assert results.ratios("cluster", "alone") == {
        "CPU of cluster over alone, load": 2.0,
        "p50 of cluster over alone, load": 3.0,
        "p99 of cluster over alone, load": 3.0,
    }
    told = results.of("cluster")["load"]
    assert (told["cpu_us_per_unit"], told["p50_ms"], told["p99_ms"]) == (40_000, 60.0, 60.0)


@pytest.mark.parametrize("before", [None, "elsewhere"])
def test_another_version_is_only_for_what_is_started_meanwhile(
    benchmark: Any, before: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if before is not None:
        monkeypatch.setenv("PYTHONPATH", before)
    with benchmark._source(tmp_path):
        assert os.environ["PYTHONPATH"] == str(tmp_path)
    assert os.environ.get("PYTHONPATH") == before
    with benchmark._source(None):
        assert os.environ.get("PYTHONPATH") == before
