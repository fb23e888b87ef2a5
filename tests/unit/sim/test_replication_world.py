"""The world of replicas, with a replica as simple as can be."""

import pytest
from replication_crude import CrudeReplica

from orderwire.broker.replication.effects import Effects
from orderwire.broker.wire.parts import Buffer
from orderwire.kernel import Instant
from orderwire.sim.replication_clients import ProducerSettings, WorldSettings
from orderwire.sim.replication_run import Faults, RunSettings, run_replication
from orderwire.verify.replication import by_invariant

CLIENTS = (
    ProducerSettings(batches=(1, 2) * 5, in_flight_max=3),
    ProducerSettings(batches=(1,) * 10, acks=1, idempotent=False),
)


def settings(**faults: int) -> RunSettings:
    return RunSettings(world=WorldSettings(producers=CLIENTS), faults=Faults(**faults))


@pytest.mark.parametrize("seed", range(20))
def test_a_quiet_partition_becomes_whole(seed: int) -> None:
    outcome = run_replication(CrudeReplica, settings(), seed)
    assert outcome.breaches == []
    assert outcome.settled_ns is not None
    assert outcome.committed == outcome.acknowledged == 25
    assert not outcome.unsent


@pytest.mark.parametrize("seed", range(20))
def test_broken_links_break_no_promise(seed: int) -> None:
    outcome = run_replication(CrudeReplica, settings(link_breaks=4, client_breaks=2), seed)
    assert by_invariant(outcome.breaches).keys() <= {"I8"}  # it is too simple to come back always


def test_the_same_seed_is_the_same_run() -> None:
    first, second = (
        run_replication(CrudeReplica, settings(link_breaks=3), 7).history for _ in range(2)
    )
    assert first == second


class Hasty(CrudeReplica):
    """Answers before anybody else has it."""

    def produce(
        self, token: int, connection: int, records: Buffer, acks: int, now: Instant
    ) -> Effects:
        return super().produce(token, connection, records, 1, now)


def test_a_replica_that_answers_too_early_is_found_out() -> None:
    found = by_invariant(run_replication(Hasty, settings(), 1).breaches)
    assert found.keys() == {"I1"}
