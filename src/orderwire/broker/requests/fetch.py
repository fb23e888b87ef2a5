"""Fetch: record batches from a partition, waiting for them when there are too few.

Sessions are not kept: every response carries session id 0, which clients take as "ask in full".
"""

from typing import TYPE_CHECKING

from orderwire.broker.error_codes import RETRIED_AT_ONCE, ErrorCode
from orderwire.broker.log import LogDamaged, Refused, StorageError
from orderwire.broker.partitions import Partition
from orderwire.broker.replication.settings import Mode
from orderwire.broker.replies import RETRY_DELAY_NS, Outcome, Reply, Request, reply_of_parts
from orderwire.broker.requests.permission import Operation, may_topic, unseen_topic
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
_PREFERRED_FROM = 11
"""First version in which a consumer can be sent to another replica."""


def fetch(broker: "Broker", request: Request, now: Instant) -> Reply | Outcome:
    """Send what there is, or wait until there is enough."""
    plan = FetchPlan(broker, request, now)
    wait_ns = min(request.body.max_wait_ms * NS_PER_MS, broker.settings.fetch_wait_max_ns)
    if plan.is_beyond(broker):  # the original has to be asked; an error would be delayed anyway
        wait_ns = max(wait_ns, RETRY_DELAY_NS)
    done = plan.attempt(broker, at_deadline=wait_ns <= 0)
    if done is not None:
        return done
    plan.join()
    broker.parked.park(plan, Instant(now + wait_ns))
    plan.want(broker, now)
    return Outcome.PARKED


class FetchPlan:
    """One fetch request with the partitions that it means."""

    __slots__ = ("_elsewhere", "_ends", "_topics", "request")

    def __init__(self, broker: "Broker", request: Request, now: Instant) -> None:
        self.request = request
        self._elsewhere: dict[Partition, int] = {}
        """Partitions that the consumer shall read at another broker."""
        self._ends: dict[Partition, int] = {}
        """Where logs end, as their originals have answered since this request came."""
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
        if broker.replicas is not None and request.version >= _PREFERRED_FROM:
            self._redirect(broker, now)

    @property
    def token(self) -> int:
        """The runtime's name for the request."""
        return self.request.token

    def _redirect(self, broker: "Broker", now: Instant) -> None:
        """As original of active-active partitions, send consumers to the in-sync members in turn.

        Once: who comes back over the same connection is served here for a while.  [S004:6.2.3]
        """
        redirected = self.request.client.redirected
        replicas = broker.replicas
        assert replicas is not None
        for _, _, asked in self._topics:
            for _, partition in asked:
                if (
                    partition is None
                    or partition.mode is not Mode.ACTIVE_ACTIVE
                    or redirected.get(partition, 0) > now
                    or not replicas.is_original(partition)
                ):
                    continue
                redirected[partition] = now + broker.settings.redirect_ns
                readers = replicas.readers(partition)
                if readers:
                    reader = readers[partition.readers_turn % len(readers)]
                    partition.readers_turn += 1
                    if reader != replicas.me:
                        self._elsewhere[partition] = reader

    def is_beyond(self, broker: "Broker") -> bool:
        """Whether it begins behind what is committed here, and only another knows if it is behind
        the end."""
        return broker.replicas is not None and any(
            partition is not None
            and ask.fetch_offset > partition.high_watermark
            and not broker.replicas.is_original(partition)
            for _, _, asked in self._topics
            for ask, partition in asked
        )

    def _ask_end(self, broker: "Broker", partition: Partition, now: Instant) -> None:
        """Find out whether an offset that is not here yet will ever be."""
        assert broker.replicas is not None

        def told(end: int | Refused) -> None:
            if isinstance(end, int):
                self._ends[partition] = end
                broker.parked.look_again({self.token: self})

        broker.replicas.questions.end_of(partition, told, now)

    def want(self, broker: "Broker", now: Instant) -> None:
        """Tell the replicas whose high watermark this fetch waits at.  [S004:R9]"""
        if broker.replicas is None:
            return
        for _, _, asked in self._topics:
            for ask, partition in asked:
                if (
                    partition is not None
                    and partition.replica is not None
                    and ask.fetch_offset >= partition.high_watermark
                ):
                    broker.replicas.wanted(partition, now)
                    beyond = ask.fetch_offset > partition.high_watermark
                    if beyond and not broker.replicas.is_original(partition):
                        self._ask_end(broker, partition, now)

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
        sizes: list[tuple[Partition, int]] = []
        for name, topic_id, asked in self._topics:
            answers: list[PartitionData] = []
            for ask, partition in asked:
                answer = self._read(
                    broker, name, ask, partition, left, first=total == 0, at_deadline=at_deadline
                )
                if answer.error_code:
                    failed = True
                    hasty = hasty or answer.error_code in RETRIED_AT_ONCE
                elif answer.records:
                    size = len(answer.records)
                    total += size
                    left -= size
                    assert partition is not None
                    sizes.append((partition, size))
                answers.append(answer)
            responses.append(FetchableTopicResponse(name, topic_id, answers))
        if not (
            at_deadline or failed or self._elsewhere or total >= body.min_bytes or not responses
        ):
            return None
        for partition, size in sizes:
            partition.sent_bytes += size
        parts = encode_fetch_response_parts(
            FetchResponse(responses=responses), self.request.version
        )
        delay_ns = RETRY_DELAY_NS if hasty and not total else 0
        return reply_of_parts(self.request, parts, delay_ns=delay_ns)

    def _read(
        self,
        broker: "Broker",
        topic: str,
        ask: FetchPartition,
        partition: Partition | None,
        left: int,
        *,
        first: bool,
        at_deadline: bool,
    ) -> PartitionData:
        """Read one partition.

        The first one that has data gives at least one whole batch, whatever the limits say: a
        consumer whose limit is smaller than a batch must not stand still.
        """
        if topic and not may_topic(broker, self.request, Operation.READ, topic):
            error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            if self.request.version >= _BY_ID_FROM:
                error = unseen_topic(broker, self.request, topic)
            return PartitionData(ask.partition, error, -1, records=b"")
        if partition is None or not broker.has(partition):
            error = broker.missing(topic, ask.partition)
            if partition is None and not topic and self.request.version >= _BY_ID_FROM:
                error = ErrorCode.UNKNOWN_TOPIC_ID
            return PartitionData(ask.partition, error, -1, records=b"")
        log = partition.log
        end = self._ends.get(partition)
        error = _position_error(broker, ask, partition, end, at_deadline=at_deadline)
        if error is not ErrorCode.NONE:
            return PartitionData(ask.partition, error, -1, records=b"")
        high = partition.high_watermark
        records: Part = b""
        elsewhere = self._elsewhere.get(partition, -1)
        if elsewhere >= 0:  # records beside it would be dropped by some clients
            limit = 0
            first = False
        else:
            limit = min(ask.partition_max_bytes, left)
        if ask.fetch_offset < high and (first or limit > 0):
            try:
                read = log.read(ask.fetch_offset, max(limit, 0), high)
            except LogDamaged as damage:
                read = Refused(broker.damaged(partition, damage), str(damage))
            except StorageError as failure:
                read = Refused(ErrorCode.KAFKA_STORAGE_ERROR, str(failure))
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
            preferred_read_replica=elsewhere,
            records=records,
        )


def _position_error(
    broker: "Broker",
    ask: FetchPartition,
    partition: Partition,
    end: int | None,
    *,
    at_deadline: bool,
) -> ErrorCode:
    """Say what is wrong with where a fetch begins; `end` is what the original said, if it was
    asked.  [S004:4.7]"""
    error = partition.epoch_error(ask.current_leader_epoch)
    if error is not ErrorCode.NONE:
        return error
    replica = partition.replica
    if replica is not None:
        if not replica.serves_fetch:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if ask.fetch_offset < partition.log.start_offset:
            return ErrorCode.OFFSET_OUT_OF_RANGE
        if ask.fetch_offset <= partition.high_watermark:
            return ErrorCode.NONE
        if replica.takes_produce and ask.fetch_offset > replica.assigned_end:
            assert broker.replicas is not None
            if broker.replicas.is_original(partition):  # nobody else knows where the log ends
                return ErrorCode.OFFSET_OUT_OF_RANGE
        if end is not None and ask.fetch_offset > end:
            return ErrorCode.OFFSET_OUT_OF_RANGE
        return ErrorCode.OFFSET_NOT_AVAILABLE if at_deadline else ErrorCode.NONE
    if not partition.log.start_offset <= ask.fetch_offset <= partition.log.end_offset:
        return ErrorCode.OFFSET_OUT_OF_RANGE
    return ErrorCode.NONE
