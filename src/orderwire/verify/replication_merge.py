"""One history of a partition from what clients, files and several brokers told, each for itself.

No order holds over all of them but what causes what: messages are requested before they are
committed, and committed before anybody is told.  So the events go by phases, as what is committed
is known at the end only; in a phase each writer's stay in their order.

Where S went back, two histories follow each other behind that offset, and nobody tells which writer
was in which.  What lies behind is left out, and missing.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import msgspec

from orderwire.verify.replication import (
    Acknowledged,
    Batch,
    Committed,
    Delivered,
    Elected,
    Event,
    Held,
    LogStart,
    Lost,
    Missing,
    OnDisk,
    Republished,
    Requested,
    RoundEnd,
    Settled,
    TookLower,
)

_PHASES: Mapping[type, int] = {
    kind: phase
    for phase, kinds in enumerate(
        (
            (Missing,),
            (Requested,),
            (Elected, RoundEnd, TookLower, Republished),
            (Committed,),
            (Acknowledged,),
            (Delivered,),
            (LogStart,),  # nothing is promised below any more: what was told before stays judged
            (Held, OnDisk, Settled),
        )
    )
    for kind in kinds
}
_TOGETHER = -1
"""The life of what a broker has committed in all of its lives."""


class Noted(msgspec.Struct, frozen=True):
    """What a writer noted, and when by its clock."""

    time_ns: int
    event: Event


class _Run(msgspec.Struct):
    """Batches without a hole between them, at one broker."""

    broker: int
    life: int
    start: int
    end: int
    batches: list[Batch]


def merged(
    own: Sequence[Event], written: Mapping[str, Sequence[Noted]], holes: Sequence[Missing] = ()
) -> list[Event]:
    """Put `own`, the history of those who have no writer's name, and what writers noted together.

    Where something is missing, a `Missing` says so: batches that nobody told of, elections, what
    clients did, what lies behind a loss.
    """
    told = [(each.time_ns, each.event) for noted in written.values() for each in noted]
    losses = [event for _, event in told if isinstance(event, Lost)]
    told = [(at, event) for at, event in told if not isinstance(event, Lost)]
    losses = [event for event in losses if event.unclean or event.end > event.start]
    if losses:
        start = min(event.start for event in losses)
        told = [(at, kept) for at, event in told if (kept := _before(event, start)) is not None]
        own = [kept for event in own if (kept := _before(event, start)) is not None]
        holes = [*holes, Missing(f"what lies behind offset {start}, from where on S went back", 0)]
    events: list[Event] = [*holes, *own]
    commits = [event for _, event in told if isinstance(event, Committed)]
    runs = _runs(commits)
    for _, event in sorted(told, key=lambda each: each[0]):
        if not isinstance(event, Committed):
            events.append(event)
    for commit in commits:
        high = commit.high_watermark
        events.append(Committed(commit.broker, commit.life, high, high, ()))
    events += (
        Committed(run.broker, run.life, run.start, run.end, tuple(run.batches)) for run in runs
    )
    events += _lacking(events, runs)
    return sorted(events, key=lambda event: _PHASES[type(event)])


def _before(event: Event, start: int) -> Event | None:
    """What an event tells of before this offset; None: nothing."""
    match event:
        case Lost():
            return None
        case Acknowledged():
            return event if event.base_offset < start else None
        case Delivered():
            return event if event.next_position <= start else None
        case RoundEnd():
            return event if event.start <= start else None
        case LogStart():
            return event if event.offset <= start else None
        case Republished():
            return event if event.new_offset < start else None
        case Committed():
            kept = tuple(batch for batch in event.batches if batch.last < start)
            begin, end = min(event.start, start), min(event.high_watermark, start)
            return msgspec.structs.replace(event, start=begin, high_watermark=end, batches=kept)
        case Held():
            kept = tuple(batch for batch in event.batches if batch.last < start)
            high = event.high_watermark
            high = None if high is None else min(high, start)
            return msgspec.structs.replace(event, high_watermark=high, batches=kept)
    return event


def _runs(commits: Sequence[Committed]) -> list[_Run]:
    """What each broker has committed, whatever its lives, by where it begins.

    Batches that are not what was told before of the same offsets are runs of their own.
    """
    of: dict[int, dict[Batch, None]] = {}
    for commit in commits:
        of.setdefault(commit.broker, {}).update(dict.fromkeys(commit.batches))
    runs: list[_Run] = []
    for broker, batches in of.items():
        current: _Run | None = None
        odd = _TOGETHER
        for batch in sorted(batches, key=lambda batch: (batch.first, batch.last)):
            if current is not None and batch.first < current.end:
                odd -= 1
                runs.append(_Run(broker, odd, batch.first, batch.last + 1, [batch]))
                continue
            if current is None or batch.first > current.end:
                current = _Run(broker, _TOGETHER, batch.first, batch.first, [])
                runs.append(current)
            current.batches.append(batch)
            current.end = batch.last + 1
    return sorted(runs, key=lambda run: run.start)


def _lacking(events: Sequence[Event], runs: Sequence[_Run]) -> Iterator[Missing]:
    """What there must have been, and nobody tells of."""
    if not any(isinstance(event, Requested) for event in events):
        yield Missing("what clients did", 0)
    start = max((event.offset for event in events if isinstance(event, LogStart)), default=0)
    end = 0
    for run in runs:
        if run.start > end and run.start > start:
            yield Missing(f"what was committed between {max(end, start)} and {run.start}", 0)
        end = max(end, run.end)
    high = max(
        (event.high_watermark for event in events if isinstance(event, Committed)), default=0
    )
    if high > max(end, start):
        yield Missing(f"what was committed between {max(end, start)} and {high}", 0)
    epochs = sorted({event.epoch for event in events if isinstance(event, Elected)})
    for before, epoch in pairwise(epochs):
        if epoch != before + 1:
            yield Missing(f"who was elected between the epochs {before} and {epoch}", 0)
