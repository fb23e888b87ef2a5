"""A member of a cluster that only writes down what it is told."""

import asyncio
import sys
import time
from collections.abc import Callable

from orderwire.aio.cluster_zookeeper import ClusterTimes, ClusterZookeeper
from orderwire.aio.zookeeper_client import ClientSettings, SessionKey
from orderwire.broker.coordination.layout import BrokerData
from orderwire.broker.replication.effects import Elect
from orderwire.broker.replication.view import BrokerId, PartitionView
from orderwire.broker.topics import Topic
from orderwire.kernel import NS_PER_MS


class Told:
    """Everything told, in order; `views` has the newest of each partition."""

    def __init__(self) -> None:
        self.views: dict[tuple[bytes, int], PartitionView] = {}
        self.all_views: list[tuple[bytes, int, PartitionView]] = []
        self.topics: dict[bytes, Topic] = {}
        self.gone: list[bytes] = []
        self.brokers = 0
        self.lost = 0
        self.doubts: list[bool] = []
        self.locks: list[tuple[bytes, int]] = []
        self.sync_ends: list[tuple[int, int, int]] = []

    def viewed(self, topic_id: bytes, index: int, view: PartitionView) -> None:
        self.views[topic_id, index] = view
        self.all_views.append((topic_id, index, view))

    def locked(self, topic_id: bytes, index: int) -> None:
        self.locks.append((topic_id, index))

    def sync_end_seen(self, topic_id: bytes, index: int, end: int, epoch: int, round: int) -> None:
        self.sync_ends.append((end, epoch, round))

    def topic_changed(self, topic: Topic) -> None:
        self.topics[topic.topic_id] = topic

    def topic_gone(self, topic_id: bytes) -> None:
        self.topics.pop(topic_id)
        self.gone.append(topic_id)

    def brokers_changed(self) -> None:
        self.brokers += 1

    def session_in_doubt(self, in_doubt: bool) -> None:
        self.doubts.append(in_doubt)

    def session_lost(self) -> None:
        self.lost += 1


def joined(
    address: str,
    number: int,
    *,
    session_ms: int = 6_000,
    incarnation: str = "first",
    times: ClusterTimes | None = None,
    by_zookeeper: bool = False,
    predecessor: SessionKey | None = None,
    keep: Callable[[SessionKey], None] | None = None,
    told: Told | None = None,
) -> tuple[ClusterZookeeper, Told]:
    """Return a broker's driver, to be opened, and what it tells."""
    told = told or Told()
    data = BrokerData("127.0.0.1", 9_000 + number, f"127.0.0.1:{9_100 + number}", incarnation)
    client = ClientSettings(session_ns=session_ms * NS_PER_MS, reply_ns=4_000 * NS_PER_MS)
    cluster = ClusterZookeeper(
        address,
        BrokerId(number),
        data,
        told,
        client=client,
        times=times,
        by_zookeeper=lambda topic: by_zookeeper,
        predecessor=predecessor,
        keep=keep,
    )
    return cluster, told


def topic_of(name: str, partitions: int, brokers: tuple[int, ...], mark: int = 1) -> Topic:
    """A topic whose every partition is at these brokers."""
    return Topic(
        name, bytes([mark]) * 16, partitions, {}, tuple(brokers for _ in range(partitions))
    )


async def until(holds: Callable[[], object], what: str = "", seconds: float = 40.0) -> float:
    """Wait until it holds; return how many ms that took."""
    start = time.monotonic()
    while not holds():
        assert time.monotonic() - start < seconds, what
        await asyncio.sleep(0.001)
    return (time.monotonic() - start) * 1_000


async def _live_until_killed(address: str) -> None:
    """Be broker 1, original of the first partition told, and say by what key the session goes."""
    keys: list[SessionKey] = []
    cluster, told = joined(address, 1, session_ms=20_000, keep=keys.append)
    await cluster.open()
    await until(lambda: told.views)
    (topic,) = told.topics.values()
    cluster.carry_out(topic, 0, Elect(-1))
    await until(lambda: told.views[topic.topic_id, 0].original == 1)
    print(keys[0][0], keys[0][1].hex(), flush=True)
    await asyncio.sleep(60)


if __name__ == "__main__":
    asyncio.run(_live_until_killed(sys.argv[1]))
