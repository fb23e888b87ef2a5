"""Worked scenarios of Table 4: how endpoints are dealt out to the participants of two levels.

Cases are given as objects or as lists, their shares beside them or as the table has them, and what
is expected is told per case or per level; `tests/vectors/discovery/README.md` shows the shapes.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from orderwire.sim.discovery_ring_vectors import Checks, equal
from orderwire.sim.population import (
    TABLE_4_ENDPOINTS,
    TABLE_4_SPLITS,
    LevelSplit,
    split_levels,
)
from orderwire.sim.vector_format import VectorError, read

TABLE_4_PERCENTS = [percent for *_, percent in TABLE_4_SPLITS.values()]
"""The share of Level 1, case by case.  [S002:tab.4]"""
LEVELS = {"L1": 0, "level1": 0, "level_1": 0, "L2": 1, "level2": 1, "level_2": 1}
"""Names of the two levels."""
MEAN_TOLERANCE = 0.051
"""Means are printed with one digit."""


class _Case(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    level1: int
    level2: int
    percent: int | None = None


class _Given(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    total: int = TABLE_4_ENDPOINTS
    participants: int | None = None
    cases: list[Any] | None = None
    splits: list[Any] | None = None
    percent: int | list[int] | None = None


def population(given: Any, expect: Any) -> Checks:
    """Check the arithmetic of Table 4.  Raises VectorError."""
    told = read(given, _Given, "given")
    if not isinstance(expect, Mapping):
        raise VectorError("malformed expect: expected an object")
    cases = _cases(told)
    levels = [_levels(told, each) for each in cases]
    names = [f"{each.level1}/{each.level2}" for each in cases]
    for key, wanted in expect.items():
        if key in names:
            yield from _compared(key, levels[names.index(key)], wanted)
        elif key in ("splits", "cases"):
            for name, both, each in _paired(key, names, levels, wanted):
                yield from _split_or_counts(name, both, each)
        else:
            level = LEVELS.get(key)
            if level is None:
                raise VectorError(f"unknown key {key!r} in expect; the cases are {names}")
            for name, both, each in _paired(key, names, levels, wanted):
                yield _counts(f"{name} level {level + 1}", both[level], each)


def _cases(told: _Given) -> list[_Case]:
    """Return the cases, each with its share: its own, that beside them, or the table's."""
    if told.cases is not None and told.splits is not None:
        raise VectorError("cases and splits are the same; give one of them")
    given = told.cases if told.cases is not None else told.splits
    if given is None:
        given = [list(each[:2]) for each in TABLE_4_SPLITS.values()]
    shares = TABLE_4_PERCENTS if told.percent is None else told.percent
    cases = []
    for number, each in enumerate(given):
        if isinstance(each, list):
            if len(each) not in (2, 3):
                raise VectorError(f"case {each}, expected [L1, L2] or [L1, L2, percent]")
            each = dict(zip(("level1", "level2", "percent"), each, strict=False))
        elif isinstance(each, Mapping):
            each = {_case_key(key): value for key, value in each.items()}
        case = read(each, _Case, "case")
        if case.percent is None:
            beside = [shares] * len(given) if isinstance(shares, int) else shares
            if len(beside) != len(given):
                raise VectorError(f"{len(given)} cases, and {len(beside)} shares {beside}")
            case = msgspec.structs.replace(case, percent=beside[number])
        cases.append(case)
    return cases


def _case_key(key: str) -> str:
    level = LEVELS.get(key)
    return key if level is None else f"level{level + 1}"


def _levels(told: _Given, case: _Case) -> tuple[LevelSplit, LevelSplit]:
    participants = told.participants
    if participants is not None and case.level1 + case.level2 != participants:
        raise VectorError(f"{case.level1} and {case.level2} are not {participants} participants")
    percent = case.percent
    assert percent is not None
    if min(case.level1, case.level2) < 1 or not 0 <= percent <= 100 or told.total < 0:
        raise VectorError(f"{case} of {told.total} endpoints is out of range")
    if told.total * percent % 100:
        raise VectorError(f"{percent} % of {told.total} endpoints is no whole number")
    return split_levels(told.total, case.level1, case.level2, percent)


def _paired(
    key: str, names: list[str], levels: Sequence[tuple[LevelSplit, LevelSplit]], wanted: Any
) -> Iterator[tuple[str, tuple[LevelSplit, LevelSplit], Any]]:
    if not isinstance(wanted, list) or len(wanted) != len(names):
        raise VectorError(f"{key} must have one entry for each of the {len(names)} cases")
    yield from zip(names, levels, wanted, strict=True)


def _split_or_counts(name: str, both: tuple[LevelSplit, LevelSplit], wanted: Any) -> Checks:
    numbers = isinstance(wanted, list) and all(isinstance(each, int) for each in wanted)
    if not numbers:
        yield from _compared(name, both, wanted)
    else:
        participants = [each.participants for each in both]
        yield equal(f"{name}: split", participants, wanted[:2])


def _compared(name: str, both: tuple[LevelSplit, LevelSplit], wanted: Any) -> Checks:
    """Compare both levels of one case."""
    if isinstance(wanted, Mapping):
        odd = sorted(set(wanted) - set(LEVELS))
        if odd:
            raise VectorError(f"unknown keys in {name}: {', '.join(odd)}")
        for key, counts in wanted.items():
            level = LEVELS[key]
            yield _counts(f"{name} level {level + 1}", both[level], counts)
        return
    if not isinstance(wanted, list) or len(wanted) != 2:
        raise VectorError(f"{name} is {wanted}, expected what each of the two levels has")
    for level, (split, counts) in enumerate(zip(both, wanted, strict=True), start=1):
        yield _counts(f"{name} level {level}", split, counts)


def _counts(name: str, split: LevelSplit, wanted: Any) -> str | None:
    """Compare [floor, ceiling], or the mean where one number is given."""
    if isinstance(wanted, int | float):
        good = abs(split.mean - wanted) <= MEAN_TOLERANCE
        return None if good else f"{name}: mean is {split.mean:.2f}, expected {wanted}"
    return equal(name, [split.floor, split.ceiling], wanted)
