"""What brokers of a cluster say to each other over one connection.

A frame is a length (u32), a kind (u8) and its content.  A replica's message has the topic's id and
the partition before it, and is MessagePack; its record bytes are written once, into the frame.
"""

from collections.abc import Mapping
from enum import IntEnum
from struct import Struct
from typing import Any

import msgspec

from orderwire.broker.cluster import Question
from orderwire.broker.replication.settings import Mode
from orderwire.kernel.errors import RemoteProtocolError
from orderwire.kernel.parsing import UNREADABLE

FRAME_BYTES_MAX = 128 << 20
"""Longest frame without its length; a batch may be as long as a request."""
HELLO_BYTES_MAX = 1 << 10
LENGTH_BYTES = 4
_HEAD = Struct("<IB")
_ADDRESS = Struct("<IB16sI")
_PLACE = Struct("<16sI")
VERSION = 1


class FrameKind(IntEnum):
    """What a frame carries."""

    HELLO = 0
    """The first frame of either side."""
    PING = 1
    """Nothing: that the sender lives."""
    STATUS = 2
    """Asks for, or tells, a broker's status; of an administrator only."""
    ASK = 3
    """Asks something of a partition."""
    TOLD = 4
    """Answers that."""
    ACTIVE_STANDBY = 16
    """A message between replicas, by the protocol that they keep."""
    ACTIVE_ACTIVE = 17
    LANES = 18


MESSAGE_KINDS = {
    Mode.ACTIVE_STANDBY: FrameKind.ACTIVE_STANDBY,
    Mode.ACTIVE_ACTIVE: FrameKind.ACTIVE_ACTIVE,
    Mode.ACTIVE_ACTIVE_LANES: FrameKind.LANES,
}
ADMINISTRATOR = -1
"""Who says hello without being a broker."""


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """Who speaks, and to whom."""

    version: int
    cluster_id: str
    source: int
    """The speaker's broker id, or ADMINISTRATOR."""
    incarnation: str
    """Of the speaker's process; new at every start."""
    connection: int
    """Counts the dialling broker's connections to this one: a later one takes an older's place."""
    target: int
    """Whom the speaker means to speak to; an administrator says ADMINISTRATOR: whoever it is."""


class Ask(msgspec.Struct, frozen=True, array_like=True):
    """What one broker asks another."""

    number: int
    """The answer repeats it."""
    question: Question
    topic_id: bytes
    index: int
    value: int


class Told(msgspec.Struct, frozen=True, array_like=True):
    """What is answered."""

    number: int
    result: int
    """When there is no error."""
    error: int
    message: str


_encoder = msgspec.msgpack.Encoder()
_hello_decoder = msgspec.msgpack.Decoder(Hello)


def plain_frame(kind: FrameKind, content: bytes = b"") -> bytes:
    """Return a frame that has no replica's message."""
    return _HEAD.pack(1 + len(content), kind) + content


def hello_frame(hello: Hello) -> bytes:
    """Return the first frame of a connection."""
    return plain_frame(FrameKind.HELLO, _encoder.encode(hello))


def content_of(message: msgspec.Struct) -> bytes:
    """Return the content of a frame that has no replica's message."""
    return _encoder.encode(message)


_ask_decoder = msgspec.msgpack.Decoder(Ask)
_told_decoder = msgspec.msgpack.Decoder(Told)


def read_request(kind: int, content: memoryview) -> Ask | Told:
    """Read what a broker asks or answers beside its replicas.  Raises RemoteProtocolError."""
    try:
        if kind == FrameKind.ASK:
            return _ask_decoder.decode(content)
        if kind == FrameKind.TOLD:
            return _told_decoder.decode(content)
    except UNREADABLE as error:
        raise RemoteProtocolError(f"a frame of kind {kind} that does not read: {error}") from None
    raise RemoteProtocolError(f"a frame of kind {kind}")


def read_hello(content: memoryview) -> Hello:
    """Raises RemoteProtocolError."""
    try:
        hello = _hello_decoder.decode(content)
    except UNREADABLE as error:
        raise RemoteProtocolError(f"a hello that does not read: {error}") from None
    if hello.version != VERSION:
        raise RemoteProtocolError(f"a hello of version {hello.version}; we speak {VERSION}")
    return hello


def message_frame(
    kind: FrameKind, topic_id: bytes, index: int, message: msgspec.Struct
) -> bytearray:
    """Return a frame with a replica's message."""
    frame = bytearray(_ADDRESS.size)
    _encoder.encode_into(message, frame, _ADDRESS.size)
    _ADDRESS.pack_into(frame, 0, len(frame) - LENGTH_BYTES, kind, topic_id, index)
    return frame


class Codec:
    """Reads replicas' messages; each protocol has its own."""

    def __init__(self, messages: Mapping[FrameKind, Any]) -> None:
        """`messages` has the union of message types of each kind."""
        self._decoders: dict[int, Any] = {
            kind: msgspec.msgpack.Decoder(union) for kind, union in messages.items()
        }

    def read(self, kind: int, content: memoryview) -> tuple[bytes, int, msgspec.Struct]:
        """Return topic id, partition and message.  Raises RemoteProtocolError."""
        decoder = self._decoders.get(kind)
        if decoder is None or len(content) < _PLACE.size:
            raise RemoteProtocolError(f"a frame of kind {kind} and {len(content)} bytes")
        topic_id, index = _PLACE.unpack_from(content)
        try:
            return topic_id, index, decoder.decode(content[_PLACE.size :])
        except UNREADABLE as error:
            raise RemoteProtocolError(f"a message that does not read: {error}") from None
