"""Replicas with lanes: for the simulated world, and side by side for tests of single rules."""

from collections import deque
from collections.abc import Callable
from typing import Any

from tests.support.counting_storage import CountingStorage

from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.log import Appended, LogConfig, PartitionLog, Refused, Storage
from orderwire.broker.replication import effects as asked
from orderwire.broker.replication.active_active_lanes import ActiveActiveLanes
from orderwire.broker.replication.settings import ReplicationSettings
from orderwire.broker.replication.view import BrokerId
from orderwire.broker.wire.batch import NO_PRODUCER, walk
from orderwire.broker.wire.records import Record, build_batch, records_of_batch
from orderwire.kernel import NS_PER_MS, Instant
from orderwire.sim.replication_zookeeper import PartitionZnodes

NOON = Instant(1_700_000_000_000_000_000)


def lane_replica(
    me: BrokerId, storage: Storage, settings: ReplicationSettings, now: Instant
) -> ActiveActiveLanes:
    log = PartitionLog.open(storage, LogConfig(), now // NS_PER_MS)
    return ActiveActiveLanes(me, storage, log, settings, now)


def batch(text: str, count: int = 1, producer: int = NO_PRODUCER, sequence: int = -1) -> bytearray:
    """A batch whose records are `text`, `text`…"""
    records = [Record(value=text.encode()) for _ in range(count)]
    epoch = -1 if producer == NO_PRODUCER else 0
    return build_batch(records, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)


class Side:
    """Replicas side by side; everything happens at once unless it is held."""

    def __init__(
        self, count: int = 3, *, files: Callable[[], Any] = CountingStorage, **settings: Any
    ) -> None:
        settings.setdefault("sync_min_gap_ns", 0)
        self.settings = ReplicationSettings(**settings)
        self.now = NOON
        self.ids = tuple(BrokerId(each) for each in range(count))
        self.storage: list[Any] = [files() for _ in self.ids]
        self.znodes = PartitionZnodes(self.ids)
        self.replicas: list[Any] = [None] * count
        self.sessions = [0] * count
        self.links: dict[tuple[int, int], deque[Any]] = {}
        self.held: set[tuple[int, int]] = set()
        self.unsynced: set[int] = set()
        """Replicas whose disk does not answer."""
        self.syncs: set[int] = set()
        self.answers: dict[int, Appended | Refused] = {}
        self.notes: list[tuple[int, Any]] = []
        self.told: list[tuple[int, int, Any]] = []
        """Every message that was delivered."""
        self.token = 0
        for each in self.ids:
            self.start(each)

    # What happens.

    def start(self, who: int) -> ActiveActiveLanes:
        """A process begins, is connected to the living, and hears the view."""
        replica = lane_replica(BrokerId(who), self.storage[who], self.settings, self.now)
        self.replicas[who] = replica
        self.sessions[who] = self.znodes.begin_session(BrokerId(who))
        for other in self.ids:
            if other != who and self.replicas[other] is not None:
                self.connect(who, other)
        self._do(who, replica.viewed(self.znodes.view(), self.now))
        return replica

    def crash(self, who: int, *, session: bool = True, known: bool = False) -> None:
        """A process ends, which the others may know; what was on its way is lost."""
        self.replicas[who] = None
        self.syncs.discard(who)
        for other in self.ids:
            self.disconnect(who, other)
            if known and self.replicas[other] is not None:
                self._do(other, self.replicas[other].ended(BrokerId(who), self.now))
        if session:
            self.expire(who)

    def expire(self, who: int) -> None:
        """A session ends."""
        if self.znodes.end_session(self.sessions[who]):
            self.view()

    def connect(self, a: int, b: int) -> None:
        self.links[a, b] = deque()
        self.links[b, a] = deque()
        for one, other in ((a, b), (b, a)):
            self._do(one, self.replicas[one].connected(BrokerId(other), self.now))

    def disconnect(self, a: int, b: int) -> None:
        if (a, b) not in self.links:
            return
        del self.links[a, b], self.links[b, a]
        for one, other in ((a, b), (b, a)):
            if self.replicas[one] is not None:
                self._do(one, self.replicas[one].disconnected(BrokerId(other), self.now))

    def view(self) -> None:
        """Everybody hears what ZooKeeper says."""
        for who in self.ids:
            if self.replicas[who] is not None:
                self._do(who, self.replicas[who].viewed(self.znodes.view(), self.now))

    def produce(self, who: int, records: bytearray, acks: int = -1) -> int:
        self.token += 1
        replica = self.replicas[who]
        self._do(who, replica.produce(self.token, 0, memoryview(records), acks, self.now))
        records[:] = bytes(len(records))
        return self.token

    def settle(self, ns: int = 0) -> None:
        """Let everything happen that can, and then so much time pass."""
        end = self.now + ns
        while True:
            self._run()
            due = [
                each
                for replica in self.replicas
                if replica is not None and (each := replica.next_deadline()) is not None
            ]
            at = min(due, default=None)
            if at is None or at > end:
                break
            self.now = Instant(max(self.now, at))
            for who in self.ids:
                if self.replicas[who] is not None:
                    self._do(who, self.replicas[who].wake(self.now))
        self.now = Instant(end)

    def _run(self) -> None:
        for _ in range(100_000):
            moved = False
            for (source, to), queue in list(self.links.items()):
                if queue and (source, to) not in self.held:
                    message = queue.popleft()
                    self.told.append((source, to, message))
                    replica = self.replicas[to]
                    self._do(to, replica.receive(BrokerId(source), message, self.now))
                    moved = True
            for who in sorted(self.syncs - self.unsynced):
                self.syncs.discard(who)
                replica = self.replicas[who]
                work = replica.begin_sync(self.now)
                if work is not None:
                    work.run()
                    self._do(who, replica.end_sync(work, self.now))
                moved = True
            if not moved:
                return
        raise AssertionError("the replicas do not come to rest")

    def _do(self, who: int, effects: asked.Effects) -> None:
        for effect in effects:
            match effect:
                case asked.Tell(to, message):
                    if (who, to) in self.links:
                        self.links[who, to].append(message)
                case asked.Answer(token, result):
                    assert token not in self.answers, f"a second answer to {token}"
                    self.answers[token] = result
                case asked.Advance():
                    pass
                case asked.Sync():
                    self.syncs.add(who)
                case asked.Note(event):
                    self.notes.append((who, event))
                case _:
                    if self.znodes.apply(self.sessions[who], effect):
                        self.view()

    # What can be seen.

    def original(self) -> int:
        found = self.znodes.original
        assert found is not None
        return found

    def texts(self, who: int, end: int | None = None) -> list[str]:
        """The records of a main log below its high watermark, or to this offset."""
        replica = self.replicas[who]
        limit = replica.high_watermark if end is None else end
        found: list[str] = []
        at = replica.log.start_offset
        while at < limit:
            data = replica.log.copy(at, 1 << 20, limit)
            for position, header in walk(data):
                found += [(each.value or b"").decode() for each in records_of_batch(data, position)]
                at = header.last_offset + 1
        return found

    def offset(self, token: int) -> int:
        """Where a request's first record is, as it was answered."""
        answer = self.answers[token]
        assert isinstance(answer, Appended), answer
        return answer.base_offset

    def error(self, token: int) -> ErrorCode:
        answer = self.answers[token]
        assert isinstance(answer, Refused), answer
        return answer.error
