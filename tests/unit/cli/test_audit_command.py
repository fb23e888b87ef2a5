"""`orderwire audit`: its shapes, its exit status, and that it needs neither Spark nor Java."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from orderwire.cli.audit import command
from orderwire.trace.reader import write_trace
from orderwire.verify.discovery_synthetic import DomainSettings, synthetic_domain
from orderwire.verify.synthetic import Faults, SyntheticSettings, synthetic_table


def trace(path: Path, *, delayed: float = 0.0, algorithm: str = "jang-delta") -> str:
    made = SyntheticSettings(
        events=2_000,
        members=5,
        fan_out=2,
        faults=Faults(delayed=delayed, lost=0.01),
        algorithm=algorithm,
    )
    write_trace(path, synthetic_table(made))
    return str(path)


def test_valid_trace_exits_0(tmp_path: Path) -> None:
    told = CliRunner().invoke(command, [trace(tmp_path / "t.parquet"), "--json"])
    assert told.exit_code == 0
    report = json.loads(told.stdout)
    assert report["verdict"] == "VALID"
    checks = {check["id"]: check for check in report["checks"]}
    assert set(checks) == {"W1", "C1", "C2", "O1", "O2"}
    assert checks["O1"]["verdict"] == "VALID"
    assert checks["O1"]["violations"] == 0
    assert checks["O1"]["examples"] == []


def test_broken_order_exits_1_with_evidence(tmp_path: Path) -> None:
    file = tmp_path / "violations.parquet"
    source = trace(tmp_path / "t.arrow", delayed=0.05)
    told = CliRunner().invoke(command, [source, "--json", "--violations", str(file)])
    assert told.exit_code == 1
    report = json.loads(told.stdout)
    assert report["verdict"] == "INVALID"
    (order,) = (check for check in report["checks"] if check["id"] == "O1")
    assert order["violations"] > len(order["examples"]) == 5
    assert {"process", "position", "source", "number", "witness_number"} <= set(
        order["examples"][0]
    )
    rows = pq.read_table(file).to_pylist()
    assert sum(row["check"] == "O1" for row in rows) == order["violations"]


def test_a_folder_and_a_table_for_people(tmp_path: Path) -> None:
    trace(tmp_path / "a.parquet", delayed=0.05, algorithm="unordered")
    told = CliRunner().invoke(command, [str(tmp_path)])
    assert told.exit_code == 0
    assert "not promised" in told.stdout
    assert "VALID: 1 run(s)" in told.stdout
    expected = CliRunner().invoke(command, [str(tmp_path), "--expect", "jang-delta"])
    assert expected.exit_code == 1


@pytest.mark.parametrize("name", ["no/such/folder", "topic@nowhere", "README.md"])
def test_what_is_no_source_exits_2_and_says_why(name: str, tmp_path: Path) -> None:
    if name == "README.md":
        path = tmp_path / name
        path.write_text("no trace, a text")
        name = str(path)
    told = CliRunner().invoke(command, [name])
    assert told.exit_code == 2
    assert name in told.stderr


def test_an_empty_folder_and_another_table_of_a_lake_are_refused(tmp_path: Path) -> None:
    assert "no trace in" in CliRunner().invoke(command, [str(tmp_path)]).stderr
    (tmp_path / "metrics" / "_delta_log").mkdir(parents=True)
    told = CliRunner().invoke(command, [str(tmp_path / "metrics")])
    assert told.exit_code == 2
    assert "holds no trace" in told.stderr


def test_the_local_engine_imports_no_spark(tmp_path: Path) -> None:
    source = trace(tmp_path / "t.parquet")
    script = (
        "import sys; from orderwire.cli.audit import command;"
        f"command([{source!r}, '--json'], standalone_mode=False);"
        "sys.exit(3 if 'pyspark' in sys.modules else 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()


def test_discovery_is_told_over_time_by_hops_and_by_message(tmp_path: Path) -> None:
    path = tmp_path / "domain.parquet"
    write_trace(path, synthetic_domain(DomainSettings(participants=8, run_id="d")))
    told = CliRunner().invoke(command, [str(path)])
    assert told.exit_code == 0
    text = " ".join(told.stdout.split())
    assert "pairs missing over time: " in text
    assert "/56" in text, "of the pairs that are there"
    assert "age of evidence: " in text
    assert "broadcasts heard after hops: 1: " in text
    assert "messages of discovery" in text
