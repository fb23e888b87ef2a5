"""Commands and indications that every ordering algorithm shares, and the contract of its codec."""

from enum import Enum
from typing import Protocol, TypeVar, runtime_checkable

import msgspec

from orderwire.kernel import Core, Destinations, Instant, ProcessId


class Multicast(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Command: send this payload to these processes (the sender itself may be one of them)."""

    payload: bytes
    destinations: Destinations
    lifetime_ns: int | None = None
    """How long after its stamp it may still be delivered; None = as long as the domain says.

    Most algorithms know one lifetime and refuse another with LocalProtocolError.
    """


class Lost(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Command: the link has given up on copies `first` … `last` of those `source` sent to me.

    Copies are counted by the link from 0, in the order of the source's Send effects to me.
    """

    source: ProcessId
    first: int
    last: int


class Restarted(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Command: this process has come back as a new incarnation, without memory.

    No copy sent to it before will reach it.  Copies to it and from it count from 0 again.
    """

    process: ProcessId


class DiscardReason(Enum):
    """Why a message that arrived was not delivered."""

    LATE = "late"
    DUPLICATE = "duplicate"
    FUTURE = "future"
    """Stamped further ahead of the local clock than ε and the guard allow."""
    FULL = "full"
    """Too many messages wait already: dropped as if the network had lost it."""
    EXPIRED = "expired"
    """Past its own lifetime, which is shorter than the domain's."""
    OVERTAKEN = "overtaken"
    """A message that it should have preceded could not wait any longer.  [R00]"""


class Sent(msgspec.Struct, frozen=True, gc=False):
    """Indication: the message of the last Multicast got this number and this stamp."""

    number: int
    """How many messages this process had sent before, in this group: its own send number from 0."""
    stamp: Instant
    destinations: Destinations
    control_bytes: int
    """Encoded control information of all its copies together, in bytes."""


class Delivered(msgspec.Struct, frozen=True, gc=False):
    """Indication: hand this message to the application."""

    source: ProcessId
    number: int
    stamp: Instant
    arrived: Instant
    """This process's clock when the copy was received; equals the send for a copy to oneself."""
    payload: bytes
    destinations: Destinations
    control_bytes: int
    """Encoded control information of this copy, in bytes: everything but the payload."""
    lifetime_ns: int | None = None
    """The message's own lifetime, where that is not the domain's."""


class Discarded(msgspec.Struct, frozen=True, gc=False):
    """Indication: this copy was dropped for ever."""

    source: ProcessId
    number: int
    stamp: Instant
    arrived: Instant
    reason: DiscardReason
    control_bytes: int
    payload_bytes: int


OrderingCommand = Multicast | Lost | Restarted
OrderingIndication = Sent | Delivered | Discarded

PduT = TypeVar("PduT")
PduT_contra = TypeVar("PduT_contra", contravariant=True)


class Codec(Protocol[PduT]):
    """How an algorithm's PDU looks on the wire.  One instance per member: it may keep caches."""

    def encode(self, pdu: PduT) -> bytes:
        """Return the whole PDU, control information first, payload last."""
        ...

    def decode(self, data: bytes | memoryview) -> PduT:
        """Parse what `encode` wrote.  Raises RemoteProtocolError on anything else."""
        ...


@runtime_checkable
class Noticing(Protocol[PduT]):
    """A core that can make of a copy the notice that it will not come."""

    def loss_notice(self, pdu: PduT) -> PduT:
        """Return what stands in its place: it waits as the copy would, and is not delivered."""
        ...


class Ordering(Core[OrderingCommand, PduT_contra], Protocol[PduT_contra]):
    """An ordering algorithm: a core whose commands and indications are those of this module.

    Effects of `submit(Multicast)`: one Send per remote destination (ascending), Indicate(Sent), and
    Indicate(Delivered) when the sender is a destination itself.
    """
