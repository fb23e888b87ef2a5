"""What replication costs: messages sent and received, messages stored.  [S004:eq.1] [S004:eq.2]

r is what a broker's processor takes to send or to receive one message, s what its disk takes to
store one by itself.  Of several that are stored together each further one takes σ s; of several in
one message to another broker each further one takes ρ r.
"""

import re
from struct import Struct

import msgspec

from orderwire.broker.log import LogConfig, PartitionLog
from orderwire.broker.log.faulty import FaultyFile, FaultyStorage
from orderwire.broker.log.storage import LogFile
from orderwire.broker.replication.active_active import ActiveActiveReplica
from orderwire.broker.replication.active_active_lanes import ActiveActiveLanes
from orderwire.broker.replication.active_standby import ActiveStandby
from orderwire.broker.replication.replica import Replica
from orderwire.broker.replication.settings import Mode, ReplicationSettings
from orderwire.broker.replication.view import BrokerId
from orderwire.broker.wire.parts import Buffer
from orderwire.kernel import NS_PER_MS, NS_PER_US, Instant
from orderwire.kernel.errors import LocalProtocolError

_LENGTH = Struct(">i")
_MAIN_LOG = re.compile(r"\d{20}\.log")
_JOURNAL = re.compile(r"pending-\d+|lane-\d+")
_LOG = LogConfig()
LEAST_BATCH_BYTES = 61


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """What everything takes, in nanoseconds."""

    send_ns: int = 8 * NS_PER_US
    """r: to send one message, or to receive it."""
    store_ns: int = 2 * NS_PER_MS
    """s: to store one message by itself."""
    sigma: float = 0.25
    """σ: each further message stored with it, as a share of s."""
    rho: float = 0.2
    """ρ: each further message in the same message to a broker or client, as a share of r."""
    link_ns: int = 100 * NS_PER_US
    """One way between two machines."""
    client_ns: int = 200 * NS_PER_US
    """Mean time that a client takes between an answer and its next request."""
    zookeeper_ns: int = 1 * NS_PER_MS
    """Until a request to ZooKeeper is carried out; half as long until a watch is heard of."""

    def __post_init__(self) -> None:
        for name in ("send_ns", "store_ns", "sigma", "rho", "link_ns", "client_ns", "zookeeper_ns"):
            if getattr(self, name) < 0:
                raise LocalProtocolError(f"{name}={getattr(self, name)}; expected at least 0")

    def of_message(self, count: int) -> int:
        """To send, or to receive, so many messages as one."""
        return round(self.send_ns * (1 + self.rho * max(count - 1, 0)))

    def of_storing(self, count: int) -> int:
        """To make so many messages durable at once; nothing where there is nothing."""
        return round(self.store_ns * (1 + self.sigma * (count - 1))) if count else 0


def batches_in(data: Buffer) -> int:
    """How many whole batches stand side by side here."""
    at, count = 0, 0
    while at + LEAST_BATCH_BYTES <= len(data):
        at += 12 + _LENGTH.unpack_from(data, at + 8)[0]
        count += 1
    return count


class Meter:
    """What one broker's disk was asked to do."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._due_ns = 0
        self.alone_ns = 0
        """For messages stored one by one."""
        self.together_ns = 0
        """For messages stored several at a time."""
        self.stored = 0
        """Messages made durable, in logs, journals and lanes."""

    def take(self) -> int:
        """What has been asked for since the last time, in nanoseconds."""
        due, self._due_ns = self._due_ns, 0
        return due

    def sync(self, count: int) -> None:
        """So many messages are made durable."""
        if not count:
            return
        cost = self._costs.of_storing(count)
        self._due_ns += cost
        self.stored += count
        if count == 1:
            self.alone_ns += cost
        else:
            self.together_ns += cost


class _MeteredFile:
    """A file that counts what is appended and not synced yet.

    The power does not fail in a timed world: a sync only costs.
    """

    def __init__(self, file: LogFile, meter: Meter, *, main: bool, journal: bool) -> None:
        self._file = file
        self._meter = meter
        self._main = main
        self._journal = journal
        self._unsynced = 0

    @property
    def size(self) -> int:
        """In bytes."""
        return self._file.size

    def append(self, data: Buffer) -> None:
        """Write at the end."""
        self._file.append(data)
        if self._main:
            self._unsynced += batches_in(data)
        elif self._journal and len(data) >= LEAST_BATCH_BYTES:
            self._unsynced += 1

    def read(self, position: int, length: int) -> bytes:
        """Fetch bytes."""
        return self._file.read(position, length)

    def read_into(self, position: int, buffer: memoryview) -> int:
        """Fill a buffer."""
        return self._file.read_into(position, buffer)

    def part(self, position: int, length: int) -> bytes:
        """Fetch bytes for sending."""
        return self._file.read(position, length)

    def truncate(self, size: int) -> None:
        """Cut the file off."""
        self._file.truncate(size)

    def sync(self) -> None:
        """Count what becomes durable."""
        self._meter.sync(self._unsynced)
        self._unsynced = 0


class MeteredStorage(FaultyStorage):
    """A directory whose files tell a meter what they cost."""

    def __init__(self, storage: FaultyStorage, meter: Meter) -> None:
        super().__init__(storage.disk)
        self._meter = meter

    def create(self, name: str) -> LogFile:
        """Make an empty file."""
        return self._metered(name, super().create(name))

    def open(self, name: str) -> LogFile:
        """Open an existing file."""
        return self._metered(name, super().open(name))

    def _metered(self, name: str, file: LogFile) -> LogFile:
        assert isinstance(file, FaultyFile)
        main = _MAIN_LOG.fullmatch(name) is not None
        journal = _JOURNAL.fullmatch(name) is not None
        return _MeteredFile(file, self._meter, main=main, journal=journal)


def make_replica(
    mode: Mode, me: BrokerId, storage: FaultyStorage, settings: ReplicationSettings, now: Instant
) -> Replica:
    """Open a replica of a mode.  Raises StorageError."""
    match mode:
        case Mode.ACTIVE_STANDBY:
            return ActiveStandby(me, storage, _LOG, settings, now)
        case Mode.ACTIVE_ACTIVE:
            return ActiveActiveReplica(me, storage, _LOG, settings, now)
        case Mode.ACTIVE_ACTIVE_LANES:
            log = PartitionLog.open(storage, _LOG, now // NS_PER_MS)
            return ActiveActiveLanes(me, storage, log, settings, now)
