"""Lanes in the simulated world under drawn faults.  [S004:4.5]"""

import pytest
from tests.support.replication_lanes import lane_replica
from tests.support.replication_shapes import drawn_run, judged

from orderwire.broker.replication.settings import Mode, ReplicationSettings
from orderwire.kernel import NS_PER_MS
from orderwire.sim.replication_clients import ProducerSettings, WorldSettings
from orderwire.sim.replication_run import Faults, RunSettings

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
