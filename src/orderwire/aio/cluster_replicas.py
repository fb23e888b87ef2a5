"""Which replica keeps which mode, and what its messages are."""

from typing import Any

from orderwire.aio.cluster_frames import FrameKind
from orderwire.broker.log import Storage
from orderwire.broker.replicas import ReplicaOf
from orderwire.broker.replication.replica import Replica
from orderwire.broker.replication.view import BrokerId
from orderwire.kernel import Instant, LocalProtocolError

MESSAGES: dict[FrameKind, Any] = {}
"""The union of messages of each protocol."""


def open_replica(of: ReplicaOf, storage: Storage, me: BrokerId, now: Instant) -> Replica:
    """Open a partition's replica in its directory.  Raises StorageError."""
    raise LocalProtocolError(f"topic {of.topic.name!r}: no replica keeps {of.mode.value}")
