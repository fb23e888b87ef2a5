"""Reads what a replica has on its disk, knowing no more than the format of a batch.

So that what is judged does not depend on the code that is judged.
"""

import re
from collections.abc import Iterator
from itertools import pairwise

from orderwire.broker.log.faulty import FaultyStorage
from orderwire.verify import kafka_batches
from orderwire.verify.replication import Batch

_SEGMENT = re.compile(r"\d{20}\.log")


def message_bytes(name: str) -> bytes:
    """The value of the record that is this message."""
    return f"<{name}>".encode()


def batches_of(data: bytes) -> Iterator[Batch]:
    """Every whole batch from the start of these bytes on, up to the first that is not one."""
    for _, _, batch, _ in kafka_batches.batches_of(data):
        yield batch


def is_segment(name: str) -> bool:
    """Whether a file is a piece of the main log."""
    return _SEGMENT.fullmatch(name) is not None


def main_log(storage: FaultyStorage) -> tuple[Batch, ...]:
    """What lies in the segments, in order."""
    found: list[Batch] = []
    for name, file in sorted(storage.disk.files.items()):
        if is_segment(name):
            found += batches_of(bytes(file.content))
    return tuple(found)


def before_gap(batches: tuple[Batch, ...], log_start: int) -> tuple[Batch, ...]:
    """Up to where the next batch does not follow: a power failure may leave a gap behind that.

    What lies below the log's start may be half gone in any case.
    """
    for number, (one, other) in enumerate(pairwise(batches), 1):
        if other.first != one.last + 1 and other.first > log_start:
            return batches[:number]
    return batches


def messages_on(storage: FaultyStorage) -> Iterator[str]:
    """Every message that stands in any file, in whatever format."""
    for file in storage.disk.files.values():
        yield from kafka_batches.names_in(bytes(file.content))
