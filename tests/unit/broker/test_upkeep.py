"""What brokers of a cluster do by themselves: copies that are missing."""

from types import SimpleNamespace
from typing import Any

import msgspec

from orderwire.broker.cluster import BrokerAddress, Done, placed
from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.replication.view import BrokerId, PartitionView
from orderwire.broker.settings import BrokerSettings
from orderwire.broker.topic_config import Refusal
from orderwire.broker.topics import Topic
from orderwire.broker.upkeep import PERIOD_NS, SETTLE_NS, Upkeep, filled_up
from orderwire.kernel import NS_PER_S, Instant

NOW = Instant(1_700_000_000_000_000_000)


def ids(*numbers: int) -> list[BrokerId]:
    return [BrokerId(number) for number in numbers]


def topic(*replicas: tuple[int, ...], replication: int = 3, name: str = "t") -> Topic:
    return Topic(name, name.encode() * 16, len(replicas), {}, replicas, replication)


def test_each_partition_prefers_another_original() -> None:
    assert placed(ids(0, 1, 2), 4, 2) == ((0, 1), (1, 2), (2, 0), (0, 1))
    assert placed(ids(0, 1, 2), 1, 3, first=2) == ((2, 0, 1),)


def test_missing_copies_go_to_who_has_fewest() -> None:
    one = topic((0,), (1,), replication=2)
    filled = filled_up(one, ids(0, 1, 2), [one])
    assert filled is not None
    assert filled.replicas == ((0, 2), (1, 0)), "who was there stays the preferred one"
    assert filled_up(filled, ids(0, 1, 2), [filled]) is None
    assert filled_up(one, ids(0), [one]) is not None, "partition 1 is not at broker 0"
    alone = topic((0,))
    assert filled_up(alone, ids(0), [alone]) is None
    some = filled_up(alone, ids(0, 1), [alone])
    assert some is not None
    assert some.replicas == ((0, 1),), "as many as there are"
    explicit = topic((0,), replication=0)
    assert filled_up(explicit, ids(0, 1, 2), [explicit]) is None, "its creator wanted one"
    dead = topic((0, 5, 6))
    assert filled_up(dead, ids(0, 1, 2), [dead]) is None, "who is away comes back"


class Held:
    def __init__(self, view: PartitionView) -> None:
        self.replica: Any = SimpleNamespace(view=view)


class Handing:
    def __init__(self) -> None:
        self.asked: list[Any] = []

    def hand_over(self, partition: Any, now: Instant) -> None:
        self.asked.append(partition)


def test_a_preferred_original_that_stays_in_sync_gets_its_partition_back() -> None:
    here, there = BrokerId(0), BrokerId(2)
    view = PartitionView(3, here, (here, there), 1, (here, there), there)
    partition = Held(view)
    questions = Handing()
    reached = [True]
    broker: Any = SimpleNamespace(
        topics=[],
        all_partitions=lambda: iter([partition]),
        settings=BrokerSettings(preferred_after_ns=20 * NS_PER_S),
    )
    replicas: Any = SimpleNamespace(
        cluster=Cluster(), me=here, questions=questions, reaches=lambda one: reached[0]
    )
    upkeep = Upkeep(broker, replicas)
    upkeep.look_soon(NOW)

    def after(seconds: int) -> int:
        now = Instant(NOW + seconds * NS_PER_S)
        while (due := upkeep.next_deadline()) is not None and due <= now:
            upkeep.wake(due)
        return len(questions.asked)

    assert after(19) == 0, "it has only just been in sync"
    assert after(22) == 1
    assert after(39) == 1, "it was tried"
    assert after(43) == 2, "it is tried again"
    reached[0] = False
    assert after(80) == 2
    reached[0] = True
    assert after(98) == 2, "who comes and goes gets nothing"
    partition.replica.view = msgspec.structs.replace(view, isr=(here,))
    assert after(140) == 2
    partition.replica.view = msgspec.structs.replace(view, preferred=here)
    assert after(180) == 2
    partition.replica.view = msgspec.structs.replace(view, original=there)
    assert after(220) == 2
    partition.replica.view = view
    broker.settings = BrokerSettings(preferred_after_ns=0)
    assert after(400) == 2, "never by itself"


class Cluster:
    me = BrokerId(0)

    def __init__(self) -> None:
        self.alive = ids(0)
        self.sure = True
        self.changed: list[tuple[Topic, Done]] = []

    def brokers(self) -> list[BrokerAddress]:
        return [BrokerAddress(one, "h", 1) for one in self.alive]

    def is_sure(self) -> bool:
        return self.sure

    def change(self, changed: Topic, done: Done) -> None:
        self.changed.append((changed, done))


class Topics(list[Topic]):
    def config(self, topic: Topic, name: str) -> str:
        return "false"


def kept(cluster: Cluster, *topics: Topic) -> tuple[Upkeep, list[Topic]]:
    known = Topics(topics)
    broker: Any = SimpleNamespace(
        topics=known, all_partitions=lambda: iter(()), settings=BrokerSettings()
    )
    replicas: Any = SimpleNamespace(cluster=cluster, me=cluster.me)
    return Upkeep(broker, replicas), known


def test_the_first_broker_that_lives_fills_up_one_topic_after_the_other() -> None:
    cluster = Cluster()
    upkeep, topics = kept(cluster, topic((0,), name="a"), topic((0,), name="b"))
    upkeep.look_soon(NOW)
    assert upkeep.next_deadline() == NOW + SETTLE_NS
    now = Instant(NOW + SETTLE_NS)
    upkeep.wake(now)
    assert not cluster.changed, "nobody else lives"
    cluster.alive = ids(0, 1, 2)
    upkeep.look_soon(now)
    upkeep.wake(now)
    assert not cluster.changed, "they have just come"
    now = Instant(now + SETTLE_NS)
    upkeep.wake(now)
    (changed, done) = cluster.changed.pop()
    assert changed == topic((0, 1, 2), name="a")
    upkeep.look_soon(now)
    now = Instant(now + SETTLE_NS)
    upkeep.wake(now)
    assert not cluster.changed, "one at a time"
    topics[0] = changed
    done(None)
    now = Instant(now + SETTLE_NS)
    upkeep.wake(now)
    (changed, done) = cluster.changed.pop()
    assert changed.name == "b"
    done(Refusal(ErrorCode.REQUEST_TIMED_OUT, "another was earlier"))
    upkeep.wake(Instant(now + PERIOD_NS))
    assert cluster.changed, "tried again"


def test_others_leave_it_to_the_first() -> None:
    cluster = Cluster()
    cluster.alive = ids(0, 1, 2)
    cluster.me = BrokerId(1)
    upkeep, _ = kept(cluster, topic((1,)))
    upkeep.look_soon(NOW)
    upkeep.wake(Instant(NOW + SETTLE_NS))
    cluster.me, cluster.sure = BrokerId(0), False
    upkeep, _ = kept(cluster, topic((1,)))
    upkeep.look_soon(NOW)
    upkeep.wake(Instant(NOW + SETTLE_NS))
    assert not cluster.changed
