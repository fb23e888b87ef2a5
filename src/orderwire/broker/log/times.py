"""Finds the first record at or behind a time."""

from orderwire.broker.log.epochs import EpochHistory
from orderwire.broker.log.index import SparseIndex
from orderwire.broker.log.model import TimedOffset
from orderwire.broker.log.segment import Segment
from orderwire.broker.wire.batch import BatchHeader
from orderwire.broker.wire.records import records_of_batch
from orderwire.kernel.errors import RemoteProtocolError


def find_time(
    segment: Segment, index: SparseIndex, epochs: EpochHistory, timestamp: int, start_offset: int
) -> TimedOffset | None:
    """Search one segment, from the index entry with only older batches before it."""
    if segment.next_offset == segment.base_offset:
        return None
    offset, position = index.before_time(timestamp)
    while offset < segment.next_offset:
        header = segment.header_at(position, offset, epochs)
        if header.max_timestamp >= timestamp and header.last_offset >= start_offset:
            found = _in_batch(segment, position, header, timestamp, start_offset)
            if found is not None:
                return found
        offset = header.last_offset + 1
        position += header.size_bytes
    return None


def newest_from(
    segment: Segment, index: SparseIndex, epochs: EpochHistory, start_offset: int
) -> int:
    """The largest time of a segment's records from this offset on; −1 when there is none."""
    newest = -1
    if start_offset >= segment.next_offset:
        return newest
    position, header = segment.find(start_offset, index.before_offset(start_offset), epochs)
    if header.base_offset < start_offset:
        data = segment.file.read(position, header.size_bytes)
        try:
            newest = max(r.timestamp for r in records_of_batch(data) if r.offset >= start_offset)
        except RemoteProtocolError:
            newest = header.max_timestamp
    else:
        newest = header.max_timestamp
    while header.last_offset + 1 < segment.next_offset:
        position += header.size_bytes
        header = segment.header_at(position, header.last_offset + 1, epochs)
        newest = max(newest, header.max_timestamp)
    return newest


def _in_batch(
    segment: Segment, position: int, header: BatchHeader, timestamp: int, start_offset: int
) -> TimedOffset | None:
    """The record in this batch.  A batch that does not unpack answers with its first offset."""
    data = segment.file.read(position, header.size_bytes)
    try:
        for record in records_of_batch(data):
            if record.timestamp >= timestamp and record.offset >= start_offset:
                return TimedOffset(record.timestamp, record.offset)
    except RemoteProtocolError:
        return TimedOffset(header.max_timestamp, max(header.base_offset, start_offset))
    return None
