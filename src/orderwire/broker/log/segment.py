"""One file of a log: record batches exactly as on the wire, `<20-digit base offset>.log`."""

from collections.abc import Iterator
from contextlib import suppress

from orderwire.broker.log.epochs import EpochHistory
from orderwire.broker.log.index import SparseIndex
from orderwire.broker.log.producers import ProducerTable
from orderwire.broker.log.scan import NO_TIME, Scan, scan
from orderwire.broker.log.storage import LogDamaged, LogFile, Storage, StorageError
from orderwire.broker.wire.batch import (
    BATCH_HEADER,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    MAGIC,
    BatchHeader,
)

LOG = ".log"
INDEX = ".index"
PRODUCERS = ".producers"
DELETED = ".deleted"
_SCAN_BYTES = 8_192
_WALK_BYTES = 65_536


def segment_name(base_offset: int, suffix: str) -> str:
    """`00000000000000000042.log`."""
    return f"{base_offset:020}{suffix}"


class Segment:
    """A segment and its index.  A closed one loads its index when it is first needed."""

    def __init__(
        self,
        storage: Storage,
        base_offset: int,
        file: LogFile,
        *,
        next_offset: int,
        newest_ms: int = NO_TIME,
        index: SparseIndex | None = None,
        began_ms: int = 0,
    ) -> None:
        self._storage = storage
        self.base_offset = base_offset
        self.file = file
        self.next_offset = next_offset
        self.newest_ms = newest_ms
        self.began_ms = began_ms
        """When its first batch was appended, as far as we know."""
        self._index = index
        self._saved = False

    @property
    def size(self) -> int:
        """In bytes."""
        return self.file.size

    def note(self, offset: int, position: int, newest_ms: int, interval_bytes: int) -> None:
        """Take a batch that was just written into the index."""
        index = self._index
        assert index is not None, "only the active segment is appended to"
        if position >= index.next_position:
            index.add(offset, position, self.newest_ms, interval_bytes)
        if newest_ms > self.newest_ms:
            self.newest_ms = newest_ms

    @property
    def has_index(self) -> bool:
        """Whether the index is in memory."""
        return self._index is not None

    def adopt(self, index: SparseIndex) -> None:
        """Use an index that was read from its file."""
        self._index = index

    def save_index(self) -> None:
        """Write the index beside the segment; a scan makes it again when that fails."""
        assert self._index is not None
        name = segment_name(self.base_offset, INDEX)
        with suppress(StorageError):
            self._storage.write_file(name, self._index.to_bytes(self.size))
            self._saved = True

    def forget_index(self) -> None:
        """Give the memory of a closed segment's index back when it can be read again."""
        if self._saved:
            self._index = None

    def index(self, epochs: EpochHistory, interval_bytes: int) -> SparseIndex:
        """The index: in memory, from its file, or by a scan.  Raises LogDamaged."""
        if self._index is None:
            name = segment_name(self.base_offset, INDEX)
            self._index = SparseIndex.from_bytes(self._storage.read_file(name), self.size)
            self._saved = self._index is not None
        if self._index is None:
            found = self.scan(
                epochs, ProducerTable(), epochs_known=True, interval_bytes=interval_bytes
            )
            if found.reason is not None:
                raise LogDamaged(f"{segment_name(self.base_offset, LOG)} {found.reason}")
            self._index = found.index
        return self._index

    def scan(
        self,
        epochs: EpochHistory,
        producers: ProducerTable,
        *,
        epochs_known: bool,
        interval_bytes: int,
        now_ms: int = 0,
        behind: Scan | None = None,
    ) -> Scan:
        """Check the file, from where `behind` ended on; does not change this segment."""
        return scan(
            self.file,
            behind or Scan(0, self.base_offset, NO_TIME, None, SparseIndex()),
            epochs=epochs,
            epochs_known=epochs_known,
            producers=producers,
            interval_bytes=interval_bytes,
            now_ms=now_ms,
        )

    def take(self, found: Scan) -> None:
        """Become what a scan found."""
        self.next_offset = found.next_offset
        self.newest_ms = found.newest_ms
        self._index = found.index
        self._saved = False

    def header_at(self, position: int, offset: int, epochs: EpochHistory) -> BatchHeader:
        """Read and check the header of the batch that must stand here.  Raises LogDamaged."""
        return self._checked(self.file.read(position, HEADER_BYTES), 0, position, offset, epochs)

    def find(
        self, offset: int, entry: tuple[int, int], epochs: EpochHistory
    ) -> tuple[int, BatchHeader]:
        """Find the batch that holds this offset, from an index entry on.

        Returns its position and header.  Every header on the way is checked.
        """
        base, position = entry
        header = self.header_at(position, base, epochs)
        if header.last_offset >= offset:
            return position, header
        data = b""
        start = position
        while header.last_offset < offset:
            position += header.size_bytes
            if position + HEADER_BYTES > start + len(data):
                start = position
                data = self.file.read(position, _SCAN_BYTES)
            header = self._checked(data, position - start, position, header.last_offset + 1, epochs)
        return position, header

    def headers(
        self, offset: int, epochs: EpochHistory, interval_bytes: int
    ) -> Iterator[tuple[int, BatchHeader]]:
        """Yield (position, header), checked, of the batch that holds this offset and all behind."""
        if offset >= self.next_offset:
            return
        entry = self.index(epochs, interval_bytes).before_offset(offset)
        position, header = self.find(offset, entry, epochs)
        data = b""
        start = position
        while True:
            yield position, header
            if header.last_offset + 1 >= self.next_offset:
                return
            position += header.size_bytes
            if position + HEADER_BYTES > start + len(data):
                start = position
                data = self.file.read(position, _WALK_BYTES)
            header = self._checked(data, position - start, position, header.last_offset + 1, epochs)

    def cut(self, file: LogFile, end: int, epochs: EpochHistory, interval_bytes: int) -> "Segment":
        """This segment as the active one, when its file has been cut where this offset began."""
        index = self.index(epochs, interval_bytes)
        index.cut(file.size, interval_bytes)
        cut = Segment(
            self._storage,
            self.base_offset,
            file,
            next_offset=end,
            newest_ms=index.times[-1] if index.times else NO_TIME,
            index=index,
            began_ms=self.began_ms,
        )
        if index.offsets:
            for _, header in cut.headers(index.offsets[-1], epochs, interval_bytes):
                cut.newest_ms = max(cut.newest_ms, header.max_timestamp)
        return cut

    def _checked(
        self, data: bytes, at: int, position: int, offset: int, epochs: EpochHistory
    ) -> BatchHeader:
        """Contiguity, epoch and shape: what no checksum covers."""
        if at + HEADER_BYTES > len(data):
            raise LogDamaged(f"{self._where(position)}: the file ends before offset {offset}")
        header = BatchHeader(*BATCH_HEADER.unpack_from(data, at))
        if header.base_offset != offset:
            raise LogDamaged(
                f"{self._where(position)}: base offset {header.base_offset}, expected {offset}"
            )
        if (
            header.magic != MAGIC
            or header.batch_length < HEADER_BYTES - LENGTH_OVERHEAD
            or header.last_offset_delta < 0
            or header.last_offset >= self.next_offset
            or position + header.size_bytes > self.size
        ):
            raise LogDamaged(
                f"{self._where(position)}: no batch header (length {header.batch_length},"
                f" magic {header.magic}, last offset delta {header.last_offset_delta})"
            )
        expected = epochs.at(offset)
        if header.leader_epoch != expected:
            raise LogDamaged(
                f"{self._where(position)}: epoch {header.leader_epoch}, expected {expected}"
            )
        return header

    def _where(self, position: int) -> str:
        return f"{segment_name(self.base_offset, LOG)} at byte {position}"
