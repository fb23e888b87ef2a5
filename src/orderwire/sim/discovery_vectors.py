"""Worked scenarios of discovery: rows, trees, reports, sizes, merging, leases, and scripts.

The formats are those of `tests/vectors/discovery/README.md`.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from orderwire.discovery.bootstrap import BootstrapServer
from orderwire.discovery.effects import Post
from orderwire.discovery.messages import Full, IdReply, MapRecord, Release, RequestId, Row, Status
from orderwire.discovery.ring import (
    RangePolicy,
    broadcast_tree,
    count_between,
    own_targets,
    successor_rows,
)
from orderwire.discovery.roster import Roster
from orderwire.discovery.settings import BootstrapSettings, DiscoverySettings
from orderwire.kernel import NS_PER_MS, NS_PER_S, Instant
from orderwire.sim.discovery_script import ScriptError, check_script
from orderwire.sim.population import split_levels

Checks = Iterator[str | None]
"""One per check: None, or why it failed."""


def _equal(what: str, found: Any, expected: Any) -> str | None:
    return None if found == expected else f"{what} is {found}, expected {expected}"


def _rows(given: Mapping[str, Any], expect: Mapping[str, Any]) -> Checks:
    size, members = given["M"], sorted(given["members"])
    rows = {str(each): successor_rows(members, each, size) for each in members}
    for each, expected in expect.get("rows", {}).items():
        yield _equal(f"row of {each}", rows.get(each), expected)
    if "after_join" in expect:
        after = sorted([*members, expect["after_join"]])
        changed = [each for each in members if successor_rows(after, each, size) != rows[str(each)]]
        yield _equal("rows changed", changed, sorted(expect["rows_changed_by_join"]))


def _tree(given: Mapping[str, Any], expect: Mapping[str, Any]) -> Checks:
    size, members, source = given["M"], sorted(given["members"]), given["source"]
    both_ways = given.get("bidirectional", False)
    policies = given.get("policy", ["rank"])
    for name in [policies] if isinstance(policies, str) else policies:
        policy = RangePolicy(name)
        edges = broadcast_tree(members, source, size, both_ways=both_ways, policy=policy)
        as_dicts = [edge._asdict() for edge in edges]
        if "edges" in expect:
            yield _equal(f"{name}: edges", *_sets(as_dicts, expect["edges"]))
        if "first_hop" in expect:
            first = [edge for edge in as_dicts if edge["hop"] == 1]
            yield _equal(f"{name}: first hop", *_sets(first, expect["first_hop"]))
        if "hops" in expect:
            hops = Counter(str(edge.hop) for edge in edges)
            yield _equal(f"{name}: receivers per hop", dict(hops), expect["hops"])
        hop_of = {str(edge.to): edge.hop for edge in edges}
        for member, hop in expect.get("hop_of", {}).items():
            yield _equal(f"{name}: hop of {member}", hop_of.get(member), hop)
        if "messages" in expect:
            yield _equal(f"{name}: messages", len(edges), expect["messages"])
        if "max_maps_in_one_ack" in expect:
            ring = [each for each in members if each != source]
            largest = max(
                1 + count_between([e for e in ring if e != edge.to], edge.to, edge.hi, edge.dir)
                for edge in edges
                if edge.hop == 1
            )
            yield _equal(f"{name}: largest report", largest, expect["max_maps_in_one_ack"])


def _sets(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> tuple[Any, Any]:
    keys = sorted({key for each in expected for key in each})
    return (
        sorted(tuple(each.get(key) for key in keys) for each in found),
        sorted(tuple(each.get(key) for key in keys) for each in expected),
    )


def _reports(given: Mapping[str, Any]) -> tuple[dict[str, list[int]], list[int]]:
    """Return what each first-hop receiver reports to the joiner, and who reports nothing."""
    size, joiner = given["M"], given["joiner"]
    members = sorted({*given["members"], joiner})
    ring = [each for each in members if each != joiner]
    both_ways = given.get("bidirectional", False)
    reports = {}
    for to, hi, direction in own_targets(ring, joiner, size, both_ways=both_ways):
        known = [each for each in ring if each != to]
        steps = range(count_between(known, to, hi, direction))
        ordered = sorted(known, key=lambda each: (each - to) * direction % size)
        reports[str(to)] = [to, *(ordered[step] for step in steps)]
    return reports, [each for each in ring if str(each) not in reports]


def _joinack(given: Mapping[str, Any], expect: Mapping[str, Any]) -> Checks:
    reports, silent = _reports(given)
    if "maps" in expect:
        found = {key: sorted(value) for key, value in reports.items()}
        wanted = {key: sorted(value) for key, value in expect["maps"].items()}
        yield _equal("reports", found, wanted)
    if "no_maps" in expect:
        yield _equal("who reports nothing", sorted(silent), sorted(expect["no_maps"]))


def _size(given: Mapping[str, Any], expect: Mapping[str, Any]) -> Checks:
    endpoints = {int(key): value for key, value in given["endpoints"].items()}

    def size_of(identity: int) -> int:
        full = bytes(given["LP"] + given["LE"] * endpoints[identity])
        return MapRecord(1, full).size_bytes

    reports, _ = _reports(given)
    if "join" in expect:
        yield _equal("JOIN", size_of(given["joiner"]), expect["join"])
    for to, expected in expect.get("join_ack", {}).items():
        yield _equal(f"JOIN_ACK of {to}", sum(map(size_of, reports.get(to, []))), expected)


def _merge(given: Mapping[str, Any], expect: Mapping[str, Any]) -> Checks:
    roster = Roster(DiscoverySettings(fail_ns=round(given["t_fail"] * NS_PER_S)), "me")
    roster.adopt(0, 1, 1 << 16)
    for step, expected in zip(given["steps"], expect["states"], strict=True):
        at, identity, inc, ver, hb, age, addr, status = step
        age_ms = -(-round(age * NS_PER_S) // NS_PER_MS)
        row = Row(identity, inc, ver, hb, age_ms, addr, Status[status], True)
        roster.merge(row, Instant(round(at * NS_PER_S)))
        entry = roster.entries.get(identity)
        if entry is None:
            found: list[Any] = [None, None, None]
        else:
            found = [entry.inc, entry.status.name, entry.fresh / NS_PER_S]
        compared = [
            (one, other) for one, other in zip(found, expected, strict=True) if other is not None
        ]
        good = all(
            abs(one - other) < 0.002 if isinstance(other, float) and one is not None
            else one == other
            for one, other in compared
        )  # fmt: skip
        yield None if good else f"after {step} the entry is {found}, expected {expected}"
    for key, status in expect.items():
        if key.startswith("finally_id"):
            entry = roster.entries.get(int(key.removeprefix("finally_id")))
            yield _equal(key, None if entry is None else entry.status.name, status)


def _bootstrap(given: Mapping[str, Any], expect: Mapping[str, Any]) -> Checks:
    settings = BootstrapSettings(
        id_space=given["M"], lease_ns=round(given.get("lease", 9.0) * NS_PER_S)
    )
    server = BootstrapServer(settings, Instant(0), epoch=1)
    granted: dict[str, IdReply] = {}
    grants: list[int] = []
    for (at, what, who), expected in zip(given["ops"], expect["replies"], strict=True):
        now = Instant(round(at * NS_PER_S))
        if what == "release":
            held = granted.pop(who)
            server.receive(who, Release(held.id, who, held.inc), now)
            yield _equal(f"reply to {who}'s release", None, expected)
            continue
        if what not in ("req", "request"):
            yield f"unknown operation {what!r}; expected 'req' or 'release'"
            continue
        (post,) = server.receive(who, RequestId(who, who), now)
        assert isinstance(post, Post)
        reply = post.message
        if isinstance(reply, Full):
            yield _equal(f"reply to {who}", "FULL", expected)
            continue
        assert isinstance(reply, IdReply)
        if granted.get(who, reply).inc != reply.inc or who not in granted:
            grants.append(reply.inc)
        granted[who] = reply
        found = "ID any" if expected == "ID any" else f"ID {reply.id}"
        yield _equal(f"reply to {who} at {at}", found, expected)
    if expect.get("incarnations_increase"):
        yield _equal("incarnations", grants, sorted(set(grants)))


def _population(given: Mapping[str, Any], expect: Mapping[str, Any]) -> Checks:
    total = given["total"]
    for case in given["cases"]:
        level_1, level_2, percent = case["level1"], case["level2"], case["percent"]
        one, two = split_levels(total, level_1, level_2, percent)
        name = f"{level_1}/{level_2}"
        wanted = expect[name]
        yield _equal(f"{name} level 1", [one.floor, one.ceiling], wanted[0])
        yield _equal(f"{name} level 2", [two.floor, two.ceiling], wanted[1])


KINDS: Mapping[str, Callable[[Mapping[str, Any], Mapping[str, Any]], Checks]] = {
    "rows": _rows,
    "tree": _tree,
    "joinack": _joinack,
    "size": _size,
    "merge": _merge,
    "bootstrap": _bootstrap,
    "population": _population,
}


def is_discovery(raw: Mapping[str, Any]) -> bool:
    """Whether this scenario is one of discovery."""
    kind = raw.get("kind")
    if kind == "script":
        params = raw.get("params", {})
        return isinstance(params, Mapping) and "M" in params
    return kind in KINDS


def check_discovery(raw: Mapping[str, Any]) -> list[str | None]:
    """Return one entry per check: None, or why it failed.  Raises ScriptError."""
    kind = raw["kind"]
    if kind == "script":
        return check_script(raw)
    try:
        return list(KINDS[kind](raw["given"], raw["expect"]))
    except (KeyError, TypeError, ValueError, AttributeError, AssertionError) as error:
        raise ScriptError(f"malformed {kind}: {type(error).__name__} {error}") from error
