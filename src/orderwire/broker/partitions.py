"""One partition as requests see it: a log, what of it is visible, and who waits for more."""

from typing import TYPE_CHECKING, Protocol

from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.log import PartitionLog
from orderwire.broker.replication.replica import Replica
from orderwire.broker.replication.settings import Mode
from orderwire.broker.replies import Reply
from orderwire.broker.topics import Topic
from orderwire.kernel import Instant

if TYPE_CHECKING:
    from orderwire.broker.node import Broker

LEADER_EPOCH = 0
"""A single broker is never elected: its leader epoch stays the first one."""


class Parked(Protocol):
    """A request that waits."""

    @property
    def token(self) -> int:
        """The runtime's name for it."""
        ...

    def attempt(self, broker: "Broker", *, at_deadline: bool) -> Reply | None:
        """Return the reply when it has become possible, or the wait is over."""
        ...

    def leave(self) -> None:
        """Stop waiting."""
        ...


class Partition:
    """One partition of one topic."""

    __slots__ = (
        "armed",
        "given_up",
        "high_watermark",
        "index",
        "log",
        "mode",
        "of",
        "readers_turn",
        "replica",
        "sent_bytes",
        "taken_bytes",
        "topic",
        "topic_id",
        "waiting",
    )

    def __init__(
        self,
        topic: Topic,
        index: int,
        log: PartitionLog,
        replica: Replica | None = None,
        mode: Mode | None = None,
    ) -> None:
        self.of = topic
        self.topic = topic.name
        self.topic_id = topic.topic_id
        self.index = index
        self.log = log
        self.replica = replica
        """What keeps the log the same elsewhere; None at a broker that is alone."""
        self.mode = mode
        self.high_watermark = log.end_offset if replica is None else replica.high_watermark
        """Consumers read below this offset only; what was recovered alone is on disk already."""
        self.given_up = False
        """Its files are damaged: nothing is asked of its replica any more."""
        self.waiting: dict[int, Parked] = {}
        """Parked fetches by the token of their request."""
        self.armed: Instant | None = None
        """For when the replica's next deadline is noted."""
        self.readers_turn = 0
        """Counts consumers that were sent to in-sync members in turn."""
        self.taken_bytes = 0
        """Batches that producers handed in at this broker since its start, refused ones too."""
        self.sent_bytes = 0
        """Batches that consumers got from this broker since its start."""

    @property
    def leader_epoch(self) -> int:
        """The epoch that clients are told; −1 before the first election."""
        if self.replica is None:
            return LEADER_EPOCH
        view = self.replica.view
        return -1 if view is None else view.epoch

    def epoch_error(self, epoch: int) -> ErrorCode:
        """Say what is wrong with the epoch that a client knows; negative: it knows none."""
        ours = self.leader_epoch
        if epoch < 0 or epoch == ours:
            return ErrorCode.NONE
        return ErrorCode.FENCED_LEADER_EPOCH if epoch < ours else ErrorCode.UNKNOWN_LEADER_EPOCH

    def close(self) -> None:
        """Close the files properly."""
        if self.replica is None:
            self.log.close()
        else:
            self.replica.close()
