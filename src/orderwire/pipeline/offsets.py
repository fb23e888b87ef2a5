"""Offsets of topics as plain values: resolve, merge, admit, split, detect loss.

Pure functions: no Spark, no network.  An end offset is exclusive everywhere.  In a checkpoint
offsets are `{"topic": {"0": 12, "1": 9}}`.  [specs/pipeline.md:3.2]
"""

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from orderwire.kernel.parsing import UNREADABLE
from orderwire.pipeline.errors import OptionError

EARLIEST = -2
LATEST = -1
"""Offsets that stand for a bound in the JSON of `startingOffsets` and `endingOffsets`."""


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


class Watermarks(NamedTuple):
    """First offset that is still there, and the offset the next record will get."""

    low: int
    high: int


class OffsetRange(NamedTuple):
    """Offsets `start` … `end`-1 of one partition."""

    topic: str
    partition: int
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition} [{self.start}, {self.end})"


class Loss(NamedTuple):
    """Records `start` … `end`-1 were asked for and are gone."""

    topic: str
    partition: int
    start: int
    end: int

    def __str__(self) -> str:
        return (
            f"{self.topic}/{self.partition}: offsets {self.start} to {self.end - 1} are gone "
            f"({self.end - self.start} records)"
        )


Offsets: TypeAlias = Mapping[TopicPartition, int]
Bounds: TypeAlias = Mapping[TopicPartition, Watermarks]
Wanted: TypeAlias = Literal["earliest", "latest"] | Offsets
"""What an option asks for: a bound for all partitions, or an offset for each."""

_Nested: TypeAlias = dict[str, dict[str, int]]


def encode(offsets: Offsets) -> _Nested:
    """Offsets as the checkpoint holds them, topics and partitions ascending."""
    nested: _Nested = {}
    for topic, partition in sorted(offsets):
        nested.setdefault(topic, {})[str(partition)] = offsets[TopicPartition(topic, partition)]
    return nested


def decode(nested: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    """Offsets from the form of the checkpoint."""
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in nested.items()
        for partition, offset in partitions.items()
    }


def parse_wanted(option: str, text: str) -> Wanted:
    """Read the value of `startingOffsets` or `endingOffsets`.  Raises OptionError."""
    word = text.strip().lower()
    if word == "earliest":
        return "earliest"
    if word == "latest":
        return "latest"
    try:
        wanted = decode(msgspec.json.decode(text, type=_Nested))
    except (*UNREADABLE, ValueError) as error:
        raise OptionError(
            f"option {option}={text!r} is neither earliest, latest nor JSON of the form "
            f'{{"topic": {{"0": 12}}}}: {error}'
        ) from None
    for partition, offset in wanted.items():
        if offset < EARLIEST or partition.partition < 0:
            raise OptionError(
                f"option {option}: {partition} has offset {offset}; expected 0 or more, "
                f"{LATEST} for latest or {EARLIEST} for earliest"
            )
    return wanted


def resolve(option: str, wanted: Wanted, bounds: Bounds) -> dict[TopicPartition, int]:
    """Turn what an option asks for into one offset for each known partition.

    JSON must name exactly the partitions that exist.  Raises OptionError.
    """
    if wanted == "earliest":
        return {partition: marks.low for partition, marks in bounds.items()}
    if wanted == "latest":
        return {partition: marks.high for partition, marks in bounds.items()}
    assert isinstance(wanted, Mapping)
    missing = sorted(set(bounds) - set(wanted))
    unknown = sorted(set(wanted) - set(bounds))
    if missing or unknown:
        raise OptionError(
            f"option {option} must name every partition of the subscribed topics and no other; "
            f"missing: {_names(missing)}; unknown: {_names(unknown)}"
        )
    bound = {EARLIEST: "low", LATEST: "high"}
    return {
        partition: getattr(marks, bound[offset]) if (offset := wanted[partition]) < 0 else offset
        for partition, marks in bounds.items()
    }


def merge(start: Offsets, latest: Offsets) -> dict[TopicPartition, int]:
    """The end that `latest` allows, never below `start` and never without a known partition.

    One metadata answer with fewer partitions, or with none, leaves the others where they are.
    [SPARK-41375]
    """
    end = {
        partition: max(offset, latest.get(partition, offset)) for partition, offset in start.items()
    }
    for partition, offset in latest.items():
        end.setdefault(partition, offset)
    return end


def cap(offsets: Offsets, target: Offsets) -> dict[TopicPartition, int]:
    """Offsets no further than the target of availableNow; partitions without one are left out."""
    return {p: min(offset, target[p]) for p, offset in offsets.items() if p in target}


def went_back(start: Offsets, bounds: Bounds) -> dict[TopicPartition, int]:
    """Partitions whose high watermark lies below `start`, with that watermark.  [SPARK-26267]"""
    return {
        partition: bounds[partition].high
        for partition, offset in start.items()
        if partition in bounds and bounds[partition].high < offset
    }


def admit(start: Offsets, end: Offsets, rows_max: int) -> dict[TopicPartition, int]:
    """Shrink `end` to at most `rows_max` records, shared in proportion to backlog.

    Every lagging partition gets at least one record, also when there are more of them than
    `rows_max`.  A partition that is not in `start` counts from 0.
    """
    assert rows_max > 0, f"rows_max={rows_max}"
    backlog = {p: offset - start.get(p, 0) for p, offset in end.items()}
    lagging = sorted(p for p, rows in backlog.items() if rows > 0)
    if sum(backlog[p] for p in lagging) <= rows_max:
        return dict(end)
    share = dict.fromkeys(lagging, 1)
    left = rows_max - len(lagging)
    rest = sum(backlog[p] - 1 for p in lagging)
    if left > 0:
        for p in lagging:
            share[p] += left * (backlog[p] - 1) // rest
        spare = rows_max - sum(share.values())
        for p in sorted(lagging, key=lambda p: (-(left * (backlog[p] - 1) % rest), p))[:spare]:
            share[p] += 1
    return {p: start.get(p, 0) + share[p] if p in share else offset for p, offset in end.items()}


def ranges(start: Offsets, end: Offsets) -> list[OffsetRange]:
    """The non-empty ranges between two offsets, ascending.  Both must know the same partitions."""
    assert set(end) == set(start), f"start knows {_names(start)}, end knows {_names(end)}"
    return [OffsetRange(*p, start[p], end[p]) for p in sorted(end) if end[p] > start[p]]


def split(wanted: Iterable[OffsetRange], partitions_min: int | None) -> list[OffsetRange]:
    """Cut ranges so that there are about `partitions_min` of about equal size.

    A range is never cut finer than one record; None leaves one range a partition.
    """
    whole = list(wanted)
    total = sum(r.end - r.start for r in whole)
    if partitions_min is None or len(whole) >= partitions_min or not total:
        return whole
    pieces = []
    for topic, partition, start, end in whole:
        size = end - start
        count = max(1, min(size, round(size * partitions_min / total)))
        cuts = [start + size * i // count for i in range(count + 1)]
        pieces += [OffsetRange(topic, partition, a, b) for a, b in pairwise(cuts)]
    return pieces


def losses(wanted: Iterable[OffsetRange], bounds: Bounds) -> list[Loss]:
    """What of these ranges lies below the low watermark, or above the high one."""
    found = []
    for topic, partition, start, end in wanted:
        marks = bounds.get(TopicPartition(topic, partition))
        if marks is None:
            continue
        if start < marks.low:
            found.append(Loss(topic, partition, start, min(end, marks.low)))
        if end > marks.high:
            found.append(Loss(topic, partition, max(start, marks.high), end))
    return found


def clip(wanted: Iterable[OffsetRange], bounds: Bounds) -> list[OffsetRange]:
    """The part of these ranges that is there."""
    kept = []
    for topic, partition, start, end in wanted:
        marks = bounds.get(TopicPartition(topic, partition), Watermarks(start, end))
        start, end = max(start, marks.low), min(end, marks.high)
        if end > start:
            kept.append(OffsetRange(topic, partition, start, end))
    return kept


def _names(partitions: Iterable[TopicPartition]) -> str:
    names = [str(p) for p in partitions]
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return (", ".join(names[:10]) or "none") + more
