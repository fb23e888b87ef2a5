"""Time is an argument, in integer nanoseconds."""

from typing import NewType

Instant = NewType("Instant", int)
"""A clock reading in nanoseconds; the origin is the group's, the same for all its members."""

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000


def us(value: int) -> int:
    """Nanoseconds in this many microseconds."""
    return value * NS_PER_US


def ms(value: int) -> int:
    """Nanoseconds in this many milliseconds."""
    return value * NS_PER_MS


def exact_ns(value: float, unit_ns: int, name: str) -> int:
    """Convert a user's number to nanoseconds; refuse one that is not a whole number of them."""
    scaled = value * unit_ns
    rounded = round(scaled)
    if abs(scaled - rounded) > 1e-6:
        raise ValueError(f"{name}={value!r} is no whole number of nanoseconds")
    return rounded
