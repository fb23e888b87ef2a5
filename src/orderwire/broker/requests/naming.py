"""What requests name: before they are served, the broker should have heard of it."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from orderwire.broker.cluster import GROUPS_TOPIC, group_partition
from orderwire.broker.replies import Request
from orderwire.broker.requests.configs import Resource
from orderwire.broker.requests.permission import Operation, may_topic
from orderwire.broker.settling import Named
from orderwire.broker.topics import name_error
from orderwire.broker.wire.apis import ApiKey

if TYPE_CHECKING:
    from orderwire.broker.node import Broker

_KEY_TYPE_GROUP = 0
_PREFERRED = 0

_Naming: TypeAlias = Callable[["Broker", Request], Iterable[Named]]


def named(broker: "Broker", request: Request) -> list[Named]:
    """Return what a request names that its client may know of; nothing where it matters not."""
    naming = _NAMINGS.get(request.api.key)
    if naming is None:
        return []
    if request.api.key == ApiKey.FIND_COORDINATOR:  # the client names a group
        return list(naming(broker, request))
    operation = Operation.WRITE if request.api.key == ApiKey.PRODUCE else Operation.DESCRIBE
    names = naming(broker, request)
    return [one for one in names if _may_know(broker, request, operation, one.topic)]


def _may_know(broker: "Broker", request: Request, operation: Operation, topic: str | bytes) -> bool:
    if isinstance(topic, bytes):
        found = broker.topics.by_id(topic)
        return found is None or may_topic(broker, request, operation, found.name)
    is_name = broker.topics.get(topic) is not None or name_error(topic) is None
    return is_name and may_topic(broker, request, operation, topic)


def _metadata(broker: "Broker", request: Request) -> Iterable[Named]:
    body = request.body
    if body.topics is None or (request.version == 0 and not body.topics):
        return [Named(topic.name, None, here=False) for topic in broker.topics]
    makes = body.allow_auto_topic_creation and broker.topics.auto_create
    return [
        Named(bytes(one.topic_id) if one.name is None else one.name, None, here=False)
        for one in body.topics
        if one.name is None or not makes or broker.topics.get(one.name) is not None
    ]


def _produced(broker: "Broker", request: Request) -> Iterable[Named]:
    """Only what replicas here do not take now: the rest is what there is most of."""
    if not request.body.acks:  # nobody waits for an answer
        return []
    found = []
    for topic in request.body.topic_data:
        known = broker.topics.by_id(bytes(topic.topic_id)) if not topic.name else None
        name = topic.name if known is None else known.name
        indexes = []
        for data in topic.partition_data:
            partition = broker.partition(name, data.index)
            if partition is None:
                waits = broker.exists(name, data.index)
            else:
                waits = partition.replica is not None and not partition.replica.takes_produce
            if waits:
                indexes.append(data.index)
        if indexes:
            found.append(Named(name, indexes))
    return found


def _offsets(broker: "Broker", request: Request) -> Iterable[Named]:
    return [
        Named(topic.name, [one.partition_index for one in topic.partitions])
        for topic in request.body.topics
    ]


def _epochs(broker: "Broker", request: Request) -> Iterable[Named]:
    return [
        Named(topic.topic, [one.partition for one in topic.partitions])
        for topic in request.body.topics
    ]


def _elections(broker: "Broker", request: Request) -> Iterable[Named]:
    """Who asks that another be elected than is in sync finds nobody who leads."""
    asked = request.body.topic_partitions or ()
    if request.version >= 1 and request.body.election_type != _PREFERRED:
        return [Named(one.topic) for one in asked]
    return [Named(one.topic, one.partitions) for one in asked]


def _described(broker: "Broker", request: Request) -> Iterable[Named]:
    return [
        Named(one.resource_name)
        for one in request.body.resources
        if one.resource_type == Resource.TOPIC
    ]


def _altered(broker: "Broker", request: Request) -> Iterable[Named]:
    return [
        Named(one.resource_name, anew=True)
        for one in request.body.resources
        if one.resource_type == Resource.TOPIC
    ]


def _grown(broker: "Broker", request: Request) -> Iterable[Named]:
    return [Named(one.name, anew=True) for one in request.body.topics]


def _deleted(broker: "Broker", request: Request) -> Iterable[Named]:
    names = [Named(name) for name in request.body.topic_names]
    asked = request.body.topics
    return names + [Named(bytes(one.topic_id) if one.name is None else one.name) for one in asked]


def _coordinators(broker: "Broker", request: Request) -> Iterable[Named]:
    body = request.body
    topic = broker.topics.get(GROUPS_TOPIC)
    if topic is None or body.key_type != _KEY_TYPE_GROUP:
        return []
    keys = body.coordinator_keys if request.version >= 4 else (body.key,)
    indexes = {group_partition(key, topic.partitions) for key in keys}
    return [Named(topic.topic_id, indexes, here=False)]


_NAMINGS: Mapping[int, _Naming] = {
    ApiKey.PRODUCE: _produced,
    ApiKey.METADATA: _metadata,
    ApiKey.LIST_OFFSETS: _offsets,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _epochs,
    ApiKey.DELETE_RECORDS: _offsets,
    ApiKey.ELECT_LEADERS: _elections,
    ApiKey.DESCRIBE_CONFIGS: _described,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _altered,
    ApiKey.CREATE_PARTITIONS: _grown,
    ApiKey.DELETE_TOPICS: _deleted,
    ApiKey.FIND_COORDINATOR: _coordinators,
}
