"""Frames of a discovery stream: a head of three bytes (little endian), then the content.

    length u16 · kind u8

    HELLO     who speaks: the first frame of either side, a MessagePack array behind a magic
    CHOSEN    this is the one connection of the two: messages may follow, both ways
    MESSAGE   one whole message
    FIRST     begins a message too long for a frame: its length (u32), then its first bytes
    NEXT      the bytes behind those; the message ends where FIRST said
    BYE       the speaker sends nothing more on this connection
    END       as BYE, and nobody will listen at its address: the process ends

Between the frames of a long message whole urgent ones may come, and no others: see `Outgoing`.
"""

import struct
from collections import deque
from collections.abc import Iterator
from enum import IntEnum
from typing import Annotated

import msgspec

from orderwire.aio.discovery_faults import Fault, PeerFault
from orderwire.kernel import RemoteProtocolError, parsed

CONTENT_BYTES_MAX = (1 << 16) - 1
"""Longest content of a frame."""
HELLO_BYTES_MAX = 1_024
"""Longest content of the first frame: nobody has said yet who it is."""
VERSION = 1

_HEAD = struct.Struct("<HB")
_TOTAL = struct.Struct("<I")
_MAGIC = b"OWD1"
_Text = Annotated[str, msgspec.Meta(max_length=255)]
_Number = Annotated[int, msgspec.Meta(ge=0)]
"""MessagePack has none of more than 64 bits."""


class FrameKind(IntEnum):
    """What a frame carries; the values are unlikely in text and in other protocols."""

    HELLO = 0xE1
    CHOSEN = 0xE2
    MESSAGE = 0xE3
    FIRST = 0xE4
    NEXT = 0xE5
    BYE = 0xE6
    END = 0xE7


class Hello(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Who speaks, and to whom."""

    version: _Number
    domain: _Text
    address: _Text
    """Where the speaker listens."""
    to: _Text
    """Where the speaker thinks that the other side listens."""
    nonce: _Number
    """Drawn at the speaker's start: another one is another process."""
    turn: _Number
    """Grows whenever the speaker has lost or given up its connection with the other side."""

    def encode(self) -> bytes:
        """Return the content of a HELLO frame."""
        return _MAGIC + _hello_encoder.encode(self)

    @classmethod
    def decode(cls, content: bytes | memoryview) -> "Hello":
        """Parse what `encode` wrote.  Raises RemoteProtocolError on anything else."""
        if bytes(content[: len(_MAGIC)]) != _MAGIC:
            raise RemoteProtocolError(
                f"hello begins with {bytes(content[: len(_MAGIC)])!r}, expected {_MAGIC!r}"
            )
        hello = parsed(_hello_decoder.decode, content[len(_MAGIC) :], "no hello")
        if hello.version != VERSION:
            raise RemoteProtocolError(f"hello of version {hello.version}, expected {VERSION}")
        return hello


_hello_encoder = msgspec.msgpack.Encoder()
_hello_decoder = msgspec.msgpack.Decoder(Hello)


def frame(kind: FrameKind, content: bytes | memoryview = b"") -> bytes:
    """Return one frame."""
    assert len(content) <= CONTENT_BYTES_MAX, f"{len(content)} bytes in a frame"
    return _HEAD.pack(len(content), kind) + content


class FrameReader:
    """Cuts a stream into frames and puts long messages together again.

    It holds a frame that is not whole yet, and what has come of a long message: never more than
    has come, whatever length was announced.
    """

    def __init__(self, message_bytes_max: int) -> None:
        self._message_bytes_max = message_bytes_max
        self._rest = bytearray()
        self._need = 0
        """Bytes of the frame that has begun, as far as known."""
        self._long = bytearray()
        self._long_bytes = 0
        """Length of the long message that has begun; 0: none."""
        self._first = True

    @property
    def held_bytes(self) -> int:
        """Bytes that wait for what belongs to them."""
        return len(self._rest) + len(self._long)

    def feed(self, data: bytes) -> Iterator[tuple[FrameKind, bytes | bytearray]]:
        """Yield what is complete with these bytes: long messages as one MESSAGE.

        Raises RemoteProtocolError on what a correct peer would not send.
        """
        if self._rest:
            self._rest += data
            if len(self._rest) < self._need:
                return
            data = bytes(self._rest)
            self._rest.clear()
        at, end = 0, len(data)
        while end - at >= _HEAD.size:
            length, kind = _HEAD.unpack_from(data, at)
            self._check_head(length, kind)
            after = at + _HEAD.size + length
            if after > end:
                self._need = after - at
                break
            content = data[at + _HEAD.size : after]
            at = after
            self._first = False
            if kind == FrameKind.FIRST:
                self._begin(content)
            elif kind == FrameKind.NEXT:
                self._go_on(content)
            else:
                yield FrameKind(kind), content
                continue
            if len(self._long) == self._long_bytes:
                whole, self._long, self._long_bytes = self._long, bytearray(), 0
                yield FrameKind.MESSAGE, whole
        else:
            self._need = _HEAD.size
        self._rest += data[at:]

    def _check_head(self, length: int, kind: int) -> None:
        if self._first and (kind != FrameKind.HELLO or length > HELLO_BYTES_MAX):
            raise RemoteProtocolError(
                f"a first frame of kind {kind:#x} and {length} bytes, expected HELLO of at most"
                f" {HELLO_BYTES_MAX}"
            )
        if kind not in _KINDS:
            raise RemoteProtocolError(f"a frame of kind {kind:#x}")
        if kind in _EMPTY and length:
            raise RemoteProtocolError(f"a frame of kind {kind:#x} and {length} bytes, expected 0")

    def _begin(self, content: bytes) -> None:
        if self._long_bytes:
            raise RemoteProtocolError("a long message begins inside another one")
        if len(content) <= _TOTAL.size:
            raise RemoteProtocolError(f"a long message begins with {len(content)} bytes")
        (total,) = _TOTAL.unpack_from(content)
        if not len(content) - _TOTAL.size < total <= self._message_bytes_max:
            raise PeerFault(
                Fault.OVERSIZED,
                f"a long message of {total} bytes begins with {len(content) - _TOTAL.size};"
                f" at most {self._message_bytes_max} are taken",
            )
        self._long_bytes = total
        self._long += content[_TOTAL.size :]

    def _go_on(self, content: bytes) -> None:
        if not self._long_bytes:
            raise RemoteProtocolError("a long message goes on that never began")
        have = len(self._long) + len(content)
        if not content or have > self._long_bytes:
            raise RemoteProtocolError(
                f"{len(content)} bytes make {have} of a message of {self._long_bytes}"
            )
        self._long += content


_KINDS = frozenset(FrameKind)
_EMPTY = frozenset({FrameKind.CHOSEN, FrameKind.BYE, FrameKind.END})


class Outgoing:
    """Messages that wait for a connection, in order, and urgent ones that may overtake them.

    Urgent ones go out between two frames of a long message, so that a heartbeat is not stuck
    behind a JOIN_ACK. [FDP/1 R18]  All others keep their order: a change must not overtake the MAP
    that it changes.
    """

    def __init__(self) -> None:
        self._urgent: deque[bytes] = deque()
        self._usual: deque[bytes] = deque()
        self._long: bytes | None = None
        self._at = 0
        """Bytes of the long message that are on their way."""
        self.waiting_bytes = 0

    def __len__(self) -> int:
        return len(self._urgent) + len(self._usual) + (self._long is not None)

    def add(self, message: bytes, *, urgent: bool = False) -> None:
        """Let a message wait.  A long one is never urgent."""
        assert message, "an empty message"
        urgent = urgent and len(message) <= CONTENT_BYTES_MAX
        (self._urgent if urgent else self._usual).append(message)
        self.waiting_bytes += len(message)

    def take(self, bytes_max: int) -> list[bytes]:
        """Return the next frames, about so many bytes of them."""
        frames: list[bytes] = []
        size = 0
        while size < bytes_max:
            if self._urgent:
                piece = self._urgent.popleft()
                self.waiting_bytes -= len(piece)
                frames.append(frame(FrameKind.MESSAGE, piece))
            elif self._long is not None:
                frames.append(self._next_of(self._long))
            elif self._usual:
                piece = self._usual.popleft()
                if len(piece) <= CONTENT_BYTES_MAX:
                    self.waiting_bytes -= len(piece)
                    frames.append(frame(FrameKind.MESSAGE, piece))
                else:
                    frames.append(self._first_of(piece))
            else:
                break
            size += len(frames[-1])
        return frames

    def _first_of(self, message: bytes) -> bytes:
        self._long = message
        self._at = CONTENT_BYTES_MAX - _TOTAL.size
        self.waiting_bytes -= self._at
        return frame(FrameKind.FIRST, _TOTAL.pack(len(message)) + message[: self._at])

    def _next_of(self, message: bytes) -> bytes:
        piece = message[self._at : self._at + CONTENT_BYTES_MAX]
        self._at += len(piece)
        self.waiting_bytes -= len(piece)
        if self._at == len(message):
            self._long = None
        return frame(FrameKind.NEXT, piece)

    def begin_again(self) -> None:
        """Send a long message that was under way from its beginning: over a new connection."""
        if self._long is not None:
            self._usual.appendleft(self._long)
            self.waiting_bytes += self._at
            self._long = None

    def drop_oldest(self) -> bool:
        """Drop the message that waits longest and is not under way; False when there is none."""
        queue = self._usual or self._urgent
        if not queue:
            return False
        self.waiting_bytes -= len(queue.popleft())
        return True

    def clear(self) -> int:
        """Drop all; return how many."""
        count = len(self)
        self._urgent.clear()
        self._usual.clear()
        self._long = None
        self.waiting_bytes = 0
        return count
