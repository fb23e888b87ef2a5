"""Visits every state that a model can reach, breadth first, and keeps the shortest way to each
kind of violation."""

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

import msgspec

StateT = TypeVar("StateT", bound=Hashable)

Successors = Callable[[StateT], Iterable[tuple[str, StateT]]]
Check = Callable[[StateT], Iterable[str]]


class Explored(msgspec.Struct, Generic[StateT], frozen=True):
    """What was found."""

    states: int
    complete: bool
    """Whether there is no other state."""
    violations: dict[str, list[str]]
    """Kind → the steps that lead to the first state that has it."""


def explore(
    start: StateT,
    successors: Successors[StateT],
    check: Check[StateT],
    *,
    states_max: int,
    until: frozenset[str] = frozenset(),
) -> Explored[StateT]:
    """Search until everything is seen, `states_max` is, or all kinds in `until` are found."""
    came_from: dict[StateT, tuple[StateT, str] | None] = {start: None}
    first: dict[str, StateT] = {}
    waiting = deque([start])
    for kind in check(start):
        first.setdefault(kind, start)
    complete = True
    while waiting:
        if len(came_from) >= states_max or (until and until <= first.keys()):
            complete = False
            break
        state = waiting.popleft()
        for label, following in successors(state):
            if following in came_from:
                continue
            came_from[following] = (state, label)
            waiting.append(following)
            for kind in check(following):
                first.setdefault(kind, following)
    return Explored(
        len(came_from), complete, {kind: _steps(came_from, at) for kind, at in first.items()}
    )


def follow(start: StateT, successors: Successors[StateT], steps: Iterable[str]) -> StateT:
    """Take these steps; each must be possible."""
    state = start
    for step in steps:
        possible = dict(successors(state))
        assert step in possible, f"{step!r} is not possible; these are: {sorted(possible)}"
        state = possible[step]
    return state


def _steps(came_from: dict[StateT, tuple[StateT, str] | None], state: StateT) -> list[str]:
    steps: list[str] = []
    before = came_from[state]
    while before is not None:
        steps.append(before[1])
        before = came_from[before[0]]
    return steps[::-1]
