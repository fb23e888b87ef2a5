"""Topics on the wire: create, delete, more partitions."""

from functools import partial
from typing import TYPE_CHECKING

from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.replies import Outcome, Reply, Request
from orderwire.broker.requests.changes import (
    Part,
    carried_out,
    creation,
    of_the_cluster,
    with_replicas,
)
from orderwire.broker.requests.permission import (
    Operation,
    may_create,
    may_topic,
    unseen_topic,
)
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
    checked: list[Topic | Refusal] = []
    parts: list[Part] = []
    for one in body.topics:
        if names.count(one.name) > 1:
            made: Topic | Refusal = Refusal(ErrorCode.INVALID_REQUEST, _TWICE.format(one.name))
        elif not may_create(broker, request, one.name):
            made = _may_not(one.name)
        else:
            made = of_the_cluster(broker, one.name) or _checked(broker, one)
        checked.append(made)
        if isinstance(made, Refusal):
            parts.append(made)
        elif body.validate_only:
            parts.append(None)
        else:
            parts.append(_making(broker, made, now))

    def respond(results: list[Refusal | None]) -> CreateTopicsResponse:
        return CreateTopicsResponse(
            topics=[
                _created(broker, name, made if refusal is None else refusal)
                for name, made, refusal in zip(names, checked, results, strict=True)
            ]
        )

    return carried_out(broker, request, parts, respond, body.timeout_ms, now)


def _may_not(name: str) -> Refusal:
    message = f"topic {name!r} is not yours to make or to alter"
    return Refusal(ErrorCode.TOPIC_AUTHORIZATION_FAILED, message)


def _making(broker: "Broker", topic: Topic, now: Instant) -> Part:
    if broker.replicas is not None:
        return creation(broker, topic)
    broker.topics.take(topic)
    broker.open_partitions(topic, now)
    return None


def _checked(broker: "Broker", ask: CreatableTopic) -> Topic | Refusal:
    """Return the topic as it would be made."""
    alone = broker.replicas is None
    partitions = ask.num_partitions
    assigned: list[tuple[int, ...]] = []
    if ask.assignments:
        by_index = {one.partition_index: tuple(one.broker_ids) for one in ask.assignments}
        partitions = len(by_index)
        allowed = (-1, _REPLICAS) if alone else (-1,)
        if ask.num_partitions not in (-1, partitions) or ask.replication_factor not in allowed:
            message = "partition count and replication factor must be -1 beside an assignment"
            return Refusal(ErrorCode.INVALID_REQUEST, message)
        here = (broker.settings.node_id,)
        if sorted(by_index) != list(range(partitions)) or (
            alone and any(brokers != here for brokers in by_index.values())
        ):
            message = "partitions must be 0 … n-1"
            if alone:
                message += f", each on broker {broker.settings.node_id} alone"
            return Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
        assigned = [by_index[index] for index in range(partitions)]
    elif alone and ask.replication_factor not in (-1, _REPLICAS):
        message = f"replication factor {ask.replication_factor}: there is one broker"
        return Refusal(ErrorCode.INVALID_REPLICATION_FACTOR, message)
    configs: dict[str, str] = {}
    for config in ask.configs:
        if config.value is None:
            return Refusal(ErrorCode.INVALID_CONFIG, f"no value for config {config.name!r}")
        configs[config.name] = config.value
    made = broker.topics.create(ask.name, partitions, configs, dry_run=True)
    if alone or isinstance(made, Refusal):
        return made
    return with_replicas(broker, made, ask.replication_factor, assigned)


def _created(broker: "Broker", name: str, made: Topic | Refusal) -> CreatableTopicResult:
    if isinstance(made, Refusal):
        return CreatableTopicResult(
            name=name, error_code=made.error, error_message=made.message, configs=None
        )
    return CreatableTopicResult(
        name=name,
        topic_id=made.topic_id if broker.topics.by_id(made.topic_id) is not None else ZERO_UUID,
        error_message=None,
        num_partitions=made.partitions,
        replication_factor=len(made.replicas[0]) if made.replicas else _REPLICAS,
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
    parts: list[Part] = []
    named: list[tuple[str | None, bytes]] = []
    for ask in asked:
        by_name = ask.name is not None
        topic = broker.topics.get(ask.name) if by_name else broker.topics.by_id(bytes(ask.topic_id))
        if topic is None:
            error = ErrorCode.UNKNOWN_TOPIC_ID
            if by_name and not may_topic(broker, request, Operation.DELETE, ask.name or ""):
                error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif by_name:
                error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            parts.append(Refusal(error, ""))
            named.append((ask.name, bytes(ask.topic_id)))
            continue
        if not may_topic(broker, request, Operation.DELETE, topic.name):
            error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            if not by_name:
                error = unseen_topic(broker, request, topic.name)
            parts.append(Refusal(error, ""))
            named.append((ask.name, bytes(ask.topic_id)))
            continue
        named.append((topic.name, topic.topic_id))
        refusal = of_the_cluster(broker, topic.name)
        if refusal is not None:
            parts.append(refusal)
            continue
        if broker.replicas is not None:
            parts.append(partial(broker.replicas.cluster.delete, topic))
        else:
            broker.topics.delete(topic)
            broker.close_partitions(topic, now)
            parts.append(None)

    def respond(results: list[Refusal | None]) -> DeleteTopicsResponse:
        return DeleteTopicsResponse(
            responses=[
                DeletableTopicResult(
                    name, topic_id, ErrorCode.NONE if refusal is None else refusal.error
                )
                for (name, topic_id), refusal in zip(named, results, strict=True)
            ]
        )

    return carried_out(broker, request, parts, respond, body.timeout_ms, now)


def create_partitions(broker: "Broker", request: Request, now: Instant) -> Reply | Outcome:
    """Give topics more partitions, or only say whether that could be done."""
    body = request.body
    names = [one.name for one in body.topics]
    parts: list[Part] = []
    for one in body.topics:
        if names.count(one.name) > 1:
            grown: Topic | Refusal = Refusal(ErrorCode.INVALID_REQUEST, _TWICE.format(one.name))
        elif not may_topic(broker, request, Operation.ALTER, one.name):
            grown = _may_not(one.name)
        else:
            grown = of_the_cluster(broker, one.name) or _grown(broker, one)
        if isinstance(grown, Refusal):
            parts.append(grown)
        elif body.validate_only:
            parts.append(None)
        elif broker.replicas is not None:
            parts.append(partial(broker.replicas.cluster.change, grown))
        else:
            broker.topics.take(grown)
            broker.open_partitions(grown, now)
            parts.append(None)

    def respond(results: list[Refusal | None]) -> CreatePartitionsResponse:
        return CreatePartitionsResponse(
            results=[
                CreatePartitionsTopicResult(name)
                if refusal is None
                else CreatePartitionsTopicResult(name, refusal.error, refusal.message)
                for name, refusal in zip(names, results, strict=True)
            ]
        )

    return carried_out(broker, request, parts, respond, body.timeout_ms, now)


def _grown(broker: "Broker", ask: CreatePartitionsTopic) -> Topic | Refusal:
    """Return the topic as it would be."""
    topic = broker.topics.get(ask.name)
    if topic is None:
        message = f"there is no topic {ask.name!r}"
        return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
    alone = broker.replicas is None
    new = ask.count - topic.partitions
    assigned = [] if ask.assignments is None else [list(one.broker_ids) for one in ask.assignments]
    if ask.assignments is not None:
        here = [broker.settings.node_id]
        if len(assigned) != new or (alone and any(brokers != here for brokers in assigned)):
            message = f"{new} new partitions must each have their brokers"
            if alone:
                message = f"{new} new partitions must each be on broker {here[0]} alone"
            return Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
    grown = broker.topics.grow(topic, ask.count, dry_run=True)
    if alone or isinstance(grown, Refusal):
        return grown
    copies = -1 if topic.replication else len(topic.replicas[0])
    return with_replicas(broker, grown, copies, assigned)
