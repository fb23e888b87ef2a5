"""Several data in one message: how they are packed, and cut up again.

count << 1 | wide     varint
count lengths         2 bytes each, 4 when `wide`, little endian
the data, one after the other
"""

import struct
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

from orderwire.kernel import RemoteProtocolError, read_varint
from orderwire.ordering.wire import encode_varint

BATCH_DATA_MAX = 4_096
"""Data in one message, at most."""

_NARROW_MAX = 0xFFFF


def pack(prefix: bytes, data: Sequence[bytes | bytearray], lengths: Sequence[int]) -> bytes:
    """Return these data, which have these lengths, behind this prefix."""
    count = len(lengths)
    assert 0 < count <= BATCH_DATA_MAX, f"{count} data, 1 to {BATCH_DATA_MAX} go into a message"
    wide = max(lengths) > _NARROW_MAX
    head = encode_varint(count << 1 | wide)
    packed = struct.pack(f"<{count}{'I' if wide else 'H'}", *lengths)
    return b"".join((prefix, head, packed, *data))


def unpack(payload: bytes, at: int) -> Sequence[bytes]:
    """Return the data that `pack` packed, from this offset on.  Raises RemoteProtocolError."""
    count, at = read_varint(payload, at)
    wide = count & 1
    count >>= 1
    if not 0 < count <= BATCH_DATA_MAX:
        raise RemoteProtocolError(f"{count} data in a message, expected 1 to {BATCH_DATA_MAX}")
    begin = at + count * (4 if wide else 2)
    if begin > len(payload):
        raise RemoteProtocolError(f"lengths of {count} data in {len(payload)} bytes")
    lengths = struct.unpack_from(f"<{count}{'I' if wide else 'H'}", payload, at)
    if begin + sum(lengths) != len(payload):
        raise RemoteProtocolError(
            f"data of {sum(lengths)} bytes in a message that has {len(payload) - begin} for them"
        )
    if lengths.count(lengths[0]) == count:  # one call cuts all of one length
        return struct.unpack_from(f"{lengths[0]}s" * count, payload, begin)
    ends = accumulate(lengths, initial=begin)
    return [payload[start:end] for start, end in pairwise(ends)]


def cut(lengths: Sequence[int], room: int) -> Iterator[slice]:
    """Yield runs of data, each of which takes at most `room` bytes if it is more than one."""
    start = 0
    taken = 0
    each = 2 if max(lengths) <= _NARROW_MAX else 4
    for at, length in enumerate(lengths):
        taken += length + each
        if at > start and (taken > room or at - start == BATCH_DATA_MAX):
            yield slice(start, at)
            start, taken = at, length + each
    yield slice(start, len(lengths))
