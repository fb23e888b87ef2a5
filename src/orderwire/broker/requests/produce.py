"""Produce: append record batches as they came."""

from typing import TYPE_CHECKING

from orderwire.broker.cluster import GROUPS_TOPIC
from orderwire.broker.error_codes import RETRIED_AT_ONCE, ErrorCode
from orderwire.broker.log import Appended, Refused, StorageError
from orderwire.broker.partitions import LEADER_EPOCH, Partition
from orderwire.broker.replies import RETRY_DELAY_NS, Client, Outcome, Reply, Request, reply
from orderwire.broker.requests.changes import made_by_itself
from orderwire.broker.requests.permission import (
    FORBIDDEN,
    Operation,
    ResourceType,
    may,
    may_create,
    may_topic,
    unseen_topic,
)
from orderwire.broker.requests.produce_waiting import (
    ProduceWaiting,
    SingleWaiting,
    answer_by,
    produced,
    refused_single,
)
from orderwire.broker.topic_config import Refusal
from orderwire.broker.wire.generated.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from orderwire.broker.wire.single_produce import (
    ACKS_WITH_REPLY,
    BY_ID_FROM,
    FLEXIBLE_FROM,
    read_single_produce,
    single_produce_frame,
)
from orderwire.kernel import NS_PER_MS, Instant
from orderwire.kernel.errors import RemoteProtocolError

if TYPE_CHECKING:
    from orderwire.broker.node import Broker

_ACKS = (-1, 0, 1)
_CLIENT_ID_AT = 10
"""Where the client id stands in a request, behind key, version, correlation id and its length."""


def produce(broker: "Broker", request: Request, now: Instant) -> Reply | Outcome:
    """Append every batch and tell its offset.

    With acks=0 there is no reply; then an error closes the connection, which is the only way to
    tell the producer (it asks for metadata again).
    """
    body = request.body
    acks = body.acks
    whole = ErrorCode.NONE
    if acks not in _ACKS:
        whole = ErrorCode.INVALID_REQUIRED_ACKS
    elif body.transactional_id is not None:
        whole = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    by_id = request.version >= BY_ID_FROM
    responses: list[TopicProduceResponse] = []
    waiting = ProduceWaiting(broker, request, responses)
    failed = hasty = appended = False
    for topic in body.topic_data:
        name, missing = _topic_name(broker, request, topic, now, by_id=by_id)
        answers: list[PartitionProduceResponse] = []
        for data in topic.partition_data:
            partition = broker.partition(name, data.index)
            if whole is not ErrorCode.NONE or missing in FORBIDDEN:
                answer = PartitionProduceResponse(data.index, whole or missing, -1)
            elif partition is None:
                error = missing or broker.missing(name, data.index)
                if broker.replicas is not None:
                    known = broker.topics.get(name)
                    of = known.topic_id if known else bytes(topic.topic_id) if by_id else name
                    broker.replicas.refused.absent(of, data.index, data.records)
                answer = PartitionProduceResponse(data.index, error, -1)
            elif partition.replica is not None and partition.topic == GROUPS_TOPIC:
                answer = PartitionProduceResponse(data.index, ErrorCode.INVALID_TOPIC_EXCEPTION, -1)
            elif partition.replica is not None and data.records:
                waiting.ask(partition, answers, data.records, now)
                continue
            else:
                answer = _append(broker, partition, data, now)
            if answer.error_code:
                failed = True
                hasty = hasty or answer.error_code in RETRIED_AT_ONCE
            else:
                appended = True
            answers.append(answer)
        responses.append(TopicProduceResponse(name, bytes(topic.topic_id), answers))
    if acks == 0:
        if failed:
            raise RemoteProtocolError("a produce request with acks=0 could not be carried out")
        return Outcome.NOTHING
    if waiting.missing:
        waiting.complete = True
        broker.parked.park(waiting, answer_by(broker, body.timeout_ms, now))
        return Outcome.PENDING
    if broker.replicas is not None:
        return waiting.reply()
    delay_ns = RETRY_DELAY_NS if hasty else 0
    return reply(request, ProduceResponse(responses), durable=appended, delay_ns=delay_ns)


def _topic_name(
    broker: "Broker", request: Request, topic: TopicProduceData, now: Instant, *, by_id: bool
) -> tuple[str, ErrorCode]:
    """Return the topic's name, and what to say if it is missing; NONE: only a partition may be.

    One of FORBIDDEN: it is to be said even if the topic is there.
    """
    if by_id:
        found = broker.topics.by_id(bytes(topic.topic_id))
        if found is None:
            return "", ErrorCode.UNKNOWN_TOPIC_ID
        if not may_topic(broker, request, Operation.WRITE, found.name):
            return "", unseen_topic(broker, request, found.name)
        return found.name, ErrorCode.NONE
    if not may_topic(broker, request, Operation.WRITE, topic.name):
        return topic.name, ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if broker.topics.get(topic.name) is None and broker.topics.auto_create:
        if not may_create(broker, request, topic.name):
            return topic.name, ErrorCode.TOPIC_AUTHORIZATION_FAILED
        made = made_by_itself(broker, topic.name, now)
        if isinstance(made, Refusal):
            return topic.name, made.error
    return topic.name, ErrorCode.NONE


def body_at(data: memoryview, version: int, client_id_bytes: int) -> int | None:
    """Where the body of a Produce request begins; None when its header has tags."""
    at = _CLIENT_ID_AT + client_id_bytes if client_id_bytes > 0 else _CLIENT_ID_AT
    if version >= FLEXIBLE_FROM:
        if at >= len(data) or data[at]:
            return None
        at += 1
    return at


def produce_single(
    broker: "Broker",
    data: memoryview,
    version: int,
    correlation_id: int,
    client_id_bytes: int,
    client: Client,
    token: int,
    now: Instant,
) -> Reply | Outcome | None:
    """Serve the simple request: one topic, one partition, a reply.  None: go the general way.

    `data` is the frame, whose client id has this length.  Nothing has happened when it returns
    None.
    """
    at = body_at(data, version, client_id_bytes)
    found = None if at is None else read_single_produce(data, at, version)
    if found is None:
        return None
    acks, timeout_ms, named, index, records = found
    topic = bytes(named)
    if version >= BY_ID_FROM:
        by_id = broker.topics.by_id(topic)
        if by_id is None:
            return None
        name = by_id.name
    else:
        try:
            name = topic.decode()
        except UnicodeDecodeError:
            return None
    partition = broker.partition(name, index)
    if partition is None or not records or acks not in ACKS_WITH_REPLY:
        return None
    if partition.replica is not None and not partition.replica.takes_produce:
        return None  # it may be held until ours does
    if not may(broker, client, Operation.WRITE, ResourceType.TOPIC, name):
        return None
    if partition.replica is not None:
        if name == GROUPS_TOPIC:
            return None
        waiting = SingleWaiting(broker, token, version, correlation_id, topic, partition)
        waiting.ask(client.connection, records, acks, now)
        if waiting.done is not None:
            return waiting.done
        waiting.parked = True
        broker.parked.park(waiting, answer_by(broker, timeout_ms, now))
        return Outcome.PENDING
    try:
        done = partition.log.append(records, LEADER_EPOCH, now // NS_PER_MS)
    except StorageError as error:
        done = Refused(ErrorCode.KAFKA_STORAGE_ERROR, str(error))
    if isinstance(done, Appended):
        if not done.duplicate:
            broker.appended(partition)
        frame = single_produce_frame(
            version, correlation_id, topic, index, done.base_offset, partition.log.start_offset
        )
        return Reply([frame], len(frame), True)
    return refused_single(version, correlation_id, topic, partition, done)


def _append(
    broker: "Broker", partition: Partition, data: PartitionProduceData, now: Instant
) -> PartitionProduceResponse:
    if data.records is None or len(data.records) == 0:
        return PartitionProduceResponse(
            data.index, ErrorCode.INVALID_RECORD, -1, error_message="no record batch"
        )
    assert isinstance(data.records, memoryview)
    try:
        done = partition.log.append(data.records, LEADER_EPOCH, now // NS_PER_MS)
    except StorageError as error:
        done = Refused(ErrorCode.KAFKA_STORAGE_ERROR, str(error))
    if isinstance(done, Appended) and not done.duplicate:
        broker.appended(partition)
    return produced(partition, done)
