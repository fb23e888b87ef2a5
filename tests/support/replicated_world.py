"""One broker of a cluster: its replicas, and the cluster, do what the test says."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import msgspec
from logs import batch
from nodes import START, decode

from orderwire.broker.cluster import (
    BrokerAddress,
    Done,
    Question,
    Told,
)
from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.log import Appended, LogConfig, MemoryStorage, PartitionLog, Refused
from orderwire.broker.node import Broker
from orderwire.broker.partitions import Partition
from orderwire.broker.replicas import DoAside, ReplicaOf
from orderwire.broker.replication.effects import (
    Answer,
    Effect,
    Effects,
    Note,
    Replace,
)
from orderwire.broker.replication.settings import ReplicationSettings
from orderwire.broker.replication.view import BrokerId, PartitionView
from orderwire.broker.replies import Client, Reply
from orderwire.broker.settings import BrokerSettings
from orderwire.broker.settling import HOLD_NS, Settling
from orderwire.broker.topic_config import Refusal
from orderwire.broker.topics import Topic, TopicSettings
from orderwire.broker.wire.apis import API_BY_KEY, ApiKey
from orderwire.broker.wire.generated.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from orderwire.kernel import Instant

ALL = (BrokerId(0), BrokerId(1), BrokerId(2))
ID = bytes(range(1, 17))


class Puppet:
    """A replica that does what the test says."""

    def __init__(self, view: PartitionView) -> None:
        self.storage = MemoryStorage()
        self.log = PartitionLog.open(self.storage, LogConfig(), 0)
        self.view: PartitionView | None = view
        self.high_watermark = 0
        self.takes_produce = view.original == 0
        self.serves_fetch = True
        self.assigned_end = 0
        self.asked: list[tuple[int, int, int]] = []
        self.forgotten: list[int] = []
        self.records: list[bytearray] = []
        self.wishes = 0
        self.settings: ReplicationSettings | None = None
        self.is_blank = False
        self.starts: list[int] = []
        """Log starts that the others were to be told."""
        self.given: list[BrokerId] = []
        """To whom it was to give its office."""
        self.heard: list[tuple[Any, int]] = []
        self.at_once: Appended | Refused | None = None

    def produce(
        self, token: int, connection: int, records: Any, acks: int, now: Instant
    ) -> Effects:
        self.asked.append((token, connection, acks))
        self.records.append(bytearray(records))
        return [] if self.at_once is None else [Answer(token, self.at_once)]

    def forget(self, token: int) -> None:
        self.forgotten.append(token)

    def wanted(self, now: Instant) -> Effects:
        self.wishes += 1
        return []

    def viewed(self, view: PartitionView, now: Instant) -> Effects:
        self.view = view
        self.heard.append(("view", view.epoch))
        return []

    def hand_over(self, to: BrokerId, now: Instant) -> Effects:
        self.given.append(to)
        return []

    def start_moved(self, now: Instant) -> Effects:
        self.starts.append(self.log.start_offset)
        return []

    def configure(self, settings: ReplicationSettings, now: Instant) -> Effects:
        self.settings = settings
        return []

    def connected(self, broker: BrokerId, now: Instant) -> Effects:
        self.heard.append(("connected", broker))
        return []

    def disconnected(self, broker: BrokerId, now: Instant) -> Effects:
        self.heard.append(("disconnected", broker))
        return []

    def ended(self, broker: BrokerId, now: Instant) -> Effects:
        return []

    def receive(self, source: BrokerId, message: Any, now: Instant) -> Effects:
        self.heard.append((message, source))
        return []

    def next_deadline(self) -> Instant | None:
        return None

    def close(self) -> None:
        self.log.close()

    def fill(self, count: int) -> None:
        for _ in range(count):
            self.log.append(batch(b"x"), 3, 0)
        self.assigned_end = self.log.end_offset


class Alone:
    """A cluster of three that only knows one topic."""

    cluster_id = "unit"
    me = BrokerId(0)

    def __init__(self, view: PartitionView) -> None:
        self.of = view
        self.alive = list(ALL)
        self.ended: set[BrokerId] = set()
        self.made: list[tuple[Topic, Done]] = []
        self.changed: list[tuple[Topic, Done]] = []
        self.asks: list[tuple[BrokerId, Question, int, int, Told]] = []
        self.learning: list[tuple[list[str], Callable[[Instant], None]]] = []
        self.sure = True
        self.is_read = True
        self.views = 0
        """How often it was asked for one."""
        self.replaced: list[Replace] = []

    def is_sure(self) -> bool:
        return self.sure

    def may_have_ended(self, broker: BrokerId) -> bool:
        return broker in self.ended

    def brokers(self) -> list[BrokerAddress]:
        return [BrokerAddress(one, f"host{one}", 9092) for one in self.alive]

    def view(self, topic: Topic, index: int) -> PartitionView | None:
        self.views += 1
        return self.of if self.is_read else None

    def create(self, topic: Topic, done: Done) -> None:
        self.made.append((topic, done))

    def delete(self, topic: Topic, done: Done) -> None:
        done(Refusal(ErrorCode.REQUEST_TIMED_OUT, "not here"))

    def change(self, topic: Topic, done: Done) -> None:
        self.changed.append((topic, done))

    def learn(self, topics: Sequence[str], done: Callable[[Instant], None]) -> None:
        self.learning.append((list(topics), done))

    def producer_id(self, done: Any) -> None:
        done(7)

    def ask(
        self, to: BrokerId, question: Question, topic: Topic, index: int, value: int, done: Told
    ) -> None:
        self.asks.append((to, question, index, value, done))

    def answer(self, question: Question, value: int | Refused) -> list[BrokerId]:
        """Answer everything of this kind that was asked; returns who was."""
        now, self.asks = self.asks, []
        self.asks += [one for one in now if one[1] is not question]
        some = [one for one in now if one[1] is question]
        for one in some:
            one[-1](value)
        return [one[0] for one in some]

    def carry_out(self, topic: Topic, index: int, effect: Effect) -> None:
        if isinstance(effect, Replace):
            self.replaced.append(effect)
            return
        assert isinstance(effect, Note), effect


class World:
    """Broker 0 of three, with one partition of topic t."""

    def __init__(
        self,
        mode: str = "active-active",
        original: int = 0,
        topic: str = "t",
        partitions: int = 1,
        aside: DoAside | None = None,
        is_read: bool = True,
    ) -> None:
        view = PartitionView(3, BrokerId(original), ALL, 5, ALL)
        self.now = START
        self.cluster = Alone(view)
        self.cluster.is_read = is_read
        self.removed: list[str] = []
        self.replicas = [Puppet(view) for _ in range(partitions)]
        self.replica = self.replicas[0]
        self.late: dict[int, Reply] = {}
        self._token = 0
        self.client = Client("10.0.0.1", "here", 9092, connection=4)

        def opened(of: ReplicaOf) -> Any:
            return self.replicas[of.index]

        self.broker = Broker(
            BrokerSettings(node_id=0, topics=TopicSettings(auto_create=True)),
            MemoryStorage(),
            lambda *asked: self.replica.log,
            lambda topic: self.removed.append(topic.name),
            Random(1),
            self.now,
            cluster=self.cluster,
            open_replica=opened,
            aside=aside,
        )
        self.topic = topic
        made = Topic(topic, ID, partitions, {"orderwire.mode": mode}, (ALL,) * partitions)
        self.broker.topic_changed(made, self.now)

    @property
    def partition(self) -> Partition:
        found = self.broker.partition(self.topic, 0)
        assert found is not None
        return found

    def send(self, key: int, version: int, body: msgspec.Struct) -> tuple[int, Any]:
        """Serve a request; should it be held, ZooKeeper has nothing new, and nobody leads soon."""
        token, done = self.begin(key, version, body)
        if token in self.broker.parked and self.settling.holds_any:
            self.learn()
            self.cluster.answer(Question.START, 0)
            self.take()
            if self.settling.holds_any:
                self.wait(HOLD_NS)
            assert not self.settling.holds_any
            done = self.late.pop(token, done)
        return token, done

    @property
    def settling(self) -> Settling:
        assert self.broker.replicas is not None
        return self.broker.replicas.settling

    def learn(self) -> list[str]:
        """Answer what ZooKeeper was asked; returns the topics that were to be read anew."""
        names: list[str] = []
        while self.cluster.learning:
            asked, done = self.cluster.learning.pop(0)
            names += asked
            done(self.now)
        self.take()
        return names

    def begin(self, key: int, version: int, body: msgspec.Struct) -> tuple[int, Any]:
        api = API_BY_KEY[key]
        head = b"".join(
            [
                int(key).to_bytes(2, "big"),
                version.to_bytes(2, "big"),
                (9).to_bytes(4, "big"),
                (2).to_bytes(2, "big"),
                b"me",
            ]
        )
        if api.request_header_version(version) == 2:
            head += b"\0"
        frame = memoryview(bytearray(head + api.encode_request(body, version)))
        self._token += 1
        done = self.broker.serve(frame, self.client, self._token, self.now)
        self.take()
        return self._token, done

    def take(self) -> None:
        self.late.update(self.broker.parked.ready())

    def tell(self, *effects: Effect, index: int = 0) -> None:
        assert self.broker.replicas is not None
        partition = self.broker.partition(self.topic, index)
        assert partition is not None
        self.broker.replicas.carry_out(partition, list(effects), self.now)
        self.take()

    def wait(self, ns: int) -> None:
        self.now = Instant(self.now + ns)
        self.broker.wake(self.now)
        self.take()


def produce(acks: int = -1, places: int = 1, timeout_ms: int = 1_000) -> ProduceRequest:
    data = [PartitionProduceData(index, batch(b"x")) for index in range(places)]
    return ProduceRequest(None, acks, timeout_ms, [TopicProduceData("t", partition_data=data)])


def produced(reply: Reply) -> Any:
    return decode(ApiKey.PRODUCE, 9, reply).responses[0].partition_responses
