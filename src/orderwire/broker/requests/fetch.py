"""Fetch: record batches from a partition, waiting for them when there are too few.

Sessions are not kept: every response carries session id 0, which clients take as "ask in full".
"""

from typing import TYPE_CHECKING

from orderwire.broker.error_codes import RETRIED_AT_ONCE, ErrorCode
from orderwire.broker.log import Refused, StorageError
from orderwire.broker.partitions import LEADER_EPOCH, Partition
from orderwire.broker.replies import RETRY_DELAY_NS, Outcome, Reply, Request, reply_of_parts
from orderwire.broker.wire.generated.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchResponse,
    PartitionData,
    encode_fetch_response_parts,
)
from orderwire.broker.wire.parts import Part
from orderwire.kernel import NS_PER_MS, Instant
from orderwire.kernel.errors import RemoteProtocolError

if TYPE_CHECKING:
    from orderwire.broker.node import Broker

_BY_ID_FROM = 13
"""First version that names topics by id."""
_READ_COMMITTED = 1


def fetch(broker: "Broker", request: Request, now: Instant) -> Reply | Outcome:
    """Send what there is, or wait until there is enough."""
    plan = FetchPlan(broker, request)
    wait_ns = min(request.body.max_wait_ms * NS_PER_MS, broker.settings.fetch_wait_max_ns)
    done = plan.attempt(broker, at_deadline=wait_ns <= 0)
    if done is not None:
        return done
    plan.join()
    broker.park_fetch(plan, Instant(now + wait_ns))
    return Outcome.PARKED


class FetchPlan:
    """One fetch request with the partitions that it means."""

    __slots__ = ("_topics", "request")

    def __init__(self, broker: "Broker", request: Request) -> None:
        self.request = request
        by_id = request.version >= _BY_ID_FROM
        self._topics: list[tuple[str, bytes, list[tuple[FetchPartition, Partition | None]]]] = []
        count = 0
        for topic in request.body.topics:
            name = topic.topic
            if by_id:
                found = broker.topics.by_id(bytes(topic.topic_id))
                name = "" if found is None else found.name
            asked = [(one, broker.partition(name, one.partition)) for one in topic.partitions]
            count += len(asked)
            self._topics.append((name, bytes(topic.topic_id), asked))
        limit = broker.settings.fetch_partitions_max
        if count > limit:
            raise RemoteProtocolError(f"a fetch of {count} partitions; at most {limit} are served")

    def join(self) -> None:
        """Wait at every partition."""
        for _, _, asked in self._topics:
            for _, partition in asked:
                if partition is not None:
                    partition.waiting[self.request.token] = self

    def leave(self) -> None:
        """Stop waiting at every partition."""
        for _, _, asked in self._topics:
            for _, partition in asked:
                if partition is not None:
                    partition.waiting.pop(self.request.token, None)

    def attempt(self, broker: "Broker", *, at_deadline: bool) -> Reply | None:
        """Return the reply when there is enough to send, or the wait is over."""
        body = self.request.body
        left = min(body.max_bytes, broker.settings.fetch_bytes_max)
        total = 0
        failed = False
        hasty = False
        responses: list[FetchableTopicResponse] = []
        for name, topic_id, asked in self._topics:
            answers: list[PartitionData] = []
            for ask, partition in asked:
                answer = self._read(broker, ask, partition, left, first=total == 0)
                if answer.error_code:
                    failed = True
                    hasty = hasty or answer.error_code in RETRIED_AT_ONCE
                elif answer.records:
                    size = len(answer.records)
                    total += size
                    left -= size
                answers.append(answer)
            responses.append(FetchableTopicResponse(name, topic_id, answers))
        if not (at_deadline or failed or total >= body.min_bytes or not responses):
            return None
        parts = encode_fetch_response_parts(
            FetchResponse(responses=responses), self.request.version
        )
        delay_ns = RETRY_DELAY_NS if hasty and not total else 0
        return reply_of_parts(self.request, parts, delay_ns=delay_ns)

    def _read(
        self,
        broker: "Broker",
        ask: FetchPartition,
        partition: Partition | None,
        left: int,
        *,
        first: bool,
    ) -> PartitionData:
        """Read one partition.

        The first one that has data gives at least one whole batch, whatever the limits say: a
        consumer whose limit is smaller than a batch must not stand still.
        """
        if partition is None or broker.partition(partition.topic, partition.index) is not partition:
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if self.request.version >= _BY_ID_FROM and partition is None:
                error = ErrorCode.UNKNOWN_TOPIC_ID
            return PartitionData(ask.partition, error, -1, records=b"")
        log = partition.log
        error = _position_error(ask, partition)
        if error is not ErrorCode.NONE:
            return PartitionData(ask.partition, error, -1, records=b"")
        high = partition.high_watermark
        records: Part = b""
        limit = min(ask.partition_max_bytes, left)
        if ask.fetch_offset < high and (first or limit > 0):
            try:
                read = log.read(ask.fetch_offset, max(limit, 0), high)
            except StorageError as damage:
                read = Refused(ErrorCode.KAFKA_STORAGE_ERROR, str(damage))
            if isinstance(read, Refused):
                return PartitionData(ask.partition, read.error, -1, records=b"")
            if first or len(read) <= limit:
                records = read
        committed = self.request.body.isolation_level == _READ_COMMITTED
        return PartitionData(
            ask.partition,
            ErrorCode.NONE,
            high,
            high,
            log.start_offset,
            aborted_transactions=() if committed else None,
            records=records,
        )


def _position_error(ask: FetchPartition, partition: Partition) -> ErrorCode:
    epoch = ask.current_leader_epoch
    if epoch >= 0 and epoch != LEADER_EPOCH:
        if epoch < LEADER_EPOCH:
            return ErrorCode.FENCED_LEADER_EPOCH
        return ErrorCode.UNKNOWN_LEADER_EPOCH
    if not partition.log.start_offset <= ask.fetch_offset <= partition.log.end_offset:
        return ErrorCode.OFFSET_OUT_OF_RANGE
    return ErrorCode.NONE
