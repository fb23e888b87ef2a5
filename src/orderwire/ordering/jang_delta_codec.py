"""The PDU of Jang's algorithm and how it looks on the wire.

Compact form, in this order: head (stamp, number, destinations); CI; DC; payload.

    CI      senders << 1, then per sender
              sender << 1 | several       varint
              count of entries            varint, only when `several`
              per entry, newest first:    age, destination set
    DC      dependencies << 1, then per dependency:   sender, age (varints)

Ages are exact, in ticks: of the first entry of a sender and of a dependency against the message's
own stamp, of the other entries against the entry before.  A rounded age would break the order,
because an entry's stamp is also the identity of its message.  [S000:dec.6]

Packed form, for groups of up to 16 whose ages mostly need three bytes anyway: the same size, and
parsed by one call of `struct` instead of byte by byte.  Ages are against the message's own stamp.

    CI      entries << 1 | 1, then per entry: sender (1 byte), age (3), bit mask (1 or 2)
    DC      dependencies << 1 | 1, then per dependency: sender (1 byte), age (3)

The CI is the same in all copies of a message and is encoded once.
"""

import struct
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

from orderwire.kernel import ProcessId, RemoteProtocolError, read_varint
from orderwire.ordering.causal_node import CausalPdu, Wait
from orderwire.ordering.settings import OrderingSettings
from orderwire.ordering.wire import (
    INTEGER_BYTES,
    HeadedCodec,
    decode_head,
    decode_set,
    encode_set,
    encode_varint,
    payload_of,
)

Entry: TypeAlias = tuple[int, int]
"""(stamp, destinations): this message may still be undelivered at these destinations."""
Entries: TypeAlias = tuple[Entry, ...]
"""Entries of one sender, newest first; no destination twice."""

PACKED_MEMBERS_MAX = 16
PACKED_FROM_TICKS = 1 << 14
"""Below this lifetime, an age takes two bytes as a varint and three when packed."""

_NO_ENTRIES: Mapping[int, Entries] = MappingProxyType({})


class JangDeltaPdu(CausalPdu, frozen=True, gc=False):
    """One copy of a message, its control information included.  [S000:sec.4.3]"""

    entries: Mapping[int, Entries]
    """CI_m: per sender its entries, without the destinations of this message."""
    waits: tuple[Wait, ...]
    """DC_m[j] of this copy's destination."""


class Layout:
    """How one group writes its control information."""

    def __init__(self, settings: OrderingSettings) -> None:
        members = settings.members
        lifetime = settings.lifetime_ns
        ticks = 0 if lifetime is None else (lifetime + settings.epsilon_ns) // settings.tick_ns
        self.is_packed = members <= PACKED_MEMBERS_MAX and PACKED_FROM_TICKS <= ticks < 1 << 23
        """Whether to send the packed form; both are understood."""
        self.entry = struct.Struct("<BHBB" if members <= 8 else "<BHBH")
        self.wait = struct.Struct("<BHB")

    def encode_entries(self, stamp: int, entries: Mapping[int, Entries]) -> bytes:
        """Return CI on the wire, for a message with this stamp."""
        if not entries:
            return b"\x00"
        if self.is_packed:
            pack = self.entry.pack
            try:
                parts = [
                    pack(sender, (age := stamp - entry_stamp) & 0xFFFF, age >> 16, mask)
                    for sender, group in entries.items()
                    for entry_stamp, mask in group
                ]
            except struct.error:
                pass  # An age of more than three bytes.
            else:
                return encode_varint(len(parts) << 1 | 1) + b"".join(parts)
        return _encode_entries(stamp, entries)

    def encode_waits(self, stamp: int, waits: Sequence[Wait]) -> tuple[list[bytes], int]:
        """Return each dependency on the wire, and 1 if they are packed, else 0."""
        if self.is_packed:
            pack = self.wait.pack
            try:
                return [
                    pack(sender, (age := stamp - wait) & 0xFFFF, age >> 16)
                    for sender, wait in waits
                ], 1
            except struct.error:
                pass  # An age of more than three bytes.
        return [encode_varint(sender) + encode_varint(stamp - wait) for sender, wait in waits], 0


def join_waits(parts: list[bytes], packed: int) -> bytes:
    """Return DC on the wire, from its encoded dependencies."""
    return encode_varint(len(parts) << 1 | packed) + b"".join(parts)


def _encode_entries(stamp: int, entries: Mapping[int, Entries]) -> bytes:
    """Return CI in the compact form."""
    out = bytearray(encode_varint(len(entries) << 1))
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


def printed_bytes(pdu: JangDeltaPdu, settings: OrderingSettings) -> int:
    """Size of CI and DC in the papers' layout of 4-byte integers, in bytes.

    8 + Σ (12 + 4·|S|) + 8·|DC|; the head, common to all algorithms, is not counted.
    """
    total = 2 * INTEGER_BYTES + 2 * INTEGER_BYTES * len(pdu.waits)
    for group in pdu.entries.values():
        for _, mask in group:
            total += 3 * INTEGER_BYTES + INTEGER_BYTES * mask.bit_count()
    return total


class JangDeltaCodec(HeadedCodec[JangDeltaPdu]):
    """The compact form."""

    def __init__(self, me: ProcessId, settings: OrderingSettings) -> None:
        super().__init__(me, settings)
        self._everyone = (1 << settings.members) - 1
        layout = Layout(settings)
        self._packed_entry = layout.entry
        self._packed_wait = layout.wait
        is_small = settings.members <= PACKED_MEMBERS_MAX
        self._packed_max = settings.members**2 if is_small else 0

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
        payload = payload_of(front, data, at)
        return JangDeltaPdu(number, stamp, destinations, front[:at], payload, entries, waits)

    def _parse_entries(self, data: bytes, at: int, stamp: int) -> tuple[dict[int, Entries], int]:
        # Varints of up to three bytes are written out for speed: every datagram passes here.
        members = self._members
        count = data[at]
        at += 1
        if count > 0x7F:
            count, at = read_varint(data, at - 1)
        if count & 1:
            return self._unpack_entries(data, at, stamp, count >> 1)
        count >>= 1
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

    def _unpack_entries(
        self, data: bytes, at: int, stamp: int, count: int
    ) -> tuple[dict[int, Entries], int]:
        end = at + count * self._packed_entry.size
        if count > self._packed_max or end > len(data):
            raise RemoteProtocolError(
                f"{count} packed entries in a group of {self._members}, {len(data) - at} bytes left"
            )
        everyone = self._everyone
        entries: dict[int, Entries] = {}
        last = -1
        last_age = 0
        masks = 0
        for sender, low, high, mask in self._packed_entry.iter_unpack(data[at:end]):
            age = low | high << 16
            if sender == last and last_age < age <= stamp:
                entries[sender] += ((stamp - age, mask),)
            elif sender not in entries and 0 < age <= stamp and everyone >> sender & 1:
                entries[sender] = ((stamp - age, mask),)
            else:
                raise RemoteProtocolError(
                    f"packed entry of sender {sender}, {age} ticks older than {stamp}, "
                    f"behind one of {last}, in a group of {self._members}"
                )
            last = sender
            last_age = age
            masks |= mask
        if masks & ~everyone:
            raise RemoteProtocolError(
                f"entries name {masks:#x}, outside a group of {self._members}"
            )
        return entries, end

    def _parse_waits(self, data: bytes, at: int, stamp: int) -> tuple[tuple[Wait, ...], int]:
        count = data[at]
        at += 1
        if count > 0x7F:
            count, at = read_varint(data, at - 1)
        if count & 1:
            return self._unpack_waits(data, at, stamp, count >> 1)
        count >>= 1
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

    def _unpack_waits(
        self, data: bytes, at: int, stamp: int, count: int
    ) -> tuple[tuple[Wait, ...], int]:
        end = at + count * self._packed_wait.size
        if count > self._members or end > len(data):
            raise RemoteProtocolError(
                f"{count} packed dependencies in a group of {self._members}, "
                f"{len(data) - at} bytes left"
            )
        waits: list[Wait] = []
        allowed = self._everyone
        for sender, low, high in self._packed_wait.iter_unpack(data[at:end]):
            age = low | high << 16
            if not allowed >> sender & 1 or not 0 < age <= stamp:
                raise RemoteProtocolError(
                    f"packed dependency on sender {sender}, {age} ticks older than {stamp}, "
                    f"in a group of {self._members}"
                )
            allowed ^= 1 << sender
            waits.append((sender, stamp - age))
        return tuple(waits), end
