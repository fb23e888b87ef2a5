"""A lane is one channel to and from one peer: what it holds, counts and is connected to."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import msgspec

from orderwire.aio.frames import Range, Way
from orderwire.aio.inbound import Inbound
from orderwire.aio.outbound import Outbound
from orderwire.kernel import Instant, ProcessId

if TYPE_CHECKING:
    from orderwire.aio.link import Link


class Counters(msgspec.Struct):
    """What one lane counted.  In copies (PDUs to or from one peer), unless it says otherwise."""

    sent: int = 0
    received: int = 0
    """Handed to the receiver, each once."""
    retransmitted: int = 0
    """Sent again."""
    nacked: int = 0
    """Asked for; a copy counts each time."""
    lost: int = 0
    """Given up and told to the receiver."""
    duplicate: int = 0
    """Had come before; dropped."""
    late: int = 0
    """Came after it was given up; dropped."""
    refused: int = 0
    """Dropped because too many gaps were open; comes again."""
    dropped: int = 0
    """Not sent: expired, crowded out, or overtaken by the peer's end, while waiting for room."""
    unconfirmed: int = 0
    """Sent to a peer that ended, fell silent or restarted: whether they came is not known."""
    notices: int = 0
    """Notices sent: of copies that will not come, or may not come in time."""
    reports: int = 0
    """Reports sent, in datagrams."""
    heartbeats: int = 0
    """Heartbeats sent, in datagrams."""


class Receiver(Protocol):
    """Where a lane's copies go: a channel."""

    def take(self, source: ProcessId, pdus: list[memoryview], arrived: Instant) -> None:
        """Take PDUs, each for the first time."""
        ...

    def lose(self, source: ProcessId, lost: list[Range]) -> None:
        """Learn that these copies will never come."""
        ...

    def settle(self) -> None:
        """A batch of calls of the others has ended."""
        ...

    def has_room(self) -> None:
        """Something that waited for a window was sent or settled."""
        ...

    def pack(self, lane: "Lane") -> None:
        """Let everything that was written to this peer so far be in the lane's queue."""
        ...

    def restarted(self, source: ProcessId) -> None:
        """The peer is a new incarnation: copies to it and from it count from 0."""
        ...


class Wire(Protocol):
    """What a link sends through."""

    def datagrams(self, to: ProcessId, data: list[bytes]) -> None:
        """Send these; any may be lost."""
        ...

    def over_stream(self, to: ProcessId, data: bytes) -> bool:
        """Send a datagram's content over the stream; False when there is none."""
        ...


class Lane:
    """One channel to and from one peer."""

    __slots__ = (
        "counters",
        "header_only",
        "inbound",
        "link",
        "outbound",
        "receiver",
        "report_now",
        "sent_before",
        "way",
    )

    def __init__(self, link: "Link", way: Way, lifetime_ns: int | None, receiver: Receiver) -> None:
        self.link = link
        self.way = way
        self.receiver = receiver
        self.outbound = Outbound(lifetime_ns)
        self.inbound = Inbound()
        self.counters = Counters()
        self.report_now = False
        self.header_only: Callable[[memoryview], bytes] | None = None
        """Makes the notice of a copy; None: no receiver has any use for one."""
        self.sent_before = 0
        """Copies that were meant for earlier incarnations of the peer."""

    @property
    def channel(self) -> int:
        """The channel's number."""
        return self.way.channel

    def meet(self, session: int) -> None:
        """The peer has said for the first time who it is: what waits is for it."""
        self.way = self.way._replace(target=session)
        self.outbound.readdress(session)

    def meet_again(self, session: int) -> list[Range]:
        """The peer is a new incarnation.  Nothing that was meant for the one before is for it.

        Returns the copies of the earlier one that were missing: nobody has them any more.
        """
        missing = [Range(gap.first, gap.last) for gap in self.inbound.gaps]
        self.inbound = Inbound()
        self.sent_before += self.outbound.next_number
        self.outbound = self.outbound.renewed()
        self.way = self.way._replace(target=session)
        return missing

    def count(self) -> None:
        """Bring the counters up to what the sending half has counted."""
        self.counters.dropped = self.outbound.dropped
        self.counters.unconfirmed = self.outbound.unconfirmed
