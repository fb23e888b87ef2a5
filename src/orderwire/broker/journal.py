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
from orderwire.broker.state import StateFiles
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

    def __init__(self, files: StateFiles) -> None:
        self._files = files
        self._number = 0
        self._journal_bytes = 0
        self._snapshot_bytes = 0

    @property
    def name(self) -> str:
        """The current journal's file."""
        return f"groups-{self._number}.journal"

    def recover(self) -> list[DurableRecord]:
        """Return every record in order, and cut off a torn tail.  Raises SnapshotDamaged."""
        records: list[DurableRecord] = []
        snapshot = self._files.read(_SNAPSHOT)
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
        journal = self._files.read(self.name) or b""
        whole = list(_frames(journal))
        records += [_decoder.decode(payload) for payload, _ in whole]
        end = whole[-1][1] if whole else 0
        if end < len(journal):
            self._files.replace(self.name, journal[:end])
        self._journal_bytes = end
        self._files.remove(f"groups-{self._number - 1}.journal")
        return records

    def append(self, framed: bytes) -> None:
        """Write records that `frame` made."""
        self._files.append(self.name, framed)
        self._journal_bytes += len(framed)

    def sync(self) -> None:
        """Return when every appended record survives a power failure."""
        self._files.sync(self.name)

    @property
    def is_long(self) -> bool:
        """Whether it is time for a snapshot."""
        return self._journal_bytes > max(JOURNAL_BYTES_MAX, self._snapshot_bytes)

    def snapshot(self, records: Iterable[DurableRecord]) -> None:
        """Replace snapshot and journal by these records."""
        old = self.name
        data = b"".join([frame(_Head(self._number + 1)), *map(frame, records)])
        self._files.replace(_SNAPSHOT, data)
        self._number += 1
        self._snapshot_bytes = len(data)
        self._journal_bytes = 0
        self._files.remove(old)


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
