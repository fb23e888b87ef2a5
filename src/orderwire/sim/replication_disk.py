"""Reads what a replica has on its disk, knowing no more than the format of a batch.

So that what is judged does not depend on the code that is judged.
"""

import re
from collections.abc import Iterator
from struct import Struct

from orderwire.broker.log.faulty import FaultyStorage
from orderwire.verify.replication import Batch

_HEADER = Struct(">qiibIhiqqqhii")
_CONTROL = 0x20
_SEGMENT = re.compile(r"\d{20}\.log")
_MESSAGE = re.compile(rb"<([a-z0-9.\-]+)>")
LEAST_LENGTH = 49
"""batchLength of a batch without records."""


def message_bytes(name: str) -> bytes:
    """The value of the record that is this message."""
    return f"<{name}>".encode()


def batches_of(data: bytes) -> Iterator[Batch]:
    """Every whole batch from the start of these bytes on, up to the first that is not one."""
    at = 0
    while at + _HEADER.size <= len(data):
        first, length, epoch, magic, crc, attributes, delta, *_ = _HEADER.unpack_from(data, at)
        end = at + 12 + length
        if magic != 2 or length < LEAST_LENGTH or end > len(data):
            return
        seal = bool(attributes & _CONTROL)
        names = tuple(name.decode() for name in _MESSAGE.findall(data, at + _HEADER.size, end))
        yield Batch(first, first + delta, epoch, crc, () if seal else names, seal)
        at = end


def main_log(storage: FaultyStorage) -> tuple[Batch, ...]:
    """What lies in the segments, in order."""
    found: list[Batch] = []
    for name, file in sorted(storage.disk.files.items()):
        if _SEGMENT.fullmatch(name):
            found += batches_of(bytes(file.content))
    return tuple(found)


def messages_on(storage: FaultyStorage) -> Iterator[str]:
    """Every message that stands in any file, in whatever format."""
    for file in storage.disk.files.values():
        for name in _MESSAGE.findall(file.content):
            yield name.decode()
