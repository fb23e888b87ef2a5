"""What participants tell each other about topics and readers, over the streams.

On each connection both sides send their whole `State`; later changes follow one by one.  A writer's
participant declares its topics under small numbers; a reader's participant, which alone knows its
patterns, answers how many of its readers want one.
"""

from typing import TypeAlias

import msgspec

from orderwire.kernel import RemoteProtocolError, parsed
from orderwire.participant.topics import NAME_BYTES_MAX

PROTOCOL_VERSION = 2
TOPICS_MAX = 1_024
"""Topics that one participant may write to at a time."""

NUMBER_MAX = 1 << 31
"""Topics that one participant may write to in its life."""

DOMAIN_KEY_BYTES_MAX = 512


class Declare(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """I write to this topic under this number, in this ordering domain."""

    number: int
    name: str
    domain: str


class Withdraw(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """I write to the topic of this number no more."""

    number: int


class Want(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """So many readers here want your topic of this number; none is 0."""

    number: int
    readers: int


class State(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """All that holds now; what was said before is void."""

    version: int
    members: str
    """The names of all members in the order of their ids, or the domain that they found each other
    in: it must be the same everywhere."""
    topics: tuple[Declare, ...]


Message: TypeAlias = Declare | Withdraw | Want | State

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """Return the message's bytes."""
    return _encoder.encode(message)


def decode(data: bytes | memoryview) -> Message:
    """Parse what `encode` wrote.  Raises RemoteProtocolError on anything else."""
    message: Message = parsed(_decoder.decode, data, f"control message of {len(data)} bytes")
    if isinstance(message, State):
        if message.version != PROTOCOL_VERSION:
            raise RemoteProtocolError(
                f"control protocol version {message.version}, this is {PROTOCOL_VERSION}"
            )
        if len(message.topics) > TOPICS_MAX:
            raise RemoteProtocolError(f"{len(message.topics)} topics, at most {TOPICS_MAX}")
        for topic in message.topics:
            _check(topic)
    elif isinstance(message, Declare):
        _check(message)
    elif isinstance(message, Want) and message.readers < 0:
        raise RemoteProtocolError(f"{message.readers} readers want topic {message.number}")
    return message


def _check(topic: Declare) -> None:
    if not 0 <= topic.number <= NUMBER_MAX:
        raise RemoteProtocolError(f"topic number {topic.number}, expected 0 … {NUMBER_MAX}")
    if len(topic.name.encode()) > NAME_BYTES_MAX:
        raise RemoteProtocolError(f"topic name of {len(topic.name)} characters")
    if len(topic.domain.encode()) > DOMAIN_KEY_BYTES_MAX:
        raise RemoteProtocolError(f"domain of {len(topic.domain)} characters")
