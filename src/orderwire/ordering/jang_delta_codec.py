"""The PDU of Jang's algorithm and how it looks on the wire.

Compact form, in this order: head (stamp, number, destinations); CI; DC; payload.

    CI      count of senders, then per sender
              sender << 1 | several       varint
              count of entries            varint, only when `several`
              per entry, newest first:    age, destination set
    DC      count, then per dependency:   sender, age

Ages are exact, in ticks, as varints: of the first entry of a sender and of a dependency against
the message's own stamp, of the other entries against the entry before.  A rounded age would break
the order, because an entry's stamp is also the identity of its message.  [S000:dec.3]
The CI is the same in all copies of a message and is encoded once.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeAlias

import msgspec

from orderwire.kernel import Destinations, ProcessId, RemoteProtocolError, read_varint
from orderwire.ordering.settings import OrderingSettings
from orderwire.ordering.wire import (
    decode_head,
    decode_set,
    encode_set,
    encode_varint,
    front_of,
)

Entry: TypeAlias = tuple[int, int]
"""(stamp, destinations): this message may still be undelivered at these destinations."""
Entries: TypeAlias = tuple[Entry, ...]
"""Entries of one sender, newest first; no destination twice."""
Wait: TypeAlias = tuple[int, int]
"""(sender, stamp) of a message that must be delivered first, or be past its deadline."""

INTEGER_BYTES = 4
"""Every integer of the layout that the papers count with."""

_NO_ENTRIES: Mapping[int, Entries] = MappingProxyType({})


class JangDeltaPdu(msgspec.Struct, frozen=True, gc=False):
    """One copy of a message.  [S000:sec.4.2]"""

    number: int
    stamp: int
    """τ_m, in ticks."""
    destinations: Destinations
    """m.D, the sender itself included when it is one."""
    entries: Mapping[int, Entries]
    """CI_m: per sender its entries, without the destinations of this message."""
    waits: tuple[Wait, ...]
    """DC_m[j] of this copy's destination."""
    control: bytes
    """Everything before the payload, as on the wire."""
    payload: bytes


def encode_entries(stamp: int, entries: Mapping[int, Entries]) -> bytes:
    """Return CI on the wire, for a message with this stamp."""
    if not entries:
        return b"\x00"
    out = bytearray(encode_varint(len(entries)))
    append = out.append
    for sender, group in entries.items():
        several = len(group) > 1
        if sender < 64:
            append(sender << 1 | several)
        else:
            out += encode_varint(sender << 1 | several)
        if several:
            out += encode_varint(len(group))
        newer = stamp
        for entry_stamp, mask in group:
            age = newer - entry_stamp
            while age > 0x7F:
                append(age & 0x7F | 0x80)
                age >>= 7
            append(age)
            newer = entry_stamp
            if mask < 64:
                append(mask << 1)
            else:
                out += encode_set(mask)
    return bytes(out)


def encode_wait(stamp: int, sender: int, wait: int) -> bytes:
    """Return one dependency on the wire, for a message with this stamp."""
    return encode_varint(sender) + encode_varint(stamp - wait)


def encode_waits(parts: list[bytes]) -> bytes:
    """Return DC on the wire, from its encoded dependencies."""
    return encode_varint(len(parts)) + b"".join(parts)


def printed_layout_bytes(entries: Mapping[int, Entries], waits: tuple[Wait, ...]) -> int:
    """Size of CI and DC in the papers' layout of 4-byte integers, in bytes.

    8 + Σ (12 + 4·|S|) + 8·|DC|; the head, common to all algorithms, is not counted.
    """
    total = 2 * INTEGER_BYTES + 2 * INTEGER_BYTES * len(waits)
    for group in entries.values():
        for _, mask in group:
            total += 3 * INTEGER_BYTES + INTEGER_BYTES * mask.bit_count()
    return total


class JangDeltaCodec:
    """The compact form."""

    def __init__(self, me: ProcessId, settings: OrderingSettings) -> None:
        self._members = settings.members
        self._everyone = (1 << settings.members) - 1

    def encode(self, pdu: JangDeltaPdu) -> bytes:
        """Return the whole PDU."""
        return pdu.control + pdu.payload

    def decode(self, data: bytes | memoryview) -> JangDeltaPdu:
        """Parse what `encode` wrote.  Raises RemoteProtocolError on anything else."""
        front = front_of(data)
        try:
            return self._parse(front, data)
        except RemoteProtocolError:
            if len(front) == len(data):
                raise
        return self._parse(bytes(data), data)

    def _parse(self, front: bytes, data: bytes | memoryview) -> JangDeltaPdu:
        stamp, number, destinations, at = decode_head(front, self._members)
        entries: Mapping[int, Entries] = _NO_ENTRIES
        waits: tuple[Wait, ...] = ()
        try:
            if front[at]:
                entries, at = self._parse_entries(front, at, stamp)
            else:
                at += 1
            if front[at]:
                waits, at = self._parse_waits(front, at, stamp)
            else:
                at += 1
        except IndexError:
            raise RemoteProtocolError(
                f"control information runs past the end ({len(front)} bytes)"
            ) from None
        payload = front[at:] if len(front) == len(data) else bytes(data[at:])
        return JangDeltaPdu(number, stamp, destinations, entries, waits, front[:at], payload)

    def _parse_entries(self, data: bytes, at: int, stamp: int) -> tuple[dict[int, Entries], int]:
        # Varints of up to three bytes are written out for speed: every datagram passes here.
        members = self._members
        count, at = read_varint(data, at)
        entries: dict[int, Entries] = {}
        allowed = self._everyone
        for _ in range(count):
            head = data[at]
            at += 1
            if head > 0x7F:
                head, at = read_varint(data, at - 1)
            sender = head >> 1
            if sender >= members or not allowed & 1 << sender:
                raise RemoteProtocolError(
                    f"entries of sender {sender}, repeated or outside 0 … {members - 1}"
                )
            allowed ^= 1 << sender
            size = 1
            if head & 1:
                size, at = read_varint(data, at)
                if not 1 < size <= members:
                    raise RemoteProtocolError(
                        f"{size} entries of sender {sender} in a group of {members}"
                    )
            group: list[Entry] = []
            newer = stamp
            for _ in range(size):
                age = data[at]
                at += 1
                if age > 0x7F:
                    byte = data[at]
                    if byte < 0x80:
                        age = age & 0x7F | byte << 7
                        at += 1
                    elif data[at + 1] < 0x80:
                        age = age & 0x7F | (byte & 0x7F) << 7 | data[at + 1] << 14
                        at += 2
                    else:
                        age, at = read_varint(data, at - 1)
                if not 0 < age <= newer:
                    raise RemoteProtocolError(
                        f"entry of sender {sender} is {age} ticks older than {newer}"
                    )
                newer -= age
                begin = at
                mask = data[at]
                at += 1
                if mask > 0x7F:
                    mask = mask & 0x7F | data[at] << 7
                    at += 1
                if mask & 1 or mask > 0x3FFF or mask >> 1 >> members:
                    mask, at = decode_set(data, begin, members)
                else:
                    mask >>= 1
                group.append((newer, mask))
            entries[sender] = tuple(group)
        return entries, at

    def _parse_waits(self, data: bytes, at: int, stamp: int) -> tuple[tuple[Wait, ...], int]:
        count, at = read_varint(data, at)
        waits: list[Wait] = []
        allowed = self._everyone
        for _ in range(count):
            sender = data[at]
            at += 1
            if sender > 0x7F:
                sender, at = read_varint(data, at - 1)
            age = data[at]
            at += 1
            if age > 0x7F:
                byte = data[at]
                if byte < 0x80:
                    age = age & 0x7F | byte << 7
                    at += 1
                elif data[at + 1] < 0x80:
                    age = age & 0x7F | (byte & 0x7F) << 7 | data[at + 1] << 14
                    at += 2
                else:
                    age, at = read_varint(data, at - 1)
            if sender >= self._members or not allowed & 1 << sender:
                raise RemoteProtocolError(
                    f"dependency on sender {sender}, repeated or outside 0 … {self._members - 1}"
                )
            allowed ^= 1 << sender
            if not 0 < age <= stamp:
                raise RemoteProtocolError(
                    f"dependency {age} ticks older than a message with stamp {stamp}"
                )
            waits.append((sender, stamp - age))
        return tuple(waits), at
