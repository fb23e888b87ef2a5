"""The accept of Delta-4's xAMP: all destinations answer one and the same frame, then it counts.

Source: [R92].  The sender leads: it broadcasts the message until all destinations have answered the
same attempt, and broadcasts the acceptance.  The order is that of the channel: a message stands
where its accepted attempt stood, which is a place that all destinations know.  Until it is
accepted, it holds up what stands behind its last attempt; a later attempt moves it behind that.

When a sender is gone, the change of views is its monitor: what all destinations have, in the same
attempt, is accepted, for the sender may have accepted it; nothing else can have been.
Cost: 2 + d transmissions.
"""

from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from itertools import pairwise

import msgspec

from orderwire.kernel import members_of
from orderwire.ordering.total.flushing import Message
from orderwire.ordering.total.two_phase import Held, TwoPhase


class XampState(msgspec.Struct, frozen=True, gc=False):
    """What a member has when a view ends."""

    frames: tuple[tuple[Message, int, bool], ...]
    """(message, last attempt, accepted), in the order of those attempts."""
    waiting: tuple[Message, ...]


Key = tuple[int, int]


class Delta4Xamp(TwoPhase):
    """One member."""

    NAME = "xamp"

    @property
    def _all_reply_at_once(self) -> bool:
        return True

    def _first(self) -> Held:
        return min(self._held.values(), key=lambda held: held.place)

    def _state(self) -> XampState:
        held = sorted(self._held.values(), key=lambda h: h.place)
        frames = [(h.message, h.attempt, True) for h in self._log]
        frames += [(h.message, h.attempt, h.decided) for h in held]
        return XampState(tuple(frames), tuple(self._sent.values()))

    def _merge(self, states: Mapping[int, XampState]) -> list[Message]:
        messages: dict[Key, Message] = {}
        attempts: dict[Key, dict[int, int]] = {}
        accepted: set[Key] = set()
        for k, state in states.items():
            for message, attempt, is_accepted in state.frames:
                key = (int(message.source), message.number)
                messages[key] = message
                attempts.setdefault(key, {})[k] = attempt
                if is_accepted:
                    accepted.add(key)
            for message in state.waiting:
                messages.setdefault((int(message.source), message.number), message)
        for key, told in attempts.items():
            live = [k for k in members_of(messages[key].destinations) if k in states]
            if len(told) == len(live) and len(set(told.values())) == 1:
                accepted.add(key)
        chains = [
            [(int(m.source), m.number) for m, _, _ in state.frames] for state in states.values()
        ]
        order = in_one_order([[key for key in chain if key in accepted] for chain in chains])
        rest = sorted(key for key in messages if key not in accepted)
        return [messages[key] for key in (*order, *rest)]


def in_one_order(chains: list[list[Key]]) -> list[Key]:
    """Merge parts of one order; what they leave open is ordered by key."""
    after: dict[Key, set[Key]] = {}
    before: dict[Key, int] = {}
    for chain in chains:
        for key in chain:
            after.setdefault(key, set())
            before.setdefault(key, 0)
        for one, other in pairwise(chain):
            if other not in after[one]:
                after[one].add(other)
                before[other] += 1
    ready = [key for key, count in before.items() if not count]
    heapify(ready)
    merged = []
    while ready:
        key = heappop(ready)
        merged.append(key)
        for other in sorted(after[key]):
            before[other] -= 1
            if not before[other]:
                heappush(ready, other)
    assert len(merged) == len(before), "the channel's order has a cycle"
    return merged
