"""Rows of many seeds become one tidy table of means with confidence intervals."""

from collections.abc import Sequence
from math import isnan, nan, sqrt
from typing import Any

import msgspec
import numpy as np
from scipy import stats

CONFIDENCE = 0.95


class Mean(msgspec.Struct, frozen=True):
    """A mean over seeds, and half the width of its confidence interval (nan for one seed)."""

    mean: float
    half: float
    seeds: int


def mean_of(values: Sequence[float]) -> Mean:
    """Return the mean with its interval by Student's t."""
    count = len(values)
    if not count:
        return Mean(nan, nan, 0)
    middle = float(np.mean(values))
    if count < 2:
        return Mean(middle, nan, count)
    spread = float(np.std(values, ddof=1)) / sqrt(count)
    return Mean(middle, float(stats.t.ppf((1 + CONFIDENCE) / 2, count - 1)) * spread, count)


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """What one run of one series at one point of the grid gave."""

    series: str
    algorithm: str
    point: dict[str, Any]
    seed: int
    measures: dict[str, float]


def tidy(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """Return one row a series and point: its parameters, and `NAME`, `NAME_ci` of each measure.

    `NAME_ci` is half the width of the interval of 95 %; None for a single seed.  What not every run
    has, as the cost of a recovery where none was needed, is of those that have it.
    """
    groups: dict[tuple[str, str], list[Sample]] = {}
    for sample in samples:
        key = (sample.series, msgspec.json.encode(sample.point).decode())
        groups.setdefault(key, []).append(sample)
    rows = []
    for same in groups.values():
        first = same[0]
        row: dict[str, Any] = {"series": first.series, "algorithm": first.algorithm}
        row |= first.point | {"seeds": len(same)}
        for name in dict.fromkeys(name for each in same for name in each.measures):
            found = mean_of([each.measures[name] for each in same if name in each.measures])
            row[name] = found.mean
            row[f"{name}_ci"] = None if isnan(found.half) else found.half
        rows.append(row)
    return rows
