"""Marks on paths that some run must reach."""

from collections import Counter

hits: Counter[str] = Counter()
"""How often each probe was passed in this process; the nightly sweep fails on a silent one."""


def probe(name: str) -> None:
    """Count that this path was taken."""
    hits[name] += 1
