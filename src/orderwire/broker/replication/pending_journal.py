"""Batches that wait above the main log's end for a round to settle them.  [S004:9.5]

Arrival order, offsets not contiguous.  Moved into the main log they are only forgotten: after a
restart those below the log's end are forgotten again.  Orphans are dropped for good.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator

from crc32c import crc32c

from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.log import Refused, Storage, StorageError
from orderwire.broker.replication.batch_store import (
    FILE_BYTES,
    BatchStore,
    Place,
    StoreRecovery,
    StoreSync,
)
from orderwire.broker.wire.batch import (
    CRC_FROM,
    HEADER_BYTES,
    MAGIC,
    BatchHeader,
    read_header,
)
from orderwire.broker.wire.parts import Buffer

_NAME = "pending"


class PendingJournal:
    """The batches of one partition at one replica that have offsets but are not committed."""

    def __init__(
        self, storage: Storage, bytes_max: int, log_end: int, *, file_bytes: int = FILE_BYTES
    ) -> None:
        """Open it, beside a main log that ends here.  Raises StorageError."""
        self._store = BatchStore(storage, _NAME, file_bytes)
        self._bytes_max = bytes_max
        self._bases: list[int] = []
        self._entries: dict[int, tuple[Place, BatchHeader]] = {}
        for place, header in list(self._store):
            if header.base_offset < log_end:
                self._store.forget(place)
                continue
            for older in list(self.overlapping(header.base_offset, header.last_offset)):
                self._forget(older.base_offset)  # what came later is what was kept
            self._take(place, header)

    @property
    def recovery(self) -> StoreRecovery:
        """What opening it found."""
        return self._store.recovery

    @property
    def kept_bytes(self) -> int:
        """Of the batches that wait."""
        return self._store.kept_bytes

    @property
    def end_offset(self) -> int:
        """One behind the highest offset that it holds; 0 when it is empty."""
        return self._entries[self._bases[-1]][1].last_offset + 1 if self._bases else 0

    def __len__(self) -> int:
        return len(self._bases)

    def append(self, batch: Buffer) -> BatchHeader | Refused:
        """Keep one batch that carries its offset and epoch.

        Refused when it is not whole, holds an offset that another one holds, or there is no room.
        Raises StorageError; nothing is kept then.
        """
        if len(batch) < HEADER_BYTES:
            return _torn(len(batch))
        header = read_header(batch)
        with memoryview(batch) as view:
            if header.size_bytes != len(view):
                return _torn(len(view))
            refused = self.append_all(view, [(0, header)])
        return header if refused is None else refused

    def append_all(
        self, records: memoryview, batches: list[tuple[int, BatchHeader]]
    ) -> Refused | None:
        """Keep these of the batches there, in one write, all or none; ascending.

        As `append`.
        """
        size = 0
        free_from = self.end_offset
        behind = -1
        for at, header in batches:
            length = header.size_bytes
            base, last = header.base_offset, header.base_offset + header.last_offset_delta
            size += length
            if (
                header.magic != MAGIC
                or length < HEADER_BYTES
                or at + length > len(records)
                or header.count < 1
                or last < base
                or crc32c(records[at + CRC_FROM : at + length]) != header.crc
            ):
                return _torn(length)
            other = next(self.overlapping(base, last), None) if base < free_from else None
            if other is not None or base < behind:
                where = "" if other is None else f" at {other.base_offset} … {other.last_offset}"
                return Refused(
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                    f"a batch at offsets {base} … {last} would stand over another{where}",
                )
            behind = last + 1
        if self.kept_bytes + size > self._bytes_max:
            return Refused(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{self.kept_bytes} bytes wait for a round; at most {self._bytes_max} may",
            )
        places = self._store.append_all(records, batches)
        for place, (_, header) in zip(places, batches, strict=True):
            self._take(place, header)
        return None

    def at(self, base_offset: int) -> BatchHeader | None:
        """The batch that begins at this offset."""
        found = self._entries.get(base_offset)
        return None if found is None else found[1]

    def covering(self, offset: int) -> BatchHeader | None:
        """The batch that holds this offset."""
        return next(self.overlapping(offset, offset), None)

    def overlapping(self, first: int, last: int) -> Iterator[BatchHeader]:
        """Every batch that holds one of these offsets, ascending."""
        at = max(bisect_right(self._bases, first) - 1, 0)
        for number in range(at, len(self._bases)):
            base = self._bases[number]
            if base > last:
                return
            header = self._entries[base][1]
            if header.last_offset >= first:
                yield header

    def held(self, above: int, up_to: int | None = None) -> list[BatchHeader]:
        """The batches that begin above one offset and, when there is one, end at or before another.

        Ascending.
        """
        found = [self._entries[base][1] for base in self._bases[bisect_right(self._bases, above) :]]
        if up_to is None:
            return found
        return [header for header in found if header.last_offset <= up_to]

    def read(self, base_offset: int) -> bytes:
        """Fetch the batch that begins at this offset.  Raises KeyError, LogDamaged."""
        return self._store.read(self._entries[base_offset][0])

    def read_run(self, start: int, end: int, bytes_max: int) -> bytes:
        """Fetch batches side by side from this offset on, all below `end`: at most so many bytes,
        but at least one; empty when there is none.  Raises LogDamaged."""
        places: list[Place] = []
        size = 0
        for number in range(bisect_left(self._bases, start), len(self._bases)):
            place, header = self._entries[self._bases[number]]
            length = header.size_bytes
            behind = header.base_offset + header.last_offset_delta + 1
            if header.base_offset != start or behind > end or (size and size + length > bytes_max):
                break
            places.append(place)
            size += length
            start = behind
        return self._store.read_all(places)

    def forget_below(self, offset: int) -> None:
        """Let go of batches that begin below: the main log has its place for them, durably."""
        at = bisect_left(self._bases, offset)
        for base in self._bases[:at]:
            self._store.forget(self._entries.pop(base)[0])
        del self._bases[:at]

    def drop(self, base_offset: int) -> None:
        """Let go of one batch for good, durably after the next sync: it is an orphan.  [R8]"""
        place, _ = self._entries.pop(base_offset)
        del self._bases[bisect_left(self._bases, base_offset)]
        self._store.drop(place)

    def begin_sync(self) -> StoreSync | None:
        """Collect what is not durable yet; None when all is."""
        return self._store.begin_sync()

    def end_sync(self, job: StoreSync, error: StorageError | None = None) -> None:
        """Take note of a job that has run, or failed."""
        self._store.end_sync(job, error)

    def sync(self) -> None:
        """Return when everything is durable.  Raises StorageError."""
        self._store.sync()

    def _take(self, place: Place, header: BatchHeader) -> None:
        if not self._bases or header.base_offset > self._bases[-1]:
            self._bases.append(header.base_offset)
        else:
            insort(self._bases, header.base_offset)
        self._entries[header.base_offset] = (place, header)

    def _forget(self, base_offset: int) -> None:
        place, _ = self._entries.pop(base_offset)
        del self._bases[bisect_left(self._bases, base_offset)]
        self._store.forget(place)


def _torn(size: int) -> Refused:
    return Refused(ErrorCode.CORRUPT_MESSAGE, f"{size} bytes are not one whole batch")
