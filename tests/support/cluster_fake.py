"""Brokers of one cluster in this process, without ZooKeeper: what it would hold is a dictionary."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
from replication_crude import Copy, CrudeReplica, Have

from orderwire.aio.broker_server import BrokerServer
from orderwire.aio.cluster_frames import Codec, FrameKind
from orderwire.aio.cluster_host import ClusterHost
from orderwire.aio.cluster_links import Peer
from orderwire.aio.cluster_replicas import MESSAGES, open_replica
from orderwire.aio.discovery_tls import Credentials
from orderwire.broker.cluster import BrokerAddress, ClusterMember, Done
from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.log import Storage
from orderwire.broker.replicas import ReplicaOf
from orderwire.broker.replication.effects import (
    ChangeIsr,
    Effect,
    Effects,
    Elect,
    Note,
    Recovered,
    Resign,
    SetSync,
)
from orderwire.broker.replication.replica import Replica
from orderwire.broker.replication.view import BrokerId, PartitionView
from orderwire.broker.settings import BrokerSettings
from orderwire.broker.topic_config import Refusal
from orderwire.broker.topics import Topic, TopicSettings
from orderwire.kernel import Instant

CODEC = Codec({FrameKind.ACTIVE_STANDBY: Copy | Have})


class ReadyReplica(CrudeReplica):
    """Says when it takes requests, as a real one does."""

    def viewed(self, view: PartitionView, now: Instant) -> Effects:
        effects = super().viewed(view, now)
        if any(isinstance(each, Note) for each in effects):
            effects.append(Note(Recovered(view.epoch, self.log.end_offset)))
        return effects


class FakeZookeeper:
    """What all brokers see, at once."""

    def __init__(self) -> None:
        self.topics: dict[bytes, Topic] = {}
        self.views: dict[tuple[bytes, int], PartitionView] = {}
        self.drivers: dict[BrokerId, FakeDriver] = {}
        self.next_producer_id = count().__next__

    def view_changed(self, topic_id: bytes, index: int, view: PartitionView) -> None:
        self.views[topic_id, index] = view
        for driver in self.drivers.values():
            driver.soon(lambda member: member.viewed(topic_id, index, view))

    def brokers_changed(self) -> None:
        for driver in self.drivers.values():
            driver.soon(lambda member: member.brokers_changed())


class FakeDriver:
    cluster_id = "fake"

    def __init__(self, shared: FakeZookeeper, me: BrokerId, incarnation: str) -> None:
        self.shared = shared
        self.me = me
        self.incarnation = incarnation
        self.member: ClusterMember | None = None
        self.client = ("", 0)
        self.internal = ("", 0)

    def soon(self, call: Callable[[ClusterMember], None]) -> None:
        def later() -> None:
            if self.member is not None:
                call(self.member)

        asyncio.get_running_loop().call_soon(later)

    async def start(
        self, member: ClusterMember, client: tuple[str, int], internal: tuple[str, int]
    ) -> None:
        self.member, self.client, self.internal = member, client, internal
        self.shared.drivers[self.me] = self
        self.shared.brokers_changed()
        for topic in self.shared.topics.values():
            member.topic_changed(topic)
        await asyncio.sleep(0)

    async def close(self) -> None:
        self.member = None
        self.shared.drivers.pop(self.me, None)
        for (topic_id, index), view in list(self.shared.views.items()):
            if view.original == self.me:
                self.shared.view_changed(
                    topic_id, index, msgspec.structs.replace(view, original=None)
                )
        self.shared.brokers_changed()

    def is_sure(self) -> bool:
        return True

    def brokers(self) -> Sequence[BrokerAddress]:
        drivers = self.shared.drivers
        return [BrokerAddress(one, *drivers[one].client) for one in sorted(drivers)]

    def peers(self) -> Mapping[BrokerId, Peer]:
        return {
            one: Peer(*driver.internal, driver.incarnation)
            for one, driver in self.shared.drivers.items()
            if one != self.me
        }

    def knows_every_topic(self) -> bool:
        return True

    def process_ended(self, broker: BrokerId, incarnation: str) -> None:
        pass

    def view(self, topic: Topic, index: int) -> PartitionView | None:
        return self.shared.views.get((topic.topic_id, index))

    def create(self, topic: Topic, done: Done) -> None:
        if any(one.name == topic.name for one in self.shared.topics.values()):
            done(Refusal(ErrorCode.TOPIC_ALREADY_EXISTS, "it is there"))
            return
        self._put(topic, done)

    def change(self, topic: Topic, done: Done) -> None:
        self._put(topic, done)

    def learn(self, topics: Sequence[str], done: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(done)

    def _put(self, topic: Topic, done: Done) -> None:
        self.shared.topics[topic.topic_id] = topic
        for driver in self.shared.drivers.values():
            driver.soon(lambda member: member.topic_changed(topic))
        for index, members in enumerate(topic.replicas):
            isr = tuple(BrokerId(member) for member in sorted(members))
            known = self.shared.views.get((topic.topic_id, index))
            if known is not None and known.replicas != isr:
                known = msgspec.structs.replace(known, replicas=isr)
                self.shared.view_changed(topic.topic_id, index, known)
            elif known is None:
                self.shared.view_changed(
                    topic.topic_id, index, PartitionView(-1, None, isr, 0, isr)
                )
        self.soon(lambda member: done(None))

    def delete(self, topic: Topic, done: Done) -> None:
        self.shared.topics.pop(topic.topic_id)
        for driver in self.shared.drivers.values():
            driver.soon(lambda member: member.topic_gone(topic.topic_id))
        self.soon(lambda member: done(None))

    def producer_id(self, done: Callable[[int | Refusal], None]) -> None:
        self.soon(lambda member: done(self.shared.next_producer_id()))

    def carry_out(self, topic: Topic, index: int, effect: Effect) -> None:
        if isinstance(effect, SetSync):  # of no view
            return
        where = (topic.topic_id, index)
        view = self.shared.views[where]
        if isinstance(effect, Elect) and view.original is None and view.epoch == effect.epoch:
            view = msgspec.structs.replace(view, original=self.me, epoch=view.epoch + 1)
        elif isinstance(effect, Resign) and view.original == self.me:
            view = msgspec.structs.replace(view, original=None)
        elif isinstance(effect, ChangeIsr) and view.version == effect.version:
            view = msgspec.structs.replace(view, isr=effect.isr, version=view.version + 1)
        self.shared.view_changed(*where, view)


class FakeJoining:
    def __init__(
        self, shared: FakeZookeeper, me: int, tls: Credentials | None = None, codec: Codec = CODEC
    ) -> None:
        self.shared = shared
        self.me = BrokerId(me)
        self.tls = tls
        self.codec = codec
        self.host: ClusterHost | None = None

    async def join(self, data: Path) -> ClusterHost:
        incarnation = f"{self.me}-{id(self)}"
        driver = FakeDriver(self.shared, self.me, incarnation)
        self.host = ClusterHost(self.me, driver, incarnation, self.codec, tls=self.tls)
        await self.host.links.listen("127.0.0.1", 0)
        return self.host

    def open_replica(self, of: ReplicaOf, storage: Storage, now: Instant) -> Replica:
        return ReadyReplica(self.me, storage, of.settings, now)


class RealJoining(FakeJoining):
    """With the replicas that real brokers have."""

    def __init__(self, shared: FakeZookeeper, me: int, tls: Credentials | None = None) -> None:
        super().__init__(shared, me, tls, Codec(MESSAGES))

    def open_replica(self, of: ReplicaOf, storage: Storage, now: Instant) -> Replica:
        return open_replica(of, storage, self.me, now)


@contextlib.asynccontextmanager
async def crude_cluster(
    folder: Path,
    count: int = 3,
    tls: Credentials | None = None,
    *,
    joining: type[FakeJoining] = FakeJoining,
    configs: dict[str, str] | None = None,
    **settings: Any,
) -> AsyncIterator[list[BrokerServer]]:
    """Brokers 0 … count − 1, with crude replicas if not told otherwise."""
    shared = FakeZookeeper()
    servers: list[BrokerServer] = []
    try:
        for me in range(count):
            servers.append(
                await BrokerServer.start(
                    folder / str(me),
                    settings=BrokerSettings(
                        node_id=me, topics=TopicSettings(configs=configs or {}), **settings
                    ),
                    cluster=joining(shared, me, tls),
                )
            )
        yield servers
    finally:
        for server in servers:
            await server.close()
