"""Worked scenarios of discovery: rings, merging, leases, populations, and scripts.

The formats are those of `tests/vectors/discovery/README.md`.  What a file has beside them is
refused, except remarks: nothing that is expected goes unread.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from orderwire.discovery.bootstrap import BootstrapServer
from orderwire.discovery.effects import Post
from orderwire.discovery.messages import Full, IdReply, Release, RequestId, Row, Status
from orderwire.discovery.roster import Entry, Roster
from orderwire.discovery.settings import (
    ID_SPACE_MAX,
    SMALL_ID_SPACE,
    BootstrapSettings,
    DiscoverySettings,
)
from orderwire.kernel import NS_PER_MS, NS_PER_S, Instant
from orderwire.sim.discovery_population_vectors import population
from orderwire.sim.discovery_ring_vectors import RING_KINDS, Checks, check_ids, equal, whole
from orderwire.sim.discovery_script import SCRIPT_S_MAX
from orderwire.sim.discovery_script_run import check_script
from orderwire.sim.vector_format import VectorError, check_keys, read, without_remarks

FRESH_TOLERANCE_S = 0.002
"""Ages travel in whole milliseconds."""
FINALLY = "finally_id"
HEAD_KEYS = frozenset(("id", "kind", "expect"))


class _MergeGiven(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Headers fed to an empty table at participant 0."""

    t_fail: float
    id_space: int = msgspec.field(name="M", default=ID_SPACE_MAX)
    steps: list[tuple[float, int, int, int, int, float, str, str]]
    """(at, id, inc, ver, hb, age, addr, state) of each."""

    def check(self) -> None:
        """Refuse what is no header.  Raises VectorError."""
        if not 1 <= self.id_space <= ID_SPACE_MAX:
            raise VectorError(f"M is {self.id_space}, expected 1 to 2**64")
        check_ids([step[1] for step in self.steps], self.id_space)
        for step in self.steps:
            at, _, inc, ver, hb, age, _, state = step
            if not (0 <= at <= SCRIPT_S_MAX and age >= 0 and min(inc, ver, hb) >= 0):
                raise VectorError(f"step {step} has a number out of range")
            _check_state(state)


class _MergeExpected(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    states: list[tuple[int | None, str | None, float | None]] | None = None
    """(inc, state, fresh) of the id after each step; None is not compared."""


def _merge(given: Any, expect: Any) -> Checks:
    told = read(given, _MergeGiven, "given")
    told.check()
    if not isinstance(expect, Mapping):
        raise VectorError("malformed expect: expected an object")
    finally_ = {key: value for key, value in expect.items() if key.startswith(FINALLY)}
    rest = {key: value for key, value in expect.items() if key not in finally_}
    states = read(rest, _MergeExpected, "expect").states
    if states is not None and len(states) != len(told.steps):
        raise VectorError(f"{len(told.steps)} steps, and {len(states)} states are expected")
    for name in [each[1] for each in states or ()] + list(finally_.values()):
        _check_state(name)
    roster = Roster(_settings(told.t_fail), "participant 0")
    # A large id space forgets old records, which no state of the format says. [FDP/1 R13]
    roster.adopt(0, 1, min(told.id_space, SMALL_ID_SPACE))
    for number, step in enumerate(told.steps):
        at, identity, inc, ver, hb, age, addr, state = step
        age_ms = -(-round(age * NS_PER_S) // NS_PER_MS)
        row = Row(identity, inc, ver, hb, age_ms, addr, Status[state], True)
        roster.merge(row, Instant(round(at * NS_PER_S)))
        if states is not None:
            found, wanted = roster.entries.get(identity), states[number]
            good = _is_as_expected(found, *wanted)
            why = f"after {list(step)} the entry is {_shown(found)}, expected {list(wanted)}"
            yield None if good else why
    for key, name in finally_.items():
        last = whole(key.removeprefix(FINALLY))
        if last is None:
            raise VectorError(f"unknown key {key!r} in expect")
        check_ids([last], told.id_space)
        entry = roster.entries.get(last)
        yield equal(key, None if entry is None else entry.status.name, name)


def _check_state(name: Any) -> None:
    known = [each.name for each in Status]
    if name is not None and name not in known:
        raise VectorError(f"state {name!r}; expected one of {', '.join(known)}")


def _settings(fail_s: float) -> DiscoverySettings:
    try:
        return DiscoverySettings(fail_ns=round(fail_s * NS_PER_S))
    except (ValueError, OverflowError) as error:
        raise VectorError(f"t_fail is {fail_s}: {error}") from error


def _shown(entry: Entry | None) -> list[Any]:
    if entry is None:
        return [None, None, None]
    return [entry.inc, entry.status.name, entry.fresh / NS_PER_S]


def _is_as_expected(
    entry: Entry | None, inc: int | None, state: str | None, fresh: float | None
) -> bool:
    if entry is None:
        return (inc, state, fresh) == (None, None, None)
    return (
        inc in (None, entry.inc)
        and state in (None, entry.status.name)
        and (fresh is None or abs(entry.fresh / NS_PER_S - fresh) <= FRESH_TOLERANCE_S)
    )


# -- the bootstrap server ----------------------------------------------------------------------


class _BootstrapGiven(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is asked of the server: (at, what, who)."""

    id_space: int = msgspec.field(name="M")
    lease: float = 9.0
    ops: list[tuple[float, str, str]]


class _BootstrapExpected(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    replies: list[str | None]
    """`ID 3`, `ID any`, `FULL`, or None for none."""
    incarnations_increase: bool = False


def _bootstrap(given: Any, expect: Any) -> Checks:
    told = read(given, _BootstrapGiven, "given")
    expected = read(expect, _BootstrapExpected, "expect")
    try:
        settings = BootstrapSettings(id_space=told.id_space, lease_ns=round(told.lease * NS_PER_S))
    except (ValueError, OverflowError) as error:
        raise VectorError(f"malformed given: {error}") from error
    if len(told.ops) != len(expected.replies):
        raise VectorError(f"{len(told.ops)} ops, and {len(expected.replies)} replies are expected")
    for reply in expected.replies:
        _check_reply(reply, told.id_space)
    last = 0.0
    for at, what, who in told.ops:
        if what not in ("req", "request", "release"):
            raise VectorError(f"unknown operation {what!r} of {who}; expected req or release")
        if not last <= at <= SCRIPT_S_MAX:
            raise VectorError(f"{what} of {who} at {at} s is not in order, or out of range")
        last = at
    server = BootstrapServer(settings, Instant(0), epoch=1)
    granted: dict[str, IdReply] = {}
    grants: list[int] = []
    for (at, what, who), wanted in zip(told.ops, expected.replies, strict=True):
        now = Instant(round(at * NS_PER_S))
        if what == "release":
            held = granted.get(who)
            # A stranger names what it cannot hold.
            release = Release(0, who, 0) if held is None else Release(held.id, who, held.inc)
            answers = server.receive(who, release, now)
        else:
            answers = server.receive(who, RequestId(who, who), now)
        reply = None
        for answer in answers:
            assert isinstance(answer, Post)
            if isinstance(answer.message, Full):
                reply = "FULL"
            elif isinstance(answer.message, IdReply):
                reply = "ID any" if wanted == "ID any" else f"ID {answer.message.id}"
                if who not in granted or granted[who].inc != answer.message.inc:
                    grants.append(answer.message.inc)
                granted[who] = answer.message
        yield equal(f"reply to {what} of {who} at {at}", reply, wanted)
    if expected.incarnations_increase:
        yield equal("incarnations", grants, sorted(set(grants)))


def _check_reply(reply: str | None, id_space: int) -> None:
    if reply in (None, "FULL", "ID any"):
        return
    assert reply is not None
    word, _, number = reply.partition(" ")
    identity = whole(number)
    if word != "ID" or identity is None:
        raise VectorError(f"reply {reply!r}; expected 'ID 0', 'ID any', 'FULL' or null")
    check_ids([identity], id_space)


# -- all kinds ---------------------------------------------------------------------------------

KINDS: Mapping[str, Callable[[Any, Any], Checks]] = {
    **RING_KINDS,
    "merge": _merge,
    "bootstrap": _bootstrap,
    "population": population,
}


def is_discovery(raw: Mapping[str, Any]) -> bool:
    """Whether this scenario is one of discovery."""
    kind = raw.get("kind")
    if kind == "script":
        return "params" in raw or "events" in raw
    return isinstance(kind, str) and kind in KINDS


def check_discovery(raw: Mapping[str, Any]) -> list[str | None]:
    """Return one entry per check: None, or why it failed.  Raises VectorError."""
    kind = raw["kind"]
    parts = ("params", "events") if kind == "script" else ("given",)
    check_keys(raw, HEAD_KEYS | set(parts))
    for part in (*parts, "expect"):
        if part not in raw:
            raise VectorError(f"malformed {kind}: no {part}")
    told = without_remarks({part: raw[part] for part in (*parts, "expect")})
    if kind == "script":
        return check_script(told)
    return list(KINDS[kind](told["given"], told["expect"]))
