"""The contract of a replica: one partition at one broker, whatever the protocol."""

from typing import Any, Protocol

from orderwire.broker.log import PartitionLog, StorageError
from orderwire.broker.replication.effects import Effects
from orderwire.broker.replication.settings import ReplicationSettings
from orderwire.broker.replication.view import BrokerId, PartitionView
from orderwire.broker.wire.parts import Buffer
from orderwire.kernel import Instant


class SyncWork(Protocol):
    """What has to be put on disk; may run in another thread."""

    def run(self) -> None:
        """Write and sync.  Raises StorageError."""
        ...


class Replica(Protocol):
    """A state machine over a partition's files: no network, no ZooKeeper, no clock.

    Calls come from one thread.  Files are ports: `log` and the partition's directory.  A replica is
    made anew at every start of its broker from what the files say, and told the view before
    anything else: that is at least as new as what a process before it had heard.
    """

    log: PartitionLog
    """The main log: contiguous; what is below `high_watermark` is committed."""

    @property
    def high_watermark(self) -> int:
        """S + 1: consumers read below this offset only.  [R6]"""
        ...

    @property
    def view(self) -> PartitionView | None:
        """The newest view it was told."""
        ...

    @property
    def takes_produce(self) -> bool:
        """Whether `produce` would take a batch now."""
        ...

    @property
    def is_blank(self) -> bool:
        """Whether it may lack what is committed and so is not elected, in sync or not."""
        ...

    @property
    def serves_fetch(self) -> bool:
        """Whether consumers may read here: we are in the in-sync set, as far as we know.  [4.7]"""
        ...

    @property
    def assigned_end(self) -> int:
        """One behind the last offset known to be assigned, committed or not: where a fetch that is
        out of range begins."""
        ...

    def viewed(self, view: PartitionView, now: Instant) -> Effects:
        """Take what ZooKeeper says: at the start, at every change, and after each attempt of ours
        to change it.  Older views than the one known (by epoch, version) are ignored."""
        ...

    def configure(self, settings: ReplicationSettings, now: Instant) -> Effects:
        """Go on with other settings, as far as `ReplicationSettings.changed_to` lets them."""
        ...

    def session_lost(self, now: Instant) -> Effects:
        """The ZooKeeper session has ended: stop being original at once.  [4.6]"""
        ...

    def connected(self, broker: BrokerId, now: Instant) -> Effects:
        """A connection to this replica's broker is there; nothing was sent over it yet."""
        ...

    def disconnected(self, broker: BrokerId, now: Instant) -> Effects:
        """It broke: what was on its way is lost.  Also told when the broker's znode is gone."""
        ...

    def ended(self, broker: BrokerId, now: Instant) -> Effects:
        """Its process is known to have ended: until it is connected, nobody need wait for it."""
        ...

    def produce(
        self, token: int, connection: int, records: Buffer, acks: int, now: Instant
    ) -> Effects:
        """Take a request's batches for this partition (acks 1 or −1; for acks=0 the runtime says 1
        and drops the answer).  An `Answer` follows, at once or later, exactly one.

        `records` is only lent for the call.  `connection` tells sessions without a producer id
        apart.
        """
        ...

    def forget(self, token: int) -> None:
        """Nobody waits for this answer any more."""
        ...

    def wanted(self, now: Instant) -> Effects:
        """A consumer's fetch waits at S.  [R9]"""
        ...

    def start_moved(self, now: Instant) -> Effects:
        """The log begins later than before: as original, tell the others at once."""
        ...

    def hand_over(self, to: BrokerId, now: Instant) -> Effects:
        """As original, give the partition up to this member: take no more requests, answer those
        that were taken, and resign once all is committed.  If that takes too long, stay."""
        ...

    def locked(self, now: Instant) -> Effects:
        """Somebody made a child of `lock`: a request for a round.  [R9]"""
        ...

    def sync_end_seen(self, end: int, epoch: int, round_number: int, now: Instant) -> Effects:
        """`syncEnd` was written (`Coordination.ZOOKEEPER`)."""
        ...

    def receive(self, source: BrokerId, message: Any, now: Instant) -> Effects:
        """Take a message of another replica.  Raises RemoteProtocolError."""
        ...

    def begin_sync(self, now: Instant) -> SyncWork | None:
        """Collect what is not durable yet; None when all is."""
        ...

    def end_sync(self, work: SyncWork, now: Instant, error: StorageError | None = None) -> Effects:
        """Take note of work that has run; after an error the broker stops."""
        ...

    def wake(self, now: Instant) -> Effects:
        """Act on every deadline at or before `now`."""
        ...

    def next_deadline(self) -> Instant | None:
        """When `wake` is next due."""
        ...

    def status(self) -> dict[str, Any]:
        """What `orderwire cluster status` shows: role, epoch, isr, sync_start (S), sync_end (E, S
        where no round is open), rounds, sealed, orphans, pending_bytes, and each member's lag."""
        ...

    def close(self) -> None:
        """Close the files properly."""
        ...
