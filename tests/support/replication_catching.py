"""In how many drawn lives a protocol that lacks a rule is found out.  [S004:5.3]"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from orderwire.kernel import OrderwireError
from orderwire.sim.replication_moments import KINDS
from orderwire.sim.replication_run import Faults, Outcome, RunSettings
from orderwire.verify.replication import by_invariant

DRAWS = 40
"""So many lives a rule has: more than one of them has to find out that it is missing."""


class Draws(NamedTuple):
    """What brings it to light that a rule is missing."""

    faults: dict[str, int]
    aim: tuple[str, ...] = KINDS
    """The kinds of work that these faults meet."""
    deliver_factor: int = 1

    def of(self, settings: RunSettings) -> RunSettings:
        """The same life with these faults."""
        return msgspec.structs.replace(
            settings,
            faults=Faults(**self.faults),
            aim=self.aim,
            deliver_factor=self.deliver_factor,
        )


class Caught(msgspec.Struct):
    """What became of it."""

    draws: int = 0
    seeds: list[int] = []
    """Lives in which an invariant broke that this rule keeps."""
    broken: Counter[str] = msgspec.field(default_factory=Counter)
    """Invariant → in how many of those it broke."""
    noticed: int = 0
    """Lives that ended because a replica noticed itself that something is wrong."""

    def __str__(self) -> str:
        broken = ", ".join(f"{name} {times}" for name, times in sorted(self.broken.items()))
        found = f"caught in {len(self.seeds)} of {self.draws} draws {self.seeds}: {broken or '-'}"
        return f"{found}; {self.noticed} ended by themselves"


def caught_in(
    live: Callable[[int], Outcome],
    breaks: Iterable[str],
    seeds: Iterable[int] = range(DRAWS),
    *,
    enough: int | None = None,
) -> Caught:
    """Live these lives, or until so many have found it out."""
    breaks = frozenset(breaks)
    found = Caught()
    for seed in seeds:
        found.draws += 1
        try:
            broken = set(by_invariant(live(seed).breaches))
        except (AssertionError, OrderwireError):
            found.noticed += 1
            continue
        if broken & breaks:
            found.seeds.append(seed)
            found.broken.update(broken)
        if enough is not None and len(found.seeds) >= enough:
            break
    return found
