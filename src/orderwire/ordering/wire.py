"""What the PDUs of all ordering algorithms have in common on the wire.

Head: stamp (8 bytes, little endian, in ticks), number (varint), destination set.

A destination set begins with a varint h.  Its low bits say how it goes on:

    …0   the bit mask itself is h >> 1 (masks below 2⁶⁹)
    …01  a list: h >> 2 process ids follow, ascending, as varints
    …11  a long bit mask: h >> 2 bytes follow, little endian, the last one not 0

The shortest of the three is sent; any of them is understood.
"""

import struct
from typing import Generic, Protocol, TypeVar

from orderwire.kernel import (
    Destinations,
    ProcessId,
    RemoteProtocolError,
    members_of,
    read_varint,
    varint_bytes,
    write_varint,
)
from orderwire.ordering.settings import OrderingSettings

INTEGER_BYTES = 4
"""Every integer of the layout that the papers count with."""
STAMP_BYTES = 8
INLINE_MASK_BITS = 69
"""A varint carries 70 bits, one of which says that the rest is a mask."""
CACHED_SETS_MAX = 4_096
FRONT_BYTES = 4_096
"""How much of a large PDU is taken to hold all of its control information."""

_STAMP = struct.Struct("<Q")
_encoded: dict[int, bytes] = {0: b"\x00"}
"""Encoded destination sets: the same ones come again and again."""
_number_heads: list[bytes] = [bytes((n,)) for n in range(128)]


def encode_varint(value: int) -> bytes:
    """Return the varint of this value."""
    if value < 0x80:
        return _number_heads[value]
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if value < 0x200000:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    out = bytearray()
    write_varint(out, value)
    return bytes(out)


def encode_set(mask: Destinations | int) -> bytes:
    """Return the shortest form of a destination set."""
    encoded = _encoded.get(mask)
    if encoded is None:
        if len(_encoded) >= CACHED_SETS_MAX:
            _encoded.clear()
        encoded = _encoded[mask] = _encode_set(mask)
    return encoded


def _encode_set(mask: int) -> bytes:
    members = list(members_of(Destinations(mask)))
    list_bytes = varint_bytes(len(members) << 2) + sum(map(varint_bytes, members))
    width = (mask.bit_length() + 7) // 8
    long_bytes = varint_bytes(width << 2) + width
    out = bytearray()
    if mask < 1 << INLINE_MASK_BITS and varint_bytes(mask << 1) <= min(list_bytes, long_bytes):
        write_varint(out, mask << 1)
    elif list_bytes <= long_bytes:
        write_varint(out, len(members) << 2 | 1)
        for member in members:
            write_varint(out, member)
    else:
        write_varint(out, width << 2 | 3)
        out += mask.to_bytes(width, "little")
    return bytes(out)


def decode_set(data: bytes, at: int, members: int) -> tuple[Destinations, int]:
    """Return the destination set at this offset and the offset behind it.

    Raises RemoteProtocolError when it is malformed or names a process outside 0 … members-1.
    """
    head, at = read_varint(data, at)
    if not head & 1:
        mask = head >> 1
    elif head & 2:
        width = head >> 2
        if width > (members + 7) // 8 or at + width > len(data):
            raise RemoteProtocolError(f"bit mask of {width} bytes in a group of {members}")
        mask = int.from_bytes(data[at : at + width], "little")
        if width != (mask.bit_length() + 7) // 8:
            raise RemoteProtocolError(f"bit mask of {width} bytes ends with an empty one")
        at += width
    else:
        count = head >> 2
        if count > members:
            raise RemoteProtocolError(f"list of {count} processes in a group of {members}")
        mask = 0
        last = -1
        for _ in range(count):
            member, at = read_varint(data, at)
            if not last < member < members:
                raise RemoteProtocolError(
                    f"process {member} behind {last} in a list, group of {members}"
                )
            mask |= 1 << member
            last = member
    if mask >> members:
        raise RemoteProtocolError(f"set {mask:#x} names a process outside 0 … {members - 1}")
    return Destinations(mask), at


def encode_head(stamp: int, number: int, destinations: Destinations) -> bytes:
    """Return the head of a message: its stamp in ticks, its number and its destinations."""
    return _STAMP.pack(stamp) + encode_varint(number) + encode_set(destinations)


def decode_head(data: bytes, members: int) -> tuple[int, int, Destinations, int]:
    """Return stamp, number and destinations of a message, and the offset behind them.

    Raises RemoteProtocolError when they are malformed or the destination set is empty.
    """
    # Written out for speed: every datagram passes here.
    try:
        (stamp,) = _STAMP.unpack_from(data)
        number = data[8]
        at = 9
        if number > 0x7F:
            byte = data[9]
            at = 10
            if byte < 0x80:
                number = number & 0x7F | byte << 7
            else:
                number, at = read_varint(data, 8)
        begin = at
        mask = data[at]
        at += 1
        if mask > 0x7F:
            mask = mask & 0x7F | data[at] << 7
            at += 1
    except (IndexError, struct.error):
        raise RemoteProtocolError(
            f"a message of {len(data)} bytes has no room for its head"
        ) from None
    # Up to 13 members fit in two bytes.
    if mask & 1 or mask > 0x3FFF or mask >> 1 >> members:
        mask, at = decode_set(data, begin, members)
    else:
        mask >>= 1
    if not mask:
        raise RemoteProtocolError("a message without destinations")
    if stamp >> 63:
        raise RemoteProtocolError(f"stamp {stamp} is not below 2⁶³")
    return stamp, number, Destinations(mask), at


class HeadedPdu(Protocol):
    """A message between encoding and decoding."""

    @property
    def control(self) -> bytes:
        """Everything before the payload, as on the wire."""
        ...

    @property
    def payload(self) -> bytes:
        """What the application has written."""
        ...


PduT = TypeVar("PduT", bound=HeadedPdu)


class HeadedCodec(Generic[PduT]):
    """Head, control information, payload; an algorithm's codec adds `_parse`."""

    def __init__(self, me: ProcessId, settings: OrderingSettings) -> None:
        self._members = settings.members

    def encode(self, pdu: PduT) -> bytes:
        """Return the whole PDU."""
        return pdu.control + pdu.payload

    def decode(self, data: bytes | memoryview) -> PduT:
        """Parse what `encode` wrote.  Raises RemoteProtocolError on anything else.

        Of a large PDU in a receive buffer, only the front is copied at first, which holds all
        control information of most of them: so the payload is copied once.
        """
        if isinstance(data, bytes):
            return self._parse(data, data)
        if len(data) <= FRONT_BYTES:
            return self._parse(bytes(data), data)
        try:
            return self._parse(bytes(data[:FRONT_BYTES]), data)
        except RemoteProtocolError:
            return self._parse(bytes(data), data)

    def _parse(self, front: bytes, data: bytes | memoryview) -> PduT:
        """Parse the front of a PDU, or all of it.  Raises RemoteProtocolError."""
        raise NotImplementedError


def payload_of(front: bytes, data: bytes | memoryview, at: int) -> bytes:
    """Return what stands behind this offset of a PDU, of which `front` is the front."""
    return front[at:] if len(front) == len(data) else bytes(data[at:])
