"""Experiments, intervals and claims."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from orderwire.cli.lab import command
from orderwire.kernel import ms
from orderwire.lab.claims import judge_claims
from orderwire.lab.config import Config, Row, run_row
from orderwire.lab.experiment import Claim, experiments, find_experiment, read_experiment
from orderwire.lab.runs import plan
from orderwire.lab.table import Sample, mean_of, tidy
from orderwire.ordering.catalog import algorithm
from orderwire.ordering.settings import OrderingSettings
from orderwire.sim.delays import Constant
from orderwire.sim.host import Computation
from orderwire.sim.measure import Plan, measure
from orderwire.sim.network import NetworkSettings
from orderwire.sim.scenario import ScriptedSend, Workload

TINY = """
name = "tiny"
title = "Tiny"
paper = "none"
grid = { members = [3, 4] }
full = { messages = 40, warm_up = 10, seeds = 2 }
quick = { messages = 20, warm_up = 0, seeds = 1 }
series = [{ label = "J", algorithm = "jang-delta" }, { label = "U", algorithm = "unordered" }]
picture = { x = "members", x_label = "n", panels = ["control_bytes"] }
claims = [{ claim = "c", paper = "p", kind = "ratio", measure = "control_bytes", left = "J", \
right = "U", least = 1.0 }]
"""


@pytest.mark.parametrize("name", experiments())
def test_every_experiment_loads(name: str) -> None:
    assert find_experiment(name).name == name


def test_all_algorithms_meet_the_same_seeds(tmp_path: Path) -> None:
    planned = plan(read_experiment(TINY.encode(), "tiny"), tmp_path, quick=False, seeds=None)
    assert len({each.key for each in planned}) == len(planned) == 8
    assert {each.row.seed for each in planned if each.series == "J"} == {1, 2}
    first = [run_row(each.row) for each in planned if each.point["members"] == 3]
    assert first[0]["copies"] == first[2]["copies"]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("jang-delta", "jung-delta", "names the algorithm 'jung-delta'"),
        ('left = "J"', 'left = "K"', "names the series 'K'"),
        ("members = [3, 4]", 'members = ["x"]', "is no experiment"),
        ("members = [3, 4]", "memberz = [3]", "is no experiment"),
    ],
)
def test_bad_experiments_are_refused(old: str, new: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read_experiment(TINY.replace(old, new).encode(), "tiny")


def test_interval_is_students() -> None:
    found = mean_of([1.0, 2.0, 3.0])
    assert found.mean == 2.0
    assert found.half == pytest.approx(4.3027 * 1.0 / 3**0.5, rel=1e-4)


def samples(left: float) -> list[Sample]:
    return [
        Sample(
            series=label,
            algorithm="a",
            point={"members": n},
            seed=seed,
            measures={"control_bytes": value * n},
        )
        for label, value in (("J", left), ("U", 2.0))
        for n in (3, 4)
        for seed in (1, 2)
    ]


def test_claims_are_judged_from_the_results() -> None:
    experiment = read_experiment(TINY.encode(), "tiny")
    assert judge_claims(experiment, samples(3.0))[0].holds is True
    assert judge_claims(experiment, samples(1.0))[0].holds is False
    assert judge_claims(experiment, [])[0].holds is None
    row = tidy(samples(3.0))[0]
    assert (row["series"], row["members"], row["seeds"]) == ("J", 3, 2)


@pytest.mark.parametrize("has_it", [0, 1])
def test_a_measure_that_some_runs_lack_is_that_of_the_others(has_it: int) -> None:
    runs = [
        Sample(series="J", algorithm="a", point={}, seed=seed, measures={"slots": 1.0})
        for seed in (0, 1)
    ]
    runs[has_it].measures["pause_slots"] = 7.0
    (row,) = tidy(runs)
    assert (row["slots"], row["pause_slots"], row["pause_slots_ci"]) == (1.0, 7.0, None)


def test_growth_is_a_power() -> None:
    experiment = read_experiment(TINY.encode(), "tiny")
    claim = Claim(
        claim="g",
        paper="p",
        kind="growth",
        measure="control_bytes",
        left="J",
        least=0.99,
        most=1.01,
    )
    assert judge_claims(replace(experiment, claims=[claim]), samples(3.0))[0].holds is True


@pytest.mark.paper("S000:fig.4")
@pytest.mark.parametrize(
    ("algorithm", "lifetime_ms", "expected"),
    [
        ("raynal-schiper-toueg", 0, 1600),
        ("kshemkalyani-singhal", 0, 532),
        ("prakash-raynal-singhal", 250, 404),
        ("kshemkalyani-singhal", 250, 338),
        ("jang-delta", 250, 346),
    ],
)
def test_sizes_are_those_of_the_specification(
    algorithm: str, lifetime_ms: float, expected: float
) -> None:
    config = Config(
        algorithm=algorithm,
        lifetime_ms=lifetime_ms,
        send_empty_entries=True,
        messages=2_000,
        warm_up=500,
    )
    assert run_row(Row(config=config, seed=1))["printed_bytes"] == pytest.approx(expected, rel=0.06)


@pytest.mark.paper("S000:fig.5")
def test_exact_algorithms_deliver_at_the_same_times() -> None:
    def delivery(algorithm: str) -> float:
        config = Config(algorithm=algorithm, members=8, messages=200)
        return run_row(Row(config=config, seed=3))["delivery_ms"]

    names = ("jang-delta", "bounded-jang", "kshemkalyani-singhal", "raynal-schiper-toueg")
    assert len({delivery(name) for name in names}) == 1


def test_uplink_and_computation_make_delivery_later() -> None:
    free = Config(algorithm="jang-delta", members=6, messages=100, fan_out=0)
    charged = replace(free, uplink_mbit=10, cpu_factor=20, cpu_send_us=40, cpu_receive_us=30)
    cheap, dear = (run_row(Row(config=each, seed=1)) for each in (free, charged))
    assert dear["delivery_ms"] > cheap["delivery_ms"] + 2 * 0.8
    assert dear["busy_share"] > 0
    assert (dear["charged_send_us"], dear["charged_receive_us"]) == (800, 600)


def test_a_send_and_a_copy_received_take_what_is_charged_for_them() -> None:
    delay_ns, send_ns, receive_ns = ms(20), 7_000, 3_000
    plan = Plan(
        settings=OrderingSettings(members=3),
        workload=Workload(
            messages=0,
            script=tuple(
                ScriptedSend(
                    at_ns=ms(100 * at), source=at, destinations=((at + 1) % 3, (at + 2) % 3)
                )
                for at in range(3)
            ),
        ),
        network=NetworkSettings(delay=Constant(delay_ns=delay_ns)),
        computation=Computation(submit_ns=send_ns, input_ns=receive_ns),
    )
    sums = measure(plan, algorithm("unordered"), 1)
    assert (sums.messages, sums.delivered) == (3, 6)
    assert sums.busy_ns == 3 * send_ns + 6 * receive_ns  # However many copies a send has.
    assert sums.delivery_ns == 6 * (send_ns + delay_ns + receive_ns)


def test_a_charge_that_nobody_measured_is_refused() -> None:
    config = Config(algorithm="jang-delta", members=3, messages=10, cpu_factor=2)
    assert config.uncalibrated
    assert not config.rehearsal().uncalibrated
    with pytest.raises(ValueError, match="has not been measured"):
        run_row(Row(config=config, seed=1))


def test_more_grids_take_the_first_of_what_they_leave_out() -> None:
    text = TINY.replace(
        "grid = { members = [3, 4] }",
        "grid = { members = [4, 3], loss = [0.0] }\nalso = [{ loss = [0.1] }]",
    )
    points = [point for _, point, _ in read_experiment(text.encode(), "t").points(quick=True)]
    assert points[::2] == [
        {"members": 4, "loss": 0.0},
        {"members": 3, "loss": 0.0},
        {"members": 4, "loss": 0.1},
    ]
    with pytest.raises(ValueError, match="does not have skew_ms"):
        read_experiment(text.replace("{ loss = [0.1] }", "{ skew_ms = [1] }").encode(), "t")


def test_a_parameter_follows_the_grid() -> None:
    text = TINY.replace(
        'label = "J", algorithm = "jang-delta"',
        'label = "J", algorithm = "bounded-jang", follow = { floor_cap = "members" }',
    )
    points = list(read_experiment(text.encode(), "t").points(quick=True))
    assert [config.floor_cap for _, _, config in points if config.floor_cap] == [3, 4]


def test_list_tells_names_from_titles() -> None:
    told = CliRunner().invoke(command, ["list"]).output
    assert [line.split()[0] for line in told.splitlines()] == list(experiments())


def test_list_is_json() -> None:
    told = CliRunner().invoke(command, ["list", "--json"])
    assert set(json.loads(told.stdout)) == set(experiments())
    assert CliRunner().invoke(command, ["plot", "nothing"]).exit_code == 2


def test_a_claim_names_points_by_what_is_unusual_about_them() -> None:
    experiment = read_experiment(TINY.encode(), "tiny")
    points = [{"members": 3, "loss": 0}, {"members": 4, "loss": 0}, {"members": 3, "loss": 0.1}]
    found = [
        Sample(series=label, algorithm="a", point=point, seed=1, measures={"control_bytes": value})
        for point in points
        for label, value in (("J", 4.0), ("U", 2.0))
    ]
    assert judge_claims(experiment, found)[0].ours == "as noted: 2, members=4: 2, loss=0.1: 2"


def test_the_load_does_not_fade_while_it_is_measured() -> None:
    """A window of fewer messages than there are processes sees the sizes of a long one."""
    config = Config(algorithm="jang-delta", members=100, lifetime_ms=50, gap_ms=50, warm_up=400)
    short, long = (
        run_row(Row(config=replace(config, messages=messages), seed=2)) for messages in (80, 800)
    )
    assert short["copies"] == 3 * 80
    assert short["control_bytes"] == pytest.approx(long["control_bytes"], rel=0.15)
