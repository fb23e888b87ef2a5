"""Where a cluster keeps what in ZooKeeper, and in which form.  [S004:4.6]

Everything is below `/orderwire`, in the chroot of the ensemble's address:
`brokers/<id>` · `topics/<name>/<index>/{epoch,original,isr,syncStart,syncEnd,lost,lock/<id>}` ·
`config/acls` · `config/users/<name>` · `cluster_id` · `producer_ids`.
"""

import re
from itertools import pairwise
from typing import TypeVar

import msgspec

from orderwire.broker.replication.view import BrokerId, Loss
from orderwire.broker.topics import Topic
from orderwire.kernel import RemoteProtocolError, parsed

ROOT = "/orderwire"
BROKERS = f"{ROOT}/brokers"
TOPICS = f"{ROOT}/topics"
CONFIG = f"{ROOT}/config"
USERS = f"{CONFIG}/users"
CLUSTER_ID = f"{ROOT}/cluster_id"
PRODUCER_IDS = f"{ROOT}/producer_ids"
FOLDERS = (BROKERS, TOPICS, USERS)
"""What has to be there before all else."""
BROKER_ID_MAX = (1 << 31) - 1
REPLICAS_MAX = 128
"""Brokers of one partition."""
_NUMBER = re.compile(rb"-1|0|[1-9][0-9]{0,18}")
_TOPIC_ID_BYTES = 16

_Data = TypeVar("_Data")


class Malformed(RemoteProtocolError):
    """A znode that no correct broker writes; the message says which and why."""


class BrokerData(msgspec.Struct, frozen=True):
    """A live broker, in its `brokers/<id>`."""

    host: str
    """Where clients find it."""
    port: int
    internal: str
    """HOST:PORT where the other brokers find it."""
    incarnation: str
    """New at every start of a process."""
    listeners: dict[str, str] = {}
    """Further listeners for clients by name, as HOST:PORT."""


class OriginalData(msgspec.Struct, frozen=True):
    """Who is original, in the ephemeral `original`."""

    id: BrokerId
    incarnation: str
    epoch: int


class IsrData(msgspec.Struct, frozen=True, omit_defaults=True):
    """The in-sync set, and the epoch in which it was written."""

    epoch: int
    isr: tuple[BrokerId, ...]
    unclean: bool = False
    """Whether it was put in the place of one that is gone, and the loss is not told yet."""


class TopicData(msgspec.Struct, frozen=True):
    """What `topics/<name>` holds."""

    topic_id: str
    """Hexadecimal."""
    partitions: int
    configs: dict[str, str]
    replicas: tuple[tuple[BrokerId, ...], ...]
    """Of each partition, who is preferred as original first."""
    replication: int = 0
    """Copies that it shall have; 0: as many as it has."""


class LostData(msgspec.Struct, frozen=True):
    """What `lost` holds: when S went back, and how far, oldest first.  [S004:4.8]"""

    losses: tuple[Loss, ...]


class SyncMark(msgspec.Struct, frozen=True):
    """What `syncStart` and `syncEnd` hold."""

    offset: int
    epoch: int
    round: int

    def encode(self) -> bytes:
        """Write `<offset>,<epoch>,<round>`."""
        return f"{self.offset},{self.epoch},{self.round}".encode("ascii")

    @classmethod
    def decode(cls, path: str, data: bytes) -> "SyncMark":
        """Raises Malformed."""
        parts = data[:100].split(b",")
        if len(parts) != 3:
            raise Malformed(f"{path} holds {data[:100]!r}; expected offset,epoch,round")
        return cls(*(decode_number(path, part) for part in parts))


NO_SYNC = SyncMark(-1, -1, 0)
"""Before anything was committed."""


class PartitionPaths:
    """The znodes of one partition."""

    __slots__ = ("epoch", "isr", "lock", "lost", "me", "original", "sync_end", "sync_start")

    def __init__(self, topic: str, index: int) -> None:
        self.me = f"{topic_path(topic)}/{index}"
        self.epoch = f"{self.me}/epoch"
        self.original = f"{self.me}/original"
        self.isr = f"{self.me}/isr"
        self.sync_start = f"{self.me}/syncStart"
        self.lost = f"{self.me}/lost"
        self.sync_end = f"{self.me}/syncEnd"
        self.lock = f"{self.me}/lock"

    def lock_of(self, broker: BrokerId) -> str:
        """A broker's request for a round."""
        return f"{self.lock}/{broker}"


def topic_path(name: str) -> str:
    """A topic's znode."""
    return f"{TOPICS}/{name}"


def broker_path(broker: BrokerId) -> str:
    """A broker's znode, there while it lives."""
    return f"{BROKERS}/{broker}"


def encode(data: msgspec.Struct) -> bytes:
    """Write what a znode holds."""
    return msgspec.json.encode(data)


def decode(kind: type[_Data], path: str, data: bytes) -> _Data:
    """Read what a znode holds.  Raises Malformed."""
    what = f"{path} holds {data[:100]!r}"
    return parsed(msgspec.json.Decoder(kind).decode, data, what, Malformed)


def decode_number(path: str, data: bytes) -> int:
    """Read a number from −1 on.  Raises Malformed."""
    if _NUMBER.fullmatch(data) is None:
        raise Malformed(f"{path} holds {data[:100]!r}; expected a number from -1 on")
    return int(data)


def decode_broker_id(path: str, name: str) -> BrokerId:
    """Read a znode's name that is a broker's number.  Raises Malformed."""
    number = decode_number(path, name.encode())
    if not 0 <= number <= BROKER_ID_MAX:
        raise Malformed(f"{path} is no broker's number")
    return BrokerId(number)


def decode_isr(path: str, data: bytes) -> IsrData:
    """Read an in-sync set: ascending, of at least one broker.  Raises Malformed."""
    found = decode(IsrData, path, data)
    _check_brokers(path, found.isr)
    return found


def encode_topic(topic: Topic) -> bytes:
    """Write a topic for its znode."""
    replicas = tuple(tuple(map(BrokerId, brokers)) for brokers in topic.replicas)
    return encode(
        TopicData(
            topic.topic_id.hex(), topic.partitions, topic.configs, replicas, topic.replication
        )
    )


def decode_topic(name: str, data: bytes) -> Topic:
    """Read a topic from its znode.  Raises Malformed."""
    path = topic_path(name)
    found = decode(TopicData, path, data)
    topic_id = parsed(bytes.fromhex, found.topic_id, f"{path} has topic_id", Malformed)
    if len(topic_id) != _TOPIC_ID_BYTES or not len(found.replicas) == found.partitions > 0:
        raise Malformed(
            f"{path}: a topic has an id of 16 bytes, one partition or more, and replicas for each"
        )
    if not 0 <= found.replication <= REPLICAS_MAX:
        raise Malformed(f"{path}: {found.replication} copies; expected 0 … {REPLICAS_MAX}")
    for brokers in found.replicas:
        _check_brokers(path, tuple(sorted(brokers)))
    return Topic(name, topic_id, found.partitions, found.configs, found.replicas, found.replication)


def _check_brokers(path: str, brokers: tuple[BrokerId, ...]) -> None:
    ascending = all(one < other for one, other in pairwise(brokers))
    if not (ascending and 0 < len(brokers) <= REPLICAS_MAX and brokers[0] >= 0):
        raise Malformed(f"{path}: brokers {brokers}; expected 1 … {REPLICAS_MAX}, ascending")
