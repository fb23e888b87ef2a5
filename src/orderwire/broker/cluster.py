"""What a broker asks of its cluster, and what the cluster tells it.

Who is there, who is original of what, and topics are in ZooKeeper; the port hides it.  Every answer
that may take time comes through a callback, in the broker's thread, perhaps before the call
returns.
"""

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Protocol, TypeAlias
from zlib import crc32

import msgspec

from orderwire.broker.log import Refused
from orderwire.broker.replication.effects import Effect
from orderwire.broker.replication.view import BrokerId, PartitionView
from orderwire.broker.topic_config import Refusal
from orderwire.broker.topics import Topic
from orderwire.kernel import Instant

Done: TypeAlias = Callable[[Refusal | None], None]
"""Called once: None when it was done."""
GROUPS_TOPIC = "__consumer_offsets"
"""Holds consumer groups and their offsets.  Always active-standby."""


class Question(IntEnum):
    """What one broker asks another of a partition, beside what replicas tell each other."""

    DELETE_RECORDS = 0
    """The original: forget records before this offset, and tell where the log begins then."""
    END = 1
    """The original: one behind the last offset that was assigned."""
    START = 2
    """Any replica: where the log begins."""
    HAND_OVER = 3
    """The original: give the partition up to who is preferred; answered once it has begun."""
    EPOCH = 4
    """Any replica: the epoch of its log's last batch, −1 where there is none; one that is blank,
    and so is not elected, −3 less that."""
    LOG_END = 5
    """Any replica: one behind its log's last offset, committed or not."""


Told: TypeAlias = Callable[[int | Refused], None]
"""Called once with what a broker has answered."""


class BrokerAddress(msgspec.Struct, frozen=True):
    """Where clients find a broker that lives."""

    broker_id: BrokerId
    host: str
    port: int


class Cluster(Protocol):
    """What the broker may ask."""

    @property
    def cluster_id(self) -> str:
        """The same at every broker, for ever."""
        ...

    @property
    def me(self) -> BrokerId:
        """This broker."""
        ...

    def is_sure(self) -> bool:
        """Whether nobody can have taken over from us, by our own clock: this process may have been
        stopped without noticing yet.  [S004:4.6]"""
        ...

    def brokers(self) -> Sequence[BrokerAddress]:
        """Every broker that lives as far as known, ascending by id."""
        ...

    def may_have_ended(self, broker: BrokerId) -> bool:
        """Whether another broker's process has ended, or is being looked after: `brokers` has it
        until its session ends."""
        ...

    def view(self, topic: Topic, index: int) -> PartitionView | None:
        """The newest view of a partition, here or elsewhere; None when not known yet."""
        ...

    def create(self, topic: Topic, done: Done) -> None:
        """Make a topic with its partitions' znodes; its replicas are in `topic.replicas`."""
        ...

    def delete(self, topic: Topic, done: Done) -> None:
        """Delete a topic with all its znodes."""
        ...

    def change(self, topic: Topic, done: Done) -> None:
        """Put this in place of the topic of the same id: other configs, more partitions, or more
        replicas of them."""
        ...

    def learn(self, topics: Sequence[str], done: Callable[[Instant], None]) -> None:
        """Hear now of every topic that there is, and how these are by now: what is news of it is
        told first.  `done` is called in any case, perhaps late."""
        ...

    def producer_id(self, done: Callable[[int | Refusal], None]) -> None:
        """Hand out an id that no producer of the cluster ever had."""
        ...

    def ask(
        self, to: BrokerId, question: Question, topic: Topic, index: int, value: int, done: Told
    ) -> None:
        """Ask another broker; what it was told by replicas here before, it has taken by then."""
        ...

    def break_links(self) -> None:
        """End every connection to other brokers, soon, and connect anew: a replica here is no more.

        `links_broken` follows once they have ended, after `disconnected` of each.
        """
        ...

    def carry_out(self, topic: Topic, index: int, effect: Effect) -> None:
        """Do what a replica here asks for beyond this broker: Tell, Elect, ChangeIsr, Note, …;
        and Replace, of any partition."""
        ...


class ClusterMember(Protocol):
    """What the cluster tells a broker, in the broker's thread.  The broker core has these."""

    def topic_changed(self, topic: Topic) -> None:
        """A topic is there, or has more partitions or other configs than before."""
        ...

    def topic_gone(self, topic_id: bytes) -> None:
        """A topic was deleted."""
        ...

    def brokers_changed(self) -> None:
        """`Cluster.brokers` says something else than before."""
        ...

    def viewed(self, topic_id: bytes, index: int, view: PartitionView) -> None:
        """The view of a partition, here or elsewhere: new, changed, or after an attempt of ours."""
        ...

    def session_in_doubt(self, in_doubt: bool) -> None:
        """The ZooKeeper session may have ended, so that others are original; or it has not."""
        ...

    def session_lost(self) -> None:
        """The ZooKeeper session has ended."""
        ...

    def connected(self, broker: BrokerId) -> None:
        """A connection to another broker is there."""
        ...

    def disconnected(self, broker: BrokerId) -> None:
        """It broke, or the broker's znode is gone."""
        ...

    def links_broken(self) -> None:
        """Every connection that there was at the last `break_links` has ended."""
        ...

    def locked(self, topic_id: bytes, index: int) -> None:
        """Somebody made a child of the partition's `lock`."""
        ...

    def sync_end_seen(self, topic_id: bytes, index: int, end: int, epoch: int, round: int) -> None:
        """The partition's `syncEnd` was written."""
        ...

    def receive(
        self, topic_id: bytes, index: int, source: BrokerId, message: msgspec.Struct
    ) -> None:
        """A message of the partition's replica at another broker.  Raises RemoteProtocolError."""
        ...


def placed(
    brokers: Sequence[BrokerId], partitions: int, replication: int, first: int = 0
) -> tuple[tuple[BrokerId, ...], ...]:
    """Spread partitions from index `first` on over brokers, in turn; each list begins with who is
    preferred as original."""
    count = len(brokers)
    return tuple(
        tuple(brokers[(index + step) % count] for step in range(replication))
        for index in range(first, first + partitions)
    )


def named_leader(client_id: str, host: str, members: Sequence[BrokerId]) -> BrokerId:
    """The member of an in-sync set that this client is told as leader.  [S004:6.2.2]"""
    return members[crc32(f"{client_id}@{host}".encode()) % len(members)]


def group_partition(group_id: str, partitions: int) -> int:
    """Which partition of the internal topic keeps this group."""
    return crc32(group_id.encode()) % partitions
