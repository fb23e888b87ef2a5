"""A replica's own lane: batches in the order in which it took them, without offsets.  [S004:4.3]

A position names a byte for ever, and no two contents: the upper bits count the replica's stays in
the in-sync set, the lower ones bytes.  A power failure may take a lane's tail, which others have
copied or even ordered; what is taken afterwards has other positions.  Files `lane-<base>` are
appended to, and synced with `flush=message` only: otherwise only the main log has to survive one.
"""

from collections.abc import Iterator
from struct import Struct

from crc32c import crc32c

from orderwire.broker.log.storage import BesideDamaged, LogFile, Storage, StorageError
from orderwire.broker.wire.batch import CRC_FROM, HEADER_BYTES, LENGTH_OVERHEAD, MAGIC
from orderwire.broker.wire.parts import Buffer

STAY_BITS = 40
"""A stay takes less than a tebibyte of batches."""
SEGMENT_BYTES = 16 << 20
"""A longer file is not appended to; files whose batches are all committed go."""
_KEPT_BYTES = 64 << 10
_PREFIX = "lane-"
_SHAPE = Struct(">8xi4xbI")
"""batchLength, magic, CRC."""


class _Segment:
    __slots__ = ("base", "file")

    def __init__(self, base: int, file: LogFile) -> None:
        self.base = base
        self.file = file

    @property
    def end(self) -> int:
        return self.base + self.file.size


class Lane:
    """The files.  Calls come from one thread."""

    def __init__(self, storage: Storage, ordered: int, segment_bytes: int = SEGMENT_BYTES) -> None:
        """Open what is there; before `ordered` nothing is needed any more.  Raises StorageError.

        A torn tail is cut off, and with it what was taken behind it in the same stay.
        """
        self._storage = storage
        self._segment_bytes = segment_bytes
        self._segments: list[_Segment] = []
        self.cut_bytes = 0
        """Of a torn tail: gone."""
        self.uncommitted_bytes = 0
        """Behind the position that `reclaim` was told last."""
        self.fresh = 0
        """Where the present stay began; 0 before the first."""
        self._new_names = False
        """Whether a file was made whose name is not durable."""
        self._broken: StorageError | None = None
        self._last_read: tuple[tuple[int, int, int], tuple[int, bytes]] | None = None
        """What was read last, if it is short: several members are sent the same."""
        self._newest_stay = ordered >> STAY_BITS
        for base in _bases(storage):
            self._newest_stay = max(self._newest_stay, base >> STAY_BITS)
            self._segments.append(_Segment(base, storage.open(_name(base))))
        self.back_to(ordered)
        self.uncommitted_bytes = self.pending_bytes(ordered)

    @property
    def end(self) -> int:
        """One behind the last byte taken."""
        return max(self.fresh, self._segments[-1].end) if self._segments else self.fresh

    @property
    def start(self) -> int:
        """The first byte that is still there."""
        return self._segments[0].base if self._segments else self.end

    def pending_bytes(self, ordered: int) -> int:
        """Bytes behind this position."""
        pending = 0
        for segment in reversed(self._segments):
            if segment.end <= ordered:
                break
            pending += segment.end - max(segment.base, ordered)
        return pending

    def back_to(self, ordered: int) -> None:
        """No more than this is ordered: what is torn or damaged behind it is cut off, as at the
        start.  What was taken in the present stay others may wait for; that is checked when read.
        Raises StorageError.
        """
        self._last_read = None
        torn_stay = -1
        whole: list[_Segment] = []
        for segment in self._segments:
            stay = segment.base >> STAY_BITS
            if stay == torn_stay:
                self.cut_bytes += segment.file.size
                self._storage.remove(_name(segment.base))
                continue
            whole.append(segment)
            if segment.end > ordered and not 0 < self.fresh <= segment.base:
                good = _good_bytes(segment.file, max(ordered - segment.base, 0))
                if good < segment.file.size:
                    self.cut_bytes += segment.file.size - good
                    segment.file.truncate(good)
                    torn_stay = stay
        self._segments = whole

    def begin(self, ordered: int) -> None:
        """Begin another stay, behind everything that was ever ordered.  Its name is durable."""
        self._newest_stay = max(self._newest_stay, ordered >> STAY_BITS) + 1
        self.fresh = self._newest_stay << STAY_BITS
        if self._segments and self._segments[-1].file.size == 0:
            self._storage.remove(_name(self._segments.pop().base))
        self._create(self.fresh)
        self._storage.sync_directory()
        self._new_names = False

    def append(self, records: Buffer) -> int:
        """Take a request's batches in one write, all or none; returns their position."""
        assert self.fresh, "a lane is begun before it is appended to"
        if self._broken is not None:
            raise StorageError(f"the lane is out of use since: {self._broken}")
        segment = self._segments[-1]
        size = segment.file.size
        if size >= self._segment_bytes:
            segment = self._create(segment.end)
            self._new_names = True
            size = 0
        try:
            segment.file.append(records)
        except StorageError:
            try:
                segment.file.truncate(size)
            except StorageError as error:
                self._broken = error
            raise
        self.uncommitted_bytes += len(records)
        return segment.base + size

    def sync(self) -> None:
        """Return when what was appended last is durable.  Raises StorageError."""
        try:
            self._segments[-1].file.sync()
            if self._new_names:
                self._storage.sync_directory()
                self._new_names = False
        except StorageError as error:
            self._broken = error
            raise

    def read(self, position: int, length: int) -> tuple[int, bytes]:
        """Return what comes first at or behind this position, and where: of one file only.

        Raises BesideDamaged, should a batch of it not be what was taken.
        """
        key = (position, length, self.end)
        if self._last_read is not None and self._last_read[0] == key:
            return self._last_read[1]
        self._last_read = None
        for segment in self._segments:
            if segment.end > position:
                start = max(position, segment.base)
                data = segment.file.read(start - segment.base, length)
                _check(segment, start, data, whole=start + len(data) == segment.end)
                if len(data) <= _KEPT_BYTES:
                    self._last_read = (key, (start, data))
                return start, data
        return self.end, b""

    def parts(self, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Everything between two positions, file by file.  Raises BesideDamaged, as `read`."""
        for segment in self._segments:
            if segment.end > start and segment.base < end:
                first = max(start, segment.base)
                last = min(end, segment.end)
                data = segment.file.read(first - segment.base, last - first)
                _check(segment, first, data, whole=True)
                yield first, data

    def reclaim(self, committed: int) -> None:
        """Remove files in which everything is committed, but for the newest."""
        while len(self._segments) > 1 and self._segments[0].end <= committed:
            self._storage.remove(_name(self._segments.pop(0).base))
        self.uncommitted_bytes = self.pending_bytes(committed)

    def _create(self, base: int) -> _Segment:
        segment = _Segment(base, self._storage.create(_name(base)))
        self._segments.append(segment)
        return segment


def whole_batches(data: Buffer, limit: int) -> int:
    """How many bytes of whole batches the first `limit` bytes are; at least one batch."""
    at = 0
    while at + HEADER_BYTES <= len(data):
        length, _, _ = _SHAPE.unpack_from(data, at)
        end = at + length + LENGTH_OVERHEAD
        if end > len(data) or (end > limit and at > 0):
            break
        at = end
    return at


def _good_bytes(file: LogFile, start: int) -> int:
    """Check every batch from here on; returns where the good ones end."""
    return start + _good(file.read(start, file.size - start))[0]


def _good(data: bytes) -> tuple[int, bool]:
    """How many bytes of good batches stand first, and whether what follows is only cut off."""
    at = 0
    with memoryview(data) as view:
        while at + HEADER_BYTES <= len(data):
            length, magic, crc = _SHAPE.unpack_from(data, at)
            end = at + length + LENGTH_OVERHEAD
            if magic != MAGIC or length < HEADER_BYTES - LENGTH_OVERHEAD:
                return at, False
            if end > len(data):
                break
            if crc32c(view[at + CRC_FROM : end]) != crc:
                return at, False
            at = end
    return at, True


def _check(segment: _Segment, position: int, data: bytes, *, whole: bool) -> None:
    """Only what is no longer than it was asked to be may end within a batch."""
    good, cut_off = _good(data)
    if good < len(data) and (whole or not cut_off):
        raise BesideDamaged(
            f"{_name(segment.base)}: the batch at position {position + good} is damaged"
        )


def _name(base: int) -> str:
    return f"{_PREFIX}{base:020}"


def _bases(storage: Storage) -> list[int]:
    names = (name[len(_PREFIX) :] for name in storage.names() if name.startswith(_PREFIX))
    return sorted(int(name) for name in names if name.isdigit())
