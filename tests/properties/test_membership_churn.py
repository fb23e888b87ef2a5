"""Members that join, leave and restart, again and again, under drawn schedules."""

from collections import Counter

import pytest
from msgspec.structs import replace

from orderwire.sim.run import Run, simulate
from orderwire.sim.scenario import Scenario
from orderwire.sim.scenarios import SCENARIOS
from orderwire.sim.swarm import drawn
from orderwire.trace.events import Event, EventKind
from orderwire.verify.verdict import Verdict

CHURN = SCENARIOS["swarm-churn"]
CI_RUNS = 500
NIGHTLY_RUNS = 10_000
STEP = 50
"""Runs per test."""


def former_lives(events: list[Event]) -> list[str]:
    """Return every delivery of what belongs to another life, from the definition.

    A process that has lived before is handed nothing that was sent before its present life began.
    None is handed anything of a life of the sender earlier than one it was handed something of.
    """
    life: Counter[int] = Counter()
    began_ns: dict[int, int] = {}
    sent: dict[tuple[int, int], tuple[int, int]] = {}
    newest: dict[tuple[int, int], int] = {}
    found = []
    for event in events:
        process = event.process
        if event.kind is EventKind.START:
            life[process] += 1
            began_ns[process] = event.time_ns
            newest = {ends: of for ends, of in newest.items() if ends[0] != process}
        elif event.kind is EventKind.SEND:
            sent[process, event.number] = (life[process], event.time_ns)
        elif event.kind is EventKind.DELIVER and event.source != process:
            of, sent_ns = sent[event.source, event.number]
            what = f"{event.source}/{event.number} at {process}, {event.time_ns} ns"
            if life[process] > 1 and sent_ns < began_ns[process]:
                found.append(f"{what}: sent before the life of {process} began")
            if of < newest.get((process, event.source), 0):
                found.append(f"{what}: of an earlier life of {event.source}")
            newest[process, event.source] = of
    return found


def churned(seed: int, scenario: Scenario = CHURN) -> Run:
    run = simulate(scenario, seed)
    assert run.verdict is Verdict.VALID, f"{run.judgement.why()}\n{run.replay_line}"
    found = former_lives(run.events)
    assert not found, f"{found[:3]}\n{run.replay_line}"
    return run


@pytest.mark.parametrize("first", range(0, CI_RUNS, STEP))
def test_order_is_kept_and_no_life_is_handed_what_was_anothers(first: int) -> None:
    probes: Counter[str] = Counter()
    delivered = stale = 0
    for seed in range(first, first + STEP):
        run = churned(seed)
        probes += run.probes
        delivered += sum(event.kind is EventKind.DELIVER for event in run.events)
        stale += run.counts.stale
    assert delivered > 100 * STEP
    assert stale > STEP
    for probe in ("joined", "restarted", "crashed"):
        assert probes[f"sim: process {probe}"] > STEP // 4, probes


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_nightly_churn() -> None:
    for seed in range(CI_RUNS, NIGHTLY_RUNS):
        churned(seed)


@pytest.mark.parametrize("bound", [{"floor_cap": 1}, {"tag_bytes_max": 16}])
def test_bounds_change_nothing_of_it(bound: dict[str, int]) -> None:
    bounded = replace(CHURN, settings=replace(CHURN.settings, **bound))
    for seed in range(60):
        churned(seed, bounded)


def test_without_quarantine_order_breaks() -> None:
    """A restarted process that sends at once overtakes what its earlier life had caused."""
    found: Counter[str] = Counter()
    for seed in range(400):
        run = simulate(_without_quarantine(seed), seed)
        for check in run.judgement.checks:
            found[check.id] += bool(check.violations)
        if found["causal-order"]:
            break
    assert found["causal-order"], found


def _without_quarantine(seed: int) -> Scenario:
    scenario = drawn(CHURN, seed)
    return replace(scenario, faults=replace(scenario.faults, quarantine=False))


def test_datagrams_that_name_no_life_are_handed_to_the_wrong_one() -> None:
    for seed in range(40):
        scenario = drawn(CHURN, seed)
        network = replace(scenario.network, incarnations=False)
        if former_lives(simulate(replace(scenario, network=network), seed).events):
            return
    raise AssertionError("the check finds nothing where there must be something")
