"""Runs of offsets: who has which, and what nobody has."""

from collections.abc import Iterable

Span = tuple[int, int]
"""First offset, and the offset behind the last."""


def union(spans: Iterable[Span]) -> list[Span]:
    """Sorted, without overlaps, joined where they touch."""
    joined: list[Span] = []
    for start, end in sorted(spans):
        if start >= end:
            continue
        if joined and start <= joined[-1][1]:
            if end > joined[-1][1]:
                joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


def missing(start: int, end: int, have: Iterable[Span]) -> list[Span]:
    """What of these offsets is in none of the spans, which are sorted and do not overlap."""
    gaps: list[Span] = []
    at = start
    for first, behind in have:
        if behind <= at:
            continue
        if first >= end:
            break
        if first > at:
            gaps.append((at, first))
        at = behind
    if at < end:
        gaps.append((at, end))
    return gaps


def common(one: Iterable[Span], other: Iterable[Span]) -> list[Span]:
    """What is in both; each is sorted and does not overlap itself."""
    found: list[Span] = []
    left, right = list(one), list(other)
    i = j = 0
    while i < len(left) and j < len(right):
        start = max(left[i][0], right[j][0])
        end = min(left[i][1], right[j][1])
        if start < end:
            found.append((start, end))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return found


def without(spans: Iterable[Span], taken: Iterable[Span]) -> list[Span]:
    """What is in the first and not in the other; each is sorted and does not overlap itself."""
    left: list[Span] = []
    others = list(taken)
    at = 0
    for first, end in spans:
        while at < len(others) and others[at][1] <= first:
            at += 1
        behind = at
        while behind < len(others) and others[behind][0] < end:
            if others[behind][0] > first:
                left.append((first, others[behind][0]))
            first = others[behind][1]
            behind += 1
        if first < end:
            left.append((first, end))
    return left
