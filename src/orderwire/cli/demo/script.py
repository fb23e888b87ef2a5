"""Who says what in the demo's conference: a text dealt out to rooms, told in turns.

Each room is a subset of the members and gets its share of the text.  Its lines are told in turns:
line k is written by the next member of the room once it has read line k-1.  So every line but the
first depends on the one before it, and a room's readers notice at once when order breaks.
"""

import pydoc_data.topics
from collections.abc import Sequence
from pathlib import Path

import msgspec

TEXT_BYTES_MAX = 32 * 1024 * 1024
UTTERANCE_BYTES_MAX = 16 * 1024
UTTERANCES_MAX = 2_400
"""In all rooms together: more lines than this are told several at a time."""
ROOM_MEMBERS = 3
MEMBER_NAMES = ("anna", "ben", "carl", "dora", "emil", "fay", "gus", "hana")


class ScriptError(Exception):
    """The text cannot be told: empty, unreadable or too large."""


class Room(msgspec.Struct, frozen=True):
    """A chat room: who is in it, and what is told there, in order."""

    name: str
    members: tuple[int, ...]
    utterances: tuple[bytes, ...]

    def speaker(self, index: int) -> int:
        """Return the member whose turn this utterance is."""
        return self.members[index % len(self.members)]


def default_text() -> bytes:
    """Return prose that every Python installation carries: the language reference's topics."""
    return "\n".join(text for _, text in sorted(pydoc_data.topics.topics.items())).encode()


def read_text(path: Path | None) -> bytes:
    """Return the text to tell.  Raises ScriptError."""
    if path is None:
        return default_text()
    try:
        size = path.stat().st_size
        if size > TEXT_BYTES_MAX:
            raise ScriptError(f"{path} has {size:,} bytes; at most {TEXT_BYTES_MAX:,} can be told")
        text = path.read_bytes()
    except OSError as error:
        raise ScriptError(f"cannot read {path}: {error.strerror}") from error
    if not text.strip():
        raise ScriptError(f"{path} holds no text")
    return text


def utterances_of(text: bytes) -> list[bytes]:
    """Cut a text into what is said at once: whole lines where they fit, in order, none lost."""
    share = -(-len(text) // UTTERANCES_MAX)
    parts: list[bytes] = []
    said = bytearray()
    for line in text.splitlines(keepends=True):
        for at in range(0, len(line), UTTERANCE_BYTES_MAX):
            piece = line[at : at + UTTERANCE_BYTES_MAX]
            if said and len(said) + len(piece) > UTTERANCE_BYTES_MAX:
                parts.append(bytes(said))
                said.clear()
            said += piece
            if len(said) >= share and said.strip():
                parts.append(bytes(said))
                said.clear()
    if said:
        parts.append(bytes(said))
    return parts


def write_script(text: bytes, members: int) -> list[Room]:
    """Deal the text out to one room a member: the member and the two after it.

    The rooms overlap, so that causality crosses them.  Their utterances joined are the text.
    """
    parts = utterances_of(text)
    size = min(ROOM_MEMBERS, members)
    rooms = []
    for at in range(members):
        first, end = len(parts) * at // members, len(parts) * (at + 1) // members
        inside = tuple((at + step) % members for step in range(size))
        rooms.append(Room(f"chat/room-{at}", inside, tuple(parts[first:end])))
    return rooms


def listeners(rooms: Sequence[Room], member: int) -> tuple[int, ...]:
    """Return who hears a member's voice: everyone it shares a room with, ascending."""
    heard = {other for room in rooms if member in room.members for other in room.members}
    return tuple(sorted(heard - {member}))
