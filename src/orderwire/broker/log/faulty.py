"""A disk that fails: full, unwilling to sync, and forgetful when the power goes.

What survives a crash is what was synced, and of what was not: nothing, all of it, a prefix, or a
prefix with blocks of zeros in it.  Names behave likewise.
"""

from random import Random

from orderwire.broker.log.storage import LogFile, StorageError
from orderwire.broker.wire.parts import Buffer

_BLOCK_BYTES = 512


class FaultyDisk:
    """What the files of a `FaultyStorage` share: the faults, and the names that are durable."""

    def __init__(self) -> None:
        self.room_bytes: int | None = None
        """Bytes that can still be written before the disk is full; None: no limit."""
        self.sync_fails = False
        self.truncate_fails = False
        self.writes = 0
        """How many appends were made."""
        self.crash_at_write: int | None = None
        """The append that does not return: raises PowerFailure before it writes."""
        self.steps = 0
        """How many changes were made: appends, cuts, syncs, names made, moved and removed."""
        self.crash_at_step: int | None = None
        """The change that does not return: raises PowerFailure before it is made."""
        self.files: dict[str, FaultyFile] = {}
        self.durable_names: dict[str, FaultyFile] = {}

    def step(self) -> None:
        """Count a change, or let the power fail before it.  Raises PowerFailure."""
        if self.crash_at_step == self.steps:
            raise PowerFailure
        self.steps += 1


class PowerFailure(Exception):
    """The machine stopped here."""


class FaultyFile:
    """One file: what is written, and what is durable."""

    def __init__(self, disk: FaultyDisk) -> None:
        self._disk = disk
        self.content = bytearray()
        self.durable = b""

    @property
    def size(self) -> int:
        """In bytes, as written so far."""
        return len(self.content)

    def append(self, data: Buffer) -> None:
        """Write at the end as much as the disk holds."""
        disk = self._disk
        if disk.crash_at_write == disk.writes:
            raise PowerFailure
        disk.step()
        disk.writes += 1
        if disk.room_bytes is not None:
            if disk.room_bytes < len(data):
                self.content += memoryview(data)[: disk.room_bytes]
                disk.room_bytes = 0
                raise StorageError("cannot append: no space left on device")
            disk.room_bytes -= len(data)
        self.content += data

    def read(self, position: int, length: int) -> bytes:
        """Fetch bytes; fewer only at the end of the file."""
        return bytes(self.content[position : position + length])

    def read_into(self, position: int, buffer: memoryview) -> int:
        """Fill a buffer."""
        data = self.read(position, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def part(self, position: int, length: int) -> bytes:
        """Fetch bytes for sending."""
        return self.read(position, length)

    def truncate(self, size: int) -> None:
        """Cut the file off; not durable before `sync`."""
        self._disk.step()
        if self._disk.truncate_fails:
            raise StorageError("cannot truncate: input/output error")
        del self.content[size:]

    def sync(self) -> None:
        """Make the content durable, or fail."""
        self._disk.step()
        if self._disk.sync_fails:
            raise StorageError("cannot sync: input/output error")
        self.durable = bytes(self.content)

    def after_crash(self, chance: Random) -> None:
        """Become what the disk holds when the power is back."""
        common = min(len(self.durable), len(self.content))
        rewritten = self.content[:common] != self.durable[:common]
        if rewritten or chance.random() < 0.3:
            self.content = bytearray(self.durable)
            return
        kept = chance.randint(common, len(self.content))
        content = self.content[: max(kept, 0)]
        if chance.random() < 0.4:
            for start in range(common, len(content), _BLOCK_BYTES):
                if chance.random() < 0.5:
                    end = min(start + _BLOCK_BYTES, len(content))
                    content[start:end] = bytes(end - start)
        if len(content) < len(self.durable):
            content = bytearray(self.durable)
        self.content = content
        self.durable = bytes(content)


class FaultyStorage:
    """One directory on a faulty disk."""

    def __init__(self, disk: FaultyDisk | None = None) -> None:
        self.disk = disk or FaultyDisk()

    def names(self) -> list[str]:
        """Every file's name, sorted."""
        return sorted(self.disk.files)

    def create(self, name: str) -> LogFile:
        """Make an empty file; a crash before `sync_directory` may lose it."""
        self.disk.step()
        file = self.disk.files[name] = FaultyFile(self.disk)
        return file

    def open(self, name: str) -> LogFile:
        """Open an existing file."""
        if name not in self.disk.files:
            raise StorageError(f"cannot open {name}: no such file")
        return self.disk.files[name]

    def rename(self, old: str, new: str) -> None:
        """Give a file another name; a crash before `sync_directory` may undo it."""
        self.disk.step()
        if old not in self.disk.files:
            raise StorageError(f"cannot rename {old}: no such file")
        self.disk.files[new] = self.disk.files.pop(old)

    def remove(self, name: str) -> None:
        """Delete a file; a crash before `sync_directory` may undo it."""
        self.disk.step()
        self.disk.files.pop(name, None)

    def read_file(self, name: str) -> bytes | None:
        """Read a whole file, or None when there is none."""
        file = self.disk.files.get(name)
        return None if file is None else bytes(file.content)

    def write_file(self, name: str, data: bytes) -> None:
        """Write a whole file, not durably."""
        file = self.disk.files[name] = FaultyFile(self.disk)
        file.append(data)

    def replace_file(self, name: str, data: bytes) -> None:
        """Put a file in place of another, durably."""
        file = FaultyFile(self.disk)
        file.append(data)
        file.sync()
        self.disk.step()
        self.disk.files[name] = file
        self.disk.durable_names[name] = file

    def sync_directory(self) -> None:
        """Make the names durable, or fail."""
        self.disk.step()
        if self.disk.sync_fails:
            raise StorageError("cannot sync: input/output error")
        self.disk.durable_names = dict(self.disk.files)

    def after_crash(self, chance: Random) -> "FaultyStorage":
        """The same directory when the power is back; the old one is of no more use."""
        old = self.disk
        disk = FaultyDisk()
        for name, file in sorted({**old.durable_names, **old.files}.items()):
            durable = name in old.durable_names
            present = name in old.files
            if (durable and present) or chance.random() < 0.5:
                disk.files[name] = file
        done: list[FaultyFile] = []
        for file in disk.files.values():
            if not any(file is each for each in done):  # a rename may have left two names
                file.after_crash(chance)
                file._disk = disk
                done.append(file)
        disk.durable_names = dict(disk.files)
        return FaultyStorage(disk)
