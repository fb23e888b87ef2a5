"""Producers and consumers of one partition that behave as real clients do."""

from collections import deque

import msgspec

from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.log import Appended, Refused
from orderwire.broker.replication.view import BrokerId
from orderwire.broker.wire.batch import NO_PRODUCER
from orderwire.broker.wire.records import Record, build_batch
from orderwire.sim.replication_disk import message_bytes

RETRIABLE: frozenset[int] = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        20,  # NOT_ENOUGH_REPLICAS_AFTER_APPEND
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
    }
)
"""What clients answer by trying again, with the same sequence."""


class ProducerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How one producer behaves."""

    acks: int = -1
    idempotent: bool = True
    batches: tuple[int, ...] = (1, 1)
    """How many messages each request carries."""
    in_flight_max: int = 1
    any_replica: bool = False
    """Whether it sends to any member of the in-sync set, and not to the original only."""
    home: int = 0
    """Which member that is, should it have the choice."""
    retries: bool = True
    value_bytes: int = 0
    """Each message has at least so many."""


class WorldSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Who is there."""

    replicas: int = 3
    preferred: BrokerId | None = None
    """Who should be original."""
    producers: tuple[ProducerSettings, ...] = (ProducerSettings(),)
    consumers: int = 1
    coarse: bool = False
    """Whether both ends of a link hear of its end at once, and a watch brings what it is about:
    fewer steps for an exhaustive search."""
    acks_one_durable: bool = False
    """Whether what acks=1 acknowledged has to survive power failures."""
    sync_at_once: bool = False
    """Whether the disk is done before anything else happens."""


class Request(msgspec.Struct, gc=False):
    """One batch on its way."""

    number: int
    """Which of the producer's batches."""
    token: int
    broker: BrokerId
    connection: int
    messages: tuple[str, ...]


class Producer:
    """Sends its batches in order, and again what failed, in order."""

    def __init__(self, number: int, settings: ProducerSettings) -> None:
        self.number = number
        self.settings = settings
        self.attempts = [0] * len(settings.batches)
        self.done: dict[int, Appended | Refused] = {}
        """Batch → what the producer made of it in the end."""
        self.next = 0
        """The next batch to send."""
        self.flight: deque[Request] = deque()
        self.answers: dict[int, Appended | Refused] = {}
        """By token; taken in the order of the requests."""
        self.broker: BrokerId | None = None
        """To whom it is connected."""
        self.connection = 0
        self.recovering = False
        """Something failed: nothing new before everything in flight is answered."""
        self.turns = 0
        """How often it looked for another replica."""

    @property
    def finished(self) -> bool:
        """Whether it has nothing left to do."""
        return len(self.done) == len(self.settings.batches)

    @property
    def ready(self) -> bool:
        """Whether it has something that it may send now."""
        # A broker takes any sequence as the first of a producer that it does not know, so that a
        # first batch that is refused could be overtaken by the second.
        most = self.settings.in_flight_max if self.done else 1
        return (
            self.next < len(self.settings.batches)
            and len(self.flight) < most
            and not (self.recovering and self.flight)
        )

    @property
    def session(self) -> str:
        """Whose order the partition keeps."""
        if self.settings.idempotent:
            return f"p{self.number}"
        return f"p{self.number}/{self.connection}"

    def names(self, number: int) -> tuple[str, ...]:
        """The messages of a batch; a new attempt of a producer without idempotence is another."""
        attempt = "" if self.settings.idempotent else f".{self.attempts[number]}"
        return tuple(
            f"p{self.number}-{number}-{index}{attempt}"
            for index in range(self.settings.batches[number])
        )

    def encoded(self, number: int, names: tuple[str, ...]) -> bytearray:
        """The batch as it goes over the wire."""
        least = self.settings.value_bytes
        records = [Record(value=message_bytes(name).ljust(least, b".")) for name in names]
        if not self.settings.idempotent:
            return build_batch(records, producer_id=NO_PRODUCER)
        first = sum(self.settings.batches[:number])
        return build_batch(
            records, producer_id=1000 + self.number, producer_epoch=0, base_sequence=first
        )

    def take_next(self, broker: BrokerId, token: int) -> Request:
        """The next request, for this broker."""
        self.recovering = False
        number = self.next
        names = self.names(number)
        request = Request(number, token, broker, self.connection, names)
        self.attempts[number] += 1
        self.flight.append(request)
        self.next = number + 1
        while self.next in self.done:
            self.next += 1
        return request

    def hear(self) -> tuple[Request, Appended | Refused] | None:
        """Take the oldest request's answer, should it be there."""
        if not self.flight or self.flight[0].token not in self.answers:
            return None
        request = self.flight.popleft()
        result = self.answers.pop(request.token)
        again = isinstance(result, Refused) and result.error in RETRIABLE
        if again:
            self._again(request)
            if isinstance(result, Refused) and result.error != ErrorCode.NOT_ENOUGH_REPLICAS:
                self.broker = None
                self.turns += 1
        else:
            self.done[request.number] = result
            if self.recovering:
                while self.next in self.done:
                    self.next += 1
        return request, result

    def lose_connection(self) -> list[int]:
        """What was in flight is unknown; returns its tokens."""
        lost = [request.token for request in self.flight]
        for request in self.flight:
            self._again(request)
        self.flight.clear()
        self.answers.clear()
        self.broker = None
        self.turns += 1
        return lost

    def _again(self, request: Request) -> None:
        if not self.settings.retries:
            self.done[request.number] = Refused(ErrorCode.REQUEST_TIMED_OUT, "no second attempt")
            return
        self.recovering = True
        self.next = min(self.next, request.number)


class Consumer:
    """Reads on from where it is, at whichever member it asks."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.position = 0
        self.at = -1
        """Which broker it asked last."""
