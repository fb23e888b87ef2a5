"""A broker's port to its cluster, over ZooKeeper: what replicas and requests ask, one at a time."""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from orderwire.aio.addresses import join_address
from orderwire.aio.cluster_host import peer_of
from orderwire.aio.cluster_links import Peer
from orderwire.aio.cluster_security import ClusterSecurity
from orderwire.aio.cluster_session import KeptSession
from orderwire.aio.cluster_zookeeper import ClusterZookeeper
from orderwire.aio.cluster_zookeeper_topics import TopicRefused
from orderwire.aio.zookeeper_access import ZookeeperAccess
from orderwire.aio.zookeeper_client import ClientSettings
from orderwire.broker.cluster import BrokerAddress, ClusterMember, Done
from orderwire.broker.coordination.commands import Failure
from orderwire.broker.coordination.layout import BrokerData
from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.replication.effects import (
    ChangeIsr,
    Effect,
    Elect,
    Lock,
    Lose,
    Replace,
    Resign,
    SetSync,
    Unlock,
)
from orderwire.broker.replication.settings import Coordination
from orderwire.broker.replication.view import BrokerId, PartitionView
from orderwire.broker.security.guard import Guard
from orderwire.broker.topic_config import Refusal
from orderwire.broker.topics import Topic
from orderwire.kernel import LocalProtocolError, OrderwireError

_LOG = logging.getLogger(__name__)

PRODUCER_ID_BLOCK = 1_000
"""Ids that a broker reserves at a time; after a crash the rest of a block is never used."""
WAITING_MAX = 10_000
"""Producers that wait for an id."""


class ZookeeperDriver:
    """The `Driver` of a broker that is a member of a cluster."""

    def __init__(
        self,
        ensemble: str,
        me: BrokerId,
        incarnation: str,
        *,
        client: ClientSettings | None = None,
        access: ZookeeperAccess | None = None,
        kept: KeptSession | None = None,
    ) -> None:
        """`kept` has the session of the process that was this broker before, if it is no more."""
        self._ensemble = ensemble
        self._me = me
        self._incarnation = incarnation
        self._client = client
        self._access = access
        self._kept = kept
        self._zookeeper: ClusterZookeeper | None = None
        self._security: ClusterSecurity | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._addressed: Mapping[BrokerId, BrokerData] | None = None
        self._addresses: tuple[BrokerAddress, ...] = ()
        """Of the brokers in `_addressed`."""
        self._ids = range(0)
        self._id_waiting: deque[Callable[[int | Refusal], None]] = deque()

    @property
    def cluster_id(self) -> str:
        """The same at every broker; empty before `start`."""
        return "" if self._zookeeper is None else self._zookeeper.cluster_id

    async def start(
        self, member: ClusterMember, client: tuple[str, int], internal: tuple[str, int]
    ) -> None:
        """Register this broker and read what there is.

        Raises BrokerIdTaken, ZookeeperUnavailable, ZookeeperRefused and Malformed.
        """
        broker = BrokerData(*client, join_address(*internal), self._incarnation)
        self._zookeeper = ClusterZookeeper(
            self._ensemble,
            self._me,
            broker,
            member,
            client=self._client,
            access=self._access,
            by_zookeeper=_by_zookeeper,
            predecessor=None if self._kept is None else self._kept.read(),
            keep=None if self._kept is None else self._kept.keep,
        )
        await self._zookeeper.open()

    def knows_every_topic(self) -> bool:
        """Whether all topics there are have been told."""
        return self._zookeeper is not None and self._zookeeper.topics.is_complete

    async def secure(self, guard: Guard, settled: Callable[[], None]) -> None:
        """Let a guard know the cluster's users and rules, now and from now on."""
        assert self._zookeeper is not None
        self._security = ClusterSecurity(self._zookeeper.config, self._zookeeper.users, settled)
        await self._security.tell(guard)

    async def close(self) -> None:
        """End the session."""
        if self._security is not None:
            self._security.close()
        for task in list(self._tasks):
            task.cancel()
        if self._zookeeper is not None:
            await self._zookeeper.close()
            if self._kept is not None:
                self._kept.forget()

    def is_sure(self) -> bool:
        """Whether our session lives for certain."""
        return self._zookeeper is not None and self._zookeeper.is_sure()

    def brokers(self) -> Sequence[BrokerAddress]:
        """Every broker that lives, ascending."""
        known = self._known()
        if known is not self._addressed:  # it is replaced, never changed
            self._addressed = known
            self._addresses = tuple(
                BrokerAddress(broker, data.host, data.port) for broker, data in known.items()
            )
        return self._addresses

    def peers(self) -> Mapping[BrokerId, Peer]:
        """Where the other brokers' internal listeners are."""
        peers = {}
        for broker, data in self._known().items():
            if broker != self._me:
                with contextlib.suppress(LocalProtocolError):
                    peers[broker] = peer_of(data.internal, data.incarnation)
        return peers

    def _known(self) -> Mapping[BrokerId, BrokerData]:
        return {} if self._zookeeper is None else self._zookeeper.brokers

    def view(self, topic: Topic, index: int) -> PartitionView | None:
        """The newest view of a partition."""
        if self._zookeeper is None:
            return None
        partitions = self._zookeeper.partitions.get(topic.topic_id, ())
        return partitions[index].view if index < len(partitions) else None

    def process_ended(self, broker: BrokerId, incarnation: str) -> None:
        """Let nobody wait for the session of a broker whose process has ended."""
        if self._zookeeper is not None:
            self._zookeeper.process_ended(broker, incarnation)

    # -- changes ----------------------------------------------------------------------------

    def create(self, topic: Topic, done: Done) -> None:
        """Make a topic."""
        if self._zookeeper is not None:
            self._change(self._zookeeper.topics.create(topic), done)

    def delete(self, topic: Topic, done: Done) -> None:
        """Delete a topic."""
        if self._zookeeper is not None:
            self._change(self._zookeeper.topics.delete(topic), done)

    def change(self, topic: Topic, done: Done) -> None:
        """Put this in place of the topic of the same id."""
        if self._zookeeper is not None:
            self._change(self._zookeeper.topics.change(topic), done)

    def learn(self, topics: Sequence[str], done: Callable[[], None]) -> None:
        """Hear of every topic, and of these anew; without ZooKeeper of none."""

        async def learnt() -> None:
            try:
                if self._zookeeper is not None:
                    await self._zookeeper.topics.learn(topics)
            except (OSError, OrderwireError) as error:
                _LOG.info("ZooKeeper does not say which topics there are: %s", error)
            done()

        self._spawn(learnt())

    def _change(self, work: Coroutine[Any, Any, None], done: Done) -> None:
        async def changed() -> None:
            refusal: Refusal | None = None
            try:
                await work
            except TopicRefused as error:
                refusal = Refusal(_REFUSED.get(error.failure, _OTHERWISE), str(error))
            except LocalProtocolError as error:
                refusal = Refusal(ErrorCode.INVALID_REQUEST, str(error))
            except (OSError, OrderwireError) as error:
                refusal = Refusal(ErrorCode.REQUEST_TIMED_OUT, str(error))
            done(refusal)

        self._spawn(changed())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _LOG.error("a change of the cluster failed", exc_info=task.exception())

    def producer_id(self, done: Callable[[int | Refusal], None]) -> None:
        """Hand out an id of our block, or reserve another."""
        if self._ids:
            first, self._ids = self._ids[0], self._ids[1:]
            done(first)
        elif len(self._id_waiting) >= WAITING_MAX:
            done(Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE, "too many producers wait for an id"))
        else:
            self._id_waiting.append(done)
            if len(self._id_waiting) == 1:
                self._spawn(self._reserve())

    async def _reserve(self) -> None:
        assert self._zookeeper is not None
        refusal: Refusal | None = None
        try:
            first = await self._zookeeper.take_producer_ids(PRODUCER_ID_BLOCK)
            self._ids = range(first, first + PRODUCER_ID_BLOCK)
        except (OSError, OrderwireError) as error:
            refusal = Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error))
        waiting, self._id_waiting = self._id_waiting, deque()
        for done in waiting:
            if refusal is not None:
                done(refusal)
            else:
                self.producer_id(done)

    def carry_out(self, topic: Topic, index: int, effect: Effect) -> None:
        """Have ZooKeeper do it; views follow."""
        if self._zookeeper is None:
            return
        match effect:
            case SetSync():
                lazily = not _by_zookeeper(topic)
                self._zookeeper.carry_out(topic, index, effect, lazily=lazily)
            case Replace(member):
                view = self.view(topic, index)
                _LOG.warning(
                    "%s-%d: an unclean election: broker %d in the place of %s, who were in sync",
                    topic.name,
                    index,
                    member,
                    () if view is None else view.isr,
                )
                self._zookeeper.carry_out(topic, index, effect)
            case Elect() | Resign() | ChangeIsr() | Lose() | Lock() | Unlock():
                self._zookeeper.carry_out(topic, index, effect)
            case _:
                raise LocalProtocolError(f"not ZooKeeper's: {effect!r}")


_OTHERWISE = ErrorCode.INVALID_REQUEST
_REFUSED = {
    Failure.ZNODE_EXISTS: ErrorCode.TOPIC_ALREADY_EXISTS,
    Failure.NO_ZNODE: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    Failure.BAD_VERSION: ErrorCode.REQUEST_TIMED_OUT,
}


def _by_zookeeper(topic: Topic) -> bool:
    """Whether rounds go by znodes; the broker's default is not asked, it is a topic's choice."""
    return topic.configs.get("orderwire.coordination") == Coordination.ZOOKEEPER.value
