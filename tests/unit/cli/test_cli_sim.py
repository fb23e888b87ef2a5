"""`orderwire sim`: verdicts, exit status, JSON, what a run leaves behind."""

import json
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from orderwire.cli.sim import command
from orderwire.sim.run import digest
from orderwire.trace import events_from_table, read_trace


def sim(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments)


def test_run_says_what_was_drawn_and_what_was_found() -> None:
    result = sim("run", "swarm", "--seed", "17")
    assert result.exit_code == 0
    assert "loss_ratio=" in result.output
    assert "VALID   causal-order" in result.output


def test_json_is_one_object_alone_on_stdout() -> None:
    result = sim("run", "s000-small", "--seed", "3", "--json")
    found = json.loads(result.stdout)
    assert found["verdict"] == "VALID"
    assert found["violations"]["causal-order"] == 0
    assert found["replay"].startswith("replay: orderwire sim replay s000-small --seed 3 ")


def test_the_control_group_shows_what_it_does_not_promise() -> None:
    found = json.loads(sim("run", "lossy", "--algorithm", "unordered", "--json").stdout)
    assert found["control"]["causal-order"] > 0
    assert found["verdict"] == "VALID"


def test_many_seeds_are_summed_up() -> None:
    found = json.loads(sim("run", "swarm-steady", "--seeds", "4", "--json").stdout)
    assert found["verdicts"] == {"VALID": 4}
    assert found["failed"] == []
    assert "4 seeds, 4 VALID" in sim("run", "swarm-steady", "--seeds", "4").output


def test_a_run_leaves_its_folder(tmp_path: Path) -> None:
    result = sim("run", "s000-small", "--seed", "5", "--out", str(tmp_path), "--json")
    folder = tmp_path / "s000-small" / "5"
    assert sorted(path.name for path in folder.iterdir()) == [
        "diagram.txt",
        "digest",
        "outcome.json",
        "replay",
        "settings.json",
        "trace.arrow",
        "verdict.json",
    ]
    kept = (folder / "digest").read_text().strip()
    assert kept == json.loads(result.stdout)["digest"]
    events = events_from_table(read_trace(folder / "trace.arrow"))
    ordered = sorted(events, key=lambda event: (event.process, event.position))
    assert len(digest(ordered)) == len(kept)
    assert len(events) == json.loads(result.stdout)["events"]


def test_replay_draws_the_run_and_records_its_inputs(tmp_path: Path) -> None:
    result = sim("replay", "s000-small", "--seed", "1", "--record", str(tmp_path))
    assert result.exit_code == 0
    assert "P0 ─" in result.output
    again = sim("replay", "--inputs", str(tmp_path / "2.jsonl"), "--json")
    found = json.loads(again.stdout)
    assert (found["me"], found["malformed"]) == (2, 0)
    assert found["indications"]


def test_scenario_files_run_too(tmp_path: Path) -> None:
    path = tmp_path / "tiny.toml"
    path.write_text('name = "tiny"\n[settings]\nmembers = 2\nlifetime_ns = 50_000_000\n')
    result = sim("run", str(path), "--seed", "2")
    assert result.exit_code == 0
    assert result.output.startswith("tiny\n")
    found = json.loads(sim("run", str(path), "--seed", "2", "--json").stdout)
    assert f"sim replay {path} --seed 2" in found["replay"]


def test_a_broken_promise_is_status_1_and_ends_with_its_replay(tmp_path: Path) -> None:
    """Clocks apart by 80 % of a lifetime, and an ε that says they agree."""
    path = tmp_path / "very careless.toml"
    path.write_text(
        'name = "careless"\n[settings]\nmembers = 4\nlifetime_ns = 10_000_000\n'
        "[workload]\nmessages = 150\ngap_mean_ns = 4_000_000\nfan_out = 2\n"
        "answer_ratio = 0.3\nanswers_max = 100\n"
        '[network.delay]\ntype = "Bimodal"\nnear_ns = 100_000\nfar_ns = 9_000_000\n'
        "far_ratio = 0.4\nspread_ns = 4_000_000\n"
        "[clocks]\nspread_ns = 8_000_000\n[liveness]\nrounds = 0\n"
    )
    result = sim("run", str(path), "--seeds", "8")
    assert result.exit_code == 1
    line = result.output.splitlines()[-1]
    assert line.startswith(f"replay: orderwire sim replay '{path}' --seed")
    words = shlex.split(line.removeprefix("replay: orderwire sim ").partition("   (")[0])
    again = sim(*words, "--out", str(tmp_path), "--json")
    assert again.exit_code == 1
    found = json.loads(again.stdout)
    assert found["replay"] == line
    assert (tmp_path / "careless" / str(found["seed"]) / "replay").read_text() == f"{line}\n"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("run", "nope"), "no scenario 'nope'; there are"),
        (("run", "swarm", "--seed", "1", "--seeds", "2"), "exclude each other"),
        (("replay", "swarm"), "--seed says which run"),
        (("replay",), "give either NAME and --seed, or --inputs"),
        (("replay", "churn", "--seed", "1", "--record", "x"), "without crashes"),
    ],
)
def test_wrong_use_is_status_2(arguments: tuple[str, ...], complaint: str) -> None:
    result = sim(*arguments)
    assert result.exit_code == 2
    assert complaint in result.output


def test_broken_inputs_are_wrong_use(tmp_path: Path) -> None:
    path = tmp_path / "broken.jsonl"
    path.write_bytes(b"nothing\n")
    result = sim("replay", "--inputs", str(path))
    assert result.exit_code == 2
    assert "broken.jsonl: line 1 is no header" in result.output


def test_list_names_every_scenario() -> None:
    assert "s000-small" in sim("list").output
    assert "swarm" in json.loads(sim("list", "--json").stdout)
