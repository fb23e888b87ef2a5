"""Skeen's agreement, as in ISIS ABCAST: every destination proposes a stamp, the highest one counts.

Source: [B87].  A destination k answers an offer with (LC_k, k), after LC_k := LC_k + 1; the sender
decides the highest proposal; a destination delivers the message with the lowest stamp once that
is decided: what is not decided can only get a higher one.  Stamps are compared as pairs, so that
there are no ties, and a decision raises LC at all who hear it.  An offer carries the sender's LC,
so that the next message of a sender gets a higher stamp than its last.

Only destinations work for a message.  When a sender is gone, the change of views decides: the
decision if anybody knows it, else the highest of what the destinations propose then.
Cost: 2 + d transmissions.
"""

from collections.abc import Mapping

import msgspec

from orderwire.kernel import members_of
from orderwire.ordering.total.flushing import Message
from orderwire.ordering.total.two_phase import Held, Stamp, TwoPhase


class SkeenState(msgspec.Struct, frozen=True, gc=False):
    """What a member knows when a view ends."""

    clock: int
    decided: tuple[tuple[Message, Stamp], ...]
    proposed: tuple[tuple[Message, Stamp], ...]
    waiting: tuple[Message, ...]


class SkeenAgreement(TwoPhase):
    """One member."""

    NAME = "skeen"

    @property
    def _all_reply_at_once(self) -> bool:
        return False

    def _first(self) -> Held:
        return min(self._held.values(), key=lambda held: held.proposal)

    def _state(self) -> SkeenState:
        held = self._held.values()
        decided = [(h.message, h.proposal) for h in (*self._log, *held) if h.decided]
        decided += [(message, decision.stamp) for decision, message in self._decisions.values()]
        return SkeenState(
            self._clock,
            tuple(decided),
            tuple([(h.message, h.proposal) for h in held if not h.decided]),
            tuple(self._sent.values()),
        )

    def _merge(self, states: Mapping[int, SkeenState]) -> list[Message]:
        decided: dict[tuple[int, int], tuple[Stamp, Message]] = {}
        proposed: dict[tuple[int, int], dict[int, Stamp]] = {}
        messages: dict[tuple[int, int], Message] = {}
        for k, state in states.items():
            for message, stamp in state.decided:
                decided[(message.source, message.number)] = (stamp, message)
            for message, stamp in state.proposed:
                messages[(message.source, message.number)] = message
                proposed.setdefault((message.source, message.number), {})[k] = stamp
            for message in state.waiting:
                messages[(message.source, message.number)] = message
        for key, message in messages.items():
            if key not in decided:
                told = proposed.get(key, {})
                who = [message.source, *members_of(message.destinations)]
                stamp = max(
                    told.get(k, (states[k].clock + 1, k)) for k in who if k in states or k in told
                )
                decided[key] = (stamp, message)
        return [message for _, (_, message) in sorted(decided.items(), key=_by_stamp)]


def _by_stamp(item: tuple[tuple[int, int], tuple[Stamp, Message]]) -> tuple[Stamp, tuple[int, int]]:
    return item[1][0], item[0]
