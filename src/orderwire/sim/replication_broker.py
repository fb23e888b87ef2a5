"""One broker of a simulated partition, and what its messages are at the other side.  [S004:5]"""

from collections import deque
from random import Random
from typing import Any

import msgspec

from orderwire.broker.log.faulty import FaultyStorage
from orderwire.broker.log.storage import StorageError
from orderwire.broker.replication.replica import Replica, SyncWork
from orderwire.broker.replication.view import BrokerId, PartitionView
from orderwire.kernel import Instant
from orderwire.sim.replication_zookeeper import Session


class Broker:
    """One broker's process, as far as one partition needs it."""

    def __init__(self, number: BrokerId) -> None:
        self.number = number
        self.storage = FaultyStorage()
        self.replica: Replica | None = None
        self.life = 0
        self.clock = Instant(0)
        self.session: Session | None = None
        """What the broker takes for its session; None while it has none."""
        self.operations: deque[Any] = deque()
        """On their way to ZooKeeper."""
        self.views: deque[PartitionView] = deque()
        """Read, and not handed over yet."""
        self.sync_wanted = False
        self.work: SyncWork | None = None
        self.work_error: StorageError | None = None
        self.doom: Random | None = None
        """With what chance the power goes at the write where the disk stops; None: the process
        ends there."""
        self.power_failed = False
        self.lacks = False
        """Whether its disk may have lost what is committed: nobody waits for it, and the power has
        failed, or it is another disk.  Until its replica is sure that it has everything again."""
        self.held_back = False
        """Whether it is not started for now."""
        self.flipped = False
        """Whether bits of its log were flipped, and it has not all that is committed again."""
        self.given_up = False
        """Whether damage was found, and its replica is not opened again yet; its process lives."""
        self.lost: str | None = None
        """What was wrong with the log then."""
        self.high_watermark = 0
        """As the world was told."""

    @property
    def up(self) -> bool:
        """Whether the process runs."""
        return self.replica is not None


def plain(value: Any) -> Any:
    """A message as the other side reads it: of its own, with bytes where buffers were lent."""
    if isinstance(value, memoryview | bytearray):
        return bytes(value)
    if isinstance(value, msgspec.Struct):
        fields = value.__struct_fields__
        return type(value)(**{name: plain(getattr(value, name)) for name in fields})
    if isinstance(value, tuple):
        return tuple(plain(each) for each in value)
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {plain(key): plain(each) for key, each in value.items()}
    return value
