"""Draws partitions: how many replicas, what clients, which settings, which faults."""

from collections.abc import Sequence
from random import Random

import msgspec

from orderwire.broker.replication.settings import (
    Coordination,
    Distribution,
    HolePolicy,
    Mode,
    OrphanPolicy,
    ReplicationSettings,
)
from orderwire.broker.replication.view import BrokerId
from orderwire.broker.settings import Flush
from orderwire.kernel import NS_PER_MS, NS_PER_S, stream
from orderwire.sim.replication_clients import ProducerSettings, WorldSettings
from orderwire.sim.replication_cluster import MakeReplica
from orderwire.sim.replication_moments import KINDS
from orderwire.sim.replication_run import Faults, Outcome, RunSettings, run_replication

ALL_FAULTS = tuple(
    each
    for each in Faults.__struct_fields__
    if each not in ("blackouts", "ruins", "splits", "flips")
)
MORE_THAN_ONE = 0.45
"""How likely a kind of fault is in a run at all."""


def drawn_producers(draw: Random, mode: Mode, replicas: int) -> tuple[ProducerSettings, ...]:
    found: list[ProducerSettings] = []
    for _ in range(draw.randint(1, 3)):
        idempotent = draw.random() < 0.5
        found.append(
            ProducerSettings(
                acks=-1 if idempotent else draw.choice([1, -1]),  # as clients require
                idempotent=idempotent,
                batches=tuple(draw.randint(1, 3) for _ in range(draw.randint(4, 20))),
                in_flight_max=draw.choice([1, 1, 2, 5]),
                any_replica=mode is Mode.ACTIVE_ACTIVE_LANES,
                home=draw.randrange(replicas),
            )
        )
    return tuple(found)


def drawn_settings(draw: Random, mode: Mode) -> ReplicationSettings:
    return ReplicationSettings(
        min_insync_replicas=draw.choice([1, 2, 2]),
        sync_interval_ns=draw.choice([10, 50, 200]) * NS_PER_MS,
        sync_max_bytes=draw.choice([200, 4 << 20]),
        sync_min_gap_ns=draw.choice([0, 2 * NS_PER_MS]),
        sync_on_fetch=draw.random() < 0.7,
        eager_copy=draw.random() < 0.5,
        flush=draw.choice([Flush.GROUP, Flush.GROUP, Flush.MESSAGE]),
        round_timeout_ns=draw.choice([60, 300]) * NS_PER_MS,
        link_grace_ns=draw.choice([20, 200]) * NS_PER_MS,
        hole_timeout_ns=draw.choice([0, 0, 50 * NS_PER_MS]),
        hole_policy=draw.choice([HolePolicy.SEAL, HolePolicy.SEAL, HolePolicy.WAIT]),
        orphan_policy=draw.choice(
            [OrphanPolicy.REPUBLISH] * 4 + [OrphanPolicy.QUARANTINE, OrphanPolicy.DROP]
        ),
        distribution=draw.choice(
            [Distribution.SESSION, Distribution.SESSION, Distribution.REQUEST]
        ),
        coordination=draw.choice([Coordination.RPC] * 3 + [Coordination.ZOOKEEPER]),
        message_bytes_max=draw.choice([200, 8 << 20]),
    )


def drawn_faults(draw: Random, without: Sequence[str] = ()) -> Faults:
    counts = {
        name: draw.randint(1, 4) if draw.random() < MORE_THAN_ONE else 0 for name in ALL_FAULTS
    }
    return Faults(**{name: 0 if name in without else count for name, count in counts.items()})


def drawn_run(
    seed: int,
    mode: Mode,
    *,
    replicas: Sequence[int] = (2, 3, 3, 3, 4, 5),
    without: Sequence[str] = (),
) -> RunSettings:
    """One partition's life, but for the order of events."""
    draw = stream(seed, f"shape/{mode.value}")
    count = draw.choice(replicas)
    settings = drawn_settings(draw, mode)
    producers = drawn_producers(draw, mode, count)
    consumers = draw.randint(1, 2)
    faults = drawn_faults(draw, without)
    return RunSettings(
        world=WorldSettings(
            replicas=count,
            preferred=draw.choice([None, BrokerId(0), BrokerId(count - 1)]),
            producers=producers,
            consumers=consumers,
            acks_one_durable=settings.flush is Flush.MESSAGE,
        ),
        replication=settings,
        faults=faults,
        # A deposed active-standby original cuts its log back, as Kafka's does.
        acks_one_lost=mode is Mode.ACTIVE_STANDBY or settings.orphan_policy is OrphanPolicy.DROP,
        acks_one_committed=settings.orphan_policy is not OrphanPolicy.QUARANTINE,
    )


def aimed_run(
    seed: int,
    mode: Mode,
    *,
    replicas: Sequence[int] = (2, 3, 3, 3, 4, 5),
    without: Sequence[str] = (),
    faults: Faults | None = None,
) -> RunSettings:
    """One partition's life under load, with faults that come in the middle of its work."""
    drawn = drawn_run(seed, mode, replicas=replicas)
    draw = stream(seed, f"aim/{mode.value}")
    producers = tuple(
        msgspec.structs.replace(
            each, batches=tuple(draw.randint(1, 3) for _ in range(draw.randint(60, 120)))
        )
        for each in drawn.world.producers
    )
    kinds = [each for each in (*ALL_FAULTS, "splits", "flips") if each not in without]
    counts = dict.fromkeys(kinds, 0)
    for _ in range(draw.randint(2, 10)):
        counts[draw.choice(kinds)] += 1
    befalls = faults or Faults(**counts)
    factor = draw.choice([1, 1, 1, 3, 10])
    settings = drawn.replication
    if befalls.flips:
        # Nobody but who is damaged may have to leave: the one that is left would have no copy.
        factor = 1
        settings = msgspec.structs.replace(settings, round_timeout_ns=300 * NS_PER_MS)
        # What only acks=1 acknowledged may have come into the log that is set aside.
        drawn = msgspec.structs.replace(drawn, acks_one_lost=True)
    return msgspec.structs.replace(
        drawn,
        world=msgspec.structs.replace(drawn.world, producers=producers),
        replication=settings,
        faults=befalls,
        faults_ns=NS_PER_S,
        deliver_factor=factor,
        aim=KINDS,
    )


def judged(make_replica: MakeReplica, settings: RunSettings, seed: int) -> Outcome:
    """Run it and require that every invariant holds, and that it becomes whole in time."""
    outcome = run_replication(make_replica, settings, seed)
    said = f"seed {seed}: {outcome.breaches[:3]}"
    assert not outcome.breaches, said
    assert outcome.settled_ns is not None, f"seed {seed}: not whole after {settings.settle_ns} ns"
    assert not outcome.unsent, f"seed {seed}: {outcome.unsent} batches were never answered"
    return outcome
