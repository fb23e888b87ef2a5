"""What participants say in a group with one order: who they are, and what they write.  [S003]

    length of the topic's name << 1 | several     varint; 0: a greeting follows
    topic's name
    instant of writing, nanoseconds               8 bytes, little endian
    data, or several data as `batches` packs them

The name and not a number, since numbers are agreed on the data streams: those break, and come back,
at other moments than views do.  What has its place in the order is understood by itself.
"""

import struct
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from orderwire.kernel import (
    Instant,
    LocalProtocolError,
    ProcessId,
    RemoteProtocolError,
    parsed,
    read_varint,
)
from orderwire.ordering.wire import encode_varint
from orderwire.participant.batches import unpack
from orderwire.participant.topics import NAME_BYTES_MAX

MESSAGE_BYTES_MAX = 47_000
"""Largest data of one message: its datagram is not larger than UDP allows."""

_STAMP = struct.Struct("<q")


class Greeting(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The first message of a member to each other: which participant it is."""

    participant: ProcessId
    """Its number among the participants."""
    name: str
    group: bytes
    """Digest of what must be the same at all: the order, and whom the participants know."""


class Entry(NamedTuple):
    """What was written to a topic at once."""

    topic: str
    stamp: Instant
    data: Sequence[bytes]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Greeting)


def digest(order: str, participants: str) -> bytes:
    """Return what greets with the same are told apart from others by."""
    return blake2b(f"{order}\n{participants}".encode(), digest_size=8).digest()


def encode_greeting(greeting: Greeting) -> bytes:
    """Return its bytes."""
    return b"\x00" + _encoder.encode(greeting)


@lru_cache(4_096)
def head(topic: str, *, several: bool) -> bytes:
    """Return what stands before the instant."""
    name = topic.encode()
    return encode_varint(len(name) << 1 | several) + name


def encode_stamp(stamp: Instant) -> bytes:
    """Return the instant's bytes, which stand behind the head."""
    return _STAMP.pack(stamp)


def require_size(data_bytes: int) -> None:
    """Refuse data that are too large for a message.  Raises LocalProtocolError."""
    if data_bytes > MESSAGE_BYTES_MAX:
        raise LocalProtocolError(
            f"data of {data_bytes} bytes are too large for one message of a group with one order,"
            f" at most {MESSAGE_BYTES_MAX}: cut them up"
        )


def decode(payload: bytes) -> Greeting | Entry:
    """Read what a member said.  Raises RemoteProtocolError."""
    first, at = read_varint(payload, 0)
    if not first:
        greeting: Greeting = parsed(_decoder.decode, payload[at:], "greeting")
        return greeting
    length = first >> 1
    begin = at + length + _STAMP.size
    if not 0 < length <= NAME_BYTES_MAX or begin > len(payload):
        raise RemoteProtocolError(
            f"a topic's name of {length} bytes in a message of {len(payload)}, expected 1 to"
            f" {NAME_BYTES_MAX} bytes and an instant behind it"
        )
    try:
        topic = payload[at : at + length].decode()
    except UnicodeDecodeError as error:
        raise RemoteProtocolError(f"a topic's name is no text: {error}") from None
    (stamp,) = _STAMP.unpack_from(payload, at + length)
    data = unpack(payload, begin) if first & 1 else (payload[begin:],)
    return Entry(topic, Instant(stamp), data)
