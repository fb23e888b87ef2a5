"""The benchmark of total order: its node on loopback, and goals that one bad round fails."""

import importlib
import json
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
NODE = BENCHMARKS / "peers" / "order_node.py"
MEMBERS, MESSAGES = 2, 50


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("peers_total")


def start(me: int, folder: Path) -> subprocess.Popen[str]:
    line = [sys.executable, NODE, me, MEMBERS, 60, 0, f"127.77.5.{me + 1}", "127.0.0.1"]
    line += [folder / f"{me}.json", "--order", "selective-total", "--flood", MESSAGES]
    return subprocess.Popen(
        [str(each) for each in line], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )


def say(node: subprocess.Popen[str], text: str) -> None:
    assert node.stdin is not None
    node.stdin.write(text + "\n")
    node.stdin.flush()


def test_a_flood_gives_all_members_everything_in_one_order(tmp_path: Path) -> None:
    nodes = [start(me, tmp_path) for me in range(MEMBERS)]
    try:
        for said, heard in ((None, "ready"), (str(time.monotonic_ns()), "done")):
            for node in nodes if said is not None else ():
                say(node, str(said))
            for node in nodes:
                assert node.stdout is not None
                assert node.stdout.readline().strip() == heard
        for node in nodes:
            say(node, "end")
        assert [node.wait(30) for node in nodes] == [0] * MEMBERS
    finally:
        for node in nodes:
            node.kill()
            node.communicate()
    first, *others = (json.loads((tmp_path / f"{me}.json").read_text()) for me in range(MEMBERS))
    assert len(set(first["order"])) == len(first["order"]) == MEMBERS * MESSAGES
    assert all(each["order"] == first["order"] for each in others)


def run(benchmark: ModuleType, **changed: float) -> dict[str, Any]:
    return dict.fromkeys(benchmark.peers_order.COUNTS, 0.0) | changed


def test_one_round_out_of_order_fails_the_goal(benchmark: ModuleType) -> None:
    runs = [run(benchmark), run(benchmark, inverted_pct=0.0001), run(benchmark)]
    told = benchmark.medians("lossy", runs)
    assert told["inverted_pct"] == 0
    assert not benchmark._goals({"lossy": told})["lossy: inverted"]
    assert benchmark._goals({"lossy": benchmark.medians("lossy", runs[:1])})["lossy: inverted"]


def test_a_steady_load_has_the_rate_it_is_named_for(benchmark: ModuleType) -> None:
    for load, wanted_per_s in (("paced", 1_000), ("lossy", 800)):
        members, every_ms, _ = benchmark.STEADY[load]
        written_per_s = members * 1e3 / every_ms
        answered = (members - 1) / members
        assert round(written_per_s * (1 + answered)) == wanted_per_s
