"""Where a broker keeps what is not a log: small files replaced as a whole, and journals.

A port with two implementations: memory for tests, a directory for brokers.
"""

import os
from pathlib import Path
from typing import Protocol

_TEMPORARY = ".new"


class StateFiles(Protocol):
    """Named files of one data directory.  Every call may raise OSError."""

    def read(self, name: str) -> bytes | None:
        """Return the whole file, or None when there is none."""
        ...

    def replace(self, name: str, data: bytes) -> None:
        """Put these bytes in place of the file: after a crash, the old or the new ones."""
        ...

    def append(self, name: str, data: bytes) -> None:
        """Add these bytes at the end of the file; make it when there is none."""
        ...

    def sync(self, name: str) -> None:
        """Return when what was appended survives a power failure."""
        ...

    def remove(self, name: str) -> None:
        """Delete the file when there is one."""
        ...

    def close(self) -> None:
        """Close every open file."""
        ...


class MemoryState:
    """Files in memory; `power_failure` forgets what was not synced."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self._synced: dict[str, bytes] = {}

    def read(self, name: str) -> bytes | None:
        """Return the whole file or None."""
        return self.files.get(name)

    def replace(self, name: str, data: bytes) -> None:
        """Put these bytes in place of the file."""
        self.files[name] = self._synced[name] = bytes(data)

    def append(self, name: str, data: bytes) -> None:
        """Add these bytes at the end."""
        self.files[name] = self.files.get(name, b"") + data

    def sync(self, name: str) -> None:
        """Make what was appended durable."""
        if name in self.files:
            self._synced[name] = self.files[name]

    def remove(self, name: str) -> None:
        """Delete the file when there is one."""
        self.files.pop(name, None)
        self._synced.pop(name, None)

    def power_failure(self) -> None:
        """Keep only what had been synced."""
        self.files = dict(self._synced)

    def close(self) -> None:
        """Close every open file."""


class DirectoryState:
    """Files in a directory."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._open: dict[str, int] = {}

    def read(self, name: str) -> bytes | None:
        """Return the whole file or None."""
        try:
            return (self._directory / name).read_bytes()
        except FileNotFoundError:
            return None

    def replace(self, name: str, data: bytes) -> None:
        """Put these bytes in place of the file."""
        self._close(name)
        temporary = self._directory / (name + _TEMPORARY)
        file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            _write_all(file, data)
            os.fdatasync(file)
        finally:
            os.close(file)
        temporary.replace(self._directory / name)
        self._sync_directory()

    def append(self, name: str, data: bytes) -> None:
        """Add these bytes at the end."""
        _write_all(self._file(name), data)

    def sync(self, name: str) -> None:
        """Make what was appended durable."""
        os.fdatasync(self._file(name))

    def remove(self, name: str) -> None:
        """Delete the file when there is one."""
        self._close(name)
        (self._directory / name).unlink(missing_ok=True)

    def close(self) -> None:
        """Close every open file."""
        for name in list(self._open):
            self._close(name)

    def _file(self, name: str) -> int:
        file = self._open.get(name)
        if file is None:
            path = self._directory / name
            created = not path.exists()
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            file = self._open[name] = os.open(path, flags, 0o644)
            if created:
                self._sync_directory()
        return file

    def _close(self, name: str) -> None:
        file = self._open.pop(name, None)
        if file is not None:
            os.close(file)

    def _sync_directory(self) -> None:
        directory = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def _write_all(file: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]
