"""What the source asks of a topic's keeper, and a keeper in memory.

The confluent-kafka implementation is in `kafka_client.py`.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import msgspec

from orderwire.pipeline.errors import DataLossError, OffsetsWentBackError, ReadStuckError
from orderwire.pipeline.offsets import Bounds, OffsetRange, TopicPartition, Watermarks

Header = tuple[str, bytes | None]

TIMESTAMP_NONE = 0
TIMESTAMP_CREATED = 1
TIMESTAMP_APPENDED = 2
"""Kinds of timestamp as confluent-kafka numbers them; Kafka's own numbers are one less."""


class Message(Protocol):
    """One record as confluent-kafka gives it; only these accessors are used."""

    def key(self) -> bytes | None:
        """The record's key."""
        ...

    def value(self) -> bytes | None:
        """The record's value; None is a tombstone."""
        ...

    def offset(self) -> int:
        """Its offset in the partition."""
        ...

    def timestamp(self) -> tuple[int, int]:
        """Kind of timestamp and milliseconds since 1970."""
        ...

    def headers(self) -> list[Header] | None:
        """Its headers, in order; None when there are none."""
        ...

    def __len__(self) -> int:
        """Bytes of the value."""
        ...


class ReadLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a range is read."""

    chunk_messages: int = 10_000
    """Most messages in one list."""
    chunk_bytes: int = 64 << 20
    """A list is handed over once its values reach this size."""
    stuck_ms: int = 120_000
    """Longest time without progress, in milliseconds."""
    fail_on_data_loss: bool = True
    """Whether a record below the low watermark is an error or is skipped."""


class TopicClient(Protocol):
    """A keeper of topics: the broker, or memory."""

    def partitions(self, topics: Sequence[str]) -> list[TopicPartition]:
        """The partitions of these topics that metadata names now; a missing topic gives none."""
        ...

    def bounds(self, partitions: Iterable[TopicPartition]) -> Bounds:
        """The watermarks of these partitions; one whose leader does not answer is left out."""
        ...

    def read(self, wanted: OffsetRange, limits: ReadLimits) -> Iterator[Sequence[Message]]:
        """Yield the records of the range in order, in non-empty lists.

        Ends when the *position* has reached the range's end, so offsets may have gaps anywhere.
        Raises DataLossError, OffsetsWentBackError or ReadStuckError.
        """
        ...

    def close(self) -> None:
        """Release connections."""
        ...


def lost_below(wanted: OffsetRange, position: int, low: int) -> DataLossError:
    """The error for a range whose beginning was removed."""
    return DataLossError(
        f"{wanted}: offset {position} is asked for but the first one still there is {low}; "
        f"{min(low, wanted.end) - position} offsets are lost. Read from {low}, keep records "
        "longer, or set failOnDataLoss=false to skip what is gone"
    )


def ends_below(wanted: OffsetRange, position: int, high: int) -> OffsetsWentBackError:
    """The error for a range whose end was there when it was planned and is not any more."""
    return OffsetsWentBackError(
        f"{wanted}: the partition ends at {high} now, below the planned end; position {position}. "
        "The topic was deleted and created again, or its log was cut short"
    )


def stuck(wanted: OffsetRange, position: int, limits: ReadLimits, why: str) -> ReadStuckError:
    """The error for a read that makes no progress."""
    return ReadStuckError(
        f"topic {wanted.topic!r}, partition {wanted.partition}: stuck at position {position} of "
        f"[{wanted.start}, {wanted.end}) for {limits.stuck_ms} ms (kafkaConsumer.pollTimeoutMs); "
        f"{why}"
    )


class MemoryMessage(msgspec.Struct, frozen=True):
    """A record of a `MemoryClient`."""

    at: int
    data: bytes | None
    label: bytes | None = None
    time_ms: int = 0
    time_kind: int = TIMESTAMP_CREATED
    pairs: tuple[Header, ...] = ()

    def key(self) -> bytes | None:
        """The record's key."""
        return self.label

    def value(self) -> bytes | None:
        """The record's value."""
        return self.data

    def offset(self) -> int:
        """Its offset."""
        return self.at

    def timestamp(self) -> tuple[int, int]:
        """Kind and milliseconds."""
        return self.time_kind, self.time_ms

    def headers(self) -> list[Header] | None:
        """Its headers."""
        return list(self.pairs) or None

    def __len__(self) -> int:
        return len(self.data or b"")


class MemoryClient:
    """Topics in memory: gaps, trimming, vanishing metadata and stuck leaders on demand."""

    def __init__(self) -> None:
        self.logs: dict[TopicPartition, list[MemoryMessage]] = {}
        self.marks: dict[TopicPartition, Watermarks] = {}
        self.hidden: set[TopicPartition] = set()
        """Partitions that metadata does not name."""
        self.stuck: set[TopicPartition] = set()
        """Partitions whose leader sends no records."""
        self.silent: set[TopicPartition] = set()
        """Partitions whose leader tells no watermarks."""
        self.closed = False

    def create(self, topic: str, partitions: int) -> None:
        """Make a topic, or add partitions to it."""
        for number in range(partitions):
            partition = TopicPartition(topic, number)
            self.logs.setdefault(partition, [])
            self.marks.setdefault(partition, Watermarks(0, 0))

    def delete(self, topic: str) -> None:
        """Remove a topic with its records."""
        for partition in [p for p in self.logs if p.topic == topic]:
            del self.logs[partition], self.marks[partition]

    def append(self, topic: str, partition: int, *values: bytes | None, gap: int = 0) -> None:
        """Append records, then leave `gap` offsets without one, as a transaction marker does."""
        where = TopicPartition(topic, partition)
        low, high = self.marks[where]
        for value in values:
            self.logs[where].append(MemoryMessage(high, value, b"k%d" % high, high))
            high += 1
        self.marks[where] = Watermarks(low, high + gap)

    def trim(self, topic: str, partition: int, low: int) -> None:
        """Remove the records below `low`."""
        where = TopicPartition(topic, partition)
        self.logs[where] = [m for m in self.logs[where] if m.at >= low]
        self.marks[where] = Watermarks(low, max(low, self.marks[where].high))

    def partitions(self, topics: Sequence[str]) -> list[TopicPartition]:
        """The partitions of these topics that are not hidden."""
        return sorted(p for p in self.logs if p.topic in topics and p not in self.hidden)

    def bounds(self, partitions: Iterable[TopicPartition]) -> Bounds:
        """Their watermarks."""
        return {p: self.marks[p] for p in partitions if p in self.marks and p not in self.silent}

    def read(self, wanted: OffsetRange, limits: ReadLimits) -> Iterator[Sequence[Message]]:
        """Yield the records of the range."""
        where = TopicPartition(wanted.topic, wanted.partition)
        low, high = self.marks.get(where, Watermarks(0, 0))
        start = wanted.start
        if where in self.stuck:
            raise stuck(wanted, start, limits, "the leader sends nothing")
        if start < low:
            if limits.fail_on_data_loss:
                raise lost_below(wanted, start, low)
            start = low
        if wanted.end > high and start < wanted.end and limits.fail_on_data_loss:
            raise ends_below(wanted, start, high)
        chosen = [m for m in self.logs.get(where, []) if start <= m.at < wanted.end]
        for at in range(0, len(chosen), limits.chunk_messages):
            yield chosen[at : at + limits.chunk_messages]

    def close(self) -> None:
        """Remember that it was closed."""
        self.closed = True
