"""Topics on the wire: create, delete, more partitions."""

from typing import TYPE_CHECKING

from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.replies import Outcome, Reply, Request, reply
from orderwire.broker.topic_config import TOPIC_KEYS, Refusal
from orderwire.broker.topics import Topic
from orderwire.broker.wire.codec import ZERO_UUID
from orderwire.broker.wire.generated.create_partitions import (
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from orderwire.broker.wire.generated.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsResponse,
)
from orderwire.broker.wire.generated.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from orderwire.kernel import Instant

if TYPE_CHECKING:
    from orderwire.broker.node import Broker

_REPLICAS = 1
_TWICE = "the request names topic {!r} more than once"


def create_topics(broker: "Broker", request: Request, now: Instant) -> Reply | Outcome:
    """Make topics, or only say whether they could be made."""
    body = request.body
    names = [one.name for one in body.topics]
    results = []
    for one in body.topics:
        if names.count(one.name) > 1:
            made: Topic | Refusal = Refusal(ErrorCode.INVALID_REQUEST, _TWICE.format(one.name))
        else:
            made = _create(broker, one, dry_run=body.validate_only)
        results.append(_created(broker, one.name, made))
    return reply(request, CreateTopicsResponse(topics=results))


def _create(broker: "Broker", ask: CreatableTopic, *, dry_run: bool) -> Topic | Refusal:
    partitions = ask.num_partitions
    if ask.assignments:
        assigned = {one.partition_index: tuple(one.broker_ids) for one in ask.assignments}
        partitions = len(assigned)
        if ask.num_partitions not in (-1, partitions) or ask.replication_factor not in (
            -1,
            _REPLICAS,
        ):
            message = "partition count and replication factor must be -1 beside an assignment"
            return Refusal(ErrorCode.INVALID_REQUEST, message)
        here = (broker.settings.node_id,)
        if sorted(assigned) != list(range(partitions)) or any(
            brokers != here for brokers in assigned.values()
        ):
            message = f"partitions must be 0 … n-1, each on broker {broker.settings.node_id} alone"
            return Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
    elif ask.replication_factor not in (-1, _REPLICAS):
        message = f"replication factor {ask.replication_factor}: there is one broker"
        return Refusal(ErrorCode.INVALID_REPLICATION_FACTOR, message)
    configs: dict[str, str] = {}
    for config in ask.configs:
        if config.value is None:
            return Refusal(ErrorCode.INVALID_CONFIG, f"no value for config {config.name!r}")
        configs[config.name] = config.value
    made = broker.topics.create(ask.name, partitions, configs, dry_run=dry_run)
    if isinstance(made, Topic) and not dry_run:
        broker.open_partitions(made)
    return made


def _created(broker: "Broker", name: str, made: Topic | Refusal) -> CreatableTopicResult:
    if isinstance(made, Refusal):
        return CreatableTopicResult(
            name=name, error_code=made.error, error_message=made.message, configs=None
        )
    return CreatableTopicResult(
        name=name,
        topic_id=made.topic_id if broker.topics.get(name) is made else ZERO_UUID,
        error_message=None,
        num_partitions=made.partitions,
        replication_factor=_REPLICAS,
        configs=[
            CreatableTopicConfigs(
                key, broker.topics.config(made, key), False, broker.topics.config_source(made, key)
            )
            for key in TOPIC_KEYS
        ],
    )


def delete_topics(broker: "Broker", request: Request, now: Instant) -> Reply | Outcome:
    """Delete topics by name, from version 6 on also by id."""
    body = request.body
    asked = body.topics
    if request.version < 6:
        asked = [DeleteTopicState(name=name) for name in body.topic_names]
    results = []
    for ask in asked:
        by_name = ask.name is not None
        topic = broker.topics.get(ask.name) if by_name else broker.topics.by_id(bytes(ask.topic_id))
        if topic is None:
            error = ErrorCode.UNKNOWN_TOPIC_ID
            if by_name:
                error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            results.append(DeletableTopicResult(ask.name, bytes(ask.topic_id), error))
            continue
        broker.topics.delete(topic)
        broker.close_partitions(topic)
        results.append(DeletableTopicResult(topic.name, topic.topic_id))
    return reply(request, DeleteTopicsResponse(responses=results))


def create_partitions(broker: "Broker", request: Request, now: Instant) -> Reply | Outcome:
    """Give topics more partitions, or only say whether that could be done."""
    names = [one.name for one in request.body.topics]
    results = []
    for one in request.body.topics:
        if names.count(one.name) > 1:
            grown: Topic | Refusal = Refusal(ErrorCode.INVALID_REQUEST, _TWICE.format(one.name))
        else:
            grown = _grow(broker, one, dry_run=request.body.validate_only)
        if isinstance(grown, Refusal):
            results.append(CreatePartitionsTopicResult(one.name, grown.error, grown.message))
        else:
            results.append(CreatePartitionsTopicResult(one.name))
    return reply(request, CreatePartitionsResponse(results=results))


def _grow(broker: "Broker", ask: CreatePartitionsTopic, *, dry_run: bool) -> Topic | Refusal:
    topic = broker.topics.get(ask.name)
    if topic is None:
        message = f"there is no topic {ask.name!r}"
        return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
    if ask.assignments is not None:
        here = [broker.settings.node_id]
        new = ask.count - topic.partitions
        if len(ask.assignments) != new or any(
            list(one.broker_ids) != here for one in ask.assignments
        ):
            message = f"{new} new partitions must each be on broker {here[0]} alone"
            return Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
    grown = broker.topics.grow(topic, ask.count, dry_run=dry_run)
    if isinstance(grown, Topic) and not dry_run:
        broker.open_partitions(grown)
    return grown
