"""Batches kept on disk in the order they came, each until it is dropped.  [S004:9.5]

Files `<name>-<number>` of framed batches.  A frame's checksum covers what the batch's own does
not: offset, length, epoch.  A dropped batch is marked in the file it stands in; a file without any
that is kept is removed, the newest cut to nothing.  A torn tail is cut off at the start; a batch
whose content is damaged is told of and left out.
"""

from collections.abc import Iterator
from struct import Struct

import msgspec
from crc32c import crc32c

from orderwire.broker.log import BesideDamaged, Storage, StorageError
from orderwire.broker.log.storage import LogFile
from orderwire.broker.wire.batch import (
    BATCH_HEADER,
    CRC_FROM,
    HEADER_BYTES,
    MAGIC,
    BatchHeader,
    crc_matches,
    read_header,
)
from orderwire.broker.wire.parts import Buffer

_FRAME = Struct(">IB")
"""CRC-32C of kind and head, kind; the head follows: a batch's first 21 bytes, or a position."""
_BATCH = 1
_DROPPED = 2
_POSITION = Struct(">q")
FILE_BYTES = 8 << 20
"""A longer file is not appended to while it holds something that is kept."""


class Place(msgspec.Struct, frozen=True, gc=False, order=True):
    """Where a batch stands; later ones are larger."""

    file: int
    position: int
    """Of the batch itself, in bytes."""


class StoreRecovery(msgspec.Struct, frozen=True):
    """What opening a store found."""

    cut_bytes: int
    """A torn tail; it is gone."""
    damaged: tuple[BatchHeader, ...]
    """Batches whose content does not match their checksum."""


class StoreSync:
    """Files that hold unsynced data.  `run` blocks, changes no object, and may run in a thread."""

    def __init__(
        self, storage: Storage, files: list[LogFile], *, new_names: bool, names: int, changes: int
    ) -> None:
        self._storage = storage
        self._files = files
        self._new_names = new_names
        self.names = names
        """How many new names, and changes, the job makes durable."""
        self.changes = changes

    def run(self) -> None:
        """Wait for the disk.  Raises StorageError."""
        for file in self._files:
            file.sync()
        if self._new_names:
            self._storage.sync_directory()


class _File:
    """One file and what is kept in it."""

    def __init__(self, number: int, file: LogFile) -> None:
        self.number = number
        self.file = file
        self.kept: dict[int, BatchHeader] = {}
        self.changed = 0
        """The store's count of changes at this file's last one."""


class BatchStore:
    """The batches.  Calls come from one thread; only `StoreSync.run` may run in another."""

    def __init__(self, storage: Storage, name: str, file_bytes: int = FILE_BYTES) -> None:
        """Open what is there.  Raises StorageError."""
        self._storage = storage
        self._name = name
        self._file_bytes = file_bytes
        self._files: dict[int, _File] = {}
        self._kept_bytes = 0
        self._changes = 0
        self._synced = 0
        self._names = 0
        """How often a file was made or removed; and how many of those are durable."""
        self._names_synced = 0
        self._broken: StorageError | None = None
        prefix = f"{name}-"
        names = storage.names()
        numbers = sorted(int(each[len(prefix) :]) for each in names if each.startswith(prefix))
        cut = 0
        damaged: list[BatchHeader] = []
        for number in numbers:
            file = _File(number, storage.open(f"{prefix}{number}"))
            self._files[number] = file
            cut += self._scan(file, damaged)
        self.recovery = StoreRecovery(cut, tuple(damaged))
        for file in list(self._files.values()):
            self._tidy(file)

    @property
    def kept_bytes(self) -> int:
        """Of the batches that are kept."""
        return self._kept_bytes

    def __len__(self) -> int:
        return sum(len(file.kept) for file in self._files.values())

    def __iter__(self) -> Iterator[tuple[Place, BatchHeader]]:
        """Every batch that is kept, in the order they came."""
        for number in sorted(self._files):
            for position, header in self._files[number].kept.items():
                yield Place(number, position), header

    def append(self, batch: Buffer) -> tuple[Place, BatchHeader]:
        """Keep one whole, checked batch.  Raises StorageError; nothing is kept then."""
        header = read_header(batch)
        assert header.size_bytes == len(batch), "one batch at a time"
        with memoryview(batch) as view:
            return self.append_all(view, [(0, header)])[0], header

    def append_all(
        self, records: memoryview, batches: list[tuple[int, BatchHeader]]
    ) -> list[Place]:
        """Keep these of the batches there, checked, in one write; all or none, as `append`."""
        current = self._current()
        number = current.number
        position = current.file.size
        parts: list[Buffer] = []
        places: list[Place] = []
        for at, header in batches:
            size = header.size_bytes
            parts.append(_framing(_BATCH, records[at : at + CRC_FROM]))
            parts.append(records[at : at + size])
            position += _FRAME.size
            places.append(Place(number, position))
            position += size
        self._write(current, b"".join(parts))
        for place, (_, header) in zip(places, batches, strict=True):
            current.kept[place.position] = header
            self._kept_bytes += header.size_bytes
        return places

    def read(self, place: Place) -> bytes:
        """Fetch a batch that is kept.  Raises BesideDamaged."""
        return self.read_all([place])

    def read_all(self, places: list[Place]) -> bytes:
        """Fetch batches that are kept, one after the other; those that stand side by side at once.

        Raises BesideDamaged.
        """
        found: list[memoryview] = []
        first = 0
        while first < len(places):
            file = self._files[places[first].file]
            kept = file.kept
            start = position = places[first].position
            headers: list[tuple[int, BatchHeader]] = []
            while (
                first < len(places)
                and places[first].position == position
                and places[first].file == file.number
            ):
                header = kept[position]
                headers.append((position - start, header))
                position += header.size_bytes + _FRAME.size
                first += 1
            data = memoryview(file.file.read(start, position - _FRAME.size - start))
            for at, header in headers:
                batch = data[at : at + header.size_bytes]
                self._check(batch, header, file.number, start + at)
                found.append(batch)
        return b"".join(found)

    def _check(self, data: memoryview, header: BatchHeader, number: int, position: int) -> None:
        if (
            len(data) != header.size_bytes
            or read_header(data) != header
            or crc32c(data[CRC_FROM:]) != header.crc
        ):
            raise BesideDamaged(
                f"{self._name}-{number} at byte {position}: the batch at offset"
                f" {header.base_offset} is damaged: restore it from a copy"
            )

    def drop(self, place: Place) -> None:
        """Let a batch go, which has another home or none; durable after the next sync."""
        file = self._files[place.file]
        head = _POSITION.pack(place.position)
        self._write(file, _framing(_DROPPED, head) + head)
        self.forget(place)

    def forget(self, place: Place) -> None:
        """As `drop`, but after a restart it may be back: the caller knows then what to do."""
        file = self._files[place.file]
        self._kept_bytes -= file.kept.pop(place.position).size_bytes
        self._tidy(file)

    def begin_sync(self) -> StoreSync | None:
        """Collect what is not durable yet; None when all is.  Run it, then call `end_sync`."""
        self._check_usable()
        if self._synced == self._changes:
            return None
        files = [each.file for each in self._files.values() if each.changed > self._synced]
        return StoreSync(
            self._storage,
            files,
            new_names=self._names > self._names_synced,
            names=self._names,
            changes=self._changes,
        )

    def end_sync(self, job: StoreSync, error: StorageError | None = None) -> None:
        """Take note of a job that has run, or failed."""
        if error is not None:
            self._broken = error
            return
        self._synced = max(self._synced, job.changes)
        self._names_synced = max(self._names_synced, job.names)

    def sync(self) -> None:
        """Return when all that was kept and dropped is durable.  Raises StorageError."""
        job = self.begin_sync()
        if job is None:
            return
        try:
            job.run()
        except StorageError as error:
            self.end_sync(job, error)
            raise
        self.end_sync(job)

    def _check_usable(self) -> None:
        if self._broken is not None:
            raise StorageError(
                f"{self._name} is out of use since: {self._broken}"
            ) from self._broken

    def _current(self) -> _File:
        number = max(self._files, default=-1)
        if number < 0 or (
            self._files[number].file.size >= self._file_bytes and self._files[number].kept
        ):
            number += 1
            file = self._storage.create(f"{self._name}-{number}")
            self._files[number] = _File(number, file)
            self._names += 1
        return self._files[number]

    def _write(self, to: _File, frames: bytes) -> None:
        """Append frames, all or nothing."""
        self._check_usable()
        size = to.file.size
        try:
            to.file.append(frames)
        except StorageError:
            try:  # half a frame would hide those behind it
                to.file.truncate(size)
            except StorageError as error:
                self._broken = error
            raise
        self._changes += 1
        to.changed = self._changes

    def _tidy(self, file: _File) -> None:
        """Remove a file in which nothing is kept; the newest is only cut to nothing."""
        if file.kept:
            return
        if file.number != max(self._files):
            del self._files[file.number]
            self._storage.remove(f"{self._name}-{file.number}")
            self._names += 1
            self._changes += 1
        elif file.file.size >= self._file_bytes:
            file.file.truncate(0)
            self._changes += 1
            file.changed = self._changes

    def _scan(self, into: _File, damaged: list[BatchHeader]) -> int:
        """Take what is whole; returns how many bytes were cut off behind."""
        file = into.file
        position = 0
        while (frame_end := position + _FRAME.size) < file.size:
            head = file.read(position, _FRAME.size + HEADER_BYTES)
            crc, kind = _FRAME.unpack_from(head)
            head = head[_FRAME.size :]
            if kind == _BATCH and len(head) == HEADER_BYTES:
                if crc32c(head[:CRC_FROM], kind) != crc:
                    break
                header = BatchHeader(*BATCH_HEADER.unpack(head))
                end = frame_end + header.size_bytes
                if header.magic != MAGIC or end > file.size:
                    break
                data = file.read(frame_end, header.size_bytes)
                if crc_matches(data, 0, len(data), header.crc):
                    into.kept[frame_end] = header
                    self._kept_bytes += header.size_bytes
                else:
                    damaged.append(header)
            elif kind == _DROPPED and len(head) >= _POSITION.size:
                head = head[: _POSITION.size]
                if crc32c(head, kind) != crc:
                    break
                gone = into.kept.pop(_POSITION.unpack(head)[0], None)
                if gone is not None:
                    self._kept_bytes -= gone.size_bytes
                end = frame_end + _POSITION.size
            else:
                break
            position = end
        cut = file.size - position
        if cut:
            file.truncate(position)
            self._changes += 1
            into.changed = self._changes
        return cut


def _framing(kind: int, head: Buffer) -> bytes:
    """What stands before a batch, of which `head` is the first part, or before a position."""
    return _FRAME.pack(crc32c(head, kind), kind)
