"""Which leader epoch wrote which offsets."""

from bisect import bisect_right
from struct import Struct

from crc32c import crc32c

_ROW = Struct(">Iiq")
"""Checksum of the rest, epoch, first offset."""
_BODY = Struct(">iq")
_FIRST = (-1, -1)
"""Every file begins with this row: an empty one is none."""


class EpochHistory:
    """Epochs and the offset at which each began; both only grow.

    On disk it is a row for each, written before the first batch of the epoch and durable before
    that is.  So the epoch in a batch's header, which no checksum covers, must be exactly the
    history's: a flipped bit shows.
    """

    def __init__(self, entries: list[tuple[int, int]] | None = None) -> None:
        self._entries = entries or []

    @property
    def entries(self) -> list[tuple[int, int]]:
        """(epoch, first offset) in order."""
        return list(self._entries)

    @property
    def latest(self) -> int:
        """The current epoch; −1 before the first."""
        return self._entries[-1][0] if self._entries else -1

    def begin(self, epoch: int, offset: int) -> None:
        """Start a later epoch at this offset."""
        assert epoch > self.latest, f"epoch {epoch} does not follow {self.latest}"
        if self._entries and self._entries[-1][1] == offset:
            self._entries.pop()  # the epoch before wrote nothing
        self._entries.append((epoch, offset))

    def at(self, offset: int) -> int:
        """The epoch of the batch at this offset; −1 when unknown."""
        index = bisect_right(self._entries, offset, key=lambda entry: entry[1]) - 1
        return self._entries[index][0] if index >= 0 else -1

    def next_change(self, offset: int) -> int:
        """The first offset behind this one at which the epoch changes, or 2⁶³."""
        index = bisect_right(self._entries, offset, key=lambda entry: entry[1])
        return self._entries[index][1] if index < len(self._entries) else 1 << 63

    def end_of(self, epoch: int, log_end: int) -> tuple[int, int]:
        """The largest epoch at or below this one, and where it ends; (−1, −1) when there is none.

        This is what OffsetForLeaderEpoch asks.
        """
        index = bisect_right(self._entries, epoch, key=lambda entry: entry[0]) - 1
        if index < 0:
            return -1, -1
        last = index + 1 == len(self._entries)
        return self._entries[index][0], log_end if last else self._entries[index + 1][1]

    def cut(self, end: int) -> bool:
        """Forget epochs that begin at or behind this offset; returns whether there were any."""
        before = len(self._entries)
        while self._entries and self._entries[-1][1] >= end:
            self._entries.pop()
        return len(self._entries) < before

    def forget(self, start: int) -> None:
        """Forget epochs that end at or before this offset."""
        while len(self._entries) > 1 and self._entries[1][1] <= start:
            del self._entries[0]

    def to_bytes(self) -> bytes:
        """As a file."""
        return b"".join(epoch_row(*entry) for entry in (_FIRST, *self._entries))

    @classmethod
    def from_bytes(cls, data: bytes | None) -> "EpochHistory | None":
        """Read a file back; None when it is missing, torn or damaged."""
        read = cls.read(data)
        return None if read is None or not read[1] else read[0]

    @classmethod
    def read(cls, data: bytes | None) -> "tuple[EpochHistory, bool] | None":
        """Read the rows before the first that is torn or damaged, and whether those are all.

        None when there is no such file.  Where rows are missing batches say it again; those that
        were durable before their first batch was are never torn.
        """
        if not data:
            return None
        history = cls()
        whole = len(data) % _ROW.size == 0
        rows = _ROW.iter_unpack(data[: len(data) // _ROW.size * _ROW.size])
        for number, (checksum, epoch, offset) in enumerate(rows):
            if crc32c(_BODY.pack(epoch, offset)) != checksum:
                return (history, False) if number else None
            if number == 0:
                if (epoch, offset) != _FIRST:
                    return None
                continue
            last = history._entries[-1] if history._entries else _FIRST
            if epoch <= last[0] or offset < last[1]:
                return history, False
            history.begin(epoch, offset)
        return (history, whole) if len(data) >= _ROW.size else None


def epoch_row(epoch: int, offset: int) -> bytes:
    """What is appended to the file when an epoch begins."""
    return _ROW.pack(crc32c(_BODY.pack(epoch, offset)), epoch, offset)
