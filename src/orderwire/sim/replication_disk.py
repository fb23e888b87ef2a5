"""Reads what a replica has on its disk, knowing no more than the format of a batch.

So that what is judged does not depend on the code that is judged.
"""

import re
from collections.abc import Iterator

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
        yield from kafka_batches.names_in(bytes(file.content))
