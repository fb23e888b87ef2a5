"""The coordinator's memory on disk: a snapshot and the journal of what changed since.

Every record is framed as length (u32), CRC-32C (u32), MessagePack bytes.  A snapshot replaces its
file as a whole; journal `n` continues snapshot `n`.  A torn or damaged tail of the journal is cut
off: nothing behind it was ever answered for.
"""

from collections.abc import Iterable, Iterator
from struct import Struct

import msgspec
from crc32c import crc32c

from orderwire.broker.group_model import DurableRecord
from orderwire.broker.log.storage import LogFile, Storage, StorageError
from orderwire.kernel.errors import OrderwireError

_FRAME = Struct(">II")
_RECORD_BYTES_MAX = 64 << 20
_SNAPSHOT = "groups.snapshot"
JOURNAL_BYTES_MAX = 4 << 20
"""A longer journal is replaced by a snapshot, unless the snapshot is larger still."""


class SnapshotDamaged(OrderwireError):
    """The snapshot does not read: it was replaced as a whole, so this is no torn write."""


class _Head(msgspec.Struct, frozen=True, tag="head"):
    """First record of a snapshot."""

    number: int
    version: int = 1


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(DurableRecord)
_head_decoder = msgspec.msgpack.Decoder(_Head)


class Journal:
    """Keeps the records of one coordinator.  Calls come from one thread at a time."""

    def __init__(self, files: Storage) -> None:
        self._files = files
        self._number = 0
        self._file: LogFile | None = None
        self._snapshot_bytes = 0
        self._broken: StorageError | None = None

    def recover(self) -> list[DurableRecord]:
        """Return every record in order, and cut off a torn tail.  Raises SnapshotDamaged."""
        records: list[DurableRecord] = []
        snapshot = self._files.read_file(_SNAPSHOT)
        if snapshot is not None:
            frames = list(_frames(snapshot))
            if not frames or frames[-1][1] != len(snapshot):
                raise SnapshotDamaged(
                    f"{_SNAPSHOT} ({len(snapshot)} bytes) fails its checksum"
                    f" behind byte {frames[-1][1] if frames else 0}: restore it from a copy"
                )
            self._number = _head_decoder.decode(frames[0][0]).number
            self._snapshot_bytes = len(snapshot)
            records += [_decoder.decode(payload) for payload, _ in frames[1:]]
        names = self._files.names()
        if _journal_name(self._number) in names:
            self._file = self._files.open(_journal_name(self._number))
            journal = self._file.read(0, self._file.size)
            whole = list(_frames(journal))
            records += [_decoder.decode(payload) for payload, _ in whole]
            end = whole[-1][1] if whole else 0
            if end < len(journal):
                self._file.truncate(end)
            self._file.sync()
        self._files.remove(_journal_name(self._number - 1))
        return records

    def append(self, framed: bytes) -> None:
        """Write records that `frame` made, all or none.  Raises StorageError."""
        if self._broken is not None:
            raise StorageError(f"the journal is out of use since: {self._broken}")
        if self._file is None:
            self._file = self._files.create(_journal_name(self._number))
            self._files.sync_directory()
        size = self._file.size
        try:
            self._file.append(framed)
        except StorageError:
            try:  # half a record would hide those behind it
                self._file.truncate(size)
            except StorageError as error:
                self._broken = error
            raise

    def sync(self) -> None:
        """Return when every appended record survives a power failure."""
        if self._file is not None:
            self._file.sync()

    @property
    def is_long(self) -> bool:
        """Whether it is time for a snapshot."""
        if self._file is None:
            return False
        return self._file.size > max(JOURNAL_BYTES_MAX, self._snapshot_bytes)

    def replace(self, framed: Iterable[bytes]) -> None:
        """Replace snapshot and journal by these records, framed."""
        old = _journal_name(self._number)
        data = b"".join([frame(_Head(self._number + 1)), *framed])
        self._files.replace_file(_SNAPSHOT, data)
        self._number += 1
        self._snapshot_bytes = len(data)
        self._file = None
        self._files.remove(old)


def _journal_name(number: int) -> str:
    return f"groups-{number}.journal"


def frame(record: DurableRecord | _Head) -> bytes:
    """Return a record as it stands in the file."""
    payload = _encoder.encode(record)
    return _FRAME.pack(len(payload), crc32c(payload)) + payload


def _frames(data: bytes) -> Iterator[tuple[memoryview, int]]:
    """Yield (payload, end offset) of every whole record, up to the first that is not."""
    view = memoryview(data)
    at = 0
    while at + _FRAME.size <= len(data):
        length, checksum = _FRAME.unpack_from(data, at)
        end = at + _FRAME.size + length
        if length > _RECORD_BYTES_MAX or end > len(data):
            return
        payload = view[at + _FRAME.size : end]
        if length == 0 or crc32c(payload) != checksum:
            return
        yield payload, end
        at = end
