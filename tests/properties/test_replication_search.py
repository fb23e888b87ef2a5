"""Every order of events over the real replicas, for small partitions.  [S004:5.2]

What runs always is complete as well, with one message; two, one with acks=1 and one with acks=all,
run with `-m slow`, and `benchmarks/replication_models.py` prints their table.
"""

from random import Random
from typing import Any

import msgspec
import pytest
from replication_cores import CORES
from replication_scopes import searched, sending, writers

from orderwire.broker.replication.settings import Mode
from orderwire.sim.replication_disk import main_log
from orderwire.sim.replication_search import SEARCH_SETTINGS, Scope, Search, replay
from orderwire.verify.replication import Batch

MODES = list(Mode)
NAMES = [mode.value for mode in MODES]
LANES = Mode.ACTIVE_ACTIVE_LANES


def untimed(batches: tuple[Batch, ...]) -> list[Batch]:
    """What a log holds; a seal also says when it was made, which differs."""
    return [msgspec.structs.replace(b, digest=0) if b.seal else b for b in batches]


@pytest.mark.paper("S004:5.2")
@pytest.mark.parametrize("mode", MODES, ids=NAMES)
def test_without_a_fault_every_state_is_good(mode: Mode) -> None:
    found = searched(mode, writers(mode), slow_disks=True)
    assert found.violations == {}
    assert found.complete
    assert found.stuck == 0
    assert found.states > 100


@pytest.mark.paper("S004:5.2")
@pytest.mark.parametrize("mode", MODES, ids=NAMES)
@pytest.mark.parametrize("fault", ["crashes", "expiries"])
def test_with_a_fault_every_state_is_good(mode: Mode, fault: str) -> None:
    """One crash, or one expiry of the living original's session, anywhere."""
    found = searched(mode, sending(mode), **{fault: 1})
    assert found.violations == {}
    assert found.complete, found.states
    assert found.stuck == 0, found.stuck_steps


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mode", MODES, ids=NAMES)
@pytest.mark.parametrize(
    "faults",
    [{"crashes": 1}, {"expiries": 1}, {"power_failures": 1}, {"crashes": 1, "expiries": 1}],
    ids=["crash", "zombie", "power", "crash and zombie"],
)
def test_two_messages(mode: Mode, faults: dict[str, int]) -> None:
    found = searched(mode, writers(mode), states_max=400_000, **faults)
    print(f"{mode.value} {faults}: {found.states} states, complete: {found.complete}")
    assert found.violations == {}
    assert found.stuck <= 0, found.stuck_steps


def after(mode: Mode, told: str) -> Any:
    """Where a history leads that the search has told."""
    scope = Scope(producers=writers(mode), crashes=1)
    walk, breaches = replay(CORES[mode], SEARCH_SETTINGS, scope, told.split(", "))
    assert breaches == []
    return walk


def test_an_original_takes_no_log_once_it_has_taken_over() -> None:
    """It had asked a member for its log, which left the in-sync set; the answer came later."""
    told = (
        "send 0 0, send 1 0, crash 0 0, session_end 0 1, read 1 0, zk 1 0, read 1 0, wake 1 0,"
        " start 0 0, read 0 0, zk 1 0, deliver 1 0, read 0 0, deliver 1 0, deliver 0 1, read 1 0,"
        " deliver 0 1, deliver 1 0, deliver 1 0, deliver 0 1, deliver 0 1"
    )
    walk = after(LANES, told)
    while step := next((step for step, fault in walk.steps() if not fault), None):
        walk.take(step)
    assert walk.world.znodes.isr == (0, 1)
    assert walk.world.agreed_end() == walk.world.brokers[1].replica.high_watermark


def test_who_joins_hears_what_was_committed_meanwhile() -> None:
    """It had the log before the commit, and nothing more is produced."""
    told = (
        "send 0 0, deliver 0 1, deliver 0 1, deliver 1 0, crash 1 0, send 1 0, send 1 0,"
        " wake 0 0, start 1 0, zk 0 0, read 1 0, deliver 1 0, read 0 0"
    )
    walk = after(LANES, told)
    while step := next((step for step, fault in walk.steps() if not fault), None):
        walk.take(step)
    assert walk.world.znodes.isr == (0, 1)
    assert walk.world.agreed_end() == 2


@pytest.mark.parametrize("mode", MODES, ids=NAMES)
def test_replicas_that_remember_do_what_replicas_do(mode: Mode) -> None:
    scope = Scope(producers=writers(mode), crashes=2, expiries=2, breaks=2, hastened=4)
    search = Search(CORES[mode], SEARCH_SETTINGS, scope)
    search.begin()
    start = search.states.freeze(), list(search.budget)
    for seed in range(6):
        draw = Random(seed)
        search.states.thaw(start[0])
        search.budget[:] = start[1]
        told: list[str] = []
        for _ in range(60):
            steps = list(search.steps())
            if not steps:
                break
            step, _ = draw.choice(steps)
            told.append(f"{step[0]} {step[1]} {step[2]}")
            search.take(step)
        world, real = search.states, replay(CORES[mode], SEARCH_SETTINGS, scope, told)[0].world
        assert [each.replica is None for each in real.brokers] == [
            each.replica is None for each in world.brokers
        ]
        assert real.znodes.view() == world.znodes.view()
        assert list(real.pending) == list(world.pending)
        for one, two in zip(real.brokers, world.brokers, strict=True):
            assert untimed(main_log(one.storage)) == untimed(world.facts(two).held)
            if one.replica is not None and two.replica is not None:
                assert one.replica.high_watermark == two.replica.high_watermark
