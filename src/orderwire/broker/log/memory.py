"""Files in memory, for tests and for topics that need not last."""

from orderwire.broker.log.storage import LogFile, StorageError
from orderwire.broker.wire.parts import Buffer


class MemoryFile:
    """One file."""

    def __init__(self) -> None:
        self.content = bytearray()

    @property
    def size(self) -> int:
        """In bytes."""
        return len(self.content)

    def append(self, data: Buffer) -> None:
        """Write all of it at the end."""
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
        """Cut the file off."""
        del self.content[size:]

    def sync(self) -> None:
        """Nothing to wait for."""


class MemoryStorage:
    """One directory."""

    def __init__(self) -> None:
        self.files: dict[str, MemoryFile] = {}

    def names(self) -> list[str]:
        """Every file's name, sorted."""
        return sorted(self.files)

    def create(self, name: str) -> LogFile:
        """Make an empty file."""
        file = self.files[name] = MemoryFile()
        return file

    def open(self, name: str) -> LogFile:
        """Open an existing file."""
        if name not in self.files:
            raise StorageError(f"cannot open {name}: no such file")
        return self.files[name]

    def rename(self, old: str, new: str) -> None:
        """Give a file another name."""
        if old not in self.files:
            raise StorageError(f"cannot rename {old}: no such file")
        self.files[new] = self.files.pop(old)

    def remove(self, name: str) -> None:
        """Delete a file when there is one."""
        self.files.pop(name, None)

    def read_file(self, name: str) -> bytes | None:
        """Read a whole file, or None when there is none."""
        file = self.files.get(name)
        return None if file is None else bytes(file.content)

    def write_file(self, name: str, data: bytes) -> None:
        """Write a whole file."""
        self.replace_file(name, data)

    def replace_file(self, name: str, data: bytes) -> None:
        """Put a file in place of another."""
        file = MemoryFile()
        file.append(data)
        self.files[name] = file

    def sync_directory(self) -> None:
        """Nothing to wait for."""
