"""What the replicas of a partition with lanes tell each other.  [S004:4.3]"""

from typing import TypeAlias

import msgspec

from orderwire.broker.log import Appended, Refused

Ends: TypeAlias = tuple[tuple[int, int], ...]
"""Broker → how far its lane is ordered, ascending by broker: a cut, as a vector."""
UNDECIDED = -1
Stamp: TypeAlias = tuple[int, int]
"""Epoch and round of a cut: later cuts are larger, whoever proposed them."""


class CutRecord(msgspec.Struct, frozen=True, array_like=True):
    """One cut as a replica remembers it: the main log to `end_offset` is what it says."""

    epoch: int
    round: int
    end_offset: int
    ends: Ends
    committed: int
    """The high watermark as it was known then."""
    whole: bool = True
    """False while a replica out of sync copies the log: then `ends` says nothing."""

    @property
    def stamp(self) -> Stamp:
        """Which cut it is."""
        return self.epoch, self.round

    def end_of(self, broker: int) -> int:
        """How far a lane is ordered."""
        return next((end for each, end in self.ends if each == broker), 0)


class LaneSlice(msgspec.Struct, frozen=True, array_like=True):
    """What a cut takes from one lane."""

    broker: int
    start: int
    """Where the cut before ended, and where this one does."""
    end: int
    offset: int
    """The first batch's; the others follow it."""
    left_out: tuple[tuple[int, int, int], ...] = ()
    """Batches that get no offset: position, error code, and with code 0 the offset that the same
    batch has already."""


class LaneCut(msgspec.Struct, frozen=True, tag=True):
    """The original says what is ordered next.  [S004:4.3]"""

    epoch: int
    round: int
    previous: Stamp
    """The cut that it continues."""
    start_offset: int
    end_offset: int
    slices: tuple[LaneSlice, ...]
    """In the order of the main log."""
    ends: Ends
    committed: int
    log_start: int


class LaneDone(msgspec.Struct, frozen=True, tag=True):
    """Everything up to this cut is on my disk.  [R5]"""

    epoch: int
    round: int


class LaneCommit(msgspec.Struct, frozen=True, tag=True):
    """Every member has everything up to this cut.  [R6]"""

    epoch: int
    round: int
    committed: int
    log_start: int


class LaneCollect(msgspec.Struct, frozen=True, tag=True):
    """A new original asks what a member has.  [R7]"""

    epoch: int


class LaneState(msgspec.Struct, frozen=True, tag=True):
    """What a member has: its last cut.  [R7]"""

    epoch: int
    cut_epoch: int
    cut_round: int
    end_offset: int
    whole: bool
    known: int = 0
    """S + 1 as I noted it: a power failure may have taken what lies below from my log."""
    doubtful: bool = False
    """Whether I cannot know that one has not.  [S004:4.8]"""


class LaneFetch(msgspec.Struct, frozen=True, tag=True):
    """Asks for the log behind what I have.  [R8]"""

    epoch: int
    end_offset: int
    last_epoch: int
    """Of my last batch; −1 when there is none."""


class LaneDiverged(msgspec.Struct, frozen=True, tag=True):
    """My log has nothing of your last epoch, or less of it: the newest before it, and its end."""

    epoch: int
    last_epoch: int
    end_offset: int


class LaneLog(msgspec.Struct, frozen=True, tag=True):
    """A part of the log."""

    epoch: int
    offset: int
    data: bytes
    record: CutRecord | None
    """The cut at the end of my log, when this reaches it."""
    cut: LaneCut | None
    """The same as it was proposed, should I know."""
    committed: int
    log_start: int


class LaneData(msgspec.Struct, frozen=True, tag=True):
    """A part of my lane: whole requests.  [R10]"""

    after: int
    """Where the part before it ended; nothing lies between there and `start`."""
    start: int
    fresh: int
    """Where my present stay in the in-sync set began."""
    data: bytes


class LaneResend(msgspec.Struct, frozen=True, tag=True):
    """I have your lane to here only, and want what is behind."""

    position: int


class LaneBind(msgspec.Struct, frozen=True, tag=True):
    """Asks the original which lane a producer belongs to; to mine, if to none that lives."""

    epoch: int
    producer_id: int


class LaneBound(msgspec.Struct, frozen=True, tag=True):
    """It belongs to this broker's lane; to UNDECIDED when we are not original."""

    epoch: int
    producer_id: int
    broker: int


class LaneForward(msgspec.Struct, frozen=True, tag=True):
    """A batch of a producer that belongs to your lane."""

    number: int
    acks: int
    records: bytes


class LaneForwarded(msgspec.Struct, frozen=True, tag=True):
    """What became of it."""

    number: int
    result: Appended | Refused


class LaneFenced(msgspec.Struct, frozen=True, tag=True):
    """I know a later epoch.  [R2]"""

    epoch: int


LaneMessage: TypeAlias = (
    LaneCut
    | LaneDone
    | LaneCommit
    | LaneCollect
    | LaneState
    | LaneFetch
    | LaneDiverged
    | LaneLog
    | LaneData
    | LaneResend
    | LaneBind
    | LaneBound
    | LaneForward
    | LaneForwarded
    | LaneFenced
)
