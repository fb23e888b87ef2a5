"""Whose turn it is: one member's part in the rooms it is in, without sockets or clocks."""

from collections.abc import Sequence

from orderwire.cli.demo.script import Room
from orderwire.kernel import Instant

Turn = tuple[int, int]
"""A room's index in the script and an utterance's index in the room."""


class Conversation:
    """Speak when the utterance before one's own has been read, or has been waited for too long."""

    def __init__(self, rooms: Sequence[Room], me: int, *, patience_ns: int) -> None:
        self._rooms = rooms
        self._patience_ns = patience_ns
        self._mine = {
            at: [k for k in range(len(room.utterances)) if room.speaker(k) == me]
            for at, room in enumerate(rooms)
            if me in room.members
        }
        self._spoken = dict.fromkeys(self._mine, 0)
        """Per room: how many of my utterances are said."""
        self._moved: dict[int, Instant] = {}
        """Per room: when it last made a step that I know of."""

    @property
    def finished(self) -> bool:
        """Whether all my utterances are said."""
        return all(self._spoken[at] == len(mine) for at, mine in self._mine.items())

    @property
    def spoken(self) -> int:
        """How many utterances I have said."""
        return sum(self._spoken.values())

    def start(self, now: Instant) -> list[Turn]:
        """Return the opening utterances that are mine."""
        self._moved = dict.fromkeys(self._mine, now)
        return self._due(dict.fromkeys(self._mine, 0), now)

    def read(self, room: int, index: int, now: Instant) -> list[Turn]:
        """Note that this utterance was read; return mine that follow it."""
        self._moved[room] = now
        return self._due({room: index + 1}, now)

    def overdue(self, now: Instant) -> list[Turn]:
        """Return mine in rooms that have been silent for too long: the one before must be lost."""
        turns: list[Turn] = []
        for at, mine in self._mine.items():
            if self._spoken[at] < len(mine) and now - self._moved[at] > self._patience_ns:
                turns += self._due({at: mine[self._spoken[at]]}, now)
        return turns

    def _due(self, upto: dict[int, int], now: Instant) -> list[Turn]:
        """Say everything of mine up to these utterances: what comes earlier was skipped."""
        turns: list[Turn] = []
        for at, limit in upto.items():
            mine = self._mine[at]
            while self._spoken[at] < len(mine) and mine[self._spoken[at]] <= limit:
                turns.append((at, mine[self._spoken[at]]))
                self._spoken[at] += 1
                self._moved[at] = now
        return turns
