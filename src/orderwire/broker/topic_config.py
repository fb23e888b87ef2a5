"""The configuration of a topic: which keys exist, what they may hold, what they are by default."""

from collections.abc import Callable, Mapping
from enum import IntEnum

import msgspec

from orderwire.broker.error_codes import ErrorCode

INT64_MAX = (1 << 63) - 1


class Refusal(msgspec.Struct, frozen=True):
    """Why a request was not carried out, for the client to read."""

    error: ErrorCode
    message: str


class ConfigType(IntEnum):
    """Kafka's numbers for the type of a configuration value."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


class ConfigSource(IntEnum):
    """Kafka's numbers for where a value comes from."""

    TOPIC = 1
    STATIC_BROKER = 4
    DEFAULT = 5


class ConfigKey(msgspec.Struct, frozen=True):
    """One key that a topic may set."""

    name: str
    kind: ConfigType
    default: str
    documentation: str
    refuse: Callable[[str], str | None]
    """Returns why a value is refused, or None."""


def _between(lowest: int, highest: int) -> Callable[[str], str | None]:
    def refuse(value: str) -> str | None:
        try:
            number = int(value)
        except ValueError:
            return f"{value!r} is no integer"
        if lowest <= number <= highest:
            return None
        return f"{number} is outside {lowest} … {highest}"

    return refuse


def _one_of(*allowed: str) -> Callable[[str], str | None]:
    def refuse(value: str) -> str | None:
        if value in allowed:
            return None
        return f"{value!r} is not supported; supported: {', '.join(allowed)}"

    return refuse


def _ratio(value: str) -> str | None:
    try:
        number = float(value)
    except ValueError:
        return f"{value!r} is no number"
    return None if 0 <= number <= 1 else f"{value} is outside 0 … 1"


def _cleanup_policy(value: str) -> str | None:
    if "compact" in value.split(","):
        return "log compaction is not supported: use cleanup.policy=delete"
    return None if value == "delete" else f"{value!r} is not supported; supported: delete"


_LONG_FROM_MINUS_1 = _between(-1, INT64_MAX)

TOPIC_KEYS: Mapping[str, ConfigKey] = {
    key.name: key
    for key in (
        ConfigKey(
            "cleanup.policy",
            ConfigType.LIST,
            "delete",
            "Old segments are deleted; compaction is refused.",
            _cleanup_policy,
        ),
        ConfigKey(
            "compression.type",
            ConfigType.STRING,
            "producer",
            "Batches are kept as the producer compressed them.",
            _one_of("producer"),
        ),
        ConfigKey(
            "max.message.bytes",
            ConfigType.INT,
            "1048588",
            "Largest record batch, in bytes.",
            _between(1, (1 << 31) - 1),
        ),
        ConfigKey(
            "message.timestamp.type",
            ConfigType.STRING,
            "CreateTime",
            "A record's time is the producer's.",
            _one_of("CreateTime"),
        ),
        ConfigKey(
            "min.insync.replicas",
            ConfigType.INT,
            "1",
            "In-sync replicas that acks=all needs.",
            _between(1, (1 << 15) - 1),
        ),
        ConfigKey(
            "retention.bytes",
            ConfigType.LONG,
            "-1",
            "Largest size of a partition before its oldest segment goes; -1: no limit.",
            _LONG_FROM_MINUS_1,
        ),
        ConfigKey(
            "retention.ms",
            ConfigType.LONG,
            "604800000",
            "How long a segment is kept, in milliseconds; -1: for ever.",
            _LONG_FROM_MINUS_1,
        ),
        ConfigKey(
            "segment.bytes",
            ConfigType.INT,
            "1073741824",
            "Size at which a new segment file begins.",
            _between(1_024, (1 << 31) - 1),
        ),
        ConfigKey(
            "segment.ms",
            ConfigType.LONG,
            "604800000",
            "Age at which a new segment file begins, in milliseconds.",
            _between(1, INT64_MAX),
        ),
        ConfigKey(
            "orderwire.mode",
            ConfigType.STRING,
            "active-standby",
            "In a cluster: active-standby, active-active or active-active-lanes; for ever.",
            _one_of("active-standby", "active-active", "active-active-lanes"),
        ),
        ConfigKey(
            "orderwire.sync.interval.ms",
            ConfigType.LONG,
            "1000",
            "Active-active: a round at least so often while anything waits for one.",
            _between(1, 3_600_000),
        ),
        ConfigKey(
            "orderwire.sync.on.fetch",
            ConfigType.BOOLEAN,
            "true",
            "Active-active: a consumer that waits starts a round.",
            _one_of("true", "false"),
        ),
        ConfigKey(
            "orderwire.eager.copy",
            ConfigType.BOOLEAN,
            "true",
            "Active-active: batches are copied before a round asks for them.",
            _one_of("true", "false"),
        ),
        ConfigKey(
            "orderwire.round.timeout.ms",
            ConfigType.LONG,
            "2000",
            "A replica that answers later leaves the in-sync set.",
            _between(10, 3_600_000),
        ),
        ConfigKey(
            "orderwire.hole.policy",
            ConfigType.STRING,
            "seal",
            "Active-active, offsets that no in-sync replica has: seal, or wait for who may.",
            _one_of("seal", "wait"),
        ),
        ConfigKey(
            "orderwire.hole.timeout.ms",
            ConfigType.LONG,
            "0",
            "Active-active: how long a hole waits before it is sealed.",
            _between(0, 3_600_000),
        ),
        ConfigKey(
            "orderwire.orphan.policy",
            ConfigType.STRING,
            "republish",
            "Active-active, batches that were committed without: republish, quarantine or drop.",
            _one_of("republish", "quarantine", "drop"),
        ),
        ConfigKey(
            "orderwire.distribution",
            ConfigType.STRING,
            "session",
            "Active-active: who stores a batch is chosen per producer session, or per request.",
            _one_of("session", "request"),
        ),
        ConfigKey(
            "orderwire.coordination",
            ConfigType.STRING,
            "rpc",
            "Active-active: rounds by calls, or by znodes as the paper has them; for ever.",
            _one_of("rpc", "zookeeper"),
        ),
        # Kept and shown because clients set them; they choose nothing here.
        ConfigKey(
            "delete.retention.ms",
            ConfigType.LONG,
            "86400000",
            "Only of use with compaction; kept as given.",
            _between(0, INT64_MAX),
        ),
        ConfigKey(
            "file.delete.delay.ms",
            ConfigType.LONG,
            "60000",
            "Deleted files go at once, open reads still end; kept as given.",
            _between(0, INT64_MAX),
        ),
        ConfigKey(
            "flush.messages",
            ConfigType.LONG,
            str(INT64_MAX),
            "The broker's --flush decides; kept as given.",
            _between(1, INT64_MAX),
        ),
        ConfigKey(
            "flush.ms",
            ConfigType.LONG,
            str(INT64_MAX),
            "The broker's --flush decides; kept as given.",
            _between(0, INT64_MAX),
        ),
        ConfigKey(
            "min.cleanable.dirty.ratio",
            ConfigType.DOUBLE,
            "0.5",
            "Only of use with compaction; kept as given.",
            _ratio,
        ),
        ConfigKey(
            "unclean.leader.election.enable",
            ConfigType.BOOLEAN,
            "false",
            "Whether a replica outside an in-sync set that is gone is elected without being asked"
            " for: what it lacks is lost.",
            _one_of("true", "false"),
        ),
    )
}
"""Every key that a topic may set, by name."""


def check_configs(configs: Mapping[str, str]) -> Refusal | None:
    """Return why these settings are refused, or None when all may be set."""
    for name, value in configs.items():
        key = TOPIC_KEYS.get(name)
        if key is None:
            return Refusal(ErrorCode.INVALID_CONFIG, f"unknown topic config name: {name}")
        why = key.refuse(value)
        if why is not None:
            return Refusal(ErrorCode.INVALID_CONFIG, f"invalid value for {name}: {why}")
    return None
