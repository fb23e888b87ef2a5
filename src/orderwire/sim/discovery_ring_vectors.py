"""Worked scenarios of the ring: rows, trees, and what a newcomer is told, in ids and in bytes.

The formats are those of `tests/vectors/discovery/README.md`.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, TypeVar

import msgspec

from orderwire.discovery.messages import MapRecord
from orderwire.discovery.ring import (
    RangePolicy,
    TreeEdge,
    between,
    broadcast_tree,
    own_targets,
    successor_rows,
)
from orderwire.discovery.settings import ID_SPACE_MAX, MEMBERS_MAX
from orderwire.sim.vector_format import VectorError, read

Checks: TypeAlias = Iterator[str | None]
"""One per check: None, or why it failed."""

MAP_BYTES_MAX = 1 << 26
"""Largest MAP of a scenario."""

T = TypeVar("T")


def equal(what: str, found: Any, expected: Any) -> str | None:
    """Return the outcome of one check."""
    return None if found == expected else f"{what} is {found}, expected {expected}"


class _Form(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An object of a scenario."""


class _Ring(_Form, frozen=True, kw_only=True):
    """Who takes part."""

    id_space: int = msgspec.field(name="M")
    members: list[int]

    def check(self, *others: int | None) -> None:
        """Refuse ids outside the id space, and members named twice.  Raises VectorError."""
        if not 1 <= self.id_space <= ID_SPACE_MAX:
            raise VectorError(f"M is {self.id_space}, expected 1 to 2**64")
        if not 1 <= len(self.members) <= MEMBERS_MAX:
            raise VectorError(f"{len(self.members)} members, expected 1 to {MEMBERS_MAX}")
        named = [*self.members, *(each for each in others if each is not None)]
        check_ids(named, self.id_space)
        twice = [each for each, times in Counter(self.members).items() if times > 1]
        if twice:
            raise VectorError(f"members named twice: {twice}")


def check_ids(named: Sequence[int], id_space: int) -> None:
    """Refuse ids outside the id space.  Raises VectorError."""
    odd = sorted({each for each in named if not 0 <= each < id_space})
    if odd:
        raise VectorError(f"ids {odd} are not within 0 … {id_space - 1}")


def _ids(keys: Sequence[str] | dict[str, Any], id_space: int) -> None:
    """Refuse keys that are no ids.  Raises VectorError."""
    odd = [key for key in keys if str(whole(key)) != key]
    if odd:
        raise VectorError(f"{odd} are no ids")
    check_ids([int(key) for key in keys], id_space)


def whole(text: str) -> int | None:
    """Return the number that the text is, if it is one."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 20 else None


# -- rows -----------------------------------------------------------------------------------


class _RowsExpected(_Form, frozen=True, kw_only=True):
    rows: dict[str, list[int]] = {}
    after_join: int | None = None
    rows_changed_by_join: list[int] | None = None


def _rows(given: Any, expect: Any) -> Checks:
    ring, expected = read(given, _Ring, "given"), read(expect, _RowsExpected, "expect")
    joiner = expected.after_join
    ring.check(joiner)
    size, members = ring.id_space, sorted(ring.members)
    _ids(expected.rows, size)
    if (joiner is None) != (expected.rows_changed_by_join is None):
        raise VectorError("after_join and rows_changed_by_join belong together")
    if joiner in members:
        raise VectorError(f"{joiner} joins, and is a member already")
    rows = {str(each): successor_rows(members, each, size) for each in members}
    for each, row in expected.rows.items():
        yield equal(f"row of {each}", rows.get(each), row)
    if joiner is not None and expected.rows_changed_by_join is not None:
        after = sorted([*members, joiner])
        changed = [each for each in members if successor_rows(after, each, size) != rows[str(each)]]
        yield equal("rows changed", changed, sorted(expected.rows_changed_by_join))


# -- trees ----------------------------------------------------------------------------------


class _Served(_Ring, frozen=True, kw_only=True):
    """A ring, and how a broadcast divides it."""

    bidirectional: bool = False
    policy: str | list[str] = "rank"

    def policies(self) -> list[RangePolicy]:
        """Return which divisions the scenario is about.  Raises VectorError."""
        names = [self.policy] if isinstance(self.policy, str) else self.policy
        known = [each.value for each in RangePolicy]
        odd = [name for name in names if name not in known]
        if odd or not names:
            raise VectorError(f"policy {self.policy!r}; expected one or more of {sorted(known)}")
        return [RangePolicy(name) for name in names]


class _TreeGiven(_Served, frozen=True, kw_only=True):
    source: int


class _TreeExpected(_Form, frozen=True, kw_only=True):
    edges: list[dict[str, int]] | None = None
    first_hop: list[dict[str, int]] | None = None
    hops: dict[str, int] | None = None
    hop_of: dict[str, int | None] = {}
    messages: int | None = None
    max_maps_in_one_ack: int | None = None


def _tree(given: Any, expect: Any) -> Checks:
    ring, expected = read(given, _TreeGiven, "given"), read(expect, _TreeExpected, "expect")
    ring.check(ring.source)
    _ids(expected.hop_of, ring.id_space)
    members = sorted({*ring.members, ring.source})
    for policy in ring.policies():
        name = policy.value
        edges = broadcast_tree(
            members, ring.source, ring.id_space, both_ways=ring.bidirectional, policy=policy
        )
        first = [edge for edge in edges if edge.hop == 1]
        if expected.edges is not None:
            yield equal(f"{name}: edges", *_sets(edges, expected.edges))
        if expected.first_hop is not None:
            yield equal(f"{name}: first hop", *_sets(first, expected.first_hop))
        if expected.hops is not None:
            hops = Counter(str(edge.hop) for edge in edges)
            yield equal(f"{name}: receivers per hop", dict(hops), expected.hops)
        hop_of = {str(edge.to): edge.hop for edge in edges}
        for member, hop in expected.hop_of.items():
            yield equal(f"{name}: hop of {member}", hop_of.get(member), hop)
        if expected.messages is not None:
            yield equal(f"{name}: messages", len(edges), expected.messages)
        if expected.max_maps_in_one_ack is not None:
            others = [each for each in members if each != ring.source]
            largest = max((len(_served(others, edge, ring.id_space)) for edge in first), default=0)
            yield equal(f"{name}: largest report", largest, expected.max_maps_in_one_ack)


def _served(others: Sequence[int], edge: TreeEdge, size: int) -> list[int]:
    """Return the members inside the range of this copy, nearest first."""
    known = [each for each in others if each != edge.to]
    return [edge.to, *between(known, edge.to, edge.hi, size, edge.dir)]


def _sets(found: list[TreeEdge], expected: list[dict[str, int]]) -> tuple[Any, Any]:
    """Return both as sorted lists of what every expected edge states.  Raises VectorError."""
    keys = sorted(expected[0]) if expected else ["to"]
    odd = sorted(set(keys) - set(TreeEdge._fields))
    if odd or not keys or any(sorted(each) != keys for each in expected):
        raise VectorError(
            f"edges must all state the same of {', '.join(TreeEdge._fields)}"
            + (f", not {', '.join(odd)}" if odd else "")
        )
    return (
        sorted(tuple(getattr(each, key) for key in keys) for each in found),
        sorted(tuple(each[key] for key in keys) for each in expected),
    )


# -- what a newcomer is told ----------------------------------------------------------------


class _JoinGiven(_Served, frozen=True, kw_only=True):
    joiner: int

    def reports(self, policy: RangePolicy) -> dict[str, list[int]]:
        """Return what each receiver of the first hop reports to the joiner."""
        others = sorted({*self.members} - {self.joiner})
        first = own_targets(
            others, self.joiner, self.id_space, both_ways=self.bidirectional, policy=policy
        )
        edges = [TreeEdge(self.joiner, hop.to, 1, hop.to, hop.hi, hop.direction) for hop in first]
        return {str(edge.to): _served(others, edge, self.id_space) for edge in edges}


class _JoinExpected(_Form, frozen=True, kw_only=True):
    maps: dict[str, list[int]] | None = None
    no_maps: list[int] | None = None


def _joinack(given: Any, expect: Any) -> Checks:
    ring, expected = read(given, _JoinGiven, "given"), read(expect, _JoinExpected, "expect")
    ring.check(ring.joiner)
    for policy in ring.policies():
        reports = ring.reports(policy)
        if expected.maps is not None:
            found = {key: sorted(value) for key, value in reports.items()}
            wanted = {key: sorted(value) for key, value in expected.maps.items()}
            yield equal(f"{policy.value}: reports", found, wanted)
        if expected.no_maps is not None:
            silent = {*ring.members} - {ring.joiner} - {int(each) for each in reports}
            wanted_silent = sorted(expected.no_maps)
            yield equal(f"{policy.value}: who reports nothing", sorted(silent), wanted_silent)


class _SizeGiven(_JoinGiven, frozen=True, kw_only=True):
    participant_bytes: int = msgspec.field(name="LP")
    endpoint_bytes: int = msgspec.field(name="LE")
    endpoints: dict[str, int]

    def map_bytes(self, identity: int) -> int:
        """Size of a participant's MAP: L_P + L_E · N_E."""
        size = self.participant_bytes + self.endpoint_bytes * self.endpoints[str(identity)]
        return MapRecord(1, bytes(size)).size_bytes

    def check_sizes(self) -> None:
        """Refuse what gives no sizes.  Raises VectorError."""
        _ids(self.endpoints, self.id_space)
        missing = sorted(
            each for each in {*self.members, self.joiner} if str(each) not in self.endpoints
        )
        if missing:
            raise VectorError(f"the endpoints of {missing} are not given")
        numbers = (self.participant_bytes, self.endpoint_bytes, *self.endpoints.values())
        largest = self.participant_bytes + self.endpoint_bytes * max(self.endpoints.values())
        if min(numbers) < 0 or largest > MAP_BYTES_MAX:
            raise VectorError(f"sizes are below 0, or MAPs above {MAP_BYTES_MAX} bytes")


class _SizeExpected(_Form, frozen=True, kw_only=True):
    join: int | None = None
    join_ack: dict[str, int] = {}


def _size(given: Any, expect: Any) -> Checks:
    ring, expected = read(given, _SizeGiven, "given"), read(expect, _SizeExpected, "expect")
    ring.check(ring.joiner)
    ring.check_sizes()
    if expected.join is not None:
        yield equal("JOIN", ring.map_bytes(ring.joiner), expected.join)
    for policy in ring.policies():
        reports = ring.reports(policy)
        for to, size in expected.join_ack.items():
            found = sum(map(ring.map_bytes, reports[to])) if to in reports else None
            yield equal(f"{policy.value}: JOIN_ACK of {to}", found, size)


RING_KINDS: dict[str, Callable[[Any, Any], Checks]] = {
    "rows": _rows,
    "tree": _tree,
    "joinack": _joinack,
    "size": _size,
}
