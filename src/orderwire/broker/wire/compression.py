"""The codecs of record batches.  Brokers pass compressed bytes on; this serves tests and tools.

Snappy travels in the framing of xerial's snappy-java, which every Kafka client writes; readers
accept a bare snappy block as well.
"""

import enum
from collections.abc import Callable
from struct import Struct

import cramjam

from orderwire.broker.wire.parts import Buffer
from orderwire.kernel.errors import RemoteProtocolError

UNPACKED_BYTES_MAX = 128 << 20
"""No batch unpacks to more: what would is refused before it fills the memory."""

_XERIAL = b"\x82SNAPPY\x00" + b"\x00\x00\x00\x01" * 2
_XERIAL_MAGIC = _XERIAL[:8]
_XERIAL_BLOCK_BYTES = 32 * 1024
_LENGTH = Struct(">I")
_OUTPUT_FULL = "write whole buffer"
"""How cramjam says that the output, and not the input, is at fault."""


class Compression(enum.IntEnum):
    """Kafka's numbers for its codecs: the low three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def compress(codec: Compression, data: bytes) -> bytes:
    """Pack the records of a batch."""
    match codec:
        case Compression.NONE:
            return data
        case Compression.GZIP:
            return bytes(cramjam.gzip.compress(data))
        case Compression.SNAPPY:
            return _snappy_frames(data)
        case Compression.LZ4:
            return bytes(cramjam.lz4.compress(data))
        case Compression.ZSTD:
            return bytes(cramjam.zstd.compress(data))


def decompress(attributes: int, data: Buffer) -> Buffer:
    """Unpack the records of a batch with these attributes.

    Raises RemoteProtocolError for an unknown codec, damaged data, or too much of it.
    """
    code = attributes & 0x07
    try:
        match code:
            case Compression.NONE:
                return data
            case Compression.GZIP:
                return _bounded(cramjam.gzip.decompress_into, data)
            case Compression.SNAPPY:
                return _snappy(data)
            case Compression.LZ4:
                return _bounded(cramjam.lz4.decompress_into, data)
            case Compression.ZSTD:
                return _bounded(cramjam.zstd.decompress_into, data)
    except cramjam.DecompressionError as error:
        raise RemoteProtocolError(f"cannot unpack {Compression(code).name}: {error}") from error
    raise RemoteProtocolError(f"compression codec {code} is unknown; known are 0 to 4")


def _bounded(unpack: Callable[[Buffer, bytearray], int], data: Buffer) -> bytes:
    """Unpack into a buffer that grows up to the limit."""
    room = max(64 << 10, 4 * len(data))
    while True:
        room = min(room, UNPACKED_BYTES_MAX)
        output = bytearray(room)
        try:
            size = unpack(data, output)
        except cramjam.DecompressionError as error:
            if _OUTPUT_FULL not in str(error) or room == UNPACKED_BYTES_MAX:
                raise
            room *= 8
        else:
            return bytes(memoryview(output)[:size])


def _snappy_frames(data: bytes) -> bytes:
    parts = [_XERIAL]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        parts += [_LENGTH.pack(len(block)), block]
    return b"".join(parts)


def _snappy(data: Buffer) -> bytes:
    if bytes(data[:8]) != _XERIAL_MAGIC:
        return _snappy_block(bytes(data))
    parts = []
    total = 0
    at = len(_XERIAL)
    while at < len(data):
        if at + _LENGTH.size > len(data):
            raise RemoteProtocolError("snappy frame is cut short in a block's length")
        (size,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if at + size > len(data):
            raise RemoteProtocolError(f"snappy block of {size} bytes runs past the end")
        block = _snappy_block(bytes(data[at : at + size]))
        total += len(block)
        if total > UNPACKED_BYTES_MAX:
            raise RemoteProtocolError(f"snappy unpacks to more than {UNPACKED_BYTES_MAX} bytes")
        parts.append(block)
        at += size
    return b"".join(parts)


def _snappy_block(block: bytes) -> bytes:
    if cramjam.snappy.decompress_raw_len(block) > UNPACKED_BYTES_MAX:
        raise RemoteProtocolError(f"snappy unpacks to more than {UNPACKED_BYTES_MAX} bytes")
    return bytes(cramjam.snappy.decompress_raw(block))
