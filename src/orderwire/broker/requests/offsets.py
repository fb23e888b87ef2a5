"""Where a log begins and ends: ListOffsets, OffsetForLeaderEpoch, DeleteRecords."""

from typing import TYPE_CHECKING

from orderwire.broker.error_codes import RETRIED_AT_ONCE, ErrorCode
from orderwire.broker.log import Refused, TimedOffset
from orderwire.broker.partitions import Partition
from orderwire.broker.replication.settings import Mode
from orderwire.broker.replies import RETRY_DELAY_NS, Outcome, Reply, Request, reply
from orderwire.broker.requests.permission import Operation, may_topic
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
    if ask.timestamp == MAX_TIMESTAMP:
        return _timed(partition, log.newest_record())
    if ask.timestamp < 0:
        return ListOffsetsPartitionResponse(index, ErrorCode.UNSUPPORTED_VERSION)
    return _timed(partition, log.offset_for_time(ask.timestamp))


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
    """Tell where an epoch ends: from the log's history, and never beyond the high watermark."""
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
        return current, partition.high_watermark
    if epoch > current:
        return -1, -1
    found, end = partition.log.epoch_end(epoch)
    return found, min(end, partition.high_watermark)


def delete_records(broker: "Broker", request: Request, now: Instant) -> Reply | Outcome:
    """Move the start of logs forward; -1 stands for the high watermark."""
    topics = []
    for topic in request.body.topics:
        results = []
        for ask in topic.partitions:
            partition = broker.partition(topic.name, ask.partition_index)
            is_allowed = may_topic(broker, request, Operation.DELETE, topic.name)
            if partition is None or not is_allowed:
                error = broker.missing(topic.name, ask.partition_index) if is_allowed else _MAY_NOT
                results.append(DeleteRecordsPartitionResult(ask.partition_index, -1, error))
                continue
            if partition.replica is not None and not partition.replica.takes_produce:
                error = ErrorCode.NOT_LEADER_OR_FOLLOWER
                results.append(DeleteRecordsPartitionResult(ask.partition_index, -1, error))
                continue
            low = partition.log.delete_records(
                ask.offset, now // NS_PER_MS, partition.high_watermark
            )
            if isinstance(low, Refused):
                results.append(DeleteRecordsPartitionResult(ask.partition_index, -1, low.error))
            else:
                results.append(DeleteRecordsPartitionResult(ask.partition_index, low))
        topics.append(DeleteRecordsTopicResult(topic.name, results))
    return reply(request, DeleteRecordsResponse(topics=topics))
