"""What the replicas of an active-standby partition say to each other.  [S004:4.8]

Every message names an epoch: a lower one than the receiver knows is refused, a higher one is noted
durably before anything else.  [R2]  Offsets that end something stand behind its last one.
"""

from typing import TypeAlias

import msgspec


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    epoch: int


class Here(_Message, frozen=True, tag="here"):
    """Anybody → everybody, over a new connection: my replica is open; I know this epoch."""


class Lead(_Message, frozen=True, tag="lead"):
    """Original → other: I am original of this epoch; where are you?"""

    attempt: int
    """Counts the times that the original asked anybody; what follows repeats it."""


class Position(_Message, frozen=True, tag="position"):
    """Other → original: this is my log."""

    attempt: int
    start: int
    end: int
    high_watermark: int
    history: list[tuple[int, int]]
    """My epochs and the offset at which each begins."""
    known: int = 0
    """S + 1 as I noted it: a power failure may have taken what lies below from my log."""
    doubtful: bool = False
    """Whether I cannot know that one has not.  [S004:4.8]"""

    @property
    def latest(self) -> tuple[int, int]:
        """Epoch of the last batch (−1: none) and the offset behind it: what makes a log newer."""
        has = self.end > self.start and self.history
        return (self.history[-1][0] if has else -1), self.end


class Follow(_Message, frozen=True, tag="follow"):
    """Original → other: up to here your log is mine; cut off the rest.  [KIP-101]"""

    attempt: int
    offset: int
    anew: bool
    """Your log is of no use to me: begin at this offset."""


class Records(_Message, frozen=True, tag="records"):
    """Original → follower: batches that follow your end; or only how far all have come."""

    attempt: int
    offset: int
    high_watermark: int
    log_start: int
    end: int
    """Of the original's log."""
    records: bytes


class Stored(_Message, frozen=True, tag="stored"):
    """Follower → original: my log ends here, and all below `counts` I shall not forget."""

    attempt: int
    end: int
    counts: int


class Contend(_Message, frozen=True, tag="contend"):
    """Original → other: I do not know what I have lost, and you have more: I resign, be elected.

    [S004:4.8]"""


class Fenced(_Message, frozen=True, tag="fenced"):
    """You are of an epoch that is over; this one I know.  [R2]"""


Message: TypeAlias = Here | Lead | Position | Follow | Records | Stored | Contend | Fenced
ToFollower: TypeAlias = Lead | Follow | Records
