"""Who is who: process ids and destination sets."""

from collections.abc import Iterable, Iterator
from typing import NewType

ProcessId = NewType("ProcessId", int)
"""A member's small integer in its group, 0 … n-1."""

Destinations = NewType("Destinations", int)
"""A set of processes as a bit mask: bit p is set when process p is in it."""

GROUP_SIZE_MAX = 4096
"""Largest number of members in one group; a larger id in a PDU is a peer's fault."""


def destinations(members: Iterable[int]) -> Destinations:
    """Return the destination set of these process ids."""
    mask = 0
    for member in members:
        mask |= 1 << member
    return Destinations(mask)


def members_of(mask: int) -> Iterator[ProcessId]:
    """Yield the processes of a destination set, ascending."""
    while mask:
        lowest = mask & -mask
        yield ProcessId(lowest.bit_length() - 1)
        mask ^= lowest
