"""Pure arithmetic of the id ring: distances, ranges, successor rows and who serves which range.

Ids are 0 … size-1 and circular; ranges are inclusive and walked in a direction, +1 or -1.
A ring is given as the ascending list of the ids that are known, without one's own.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from enum import Enum
from itertools import zip_longest
from typing import NamedTuple

UP = 1
DOWN = -1


class RangePolicy(Enum):
    """How a node divides the range that it must serve among those it knows."""

    RANK = "rank"
    """The members at ranks 1, 2, 4, 8 …: depth ⌈log₂ n⌉ also when ids are sparse. [FDP/1 R3]"""
    SUCC = "succ"
    """The first member at or after own id + 2^j, serving up to the next target. [S002:sec.4.1]"""
    SLOT = "slot"
    """The same, serving its power-of-two slot only; an empty slot is skipped. [S002:sec.4.1]"""


class Hop(NamedTuple):
    """One copy of a broadcast: to whom, and up to where it serves, its own id included."""

    to: int
    hi: int
    direction: int = UP


def distance(start: int, end: int, size: int, direction: int = UP) -> int:
    """How many steps from `start` to `end` in this direction, 0 … size-1."""
    return (end - start) * direction % size


def within(identity: int, lo: int, hi: int, size: int, direction: int = UP) -> bool:
    """Whether the id lies in the circular range from `lo` to `hi`, both included."""
    return distance(lo, identity, size, direction) <= distance(lo, hi, size, direction)


def between(ring: Sequence[int], me: int, hi: int, size: int, direction: int = UP) -> list[int]:
    """Return the known ids behind `me` up to and including `hi`, nearest first."""
    count = count_between(ring, me, hi, direction)
    if not count:
        return []
    if direction == UP:
        start = bisect_right(ring, me)
        found = list(ring[start : start + count])
        found += ring[: count - len(found)]
        return found
    start = bisect_left(ring, me)
    last = ring[max(0, start - count) : start]
    found = [*ring[len(ring) - count + len(last) :], *last]
    found.reverse()
    return found


def nearest(ring: Sequence[int], me: int, hi: int, direction: int = UP) -> int | None:
    """Return the first known id behind `me` up to and including `hi`."""
    if not count_between(ring, me, hi, direction):
        return None
    return _at_rank(ring, me, 1, direction)


def count_between(ring: Sequence[int], me: int, hi: int, direction: int = UP) -> int:
    """How many known ids lie behind `me` up to and including `hi`; none when they are the same."""
    if hi == me:
        return 0
    if direction == UP:
        behind, up_to = bisect_right(ring, me), bisect_right(ring, hi)
        return up_to - behind if me < hi else len(ring) - behind + up_to
    before, down_to = bisect_left(ring, me), bisect_left(ring, hi)
    return before - down_to if hi < me else before + len(ring) - down_to


def _at_rank(ring: Sequence[int], me: int, rank: int, direction: int) -> int:
    if direction == UP:
        return ring[(bisect_right(ring, me) + rank - 1) % len(ring)]
    return ring[(bisect_left(ring, me) - rank) % len(ring)]


def targets(
    ring: Sequence[int],
    me: int,
    hi: int,
    size: int,
    direction: int = UP,
    policy: RangePolicy = RangePolicy.RANK,
) -> list[Hop]:
    """Return who serves which part of the range behind `me` up to `hi`, widest range first.

    [S002:sec.4.1, FDP/1 R3]
    """
    if policy is RangePolicy.RANK:
        chosen = _by_rank(ring, me, hi, direction)
    else:
        chosen = _by_power(ring, me, hi, size, direction)
    hops = []
    for index, to in enumerate(chosen):
        if policy is RangePolicy.SLOT:
            power = distance(me, to, size, direction).bit_length()
            reach = min((1 << power) - 1, distance(me, hi, size, direction))
            last = (me + direction * reach) % size
        elif index + 1 < len(chosen):
            last = (chosen[index + 1] - direction) % size
        else:
            last = hi
        hops.append(Hop(to, last, direction))
    hops.reverse()
    return hops


def _by_rank(ring: Sequence[int], me: int, hi: int, direction: int) -> list[int]:
    count = count_between(ring, me, hi, direction)
    if not count:
        return []
    start = bisect_right(ring, me) - 1 if direction == UP else bisect_left(ring, me)
    chosen = []
    rank = 1
    while rank <= count:
        chosen.append(ring[(start + direction * rank) % len(ring)])
        rank *= 2
    return chosen


def _by_power(ring: Sequence[int], me: int, hi: int, size: int, direction: int) -> list[int]:
    """Return the first id at or behind `me` + 2^j for each j, inside the range."""
    reach = distance(me, hi, size, direction)
    chosen: list[int] = []
    offset = 1
    while offset <= reach and ring:
        before = (me + direction * (offset - 1)) % size
        to = _at_rank(ring, before, 1, direction)
        at = distance(me, to, size, direction)
        if not offset <= at <= reach:
            break  # Nobody from here on.
        if not chosen or chosen[-1] != to:
            chosen.append(to)
        offset *= 2
    return chosen


def own_targets(
    ring: Sequence[int],
    me: int,
    size: int,
    *,
    both_ways: bool,
    policy: RangePolicy = RangePolicy.RANK,
) -> list[Hop]:
    """Return the first hops of one's own broadcast: once around, or half around both ways.

    The id opposite belongs to the positive side. [S002:fig.17]  Both sides take turns, so that the
    widest range comes first.
    """
    if not both_ways:
        return targets(ring, me, (me - 1) % size, size, UP, policy)
    half = size // 2
    sides = [targets(ring, me, (me + half) % size, size, UP, policy)]
    if size > half + 1:
        sides.append(targets(ring, me, (me - (size - 1 - half)) % size, size, DOWN, policy))
    return [hop for turn in zip_longest(*sides) for hop in turn if hop is not None]


def successor_rows(members: Sequence[int], me: int, size: int) -> list[int]:
    """Return row j = the first member other than `me` at or after `me` + 2^j, circular.

    [S002:sec.3.1, S002:fig.3]
    """
    ring = [each for each in members if each != me]
    rows = []
    for row in range((size - 1).bit_length()):
        found = _at_rank(ring, (me + (1 << row) - 1) % size, 1, UP) if ring else me
        rows.append(found)
    return rows


class TreeEdge(NamedTuple):
    """One copy of a broadcast over full knowledge, with its range."""

    frm: int
    to: int
    hop: int
    lo: int
    hi: int
    dir: int


def broadcast_tree(
    members: Sequence[int],
    source: int,
    size: int,
    *,
    both_ways: bool = False,
    policy: RangePolicy = RangePolicy.RANK,
) -> list[TreeEdge]:
    """Return every copy of a broadcast when all members know all members. [S002:fig.4]"""
    ring = sorted(members)
    first = own_targets(
        [each for each in ring if each != source], source, size, both_ways=both_ways, policy=policy
    )
    edges: list[TreeEdge] = []
    todo = [(source, 1, hop) for hop in first]
    while todo:
        frm, depth, (to, hi, direction) = todo.pop(0)
        edges.append(TreeEdge(frm, to, depth, to, hi, direction))
        known = [each for each in ring if each != to]
        todo += [(to, depth + 1, hop) for hop in targets(known, to, hi, size, direction, policy)]
    return edges
