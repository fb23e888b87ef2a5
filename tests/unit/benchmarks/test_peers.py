"""What `just bench` runs needs no argument: without a harness the rivals are told to be missing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.mark.parametrize("name", sorted(path.name for path in BENCHMARKS.glob("peers_*.py")))
def test_without_a_harness_nothing_runs_and_the_result_says_so(name: str) -> None:
    line = [sys.executable, str(BENCHMARKS / name), "--json"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=True)
    result = json.loads(done.stdout)
    assert result["ours"] == {}
    assert result["rivals"]
    assert all(each == {"missing": "--harness"} for each in result["rivals"].values())


@pytest.mark.parametrize("name", sorted(path.name for path in BENCHMARKS.glob("peers_*.py")))
def test_a_folder_without_the_harness_is_refused(name: str, tmp_path: Path) -> None:
    line = [sys.executable, str(BENCHMARKS / name), "--harness", str(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert f"in {tmp_path}" in done.stderr
