"""A broker's own history until its topic has it: a file that outlives a killed process.

What is not acknowledged by then is published by the next process.  The file is not synced: a crash
of the machine may take its end along, and then the history shows where.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

import msgspec

from orderwire.kernel.parsing import UNREADABLE
from orderwire.verify.replication import Elected, LogStart, Lost, Missing, Republished

_LENGTH_BYTES = 4
_NEW = ".new"


class Advanced(msgspec.Struct, frozen=True, tag=True):
    """A high watermark went from `start` to `end`; the log tells what lies between."""

    broker: int
    life: int
    start: int
    end: int


Told: TypeAlias = Elected | Republished | LogStart | Lost | Missing | Advanced


class Row(msgspec.Struct, frozen=True, array_like=True):
    """An event, whose it is and where."""

    writer: str
    topic: str
    partition: int
    position: int
    time_ns: int
    event: Told


class HistorySpool:
    """The file.  Raises OSError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._encoder = msgspec.msgpack.Encoder()
        self._unwritten = bytearray()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self.size_bytes = 0

    def recover(self) -> list[Row]:
        """What the process before has left; a row that is not whole is cut off."""
        data = self._path.read_bytes()
        rows: list[Row] = []
        decoder = msgspec.msgpack.Decoder(Row)
        end = 0
        for frame in _frames(data):
            try:
                rows.append(decoder.decode(frame))
            except UNREADABLE:
                break
            end += _LENGTH_BYTES + len(frame)
        os.ftruncate(self._file, end)
        self.size_bytes = end
        return rows

    def add(self, row: Row) -> None:
        """Take a row; `flush` writes it."""
        self._unwritten += self._framed(row)

    def flush(self) -> None:
        """Write what was taken."""
        if self._unwritten:
            os.write(self._file, self._unwritten)
            self.size_bytes += len(self._unwritten)
            self._unwritten.clear()

    def replace(self, rows: Iterable[Row]) -> None:
        """Keep these only."""
        self._unwritten.clear()
        data = b"".join(self._framed(row) for row in rows)
        new = self._path.with_name(self._path.name + _NEW)
        new.write_bytes(data)
        new.replace(self._path)
        os.close(self._file)
        self._file = os.open(self._path, os.O_RDWR | os.O_APPEND)
        self.size_bytes = len(data)

    def close(self) -> None:
        """Write what was taken, and close."""
        with contextlib.suppress(OSError):
            self.flush()
        os.close(self._file)

    def _framed(self, row: Row) -> bytes:
        body = self._encoder.encode(row)
        return len(body).to_bytes(_LENGTH_BYTES, "big") + body


def _frames(data: bytes) -> Iterator[bytes]:
    at = 0
    while at + _LENGTH_BYTES <= len(data):
        end = at + _LENGTH_BYTES + int.from_bytes(data[at : at + _LENGTH_BYTES], "big")
        if end > len(data):
            return
        yield data[at + _LENGTH_BYTES : end]
        at = end
