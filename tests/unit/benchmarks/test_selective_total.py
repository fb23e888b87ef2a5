"""The benchmark's own check of the order can say no."""

import importlib.util
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


def test_deliveries_out_of_order_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    path = BENCHMARKS / "selective_total.py"
    spec = importlib.util.spec_from_file_location("benchmark_selective_total", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    assert module.inverted([[1, 2, 3], [1, 2, 3]]) == 0
    assert module.inverted([[1, 2, 3], [1, 3, 2]]) == 1
    assert module.inverted([[1, 2, 3, 4], [4, 1, 2, 3], [2, 1, 3, 4]]) == 4
