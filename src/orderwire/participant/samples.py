"""What a reader hands over, and what is counted."""

from typing import Any

import msgspec

from orderwire.kernel import NS_PER_MS, Instant


class Sample(msgspec.Struct, frozen=True, gc=False):
    """One message, handed over.  Instants are nanoseconds of the group's clock (Unix epoch)."""

    topic: str
    data: Any
    """Bytes, or what the topic's `decode` made of them."""
    source: str
    """Name of the member that wrote it."""
    number: int
    """How many messages that member had written in this ordering domain before, from 0."""
    stamp: Instant
    """When it was written, by the writer's clock; (source, stamp) identifies the message."""
    arrived: Instant
    """When it came here.  With `SelectiveTotal`: when the group handed it out."""
    delivered: Instant
    """When its turn in the order had come."""
    dropped_before: int = 0
    """How many samples this reader has dropped (queue full, expired) since the one before."""
    place: int = 0
    """Its place among the data that `write_many` packed into this message, from 0."""
    lifetime_ns: int | None = None
    """Its own lifetime, where that is not its order's."""

    @property
    def delay_ms(self) -> float:
        """From writing to delivery."""
        return (self.delivered - self.stamp) / NS_PER_MS

    @property
    def held_ms(self) -> float:
        """From arrival to delivery: what the order cost."""
        return (self.delivered - self.arrived) / NS_PER_MS


class Written(msgspec.Struct, frozen=True, gc=False):
    """What a writer knows of a message it wrote.  Whether it arrived is not among it."""

    number: int
    """How many messages this participant had written in this ordering domain before, from 0."""
    stamp: Instant
    members: int
    """To how many members it was sent, this one included when it reads the topic."""


class MemberChange(msgspec.Struct, frozen=True, gc=False):
    """Somebody has entered a group with one order, or has left it or died."""

    member: str
    """The participant's name."""
    entered: bool
    """Whether it has entered."""


class ReaderCounters(msgspec.Struct):
    """What one reader counted, in samples."""

    delivered: int = 0
    """Put into this reader's queue, in order."""
    handed_over: int = 0
    """Given to the application."""
    expired: int = 0
    """Outlived their lifetime in the queue and were never handed over."""
    dropped: int = 0
    """Removed or refused because the queue was full, by its policy."""
    undecodable: int = 0
    """`decode` raised."""
    abandoned: int = 0
    """Still waited when the participant was closed."""
    failed: int = 0
    """The callback raised."""


class Counters(msgspec.Struct):
    """What one participant counted in one ordering domain, or in all of them together."""

    written: int = 0
    """Messages sent to at least one member."""
    unread: int = 0
    """Writes that no reader matched: nothing was sent."""
    copies: int = 0
    """Copies of written messages, one for each member they were sent to, own ones included."""
    delivered: int = 0
    """Copies whose turn had come here; each goes to every matching reader."""
    late: int = 0
    """Copies that came after their lifetime, their own or the order's, and were dropped."""
    duplicate: int = 0
    """Copies that had come before, and were dropped."""
    refused: int = 0
    """Copies dropped since too many waited, since their stamp was far in the future, or since they
    had been overtaken by a message that could not wait for them."""
    lost: int = 0
    """Copies sent to this member that will never come, as far as it knows."""
    malformed: int = 0
    """PDUs that were the fault of a peer."""
    unclaimed: int = 0
    """Copies delivered after their last reader here had gone."""
    unsent: int = 0
    """Copies given up before they were sent: they expired, their member took too few, or left."""
    unconfirmed: int = 0
    """Copies under way to a member that left, fell silent or restarted: nobody knows if they came.
    """
    retransmitted: int = 0
    """Copies sent again."""
    control_bytes: int = 0
    """Encoded control information sent: everything but the topic's id and the data."""
    payload_bytes: int = 0
    """Data written, counted once a message."""


class DiscoveryCounters(msgspec.Struct, frozen=True, kw_only=True):
    """What a participant's discovery counted: what it said, and what peers and strangers did wrong.

    Data sockets count what strangers send them, too.
    """

    sent: int
    """Messages to other participants and the server, and …"""
    received: int
    """… from them."""
    unsent: int
    """Messages never written: their address could not be reached, or took too little."""
    malformed: int
    """Messages, MAPs and entries in ZooKeeper that no correct participant makes."""
    dropped: dict[str, int]
    """What was not kept because of a limit, by kind; anti-entropy repairs what it can."""
    refused: dict[str, int]
    """Connections closed as the other side's fault, by `orderwire.aio.discovery_faults.Fault`."""
    refused_hosts: dict[str, int]
    """The same by host."""
    data_strangers: int
    """Connections and datagrams to the data sockets of what is no member, or not known as one yet:
    a newcomer that is quicker than the news of it."""


def add_counters(total: Counters, part: Counters) -> None:
    """Add every count of one domain to the total."""
    for name in Counters.__struct_fields__:
        setattr(total, name, getattr(total, name) + getattr(part, name))
