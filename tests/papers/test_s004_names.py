"""Every rule, gap and promise of the completed protocol has tests that bear its name.  [S004:4]"""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
NAME = re.compile(r"^def test_((?:[rgi]\d{1,2}_)+)", re.MULTILINE)
OURS = ("unit/broker/replication", "unit/verify")


def named() -> set[str]:
    files = (path for folder in OURS for path in (TESTS / folder).glob("test_*.py"))
    heads = (head for path in files for head in NAME.findall(path.read_text()))
    return {name for head in heads for name in head.split("_")}


@pytest.mark.parametrize(("letter", "count"), [("r", 10), ("g", 20), ("i", 10)])
def test_each_has_a_test(letter: str, count: int) -> None:
    assert {f"{letter}{number}" for number in range(1, count + 1)} <= named()
