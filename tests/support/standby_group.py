"""Replicas of one partition, led by hand: the test says who hears what, and when."""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from typing import Any

from logs import batch, content

from orderwire.broker.flush import Flush
from orderwire.broker.log import Appended, LogConfig, Refused, Storage
from orderwire.broker.log.faulty import FaultyStorage
from orderwire.broker.replication.active_standby import ActiveStandby
from orderwire.broker.replication.effects import Advance, Answer, Effects, Note, Sync, Tell
from orderwire.broker.replication.settings import ReplicationSettings
from orderwire.broker.replication.view import BrokerId, PartitionView
from orderwire.broker.wire.records import read_records
from orderwire.kernel import NS_PER_S, Instant

NOON = Instant(1_700_000_000_000_000_000)


class Group:
    def __init__(
        self,
        count: int = 3,
        make: Callable[..., ActiveStandby] = ActiveStandby,
        log: LogConfig | None = None,
        **settings: Any,
    ) -> None:
        settings.setdefault("flush", Flush.NONE)
        settings.setdefault("round_timeout_ns", 2 * NS_PER_S)
        self.settings = ReplicationSettings(**settings)
        self.now = NOON
        self.ids = tuple(BrokerId(each) for each in range(count))
        self.log = log or LogConfig()
        self.make = make
        self.storage: dict[BrokerId, Storage] = {each: FaultyStorage() for each in self.ids}
        self.queues: dict[tuple[BrokerId, BrokerId], deque[Any]] = defaultdict(deque)
        self.links: set[tuple[BrokerId, BrokerId]] = set()
        self.answers: dict[int, Appended | Refused] = {}
        self.asked: list[tuple[BrokerId, Any]] = []
        """What went to ZooKeeper."""
        self.notes: list[tuple[BrokerId, Any]] = []
        self.unsynced: set[BrokerId] = set()
        self.token = 0
        self.view = PartitionView(-1, None, self.ids, 0, self.ids)
        self.replicas = {each: self.open(each) for each in self.ids}

    def open(self, who: int) -> ActiveStandby:
        return self.make(
            BrokerId(who), self.storage[BrokerId(who)], self.log, self.settings, self.now
        )

    def do(self, who: BrokerId, effects: Effects) -> None:
        for effect in effects:
            match effect:
                case Tell(to, message):
                    if (who, to) in self.links:
                        self.queues[who, to].append(message)
                case Answer(token, result):
                    assert token not in self.answers, f"a second answer to {token}"
                    self.answers[token] = result
                case Sync():
                    self.unsynced.add(who)
                case Note(event):
                    self.notes.append((who, event))
                case Advance(high_watermark):
                    assert high_watermark == self.replicas[who].high_watermark
                case _:
                    self.asked.append((who, effect))

    def link(self, *pairs: tuple[int, int]) -> None:
        """Connect; without pairs, everybody with everybody."""
        for a, b in pairs or [(a, b) for a in self.ids for b in self.ids if a < b]:
            for one, two in ((BrokerId(a), BrokerId(b)), (BrokerId(b), BrokerId(a))):
                self.links.add((one, two))
                self.do(one, self.replicas[one].connected(two, self.now))

    def cut(self, a: int, b: int) -> None:
        for one, two in ((BrokerId(a), BrokerId(b)), (BrokerId(b), BrokerId(a))):
            self.links.discard((one, two))
            self.queues[one, two].clear()
            self.do(one, self.replicas[one].disconnected(two, self.now))

    def step(self, source: int, to: int, count: int = 1) -> None:
        """Let messages arrive."""
        for _ in range(count):
            message = self.queues[BrokerId(source), BrokerId(to)].popleft()
            effects = self.replicas[BrokerId(to)].receive(BrokerId(source), message, self.now)
            self.do(BrokerId(to), effects)

    def talk(self, among: Iterable[int] | None = None, *, sync: bool = True) -> None:
        """Let everything arrive, and disks be waited for, until nothing is on its way."""
        who = self.ids if among is None else tuple(BrokerId(each) for each in among)
        moved = True
        while moved:
            moved = False
            for source in who:
                for to in who:
                    while self.queues[source, to]:
                        self.step(source, to)
                        moved = True
            for each in [each for each in who if sync and each in self.unsynced]:
                self.sync(each)
                moved = True

    def sync(self, who: int) -> None:
        broker = BrokerId(who)
        self.unsynced.discard(broker)
        work = self.replicas[broker].begin_sync(self.now)
        if work is not None:
            work.run()
            self.do(broker, self.replicas[broker].end_sync(work, self.now))

    def elect(self, who: int, to: Iterable[int] | None = None) -> None:
        """Somebody wins; those named (everybody) hear of it."""
        for each in self.ids:
            if self.view.original is not None or self.view.epoch < 0:
                gone = PartitionView(
                    self.view.epoch, None, self.view.isr, self.view.version, self.ids
                )
                if to is None or each in to:
                    self.see(each, gone)
        self.view = PartitionView(
            self.view.epoch + 1, BrokerId(who), self.view.isr, self.view.version, self.ids
        )
        for each in self.ids if to is None else to:
            self.see(each, self.view)

    def shrink(self, *isr: int, seen_by: Iterable[int] | None = None) -> None:
        view = self.view
        members = tuple(BrokerId(each) for each in isr)
        self.view = PartitionView(view.epoch, view.original, members, view.version + 1, self.ids)
        for each in self.ids if seen_by is None else seen_by:
            self.see(each, self.view)

    def see(self, who: int, view: PartitionView) -> None:
        self.do(BrokerId(who), self.replicas[BrokerId(who)].viewed(view, self.now))

    def send(
        self,
        who: int,
        *values: bytes,
        acks: int = -1,
        producer: tuple[int, int, int] | None = None,
    ) -> int:
        self.token += 1
        records = memoryview(batch(*values, producer=producer))
        broker = BrokerId(who)
        self.do(broker, self.replicas[broker].produce(self.token, 1, records, acks, self.now))
        return self.token

    def pass_time(self, ns: int) -> None:
        """Wake everybody who asked for it on the way."""
        end = Instant(self.now + ns)
        for _ in range(1_000):
            dues = [
                (due, each)
                for each, replica in self.replicas.items()
                if (due := replica.next_deadline()) is not None and due <= end
            ]
            if not dues:
                self.now = end
                return
            due, each = min(dues)
            self.now = max(self.now, due)
            self.do(each, self.replicas[each].wake(self.now))
        raise AssertionError("woken and woken")

    def restart(self, who: int) -> None:
        broker = BrokerId(who)
        for other in self.ids:
            if (broker, other) in self.links:
                self.cut(broker, other)
        self.unsynced.discard(broker)
        self.replicas[broker] = self.open(broker)

    def values(self, who: int) -> list[bytes | None]:
        log = self.replicas[BrokerId(who)].log
        found: list[bytes | None] = []
        offset = log.start_offset
        while offset < log.end_offset:
            records = [
                each
                for each in read_records(content(log.read(offset, 1 << 20)))
                if each.offset >= offset
            ]
            found += [each.value for each in records]
            offset = records[-1].offset + 1
        return found

    def high(self, who: int) -> int:
        return self.replicas[BrokerId(who)].high_watermark


def running(count: int = 3, **settings: Any) -> Group:
    """A group with broker 0 as original of epoch 0, and everybody in step."""
    group = Group(count, **settings)
    group.link()
    group.elect(0)
    group.talk()
    return group
