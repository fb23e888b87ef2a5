"""The id ring: distances, ranges in both directions, rows, who serves which part."""

from collections import Counter

import pytest

from orderwire.discovery.ring import (
    DOWN,
    UP,
    Hop,
    RangePolicy,
    between,
    broadcast_tree,
    count_between,
    distance,
    nearest,
    own_targets,
    successor_rows,
    targets,
    within,
)

FULL = list(range(16))


def without(me: int) -> list[int]:
    return [each for each in FULL if each != me]


@pytest.mark.parametrize(
    ("start", "end", "direction", "steps"),
    [(3, 5, UP, 2), (5, 3, UP, 14), (5, 3, DOWN, 2), (3, 5, DOWN, 14), (4, 4, UP, 0)],
)
def test_distance_is_circular(start: int, end: int, direction: int, steps: int) -> None:
    assert distance(start, end, 16, direction) == steps


def test_a_range_includes_both_its_ends() -> None:
    assert [each for each in FULL if within(each, 14, 1, 16)] == [0, 1, 14, 15]
    assert [each for each in FULL if within(each, 1, 14, 16, DOWN)] == [0, 1, 14, 15]


@pytest.mark.parametrize(
    ("me", "hi", "direction", "found"),
    [
        (3, 9, UP, [5, 9]),
        (9, 3, UP, [12, 1, 3]),
        (9, 3, DOWN, [5, 3]),
        (1, 12, DOWN, [12]),
        (5, 5, UP, []),
        (13, 0, UP, []),
        (12, 15, UP, []),
        (3, 1, DOWN, [1]),
    ],
)
def test_members_of_a_range_come_nearest_first(
    me: int, hi: int, direction: int, found: list[int]
) -> None:
    ring = [each for each in (1, 3, 5, 9, 12) if each != me]
    assert list(between(ring, me, hi, 16, direction)) == found
    assert count_between(ring, me, hi, direction) == len(found)
    assert nearest(ring, me, hi, direction) == (found[0] if found else None)


def test_targets_come_widest_range_first() -> None:
    """The example of the paper: 3 serves 11 to 2 first, its neighbour last."""
    assert targets(without(3), 3, 2, 16) == [Hop(11, 2), Hop(7, 10), Hop(5, 6), Hop(4, 4)]
    assert targets(without(11), 11, 2, 16) == [Hop(15, 2), Hop(13, 14), Hop(12, 12)]
    assert targets(without(4), 4, 4, 16) == []


def test_a_slot_is_skipped_when_empty_and_ends_where_it_ends() -> None:
    ring = [1, 2, 12]
    slot = targets(ring, 0, 15, 16, UP, RangePolicy.SLOT)
    assert slot == [Hop(12, 15), Hop(2, 3), Hop(1, 1)]
    succ = targets(ring, 0, 15, 16, UP, RangePolicy.SUCC)
    assert succ == [Hop(12, 15), Hop(2, 11), Hop(1, 1)]
    assert targets(ring, 0, 15, 16) == [Hop(2, 15), Hop(1, 1)]


def test_half_around_both_ways_the_opposite_id_is_on_the_positive_side() -> None:
    hops = own_targets(without(3), 3, 16, both_ways=True)
    assert [hop for hop in hops if hop.direction == UP] == [
        Hop(11, 11),
        Hop(7, 10),
        Hop(5, 6),
        Hop(4, 4),
    ]
    assert [hop for hop in hops if hop.direction == DOWN] == [
        Hop(15, 12, DOWN),
        Hop(1, 0, DOWN),
        Hop(2, 2, DOWN),
    ]
    assert [hop.to for hop in hops] == [11, 15, 7, 1, 5, 2, 4]  # The widest of both sides first.


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("both_ways", [False, True])
def test_the_smallest_rings_are_served(size: int, both_ways: bool) -> None:
    members = list(range(size))
    for policy in RangePolicy:
        edges = broadcast_tree(members, 0, size, both_ways=both_ways, policy=policy)
        assert sorted(edge.to for edge in edges) == members[1:]


def test_nobody_else_is_no_target() -> None:
    for policy in RangePolicy:
        assert own_targets([], 5, 16, both_ways=True, policy=policy) == []
    assert successor_rows([5], 5, 16) == [5, 5, 5, 5]


def test_ids_of_sixty_four_bits_are_ids_like_others() -> None:
    size = 1 << 64
    members = [0, 7, 1 << 40, size - 1]
    for source in members:
        edges = broadcast_tree(members, source, size, both_ways=True)
        assert Counter(edge.to for edge in edges) == Counter(set(members) - {source})
