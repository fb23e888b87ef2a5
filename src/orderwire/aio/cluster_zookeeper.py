"""A broker's place in its cluster, over one ZooKeeper session.  [S004:4.6]

async with ClusterZookeeper("zk:2181", BrokerId(1), broker, member) as cluster:
    await cluster.topics.create(topic)       # every broker's member hears `topic_changed`
    cluster.carry_out(topic, 0, Elect(-1))   # … and then `viewed`

Everything is told in the loop, in the order in which it was read.  When the session may have ended
by our own clock, `session_in_doubt` is told at once, and again when ZooKeeper has answered in it.
When it has ended, `session_lost` is told; then all that was known is read again in a new session,
in which this broker is original of nothing.
"""

import asyncio
import contextlib
import logging
import secrets
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

import msgspec

from orderwire.aio.cluster_zookeeper_marks import LazyMarks
from orderwire.aio.cluster_zookeeper_partition import Coordinated, Depose, FollowedPartition, Seer
from orderwire.aio.cluster_zookeeper_topics import FollowedTopics
from orderwire.aio.zookeeper_access import ZookeeperAccess
from orderwire.aio.zookeeper_client import ClientSettings, Session, SessionKey, ZookeeperClient
from orderwire.aio.zookeeper_errors import (
    BadVersion,
    NoZnode,
    ZnodeExists,
    ZnodeFailure,
    ZookeeperRefused,
    ZookeeperUnavailable,
)
from orderwire.aio.zookeeper_folder import ZnodeFolder
from orderwire.aio.zookeeper_scope import ScopeLimits, SessionScope
from orderwire.broker.coordination.layout import (
    BROKER_ID_MAX,
    BROKERS,
    CLUSTER_ID,
    CONFIG,
    FOLDERS,
    PRODUCER_IDS,
    USERS,
    BrokerData,
    Malformed,
    broker_path,
    decode,
    decode_broker_id,
    decode_number,
    encode,
)
from orderwire.broker.replication.effects import SetSync
from orderwire.broker.replication.view import BrokerId
from orderwire.broker.topics import Topic
from orderwire.kernel import NS_PER_MS, NS_PER_S, LocalProtocolError, OrderwireError

_LOG = logging.getLogger(__name__)
_CLUSTER_ID_BYTES = 16
_CLUSTER_ID_CHARACTERS_MAX = 64
_BEATS = 8
"""How often in a session's length ZooKeeper is asked whether it is there."""


class BrokerIdTaken(OrderwireError):
    """Another broker that lives has this id."""


_FINAL = (BrokerIdTaken, ZookeeperRefused, Malformed)
"""What a start fails with at once."""


class ClusterTimes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When ZooKeeper is asked, and how long for, in nanoseconds."""

    join_ns: int = 60 * NS_PER_S
    """How long a broker that starts tries to register."""
    predecessor_ns: int = 25 * NS_PER_S
    """How long it waits for a predecessor of its id to be gone, before it is refused: a session's
    length and more, after a crash."""
    end_ns: int = 3 * NS_PER_S
    """How long it tries to end that one's session, where the key is known."""
    change_ns: int = 15 * NS_PER_S
    """How long a change of a topic may take."""
    lazy_ns: int = 1 * NS_PER_S
    """`syncStart` and `syncEnd` that are written lazily are written this often, those of many
    partitions together."""
    sure_permille: int = 900
    """Of the session's length: after such a silence it is in doubt.  [S004:4.6]"""
    silent_permille: int = 666
    """After such a silence another connection is tried."""


class Member(Seer, Protocol):
    """Who is told: a broker."""

    def topic_changed(self, topic: Topic) -> None:
        """A topic is there, or has more partitions or other configs than before."""
        ...

    def topic_gone(self, topic_id: bytes) -> None:
        """A topic was deleted."""
        ...

    def brokers_changed(self) -> None:
        """`ClusterZookeeper.brokers` says something else than before."""
        ...

    def session_in_doubt(self, in_doubt: bool) -> None:
        """The session may have ended, so that others are original; or it has not."""
        ...

    def session_lost(self) -> None:
        """The session has ended: we are original of nothing."""
        ...


class ClusterZookeeper:
    """Registers one broker, tells it what ZooKeeper says, and does what its replicas ask for."""

    def __init__(
        self,
        ensemble: str,
        me: BrokerId,
        broker: BrokerData,
        member: Member,
        *,
        times: ClusterTimes | None = None,
        client: ClientSettings | None = None,
        access: ZookeeperAccess | None = None,
        limits: ScopeLimits | None = None,
        by_zookeeper: Callable[[Topic], bool] = lambda topic: False,
        predecessor: SessionKey | None = None,
        keep: Callable[[SessionKey], None] | None = None,
    ) -> None:
        """`by_zookeeper` says of which topics `lock` and `syncEnd` are watched.

        `keep(key)` is called for each session in which we are registered: who starts this broker
        again gives the last one as `predecessor`, and need not wait until ZooKeeper misses it.  So
        it has to be certain that the process before is no more, as a locked data folder says.  The
        key is a secret.

        Raises LocalProtocolError.
        """
        if not 0 <= me <= BROKER_ID_MAX:
            raise LocalProtocolError(f"broker id {me}; expected 0 … {BROKER_ID_MAX}")
        self.me = me
        self.broker = broker
        self.brokers: dict[BrokerId, BrokerData] = {}
        """Those that live, ascending."""
        self.cluster_id = ""
        """The same for every broker, for ever; known once opened."""
        self.client = ZookeeperClient(ensemble, client, access=access, on_session=self._on_session)
        self.scope = SessionScope(self.client, limits)
        self.partitions: dict[bytes, list[FollowedPartition]] = {}
        """By topic id, then index."""
        self.sessions = 0
        """Sessions in which we were registered."""
        self._member = member
        self._by_zookeeper = by_zookeeper
        self._predecessor = predecessor
        self._keep = keep
        self._access = access
        self._times = times or ClusterTimes()
        self._members = ZnodeFolder(self.scope, BROKERS, self._brokers_told)
        self.topics = FollowedTopics(
            self.scope, self._topic_told, self._topic_gone, change_ns=self._times.change_ns
        )
        """Make, change and delete topics here."""
        self.config = ZnodeFolder(self.scope, CONFIG)
        """`acls`, among others: put, remove, and listen to changes."""
        self.users = ZnodeFolder(self.scope, USERS)
        """Credentials by user's name, opaque."""
        self._joined: asyncio.Future[None] | None = None
        self._joining: asyncio.Task[None] | None = None
        self._upkeep: list[asyncio.Task[None]] = []
        self._hung_up_ns = 0
        self._in_doubt = False
        self.marks = LazyMarks(self.scope)
        """What is written lazily."""

    # -- life -------------------------------------------------------------------------------

    async def open(self) -> None:
        """Register, and read who and which topics are there; views follow by themselves.

        Raises BrokerIdTaken, ZookeeperUnavailable, ZookeeperRefused and Malformed.
        """
        loop = asyncio.get_running_loop()
        self._joined = loop.create_future()
        await self._end_predecessor()
        await self.client.open()
        telling = loop.create_task(self._tell_of_waiting())
        try:
            async with asyncio.timeout(self._times.join_ns / NS_PER_S):
                await self._joined
        except BaseException as error:
            why = ""
            if isinstance(error, TimeoutError):
                why = f": {self.scope.trouble}" if self.scope.trouble else await self.client.why()
            await self.close()
            if isinstance(error, TimeoutError):
                raise ZookeeperUnavailable(
                    f"broker {self.me} could not join its cluster at {self.client.ensemble} in"
                    f" {self._times.join_ns // NS_PER_MS} ms{why}"
                ) from None
            raise
        finally:
            telling.cancel()
        self._upkeep = [loop.create_task(self._beat()), loop.create_task(self._flush())]
        for task in self._upkeep:
            task.add_done_callback(_report)

    async def _tell_of_waiting(self) -> None:
        """Say what a start waits for that takes long."""
        while True:
            await asyncio.sleep(self.client.settings.reply_ns / NS_PER_S)
            if self.client.session is not Session.CONNECTED:
                why = await self.client.why()
                _LOG.warning("no ZooKeeper at %s answers yet%s", self.client.ensemble, why)
            elif not self.cluster_id:
                _LOG.warning("another is broker %d still: waiting for its session's end", self.me)

    async def _end_predecessor(self) -> None:
        """Go on with the session of a process that is no more, and close it."""
        key, self._predecessor = self._predecessor, None
        if key is None:
            return
        client = self.client
        short = msgspec.structs.replace(client.settings, reply_ns=self._times.end_ns)
        with contextlib.suppress(ZookeeperUnavailable, ZookeeperRefused):  # Then it is waited for.
            async with ZookeeperClient(
                client.ensemble, short, access=self._access, key=key
            ) as before:
                await before.exists("/")

    async def close(self) -> None:
        """Leave: the session ends, and with it all that this broker is."""
        tasks = [*self._upkeep, *([self._joining] if self._joining is not None else [])]
        self._upkeep, self._joining = [], None
        for task in tasks:
            task.cancel()
        self.scope.cancel()
        await self.scope.ended()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self.client.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def is_sure(self, now_ns: int | None = None) -> bool:
        """Whether our session lives for certain, by the monotonic clock: others have not taken over
        yet.  Cheap; for a process that may have been stopped without noticing."""
        if now_ns is None:
            now_ns = time.monotonic_ns()
        return self.scope.live and now_ns < self._sure_until_ns()

    def _sure_until_ns(self) -> int:
        return self.client.heard_ns + self.client.session_ns * self._times.sure_permille // 1_000

    # -- what may be asked ------------------------------------------------------------------

    def carry_out(
        self, topic: Topic, index: int, effect: Coordinated, *, lazily: bool = False
    ) -> None:
        """Do what the partition's replica here asks for; nothing without a session.

        `lazily` lets a SetSync wait, and later ones replace it.
        """
        partitions = self.partitions.get(topic.topic_id, [])
        if self.scope.live and index < len(partitions):
            if lazily and isinstance(effect, SetSync):
                self.marks.take(partitions[index], effect)
            else:
                partitions[index].carry_out(effect)

    def process_ended(self, broker: BrokerId, incarnation: str) -> None:
        """Let nobody wait for the session of a broker whose process has ended."""
        for partition in self._every_partition():
            view = partition.view
            if view is not None and view.original == broker and self.me in view.isr:
                self.carry_out(partition.topic, partition.index, Depose(broker, incarnation))

    async def take_producer_ids(self, count: int) -> int:
        """Reserve so many producer ids that nobody ever had; return the first.

        Raises ZookeeperUnavailable (then they may be lost), ZookeeperRefused, Malformed.
        """
        while True:
            try:
                znode = await self.client.get(PRODUCER_IDS)
                first = decode_number(PRODUCER_IDS, znode.data)
                await self.client.set(PRODUCER_IDS, b"%d" % (first + count), znode.version)
                return first
            except NoZnode:
                with contextlib.suppress(ZnodeExists):
                    await self.client.create(PRODUCER_IDS, b"0")
            except BadVersion:
                continue

    # -- the session ------------------------------------------------------------------------

    def _on_session(self, session: Session) -> None:
        match session:
            case Session.CONNECTED if self.scope.live:
                self._again()
            case Session.CONNECTED:
                if self._joining is None or self._joining.done():
                    self._joining = asyncio.get_running_loop().create_task(self._join())
                    self._joining.add_done_callback(_report)
            case Session.LOST:
                self._lose("it has ended")
            case Session.SUSPENDED:
                pass  # `_beat` knows how long that may last.

    def _lose(self, why: str) -> None:
        """Forget all that went with the session, and tell."""
        if self._joining is not None:
            self._joining.cancel()
            self._joining = None
        if not self.scope.live:
            return
        _LOG.warning("broker %d has lost its ZooKeeper session: %s", self.me, why)
        self.scope.cancel()
        for folder in self._folders():
            folder.abandon()
        for partition in self._every_partition():
            partition.abandon()
        self.marks.abandon()
        self._member.session_lost()
        self._doubt(False)

    def _doubt(self, in_doubt: bool) -> None:
        if in_doubt != self._in_doubt:
            self._in_doubt = in_doubt
            self._member.session_in_doubt(in_doubt)

    async def _join(self) -> None:
        """Register in the session that has begun, and read everything."""
        try:
            await self._register()
        except (
            ZookeeperUnavailable,
            BrokerIdTaken,
            ZookeeperRefused,
            ZnodeFailure,
            Malformed,
        ) as e:
            self.scope.failed(e)
            joined = self._joined
            final = isinstance(e, BrokerIdTaken | ZookeeperRefused | Malformed)
            if joined is not None and not joined.done() and final:
                joined.set_exception(e)
                return
            _LOG.warning("broker %d cannot register: %s", self.me, e)
            await asyncio.sleep(self.scope.limits.retry_max_ns / NS_PER_S)
            if self.client.session is Session.CONNECTED:
                self._joining = asyncio.get_running_loop().create_task(self._join())
                self._joining.add_done_callback(_report)
            return
        self.scope.live = True
        self.scope.trouble = None
        self.sessions += 1
        key = self.client.session_key
        if self._keep is not None and key is not None:
            self._keep(key)
        for worker in (*self._folders(), *self._every_partition()):
            worker.kick()
        if self._joined is not None and not self._joined.done():
            self._joined.set_result(None)

    async def _register(self) -> None:
        client = self.client
        for path in FOLDERS:
            await client.ensure(path)
        end_ns = time.monotonic_ns() + self._times.predecessor_ns
        path = broker_path(self.me)
        while not await self._registered():
            changed = asyncio.Event()
            if await client.exists(path, changed.set):
                left_ns = end_ns - time.monotonic_ns()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(0, left_ns) / NS_PER_S):
                        await changed.wait()
                if time.monotonic_ns() >= end_ns:
                    await self._refuse(path)
        self.cluster_id = await self._cluster()
        for folder in self._folders():
            folder.again()
            await folder.read()

    async def _registered(self) -> bool:
        """Make our znode; False while another's is there."""
        client, path = self.client, broker_path(self.me)
        try:
            await client.create(path, encode(self.broker), ephemeral=True)
            return True
        except ZnodeExists:
            pass
        try:
            znode = await client.get(path)
            key = client.session_key
            if key is None:
                raise ZookeeperUnavailable("the connection broke")
            if znode.owner == key[0]:  # The answer to our first attempt was lost.
                return True
            with contextlib.suppress(Malformed):
                other = decode(BrokerData, path, znode.data)
                if other.incarnation == self.broker.incarnation:  # Of a session that we gave up.
                    await client.delete(path)
        except NoZnode:
            pass
        return False

    async def _refuse(self, path: str) -> None:
        """Raises BrokerIdTaken, unless the other has gone."""
        with contextlib.suppress(NoZnode):
            znode = await self.client.get(path)
            who = znode.data[:200]
            with contextlib.suppress(Malformed):
                other = decode(BrokerData, path, znode.data)
                who = f"{other.host}:{other.port}, internal {other.internal}".encode()
            raise BrokerIdTaken(
                f"a broker {self.me} lives at {who.decode(errors='replace')}: give this one another"
                " id, or end that one"
            )

    async def _cluster(self) -> str:
        """Return the cluster's id; the first broker of all draws it."""
        drawn = urlsafe_b64encode(secrets.token_bytes(_CLUSTER_ID_BYTES)).rstrip(b"=")
        with contextlib.suppress(ZnodeExists):
            await self.client.create(CLUSTER_ID, drawn)
        data = (await self.client.get(CLUSTER_ID)).data
        if not (data.isascii() and 0 < len(data) <= _CLUSTER_ID_CHARACTERS_MAX):
            raise Malformed(f"{CLUSTER_ID} holds {data[:100]!r}; expected a cluster's id")
        return data.decode("ascii")

    async def _beat(self) -> None:
        """Notice by our own clock when ZooKeeper is silent, and when the session may be over.

        It may as well not be: a ZooKeeper that waits for its disk is silent to everybody, and keeps
        all sessions.  So who only doubts gives nothing up, and nobody has to be elected.
        """
        client, times = self.client, self._times
        while True:
            now_ns, session_ns = time.monotonic_ns(), client.session_ns
            wait_ns = session_ns // _BEATS
            if self.scope.live:
                left_ns = self._sure_until_ns() - now_ns
                silent_ns = now_ns - client.heard_ns
                if left_ns <= 0 and not self._in_doubt:
                    _LOG.warning("ZooKeeper has not been heard for %d ms", silent_ns // NS_PER_MS)
                self._doubt(left_ns <= 0)
                if (
                    silent_ns * 1_000 > session_ns * times.silent_permille
                    and self._hung_up_ns != client.heard_ns
                ):
                    self._hung_up_ns = client.heard_ns
                    client.hang_up()
                if left_ns > 0:
                    wait_ns = min(wait_ns, left_ns)
            if self.scope.usable and now_ns - client.heard_ns >= session_ns // _BEATS:
                self.scope.spawn(self._call())
            await asyncio.sleep(wait_ns / NS_PER_S)

    async def _call(self) -> None:
        with contextlib.suppress(ZookeeperUnavailable, ZookeeperRefused):
            await self.client.exists("/")

    async def _flush(self) -> None:
        while True:
            await asyncio.sleep(self._times.lazy_ns / NS_PER_S)
            self.marks.flush()

    # -- what is there ----------------------------------------------------------------------

    def _folders(self) -> tuple[ZnodeFolder, ...]:
        return self._members, self.topics.folder, self.config, self.users

    def _every_partition(self) -> list[FollowedPartition]:
        return [each for partitions in self.partitions.values() for each in partitions]

    def _again(self) -> None:
        """The connection was broken, and with it every watch: read all again."""
        for folder in self._folders():
            folder.again()
        for partition in self._every_partition():
            partition.again()
        self.marks.kick()

    def _brokers_told(self, names: set[str]) -> None:
        brokers: dict[BrokerId, BrokerData] = {}
        for name, znode in self._members.znodes.items():
            path = f"{BROKERS}/{name}"
            try:
                brokers[decode_broker_id(path, name)] = decode(BrokerData, path, znode.data)
            except Malformed as error:
                self.scope.found_malformed(error)
        if brokers != self.brokers:
            self.brokers = dict(sorted(brokers.items()))
            self._member.brokers_changed()

    def _topic_told(self, topic: Topic) -> None:
        partitions = self.partitions.setdefault(topic.topic_id, [])
        for partition in partitions:
            if partition.topic.replicas[partition.index] != topic.replicas[partition.index]:
                partition.again()
            partition.topic = topic
        for index in range(len(partitions), topic.partitions):
            partitions.append(
                FollowedPartition(
                    self.scope,
                    self._member,
                    self.me,
                    self.broker.incarnation,
                    topic,
                    index,
                    by_zookeeper=self._by_zookeeper(topic),
                )
            )
        self._member.topic_changed(topic)
        for partition in partitions:
            partition.kick()

    def _topic_gone(self, topic: Topic) -> None:
        for partition in self.partitions.pop(topic.topic_id, []):
            partition.close()
        self._member.topic_gone(topic.topic_id)


def _report(task: "asyncio.Task[None]") -> None:
    """Tell of a fault of ours at once, not when the task is waited for."""
    if not task.cancelled() and task.exception() is not None:
        context = {"message": "a broker's ZooKeeper work failed", "exception": task.exception()}
        task.get_loop().call_exception_handler(context)
