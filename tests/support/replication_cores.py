"""Factories that make each protocol's replica in a simulated world."""

from orderwire.broker.log import LogConfig, PartitionLog
from orderwire.broker.log.faulty import FaultyStorage
from orderwire.broker.replication.active_active import ActiveActiveReplica
from orderwire.broker.replication.active_active_lanes import ActiveActiveLanes
from orderwire.broker.replication.active_standby import ActiveStandby
from orderwire.broker.replication.settings import Mode, ReplicationSettings
from orderwire.broker.replication.view import BrokerId
from orderwire.kernel import NS_PER_MS, Instant
from orderwire.sim.replication_cluster import MakeReplica

LOG = LogConfig(segment_bytes=1_000)
"""Small segments, so that every run has several."""


def active_standby(
    me: BrokerId, storage: FaultyStorage, settings: ReplicationSettings, now: Instant
) -> ActiveStandby:
    return ActiveStandby(me, storage, LOG, settings, now)


def active_active(
    me: BrokerId, storage: FaultyStorage, settings: ReplicationSettings, now: Instant
) -> ActiveActiveReplica:
    return ActiveActiveReplica(me, storage, LOG, settings, now)


def lanes(
    me: BrokerId, storage: FaultyStorage, settings: ReplicationSettings, now: Instant
) -> ActiveActiveLanes:
    log = PartitionLog.open(storage, LOG, now // NS_PER_MS, cuts_damage=False)
    return ActiveActiveLanes(me, storage, log, settings, now)


CORES: dict[Mode, MakeReplica] = {
    Mode.ACTIVE_STANDBY: active_standby,
    Mode.ACTIVE_ACTIVE: active_active,
    Mode.ACTIVE_ACTIVE_LANES: lanes,
}
