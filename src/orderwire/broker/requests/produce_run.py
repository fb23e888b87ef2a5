"""Produce by clients that do not batch: every request of a run in one append and one answer."""

from typing import TYPE_CHECKING

import msgspec
from crc32c import crc32c

from orderwire.broker.cluster import GROUPS_TOPIC
from orderwire.broker.log import Admitted, Batch, ProducerBatch, Sequenced, StorageError
from orderwire.broker.partitions import LEADER_EPOCH, Partition
from orderwire.broker.replies import Client, Reply
from orderwire.broker.requests.permission import Operation, ResourceType, may
from orderwire.broker.requests.produce_waiting import RunWaiting, answer_by
from orderwire.broker.wire.batch import (
    CONTROL,
    CRC_FROM,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    MAGIC,
    PLACE,
    TRANSACTIONAL,
)
from orderwire.broker.wire.produce_run import ProduceShape
from orderwire.broker.wire.single_produce import BY_ID_FROM, NO_TAGS
from orderwire.kernel import NS_PER_MS, Instant

if TYPE_CHECKING:
    from orderwire.broker.node import Broker

_FRAME_OVERHEAD = 4
_REFUSED_ATTRIBUTES = CONTROL | TRANSACTIONAL
_place = PLACE.pack_into


class Run(msgspec.Struct, frozen=True, gc=False):
    """Requests that were served together."""

    reply: Reply | None
    """Their response frames, in order; None: they come later, together, under the token."""
    requests: int
    """How many they were."""
    end: int
    """Where the frame behind the last of them begins."""


def produce_run(
    broker: "Broker",
    shape: ProduceShape,
    data: memoryview,
    at: int,
    now: Instant,
    *,
    token: int,
    client: Client,
    requests_max: int,
    request_bytes_max: int,
) -> Run | None:
    """Serve the frames from this offset on that have this shape and nothing unusual.

    A request is usual when it is whole, with one good batch that fits into the active segment: then
    it would be stored and answered by itself in just the same way.  The first other one ends the
    run.  A partition's replica gets the batches as one request, and answers once.  None: not even
    the first is usual; nothing has happened.
    """
    partition = _partition(broker, shape)
    if partition is None or not may(
        broker, client, Operation.WRITE, ResourceType.TOPIC, partition.topic
    ):
        return None
    if partition.replica is not None:
        if partition.topic == GROUPS_TOPIC or not partition.replica.takes_produce:
            return None
        count_max = min(requests_max, partition.log.config.batches_per_append_max)
        found = _alike(shape, data, at, count_max, request_bytes_max)
        return _ask_replica(broker, shape, partition, found, client, token, now)
    log = partition.log
    now_ms = now // NS_PER_MS
    room = log.room(LEADER_EPOCH, now_ms)
    batch_bytes_max = log.config.max_message_bytes
    unpack = shape.head.unpack_from
    key, prefix, around, tags_bytes = shape.key, shape.prefix, shape.around, shape.tags_bytes
    last = len(data) - shape.head.size
    offset = log.end_offset
    written = records_bytes = 0
    size_before = -1
    expected_field = b""
    next_sequence = (-1, -1, -1)
    parts: list[memoryview] = []
    batches: list[Batch] = []
    sequenced: list[Sequenced] = []
    stored: list[tuple[int, int]] = []
    while at <= last and len(stored) < requests_max:
        (
            size,
            key_here,
            correlation_id,
            prefix_here,
            field,
            _,
            length,
            _,
            magic,
            crc,
            attributes,
            delta,
            _,
            newest,
            producer_id,
            producer_epoch,
            sequence,
            count,
        ) = unpack(data, at)
        if size != size_before:
            records_bytes = size - around
            if size > request_bytes_max or not HEADER_BYTES <= records_bytes <= batch_bytes_max:
                break
            expected_field = shape.length_field(records_bytes)
            size_before = size
        end = at + _FRAME_OVERHEAD + size
        if (
            end > len(data)
            or key_here != key
            or prefix_here != prefix
            or field != expected_field
            or length != records_bytes - LENGTH_OVERHEAD
            or magic != MAGIC
            or attributes & _REFUSED_ATTRIBUTES
            or delta != count - 1
            or delta < 0
            or written + records_bytes > room
        ):
            break
        records_end = end - tags_bytes
        if tags_bytes and data[records_end:end] != NO_TAGS:
            break
        start = records_end - records_bytes
        if crc32c(data[start + CRC_FROM : records_end]) != crc:
            break
        if producer_id >= 0 and sequence >= 0:
            until = (sequence + delta) & 0x7FFF_FFFF
            if (producer_id, producer_epoch, sequence) != next_sequence and (
                sequenced
                or log.producers.check(producer_id, producer_epoch, sequence, until) is not None
            ):
                break
            next_sequence = (producer_id, producer_epoch, (until + 1) & 0x7FFF_FFFF)
            noted = ProducerBatch(sequence, until, offset, offset + delta)
            sequenced.append((producer_id, producer_epoch, noted))
        _place(data, start, offset, length, LEADER_EPOCH)
        parts.append(data[start:records_end])
        batches.append((offset, written, length, newest))
        stored.append((correlation_id, offset))
        offset += count
        written += records_bytes
        at = end
    if not stored:
        return None
    try:
        log.append_admitted(b"".join(parts), Admitted(batches, offset, sequenced), now_ms)
    except StorageError:  # each request by itself tells its client
        return None
    broker.appended(partition)
    frames = shape.answers(stored, log.start_offset)
    return Run(Reply([frames], len(frames), True), len(stored), at)


class _Alike(msgspec.Struct, frozen=True, gc=False):
    """Requests of one shape, of producers without sequences, as far as their heads tell."""

    parts: list[memoryview]
    """A batch each."""
    asked: list[tuple[int, int]]
    """Correlation id, and where its offset stands behind the first one's."""
    count: int
    """Records of all."""
    end: int
    """Where the frame behind the last begins."""


def _alike(
    shape: ProduceShape, data: memoryview, at: int, requests_max: int, request_bytes_max: int
) -> _Alike:
    """Find the requests from here on that one append can take; it checks their content."""
    unpack = shape.head.unpack_from
    key, prefix, around, tags_bytes = shape.key, shape.prefix, shape.around, shape.tags_bytes
    have = len(data)
    last = have - shape.head.size
    offset = records_bytes = 0
    size_before = -1
    expected_field = b""
    parts: list[memoryview] = []
    asked: list[tuple[int, int]] = []
    while at <= last and len(asked) < requests_max:
        (
            size,
            key_here,
            correlation_id,
            prefix_here,
            field,
            _,
            length,
            _,
            magic,
            _,
            _,
            _,
            _,
            _,
            producer_id,
            _,
            _,
            count,
        ) = unpack(data, at)
        if size != size_before:
            records_bytes = size - around
            if size > request_bytes_max or records_bytes < HEADER_BYTES:
                break
            expected_field = shape.length_field(records_bytes)
            size_before = size
        end = at + _FRAME_OVERHEAD + size
        if (
            end > have
            or key_here != key
            or prefix_here != prefix
            or field != expected_field
            or length != records_bytes - LENGTH_OVERHEAD
            or magic != MAGIC
            or producer_id >= 0
            or count < 1
        ):
            break
        records_end = end - tags_bytes
        if tags_bytes and data[records_end:end] != NO_TAGS:
            break
        parts.append(data[records_end - records_bytes : records_end])
        asked.append((correlation_id, offset))
        offset += count
        at = end
    return _Alike(parts, asked, offset, at)


def _ask_replica(
    broker: "Broker",
    shape: ProduceShape,
    partition: Partition,
    found: _Alike,
    client: Client,
    token: int,
    now: Instant,
) -> Run | None:
    """Hand requests to a replica as one; their answers follow from the one that it gives."""
    if len(found.asked) < 2:
        return None
    waiting = RunWaiting(broker, token, shape, partition, found.asked, found.count)
    waiting.ask(client.connection, bytearray().join(found.parts), shape.acks, now)
    if waiting.is_content_refused:  # whose?  Each by itself will be told.
        return None
    if waiting.done is None:
        waiting.parked = True
        broker.parked.park(waiting, answer_by(broker, shape.timeout_ms, now))
    return Run(waiting.done, len(found.asked), found.end)


def _partition(broker: "Broker", shape: ProduceShape) -> Partition | None:
    if shape.version >= BY_ID_FROM:
        topic = broker.topics.by_id(shape.topic)
        return None if topic is None else broker.partition(topic.name, shape.index)
    # No topic's name has a replacement character: what is no UTF-8 is not found.
    return broker.partition(shape.topic.decode(errors="replace"), shape.index)
