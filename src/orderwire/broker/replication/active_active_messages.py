"""What the replicas of an active-active partition say to each other.  [S004:4.2]

Offsets that end something stand behind its last one: `end` of a round is E + 1, `committed` S + 1.
Every message names an epoch: a lower one than the receiver knows is refused, a higher one is noted
durably before anything else.  [R2]
"""

from typing import TypeAlias

import msgspec

from orderwire.broker.replication.links import Hello
from orderwire.broker.replication.view import BrokerId

Held = tuple[int, int, int]
"""First offset, the offset behind the last, epoch of the batches."""
Pull = tuple[BrokerId, int, int]
"""Who has it, first offset, the offset behind the last."""


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    epoch: int


class RelayAppend(_Message, frozen=True, tag="relay"):
    """O → member: store these batches, whose offsets are assigned.  [R1]"""

    stream: int
    """After a refusal everything of the same stream is refused: it was on its way.  [G16, I9]"""
    tells: bool
    """Whether the original has to hear that they are stored: it has no copy itself."""
    records: bytes


class RelayStored(_Message, frozen=True, tag="stored"):
    """Member → O: the batches from this offset on are in my journal."""

    base: int


class RelayRefused(_Message, frozen=True, tag="refused"):
    """Member → O: they are not."""

    base: int
    stream: int
    reason: str


class Copied(_Message, frozen=True, tag="copied"):
    """O → other members: batches that a round would make them ask for.  [R10]"""

    records: bytes


class Collect(_Message, frozen=True, tag="collect"):
    """O → member: a new epoch has begun; say what you have above your S.  [R7]"""

    round: int
    attempt: int


class SyncClose(_Message, frozen=True, tag="close"):
    """O → member: promise to store nothing below `end` any more; say what you have.  [R3]"""

    round: int
    attempt: int
    start: int
    end: int


class Closed(_Message, frozen=True, tag="closed"):
    """Member → O: promised.  [R3]"""

    round: int
    attempt: int
    committed: int
    held: list[Held]
    alone: bool = False
    """Whether I lack nothing: I write it without being told how, and Done follows.  [R5]"""
    known: int = 0
    """S + 1 as I noted it: a power failure may have taken what lies below from my log."""
    doubtful: bool = False
    """Whether I cannot know that one has not.  [S004:4.8]"""


class SyncCopy(_Message, frozen=True, tag="copy"):
    """O → member: who has what you lack, and what nobody has.  [R4, R5]"""

    round: int
    attempt: int
    end: int
    pulls: list[Pull]
    seals: list[Held]
    at_ms: int
    """The seals' time."""
    stale: list[Held] = []
    """What you have, and a later epoch did not find: it is not what stands there.  [R8]"""


class SyncPull(_Message, frozen=True, tag="pull"):
    """Member → member: send me these, in order.  [R5]"""

    round: int
    attempt: int
    spans: list[tuple[int, int]]


class Pulled(_Message, frozen=True, tag="pulled"):
    """Member → member: the next of them, or nothing: I have not got what is next."""

    round: int
    attempt: int
    records: bytes


class CopyFailed(_Message, frozen=True, tag="failed"):
    """Member → O: this one cannot give me what it has."""

    round: int
    attempt: int
    source: BrokerId


class Done(_Message, frozen=True, tag="done"):
    """Member → O: everything below `end` is in my log, durably.  [R5]"""

    round: int
    attempt: int
    end: int


class Commit(_Message, frozen=True, tag="commit"):
    """O → member: everything below `committed` is on every in-sync replica.  [R6]"""

    committed: int
    assigned: int
    log_start: int


class RoundWanted(_Message, frozen=True, tag="wanted"):
    """Member → O: somebody waits for a round here.  [R9]"""


class Fenced(_Message, frozen=True, tag="fenced"):
    """You are of an epoch that is over; `epoch` is the one that I know.  [R2]"""


class RejoinFetch(_Message, frozen=True, tag="rejoin"):
    """Outsider → O: send me what is committed from this offset on.  [R8]"""

    offset: int
    committed: int
    held: list[Held]
    """What it has above: a round that waits for a hole may find it there.  [R4]"""
    blank: bool = False
    """Whether I may lack what is committed, in the in-sync set or not: my disk was lost."""
    lost_epoch: int = -1
    """Of the newest loss that `committed` takes account of."""


class CommittedLog(_Message, frozen=True, tag="log"):
    """O → outsider: batches from `offset` on; none: you have them all."""

    offset: int
    committed: int
    settled: int
    """So far nothing will ever be otherwise: what was recovered with too few to commit it may have
    been committed and acknowledged before."""
    log_start: int
    records: bytes


class InSync(_Message, frozen=True, tag="insync"):
    """O → outsider: you are in the in-sync set, of this version."""

    version: int


class CaughtUp(_Message, frozen=True, tag="caught"):
    """Outsider → O: everything below `end` is in my log, durably, and nothing else.  [R8]"""

    end: int


class OrphanOffer(_Message, frozen=True, tag="orphan"):
    """Member → O: these batches of mine were committed without; give them new offsets.  [R8]"""

    number: int
    headers: list[bytes]
    """The batches' headers, with the offset and the epoch that each had."""
    committed: int
    """My S + 1: below it I have looked, and it is not there."""


class OrphanPlace(_Message, frozen=True, tag="place"):
    """O → member: store them at these offsets, as many of the first as there are."""

    number: int
    bases: list[int]


class OrphanKnown(_Message, frozen=True, tag="known"):
    """O → member: the first is there already."""

    number: int
    base: int


class OrphanLater(_Message, frozen=True, tag="later"):
    """O → member: not now: ask again behind the next round."""

    number: int


Message: TypeAlias = (
    Hello
    | RelayAppend
    | RelayStored
    | RelayRefused
    | Copied
    | Collect
    | SyncClose
    | Closed
    | SyncCopy
    | SyncPull
    | Pulled
    | CopyFailed
    | Done
    | Commit
    | RoundWanted
    | Fenced
    | RejoinFetch
    | CommittedLog
    | InSync
    | CaughtUp
    | OrphanOffer
    | OrphanPlace
    | OrphanKnown
    | OrphanLater
)
