"""Who coordinates a group: this broker for all groups when it is alone; in a cluster, the original
of the internal topic's partition that the group falls into.

In a cluster what a coordinator must not forget are records of that partition, committed before the
request is answered.  Who becomes original reads them back; who is deposed forgets all.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random
from typing import TYPE_CHECKING, Protocol, TypeAlias

import msgspec

from orderwire.broker.cluster import GROUPS_TOPIC, group_partition
from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.group_model import (
    Answer,
    DurableRecord,
    GroupEffects,
    GroupSettings,
    JoinResult,
    SyncResult,
)
from orderwire.broker.groups import GroupCoordinator
from orderwire.broker.log import Appended, LogDamaged, Refused
from orderwire.broker.partitions import Partition
from orderwire.broker.replies import RETRY_DELAY_NS, Outcome, Reply, Request, reply
from orderwire.broker.topics import Topic
from orderwire.broker.wire.parts import FileSlice
from orderwire.broker.wire.records import Record, build_batch, read_records
from orderwire.kernel import NS_PER_MS, NS_PER_S, Instant

if TYPE_CHECKING:
    from orderwire.broker.node import Broker

_READ_BYTES = 4 << 20
_RECORDS_PER_BATCH_MAX = 10_000
_BYTES_PER_BATCH = 1 << 20
SNAPSHOT_PART_BYTES = 4 << 20
"""A snapshot is written in parts of about this size, with what is kept meanwhile between them."""
SNAPSHOT_FROM_BYTES = 8 << 20
"""A partition of the internal topic of which more would be read back begins anew with a snapshot,
unless that would be half as long."""
RELOAD_NS = NS_PER_S
"""What could not be kept, because too few replicas were in sync, makes a coordinator read back
what is: after so long, and again."""
GROUPS_CONFIGS = {
    "orderwire.mode": "active-standby",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "max.message.bytes": str(64 << 20),
    "segment.bytes": str(64 << 20),
}
"""The internal topic's settings."""

Respond: TypeAlias = Callable[
    [Request, JoinResult | SyncResult | None],
    tuple[msgspec.Struct, Callable[[ErrorCode], msgspec.Struct]],
]
"""The response to a join or sync, and what makes the one of when it failed."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(DurableRecord)


class Coordinator(Protocol):
    """What keeps a group."""

    @property
    def groups(self) -> GroupCoordinator:
        """The rules and what is known."""
        ...

    def expect(self, request: Request) -> None:
        """Keep a join or sync until an effect answers it."""
        ...

    def apply(self, effects: GroupEffects, now: Instant) -> None:
        """Write and answer what the rules say, in their order."""
        ...

    def kept(
        self,
        request: Request,
        response: msgspec.Struct,
        failed: Callable[[ErrorCode], msgspec.Struct],
        now: Instant,
    ) -> Reply | Outcome:
        """Answer once everything that was applied is kept; `failed` makes the response of when
        it is not."""
        ...

    @property
    def is_keeping(self) -> bool:
        """Whether something that was applied may still be lost: it is not to be told yet."""
        ...


class _Held:
    """A request that waits for records to be committed, by one shard or several."""

    __slots__ = ("_failed", "_missing", "_response", "request")

    def __init__(
        self,
        request: Request,
        response: msgspec.Struct,
        failed: Callable[[ErrorCode], msgspec.Struct],
    ) -> None:
        self.request = request
        self._response = response
        self._failed = failed
        self._missing = 0

    @property
    def token(self) -> int:
        return self.request.token

    def wait(self) -> None:
        """One more shard has to keep something first."""
        self._missing += 1

    def kept(self) -> Reply | None:
        """One of them does; returns the reply when that was the last."""
        self._missing -= 1
        return None if self._missing else self.good()

    def good(self) -> Reply:
        return reply(self.request, self._response)

    def bad(self) -> Reply:
        response = self._failed(ErrorCode.NOT_COORDINATOR)
        return reply(self.request, response, delay_ns=RETRY_DELAY_NS)

    def attempt(self, broker: "Broker", *, at_deadline: bool) -> Reply | None:
        return self.bad() if at_deadline else None

    def leave(self) -> None:
        """What is being written goes on."""


def kept_by_all(
    broker: "Broker",
    coordinators: Sequence[Coordinator],
    request: Request,
    response: msgspec.Struct,
    failed: Callable[[ErrorCode], msgspec.Struct],
    now: Instant,
) -> Reply | Outcome:
    """Answer once everything that was applied is kept by each of these; there is one, at least."""
    held = _Held(request, response, failed)
    waits = False
    for at in coordinators:
        if not isinstance(at, Shard):  # a broker that is alone has no other
            return at.kept(request, response, failed, now)
        if at.failed:
            return held.bad()
        waits = at.hold(held) or waits
    if not waits:
        return held.good()
    _park(broker, held, now)
    return Outcome.PENDING


def _park(broker: "Broker", held: _Held, now: Instant) -> None:
    broker.parked.park(held, Instant(now + broker.settings.commit_wait_ns))


class Alone:
    """The groups of a broker that is alone: kept in its journal."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker

    @property
    def groups(self) -> GroupCoordinator:
        """All groups."""
        return self._broker.groups

    def expect(self, request: Request) -> None:
        """Keep a join or sync until an effect answers it."""
        self._broker.parked.expect(request)

    def apply(self, effects: GroupEffects, now: Instant) -> None:
        """Write and answer what the rules say, in their order."""
        self._broker.apply(effects)

    def kept(
        self,
        request: Request,
        response: msgspec.Struct,
        failed: Callable[[ErrorCode], msgspec.Struct],
        now: Instant,
    ) -> Reply | Outcome:
        """Answer when the journal is on disk; if that fails the broker ends."""
        return reply(request, response, durable=True)

    @property
    def is_keeping(self) -> bool:
        """What is not on disk yet is lost with this process alone, and all who asked it."""
        return False


class Shard:
    """The groups of one partition of the internal topic, while we are its original."""

    def __init__(
        self,
        broker: "Broker",
        partition: Partition,
        settings: GroupSettings,
        chance: Random,
        respond: Respond,
    ) -> None:
        self._respond = respond
        self.partition = partition
        self.groups = GroupCoordinator(settings, chance)
        self.until = partition.log.end_offset
        """All before is read back, once it is committed."""
        self.loaded = False
        self._broker = broker
        self._expected: dict[int, Request] = {}
        self._records: list[DurableRecord] = []
        self._held: deque[_Held] = deque()
        """For the records above."""
        self._writing: deque[_Held] | None = None
        """For what is being written."""
        self._bytes = 0
        """What would be read back now; the log's files may be longer."""
        self._written_bytes = 0
        self._bytes_since = 0
        """What was written since a snapshot has begun, with it."""
        self._snapshot_bytes = 0
        self._snapshot_left: deque[str] | None = None
        """Groups whose part of a snapshot is still to be written; None: none is under way."""
        self._snapshot_after: int | None = None
        """Records that are being written before the snapshot's first part behind them."""
        self._snapshot_from = 0
        """Where that has begun."""
        self._snapshot_at: int | None = None
        """Where it begins, until the log does."""
        self.failed = False
        self.again_at: Instant | None = None
        """When it begins anew after a failure, should we still be original."""

    def load(self, now: Instant) -> None:
        """Read back what was kept.  Raises StorageError, RemoteProtocolError when damaged."""
        log = self.partition.log
        at = log.start_offset
        while at < self.until:
            part = log.read(at, _READ_BYTES, self.until)
            assert not isinstance(part, Refused)
            data = part.read() if isinstance(part, FileSlice) else bytes(part)
            self._bytes += len(data)
            before = at
            for record in read_records(data):
                if record.offset >= at and record.value is not None:
                    self.groups.replay(_decoder.decode(record.value), now)
                at = record.offset + 1
            if at == before:
                break
        self.groups.start(now)
        self.loaded = True

    # -- Coordinator ------------------------------------------------------------------------

    def expect(self, request: Request) -> None:
        """Keep a join or sync until an effect answers it."""
        self._expected[request.token] = request
        self._broker.parked.expect(request)

    def apply(self, effects: GroupEffects, now: Instant) -> None:
        """Write and answer what the rules say, in their order."""
        for effect in effects:
            if isinstance(effect, Answer):
                request = self._expected.pop(effect.token, None)
                if request is not None and effect.token in self._broker.parked:
                    self._answer(request, effect, now)
            else:
                self._records.append(effect.record)
        self._write(now)

    def _answer(self, request: Request, answer: Answer, now: Instant) -> None:
        held = _Held(request, *self._respond(request, answer.result))
        if self.hold(held):
            _park(self._broker, held, now)
        else:
            self._broker.parked.answer(request.token, held.good())

    def hold(self, held: _Held) -> bool:
        """Let a request wait until all is kept that was applied; False: it is already."""
        if self._records:
            self._held.append(held)
        elif self._writing is not None:
            self._writing.append(held)
        else:
            return False
        held.wait()
        return True

    def kept(
        self,
        request: Request,
        response: msgspec.Struct,
        failed: Callable[[ErrorCode], msgspec.Struct],
        now: Instant,
    ) -> Reply | Outcome:
        """Answer once everything that was applied is committed."""
        return kept_by_all(self._broker, (self,), request, response, failed, now)

    @property
    def is_keeping(self) -> bool:
        """Whether something is not committed yet: another coordinator may not have it."""
        return bool(self._records) or self._writing is not None

    # -- the partition ----------------------------------------------------------------------

    def _write(self, now: Instant) -> None:
        """Produce what is to be kept; one batch at a time."""
        if self._writing is not None or self.failed:
            return
        if not self._records and not self._snapshot_left:
            return
        records, self._records = self._records, []
        self._writing, self._held = self._held, deque()
        now_ms = now // NS_PER_MS
        data = _batches(records, now_ms)
        if self._is_long and self._snapshot_at is None and self._snapshot_left is None:
            self._snapshot_left = deque(self.groups.ids())
            self._snapshot_after = len(records)
            self._snapshot_bytes = self._bytes_since = 0
        if self._snapshot_left is not None:
            part = _batches(self._part(self._snapshot_left), now_ms)
            self._snapshot_bytes += len(part)
            self._bytes_since += len(part) if self._snapshot_after is not None else 0
            data += part
        self._written_bytes = len(data)
        assert self._broker.replicas is not None
        self._broker.replicas.produce(self.partition, self, 0, 0, data, -1, now)

    def _part(self, left: deque[str]) -> list[DurableRecord]:
        """The next groups of a snapshot, as they are now: what comes after is written behind.

        What is deleted is written all the same: until the log begins with the snapshot, here and
        at the others, a successor reads what was before it, too.
        """
        records: list[DurableRecord] = []
        size = 0
        while left and size < SNAPSHOT_PART_BYTES:
            of_group = list(self.groups.records_of(left.popleft()))
            size += sum(len(_encoder.encode(each)) for each in of_group)
            records += of_group
        return records

    @property
    def _is_long(self) -> bool:
        return self._bytes > max(SNAPSHOT_FROM_BYTES, 2 * self._snapshot_bytes)

    def answered(self, position: int, result: Appended | Refused) -> None:
        """Take whether records were committed."""
        writing, self._writing = self._writing, None
        assert writing is not None
        if isinstance(result, Refused):
            self._writing = writing
            self.fail()
            assert self._broker.replicas is not None
            self._broker.replicas.later(self._begin_anew_soon)
            return
        self._bytes += self._written_bytes
        if self._snapshot_after is not None:
            self._snapshot_from = result.base_offset + self._snapshot_after
            self._snapshot_after = None
        elif self._snapshot_left is not None:
            self._bytes_since += self._written_bytes
        if self._snapshot_left is not None and not self._snapshot_left:
            self._snapshot_left = None
            self._snapshot_at = self._snapshot_from
            self._bytes = self._bytes_since
        for held in writing:
            done = held.kept()
            if done is not None:
                self._settle(held, done)
        assert self._broker.replicas is not None
        self._broker.replicas.later(self._go_on)

    def _begin_anew_soon(self, now: Instant) -> None:
        self.again_at = Instant(now + RELOAD_NS)

    def _go_on(self, now: Instant) -> None:
        """Write what came meanwhile; drop what a snapshot has made needless."""
        if self._snapshot_at is not None and self.partition.high_watermark >= self._snapshot_at:
            before, self._snapshot_at = self._snapshot_at, None
            self._broker.delete_records(self.partition, before, now)
        self._write(now)

    def _settle(self, held: _Held, done: Reply) -> None:
        self._broker.parked.answer(held.token, done)

    def fail(self) -> None:
        """Tell everybody to look for the coordinator again: it is not us, or not any more."""
        self.failed = True
        for held in [*(self._writing or ()), *self._held]:
            self._settle(held, held.bad())
        self._writing = None
        self._held.clear()
        for request in self._expected.values():
            self._settle(held := _Held(request, *self._respond(request, None)), held.bad())
        self._expected.clear()


def _batches(records: Iterable[DurableRecord], now_ms: int) -> bytearray:
    """Pack records, in their order."""
    data = bytearray()
    some: list[Record] = []
    size = 0
    for record in records:
        value = _encoder.encode(record)
        if some and (size + len(value) > _BYTES_PER_BATCH or len(some) >= _RECORDS_PER_BATCH_MAX):
            data += build_batch(some)
            some, size = [], 0
        some.append(Record(value, timestamp=now_ms))
        size += len(value)
    if some:
        data += build_batch(some)
    return data


class Shards:
    """The coordinators at one broker of a cluster."""

    def __init__(
        self, broker: "Broker", settings: GroupSettings, chance: Random, respond: Respond
    ) -> None:
        """`respond` makes the responses to joins and syncs."""
        self._broker = broker
        self._respond = respond
        self._settings = settings
        self._chance = chance
        self._shards: dict[int, Shard] = {}

    def __iter__(self) -> Iterator[Shard]:
        for index in sorted(self._shards):
            shard = self._shards[index]
            if self._is_ours(shard) and shard.loaded and not shard.failed:
                yield shard

    def of(self, group_id: str) -> Shard | ErrorCode:
        """Return the group's coordinator, or why it is not here."""
        topic = self._broker.topics.get(GROUPS_TOPIC)
        if topic is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        shard = self._shards.get(group_partition(group_id, topic.partitions))
        if shard is None or not self._is_ours(shard):
            return ErrorCode.NOT_COORDINATOR
        return (
            shard if shard.loaded and not shard.failed else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        )

    def recovered(self, partition: Partition, now: Instant) -> None:
        """We may write to this partition: take its groups over."""
        if partition.topic == GROUPS_TOPIC:
            self._drop(partition.index)
            shard = Shard(self._broker, partition, self._settings, self._chance, self._respond)
            self._shards[partition.index] = shard
            self.advanced(partition, now)

    def advanced(self, partition: Partition, now: Instant) -> None:
        """More of a partition is committed: perhaps all that has to be read back."""
        shard = self._shards.get(partition.index)
        if (
            shard is not None
            and shard.partition is partition
            and not shard.loaded
            and partition.high_watermark >= shard.until
        ):
            try:
                shard.load(now)
            except LogDamaged as damage:
                self._broker.damaged(partition, damage)

    def deposed(self, partition: Partition) -> None:
        """We are original no longer."""
        if partition.topic == GROUPS_TOPIC:
            self._drop(partition.index)

    def topic_gone(self, topic: Topic, now: Instant) -> None:
        """Forget the offsets of a deleted topic."""
        if topic.name == GROUPS_TOPIC:
            for index in list(self._shards):
                self._drop(index)
        for shard in self:
            shard.apply(shard.groups.forget_topics({topic.name}), now)

    def next_deadline(self) -> Instant | None:
        """When `wake` is next due."""
        due = [
            shard.again_at if shard.failed else shard.groups.next_deadline()
            for shard in self._shards.values()
            if shard.loaded or shard.failed
        ]
        return min((when for when in due if when is not None), default=None)

    def wake(self, now: Instant) -> None:
        """Act on every deadline at or before `now`."""
        for index, shard in list(self._shards.items()):
            if not self._is_original(shard):
                self._drop(index)
            elif shard.failed:
                if shard.again_at is not None and shard.again_at <= now:
                    self.recovered(shard.partition, now)
            elif shard.loaded:
                shard.apply(shard.groups.wake(now), now)

    def _is_original(self, shard: Shard) -> bool:
        replica = shard.partition.replica
        return replica is not None and replica.takes_produce

    def _is_ours(self, shard: Shard) -> bool:
        replicas = self._broker.replicas
        return self._is_original(shard) and replicas is not None and replicas.cluster.is_sure()

    def _drop(self, index: int) -> None:
        shard = self._shards.pop(index, None)
        if shard is not None and not shard.failed:
            shard.fail()
