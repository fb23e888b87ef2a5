"""The rules that a linter does not know: determinism in cores, size of modules, where Spark is."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "orderwire"
RUNTIMES = {"chaos", "aio", "cli", "lab", "participant", "pipeline", "report"}
"""Packages that may read clocks and the machine's chance."""
BANNED_CALLS = {"hash", "id", "uuid4", "urandom"}
BANNED_MODULES = {"random": {"Random"}, "time": set(), "secrets": set(), "uuid": {"UUID"}}
"""Module → names that may be used from it all the same."""
MODULE_LINES_MAX = 600
MODULES = sorted(path for path in SOURCE.rglob("*.py") if "generated" not in path.parts)


def _package(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0]


def _banned(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in BANNED_CALLS:
                yield f"line {node.lineno}: {name}()"
            case ast.Call(func=ast.Attribute(attr=name)) if name in {"uuid4", "urandom"}:
                yield f"line {node.lineno}: .{name}()"
            case ast.Attribute(value=ast.Name(id=module), attr=name) if (
                module in BANNED_MODULES and name not in BANNED_MODULES[module]
            ):
                yield f"line {node.lineno}: {module}.{name}"
            case ast.ImportFrom(module=str(module), names=names) if module in BANNED_MODULES:
                for alias in names:
                    if alias.name not in BANNED_MODULES[module]:
                        yield f"line {node.lineno}: from {module} import {alias.name}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_module_is_tidy(path: Path) -> None:
    text = path.read_text()
    tree = ast.parse(text)
    if _package(path) not in RUNTIMES and path.name != "generate.py":
        assert list(_banned(tree)) == []
    assert len(text.splitlines()) <= MODULE_LINES_MAX
    if _package(path) != "pipeline":
        assert "import pyspark" not in text.replace("import pyspark_orderwire", "")
        assert "from pyspark" not in text


def test_no_module_has_a_catch_all_name() -> None:
    names = {path.stem for path in MODULES} | {
        path.name for path in SOURCE.rglob("*") if path.is_dir()
    }
    assert names.isdisjoint({"utils", "util", "common", "helpers", "misc"})


def test_rules_catch_what_they_ban() -> None:
    bad = "import random, time\nrandom.random()\ntime.time()\nhash(1)\nfrom time import monotonic\n"
    assert len(list(_banned(ast.parse(bad)))) == 4
    assert list(_banned(ast.parse("from random import Random\nRandom(1)"))) == []
