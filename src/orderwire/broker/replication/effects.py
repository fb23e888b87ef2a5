"""What a replica asks its runtime to do, in order."""

from typing import TypeAlias

import msgspec

from orderwire.broker.log import Appended, Refused
from orderwire.broker.replication.view import BrokerId


class Tell(msgspec.Struct, frozen=True, gc=False):
    """Send a message to another replica of the partition.

    Messages between two brokers arrive in order or, when the connection breaks, not at all from
    some message on; then both replicas are told (`disconnected`), and later of the next connection.
    """

    to: BrokerId
    message: msgspec.Struct


class Answer(msgspec.Struct, frozen=True, gc=False):
    """Answer a produce request that was taken under this token."""

    token: int
    result: Appended | Refused


class Advance(msgspec.Struct, frozen=True, gc=False):
    """Consumers at this replica may read below this offset.  It never decreases."""

    high_watermark: int


class Sync(msgspec.Struct, frozen=True, gc=False):
    """Something has to be durable: call `begin_sync`, run the job aside, and call `end_sync`."""


class Elect(msgspec.Struct, frozen=True, gc=False):
    """Contend for the partition, as a member of the in-sync set, in one step: the epoch is still
    this one, nobody is original, and we are in the set → we are original with epoch + 1.  [R7]

    Win or lose, `viewed` follows.
    """

    epoch: int


class Resign(msgspec.Struct, frozen=True, gc=False):
    """Give the partition up: delete our `original` znode of this epoch, should it be there."""

    epoch: int


class ChangeIsr(msgspec.Struct, frozen=True, gc=False):
    """Replace the in-sync set if it still has this version and we are original of this epoch.

    Done or refused, `viewed` follows.
    """

    isr: tuple[BrokerId, ...]
    version: int
    epoch: int


class SetSync(msgspec.Struct, frozen=True, gc=False):
    """Write `syncStart` or `syncEnd`: offset, epoch and round; None is left as it is.

    Lazily (the last of several may be the only one) but for `Coordination.ZOOKEEPER`.
    """

    start: int | None
    end: int | None
    epoch: int
    round: int


class Lose(msgspec.Struct, frozen=True, gc=False):
    """Write down that S goes back: nobody in sync has [start, end).  `syncStart` becomes `start`.
    As original of this epoch; `viewed` follows.  [S004:4.8]
    """

    epoch: int
    start: int
    end: int
    unclean: bool = False
    """Whether we were put in the place of an in-sync set that is gone."""


class Replace(msgspec.Struct, frozen=True, gc=False):
    """Put one replica in the place of an in-sync set that is gone for ever: it is elected with what
    it has.  Only if the epoch and the set's version are these, and nobody is original.  [S004:4.8]

    No replica asks for this: an operator does, or a topic that allows it.
    """

    member: BrokerId
    version: int
    epoch: int


class Lock(msgspec.Struct, frozen=True, gc=False):
    """Ask for a round: make `lock/<our id>`, which the original sees as `locked`.  [S004:3b]"""


class Unlock(msgspec.Struct, frozen=True, gc=False):
    """Delete every child of `lock`: the round is over.  [S004:3d]"""


class Note(msgspec.Struct, frozen=True, gc=False):
    """Something that the status, the log and the trace tell of."""

    event: "Event"


class Elected(msgspec.Struct, frozen=True, tag=True):
    """We are original; requests are taken once recovered."""

    epoch: int


class Recovered(msgspec.Struct, frozen=True, tag=True):
    """The recovery round is over: produce requests are taken from this offset on.  [R7]"""

    epoch: int
    end_offset: int


class Deposed(msgspec.Struct, frozen=True, tag=True):
    """We are original no longer."""

    epoch: int
    reason: str


class RoundOpened(msgspec.Struct, frozen=True, tag=True):
    """A round over (start, end] began, or begins again with another attempt.  [R3]"""

    epoch: int
    round: int
    attempt: int
    start: int
    end: int


class Committed(msgspec.Struct, frozen=True, tag=True):
    """Every offset below this one is on every in-sync replica.  [R6]"""

    epoch: int
    round: int
    high_watermark: int


class Sealed(msgspec.Struct, frozen=True, tag=True):
    """Nobody in sync has these offsets: a control batch stands there.  [R4]"""

    epoch: int
    first: int
    last: int


class MemberRemoved(msgspec.Struct, frozen=True, tag=True):
    """A replica left the in-sync set.  [R5]"""

    epoch: int
    member: BrokerId
    reason: str


class MemberJoined(msgspec.Struct, frozen=True, tag=True):
    """A replica has all that is committed and is in sync again.  [R8]"""

    epoch: int
    member: BrokerId


class Orphaned(msgspec.Struct, frozen=True, tag=True):
    """A batch of ours was committed without: it is an orphan now.  [R8]"""

    base_offset: int
    epoch: int
    count: int


class Republished(msgspec.Struct, frozen=True, tag=True):
    """An orphan has new offsets, or was there already (`duplicate`).  [R8]"""

    base_offset: int
    new_offset: int
    duplicate: bool


class Truncated(msgspec.Struct, frozen=True, tag=True):
    """A follower cut its log back to what the original's epochs say.  [S004:AS]"""

    from_offset: int
    to_offset: int


class LostRange(msgspec.Struct, frozen=True, tag=True):
    """Power failures took what was committed from every in-sync replica: S goes back to `start`.
    Before it was `end`, as far as anybody knows; not above `start`: nothing is known to be lost."""

    epoch: int
    start: int
    end: int
    unclean: bool = False
    """Or those are gone for ever, and we were put in their place."""


Event: TypeAlias = (
    Elected
    | Recovered
    | Deposed
    | RoundOpened
    | Committed
    | Sealed
    | MemberRemoved
    | MemberJoined
    | Orphaned
    | Republished
    | Truncated
    | LostRange
)

Effect: TypeAlias = (
    Tell
    | Answer
    | Advance
    | Sync
    | Elect
    | Resign
    | ChangeIsr
    | SetSync
    | Lose
    | Replace
    | Lock
    | Unlock
    | Note
)
Effects: TypeAlias = list[Effect]
