"""Faults that come in the middle of work, and bits that flip in a stored log.  [S004:4.5, 9.10]

Drawn at any time, a fault rarely meets anything: clients are done in a tenth of the span.  Here
each waits for the k-th event of a kind: a request, a copy, a round, an election, a change of the
in-sync set, a fetch, a sync.
"""

from collections import Counter

import pytest
from replication_cores import CORES
from replication_shapes import aimed_run, drawn_run, judged

from orderwire.broker.replication.settings import Mode
from orderwire.sim.replication_moments import KINDS
from orderwire.sim.replication_run import Faults, ReplicationRun, RunSettings

MODES = list(Mode)
NAMES = [mode.value for mode in MODES]


def lived(mode: Mode, seeds: range) -> Counter[str]:
    """Faults of these lives: how many, how many met work, and what."""
    seen: Counter[str] = Counter()
    for seed in seeds:
        outcome = judged(CORES[mode], aimed_run(seed, mode), seed)
        seen["faults"] += len(outcome.faults)
        seen["met"] += outcome.met
        seen["lives"] += outcome.met > 0
        for _, work in outcome.faults:
            seen.update(work)
    return seen


@pytest.mark.paper("S004:I8")
@pytest.mark.parametrize("mode", MODES, ids=NAMES)
@pytest.mark.parametrize("first", range(0, 9, 3))
def test_promises_are_kept_when_faults_meet_work(mode: Mode, first: int) -> None:
    seen = lived(mode, range(first, first + 3))
    assert seen["met"] >= 0.7 * seen["faults"], seen  # of three lives; of many it is more
    assert seen["lives"] == 3


@pytest.mark.parametrize("seed", [41, 264])
def test_lanes_copy_over_slow_links_what_was_asked_for_twice_once(seed: int) -> None:
    mode = Mode.ACTIVE_ACTIVE_LANES
    judged(CORES[mode], aimed_run(seed, mode), seed)


def test_an_orphan_that_has_its_new_place_is_not_taken_for_deleted() -> None:
    """The log's start passes its old one before the new one is committed."""
    judged(CORES[Mode.ACTIVE_ACTIVE], aimed_run(110, Mode.ACTIVE_ACTIVE), 110)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES, ids=NAMES)
@pytest.mark.parametrize("first", range(0, 300, 50))
def test_promises_are_kept_when_faults_meet_work_in_many_lives(mode: Mode, first: int) -> None:
    seen = lived(mode, range(first, first + 50))
    assert seen["met"] >= 0.8 * seen["faults"], seen
    assert seen["lives"] == 50
    assert seen.keys() >= set(KINDS)


def flips(seed: int, mode: Mode) -> RunSettings:
    """One log at a time is damaged; crashes may come before anybody has noticed."""
    return aimed_run(seed, mode, faults=Faults(flips=3, crashes=2, deletions=1))


def damaged(mode: Mode, seeds: range) -> Counter[str]:
    """How often a bit flipped, a replica was given up, and a log set aside at the end."""
    seen: Counter[str] = Counter()
    for seed in seeds:
        run = ReplicationRun(CORES[mode], flips(seed, mode), seed)
        given_up = run.world.give_up

        def counted(*arguments: object, given_up: object = given_up) -> None:
            seen["given up"] += 1
            given_up(*arguments)  # type: ignore[operator]

        run.world.give_up = counted  # type: ignore[method-assign]
        outcome = run.run()
        said = f"seed {seed}: {outcome.breaches[:3]}"
        assert not outcome.breaches, said
        assert outcome.settled_ns is not None, f"seed {seed}: not whole in time"
        assert not outcome.unsent, f"seed {seed}: {outcome.unsent} batches were never answered"
        seen["flips"] += sum(name == "flips" for name, _ in outcome.faults)
        seen["aside"] += sum(
            any(name.startswith("aside-") for name in broker.storage.disk.files)
            for broker in run.world.brokers
        )
    return seen


@pytest.mark.paper("S004:9.10")
@pytest.mark.parametrize("mode", MODES, ids=NAMES)
def test_flipped_bits_are_found_not_served_and_mended(mode: Mode) -> None:
    seen = damaged(mode, range(3))
    assert seen["flips"] >= 6
    assert seen["given up"]
    assert seen["aside"]


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES, ids=NAMES)
@pytest.mark.parametrize("first", range(0, 300, 50))
def test_many_flipped_bits(mode: Mode, first: int) -> None:
    assert damaged(mode, range(first, first + 50))["given up"] > 50


def test_faults_at_drawn_times_meet_little() -> None:
    """What the aim is there for."""
    faults = met = 0
    for seed in range(10):
        mode = MODES[seed % len(MODES)]
        outcome = judged(CORES[mode], drawn_run(seed, mode), seed)
        faults += len(outcome.faults)
        met += outcome.met
    assert met < 0.4 * faults


def test_the_same_seed_aims_alike() -> None:
    mode = Mode.ACTIVE_ACTIVE
    first, second = (judged(CORES[mode], aimed_run(3, mode), 3) for _ in range(2))
    assert first.history == second.history
    assert first.faults == second.faults
