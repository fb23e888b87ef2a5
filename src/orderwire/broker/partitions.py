"""One partition as requests see it: a log, what of it is visible, and who waits for more."""

from typing import TYPE_CHECKING, Protocol

from orderwire.broker.log import PartitionLog
from orderwire.broker.replies import Reply, Request

if TYPE_CHECKING:
    from orderwire.broker.node import Broker

LEADER_EPOCH = 0
"""A single broker is never elected: its leader epoch stays the first one."""


class ParkedFetch(Protocol):
    """A fetch that waits for data."""

    request: Request

    def attempt(self, broker: "Broker", *, at_deadline: bool) -> Reply | None:
        """Return the reply when there is enough to send, or the wait is over."""
        ...

    def leave(self) -> None:
        """Stop waiting at every partition."""
        ...


class Partition:
    """One partition of one topic."""

    __slots__ = ("high_watermark", "index", "log", "topic", "topic_id", "waiting")

    def __init__(self, topic: str, topic_id: bytes, index: int, log: PartitionLog) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.log = log
        self.high_watermark = log.end_offset
        """Consumers read below this offset only; what was recovered is on disk already."""
        self.waiting: dict[int, ParkedFetch] = {}
        """Parked fetches by the token of their request."""
