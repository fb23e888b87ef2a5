"""What an encoded message is made of: bytes in memory, and runs of bytes still in a file."""

import os
from collections.abc import Sequence

import msgspec

from orderwire.kernel.errors import LocalProtocolError

Buffer = bytes | bytearray | memoryview
"""Bytes in memory.  A decoded message holds views into the caller's buffer: copy what you keep."""


class FileSlice(msgspec.Struct, frozen=True, gc=False):
    """A run of bytes in an open file, to be sent without passing through Python."""

    file: int
    """File descriptor, for sendfile or pread."""
    position: int
    """Offset in the file, in bytes."""
    length: int
    """In bytes."""
    owner: object = None
    """Keeps the descriptor open for as long as this slice lives."""

    def __len__(self) -> int:
        return self.length

    def read(self) -> bytes:
        """Fetch the bytes; shorter than `length` only when the file was cut meanwhile."""
        return os.pread(self.file, self.length, self.position)


Part = Buffer | FileSlice


def joined(parts: Sequence[Part]) -> bytes:
    """Join the parts of a message that holds no file slice."""
    for part in parts:
        if isinstance(part, FileSlice):
            raise LocalProtocolError(
                "a message that holds a FileSlice has no bytes form: send its parts"
            )
    return b"".join(parts)  # type: ignore[arg-type]
