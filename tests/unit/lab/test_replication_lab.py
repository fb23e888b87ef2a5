"""The lab with replicated partitions: configurations, refusals, claims."""

import json

import msgspec
import pytest

from orderwire.lab.config import FAMILIES, Row, code_version, run_spec
from orderwire.lab.experiment import Experiment, experiments, find_experiment, read_experiment
from orderwire.lab.models.s004 import TABLE_5, claimed_end_to_end, sigma_of
from orderwire.lab.replication_config import MODES, TEXT_MESSAGES, ReplicationConfig
from orderwire.sim.replication_timed import TimedResult

FIGURES = [name for name in experiments() if name.startswith("s004-")]
TINY = """
name = "tiny"
title = "Tiny"
paper = "none"
family = "replication"
base = { messages = 10 }
grid = { users = [2, 3] }
full = { seeds = 1 }
quick = { seeds = 1, grid = { users = [2] } }
series = [{ label = "S", algorithm = "active-standby" }, { label = "L", \
algorithm = "active-active-lanes", set = { acks = -1 } }]
picture = { x = "users", x_label = "users", panels = ["produce_s"] }
"""


def tiny(old: str = "", new: str = "") -> Experiment:
    return read_experiment(TINY.replace(old, new, 1).encode(), "tiny")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("active-active-lanes", "lanes", "names the mode 'lanes'; there are active-standby"),
        ("messages = 10", "members = 10", "is no experiment"),
        ("messages = 10", 'phase = "rest"', "phase 'rest'; there are produce"),
        ("messages = 10", 'flush = "never"', "flush 'never'"),
        ("messages = 10", "replicas = 1", "1 replicas; expected 2 … 16"),
        ("messages = 10", "partitions = 0", "0 partitions"),
        ("messages = 10", "acks = 2", "acks 2"),
        ("messages = 10", "scale = 1.5", r"scale 1\.5"),
        ("seeds = 1", "seeds = 1, messages = 5", "5 messages in a figure about replication"),
    ],
)
def test_bad_experiments_are_refused(old: str, new: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        tiny(old, new)


def test_the_text_is_the_papers() -> None:
    assert TEXT_MESSAGES == 1_524
    assert ReplicationConfig(algorithm="active-active", scale=0.1).plan().messages == 152


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("phase", ["produce", "consume", "both"])
def test_every_mode_measures_what_figures_show(mode: str, phase: str) -> None:
    config = ReplicationConfig(algorithm=mode, phase=phase, users=3, messages=8, acks=-1)
    spec = msgspec.json.encode(Row(config=config, seed=1)).decode()
    assert type(msgspec.json.decode(spec, type=Row).config) is ReplicationConfig
    found = json.loads(run_spec(spec))
    assert found["produce_s"] > 0
    assert 0 < found["disk_share"] <= 1
    assert (found["consume_s"] > 0) == (phase != "produce")
    if phase == "both":
        assert found["end_s"] == max(found["produce_s"], found["consume_s"])


def test_measures_are_of_the_busiest_broker() -> None:
    config = ReplicationConfig(algorithm="active-active", users=2, messages=50)
    busy = [{"client": 10, "relay": 5, "alone": 30, "together": 20}, {"alone": 0, "together": 60}]
    found = config.measures(
        TimedResult(
            produce_ns=2_000_000_000,
            commit_ns=100,
            consume_ns=0,
            read_ns=0,
            answer_ns=1_500_000,
            rounds=3,
            busy_ns=busy,
            stored=[1, 1],
            moved=[150, 250],
            events=9,
        )
    )
    assert (found["processor_share"], found["disk_share"]) == (0.15, 0.6)
    assert found["moved"] == 2.5
    assert (found["messages_per_s"], found["answer_ms"]) == (50, 1.5)


@pytest.mark.paper("S004:eq.1")
@pytest.mark.paper("S004:eq.2")
@pytest.mark.parametrize("replicas", [2, 3])
def test_equations_beside_what_replicas_do(replicas: int) -> None:
    """[S004:eq.1] [S004:eq.2] (1) is what a standby does; (2) leaves out half the messages, a
    replica's own share of storing, and the relay."""
    n, m = replicas, 12 * replicas
    found = ReplicationConfig(
        algorithm="active-active",
        replicas=n,
        users=1,
        messages=m,
        phase="equations",
        sigma=1.0,
        rho=1.0,
        sync_s=60.0,
    ).measure(1)
    assert found["as_ratio"] == pytest.approx(1, abs=0.02)
    assert found["aa_storing_ms"] == m * 2.0
    assert found["aa_messages_ms"] == pytest.approx(2 * found["aa_messages_equation_ms"], rel=0.2)
    assert found["relay_ratio"] == pytest.approx(1, abs=0.05)
    assert abs(found["gain_share"]) < 0.02


@pytest.mark.parametrize(
    ("series", "gain"),
    [
        ({"algorithm": "active-active", "sync_s": 0.2}, 2 / 1.5),
        ({"algorithm": "active-standby", "acks": -1, "flush": "group"}, 1.66),
    ],
)
def test_gains_are_over_active_standby_that_stores_one_by_one(
    series: dict[str, object], gain: float
) -> None:
    given = {"users": 5, "messages": 200, "phase": "gain", **series}
    found = msgspec.convert(given, ReplicationConfig).measure(1)
    assert found["gain"] == pytest.approx(gain, rel=0.06)
    assert found["model"] == pytest.approx(2 / 1.25)
    assert found["gain_over_own_share"] == pytest.approx(found["gain"] / (2 / 1.5))
    assert found["sigma_seen"] == pytest.approx(sigma_of(2, found["gain"]))


@pytest.mark.parametrize(
    ("series", "times"),
    [
        ({"algorithm": "active-standby"}, 3),
        ({"algorithm": "active-standby", "partitions": 3}, 1 + 2 / 3),
        ({"algorithm": "active-active"}, 3),
        ({"algorithm": "active-active-lanes", "acks": -1, "eager": True}, 1 + 2 / 3),
    ],
)
def test_how_often_the_busiest_network_carries_a_message(
    series: dict[str, object], times: float
) -> None:
    given = {"replicas": 3, "users": 6, "messages": 20, "phase": "gain", **series}
    found = msgspec.convert(given, ReplicationConfig).measure(1)
    assert found["moved"] == pytest.approx(times, rel=0.02)
    assert found["moved_ratio"] == pytest.approx(1, rel=0.02)


def test_claims_are_the_papers_numbers() -> None:
    """[S004:tab.5] Each ratio of the table is judged within a tenth; so are their means."""
    table = find_experiment("s004-table5")
    judged = {(claim.at["users"], claim.measure): claim for claim in table.claims}
    for users, ratios in TABLE_5.items():
        for measure, ratio in zip(("produce_s", "consume_s"), ratios, strict=True):
            claim = judged[users, measure]
            assert float(claim.paper) == ratio
            assert (claim.least, claim.most) == pytest.approx((0.9 * ratio, 1.1 * ratio), abs=1e-3)
    ends = {claim.at["users"]: claim for claim in find_experiment("s004-fig6").claims if claim.at}
    for users, mean in claimed_end_to_end().items():
        assert float(ends[users].paper) == pytest.approx(mean, abs=0.01)


def test_what_sigma_a_gain_means() -> None:
    assert sigma_of(2, 4 / 3) == pytest.approx(0.5)


def test_dearer_runs_cost_more() -> None:
    def cost(**parameters: object) -> float:
        given = {"algorithm": "active-standby", **parameters}
        return msgspec.convert(given, ReplicationConfig).cost

    assert cost(phase="both") > cost() > cost(phase="consume") > cost(phase="consume", scale=0.1)
    assert cost(replicas=5) > cost()


def test_the_family_has_its_own_fingerprint() -> None:
    assert len({code_version(family) for family in FAMILIES}) == len(FAMILIES)
    assert len(FIGURES) == 6
