"""What ZooKeeper says of one partition."""

from typing import NewType

import msgspec

BrokerId = NewType("BrokerId", int)
"""A broker's number in the cluster, from 0."""


class Loss(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An original found that nobody in sync has what was committed: S went back.  [S004:4.8]"""

    epoch: int
    """Of that original."""
    start: int
    """S + 1 since."""
    end: int
    """S + 1 before, as far as anybody knew; not above `start` where that tells of no loss."""
    unclean: bool = False
    """Whether somebody wanted it: who was in sync is gone, and another went on with what it had."""


LOSSES_MAX = 32
"""So many are remembered; of older ones the least start."""


def with_loss(losses: tuple[Loss, ...], new: Loss) -> tuple[Loss, ...]:
    """Add one; of the same epoch both become one."""
    found = list(losses)
    if found and found[-1].epoch == new.epoch:
        last = found.pop()
        unclean = last.unclean or new.unclean
        new = Loss(new.epoch, min(last.start, new.start), max(last.end, new.end), unclean)
    found.append(new)
    if len(found) > LOSSES_MAX:
        first, second = found[:2]
        ends = max(first.end, second.end)
        unclean = first.unclean or second.unclean
        found[:2] = [Loss(second.epoch, min(first.start, second.start), ends, unclean)]
    return tuple(found)


class PartitionView(msgspec.Struct, frozen=True, gc=False):
    """Epoch, original and in-sync set as they were at one moment.  [S004:4.6]"""

    epoch: int
    """+1 at each election; −1 before the first."""
    original: BrokerId | None
    """Whose ephemeral znode is there; None while nobody is elected."""
    isr: tuple[BrokerId, ...]
    """The in-sync set, ascending; never empty."""
    version: int
    """Of the in-sync set: what a compare-and-set compares."""
    replicas: tuple[BrokerId, ...]
    """Every replica that the partition should have, ascending."""
    preferred: BrokerId | None = None
    """Who should be original where it can; None: whoever is elected."""
    sync_start: int = 0
    """S + 1 as last written; it may be older than true."""
    losses: tuple[Loss, ...] = ()
    """When S has gone back, oldest first."""
    unclean: bool = False
    """Whether the in-sync set was put in the place of one that is gone: who is in it becomes
    original with what it has, and tells that the rest is lost; then no more.  [S004:4.8]"""
