"""The lab on real Spark: resume, isolation, the same table twice."""

import json
import os
import shlex
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from orderwire.cli.lab import command
from orderwire.lab.experiment import read_experiment
from orderwire.lab.runs import run
from orderwire.pipeline.sweep import Result, Work, results, run_apart, sweep

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
