"""What every generated codec needs: varints, tags, and errors that name the fault.

Lengths and counts come from a peer: each is checked against the bytes that remain before
anything is sliced, looped over or allocated.
"""

import struct
from collections.abc import Sequence

from orderwire.broker.wire.parts import Buffer, Part, joined
from orderwire.kernel.errors import LocalProtocolError, RemoteProtocolError

ZERO_UUID = bytes(16)
"""How Kafka writes "no UUID"."""

UVARINT_BYTES_MAX = 5
"""Lengths, counts and tags are 32-bit, so five groups of seven bits."""

MALFORMED = (IndexError, struct.error, ValueError)
"""What a decoder trips over when the bytes are not what they should be (bad UTF-8 included)."""

UVARINT = tuple(bytes((value,)) for value in range(128))
"""The one-byte varints, ready made."""


def uvarint(value: int) -> bytes:
    """Encode a non-negative integer, seven bits a byte, lowest first."""
    if value < 128:
        return UVARINT[value]
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_uvarint(data: Buffer, at: int) -> tuple[int, int]:
    """Return the unsigned varint at this offset, and the offset behind it."""
    value = 0
    for shift in range(0, 7 * UVARINT_BYTES_MAX, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise RemoteProtocolError(f"varint before offset {at} is longer than {UVARINT_BYTES_MAX} bytes")


def skip_tags(data: Buffer, at: int) -> int:
    """Step over a section of tagged fields that this version does not know."""
    count, at = read_uvarint(data, at)
    for _ in range(count):
        _, at = read_uvarint(data, at)
        size, at = read_uvarint(data, at)
        at += size
        if at > len(data):
            raise RemoteProtocolError(f"a tagged field ends at {at}, behind the end ({len(data)})")
    return at


def tagged(tag: int, parts: Sequence[Part]) -> bytes:
    """Frame one tagged field: tag, size, value."""
    body = joined(parts)
    return uvarint(tag) + uvarint(len(body)) + body


def read_string(data: memoryview, at: int) -> tuple[str, int]:
    """Read a string with a two-byte length (an array's element, so never null)."""
    end = at + 2 + (data[at] << 8 | data[at + 1])
    if data[at] > 127:
        raise forbidden_null("an array's string")
    if end > len(data):
        raise cut_short("an array's string", end, len(data))
    return str(data[at + 2 : end], "utf-8"), end


def read_compact_string(data: memoryview, at: int) -> tuple[str, int]:
    """Read a string with a varint length (an array's element, so never null)."""
    size, at = read_uvarint(data, at)
    if size == 0:
        raise forbidden_null("an array's string")
    end = at + size - 1
    if end > len(data):
        raise cut_short("an array's string", end, len(data))
    return str(data[at:end], "utf-8"), end


def cut_short(field: str, end: int, size: int) -> RemoteProtocolError:
    """The error for a field that ends behind the data."""
    return RemoteProtocolError(f"{field} ends at byte {end}, but only {size} bytes came")


def too_many(field: str, count: int, at: int, size: int) -> RemoteProtocolError:
    """The error for an array that cannot fit into the bytes that remain."""
    return RemoteProtocolError(
        f"{field} announces {count} entries at byte {at}, but only {size - at} bytes follow"
    )


def forbidden_null(field: str) -> RemoteProtocolError:
    """The error for a null where this version allows none."""
    return RemoteProtocolError(f"{field} is null, which this version does not allow")


def malformed(message: str, version: int, error: Exception) -> RemoteProtocolError:
    """The error for bytes that a decoder tripped over."""
    return RemoteProtocolError(f"malformed {message} version {version}: {error}")


def unknown_version(message: str, version: int, known: str) -> RemoteProtocolError:
    """The error for a peer's version outside the served range."""
    return RemoteProtocolError(f"{message} version {version} is not served; served are {known}")


def cannot_encode(message: str, version: int, known: str) -> LocalProtocolError:
    """The error for a caller's version outside the served range."""
    return LocalProtocolError(f"cannot encode {message} version {version}; known are {known}")
