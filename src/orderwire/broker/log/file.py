"""Files on disk."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from orderwire.broker.log.storage import LogFile, StorageError
from orderwire.broker.wire.parts import Buffer, FileSlice

_NEW = ".new"


@contextmanager
def _mapped(action: str, path: str | Path) -> Iterator[None]:
    """Turn an operating system's error into ours, with the file's name."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"cannot {action} {path}: {error.strerror}") from error


class DiskFile:
    """One open file.  Its descriptor is closed with the last reference, slices included."""

    def __init__(self, descriptor: int, path: Path, size: int) -> None:
        self._descriptor = descriptor
        self._path = path
        self.size = size

    def append(self, data: Buffer) -> None:
        """Write all of it at the end."""
        try:
            written = os.pwrite(self._descriptor, data, self.size)
            self.size += written
            while written < len(data):
                count = os.pwrite(self._descriptor, memoryview(data)[written:], self.size)
                written += count
                self.size += count
        except OSError as error:
            raise StorageError(f"cannot append to {self._path}: {error.strerror}") from error

    def read(self, position: int, length: int) -> bytes:
        """Fetch bytes; fewer only at the end of the file."""
        try:
            return os.pread(self._descriptor, length, position)
        except OSError as error:
            raise StorageError(f"cannot read {self._path}: {error.strerror}") from error

    def read_into(self, position: int, buffer: memoryview) -> int:
        """Fill a buffer."""
        filled = 0
        with _mapped("read", self._path):
            while filled < len(buffer):
                count = os.preadv(self._descriptor, [buffer[filled:]], position + filled)
                if count == 0:
                    break
                filled += count
        return filled

    def part(self, position: int, length: int) -> FileSlice:
        """Refer to bytes for sendfile; the slice keeps the file open."""
        return FileSlice(self._descriptor, position, length, self)

    def truncate(self, size: int) -> None:
        """Cut the file off."""
        with _mapped("truncate", self._path):
            os.ftruncate(self._descriptor, size)
        self.size = size

    def sync(self) -> None:
        """Wait for the disk."""
        with _mapped("sync", self._path):
            os.fdatasync(self._descriptor)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self._descriptor)  # bound above: at interpreter exit `os` may be gone first


class DiskStorage:
    """One directory, made when missing."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        with _mapped("make", directory):
            directory.mkdir(parents=True, exist_ok=True)

    def names(self) -> list[str]:
        """Every file's name, sorted."""
        with _mapped("list", self._directory):
            return sorted(os.listdir(self._directory))

    def create(self, name: str) -> LogFile:
        """Make an empty file."""
        return self._open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC)

    def open(self, name: str) -> LogFile:
        """Open an existing file."""
        return self._open(name, os.O_RDWR)

    def rename(self, old: str, new: str) -> None:
        """Give a file another name."""
        with _mapped("rename", self._directory / old):
            (self._directory / old).replace(self._directory / new)

    def remove(self, name: str) -> None:
        """Delete a file when there is one."""
        with _mapped("remove", self._directory / name):
            (self._directory / name).unlink(missing_ok=True)

    def read_file(self, name: str) -> bytes | None:
        """Read a whole file, or None when there is none."""
        with _mapped("read", self._directory / name):
            try:
                return (self._directory / name).read_bytes()
            except FileNotFoundError:
                return None

    def write_file(self, name: str, data: bytes) -> None:
        """Write a whole file, not durably."""
        path = self._directory / name
        with _mapped("write", path):
            # Over what is there: a file that is cut to nothing and written again, file systems
            # put on disk when it is closed.
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                left = memoryview(data)
                at = 0
                while left:
                    count = os.pwrite(descriptor, left, at)
                    left, at = left[count:], at + count
                if os.fstat(descriptor).st_size > len(data):
                    os.ftruncate(descriptor, len(data))
            finally:
                os.close(descriptor)

    def replace_file(self, name: str, data: bytes) -> None:
        """Write beside, sync, rename, sync the directory."""
        new = self._directory / (name + _NEW)
        with _mapped("write", new):
            with new.open("wb") as file:
                file.write(data)
                file.flush()
                os.fdatasync(file.fileno())
            new.replace(self._directory / name)
        self.sync_directory()

    def sync_directory(self) -> None:
        """Wait for the disk."""
        with _mapped("sync", self._directory):
            descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def _open(self, name: str, flags: int) -> DiskFile:
        path = self._directory / name
        with _mapped("open", path):
            descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644)
            return DiskFile(descriptor, path, os.fstat(descriptor).st_size)
