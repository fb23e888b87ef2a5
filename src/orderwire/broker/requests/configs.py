"""Configurations on the wire: describe those of topics and broker, change those of topics."""

from collections.abc import Collection, Iterator
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.replies import Outcome, Reply, Request, reply
from orderwire.broker.requests.changes import Part, carried_out, of_the_cluster
from orderwire.broker.requests.permission import Operation as Permitted
from orderwire.broker.requests.permission import may_cluster, may_topic
from orderwire.broker.topic_config import TOPIC_KEYS, ConfigSource, ConfigType, Refusal
from orderwire.broker.topics import Topic
from orderwire.broker.wire.generated.describe_configs import (
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from orderwire.broker.wire.generated.incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsResponse,
)
from orderwire.kernel import NS_PER_MS, Instant

if TYPE_CHECKING:
    from orderwire.broker.node import Broker


_FOR_EVER = ("orderwire.mode", "orderwire.coordination")
"""What all replicas of a topic have to do alike from its first message on."""
_ALTER_WAIT_MS = 30_000


class Resource(IntEnum):
    """Kafka's numbers for what can have a configuration."""

    TOPIC = 2
    BROKER = 4


class Operation(IntEnum):
    """Kafka's numbers for what to do with one key."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class _Entry(msgspec.Struct, frozen=True):
    name: str
    value: str
    source: ConfigSource
    kind: ConfigType
    documentation: str
    read_only: bool
    synonyms: tuple[tuple[str, str, ConfigSource], ...] = ()


def describe_configs(broker: "Broker", request: Request, now: Instant) -> Reply | Outcome:
    """Describe the configuration of topics and of the broker."""
    body = request.body
    results = [
        _forbidden(broker, request, one)
        or _described(broker, one, synonyms=body.include_synonyms, texts=body.include_documentation)
        for one in body.resources
    ]
    return reply(request, DescribeConfigsResponse(results=results))


def _forbidden(
    broker: "Broker", request: Request, ask: DescribeConfigsResource
) -> DescribeConfigsResult | None:
    refusal = _may_not(
        broker, request, Permitted.DESCRIBE_CONFIGS, ask.resource_type, ask.resource_name
    )
    if refusal is None:
        return None
    return DescribeConfigsResult(
        refusal.error, refusal.message, ask.resource_type, ask.resource_name
    )


def _may_not(
    broker: "Broker", request: Request, operation: Permitted, kind: int, name: str
) -> Refusal | None:
    if kind == Resource.TOPIC:
        if may_topic(broker, request, operation, name):
            return None
        message = f"the configuration of {name!r} is not yours to see or to alter"
        return Refusal(ErrorCode.TOPIC_AUTHORIZATION_FAILED, message)
    if may_cluster(broker, request, operation):
        return None
    message = "the broker's configuration is not yours to see or to alter"
    return Refusal(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, message)


def _described(
    broker: "Broker", ask: DescribeConfigsResource, *, synonyms: bool, texts: bool
) -> DescribeConfigsResult:
    found = _entries(broker, ask.resource_type, ask.resource_name)
    if isinstance(found, Refusal):
        return DescribeConfigsResult(
            found.error, found.message, ask.resource_type, ask.resource_name
        )
    wanted: Collection[str] | None = ask.configuration_keys or None
    configs = [
        DescribeConfigsResourceResult(
            name=entry.name,
            value=entry.value,
            read_only=entry.read_only,
            config_source=entry.source,
            synonyms=[DescribeConfigsSynonym(*one) for one in entry.synonyms] if synonyms else (),
            config_type=entry.kind,
            documentation=entry.documentation if texts else None,
        )
        for entry in found
        if wanted is None or entry.name in wanted
    ]
    return DescribeConfigsResult(
        ErrorCode.NONE, None, ask.resource_type, ask.resource_name, configs
    )


def _entries(broker: "Broker", kind: int, name: str) -> "Iterator[_Entry] | Refusal":
    if kind == Resource.TOPIC:
        topic = broker.topics.get(name)
        if topic is None:
            message = f"there is no topic {name!r}"
            return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
        return _topic_entries(broker, topic)
    if kind == Resource.BROKER:
        if name not in ("", str(broker.settings.node_id)):
            message = f"this is broker {broker.settings.node_id}, not {name!r}"
            return Refusal(ErrorCode.INVALID_REQUEST, message)
        return _broker_entries(broker)
    message = f"resource type {kind}: only topics (2) and brokers (4) have configurations"
    return Refusal(ErrorCode.INVALID_REQUEST, message)


def _topic_entries(broker: "Broker", topic: Topic) -> Iterator[_Entry]:
    topics = broker.topics
    for name, key in TOPIC_KEYS.items():
        source = topics.config_source(topic, name)
        broker_value = (name, topics.default_config(name), topics.config_source(None, name))
        own = ((name, topic.configs[name], ConfigSource.TOPIC),) if name in topic.configs else ()
        yield _Entry(
            name,
            topics.config(topic, name),
            source,
            key.kind,
            key.documentation,
            read_only=False,
            synonyms=(*own, broker_value),
        )


def _broker_entries(broker: "Broker") -> Iterator[_Entry]:
    settings = broker.settings
    own = (
        ("broker.id", str(settings.node_id), ConfigType.INT, "The broker's number."),
        ("orderwire.flush", settings.flush.value, ConfigType.STRING, "When produce is answered."),
        (
            "auto.create.topics.enable",
            str(settings.topics.auto_create).lower(),
            ConfigType.BOOLEAN,
            "Whether missing topics are made when they are asked for.",
        ),
        (
            "num.partitions",
            str(settings.topics.default_partitions),
            ConfigType.INT,
            "Partitions of a topic whose creator did not say.",
        ),
        (
            "default.replication.factor",
            "1" if broker.replicas is None else str(settings.replication),
            ConfigType.INT,
            "Copies of a new topic.",
        ),
        (
            "group.initial.rebalance.delay.ms",
            str(settings.groups.initial_rebalance_delay_ns // NS_PER_MS),
            ConfigType.INT,
            "How long an empty group waits for more members.",
        ),
        (
            "offsets.retention.minutes",
            str(settings.groups.offsets_retention_ns // (60_000 * NS_PER_MS)),
            ConfigType.INT,
            "How long an empty group keeps its offsets.",
        ),
    )
    for name, value, kind, documentation in own:
        yield _Entry(name, value, ConfigSource.STATIC_BROKER, kind, documentation, read_only=True)
    for name, key in TOPIC_KEYS.items():
        yield _Entry(
            f"log.{name}",
            broker.topics.default_config(name),
            broker.topics.config_source(None, name),
            key.kind,
            key.documentation,
            read_only=True,
        )


def incremental_alter_configs(broker: "Broker", request: Request, now: Instant) -> Reply | Outcome:
    """Set topic keys, or give them back to the default."""
    asked = request.body.resources
    parts: list[Part] = [
        _may_not(broker, request, Permitted.ALTER_CONFIGS, ask.resource_type, ask.resource_name)
        or of_the_cluster(broker, ask.resource_name)
        or _altered(broker, ask, now, dry_run=request.body.validate_only)
        for ask in asked
    ]

    def respond(results: list[Refusal | None]) -> IncrementalAlterConfigsResponse:
        return IncrementalAlterConfigsResponse(
            responses=[
                AlterConfigsResourceResponse(
                    ErrorCode.NONE if refusal is None else refusal.error,
                    None if refusal is None else refusal.message,
                    ask.resource_type,
                    ask.resource_name,
                )
                for ask, refusal in zip(asked, results, strict=True)
            ]
        )

    return carried_out(broker, request, parts, respond, _ALTER_WAIT_MS, now)


def _altered(broker: "Broker", ask: AlterConfigsResource, now: Instant, *, dry_run: bool) -> Part:
    if ask.resource_type != Resource.TOPIC:
        message = "only topics can be configured while the broker runs"
        return Refusal(ErrorCode.INVALID_REQUEST, message)
    topic = broker.topics.get(ask.resource_name)
    if topic is None:
        message = f"there is no topic {ask.resource_name!r}"
        return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
    changes: dict[str, str | None] = {}
    for config in ask.configs:
        if config.name in changes:
            message = f"the request names config {config.name!r} more than once"
            return Refusal(ErrorCode.INVALID_REQUEST, message)
        value = config.value
        if config.config_operation == Operation.DELETE:
            value = None
        elif value is None:
            return Refusal(ErrorCode.INVALID_CONFIG, f"no value for config {config.name!r}")
        elif config.config_operation in (Operation.APPEND, Operation.SUBTRACT):
            edited = _edited(broker, topic, config.name, value, config.config_operation)
            if isinstance(edited, Refusal):
                return edited
            value = edited
        elif config.config_operation != Operation.SET:
            message = f"config operation {config.config_operation} is unknown"
            return Refusal(ErrorCode.INVALID_REQUEST, message)
        changes[config.name] = value
    replicas = broker.replicas
    if replicas is not None:
        for name in _FOR_EVER:
            if name in changes and changes[name] != topic.configs.get(name):
                return Refusal(ErrorCode.INVALID_CONFIG, f"{name} is chosen when a topic is made")
    changed = broker.topics.configure(topic, changes, dry_run=dry_run or replicas is not None)
    if isinstance(changed, Refusal):
        return changed
    if replicas is not None:
        return None if dry_run else partial(replicas.cluster.change, changed)
    if not dry_run:
        broker.reconfigure(changed, now)
    return None


def _edited(broker: "Broker", topic: Topic, name: str, value: str, operation: int) -> str | Refusal:
    key = TOPIC_KEYS.get(name)
    if key is None or key.kind is not ConfigType.LIST:
        message = f"config {name!r} is no list: it can be set and deleted only"
        return Refusal(ErrorCode.INVALID_CONFIG, message)
    items = broker.topics.config(topic, name).split(",")
    for item in value.split(","):
        if operation == Operation.APPEND and item not in items:
            items.append(item)
        elif operation == Operation.SUBTRACT and item in items:
            items.remove(item)
    return ",".join(items)
