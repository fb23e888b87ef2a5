"""Where a log begins and ends: ListOffsets, OffsetForLeaderEpoch, DeleteRecords."""

from typing import TYPE_CHECKING

from orderwire.broker.error_codes import RETRIED_AT_ONCE, ErrorCode
from orderwire.broker.log import Refused, TimedOffset
from orderwire.broker.partitions import LEADER_EPOCH, Partition
from orderwire.broker.replies import RETRY_DELAY_NS, Outcome, Reply, Request, reply
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
            answer = _offset_at(broker.partition(topic.name, ask.partition_index), ask)
            hasty = hasty or answer.error_code in RETRIED_AT_ONCE
            found.append(answer)
        topics.append(ListOffsetsTopicResponse(topic.name, found))
    response = ListOffsetsResponse(topics=topics)
    return reply(request, response, delay_ns=RETRY_DELAY_NS if hasty else 0)


def _offset_at(
    partition: Partition | None, ask: ListOffsetsPartition
) -> ListOffsetsPartitionResponse:
    index = ask.partition_index
    if partition is None:
        return ListOffsetsPartitionResponse(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    error = _epoch_error(ask.current_leader_epoch)
    if error is not ErrorCode.NONE:
        return ListOffsetsPartitionResponse(index, error)
    log = partition.log
    if ask.timestamp == LATEST:
        return _found(index, -1, partition.high_watermark)
    if ask.timestamp == EARLIEST:
        return _found(index, -1, log.start_offset)
    if ask.timestamp == MAX_TIMESTAMP:
        return _timed(index, partition, log.newest_record())
    if ask.timestamp < 0:
        return ListOffsetsPartitionResponse(index, ErrorCode.UNSUPPORTED_VERSION)
    return _timed(index, partition, log.offset_for_time(ask.timestamp))


def _timed(
    index: int, partition: Partition, at: TimedOffset | None
) -> ListOffsetsPartitionResponse:
    if at is None or at.offset >= partition.high_watermark:
        return ListOffsetsPartitionResponse(index, ErrorCode.NONE, -1, -1, -1)
    return _found(index, at.timestamp, at.offset)


def _found(index: int, timestamp_ms: int, offset: int) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(index, ErrorCode.NONE, timestamp_ms, offset, LEADER_EPOCH)


def _epoch_error(epoch: int) -> ErrorCode:
    if epoch < 0 or epoch == LEADER_EPOCH:
        return ErrorCode.NONE
    return ErrorCode.UNKNOWN_LEADER_EPOCH


def offset_for_leader_epoch(broker: "Broker", request: Request, now: Instant) -> Reply | Outcome:
    """Tell where an epoch ends: there is only the first one, and it ends at the high watermark."""
    topics = []
    for topic in request.body.topics:
        found = []
        for ask in topic.partitions:
            partition = broker.partition(topic.topic, ask.partition)
            if partition is None:
                error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                error = _epoch_error(ask.current_leader_epoch)
            if partition is None or error is not ErrorCode.NONE:
                found.append(EpochEndOffset(error, ask.partition))
            elif ask.leader_epoch == LEADER_EPOCH:
                end = partition.high_watermark
                found.append(EpochEndOffset(ErrorCode.NONE, ask.partition, LEADER_EPOCH, end))
            else:
                found.append(EpochEndOffset(ErrorCode.NONE, ask.partition))
        topics.append(OffsetForLeaderTopicResult(topic.topic, found))
    return reply(request, OffsetForLeaderEpochResponse(topics=topics))


def delete_records(broker: "Broker", request: Request, now: Instant) -> Reply | Outcome:
    """Move the start of logs forward; -1 stands for the high watermark."""
    topics = []
    for topic in request.body.topics:
        results = []
        for ask in topic.partitions:
            partition = broker.partition(topic.name, ask.partition_index)
            if partition is None:
                error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
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
