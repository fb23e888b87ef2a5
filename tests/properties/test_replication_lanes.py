"""Lanes in the simulated world: drawn faults, and what each rule is there for.  [S004:4.5, 5.3]"""

import pytest
from tests.support.replication_lane_mutants import BREACHES, FIRST_SEED, MUTANTS, mutated
from tests.support.replication_lanes import lane_replica
from tests.support.replication_shapes import drawn_run, judged

from orderwire.broker.replication.settings import Mode, ReplicationSettings
from orderwire.kernel import NS_PER_MS
from orderwire.sim.replication_clients import ProducerSettings
from orderwire.sim.replication_cluster import WorldSettings
from orderwire.sim.replication_run import Faults, RunSettings, run_replication

LANES = Mode.ACTIVE_ACTIVE_LANES


def under_load(*, acks: int = -1, idempotent: bool = True, replicas: int = 3) -> RunSettings:
    """Producers at every replica for as long as the faults last."""
    return RunSettings(
        world=WorldSettings(
            replicas=replicas,
            producers=tuple(
                ProducerSettings(
                    acks=acks,
                    idempotent=idempotent,
                    batches=(1, 2) * 100,
                    in_flight_max=3,
                    any_replica=True,
                    home=home,
                )
                for home in range(3)
            ),
            consumers=1,
        ),
        replication=ReplicationSettings(
            min_insync_replicas=1, round_timeout_ns=60 * NS_PER_MS, message_bytes_max=400
        ),
        faults=Faults(crashes=4, expiries=3, partings=4, pauses=3, link_breaks=3),
    )


@pytest.mark.parametrize("seed", range(12))
def test_drawn_lives(seed: int) -> None:
    judged(lane_replica, drawn_run(seed, LANES), seed)


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("seed", range(2))
def test_faults_under_load(seed: int, acks: int) -> None:
    settings = under_load(acks=acks, idempotent=acks == -1, replicas=2 + seed)
    outcome = judged(lane_replica, settings, seed)
    assert not outcome.refused
    assert outcome.elections > 2


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 1500, 50))
def test_many_drawn_lives(first: int) -> None:
    for seed in range(first, first + 50):
        judged(lane_replica, drawn_run(seed, LANES), seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 130))
def test_faults_under_load_again(seed: int) -> None:
    judged(lane_replica, under_load(replicas=2 + seed % 3), seed)
    judged(lane_replica, under_load(acks=1, idempotent=False, replicas=2 + seed % 3), seed)


def breaches(name: str, settings: RunSettings, seed: int) -> set[str]:
    """What the judge finds without one rule."""
    with mutated(name):
        try:
            outcome = run_replication(lane_replica, settings, seed)
        except AssertionError:
            return {"AssertionError"}
    return {breach.invariant for breach in outcome.breaches}


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_every_rule_is_needed(name: str) -> None:
    first = FIRST_SEED.get(name, 0)
    for seed in range(first, first + 40):
        settings = drawn_run(seed, LANES, without=[] if name == "unfenced" else ["deletions"])
        if name == "own-lane-dropped":
            settings = under_load(acks=1, idempotent=False, replicas=2 + seed % 2)
        if breaches(name, settings, seed) & BREACHES[name]:
            return
    raise AssertionError(f"nothing shows that {name} is wrong")
