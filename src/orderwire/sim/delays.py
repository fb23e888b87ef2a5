"""How long a copy travels: delay distributions as data, and their samplers.

All parameters are whole nanoseconds; a sampler returns whole nanoseconds, at least 0.
"""

from collections.abc import Callable
from math import log
from random import Random
from typing import TypeAlias, assert_never

import msgspec

Sampler: TypeAlias = Callable[[], int]
"""Draws the next delay, in nanoseconds."""


class Constant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag=True):
    """Always the same delay: copies of one link never overtake each other."""

    delay_ns: int


class Uniform(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag=True):
    """Every delay from `low_ns` to `high_ns`, both included, is equally likely."""

    low_ns: int
    high_ns: int


class Exponential(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag=True):
    """`offset_ns` plus an exponential delay of this mean: many copies overtake others."""

    offset_ns: int
    mean_ns: int


class Bimodal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag=True):
    """Uniform around a short way, or with probability `far_ratio` around a long one."""

    near_ns: int
    far_ns: int
    far_ratio: float
    spread_ns: int = 0
    """Added to either: uniform from 0 to this."""


class Pareto(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag=True):
    """`offset_ns` plus a heavy tail: scale · (u^(−1/alpha) − 1), capped at `cap_ns`."""

    offset_ns: int
    scale_ns: int
    alpha: float
    cap_ns: int


class Edge(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag=True):
    """Uniform; with probability `edge_ratio` at `edge_ns` exactly, or one nanosecond off."""

    low_ns: int
    high_ns: int
    edge_ns: int
    """Usually the lifetime: what arrives at a deadline, just before it or just after it."""
    edge_ratio: float


Delay: TypeAlias = Constant | Uniform | Exponential | Bimodal | Pareto | Edge


def sampler(delay: Delay, chance: Random) -> Sampler:
    """Return the function that draws from this distribution.  Raises ValueError on bad limits."""
    check(delay)
    draw = chance.random
    match delay:
        case Constant(delay_ns=delay_ns):
            return lambda: delay_ns
        case Uniform(low_ns=low_ns, high_ns=high_ns):
            width = high_ns - low_ns + 1
            return lambda: low_ns + int(draw() * width)
        case Exponential(offset_ns=offset_ns, mean_ns=mean_ns):
            return lambda: offset_ns - int(mean_ns * log(1.0 - draw()))
        case Bimodal(near_ns=near_ns, far_ns=far_ns, far_ratio=far_ratio, spread_ns=spread_ns):
            wide = spread_ns + 1
            return lambda: (far_ns if draw() < far_ratio else near_ns) + int(draw() * wide)
        case Pareto(offset_ns=offset_ns, scale_ns=scale_ns, alpha=alpha, cap_ns=cap_ns):
            power = -1.0 / alpha
            return lambda: min(cap_ns, offset_ns + int(scale_ns * ((1.0 - draw()) ** power - 1.0)))
        case Edge(low_ns=low_ns, high_ns=high_ns, edge_ns=edge_ns, edge_ratio=edge_ratio):
            range_ns = high_ns - low_ns + 1

            def edge() -> int:
                if draw() < edge_ratio:
                    return edge_ns + int(draw() * 3) - 1
                return low_ns + int(draw() * range_ns)

            return edge
        case _:
            assert_never(delay)


def longest_ns(delay: Delay) -> int | None:
    """Return the longest delay that can be drawn, or None when there is none."""
    match delay:
        case Constant(delay_ns=delay_ns):
            return delay_ns
        case Uniform(high_ns=high_ns):
            return high_ns
        case Exponential():
            return None
        case Bimodal(near_ns=near_ns, far_ns=far_ns, spread_ns=spread_ns):
            return max(near_ns, far_ns) + spread_ns
        case Pareto(cap_ns=cap_ns):
            return cap_ns
        case Edge(high_ns=high_ns, edge_ns=edge_ns):
            return max(high_ns, edge_ns + 1)
        case _:
            assert_never(delay)


def check(delay: Delay) -> None:
    """Refuse limits that make no sense.  Raises ValueError."""
    match delay:
        case Constant(delay_ns=delay_ns):
            good = delay_ns >= 0
        case Uniform(low_ns=low_ns, high_ns=high_ns):
            good = 0 <= low_ns <= high_ns
        case Exponential(offset_ns=offset_ns, mean_ns=mean_ns):
            good = offset_ns >= 0 and mean_ns >= 0
        case Bimodal(near_ns=near_ns, far_ns=far_ns, far_ratio=far_ratio, spread_ns=spread_ns):
            good = min(near_ns, far_ns, spread_ns) >= 0 and 0 <= far_ratio <= 1
        case Pareto(offset_ns=offset_ns, scale_ns=scale_ns, alpha=alpha, cap_ns=cap_ns):
            good = offset_ns >= 0 and scale_ns >= 0 and alpha > 0 and cap_ns >= offset_ns
        case Edge(low_ns=low_ns, high_ns=high_ns, edge_ns=edge_ns, edge_ratio=edge_ratio):
            good = 0 <= low_ns <= high_ns and edge_ns >= 1 and 0 <= edge_ratio <= 1
        case _:
            assert_never(delay)
    if not good:
        raise ValueError(f"delay limits are not ordered, or negative: {delay}")
