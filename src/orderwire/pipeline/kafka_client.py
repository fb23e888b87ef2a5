"""Topics over the Kafka protocol, through confluent-kafka.

A client is kept for the life of its worker process and closed when it has been idle: a new client
for every task made small tasks 2.6 times slower, and one whose broker has gone keeps trying for
ever.  [specs/pipeline.md:3.2]
"""

import contextlib
import os
import threading
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, cast

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from orderwire.pipeline.client import Message, ReadLimits, ends_below, lost_below, stuck
from orderwire.pipeline.errors import OptionError, PipelineError
from orderwire.pipeline.offsets import Bounds, OffsetRange, TopicPartition, Watermarks

REQUEST_SECONDS_MAX = 30.0
"""Longest wait for metadata or watermarks."""
MOVED_PAUSE_SECONDS = 0.2
"""Between two questions while another broker takes over."""
_MOVED = frozenset(
    {
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
    }
)
LOOK_SECONDS = 1.0
"""Silence after which a read looks at the watermarks: is what it waits for still there?"""
POLL_SECONDS_MAX = 0.2
CLIENTS_MAX = 8
"""Most cached clients of one process; the one unused for longest is closed."""

_EARLIEST, _LATEST = -2, -1  # ListOffsets' own timestamps for the two watermarks

_DEFAULTS = {
    "client.id": "orderwire-source",
    "isolation.level": "read_uncommitted",  # what the JVM's client does by default
    "enable.auto.commit": "false",
    "fetch.wait.max.ms": "5",  # only waited for at a log's end, where a range ends too
    "queued.max.messages.kbytes": "65536",
    "log_level": "0",  # errors come through error_cb; librdkafka would print them on stderr
}
_OURS = {
    "auto.offset.reset": "error",  # a trimmed range must be noticed, not jumped over
    "enable.partition.eof": "true",  # an idle partition ends its range at once
    "enable.auto.offset.store": "false",
}


class _Polled(Message, Protocol):
    """A record, or an event in its place."""

    def error(self) -> KafkaError | None:
        """What the event says; None for a record."""
        ...


class KafkaClient:
    """One consumer without a group's duties: metadata, watermarks and ranges."""

    def __init__(self, configuration: Iterable[tuple[str, str]]) -> None:
        given = dict(configuration)
        clash = sorted(set(given) & set(_OURS))
        if clash:
            raise OptionError(f"option kafka.{clash[0]} is set by the source and cannot be given")
        self._last_error = "no error reported"
        settings = {"group.id": f"orderwire-source-{os.getpid()}"} | _DEFAULTS | given | _OURS
        try:
            self._consumer = Consumer({**settings, "error_cb": self._note_error})
        except (KafkaException, ValueError, TypeError) as error:
            raise OptionError(f"the Kafka client refuses its options: {error}") from None
        self._servers = given.get("bootstrap.servers", "")

    def partitions(self, topics: Sequence[str]) -> list[TopicPartition]:
        """The partitions of these topics that metadata names now."""
        found = []
        for topic in topics:
            try:
                metadata = self._consumer.list_topics(topic, timeout=REQUEST_SECONDS_MAX)
            except KafkaException as error:
                raise self._unreachable("metadata", error) from None
            about = metadata.topics.get(topic)
            if about is not None and about.error is None:
                found += [TopicPartition(topic, number) for number in about.partitions]
        return sorted(found)

    def bounds(self, partitions: Iterable[TopicPartition]) -> Bounds:
        """The watermarks of these partitions, all asked for at once."""
        names = list(partitions)
        if not names:
            return {}
        low = self._offsets_at(names, _EARLIEST)
        high = self._offsets_at(names, _LATEST)
        return {p: Watermarks(low[p], high[p]) for p in names if p in low and p in high}

    def read(self, wanted: OffsetRange, limits: ReadLimits) -> Iterator[Sequence[Message]]:
        """Yield the records of the range, until the position has reached its end."""
        topic, number, position, end = wanted
        consumer = self._consumer
        consumer.assign([ClientPartition(topic, number, position)])
        waiting: list[Message] = []
        waiting_bytes = 0
        progress = looked = time.monotonic()
        try:
            while position < end:
                room = min(limits.chunk_messages - len(waiting), end - position)
                got = cast("list[_Polled]", consumer.consume(room, 0.0))
                if not got:
                    first = consumer.poll(min(POLL_SECONDS_MAX, limits.stuck_ms / 1000))
                    got = [] if first is None else [cast("_Polled", first)]
                before, rejected = position, False
                events: list[tuple[_Polled, KafkaError]] = []
                records = got
                if got and any(map(type(got[0]).error, got)):
                    events = [(m, error) for m in got if (error := m.error()) is not None]
                    records = [m for m in got if m.error() is None]
                if records and records[0].offset() < position:  # of an earlier assignment
                    records = [m for m in records if m.offset() >= position]
                if records:
                    position = records[-1].offset() + 1
                    if position > end:
                        del records[bisect_left([m.offset() for m in records], end) :]
                    waiting += records
                    waiting_bytes += sum(map(len, records))
                for event, error in events:
                    code = error.code()
                    if code == KafkaError._PARTITION_EOF:
                        position = max(position, event.offset())
                    elif code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                        rejected = True
                    else:
                        self._last_error = str(error)
                if waiting and (
                    len(waiting) >= limits.chunk_messages
                    or waiting_bytes >= limits.chunk_bytes
                    or position >= end
                ):
                    yield waiting
                    waiting, waiting_bytes = [], 0
                now = time.monotonic()
                if position > before:
                    progress = looked = now
                elif now - progress > limits.stuck_ms / 1000:
                    raise stuck(wanted, position, limits, f"last error: {self._last_error}")
                elif rejected or now - looked > LOOK_SECONDS:
                    looked = now
                    found = self._look(wanted, position, limits)
                    if found > position:
                        progress = time.monotonic()
                    if found > position or rejected:
                        position = found
                        consumer.assign([ClientPartition(topic, number, position)])
            if waiting:
                yield waiting
        finally:
            consumer.unassign()

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()

    def _look(self, wanted: OffsetRange, position: int, limits: ReadLimits) -> int:
        """Compare a silent range with the watermarks; return where to go on."""
        where = TopicPartition(wanted.topic, wanted.partition)
        try:
            marks = self.bounds([where]).get(where)
        except PipelineError:
            return position  # a time-out is not a loss
        if marks is None:
            return position
        if position < marks.low:
            if limits.fail_on_data_loss:
                raise lost_below(wanted, position, marks.low)
            return min(marks.low, wanted.end)
        if marks.high < wanted.end:
            if limits.fail_on_data_loss:
                raise ends_below(wanted, position, marks.high)
            if position >= marks.high:
                return wanted.end
        return position

    def _offsets_at(self, names: list[TopicPartition], bound: int) -> dict[TopicPartition, int]:
        """Ask for offsets; again where another broker leads since the metadata were read."""
        until = time.monotonic() + REQUEST_SECONDS_MAX
        while True:
            asked = [ClientPartition(topic, number, bound) for topic, number in names]
            is_over = time.monotonic() >= until
            try:
                told = self._consumer.offsets_for_times(asked, timeout=REQUEST_SECONDS_MAX)
                if is_over or not any(p.error and p.error.code() in _MOVED for p in told):
                    break
            except KafkaException as error:
                if is_over or error.args[0].code() not in _MOVED:
                    raise self._unreachable("watermarks", error) from None
            with contextlib.suppress(KafkaException):
                self._consumer.list_topics(timeout=REQUEST_SECONDS_MAX)
            time.sleep(MOVED_PAUSE_SECONDS)
        return {
            TopicPartition(p.topic, p.partition): p.offset
            for p in told
            if p.error is None and p.offset >= 0
        }

    def _unreachable(self, what: str, error: KafkaException) -> PipelineError:
        self._consumer.poll(0.0)  # lets error_cb tell what happened meanwhile
        return PipelineError(
            f"{self._servers} gave no {what}: {error.args[0]}; last error: {self._last_error}"
        )

    def _note_error(self, error: KafkaError) -> None:
        self._last_error = str(error)


class _Cached:
    __slots__ = ("busy", "client", "key", "used")

    def __init__(self, key: tuple[object, ...], client: KafkaClient) -> None:
        self.key = key
        self.client = client
        self.busy = True
        self.used = time.monotonic()


class ClientCache:
    """Clients of this process by configuration, each lent to one reader at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[_Cached] = []
        self._sweeper: threading.Timer | None = None

    def borrow(self, configuration: tuple[tuple[str, str], ...]) -> KafkaClient:
        """Take an idle client of this configuration, or make one."""
        key = (os.getpid(), configuration)
        with self._lock:
            for cached in self._kept:
                if cached.key == key and not cached.busy:
                    cached.busy = True
                    return cached.client
        client = KafkaClient(configuration)
        with self._lock:
            self._kept.append(_Cached(key, client))
        return client

    def give_back(self, client: KafkaClient, idle_ms: int) -> None:
        """Keep the client for `idle_ms` milliseconds more; 0 closes it now."""
        now = time.monotonic()
        with self._lock:
            for cached in self._kept:
                if cached.client is client:
                    cached.busy = False
                    cached.used = now
        self.sweep(idle_ms)

    def sweep(self, idle_ms: int) -> None:
        """Close what was idle for too long or is too much, and come back when more may be."""
        now = time.monotonic()
        mine = os.getpid()
        with self._lock:
            # A forked child inherits the list, not the threads behind it: forget, never close.
            self._kept = [c for c in self._kept if c.key[0] == mine]
            idle = sorted((c for c in self._kept if not c.busy), key=lambda c: c.used)
            old = [c for c in idle if (now - c.used) * 1000 >= idle_ms]
            extra = max(0, len(idle) - len(old) - CLIENTS_MAX)
            closing = old + [c for c in idle if c not in old][:extra]
            self._kept = [c for c in self._kept if c not in closing]
            if self._sweeper is not None:
                self._sweeper.cancel()
                self._sweeper = None
            if len(idle) > len(closing):
                self._sweeper = threading.Timer(idle_ms / 1000, self.sweep, [idle_ms])
                self._sweeper.daemon = True
                self._sweeper.start()
        for cached in closing:
            cached.client.close()

    def __len__(self) -> int:
        return len(self._kept)


CLIENTS = ClientCache()
