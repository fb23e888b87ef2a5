"""Datagrams between a 1C channel's relay and its members.  [S003:sec.2]

All begin with the magic and the kind, one byte.  Then:

    HELLO    relay (8) · member (2) · incarnation (8)           member → relay: I am here
    BYE      the same                                           member → relay: no longer
    WELCOME  relay (8) · group (4) · port (2) · loss (8) · seed (8) · bit mask of who is here
    REFUSED  relay (8) · why, in UTF-8
    UP       relay (8) · member (2) · incarnation (8) · number of the first PDU (8) · PDUs
    DOWN     relay (8) · CSN of the first PDU (8) · PDUs

All integers are little endian; a PDU is its source (2), its length (2) and its bytes.  `relay` is
the relay's incarnation, 0 from who does not know it yet.  The PDUs of a datagram are numbered one
after the other: by their sender in UP, by the channel (CSN) in DOWN.
"""

import socket
import struct
from typing import Any

import msgspec

from orderwire.aio.datagram import Address
from orderwire.kernel import GROUP_SIZE_MAX, RemoteProtocolError

MAGIC = b"O1"
HELLO, BYE, WELCOME, REFUSED, UP, DOWN = range(6)

_HEAD_BYTES = 3
_CALL = struct.Struct("<QHQ")
_WELCOME = struct.Struct("<Q4sHdQ")
_RELAY = struct.Struct("<Q")
_UP = struct.Struct("<QHQQ")
_DOWN = struct.Struct("<QQ")
_PDU = struct.Struct("<HH")

PDU_HEAD_BYTES = _PDU.size
PDU_BYTES_MAX = 56_000
"""Largest PDU: one datagram takes it, with all heads."""
UP_HEAD_BYTES = _HEAD_BYTES + _UP.size
DOWN_HEAD_BYTES = _HEAD_BYTES + _DOWN.size
NUMBER_MAX = (1 << 64) - 1
WHY_BYTES_MAX = 500
_KINDS = [MAGIC + bytes((kind,)) for kind in range(6)]


class Call(msgspec.Struct, frozen=True):
    """HELLO, or BYE."""

    relay: int
    member: int
    incarnation: int


class Welcome(msgspec.Struct, frozen=True):
    """What a relay answers."""

    relay: int
    multicast: Address | None
    """The group in which it sends; None: to each member by itself."""
    loss: float
    """Share of its datagrams that each receiver is to lose."""
    seed: int
    present: int
    """Bit mask of the members that are here."""


class Refused(msgspec.Struct, frozen=True):
    """Why a relay does not take a member."""

    relay: int
    why: str


class Up(msgspec.Struct, frozen=True, gc=False):
    """A member's PDUs: `body` from `PDUs` on."""

    relay: int
    member: int
    incarnation: int
    first: int


def kind_of(data: bytes | memoryview) -> int:
    """Return the kind of a datagram.  Raises RemoteProtocolError."""
    if len(data) < _HEAD_BYTES or data[0] != MAGIC[0] or data[1] != MAGIC[1]:
        raise RemoteProtocolError(f"a datagram of {len(data)} bytes that is no channel's")
    return data[2]


def encode_call(kind: int, call: Call) -> bytes:
    """Return a HELLO or a BYE."""
    return _KINDS[kind] + _CALL.pack(call.relay, call.member, call.incarnation)


def decode_call(data: bytes | memoryview) -> Call:
    """Parse a HELLO or a BYE.  Raises RemoteProtocolError."""
    call = Call(*_unpack(_CALL, data))
    _check_member(call.member)
    return call


def encode_welcome(welcome: Welcome) -> bytes:
    """Return a WELCOME."""
    group, port = welcome.multicast or ("0.0.0.0", 0)
    mask = welcome.present.to_bytes((welcome.present.bit_length() + 7) // 8, "little")
    head = _WELCOME.pack(welcome.relay, socket.inet_aton(group), port, welcome.loss, welcome.seed)
    return _KINDS[WELCOME] + head + mask


def decode_welcome(data: bytes | memoryview) -> Welcome:
    """Parse a WELCOME.  Raises RemoteProtocolError."""
    relay, group, port, loss, seed = _unpack(_WELCOME, data)
    mask = data[_HEAD_BYTES + _WELCOME.size :]
    if len(mask) > GROUP_SIZE_MAX // 8 or not 0.0 <= loss < 1.0:
        raise RemoteProtocolError(f"a welcome with loss {loss} and {len(mask)} bytes of members")
    multicast = (socket.inet_ntoa(group), port) if port else None
    return Welcome(relay, multicast, loss, seed, int.from_bytes(mask, "little"))


def encode_refused(refused: Refused) -> bytes:
    """Return a REFUSED."""
    why = refused.why.encode()[:WHY_BYTES_MAX]
    return _KINDS[REFUSED] + _RELAY.pack(refused.relay) + why


def decode_refused(data: bytes | memoryview) -> Refused:
    """Parse a REFUSED.  Raises RemoteProtocolError."""
    (relay,) = _unpack(_RELAY, data)
    why = bytes(data[_HEAD_BYTES + _RELAY.size :][:WHY_BYTES_MAX])
    return Refused(relay, why.decode("utf-8", "replace"))


def encode_up(up: Up) -> bytes:
    """Return the head of an UP; its PDUs follow."""
    return _KINDS[UP] + _UP.pack(up.relay, up.member, up.incarnation, up.first)


def decode_up(data: bytes | memoryview) -> Up:
    """Parse the head of an UP.  Raises RemoteProtocolError."""
    up = Up(*_unpack(_UP, data))
    _check_member(up.member)
    return up


def encode_down(relay: int, first: int) -> bytes:
    """Return the head of a DOWN; its PDUs follow."""
    return _KINDS[DOWN] + _DOWN.pack(relay, first)


def decode_down(data: bytes | memoryview) -> tuple[int, int]:
    """Return the relay of a DOWN and the CSN of its first PDU.  Raises RemoteProtocolError."""
    relay, first = _unpack(_DOWN, data)
    return int(relay), int(first)


def encode_pdu(source: int, pdu: bytes) -> bytes:
    """Return a PDU as it stands in UP and DOWN."""
    return _PDU.pack(source, len(pdu)) + pdu


def decode_pdus(data: bytes, at: int) -> list[tuple[int, int, int]]:
    """Return source, offset and end of every PDU of a datagram.  Raises RemoteProtocolError."""
    end = len(data)
    found = []
    unpack = _PDU.unpack_from
    while at < end:
        if at + PDU_HEAD_BYTES > end:
            raise RemoteProtocolError(f"{end - at} bytes behind the last PDU of a datagram")
        source, length = unpack(data, at)
        at += PDU_HEAD_BYTES
        if at + length > end or source >= GROUP_SIZE_MAX or not length:
            raise RemoteProtocolError(
                f"a PDU of {length} bytes of process {source} with {end - at} bytes left"
            )
        found.append((source, at, at + length))
        at += length
    return found


def _unpack(form: struct.Struct, data: bytes | memoryview) -> tuple[Any, ...]:
    try:
        return form.unpack_from(data, _HEAD_BYTES)
    except struct.error:
        raise RemoteProtocolError(
            f"a datagram of {len(data)} bytes, expected {_HEAD_BYTES + form.size} at least"
        ) from None


def _check_member(member: int) -> None:
    if member >= GROUP_SIZE_MAX:
        raise RemoteProtocolError(f"process {member}, expected less than {GROUP_SIZE_MAX}")
