"""The sparse index of a segment: where to start looking for an offset or a time."""

from array import array
from bisect import bisect_left, bisect_right

import msgspec

from orderwire.broker.log.sealed import seal, unseal

_VERSION = 1


class _IndexFile(msgspec.Struct, array_like=True):
    version: int
    next_position: int
    segment_bytes: int
    offsets: bytes
    positions: bytes
    times: bytes


class SparseIndex:
    """One entry per interval of bytes: a batch's base offset, its position, and the newest time
    before it.  The first batch always has one.
    """

    def __init__(self) -> None:
        self.offsets: array[int] = array("q")
        self.positions: array[int] = array("q")
        self.times: array[int] = array("q")
        """The largest timestamp of every batch before the entry's: never decreases."""
        self.next_position = 0
        """A batch at or behind this position gets an entry."""

    def add(self, offset: int, position: int, newest_before: int, interval_bytes: int) -> None:
        """Note a batch at or behind `next_position`."""
        self.offsets.append(offset)
        self.positions.append(position)
        self.times.append(newest_before)
        self.next_position = position + interval_bytes

    def before_offset(self, offset: int) -> tuple[int, int]:
        """The last entry at or before this offset: (offset, position)."""
        index = bisect_right(self.offsets, offset) - 1
        assert index >= 0, f"offset {offset} lies before the segment"
        return self.offsets[index], self.positions[index]

    def before_position(self, position: int) -> int:
        """The last entry's position at or before this one; 0 when there is none."""
        index = bisect_right(self.positions, position) - 1
        return self.positions[index] if index >= 0 else 0

    def before_time(self, timestamp: int) -> tuple[int, int]:
        """The last entry with only older batches before it: (offset, position)."""
        index = max(bisect_left(self.times, timestamp) - 1, 0)
        return self.offsets[index], self.positions[index]

    def cut(self, position: int, interval_bytes: int) -> None:
        """Forget entries at or behind this position."""
        keep = bisect_left(self.positions, position)
        for column in (self.offsets, self.positions, self.times):
            del column[keep:]
        self.next_position = self.positions[-1] + interval_bytes if keep else 0

    def to_bytes(self, segment_bytes: int) -> bytes:
        """As a file; bound to the segment's size."""
        arrays = (self.offsets.tobytes(), self.positions.tobytes(), self.times.tobytes())
        return seal(_IndexFile(_VERSION, self.next_position, segment_bytes, *arrays))

    @classmethod
    def from_bytes(cls, data: bytes | None, segment_bytes: int) -> "SparseIndex | None":
        """Read a file back; None when it is missing, damaged, or of another size."""
        file = unseal(data, _IndexFile)
        if file is None or file.version != _VERSION or file.segment_bytes != segment_bytes:
            return None
        index = cls()
        index.next_position = file.next_position
        index.offsets.frombytes(file.offsets)
        index.positions.frombytes(file.positions)
        index.times.frombytes(file.times)
        return index
