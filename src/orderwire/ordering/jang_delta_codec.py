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

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import msgspec

from orderwire.kernel import Destinations, ProcessId, RemoteProtocolError, read_varint
from orderwire.ordering.settings import OrderingSettings
from orderwire.ordering.wire import (
    decode_head,
    decode_set,
    encode_set,
    encode_varint,
    parse_control,
)

Entry: TypeAlias = tuple[int, int]
"""(stamp, destinations): this message may still be undelivered at these destinations."""
Entries: TypeAlias = tuple[Entry, ...]
"""Entries of one sender, newest first; no destination twice."""
Wait: TypeAlias = tuple[int, int]
"""(sender, stamp) of a message that must be delivered first, or be past its deadline."""

INTEGER_BYTES = 4
"""Every integer of the layout that the papers count with."""

_Control: TypeAlias = tuple[int, int, Destinations, dict[int, Entries], tuple[Wait, ...]]


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
    parts = [encode_varint(len(entries))]
    for sender, group in entries.items():
        if len(group) == 1:
            parts.append(encode_varint(sender << 1))
        else:
            parts.append(encode_varint(sender << 1 | 1))
            parts.append(encode_varint(len(group)))
        newer = stamp
        for entry_stamp, mask in group:
            parts.append(encode_varint(newer - entry_stamp))
            parts.append(encode_set(mask))
            newer = entry_stamp
    return b"".join(parts)


def encode_waits(stamp: int, waits: Iterable[Wait]) -> bytes:
    """Return DC on the wire, for a message with this stamp."""
    parts = [encode_varint(sender) + encode_varint(stamp - wait) for sender, wait in waits]
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

    def encode(self, pdu: JangDeltaPdu) -> bytes:
        """Return the whole PDU."""
        return pdu.control + pdu.payload

    def decode(self, data: bytes | memoryview) -> JangDeltaPdu:
        """Parse what `encode` wrote.  Raises RemoteProtocolError on anything else."""
        parsed, control, payload = parse_control(data, self._parse)
        stamp, number, destinations, entries, waits = parsed
        return JangDeltaPdu(number, stamp, destinations, entries, waits, control, payload)

    def _parse(self, data: bytes) -> tuple[_Control, int]:
        members = self._members
        stamp, number, destinations, at = decode_head(data, members)
        entries: dict[int, Entries] = {}
        waits: tuple[Wait, ...] = ()
        try:
            if data[at]:
                entries, at = self._parse_entries(data, at, stamp)
            else:
                at += 1
            if data[at]:
                waits, at = self._parse_waits(data, at, stamp)
            else:
                at += 1
        except IndexError:
            raise RemoteProtocolError(
                f"control information runs past the end ({len(data)} bytes)"
            ) from None
        return (stamp, number, destinations, entries, waits), at

    def _parse_entries(self, data: bytes, at: int, stamp: int) -> tuple[dict[int, Entries], int]:
        members = self._members
        count, at = read_varint(data, at)
        if count > members:
            raise RemoteProtocolError(f"entries of {count} senders in a group of {members}")
        entries: dict[int, Entries] = {}
        for _ in range(count):
            head = data[at]
            at += 1
            if head >= 0x80:
                head, at = read_varint(data, at - 1)
            sender = head >> 1
            if sender >= members or sender in entries:
                raise RemoteProtocolError(
                    f"entries of sender {sender}, repeated or outside 0 … {members - 1}"
                )
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
                if age >= 0x80:
                    age, at = read_varint(data, at - 1)
                newer -= age
                if age == 0 or newer < 0:
                    raise RemoteProtocolError(
                        f"entry of sender {sender} is {age} ticks older, leaving stamp {newer}"
                    )
                mask = data[at]
                if mask & 1 or mask >= 0x80 or mask >> 1 >> members:
                    mask, at = decode_set(data, at, members)
                else:
                    mask >>= 1
                    at += 1
                group.append((newer, mask))
            entries[sender] = tuple(group)
        return entries, at

    def _parse_waits(self, data: bytes, at: int, stamp: int) -> tuple[tuple[Wait, ...], int]:
        members = self._members
        count, at = read_varint(data, at)
        if count > members:
            raise RemoteProtocolError(f"{count} dependencies in a group of {members}")
        waits: list[Wait] = []
        named = 0
        for _ in range(count):
            sender = data[at]
            at += 1
            if sender >= 0x80:
                sender, at = read_varint(data, at - 1)
            age = data[at]
            at += 1
            if age >= 0x80:
                age, at = read_varint(data, at - 1)
            if sender >= members or named >> sender & 1:
                raise RemoteProtocolError(
                    f"dependency on sender {sender}, repeated or outside 0 … {members - 1}"
                )
            if not 0 < age <= stamp:
                raise RemoteProtocolError(
                    f"dependency {age} ticks older than a message with stamp {stamp}"
                )
            named |= 1 << sender
            waits.append((sender, stamp - age))
        return tuple(waits), at
