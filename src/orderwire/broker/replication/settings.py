"""How a partition is replicated."""

from enum import Enum

import msgspec

from orderwire.broker.flush import Flush
from orderwire.kernel import NS_PER_MS, NS_PER_S


class Mode(Enum):
    """Which protocol keeps the replicas of a partition together."""

    ACTIVE_STANDBY = "active-standby"
    """The original appends, the others follow.  [S004:AS]"""
    ACTIVE_ACTIVE = "active-active"
    """The original assigns offsets and hands batches to all in turn.  [S004:AA-seq]"""
    ACTIVE_ACTIVE_LANES = "active-active-lanes"
    """Every replica takes batches into a lane of its own; a round orders them.  [S004:AA-lane]"""


class Coordination(Enum):
    """How the replicas of an active-active partition agree on a round."""

    RPC = "rpc"
    """The original calls the members."""
    ZOOKEEPER = "zookeeper"
    """By `syncStart`, `syncEnd` and `lock/<id>`, as the paper does."""


class Distribution(Enum):
    """To whom the original hands a batch.  [R1, G16]"""

    SESSION = "session"
    """Every producer session has one replica."""
    REQUEST = "request"
    """Every request the next replica: the paper's; for acks=1 without idempotence only."""


class HolePolicy(Enum):
    """What becomes of offsets that no in-sync replica has.  [R4]"""

    SEAL = "seal"
    """A control batch takes their place."""
    WAIT = "wait"
    """The round waits for the replica that may have them."""


class OrphanPolicy(Enum):
    """What becomes of batches that a replica had and the others committed without.  [R8]"""

    REPUBLISH = "republish"
    QUARANTINE = "quarantine"
    DROP = "drop"


class ReplicationSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Times, sizes and policies of one partition's replication."""

    min_insync_replicas: int = 2
    """S does not advance while fewer are in sync.  [S004:4.4]"""
    flush: Flush = Flush.GROUP
    """When a replica has a batch, or a round: with NONE once it is written, else on its disk.  With
    MESSAGE the active-active modes sync before acks=1, too."""
    sync_interval_ns: int = 1 * NS_PER_S
    sync_max_bytes: int = 4 << 20
    """Pending bytes that start a round."""
    sync_min_gap_ns: int = 2 * NS_PER_MS
    """Least time between two rounds."""
    sync_on_fetch: bool = True
    """Whether a fetch parked at S starts a round.  [R9]"""
    eager_copy: bool = True
    """Whether a stored batch goes to the peers before a round asks for it.  [R10]"""
    round_timeout_ns: int = 2 * NS_PER_S
    """A member that takes longer leaves the in-sync set.  [R5]"""
    link_grace_ns: int = 200 * NS_PER_MS
    """A member without a connection for so long leaves the in-sync set.  [R5]"""
    hole_timeout_ns: int = 0
    """How long a hole waits for its owner before it is sealed."""
    hole_policy: HolePolicy = HolePolicy.SEAL
    orphan_policy: OrphanPolicy = OrphanPolicy.REPUBLISH
    distribution: Distribution = Distribution.SESSION
    coordination: Coordination = Coordination.RPC
    pending_bytes_max: int = 256 << 20
    """Bytes that wait for a round; beyond this a produce is refused."""
    waiting_requests_max: int = 100_000
    """Produce requests that wait for a round or for a replica."""
    message_bytes_max: int = 8 << 20
    """Record bytes in one message to another replica, but for a single larger batch."""

    def changed_to(self, wanted: "ReplicationSettings") -> "ReplicationSettings":
        """What a running replica makes of other settings: `flush`, `coordination` and the limits
        in bytes and requests stay as they were when it was opened.
        """
        return msgspec.structs.replace(
            wanted,
            flush=self.flush,
            coordination=self.coordination,
            pending_bytes_max=self.pending_bytes_max,
            waiting_requests_max=self.waiting_requests_max,
            message_bytes_max=self.message_bytes_max,
        )
