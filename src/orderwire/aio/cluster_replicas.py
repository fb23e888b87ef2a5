"""Which replica keeps which mode, and what its messages are."""

import logging
from collections.abc import Mapping
from typing import Any

from orderwire.aio.cluster_frames import FrameKind
from orderwire.broker.log import PartitionLog, Storage
from orderwire.broker.replicas import ReplicaOf
from orderwire.broker.replication import (
    active_active_messages,
    active_standby_messages,
    lane_messages,
)
from orderwire.broker.replication.active_active import ActiveActiveReplica
from orderwire.broker.replication.active_active_lanes import ActiveActiveLanes
from orderwire.broker.replication.active_standby import ActiveStandby
from orderwire.broker.replication.damage import open_or_set_aside
from orderwire.broker.replication.replica import Replica
from orderwire.broker.replication.settings import Mode
from orderwire.broker.replication.view import BrokerId
from orderwire.kernel import NS_PER_MS, Instant

_LOG = logging.getLogger(__name__)

MESSAGES: Mapping[FrameKind, Any] = {
    FrameKind.ACTIVE_STANDBY: active_standby_messages.Message,
    FrameKind.ACTIVE_ACTIVE: active_active_messages.Message,
    FrameKind.LANES: lane_messages.LaneMessage,
}
"""The union of messages of each protocol."""


def open_replica(of: ReplicaOf, storage: Storage, me: BrokerId, now: Instant) -> Replica:
    """Open a partition's replica in its directory; without its log when that is damaged.

    Raises StorageError.
    """
    replica, damage = open_or_set_aside(
        storage, lambda: _open(of, storage, me, now), of.log.recovery_bytes, of.damage
    )
    if damage is not None:
        _LOG.error(
            "%s-%d: the log is damaged and set aside; another replica's is copied: %s",
            of.topic.name,
            of.index,
            damage,
        )
    return replica


def _open(of: ReplicaOf, storage: Storage, me: BrokerId, now: Instant) -> Replica:
    match of.mode:
        case Mode.ACTIVE_STANDBY:
            return ActiveStandby(me, storage, of.log, of.settings, now)
        case Mode.ACTIVE_ACTIVE_LANES:
            log = PartitionLog.open(storage, of.log, now // NS_PER_MS, cuts_damage=False)
            return ActiveActiveLanes(me, storage, log, of.settings, now)
        case Mode.ACTIVE_ACTIVE:
            return ActiveActiveReplica(me, storage, of.log, of.settings, now)
