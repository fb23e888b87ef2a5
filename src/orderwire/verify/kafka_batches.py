"""Kafka's batches as the judge of replication sees them, read without the broker's code.

A message is called what stands between < and > in its record; only records that are not compressed
tell that.
"""

import re
from collections.abc import Iterator
from struct import Struct

from crc32c import crc32c

from orderwire.verify.replication import Batch

HEADER = Struct(">qiibIhiqqqhii")
_CRC_FROM = 21
_CONTROL = 0x20
_LEAST_LENGTH = 49
_MESSAGE = re.compile(rb"<([a-z0-9.\-]+)>")


def batches_of(data: bytes, prefix: str = "") -> Iterator[tuple[int, int, Batch, bool]]:
    """Every batch from the start on: where it begins and ends, itself, whether its CRC matches.

    Only names that begin with `prefix` are messages.
    """
    at = 0
    while at + HEADER.size <= len(data):
        first, length, epoch, magic, crc, attributes, delta, *_ = HEADER.unpack_from(data, at)
        end = at + 12 + length
        if magic != 2 or length < _LEAST_LENGTH or end > len(data):
            return
        good = crc32c(data[at + _CRC_FROM : end]) == crc
        seal = bool(attributes & _CONTROL)
        names = tuple(names_in(data[at + HEADER.size : end], prefix))
        yield at, end, Batch(first, first + delta, epoch, crc, () if seal else names, seal), good
        at = end


def names_in(data: bytes, prefix: str = "") -> list[str]:
    """Names that begin with `prefix`, wherever they stand."""
    found = [name.decode() for name in _MESSAGE.findall(data)]
    return [name for name in found if name.startswith(prefix)] if prefix else found
