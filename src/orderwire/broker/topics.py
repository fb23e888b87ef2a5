"""Which topics exist: names, ids, partition counts, configurations.

All of it is one small file, replaced as a whole at every change and before the change is answered.
"""

import re
from collections.abc import Iterator, Mapping
from random import Random

import msgspec

from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.log.storage import Storage
from orderwire.broker.topic_config import TOPIC_KEYS, ConfigSource, Refusal, check_configs
from orderwire.kernel.errors import OrderwireError
from orderwire.kernel.parsing import UNREADABLE

TOPIC_NAME_CHARACTERS_MAX = 249
_NAME = re.compile(r"[a-zA-Z0-9._-]+")
_FILE = "topics.json"
_VERSION = 1


class TopicsDamaged(OrderwireError):
    """The file of topics does not read."""


class TopicSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the broker decides for topics that do not say."""

    auto_create: bool = True
    """Whether metadata and produce requests make topics that are missing."""
    default_partitions: int = 1
    """Partitions of a topic whose creator did not say."""
    partitions_max: int = 10_000
    """Partitions of one topic."""
    partitions_total_max: int = 100_000
    """Partitions of one broker."""
    configs: dict[str, str] = {}
    """Topic settings that apply where a topic has none of its own."""


class Topic(msgspec.Struct, frozen=True):
    """One topic."""

    name: str
    topic_id: bytes
    """Sixteen bytes; a topic of the same name that is made later has another id."""
    partitions: int
    configs: dict[str, str] = {}
    """What was set for this topic; everything else is the broker's default."""
    replicas: tuple[tuple[int, ...], ...] = ()
    """In a cluster: the brokers of each partition, who is preferred as original first; empty at a
    broker that is alone."""
    replication: int = 0
    """In a cluster: copies that each partition shall have once there are so many brokers; 0: as
    many as it has."""


class _Kept(msgspec.Struct, frozen=True):
    version: int
    topics: list[Topic]


class TopicStore:
    """The topics of one broker."""

    def __init__(self, files: Storage, settings: TopicSettings, chance: Random) -> None:
        refusal = check_configs(settings.configs)
        if refusal is not None:
            raise ValueError(f"topic defaults of the broker: {refusal.message}")
        self._files = files
        self._settings = settings
        self._chance = chance
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[bytes, Topic] = {}
        self._load()

    def __iter__(self) -> Iterator[Topic]:
        return iter([self._by_name[name] for name in sorted(self._by_name)])

    def get(self, name: str) -> Topic | None:
        """Return the topic of this name."""
        return self._by_name.get(name)

    def by_id(self, topic_id: bytes) -> Topic | None:
        """Return the topic of this id."""
        return self._by_id.get(topic_id)

    @property
    def auto_create(self) -> bool:
        """Whether missing topics are made when they are asked for."""
        return self._settings.auto_create

    def config(self, topic: Topic, name: str) -> str:
        """Return the value of this key that holds for the topic."""
        value = topic.configs.get(name)
        return self.default_config(name) if value is None else value

    def default_config(self, name: str) -> str:
        """Return the broker's value of this key."""
        return self._settings.configs.get(name, TOPIC_KEYS[name].default)

    def config_source(self, topic: Topic | None, name: str) -> ConfigSource:
        """Say where the value of this key comes from."""
        if topic is not None and name in topic.configs:
            return ConfigSource.TOPIC
        if name in self._settings.configs:
            return ConfigSource.STATIC_BROKER
        return ConfigSource.DEFAULT

    # -- changes ----------------------------------------------------------------------------

    def create(
        self, name: str, partitions: int, configs: Mapping[str, str], *, dry_run: bool = False
    ) -> Topic | Refusal:
        """Make a topic; -1 partitions stands for the default."""
        why = name_error(name)
        if why is not None:
            return Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, why)
        if name in self._by_name:
            return Refusal(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name!r} already exists")
        clash = self._colliding(name)
        if clash is not None:
            message = f"topic {name!r} collides with {clash!r}: '.' and '_' are not told apart"
            return Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, message)
        count = self._settings.default_partitions if partitions == -1 else partitions
        refusal = self._partitions_error(count, count) or check_configs(configs)
        if refusal is not None:
            return refusal
        topic = Topic(name, self._new_id(), count, dict(configs))
        if not dry_run:
            self._put(topic)
        return topic

    def take(self, topic: Topic) -> None:
        """Keep a topic as it is given: it was checked where it was made."""
        self._put(topic)

    def delete(self, topic: Topic) -> None:
        """Forget a topic.  Raises StorageError; then nothing has changed."""
        self._save([kept for kept in self if kept.name != topic.name])
        del self._by_name[topic.name]
        del self._by_id[topic.topic_id]

    def grow(self, topic: Topic, partitions: int, *, dry_run: bool = False) -> Topic | Refusal:
        """Give a topic more partitions."""
        if partitions <= topic.partitions:
            message = f"topic {topic.name!r} has {topic.partitions} partitions: cannot change to"
            return Refusal(ErrorCode.INVALID_PARTITIONS, f"{message} {partitions}, only grow")
        refusal = self._partitions_error(partitions, partitions - topic.partitions)
        if refusal is not None:
            return refusal
        grown = msgspec.structs.replace(topic, partitions=partitions)
        if not dry_run:
            self._put(grown)
        return grown

    def configure(
        self, topic: Topic, changes: Mapping[str, str | None], *, dry_run: bool = False
    ) -> Topic | Refusal:
        """Set keys, or give them back to the broker's default (None)."""
        unknown = next((name for name in changes if name not in TOPIC_KEYS), None)
        if unknown is not None:
            return Refusal(ErrorCode.INVALID_CONFIG, f"unknown topic config name: {unknown}")
        refusal = check_configs({k: v for k, v in changes.items() if v is not None})
        if refusal is not None:
            return refusal
        configs = dict(topic.configs)
        for name, value in changes.items():
            if value is None:
                configs.pop(name, None)
            else:
                configs[name] = value
        changed = msgspec.structs.replace(topic, configs=configs)
        if not dry_run:
            self._put(changed)
        return changed

    def _partitions_error(self, count: int, more: int) -> Refusal | None:
        if not 1 <= count <= self._settings.partitions_max:
            message = f"{count} partitions: expected 1 … {self._settings.partitions_max}"
            return Refusal(ErrorCode.INVALID_PARTITIONS, message)
        return self.room_for(more)

    def room_for(self, more: int) -> Refusal | None:
        """Say why there cannot be so many partitions more."""
        total = sum(topic.partitions for topic in self._by_name.values()) + more
        if total > self._settings.partitions_total_max:
            message = f"{total} partitions on this broker: its limit is"
            limit = self._settings.partitions_total_max
            return Refusal(ErrorCode.POLICY_VIOLATION, f"{message} {limit}")
        return None

    def _colliding(self, name: str) -> str | None:
        if "." not in name and "_" not in name:
            return None
        folded = name.replace(".", "_")
        return next((o for o in sorted(self._by_name) if o.replace(".", "_") == folded), None)

    def _new_id(self) -> bytes:
        while True:
            topic_id = self._chance.getrandbits(128).to_bytes(16, "big")
            if topic_id not in self._by_id and int.from_bytes(topic_id, "big") > 1:
                return topic_id

    # -- disk -------------------------------------------------------------------------------

    def _put(self, topic: Topic) -> None:
        self._save([*(kept for kept in self if kept.name != topic.name), topic])
        self._by_name[topic.name] = topic
        self._by_id[topic.topic_id] = topic

    def _save(self, topics: list[Topic]) -> None:
        self._files.replace_file(_FILE, msgspec.json.encode(_Kept(_VERSION, topics)))

    def _load(self) -> None:
        data = self._files.read_file(_FILE)
        if data is None:
            return
        try:
            kept = msgspec.json.decode(data, type=_Kept)
        except UNREADABLE as error:
            raise TopicsDamaged(f"{_FILE} ({len(data)} bytes) does not read: {error}") from error
        if kept.version != _VERSION:
            raise TopicsDamaged(f"{_FILE} has version {kept.version}; known: {_VERSION}")
        for topic in kept.topics:
            self._by_name[topic.name] = topic
            self._by_id[topic.topic_id] = topic


def name_error(name: str) -> str | None:
    """Say why this is no name for a topic, or None."""
    if not name or name in (".", ".."):
        return f"topic name {name!r} is not allowed"
    if len(name) > TOPIC_NAME_CHARACTERS_MAX:
        return f"topic name has {len(name)} characters; at most {TOPIC_NAME_CHARACTERS_MAX}"
    if _NAME.fullmatch(name) is None:
        return f"topic name {name!r} may hold only ASCII letters, digits, '.', '_' and '-'"
    return None
