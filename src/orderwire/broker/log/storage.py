"""The port between a partition's log and the disk: one directory of append-only files.

Three implementations keep one contract: `memory`, `file` and `faulty` (which fails, and forgets
what was not synced).  What goes wrong below comes up as StorageError, never as OSError.
"""

from typing import Protocol

from orderwire.broker.wire.parts import Buffer, Part
from orderwire.kernel.errors import OrderwireError


class StorageError(OrderwireError):
    """The disk's fault: full, broken, or not ours to write."""


class LogDamaged(StorageError):
    """Bytes that were durable read differently now: restore them from a copy."""


class BesideDamaged(LogDamaged):
    """Not the log, but what waits beside it: whoever opens it again leaves out what is damaged."""


class LogFile(Protocol):
    """One append-only file.  It closes when nobody refers to it any more."""

    @property
    def size(self) -> int:
        """In bytes, as written so far."""
        ...

    def append(self, data: Buffer) -> None:
        """Write all of it at the end; on StorageError part of it may be there."""
        ...

    def read(self, position: int, length: int) -> bytes:
        """Fetch bytes; fewer only at the end of the file."""
        ...

    def read_into(self, position: int, buffer: memoryview) -> int:
        """Fill a buffer; returns how many bytes came, fewer only at the end of the file."""
        ...

    def part(self, position: int, length: int) -> Part:
        """Refer to bytes for sending: a file slice where there is a file."""
        ...

    def truncate(self, size: int) -> None:
        """Cut the file off."""
        ...

    def sync(self) -> None:
        """Return when the content survives a power failure.  May run in another thread."""
        ...


class Storage(Protocol):
    """One directory."""

    def names(self) -> list[str]:
        """Every file's name, sorted."""
        ...

    def create(self, name: str) -> LogFile:
        """Make an empty file; durable after `sync_directory`."""
        ...

    def open(self, name: str) -> LogFile:
        """Open an existing file."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Give a file another name; open files stay readable."""
        ...

    def remove(self, name: str) -> None:
        """Delete a file when there is one; open files stay readable."""
        ...

    def read_file(self, name: str) -> bytes | None:
        """Read a whole file, or None when there is none."""
        ...

    def write_file(self, name: str, data: bytes) -> None:
        """Write a whole file, not durably: for what can be made again when it is damaged."""
        ...

    def replace_file(self, name: str, data: bytes) -> None:
        """Put a file in place of another, durably: after a crash it is the old or the new one.

        May run in another thread.
        """
        ...

    def sync_directory(self) -> None:
        """Return when names survive a power failure.  May run in another thread."""
        ...
