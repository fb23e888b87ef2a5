"""The cuts that a replica's main log is made of, newest last.  [S004:4.3]

A file of framed records, appended to with every cut and synced with the log: so a replica always
knows how far each lane is ordered in what it has.  Of the committed ones only the newest counts,
so the file stays short.
"""

from collections.abc import Callable
from struct import Struct

import msgspec
from crc32c import crc32c

from orderwire.broker.log.storage import LogDamaged, LogFile, Storage, StorageError
from orderwire.broker.replication.lane_messages import CutRecord

CUTS = "lane-cuts"
_FRAME = Struct(">II")
FILE_BYTES_MAX = 64 << 10
KEPT = 64
"""Cuts that are not committed yet, at most; a log is cut back to one of them."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(CutRecord)


class CutHistory:
    """The file and what is in it.  Calls come from one thread, but for `LogFile.sync`."""

    def __init__(
        self, storage: Storage, log_end: int, epoch_below: Callable[[int], int] = lambda _: -1
    ) -> None:
        """Open what is there, for a log with this end; `epoch_below` is the epoch of its batch
        before an offset.  Raises StorageError."""
        self._storage = storage
        data = storage.read_file(CUTS)
        if data is None:
            if log_end > 0:
                raise LogDamaged(
                    f"there is a log to offset {log_end}, but no file {CUTS}: restore both"
                    " from a copy"
                )
            self.records = [CutRecord(-1, 0, 0, (), 0)]
            storage.replace_file(CUTS, b"".join(map(_framed, self.records)))
            self._file = storage.open(CUTS)
        else:
            self.records, good = _read(data)
            self._file = storage.open(CUTS)
            if good < len(data):
                self._file.truncate(good)
            self._file.sync()
            # Cuts of which the log has only a part were never Done.
            while len(self.records) > 1 and (
                self.records[-1].end_offset > log_end
                # A power failure took the cuts that this log is, and left what was before.
                or epoch_below(self.records[-1].end_offset) > self.records[-1].epoch
            ):
                self.records.pop()
            if not self.records or self.records[-1].end_offset > log_end:
                raise LogDamaged(
                    f"the log ends at {log_end}, before every cut of {CUTS}: restore it from a copy"
                )
        self.safe = self.records[-1]
        """The newest that is durable, with its part of the log."""
        self.changes = 0
        self.synced = 0

    @property
    def last(self) -> CutRecord:
        """What the main log is."""
        return self.records[-1]

    @property
    def file(self) -> LogFile:
        """What has to be synced."""
        return self._file

    def append(self, record: CutRecord) -> None:
        """Add a cut; durable after the next sync.  Raises StorageError."""
        data = _framed(record)
        size = self._file.size
        if size + len(data) > FILE_BYTES_MAX:
            self._forget()
            self.records.append(record)
            self._rewrite()
            return
        try:
            self._file.append(data)
        except StorageError:
            self._file.truncate(size)
            raise
        self.changes += 1
        self.records.append(record)
        if len(self.records) > 2 * KEPT:
            self._forget()

    def back_to(self, end_offset: int) -> CutRecord:
        """The newest cut that ends at or before this offset; later ones are forgotten, durably."""
        while len(self.records) > 1 and self.records[-1].end_offset > end_offset:
            self.records.pop()
        self.safe = self.records[-1]
        self._rewrite()
        return self.safe

    def reset(self, record: CutRecord) -> None:
        """Forget all for this one, durably."""
        self.records = [record]
        self.safe = record
        self._rewrite()

    def _forget(self) -> None:
        """Keep the newest cut that is committed and durable, and the newest of what came after."""
        committed = self.records[-1].committed
        first = 0
        for number, record in enumerate(self.records):
            if record.whole and record.end_offset <= committed:
                first = number
            if record is self.safe:
                break
        later = self.records[first + 1 :]
        self.records = [self.records[first], *later[-KEPT:]]

    def _rewrite(self) -> None:
        self._storage.replace_file(CUTS, b"".join(map(_framed, self.records)))
        self._file = self._storage.open(CUTS)
        self.changes += 1
        self.synced = self.changes


def _framed(record: CutRecord) -> bytes:
    payload = _encoder.encode(record)
    return _FRAME.pack(len(payload), crc32c(payload)) + payload


def _read(data: bytes) -> tuple[list[CutRecord], int]:
    """Every whole record, and where the first that is not begins."""
    records: list[CutRecord] = []
    at = 0
    while at + _FRAME.size <= len(data):
        length, checksum = _FRAME.unpack_from(data, at)
        end = at + _FRAME.size + length
        payload = data[at + _FRAME.size : end]
        if not length or end > len(data) or crc32c(payload) != checksum:
            break
        records.append(_decoder.decode(payload))
        at = end
    return records, at
