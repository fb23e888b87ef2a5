"""What ST promises, as definitions over logs.  [S003:sec.2]"""

from collections.abc import Hashable, Mapping, Sequence, Set
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Generic, TypeVar

MessageT = TypeVar("MessageT", bound=Hashable)


@dataclass(frozen=True)
class Logs(Generic[MessageT]):
    """Who sent and received what, in which order, and for whom it was.

    An entity's `received` log is what came by its channel, or what it delivered, as one asks.
    """

    sent: Mapping[int, Sequence[MessageT]]
    received: Mapping[int, Sequence[MessageT]]
    destinations: Mapping[MessageT, Set[int]]

    def is_order_preserving(self, entity: int) -> bool:
        """Whether messages of one source are in the order of its sending, and none twice."""
        for log in self.sent.values():
            place = {message: index for index, message in enumerate(log)}
            found = [place[m] for m in self.received[entity] if m in place]
            if any(later <= earlier for earlier, later in pairwise(found)):
                return False
        return True

    def is_information_preserving(self, entity: int) -> bool:
        """Whether it has everything that was sent, and nothing else."""
        return set(self.received[entity]) == {m for log in self.sent.values() for m in log}

    def is_selectively_information_preserving(self, entity: int) -> bool:
        """Whether it has everything that was sent to it, and nothing else."""
        return set(self.received[entity]) == {
            m for log in self.sent.values() for m in log if entity in self.destinations[m]
        }

    def is_correct(self, entity: int) -> bool:
        """Order-preserving and information-preserving."""
        return self.is_order_preserving(entity) and self.is_information_preserving(entity)

    def is_selectively_correct(self, entity: int) -> bool:
        """Order-preserving and selectively information-preserving."""
        return self.is_order_preserving(entity) and self.is_selectively_information_preserving(
            entity
        )

    def are_order_equivalent(self, one: int, other: int) -> bool:
        """Whether what both have is in the same order at both."""
        common = set(self.received[one]) & set(self.received[other])
        return [m for m in self.received[one] if m in common] == [
            m for m in self.received[other] if m in common
        ]

    def are_information_equivalent(self, one: int, other: int) -> bool:
        """Whether both have the same messages."""
        return set(self.received[one]) == set(self.received[other])

    def is_acyclic(self) -> bool:
        """Whether all logs fit into one total order: O2'."""
        after: dict[MessageT, set[MessageT]] = {}
        for log in self.received.values():
            for earlier, later in pairwise(log):
                after.setdefault(later, set()).add(earlier)
        try:
            TopologicalSorter(after).prepare()
        except CycleError:
            return False
        return True

    def service(self) -> str:
        """Return the strongest service these logs are of: ST, SP, 1C, or none."""
        entities = sorted(self.received)
        same_order = all(
            self.are_order_equivalent(one, other)
            for index, one in enumerate(entities)
            for other in entities[index + 1 :]
        )
        if all(map(self.is_selectively_correct, entities)):
            return "ST" if same_order else "SP"
        if same_order and all(map(self.is_order_preserving, entities)):
            return "1C"
        return "none"
