"""Chance is an argument, from a named stream of one seed."""

from random import Random


def stream(seed: int | str, name: str) -> Random:
    """Return the random stream of this concern: the same seed and name give the same draws.

    One stream per concern, so that two algorithms meet the same workload and the same delays.
    """
    return Random(f"{seed}/{name}")
