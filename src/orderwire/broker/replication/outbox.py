"""Collects what one call of a replica asks for."""

from collections import deque

import msgspec

from orderwire.broker.replication.effects import Effect, Effects, Event, Note, Tell
from orderwire.broker.replication.view import BrokerId


class Outbox:
    """Effects in order; what a replica tells itself it handles in the same call."""

    def __init__(self, me: BrokerId) -> None:
        self.me = me
        self.mine: deque[msgspec.Struct] = deque()
        """Messages to ourselves."""
        self._effects: Effects = []

    def tell(self, to: BrokerId, message: msgspec.Struct) -> None:
        """Send a message, be it to ourselves."""
        if to == self.me:
            self.mine.append(message)
        else:
            self._effects.append(Tell(to, message))

    def add(self, effect: Effect) -> None:
        """Ask for something else."""
        self._effects.append(effect)

    def note(self, event: Event) -> None:
        """Tell of an event."""
        self._effects.append(Note(event))

    def extend(self, effects: Effects) -> None:
        """Ask for more."""
        self._effects += effects

    def take(self) -> Effects:
        """What was collected since the last time."""
        assert not self.mine, "messages to ourselves are handled first"
        effects, self._effects = self._effects, []
        return effects
