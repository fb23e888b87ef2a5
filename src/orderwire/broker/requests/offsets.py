"""Where a log begins and ends: ListOffsets, OffsetForLeaderEpoch, DeleteRecords."""

from typing import TYPE_CHECKING

from orderwire.broker.cluster import Done, Question
from orderwire.broker.error_codes import RETRIED_AT_ONCE, ErrorCode
from orderwire.broker.log import LogDamaged, Refused, TimedOffset
from orderwire.broker.partitions import Partition
from orderwire.broker.replication.settings import Mode
from orderwire.broker.replies import RETRY_DELAY_NS, Outcome, Reply, Request, reply
from orderwire.broker.requests.changes import Part, carried_out, of_the_cluster
from orderwire.broker.requests.permission import Operation, may_topic
from orderwire.broker.topic_config import Refusal
from orderwire.broker.wire.generated.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from orderwire.broker.wire.generated.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from orderwire.broker.wire.generated.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from orderwire.kernel import NS_PER_MS, Instant

if TYPE_CHECKING:
    from orderwire.broker.node import Broker

_MAY_NOT = ErrorCode.TOPIC_AUTHORIZATION_FAILED
LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3


def list_offsets(broker: "Broker", request: Request, now: Instant) -> Reply | Outcome:
    """Find offsets by time, or the first and the next one."""
    topics = []
    hasty = False
    for topic in request.body.topics:
        found = []
        for ask in topic.partitions:
            if may_topic(broker, request, Operation.DESCRIBE, topic.name):
                answer = _offset_at(broker, topic.name, ask)
            else:
                answer = ListOffsetsPartitionResponse(ask.partition_index, _MAY_NOT)
            hasty = hasty or answer.error_code in RETRIED_AT_ONCE
            found.append(answer)
        topics.append(ListOffsetsTopicResponse(topic.name, found))
    response = ListOffsetsResponse(topics=topics)
    return reply(request, response, delay_ns=RETRY_DELAY_NS if hasty else 0)


def _offset_at(
    broker: "Broker", topic: str, ask: ListOffsetsPartition
) -> ListOffsetsPartitionResponse:
    index = ask.partition_index
    partition = broker.partition(topic, index)
    if partition is None:
        return ListOffsetsPartitionResponse(index, broker.missing(topic, index))
    error = partition.epoch_error(ask.current_leader_epoch) or _place_error(broker, partition)
    if error is not ErrorCode.NONE:
        return ListOffsetsPartitionResponse(index, error)
    log = partition.log
    if ask.timestamp == LATEST:
        return _found(partition, -1, partition.high_watermark)
    if ask.timestamp == EARLIEST:
        return _found(partition, -1, log.start_offset)
    if ask.timestamp < 0 and ask.timestamp != MAX_TIMESTAMP:
        return ListOffsetsPartitionResponse(index, ErrorCode.UNSUPPORTED_VERSION)
    try:
        if ask.timestamp == MAX_TIMESTAMP:
            return _timed(partition, log.newest_record())
        return _timed(partition, log.offset_for_time(ask.timestamp))
    except LogDamaged as damage:
        return ListOffsetsPartitionResponse(index, broker.damaged(partition, damage))


def _timed(partition: Partition, at: TimedOffset | None) -> ListOffsetsPartitionResponse:
    if at is None or at.offset >= partition.high_watermark:
        return ListOffsetsPartitionResponse(partition.index, ErrorCode.NONE, -1, -1, -1)
    return _found(partition, at.timestamp, at.offset)


def _found(partition: Partition, timestamp_ms: int, offset: int) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(
        partition.index, ErrorCode.NONE, timestamp_ms, offset, partition.leader_epoch
    )


def _place_error(broker: "Broker", partition: Partition) -> ErrorCode:
    """Say why this replica does not answer for the partition.

    With lanes every client has a leader of its own; otherwise only the original answers, once it
    knows what is committed.
    """
    replica = partition.replica
    if replica is None:
        return ErrorCode.NONE
    assert broker.replicas is not None
    if partition.mode is Mode.ACTIVE_ACTIVE_LANES and replica.serves_fetch:
        return ErrorCode.NONE
    if not broker.replicas.is_original(partition):
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return ErrorCode.NONE if replica.takes_produce else ErrorCode.LEADER_NOT_AVAILABLE


def offset_for_leader_epoch(broker: "Broker", request: Request, now: Instant) -> Reply | Outcome:
    """Tell where an epoch ends, from the log's history.

    Not cut at the high watermark: an original that has too few members after all brokers were down
    knows less of what is committed than a consumer has read, and would tell it that its log was
    truncated.
    """
    topics = []
    for topic in request.body.topics:
        found = []
        for ask in topic.partitions:
            partition = broker.partition(topic.topic, ask.partition)
            if not may_topic(broker, request, Operation.DESCRIBE, topic.topic):
                error = _MAY_NOT
            elif partition is None:
                error = broker.missing(topic.topic, ask.partition)
            else:
                error = partition.epoch_error(ask.current_leader_epoch)
                error = error or _place_error(broker, partition)
            if partition is None or error is not ErrorCode.NONE:
                found.append(EpochEndOffset(error, ask.partition))
            else:
                epoch, end = _epoch_end(partition, ask.leader_epoch)
                found.append(EpochEndOffset(ErrorCode.NONE, ask.partition, epoch, end))
        topics.append(OffsetForLeaderTopicResult(topic.topic, found))
    return reply(request, OffsetForLeaderEpochResponse(topics=topics))


def _epoch_end(partition: Partition, epoch: int) -> tuple[int, int]:
    """Return the largest epoch at or below this one and where it ends; (−1, −1): there is none."""
    current = partition.leader_epoch
    if epoch == current:
        return current, partition.log.end_offset
    if epoch > current:
        return -1, -1
    return partition.log.epoch_end(epoch)


def delete_records(broker: "Broker", request: Request, now: Instant) -> Reply | Outcome:
    """Move the start of logs forward; -1 stands for the high watermark."""
    asked = [
        (topic.name, one.partition_index, one.offset)
        for topic in request.body.topics
        for one in topic.partitions
    ]
    starts: dict[tuple[str, int], int] = {}
    parts = [
        of_the_cluster(broker, one[0]) or _deletion(broker, *one, starts, now)
        if may_topic(broker, request, Operation.DELETE, one[0])
        else Refusal(_MAY_NOT, "")
        for one in asked
    ]

    def respond(results: list[Refusal | None]) -> DeleteRecordsResponse:
        found: dict[str, list[DeleteRecordsPartitionResult]] = {}
        for (name, index, _), refusal in zip(asked, results, strict=True):
            if refusal is None:
                result = DeleteRecordsPartitionResult(index, starts[name, index])
            else:
                result = DeleteRecordsPartitionResult(index, -1, refusal.error)
            found.setdefault(name, []).append(result)
        return DeleteRecordsResponse(
            topics=[DeleteRecordsTopicResult(name, some) for name, some in found.items()]
        )

    return carried_out(broker, request, parts, respond, request.body.timeout_ms, now)


def _deletion(
    broker: "Broker",
    name: str,
    index: int,
    before: int,
    starts: dict[tuple[str, int], int],
    now: Instant,
) -> Part:
    partition = broker.partition(name, index)
    if partition is None:
        return Refusal(broker.missing(name, index), "")

    def noted(result: int | Refused) -> Refusal | None:
        if isinstance(result, Refused):
            return Refusal(result.error, result.message)
        starts[name, index] = result
        return None

    replica = partition.replica
    original = None if replica is None or replica.view is None else replica.view.original
    if (
        partition.mode is Mode.ACTIVE_ACTIVE_LANES
        and broker.replicas is not None
        and original is not None
        and original != broker.replicas.me
    ):  # the client takes us for the leader; the original is who moves the start
        cluster, topic = broker.replicas.cluster, partition.of

        def begin(done: Done) -> None:
            def told(result: int | Refused) -> None:
                if isinstance(result, int) and broker.has(partition):  # this client reads here
                    until = min(result, partition.high_watermark)
                    partition.log.delete_records(until, now // NS_PER_MS)
                done(noted(result))

            cluster.ask(original, Question.DELETE_RECORDS, topic, index, before, told)

        return begin
    if broker.replicas is None:
        return noted(broker.delete_records(partition, before, now))
    questions = broker.replicas.questions

    def spread(done: Done) -> None:
        questions.delete_records(partition, before, lambda result: done(noted(result)), now)

    return spread
