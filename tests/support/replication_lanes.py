"""Replicas with lanes for the simulated world."""

from orderwire.broker.log import LogConfig, PartitionLog
from orderwire.broker.log.faulty import FaultyStorage
from orderwire.broker.replication.active_active_lanes import ActiveActiveLanes
from orderwire.broker.replication.settings import ReplicationSettings
from orderwire.broker.replication.view import BrokerId
from orderwire.kernel import NS_PER_MS, Instant


def lane_replica(
    me: BrokerId, storage: FaultyStorage, settings: ReplicationSettings, now: Instant
) -> ActiveActiveLanes:
    log = PartitionLog.open(storage, LogConfig(), now // NS_PER_MS)
    return ActiveActiveLanes(me, storage, log, settings, now)
