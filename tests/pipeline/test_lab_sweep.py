"""The lab on real Spark: resume, isolation, the same table twice, executors elsewhere."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
import venv
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pyspark
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from orderwire.cli.lab import command
from orderwire.lab.config import Config, Row, run_spec
from orderwire.lab.experiment import read_experiment
from orderwire.lab.runs import CALIBRATION, ROWS, run
from orderwire.pipeline.sweep import SHIPPED, Result, Work, results, run_apart, sweep

pytestmark = pytest.mark.spark

TINY = """
name = "tiny"
title = "Tiny"
paper = "none"
grid = { lifetime_ms = [50, 0] }
base = { members = 3, fan_out = 1 }
full = { messages = 40, warm_up = 10, seeds = 2 }
quick = { messages = 20, warm_up = 0, seeds = 1 }
series = [{ label = "J", algorithm = "jang-delta" }, { label = "F", algorithm = "fixed-delay" }]
picture = { x = "lifetime_ms", x_label = "Δ", panels = ["control_bytes"] }
"""


def test_failures_are_rows_and_good_rows_are_not_run_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    def act(spec: str) -> str:
        if spec == "raise":
            raise ValueError("no good")
        if spec == "exit":
            os._exit(3)
        if spec == "hang":
            time.sleep(60)
        return spec + "!"

    names = ("good", "raise", "exit", "hang")
    work = [Work(key=name, spec=name, replay=f"again {name}") for name in names]
    found = sweep(spark, work, act, tmp_path, limit_s=2)
    assert [each.status for each in found] == ["ok", "failed", "crashed", "timeout"]
    assert [each.replay for each in found] == [f"again {name}" for name in names]
    assert found[0].result == "good!"
    assert "no good" in found[1].error
    told: list[str] = []
    again = sweep(spark, work[:2], lambda spec: "mended", tmp_path, limit_s=2, tell=told.append)
    assert [each.result for each in again] == ["good!", "mended"]
    assert told[0] == "1 of 2 rows are done already"
    assert len(results(tmp_path)) == 4


def test_run_apart_says_which_signal() -> None:
    found: Result = run_apart(lambda spec: str(os.kill(os.getpid(), 9)), "k", "s", 5.0)
    assert (found.status, found.error) == ("crashed", "the process ended by signal 9")


def test_two_runs_give_the_same_table_and_a_replay_line_reproduces(
    spark: SparkSession, tmp_path: Path
) -> None:
    file = tmp_path / "tiny.toml"
    file.write_text(TINY)
    experiment = read_experiment(TINY.encode(), "tiny")
    one, two = (
        run(spark, experiment, tmp_path / name, quick=True, called=str(file)) for name in "ab"
    )
    assert one.rows == two.rows
    assert {Path(path).suffix for path in one.files} == {".parquet", ".svg", ".png"}
    (failed,) = one.failed  # A fixed delay needs a lifetime.
    line = shlex.split(failed["replay"])
    assert line[:2] == ["orderwire", "lab"]
    told = CliRunner().invoke(command, line[2:])
    assert isinstance(told.exception, ValueError)
    assert str(told.exception) in failed["error"]

    plotted = CliRunner().invoke(
        command, ["plot", str(file), "--quick", "--folder", str(tmp_path / "a"), "--json"]
    )
    (figure,) = json.loads(plotted.stdout)["figures"]
    assert {"figure", "quick", "rows", "claims", "files"} <= set(figure)
    assert figure["quick"] is True
    assert len(figure["rows"]) == 3


def test_a_calibration_is_kept_and_a_charged_run_replays(
    spark: SparkSession, tmp_path: Path
) -> None:
    file = tmp_path / "charged.toml"
    text = TINY.replace('name = "tiny"', 'name = "charged"').replace("[50, 0]", "[0]")
    text = text.replace("fan_out = 1 }", "fan_out = 1, cpu_factor = 3, uplink_mbit = 10 }")
    file.write_text(text)
    experiment = read_experiment(text.encode(), "charged")
    first = run(spark, experiment, tmp_path, quick=True, called=str(file))
    parts = {path: path.read_bytes() for path in tmp_path.glob(f"charged/{CALIBRATION}/*")}
    assert parts
    for path in tmp_path.glob(f"charged/{ROWS}/*"):
        path.unlink()
    again = run(spark, experiment, tmp_path, quick=True, called=str(file))
    assert again.rows == first.rows  # What was measured is not measured again.
    assert {path: path.read_bytes() for path in parts} == parts
    (row,) = first.rows
    assert row["charged_send_us"] > 0
    assert row["delivery_ms"] > 50
    (kept,) = (each for each in results(tmp_path / "charged" / ROWS) if each.status == "ok")
    line = shlex.split(kept.replay)
    assert line[:2] == ["orderwire", "lab"]
    told = CliRunner().invoke(command, line[2:])
    assert json.loads(told.stdout) == json.loads(kept.result)


LONG = """
name = "long"
title = "Long enough to be killed"
paper = "none"
grid = { loss = [0.0, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07] }
base = { members = 8, fan_out = 3 }
full = { messages = 4000, warm_up = 0, seeds = 1 }
quick = { messages = 4000, warm_up = 0, seeds = 1 }
series = [{ label = "J", algorithm = "jang-delta" }]
picture = { x = "loss", x_label = "loss", panels = ["control_bytes"] }
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_sweep_that_was_stopped_goes_on_and_leaves_nobody_behind(
    tmp_path: Path, how: signal.Signals
) -> None:
    file = tmp_path / "long.toml"
    file.write_text(LONG)
    line = [sys.executable, "-m", "orderwire", "lab", "run", str(file)]
    line += ["--folder", str(tmp_path), "--master", "local[1]", "--json"]
    stopped = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    parts = tmp_path / "long" / ROWS
    try:
        _until(lambda: len(list(parts.glob("part-*.parquet"))) >= 2)
        started = _descendants(stopped.pid)
        assert len(started) >= 3  # Spark, the daemon of its workers, a worker, a row.
        stopped.send_signal(how)
        assert stopped.wait(60) == (130 if how == signal.SIGINT else -how)
    finally:
        stopped.kill()
        stopped.wait()
    _until(lambda: not any(Path(f"/proc/{pid}").is_dir() and _runs(pid) for pid in started))
    done = len(results(parts))
    assert 2 <= done < 8
    again = subprocess.run(line, capture_output=True, text=True, check=True, timeout=200)
    assert f"{done} of 8 rows are done already" in again.stderr
    (figure,) = json.loads(again.stdout)["figures"]
    assert (len(figure["rows"]), figure["failed"]) == (8, [])
    keys = [
        row["key"] for path in parts.glob("*.parquet") for row in pq.read_table(path).to_pylist()
    ]
    assert set(Counter(keys).values()) == {1}


def _until(true: Callable[[], bool]) -> None:
    for _ in range(1_200):
        if true():
            return
        time.sleep(0.1)
    raise AssertionError("waited two minutes for nothing")


def _descendants(pid: int) -> list[int]:
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, path.read_text().split()):
            found += [child, *_descendants(child)]
    return found


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


ELSEWHERE = """
import json, os, sys
from pathlib import Path
from orderwire.lab.config import run_spec
from orderwire.pipeline.session import SessionSettings, spark_session
from orderwire.pipeline.sweep import Work, sweep

def act(spec):
    import orderwire
    executor = Path(f"/proc/{os.getppid()}/stat").read_text().rsplit(")", 1)[1].split()[1]
    return json.dumps([executor, os.getcwd(), orderwire.__file__, run_spec(spec)])

if __name__ == "__main__":
    spec, folder, python = sys.argv[1:]
    with spark_session(SessionSettings(master="local-cluster[2,1,1024]")) as spark:
        spark.sparkContext.pythonExec = python
        work = [Work(key=f"k{at}", spec=spec) for at in range(6)]
        found = sweep(spark, work, act, Path(folder), limit_s=60)
        print(json.dumps([json.loads(each.result or repr(each.error)) for each in found]))
"""


@pytest.mark.timeout(900)
def test_executors_in_other_jvms_without_our_package_find_the_same(tmp_path: Path) -> None:
    python = tmp_path / "bare"
    venv.create(python, symlinks=True)
    (others,) = python.glob("lib/python*/site-packages")
    others.joinpath("others.pth").write_text(str(Path(pyspark.__file__).parents[1]))
    script = tmp_path / "elsewhere.py"
    script.write_text(ELSEWHERE)
    row = Row(config=Config(algorithm="jang-delta", members=3, messages=40), seed=1)
    spec = msgspec.json.encode(row).decode()
    told = subprocess.run(
        [sys.executable, script, spec, tmp_path / "cluster", python / "bin" / "python"],
        env={**os.environ, "SPARK_WORKER_DIR": str(tmp_path / "work")},
        capture_output=True,
        text=True,
        check=False,
        timeout=800,
    )
    assert not told.returncode, told.stderr[-2_000:]
    found = json.loads(told.stdout)
    assert len({executor for executor, _, _, _ in found}) == 2
    assert str(Path.cwd()) not in {folder for _, folder, _, _ in found}
    assert all(SHIPPED in file for _, _, file, _ in found)
    assert {result for _, _, _, result in found} == {run_spec(spec)}
