"""Every example runs, and prints what is beside it."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


@pytest.mark.network
@pytest.mark.timeout(60)
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_prints_its_output(example: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(example)], capture_output=True, text=True, timeout=50
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == example.with_suffix(".out").read_text()
    assert done.stderr == ""


def test_there_are_examples() -> None:
    assert EXAMPLES
