"""What ZooKeeper says of one partition."""

from typing import NewType

import msgspec

BrokerId = NewType("BrokerId", int)
"""A broker's number in the cluster, from 0."""


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
