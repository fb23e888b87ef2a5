"""Who is there and what is understood: ApiVersions, Metadata, coordinators, producer ids."""

from collections.abc import Callable, Sequence
from struct import Struct
from typing import TYPE_CHECKING, TypeAlias

from orderwire.broker.cluster import GROUPS_TOPIC, BrokerAddress, group_partition, named_leader
from orderwire.broker.error_codes import RETRIED_AT_ONCE, ErrorCode
from orderwire.broker.partitions import LEADER_EPOCH
from orderwire.broker.replicas import Replicas
from orderwire.broker.replication.view import BrokerId, PartitionView
from orderwire.broker.replies import RETRY_DELAY_NS, Outcome, Reply, Request, reply
from orderwire.broker.requests.changes import made_by_itself
from orderwire.broker.requests.permission import (
    Operation,
    may_create,
    may_group,
    may_produce_somewhere,
    may_topic,
)
from orderwire.broker.settling import has_lanes
from orderwire.broker.topic_config import Refusal
from orderwire.broker.topics import Topic, name_error
from orderwire.broker.wire.api import Api
from orderwire.broker.wire.apis import APIS, ApiKey
from orderwire.broker.wire.codec import ZERO_UUID
from orderwire.broker.wire.generated.api_versions import (
    ApiVersion,
    ApiVersionsResponse,
    encode_api_versions_response,
)
from orderwire.broker.wire.generated.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterResponse,
)
from orderwire.broker.wire.generated.find_coordinator import (
    Coordinator,
    FindCoordinatorResponse,
)
from orderwire.broker.wire.generated.init_producer_id import InitProducerIdResponse
from orderwire.broker.wire.generated.metadata import (
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from orderwire.kernel import NS_PER_S, Instant
from orderwire.kernel.errors import RemoteProtocolError

if TYPE_CHECKING:
    from orderwire.broker.node import Broker

_Described: TypeAlias = Callable[[Topic], MetadataResponseTopic]

_KEY_TYPE_GROUP = 0
_NO_TRANSACTIONS = "transactions are not supported: leave transactional.id unset"
_ENDPOINT_BROKERS = 1
_PRODUCER_ID_WAIT_NS = 10 * NS_PER_S
_UNSUPPORTED_ENDPOINT_TYPE = 115
_HEAD = Struct(">ii")
_SASL_KEYS = (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)

_ALL = tuple(
    ApiVersion(api.key, api.advertised_oldest, api.newest)
    for api in sorted(APIS, key=lambda api: api.key)
)
_ADVERTISED = tuple(one for one in _ALL if one.api_key not in _SASL_KEYS)
"""Where nobody is asked who it is."""


def api_versions(broker: "Broker", request: Request, now: Instant) -> Reply | Outcome:
    """List the APIs and versions that are served."""
    keys = _ADVERTISED if request.client.login is None else _ALL
    return reply(request, ApiVersionsResponse(api_keys=keys))


def unsupported_version(api: Api, version: int, correlation_id: int) -> Reply:
    """Answer a version that is not served.

    ApiVersions is answered in version 0 with the list, so that the client can choose again.  Of
    Produce, versions 0-2 are announced for the sake of old librdkafka (KAFKA-18659) and refused.
    Raises RemoteProtocolError for the rest: without a common version there is no answer.
    """
    if api.key != ApiKey.API_VERSIONS:
        raise RemoteProtocolError(
            f"{api.name} version {version} is not served: {api.oldest} to {api.newest} are"
        )
    body = encode_api_versions_response(
        ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=_ALL), 0
    )
    frame = _HEAD.pack(len(body) + 4, correlation_id) + body
    return Reply([frame], len(frame))


def metadata(broker: "Broker", request: Request, now: Instant) -> Reply | Outcome:
    """Describe the broker and the topics that were asked for, making them when allowed.

    Version 0 asks for all topics by an empty list, later ones by null.
    """
    body = request.body
    wanted = body.topics
    described = _description(broker, request)
    if wanted is None or (request.version == 0 and not wanted):
        topics = [
            described(topic)
            for topic in broker.topics
            if may_topic(broker, request, Operation.DESCRIBE, topic.name)
        ]
    else:
        create = body.allow_auto_topic_creation and broker.topics.auto_create
        topics = [_wanted(broker, request, ask, described, now, create=create) for ask in wanted]
    response = MetadataResponse(
        brokers=[
            MetadataResponseBroker(one.broker_id, one.host, one.port)
            for one in brokers_told(broker, request)
        ],
        cluster_id=broker.cluster_id,
        controller_id=_controller(broker),
        topics=topics,
    )
    hasty = any(topic.error_code in RETRIED_AT_ONCE for topic in topics)
    return reply(request, response, delay_ns=RETRY_DELAY_NS if hasty else 0)


def brokers_told(broker: "Broker", request: Request) -> Sequence[BrokerAddress]:
    """Every broker that lives; ourselves as this client knows us."""
    client = request.client
    ours = BrokerAddress(
        BrokerId(broker.settings.node_id), client.advertised_host, client.advertised_port
    )
    if broker.replicas is None:
        return (ours,)
    return [
        ours if one.broker_id == ours.broker_id else one
        for one in broker.replicas.cluster.brokers()
    ]


def _controller(broker: "Broker") -> int:
    """The first broker that we reach: any does, but clients wait in vain for one that has just
    been killed and whose session is not over yet."""
    if broker.replicas is None:
        return broker.settings.node_id
    replicas = broker.replicas
    alive = (one.broker_id for one in replicas.cluster.brokers())
    return next(filter(replicas.reaches, alive), replicas.me)


def _wanted(
    broker: "Broker",
    request: Request,
    ask: MetadataRequestTopic,
    described: _Described,
    now: Instant,
    *,
    create: bool,
) -> MetadataResponseTopic:
    name, topic_id = ask.name, ask.topic_id
    if name is None:
        by_id = broker.topics.by_id(bytes(topic_id))
        if by_id is None:
            error = ErrorCode.UNKNOWN_TOPIC_ID
            return MetadataResponseTopic(error_code=error, name=None, topic_id=bytes(topic_id))
        if not may_topic(broker, request, Operation.DESCRIBE, by_id.name):
            error = ErrorCode.UNKNOWN_TOPIC_ID
            return MetadataResponseTopic(error_code=error, name=None, topic_id=bytes(topic_id))
        return described(by_id)
    if not may_topic(broker, request, Operation.DESCRIBE, name):
        error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return MetadataResponseTopic(error_code=error, name=name, topic_id=ZERO_UUID)
    topic = broker.topics.get(name)
    if topic is None and create and not may_create(broker, request, name):
        error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return MetadataResponseTopic(error_code=error, name=name, topic_id=ZERO_UUID)
    if topic is None and create:
        made = made_by_itself(broker, name, now)
        if isinstance(made, Refusal):
            return MetadataResponseTopic(error_code=made.error, name=name)
        topic = made
    if topic is None:
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if name_error(name) is not None:
            error = ErrorCode.INVALID_TOPIC_EXCEPTION
        return MetadataResponseTopic(error_code=error, name=name, topic_id=ZERO_UUID)
    return described(topic)


def _description(broker: "Broker", request: Request) -> _Described:
    """How this client is told of a topic, in this moment."""
    if broker.replicas is not None:
        return _Replicated(broker, broker.replicas, request).described
    node = broker.settings.node_id

    def described(topic: Topic) -> MetadataResponseTopic:
        return MetadataResponseTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=[
                MetadataResponsePartition(
                    partition_index=index,
                    leader_id=node,
                    leader_epoch=LEADER_EPOCH,
                    replica_nodes=(node,),
                    isr_nodes=(node,),
                )
                for index in range(topic.partitions)
            ],
        )

    return described


class _Replicated:
    """Every partition with its original as leader; with lanes each client has one of its own.

    One that has just been killed is none, though its session lasts a while: Java's administrator
    asks the leader that it was told until a minute is over.
    """

    def __init__(self, broker: "Broker", replicas: Replicas, request: Request) -> None:
        cluster = replicas.cluster
        self._topics = broker.topics
        self._view = cluster.view
        self._request = request
        self._alive = {one.broker_id for one in cluster.brokers()}
        self._leading = {one for one in self._alive if not cluster.may_have_ended(one)}

    def described(self, topic: Topic) -> MetadataResponseTopic:
        """Describe a topic."""
        lanes = has_lanes(self._topics, topic)
        return MetadataResponseTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            is_internal=topic.name == GROUPS_TOPIC,
            partitions=[
                self._partition(index, members, self._view(topic, index), lanes=lanes)
                for index, members in enumerate(topic.replicas)
            ],
        )

    def _partition(
        self, index: int, members: Sequence[int], view: PartitionView | None, *, lanes: bool
    ) -> MetadataResponsePartition:
        offline: tuple[int, ...] = ()
        if not self._alive.issuperset(members):
            offline = tuple(member for member in members if member not in self._alive)
        leader = None if view is None else self._leader(view, lanes=lanes)
        if view is None or leader is None:
            return MetadataResponsePartition(
                ErrorCode.LEADER_NOT_AVAILABLE,
                index,
                -1,
                -1 if view is None else view.epoch,
                members,
                () if view is None else view.isr,
                offline,
            )
        return MetadataResponsePartition(
            ErrorCode.NONE, index, leader, view.epoch, members, view.isr, offline
        )

    def _leader(self, view: PartitionView, *, lanes: bool) -> BrokerId | None:
        if view.original not in self._alive:
            return None
        if lanes and (in_sync := [member for member in view.isr if member in self._leading]):
            return named_leader(self._request.client_id, self._request.client.host, in_sync)
        return view.original if view.original in self._leading else None


def describe_cluster(broker: "Broker", request: Request, now: Instant) -> Reply | Outcome:
    """Describe the cluster."""
    if request.body.endpoint_type != _ENDPOINT_BROKERS:
        refusal = DescribeClusterResponse(
            error_code=_UNSUPPORTED_ENDPOINT_TYPE, error_message="only brokers can be described"
        )
        return reply(request, refusal)
    response = DescribeClusterResponse(
        cluster_id=broker.cluster_id,
        controller_id=_controller(broker),
        brokers=[
            DescribeClusterBroker(one.broker_id, one.host, one.port)
            for one in brokers_told(broker, request)
        ],
    )
    return reply(request, response)


def find_coordinator(broker: "Broker", request: Request, now: Instant) -> Reply | Outcome:
    """Name the coordinator of groups; transactions have none."""
    body = request.body
    keys = body.coordinator_keys if request.version >= 4 else (body.key,)
    found = [_coordinator(broker, request, key, body.key_type, now) for key in keys]
    delay_ns = RETRY_DELAY_NS if any(one.error_code in RETRIED_AT_ONCE for one in found) else 0
    if request.version >= 4:
        return reply(request, FindCoordinatorResponse(coordinators=found), delay_ns=delay_ns)
    only = found[0]
    response = FindCoordinatorResponse(
        error_code=only.error_code,
        error_message=only.error_message,
        node_id=only.node_id,
        host=only.host,
        port=only.port,
    )
    return reply(request, response, delay_ns=delay_ns)


def _coordinator(
    broker: "Broker", request: Request, key: str, key_type: int, now: Instant
) -> Coordinator:
    if key_type != _KEY_TYPE_GROUP:
        error = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return Coordinator(key, -1, "", -1, error, _NO_TRANSACTIONS)
    if not may_group(broker, request, Operation.DESCRIBE, key):
        error = ErrorCode.GROUP_AUTHORIZATION_FAILED
        return Coordinator(key, -1, "", -1, error, "the group is not yours to know of")
    node = broker.settings.node_id
    if broker.replicas is not None:
        found = _original_for(broker, broker.replicas, key, now)
        if found is None:
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE
            return Coordinator(key, -1, "", -1, error, "the groups' topic has no original yet")
        node = found
    for one in brokers_told(broker, request):
        if one.broker_id == node:
            return Coordinator(key, node, one.host, one.port, ErrorCode.NONE, None)
    error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    return Coordinator(key, -1, "", -1, error, f"broker {node} does not live")


def _original_for(broker: "Broker", replicas: Replicas, group_id: str, now: Instant) -> int | None:
    """Return who coordinates a group; the first question makes the internal topic."""
    topic = broker.topics.get(GROUPS_TOPIC)
    if topic is None:
        made_by_itself(broker, GROUPS_TOPIC, now)
        return None
    view = replicas.cluster.view(topic, group_partition(group_id, topic.partitions))
    return None if view is None else view.original


def init_producer_id(broker: "Broker", request: Request, now: Instant) -> Reply | Outcome:
    """Hand out a producer id for an idempotent producer."""
    if request.body.transactional_id is not None:
        error = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return reply(request, InitProducerIdResponse(error_code=error, producer_epoch=-1))
    if not may_produce_somewhere(broker, request):
        error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return reply(request, InitProducerIdResponse(error_code=error, producer_epoch=-1))
    if broker.replicas is None:
        return reply(request, InitProducerIdResponse(producer_id=broker.producer_ids.take()))
    waiting = _ProducerIdWaiting(broker, request)
    broker.replicas.cluster.producer_id(waiting.given)
    if waiting.done is not None:
        return waiting.done
    waiting.parked = True
    broker.parked.park(waiting, Instant(now + _PRODUCER_ID_WAIT_NS))
    return Outcome.PARKED


class _ProducerIdWaiting:
    """An idempotent producer waits for the cluster to give it an id."""

    def __init__(self, broker: "Broker", request: Request) -> None:
        self._broker = broker
        self._request = request
        self.done: Reply | None = None
        self.parked = False

    @property
    def token(self) -> int:
        return self._request.token

    def given(self, result: int | Refusal) -> None:
        if isinstance(result, Refusal):
            response = InitProducerIdResponse(error_code=result.error, producer_epoch=-1)
            self.done = reply(self._request, response, delay_ns=RETRY_DELAY_NS)
        else:
            self.done = reply(self._request, InitProducerIdResponse(producer_id=result))
        if self.parked:
            self._broker.parked.finish(self, self.done)

    def attempt(self, broker: "Broker", *, at_deadline: bool) -> Reply | None:
        if at_deadline and self.done is None:
            self.parked = False
            self.given(Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE, "no producer id came in time"))
        return self.done

    def leave(self) -> None:
        self.parked = False
