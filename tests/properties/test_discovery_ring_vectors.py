"""Drawn scenarios of the ring agree with the specification's text, taken literally and slowly."""

from itertools import count, takewhile
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from orderwire.sim.discovery_vectors import check_discovery

SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 31, 32, 33, 64, 100, 128)
Edge = dict[str, int]


def walk(start: int, steps: int, size: int, way: int) -> list[int]:
    """Return the ids at these many steps behind `start`, nearest first."""
    return [(start + way * step) % size for step in range(1, steps + 1)]


def first(slots: list[int], members: set[int]) -> int | None:
    return next((each for each in slots if each in members), None)


def targets(
    members: set[int], me: int, hi: int, size: int, way: int, policy: str
) -> list[tuple[int, int]]:
    """Return (who, up to where) for the range behind `me` up to `hi`.

    [S002:sec.4.1, FDP/1 R3, D2]
    """
    slots = walk(me, (hi - me) * way % size, size, way)
    powers = list(takewhile(lambda power: power <= len(slots), (2**j for j in count())))
    if policy == "slot":  # [i + 2^j, i + 2^(j+1) - 1], skipped when nobody lies in it.
        pieces = [slots[power - 1 : 2 * power - 1] for power in powers]
        found = [(first(piece, members), piece[-1]) for piece in pieces]
        return [(to, last) for to, last in found if to is not None]
    chosen: list[int] = []
    if policy == "rank":  # The known members at ranks 1, 2, 4, 8 …
        known = [each for each in slots if each in members]
        chosen = [known[power - 1] for power in powers if power <= len(known)]
    else:  # The first member at or behind i + 2^j; it serves up to the next one.
        for power in powers:
            to = first(slots[power - 1 :], members)
            if to is not None and to not in chosen:
                chosen.append(to)
    ends = [(each - way) % size for each in chosen[1:]] + [hi]
    return list(zip(chosen, ends, strict=True)) if chosen else []


def tree(members: set[int], source: int, size: int, both_ways: bool, policy: str) -> list[Edge]:
    half = size // 2 if both_ways else size - 1
    todo = [(source, (source + half) % size, 1, 1)]
    if size - 1 - half:
        todo.append((source, (source - (size - 1 - half)) % size, -1, 1))
    edges = []
    while todo:
        frm, hi, way, hop = todo.pop()
        for to, last in targets(members, frm, hi, size, way, policy):
            edges.append({"frm": frm, "to": to, "hop": hop, "lo": to, "hi": last, "dir": way})
            todo.append((to, last, way, hop + 1))
    return edges


def served(members: set[int], edge: Edge, size: int) -> list[int]:
    steps = (edge["hi"] - edge["lo"]) * edge["dir"] % size
    return [
        edge["lo"],
        *(each for each in walk(edge["lo"], steps, size, edge["dir"]) if each in members),
    ]


def rows(members: set[int], size: int) -> dict[str, list[int]]:
    """Row j of i: the first member other than i that is at or behind i + 2^j, circular."""
    powers = list(takewhile(lambda power: power < size, (2**j for j in count())))
    return {
        str(me): [
            next(
                (
                    each
                    for step in range(size)
                    if (each := (me + power + step) % size) in members - {me}
                ),
                me,
            )
            for power in powers
        ]
        for me in members
    }


def drawn(chance: Random) -> tuple[int, list[int]]:
    size = chance.choice(SIZES)
    many = chance.choice((1, 2, size, size - 1, chance.randint(1, size)))
    return size, chance.sample(range(size), max(1, min(size, many)))


def passes(kind: str, given_: dict[str, Any], expect: dict[str, Any]) -> bool:
    outcomes = check_discovery({"kind": kind, "given": given_, "expect": expect})
    assert {*outcomes} == {None}, outcomes
    return True


@given(chance=st.randoms(use_true_random=False))
def test_rows_are_those_of_the_text(chance: Random) -> None:
    size, members = drawn(chance)
    before = rows({*members}, size)
    expect: dict[str, Any] = {"rows": before}
    free = sorted({*range(size)} - {*members})
    if free:
        joiner = chance.choice(free)
        after = rows({*members, joiner}, size)
        # Whoever is alone names itself, as `successor_rows` does.
        changes = [each for each in members if after[str(each)] != before[str(each)]]
        expect |= {"after_join": joiner, "rows_changed_by_join": changes}
    assert passes("rows", {"M": size, "members": members}, expect)


@given(
    chance=st.randoms(use_true_random=False),
    policy=st.sampled_from(("rank", "succ", "slot")),
    both_ways=st.booleans(),
)
def test_trees_reports_and_sizes_are_those_of_the_text(
    chance: Random, policy: str, both_ways: bool
) -> None:
    size, members = drawn(chance)
    here = {*members}
    source = chance.choice(members)
    edges = tree(here, source, size, both_ways, policy)
    assert sorted(edge["to"] for edge in edges) == sorted(here - {source})
    ring = {"M": size, "members": members, "bidirectional": both_ways, "policy": policy}
    reports = {edge["to"]: served(here, edge, size) for edge in edges if edge["hop"] == 1}
    hops = [edge["hop"] for edge in edges]
    assert passes(
        "tree",
        ring | {"source": source},
        {
            "edges": edges,
            "first_hop": [
                {key: edge[key] for key in ("to", "lo", "hi", "dir")}
                for edge in edges
                if edge["hop"] == 1
            ],
            "hops": {str(hop): hops.count(hop) for hop in {*hops}},
            "hop_of": {str(edge["to"]): edge["hop"] for edge in edges},
            "messages": len(here) - 1,
            "max_maps_in_one_ack": max(map(len, reports.values()), default=0),
        },
    )
    if chance.random() < 0.5:
        ring["members"] = sorted(here - {source}) or members  # The joiner need not be listed.
    assert passes(
        "joinack",
        ring | {"joiner": source},
        {
            "maps": {str(to): ids for to, ids in reports.items()},
            "no_maps": sorted(here - {source} - {*reports}),
        },
    )
    counts = {each: chance.randint(0, 700) for each in here}
    fixed, each_bytes = chance.randint(0, 500), chance.randint(0, 100)
    sizes = {each: fixed + each_bytes * many for each, many in counts.items()}
    assert passes(
        "size",
        ring
        | {"joiner": source, "LP": fixed, "LE": each_bytes}
        | {"endpoints": {str(each): many for each, many in counts.items()}},
        {
            "join": sizes[source],
            "join_ack": {str(to): sum(sizes[each] for each in ids) for to, ids in reports.items()},
        },
    )
