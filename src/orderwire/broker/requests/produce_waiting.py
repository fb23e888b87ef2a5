"""Produce requests that wait for replicas: answered when every partition's replica has answered."""

from typing import TYPE_CHECKING

from orderwire.broker.error_codes import RETRIED_AT_ONCE, ErrorCode
from orderwire.broker.log import Appended, Refused
from orderwire.broker.partitions import Partition
from orderwire.broker.replies import RETRY_DELAY_NS, Reply, Request, framed, reply
from orderwire.broker.wire.apis import API_BY_KEY, ApiKey
from orderwire.broker.wire.generated.produce import (
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from orderwire.broker.wire.parts import Buffer, Part
from orderwire.broker.wire.produce_run import ProduceShape
from orderwire.broker.wire.single_produce import BY_ID_FROM, single_produce_frame
from orderwire.kernel import NS_PER_MS, Instant

if TYPE_CHECKING:
    from orderwire.broker.node import Broker

_OF_THE_CONTENT = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    }
)
"""What a replica says of batches that it will not take as they are."""
_TIMED_OUT = Refused(ErrorCode.REQUEST_TIMED_OUT, "the replicas have not answered in time")


def answer_by(broker: "Broker", timeout_ms: int, now: Instant) -> Instant:
    """Until when a request is answered, whatever replicas do: as its client asked."""
    wait_ns = max(timeout_ms, 1) * NS_PER_MS
    return Instant(now + min(wait_ns, broker.settings.produce_wait_max_ns))


class ProduceWaiting:
    """A produce request; its partitions' answers in the order of the request."""

    __slots__ = ("_asked", "_broker", "_missing", "_request", "_responses", "_slots", "complete")

    def __init__(
        self, broker: "Broker", request: Request, responses: list[TopicProduceResponse]
    ) -> None:
        """`responses` is filled: where a partition's answer is to come it has a placeholder."""
        self._broker = broker
        self._request = request
        self._responses = responses
        self._slots: list[tuple[list[PartitionProduceResponse], int, Partition]] = []
        self._asked: dict[int, int] = {}
        """What each replica is to be asked under, by position."""
        self._missing = 0
        self.complete = False
        """Every partition was handed to its replica."""

    @property
    def token(self) -> int:
        """The runtime's name for the request."""
        return self._request.token

    @property
    def missing(self) -> int:
        """Answers that have not come."""
        return self._missing

    def ask(
        self,
        partition: Partition,
        answers: list[PartitionProduceResponse],
        records: Buffer,
        now: Instant,
    ) -> None:
        """Hand a partition's batches to its replica; its answer goes to the end of `answers`."""
        replicas = self._broker.replicas
        assert replicas is not None
        position = len(self._slots)
        answers.append(PartitionProduceResponse(partition.index))
        self._slots.append((answers, len(answers) - 1, partition))
        self._missing += 1
        acks = self._request.body.acks or 1
        connection = self._request.client.connection
        number = replicas.produce(partition, self, position, connection, records, acks, now)
        self._asked[position] = number

    def answered(self, position: int, result: Appended | Refused) -> None:
        """Take a replica's answer."""
        answers, at, partition = self._slots[position]
        answers[at] = produced(partition, result)
        self._asked.pop(position, None)
        self._missing -= 1
        if self._missing == 0 and self.complete:
            self._broker.parked.finish(self, self.reply())

    def reply(self) -> Reply:
        """Encode what there is."""
        errors = {one.error_code for topic in self._responses for one in topic.partition_responses}
        hasty = not errors.isdisjoint(RETRIED_AT_ONCE)
        delay_ns = RETRY_DELAY_NS if hasty else 0
        return reply(self._request, ProduceResponse(self._responses), delay_ns=delay_ns)

    def attempt(self, broker: "Broker", *, at_deadline: bool) -> Reply | None:
        """Answer what has no answer with a timeout."""
        if not at_deadline:
            return None
        waiting = list(self._asked)
        self.leave()
        for position in waiting:
            answers, at, partition = self._slots[position]
            answers[at] = produced(partition, _TIMED_OUT)
        return self.reply()

    def leave(self) -> None:
        """Forget what was asked for."""
        asked, self._asked = self._asked, {}
        replicas = self._broker.replicas
        assert replicas is not None
        for position, number in asked.items():
            replicas.forget(self._slots[position][2], number)


class _AskedOnce:
    """What one replica was asked for once; the answer is encoded when it comes."""

    __slots__ = ("_broker", "_number", "_partition", "done", "parked", "token")

    def __init__(self, broker: "Broker", token: int, partition: Partition) -> None:
        self.token = token
        self._broker = broker
        self._partition = partition
        self._number: int | None = None
        self.done: Reply | None = None
        self.parked = False

    def ask(self, connection: int, records: Buffer, acks: int, now: Instant) -> None:
        """Hand the batches to the replica."""
        replicas = self._broker.replicas
        assert replicas is not None
        number = replicas.produce(self._partition, self, 0, connection, records, acks, now)
        if self.done is None:
            self._number = number

    def answered(self, position: int, result: Appended | Refused) -> None:
        """Take the replica's answer."""
        self._number = None
        self.done = self._encoded(result)
        if self.parked:
            self._broker.parked.finish(self, self.done)

    def attempt(self, broker: "Broker", *, at_deadline: bool) -> Reply | None:
        """Answer with a timeout."""
        if not at_deadline:
            return self.done
        self.leave()
        return self._encoded(_TIMED_OUT)

    def leave(self) -> None:
        """Forget what was asked for."""
        if self._number is not None:
            assert self._broker.replicas is not None
            self._broker.replicas.forget(self._partition, self._number)
            self._number = None

    def _encoded(self, result: Appended | Refused) -> Reply:
        raise NotImplementedError


class SingleWaiting(_AskedOnce):
    """The simple request: one partition, never decoded as a whole."""

    __slots__ = ("_correlation_id", "_topic", "_version")

    def __init__(
        self,
        broker: "Broker",
        token: int,
        version: int,
        correlation_id: int,
        topic: bytes,
        partition: Partition,
    ) -> None:
        super().__init__(broker, token, partition)
        self._version = version
        self._correlation_id = correlation_id
        self._topic = topic

    def _encoded(self, result: Appended | Refused) -> Reply:
        partition = self._partition
        if isinstance(result, Appended):
            frame = single_produce_frame(
                self._version,
                self._correlation_id,
                self._topic,
                partition.index,
                result.base_offset,
                partition.log.start_offset,
            )
            return Reply([frame], len(frame))
        return refused_single(self._version, self._correlation_id, self._topic, partition, result)


class RunWaiting(_AskedOnce):
    """Many simple requests that a replica was handed as one."""

    __slots__ = ("_asked", "_count", "_shape", "is_content_refused")

    def __init__(
        self,
        broker: "Broker",
        token: int,
        shape: ProduceShape,
        partition: Partition,
        asked: list[tuple[int, int]],
        count: int,
    ) -> None:
        """`asked` has the correlation id of each, and where its records begin among all `count`."""
        super().__init__(broker, token, partition)
        self._shape = shape
        self._asked = asked
        self._count = count
        self.is_content_refused = False
        """Whether one of the batches is no good: then nothing was stored."""

    def _encoded(self, result: Appended | Refused) -> Reply:
        shape = self._shape
        if isinstance(result, Appended):
            base = result.base_offset
            assert result.last_offset - base + 1 == self._count, "offsets of a request are a run"
            stored = [(correlation, base + behind) for correlation, behind in self._asked]
            frames = shape.answers(stored, self._partition.log.start_offset)
            return Reply([frames], len(frames))
        self.is_content_refused = result.error in _OF_THE_CONTENT
        parts: list[Part] = []
        delay_ns = 0
        for correlation, _ in self._asked:
            one = refused_single(shape.version, correlation, shape.topic, self._partition, result)
            parts += one.parts
            delay_ns = one.delay_ns
        return Reply(parts, sum(map(len, parts)), delay_ns=delay_ns)


def refused_single(
    version: int, correlation_id: int, topic: bytes, partition: Partition, refused: Refused
) -> Reply:
    """The answer to a simple request of which nothing came; `topic` is what it named."""
    by_id = version >= BY_ID_FROM
    name, topic_id = ("", topic) if by_id else (partition.topic, b"")
    answer = TopicProduceResponse(name, topic_id, [refusal(partition.index, refused)])
    return framed(
        API_BY_KEY[ApiKey.PRODUCE],
        version,
        correlation_id,
        ProduceResponse([answer]),
        delay_ns=RETRY_DELAY_NS if refused.error in RETRIED_AT_ONCE else 0,
    )


def produced(partition: Partition, result: Appended | Refused) -> PartitionProduceResponse:
    """A partition's part of a response."""
    if isinstance(result, Refused):
        return refusal(partition.index, result)
    return PartitionProduceResponse(
        partition.index, ErrorCode.NONE, result.base_offset, -1, partition.log.start_offset
    )


def refusal(index: int, refused: Refused) -> PartitionProduceResponse:
    """A partition's part of a response when nothing was done."""
    return PartitionProduceResponse(index, refused.error, -1, error_message=refused.message)
