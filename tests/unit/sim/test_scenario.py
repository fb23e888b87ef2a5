"""Scenarios: read from files, refused when senseless; the named ones keep their promise."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from orderwire.kernel import ms
from orderwire.ordering.settings import OrderingSettings
from orderwire.sim.delays import Constant, Exponential
from orderwire.sim.host import Computation
from orderwire.sim.network import NetworkSettings
from orderwire.sim.run import simulate
from orderwire.sim.scenario import (
    Crash,
    Faults,
    Liveness,
    Partition,
    Scenario,
    ScriptedSend,
    Workload,
    read_scenario,
)
from orderwire.sim.scenarios import SCENARIOS, find_scenario
from orderwire.sim.swarm import drawn
from orderwire.trace.events import EventKind
from orderwire.verify.verdict import Verdict

SETTINGS = OrderingSettings(members=3, lifetime_ns=ms(50))


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_survives_its_encoding(name: str) -> None:
    scenario = drawn(SCENARIOS[name], 5)
    assert msgspec.json.decode(msgspec.json.encode(scenario), type=Scenario) == scenario


def test_a_scenario_is_read_from_toml_and_json(tmp_path: Path) -> None:
    scenario = SCENARIOS["partition"]
    toml, json = tmp_path / "mine.toml", tmp_path / "mine.json"
    json.write_bytes(msgspec.json.encode(scenario))
    toml.write_text(
        'name = "mine"\nalgorithm = "fifo"\n[settings]\nmembers = 2\n'
        '[network.delay]\ntype = "Uniform"\nlow_ns = 1\nhigh_ns = 5\n'
    )
    assert find_scenario(str(json)) == scenario
    assert read_scenario(toml).algorithm == "fifo"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('name = "x"\nsetings = 1', "mine.toml is no scenario"),
        ('name = "x"\n[settings]\nmembers = 2\n[network]\nloss_ratio = 2.0', "no probability"),
    ],
)
def test_a_file_that_is_no_scenario_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=complaint):
        read_scenario(path)


def test_an_unknown_name_lists_what_there_is() -> None:
    with pytest.raises(ValueError, match="no scenario 'nope'; there are s000-small"):
        find_scenario("nope")


@pytest.mark.parametrize(
    ("parts", "complaint"),
    [
        ({"faults": Faults(crashes=(Crash(process=3, at_ns=0),))}, "names process 3"),
        ({"workload": Workload(own_lifetime_ratio=0.5)}, "jang-delta gives all messages one"),
        (
            {"faults": Faults(crashes=(Crash(process=1, at_ns=5, restart_ns=4),))},
            "restarts before it crashes",
        ),
        (
            {"faults": Faults(partitions=(Partition(start_ns=2, end_ns=1, side=(0,)),))},
            "ends before it starts",
        ),
        ({"workload": Workload(fan_out=3)}, "fan_out=3 in a group of 3"),
    ],
)
def test_contradictions_are_refused(parts: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Scenario(name="x", settings=SETTINGS, **parts)


def test_a_healed_phase_that_demands_the_impossible_is_refused() -> None:
    base = Scenario(name="x", settings=SETTINGS, workload=Workload(messages=1))
    slow = replace(base, liveness=Liveness(delay=Constant(delay_ns=ms(51))))
    with pytest.raises(ValueError, match="nothing need be delivered"):
        simulate(slow, 1)
    endless = replace(base, liveness=Liveness(delay=Exponential(offset_ns=0, mean_ns=1)))
    with pytest.raises(ValueError, match="no longest value"):
        simulate(endless, 1)


def test_script_decides_who_sends_what_when() -> None:
    """The relay's answer waits at process 2 for the question, which takes the long way."""
    scenario = Scenario(
        name="relay",
        settings=replace(SETTINGS, tick_ns=1),
        workload=Workload(
            messages=0,
            script=(
                ScriptedSend(at_ns=100, source=0, destinations=(1, 2), payload=b"question"),
                ScriptedSend(at_ns=200, source=1, destinations=(2,), payload=b"answer"),
            ),
        ),
        network=NetworkSettings(
            delay=Constant(delay_ns=10),
            links=msgspec.convert(
                [{"source": 0, "to": 2, "delay": {"type": "Constant", "delay_ns": 5_000}}],
                type=NetworkSettings.__annotations__["links"],
            ),
        ),
        liveness=Liveness(rounds=0),
    )
    delivered = {
        algorithm: [
            (event.time_ns, event.source, event.arrived_ns)
            for event in simulate(replace(scenario, algorithm=algorithm), 1).events
            if event.kind is EventKind.DELIVER and event.process == 2
        ]
        for algorithm in ("unordered", "jang-delta")
    }
    assert delivered["unordered"] == [(210, 1, 210), (5_100, 0, 5_100)]
    assert delivered["jang-delta"] == [(5_100, 0, 5_100), (5_100, 1, 210)]


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name != "s000-reordering"])
def test_named_scenarios_keep_their_promise(name: str) -> None:
    scenario = SCENARIOS[name]
    small = replace(scenario, workload=replace(scenario.workload, messages=30, answers_max=10))
    run = simulate(small, 2)
    assert run.verdict is Verdict.VALID, run.replay_line


def test_computation_delays_deliveries_and_keeps_the_promise() -> None:
    """Every copy takes 10 ms, and 1 ms of computation at its end, or more in a queue."""
    scenario = replace(
        SCENARIOS["funnel"],
        workload=Workload(messages=80, gap_mean_ns=ms(30)),
        network=NetworkSettings(delay=Constant(delay_ns=ms(10))),
        computation=Computation(input_ns=ms(1)),
        liveness=Liveness(rounds=0),
    )
    run = simulate(scenario, 1)
    assert run.verdict is Verdict.VALID, run.judgement.why()
    sent = {(e.source, e.number): e.time_ns for e in run.events if e.kind is EventKind.SEND}
    delays = [
        event.time_ns - sent[event.source, event.number]
        for event in run.events
        if event.kind is EventKind.DELIVER
    ]
    assert min(delays) == ms(11)
    assert max(delays) > ms(11)
    hasty = replace(scenario, computation=Computation(input_ns=ms(60), lag_max_ns=0))
    assert "after its deadline" in simulate(hasty, 1).judgement.why()


def test_a_run_without_messages_is_not_called_valid() -> None:
    run = simulate(
        Scenario(
            name="idle",
            settings=SETTINGS,
            workload=Workload(messages=0),
            liveness=Liveness(rounds=0),
        ),
        1,
    )
    assert run.verdict is Verdict.UNKNOWN


def test_scripted_and_drawn_lifetimes_are_in_the_trace() -> None:
    """Until the faults are over: what is sent afterwards must be delivered everywhere."""
    script = (
        ScriptedSend(at_ns=0, source=0, destinations=(1,), lifetime_ns=ms(7)),
        ScriptedSend(at_ns=1, source=0, destinations=(1,), lifetime_ns=SETTINGS.lifetime_ns),
        ScriptedSend(at_ns=2, source=0, destinations=(1,)),
    )
    scenario = Scenario(
        name="own",
        algorithm="rodrigues-deadline",
        settings=SETTINGS,
        workload=Workload(messages=200, own_lifetime_ratio=0.5, script=script),
    )
    run = simulate(scenario, 1)
    lives = [event.lifetime_ns for event in run.events if event.kind is EventKind.SEND]
    assert lives.count(ms(7)) == 1
    own = [life for life in lives if life is not None]
    assert 70 < len(own) < 130
    assert all(0 < life < ms(50) and life % SETTINGS.tick_ns == 0 for life in own)
    healed = scenario.liveness.rounds * SETTINGS.members
    assert lives[-healed:] == [None] * healed
    assert run.verdict is Verdict.VALID, run.judgement.why()
