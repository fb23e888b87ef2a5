"""From lanes to the main log: which batches get offsets, and what they look like then.  [S004:4.3]

The original decides about sequences when it proposes a cut, from the producers in its own log, and
says in the cut which batches are left out.  So every member writes the same bytes, whatever it
remembers of producers, and no clock has a part in it.
"""

from collections.abc import Iterable
from struct import Struct

from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.log import Appended, ProducerBatch
from orderwire.broker.log.producers import ProducerTable
from orderwire.broker.replication.lane_messages import LaneSlice
from orderwire.broker.wire.batch import HEADER_BYTES, LENGTH_OVERHEAD, PLACE
from orderwire.kernel.errors import RemoteProtocolError

Parts = Iterable[tuple[int, bytes]]
"""Position and bytes, whole batches each."""

_SHAPE = Struct(">8xi11xi16xqhi")
"""batchLength, last offset delta, producer id, its epoch, its sequence."""
_place = PLACE.pack_into


class SequenceJudge:
    """Decides about the batches of idempotent producers in one cut, in the order of the cut.

    A batch gets offsets when its sequence is the next one.  One that is ordered already gets none,
    whichever lane it came through: its answer is the first one's offset.  Any other gets none
    either and its client may send it again: so whatever the way a producer took through the
    lanes, its batches stand in the log once and in their order.

    Of a producer that is not known (new, or silent for so long that it was forgotten) the lane that
    it belongs to may bring any sequence, another lane the first.  What a lane brings from before
    its owner's present stay in the in-sync set was never acknowledged, as acknowledged means
    committed; of a forgotten producer it may be in the log all the same, so it is left out.
    """

    def __init__(self, table: ProducerTable, bound: dict[int, int]) -> None:
        self._table = table
        self._bound = bound
        self._ahead = ProducerTable()
        """Of this cut."""

    def left_out(
        self, broker: int, parts: Parts, offset: int, fresh: int
    ) -> tuple[tuple[tuple[int, int, int], ...], int]:
        """Judge a lane's slice whose first batch may get this offset; returns the next offset."""
        out = []
        for start, data in parts:
            at = 0
            size = len(data)
            while at < size:
                length, delta, producer_id, epoch, sequence = _shape(data, at)
                verdict = None
                if producer_id >= 0 and sequence >= 0:
                    last = (sequence + delta) & 0x7FFF_FFFF
                    batch = ProducerBatch(sequence, last, offset, offset + delta)
                    old = start + at < fresh
                    verdict = self._judge(broker, producer_id, epoch, batch, old=old)
                if verdict is None:
                    offset += delta + 1
                else:
                    out.append((start + at, *verdict))
                at += length + LENGTH_OVERHEAD
        return tuple(out), offset

    def _judge(
        self, broker: int, producer_id: int, epoch: int, batch: ProducerBatch, *, old: bool
    ) -> tuple[int, int] | None:
        first, last = batch.first_sequence, batch.last_sequence
        if producer_id in self._ahead:
            found = self._ahead.check(producer_id, epoch, first, last)
            if found is not None and not isinstance(found, Appended):
                earlier = self._table.check(producer_id, epoch, first, last)
                found = earlier if isinstance(earlier, Appended) else found
        elif producer_id in self._table:
            found = self._table.check(producer_id, epoch, first, last)
        elif old or (first > 0 and self._bound.get(producer_id, broker) != broker):
            return ErrorCode.NOT_ENOUGH_REPLICAS, -1
        else:
            found = None
        if found is None:
            self._ahead.note(producer_id, epoch, batch, 0)
            return None
        if isinstance(found, Appended):
            return ErrorCode.NONE, found.base_offset
        if found.error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            return ErrorCode.NOT_ENOUGH_REPLICAS, -1  # clients take the other as fatal
        return found.error, -1


class Placed:
    """A slice as it stands in the main log."""

    def __init__(self, parts: Parts, piece: LaneSlice, epoch: int) -> None:
        """Set offsets and epoch in copies.  Raises RemoteProtocolError when this is no lane."""
        self.records = bytearray()
        self.next_offset = piece.offset
        self.places: dict[int, tuple[int, int]] = {}
        """Position of a batch → its first offset and the next batch's."""
        self.producers: list[int] = []
        """Ids of idempotent producers that have a batch here, once each in a row."""
        left_out = {position for position, _, _ in piece.left_out}
        offset = piece.offset
        places = self.places
        producers = self.producers
        newest = -1
        for start, data in parts:
            records = bytearray(data)
            at = kept = 0
            size = len(records)
            while at < size:
                length, delta, producer_id, _, _ = _shape(records, at)
                end = at + length + LENGTH_OVERHEAD
                if left_out and start + at in left_out:
                    self.records += records[kept:at]
                    kept = end
                else:
                    _place(records, at, offset, length, epoch)
                    after = offset + delta + 1
                    places[start + at] = (offset, after)
                    offset = after
                    if producer_id != newest:
                        newest = producer_id
                        producers.append(producer_id)
                at = end
            if kept or self.records:
                self.records += records[kept:]
            else:
                self.records = records
        self.next_offset = offset


def _shape(data: bytes | bytearray, at: int) -> tuple[int, int, int, int, int]:
    """Read what of a header matters here.  Raises RemoteProtocolError when it is not whole."""
    if at + HEADER_BYTES <= len(data):
        length, delta, producer_id, epoch, sequence = _SHAPE.unpack_from(data, at)
        end = at + length + LENGTH_OVERHEAD
        if length >= HEADER_BYTES - LENGTH_OVERHEAD and delta >= 0 and end <= len(data):
            return length, delta, producer_id, epoch, sequence
    raise RemoteProtocolError(f"no whole batch at byte {at} of {len(data)} of a lane")
