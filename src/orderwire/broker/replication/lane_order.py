"""From lanes to the main log: which batches get offsets, and what they look like then.  [S004:4.3]

The original decides about sequences when it proposes a cut, from the producers in its own log, and
says in the cut which batches are left out.  So every member writes the same bytes, whatever it
remembers of producers, and no clock has a part in it.
"""

from collections.abc import Callable, Iterable
from struct import Struct

from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.log import Appended, ProducerBatch
from orderwire.broker.log.producers import ProducerTable
from orderwire.broker.replication.gaps import retriable
from orderwire.broker.replication.lane_messages import LaneSlice
from orderwire.broker.wire.batch import HEADER_BYTES, LENGTH_OVERHEAD, PLACE
from orderwire.kernel.errors import RemoteProtocolError

Parts = Iterable[tuple[int, bytes]]
"""Position and bytes, whole batches each."""

_shape = Struct(">8xi11xi16xqhi").unpack_from
"""batchLength, last offset delta, producer id, its epoch, its sequence."""
_LEAST_LENGTH = HEADER_BYTES - LENGTH_OVERHEAD
_place = PLACE.pack_into
_JOINED_BYTES = 1 << 16
"""Smaller parts are put together up to this size."""


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

    def judge(
        self, broker: int, producer_id: int, epoch: int, batch: ProducerBatch, *, old: bool
    ) -> tuple[int, int] | None:
        """Decide about the next batch of the cut; None: it gets these offsets.

        Else the code for its client, and with NONE the offset that it has already.  `broker` is
        whose lane it comes through, `old` whether from before the present stay.
        """
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
        return retriable(found).error, -1


class Placed:
    """A slice as it stands in the main log."""

    def __init__(self, epoch: int, offset: int) -> None:
        self.runs: list[bytearray | memoryview] = []
        """Its bytes, in order; large parts by themselves: copying costs more than a write."""
        self.next_offset = offset
        self.places: dict[int, int] = {}
        """Position of a batch → its first offset."""
        self.producers: list[int] = []
        """Ids of producers that have a batch here, once each in a row."""
        self.left_out: list[tuple[int, int, int]] = []
        """As in `LaneSlice`; filled when the judge decides."""
        self._epoch = epoch

    def place(self, parts: Parts, piece: LaneSlice) -> None:
        """Set offsets and epoch in copies, as the cut says.  Raises RemoteProtocolError."""
        out = {position for position, _, _ in piece.left_out}
        self._place(parts, lambda position, *_: position in out if out else None)

    def decide(self, parts: Parts, broker: int, fresh: int, judge: SequenceJudge) -> None:
        """Set offsets and epoch in copies, and leave out what the judge says."""

        def is_out(
            position: int, producer_id: int, epoch: int, sequence: int, delta: int, offset: int
        ) -> bool:
            if producer_id < 0 or sequence < 0:
                return False
            last = (sequence + delta) & 0x7FFF_FFFF
            batch = ProducerBatch(sequence, last, offset, offset + delta)
            verdict = judge.judge(broker, producer_id, epoch, batch, old=position < fresh)
            if verdict is None:
                return False
            self.left_out.append((position, *verdict))
            return True

        self._place(parts, is_out)

    def _place(self, parts: Parts, is_out: Callable[..., bool | None]) -> None:
        epoch = self._epoch
        offset = self.next_offset
        places = self.places
        producers = self.producers
        newest = -1
        for start, data in parts:
            records = bytearray(data)
            size = len(records)
            at = kept = 0
            while at < size:
                if at + HEADER_BYTES > size:
                    raise _no_batch(at, size)
                length, delta, producer_id, producer_epoch, sequence = _shape(records, at)
                end = at + length + LENGTH_OVERHEAD
                if length < _LEAST_LENGTH or delta < 0 or end > size:
                    raise _no_batch(at, size)
                position = start + at
                if is_out(position, producer_id, producer_epoch, sequence, delta, offset):
                    self._take(records, kept, at)
                    kept = end
                else:
                    _place(records, at, offset, length, epoch)
                    places[position] = offset
                    offset += delta + 1
                    if producer_id != newest:
                        newest = producer_id
                        producers.append(producer_id)
                at = end
            self._take(records, kept, size)
        self.next_offset = offset

    def _take(self, records: bytearray, start: int, end: int) -> None:
        size = end - start
        if not size:
            return
        run = records if size == len(records) else memoryview(records)[start:end]
        last = self.runs[-1] if self.runs else None
        if isinstance(last, bytearray) and len(last) + size <= _JOINED_BYTES:
            last += run
        else:
            self.runs.append(run)


def _no_batch(at: int, size: int) -> RemoteProtocolError:
    return RemoteProtocolError(f"no whole batch at byte {at} of {size} of a lane")
