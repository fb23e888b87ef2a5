"""Kafka's batches as the judge of replication sees them, read without the broker's code.

A message is called what stands between < and > in its record.  Compressed records are unpacked for
that; those that cannot be, or that unpack to more than the limit, name no message.
"""

import re
from collections.abc import Callable, Iterator
from struct import Struct

import cramjam
from crc32c import crc32c

from orderwire.verify.replication import Batch

HEADER = Struct(">qiibIhiqqqhii")
UNPACKED_BYTES_MAX = 128 << 20
"""Records of one batch that unpack to more are not looked into."""

_CRC_FROM = 21
_CONTROL = 0x20
_CODEC = 0x07
_SNAPPY = 2
_UNPACK: dict[int, Callable[[bytes, bytearray], int]] = {
    1: cramjam.gzip.decompress_into,
    3: cramjam.lz4.decompress_into,
    4: cramjam.zstd.decompress_into,
}
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
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
        names = () if seal else _names_of(data[at + HEADER.size : end], attributes, prefix)
        yield at, end, Batch(first, first + delta, epoch, crc, names, seal), good
        at = end


def names_in(data: bytes, prefix: str = "") -> list[str]:
    """Names that begin with `prefix`, wherever they stand."""
    found = [name.decode() for name in _MESSAGE.findall(data)]
    return [name for name in found if name.startswith(prefix)] if prefix else found


def _names_of(records: bytes, attributes: int, prefix: str) -> tuple[str, ...]:
    """Names in the records of a batch with these attributes; none if they cannot be unpacked."""
    try:
        return tuple(names_in(_unpacked(records, attributes & _CODEC), prefix))
    except cramjam.DecompressionError:
        return ()


def _unpacked(records: bytes, codec: int) -> bytes:
    """Records as their producer wrote them, empty for an unknown codec or beyond the limit."""
    if codec == 0:
        return records
    if codec == _SNAPPY:
        return _unpacked_snappy(records)
    unpack = _UNPACK.get(codec)
    room = min(max(1 << 16, 4 * len(records)), UNPACKED_BYTES_MAX)
    while unpack is not None:
        output = bytearray(room)
        try:
            return bytes(output[: unpack(records, output)])
        except cramjam.DecompressionError:  # Full, or damaged: more room tells which.
            if room == UNPACKED_BYTES_MAX:
                raise
            room = min(room * 16, UNPACKED_BYTES_MAX)
    return b""


def _unpacked_snappy(records: bytes) -> bytes:
    """One bare block, or blocks behind their lengths as snappy-java writes them."""
    blocks = [records]
    if records.startswith(_XERIAL_MAGIC):
        blocks = []
        at = _XERIAL_HEADER_BYTES
        while at < len(records):
            start = at + 4
            at = start + int.from_bytes(records[at:start], "big")
            blocks.append(records[start:at])
    size = sum(cramjam.snappy.decompress_raw_len(block) for block in blocks)
    if size > UNPACKED_BYTES_MAX:
        return b""
    return b"".join(bytes(cramjam.snappy.decompress_raw(block)) for block in blocks)
