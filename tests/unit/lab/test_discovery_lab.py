"""The lab with protocols of discovery: configurations, refusals, claims and figures."""

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from orderwire.cli.lab import command
from orderwire.lab.claims import judge_claims
from orderwire.lab.config import Config, Row, code_version, run_row, run_spec
from orderwire.lab.discovery_config import PROTOCOLS, SDP, DiscoveryConfig
from orderwire.lab.experiment import Experiment, experiments, find_experiment, read_experiment
from orderwire.lab.picture import draw
from orderwire.lab.runs import plan
from orderwire.lab.table import Sample, tidy

TINY = """
name = "tiny"
title = "Tiny"
paper = "none"
family = "discovery"
base = { endpoint_bytes = 9 }
grid = { case = ["1-1", "1-2"] }
full = { seeds = 2 }
quick = { seeds = 1, grid = { case = ["1-1"] } }
series = [{ label = "F", algorithm = "fdp" }, { label = "M", algorithm = "mesh" }]
claims = [{ claim = "c", paper = "p", kind = "ratio", measure = "connections", left = "M", \
right = "F", least = 1.0 }]

[picture]
x = "case"
x_label = "case"
even = true
panels = [
  "max_s",
  { at = { case = "1-1" }, measures = ["hop1", "hop2"], x = "hops", title = "hops" },
]
"""


def tiny(old: str = "", new: str = "") -> Experiment:
    return read_experiment(TINY.replace(old, new, 1).encode(), "tiny")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('algorithm = "fdp"', 'algorithm = "fpd"', "names the protocol 'fpd'; there are sdp-paper"),
        ('algorithm = "fdp"', 'algorithm = "jang-delta"', "names the protocol 'jang-delta'"),
        ('"1-1", "1-2"', '"1-1", "3-1"', "case '3-1'; there are 1-1"),
        ("endpoint_bytes = 9", "members = 9", "is no experiment"),
        ("seeds = 2", "seeds = 2, messages = 5", "5 messages in a figure about discovery"),
        ("{ at =", '{ measure = "max_s", at =', "either a measure or several"),
        ('label = "M", algorithm = "mesh"', 'label = "M", algorithm = "sdp-paper", '
         "set = { updates = 2 }", "are measured of FDP and mesh"),
        ("endpoint_bytes = 9", 'streams = "solid"', "streams 'solid'"),
    ],
)  # fmt: skip
def test_bad_experiments_are_refused(old: str, new: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        tiny(old, new)


@pytest.mark.parametrize("algorithm", PROTOCOLS)
def test_every_protocol_measures_what_figures_show(algorithm: str) -> None:
    row = Row(config=DiscoveryConfig(algorithm=algorithm, participants=8, until_s=20.0), seed=1)
    spec = msgspec.json.encode(row).decode()
    assert msgspec.json.decode(spec, type=Row) == row
    found = json.loads(run_spec(spec))
    assert {"max_s", "max_both_up_s", "p50_s", "level1_s", "level2_s"} <= found.keys()
    assert {"pairs_missing", "reception_percent", "payload_mb", "sent"} <= found.keys()
    assert found["pairs_missing"] == 0 or algorithm.endswith("literal")
    assert 0 < found["p50_s"] < found["max_s"]
    if algorithm not in SDP and algorithm != "sdp-bloom":
        assert found["connections"] > 8
        assert {"kb_Maps", "kb_Pull"} <= found.keys()  # Also where nothing was asked for.


@pytest.mark.slow
def test_what_sdp_hangs_on_can_be_set() -> None:
    def run(**parameters: object) -> dict[str, float]:
        given = {"algorithm": "sdp-paper", "participants": 8, **parameters}
        return msgspec.convert(given, DiscoveryConfig).measure(1)

    base = run()
    assert run(repair_s=0.5)["max_s"] < 0.6 * base["max_s"]
    assert run(payload_bytes=260)["max_s"] > base["max_s"]
    assert run(per_datagram=8)["sent"] < base["sent"] / 2
    assert run(acknowledge_each=False)["sent"] < base["sent"]
    assert run(nack_numbers=256)["sent"] < base["sent"]
    slow = run(algorithm="sdp-modern", mbit=1000, service_us=100)
    assert (
        run(algorithm="sdp-modern", mbit=1000, service_us=100, receive_buffer=100_000)[
            "reception_percent"
        ]
        > slow["reception_percent"]
    )


def test_rows_of_both_families_are_told_apart() -> None:
    ordering = Row(config=Config(algorithm="unordered"), seed=1)
    discovery = Row(config=DiscoveryConfig(algorithm="fdp"), seed=1)
    for row in (ordering, discovery):
        again = msgspec.json.decode(msgspec.json.encode(row), type=Row)
        assert type(again.config) is type(row.config)
    assert ordering.name != discovery.name
    assert code_version("ordering") != code_version("discovery")


def test_dearer_runs_cost_more() -> None:
    def cost(**parameters: object) -> float:
        return msgspec.convert({"algorithm": "fdp", **parameters}, DiscoveryConfig).cost

    assert cost(algorithm="sdp-paper") > cost(algorithm="sdp-bloom")
    assert cost(mbit=10) > cost() > cost(participants=8)
    assert cost(upkeep=True) > cost(upkeep=True, gossip=True) > cost()


def test_upkeep_and_updates_take_the_place_of_the_boot() -> None:
    config = DiscoveryConfig(algorithm="fdp", participants=4, updates=1, window_s=0.1)
    found = run_row(Row(config=config, seed=1))
    assert found["update_messages"] == 3
    assert found["idle_messages_per_s"] == 0


def test_a_figure_of_cases_is_planned_judged_and_drawn(tmp_path: Path) -> None:
    experiment = tiny()
    planned = plan(experiment, tmp_path, quick=False, seeds=1)
    assert len({each.key for each in planned}) == 4
    samples = [
        Sample(
            series=each.series,
            algorithm=each.row.config.algorithm,
            point=each.point,
            seed=each.row.seed,
            measures=run_row(each.row),
        )
        for each in planned
    ]
    claims = judge_claims(experiment, samples)
    assert claims[0].holds is True
    assert claims[0].ours.startswith("case=1-1: 1.")
    figure = draw(experiment, tidy(samples), claims, experiment.full, 2, quick=False)
    cases, hops = figure.axes
    assert [each.get_text() for each in cases.get_xticklabels()] == ["1-1", "1-2"]
    assert hops.get_title(loc="left") == "hops"
    assert [list(line.lines[0].get_ydata()) for line in hops.containers][1] == [0, 0]  # The mesh.
    (below,) = (each for each in figure.texts if "seeds" in each.get_text())
    assert "messages" not in below.get_text()


def test_nothing_missing_is_drawn_as_none_of_one() -> None:
    experiment = tiny('"max_s"', '"pairs_missing"')
    samples = [
        Sample(
            series="F",
            algorithm="fdp",
            point={"case": "1-1"},
            seed=1,
            measures={"pairs_missing": 0.0},
        )
    ]
    figure = draw(experiment, tidy(samples), [], experiment.full, 1, quick=False)
    assert figure.axes[0].get_ylim() == (0, 1)


def test_no_empty_axes_are_left_and_a_logarithmic_axis_names_its_values() -> None:
    text = TINY.replace('case = ["1-1", "1-2"]', "participants = [8, 16]")
    text = (
        text.replace('case = ["1-1"]', "participants = [8]")
        .replace(
            'even = true\npanels = [\n  "max_s",',
            'log_x = true\ncolumns = 2\npanels = [\n  "max_s", "p50_s",',
        )
        .replace('x = "case"', 'x = "participants"')
        .replace('at = { case = "1-1" }, ', "")
    )
    experiment = read_experiment(text.encode(), "tiny")
    samples = [
        Sample(
            series="F",
            algorithm="fdp",
            point={"participants": n},
            seed=1,
            measures={"max_s": 1.0, "p50_s": 0.5, "hop1": 3.0, "hop2": 1.0},
        )
        for n in (8, 16)
    ]
    figure = draw(experiment, tidy(samples), [], experiment.full, 1, quick=False)
    assert [each.axison for each in figure.axes] == [True, True, True, False]
    assert [each.get_text() for each in figure.axes[0].get_xticklabels()] == ["8", "16"]


def test_replay_does_one_run_again(tmp_path: Path) -> None:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    first = plan(find_experiment(str(path)), tmp_path, quick=True, seeds=None)[0]
    line = ["replay", str(path), "--row", first.row.name, "--quick", "--folder", str(tmp_path)]
    told = CliRunner().invoke(command, line)
    assert json.loads(told.stdout) == run_row(first.row)


@pytest.mark.parametrize("name", [each for each in experiments() if each.startswith("s002")])
def test_figures_about_discovery_always_show_what_is_missing(name: str) -> None:
    experiment = find_experiment(name)
    shown = {panel.measure for panel in experiment.picture.each()}
    updates = "updates" in experiment.base
    assert updates or "pairs_missing" in shown
    judged = {claim.measure for claim in experiment.claims}
    assert updates or "pairs_missing" in judged
