"""A broker's part in its cluster: carries out what replicas ask for, and tells them what happens.

The driver knows ZooKeeper; the links know the other brokers; everything meets in the broker's loop.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from orderwire.aio.addresses import split_address
from orderwire.aio.cluster_frames import MESSAGE_KINDS, Ask, Codec, FrameKind, Told
from orderwire.aio.cluster_links import ClusterLinks, Peer
from orderwire.aio.discovery_tls import Credentials
from orderwire.broker.cluster import BrokerAddress, ClusterMember, Done, Question
from orderwire.broker.cluster import Told as Answered
from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.log import Refused, StorageError
from orderwire.broker.replicas import mode_of
from orderwire.broker.replication.effects import (
    Committed,
    Effect,
    Event,
    LostRange,
    Note,
    RoundOpened,
    Sealed,
    Tell,
)
from orderwire.broker.replication.view import BrokerId, PartitionView
from orderwire.broker.security.guard import Guard
from orderwire.broker.topic_config import Refusal
from orderwire.broker.topics import Topic
from orderwire.kernel import Instant

if TYPE_CHECKING:
    from orderwire.aio.broker_server import BrokerServer
    from orderwire.aio.cluster_history import ClusterHistory

_LOG = logging.getLogger(__name__)
_OFTEN = (RoundOpened, Committed, Sealed)
"""What happens to rounds and batches: as many lines as there is load.  Every orphan is logged, with
old and new offset.  [R8]"""
QUESTIONS_MAX = 10_000
"""Questions to other brokers that wait for their answers."""
_OUT_OF_REACH = Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the other broker is out of reach")


class Driver(Protocol):
    """What knows ZooKeeper."""

    @property
    def cluster_id(self) -> str:
        """Known once the driver is open."""
        ...

    async def start(
        self, member: ClusterMember, client: tuple[str, int], internal: tuple[str, int]
    ) -> None:
        """Tell of this broker where clients and brokers find it, and tell `member` of all there is.

        Returns when every topic there is has been told.
        """
        ...

    def knows_every_topic(self) -> bool:
        """Whether all topics there are have been told: what is missing then does not exist."""
        ...

    async def secure(self, guard: Guard, settled: Callable[[], None]) -> None:
        """Let a guard know the cluster's users and rules, now and from now on.

        `settled` follows what the guard's store has answered later.
        """
        ...

    async def close(self) -> None:
        """End the session: what we were original of is free for others at once."""
        ...

    def is_sure(self) -> bool:
        """As `Cluster.is_sure`."""
        ...

    def brokers(self) -> Sequence[BrokerAddress]:
        """As `Cluster.brokers`."""
        ...

    def peers(self) -> Mapping[BrokerId, Peer]:
        """Where the other brokers' internal listeners are."""
        ...

    def process_ended(self, broker: BrokerId, incarnation: str) -> None:
        """A broker's process has ended, though its session may last a while."""
        ...

    def view(self, topic: Topic, index: int) -> PartitionView | None:
        """As `Cluster.view`."""
        ...

    def create(self, topic: Topic, done: Done) -> None:
        """As `Cluster.create`."""
        ...

    def delete(self, topic: Topic, done: Done) -> None:
        """As `Cluster.delete`."""
        ...

    def change(self, topic: Topic, done: Done) -> None:
        """As `Cluster.change`."""
        ...

    def learn(self, topics: Sequence[str], done: Callable[[], None]) -> None:
        """As `Cluster.learn`."""
        ...

    def producer_id(self, done: Callable[[int | Refusal], None]) -> None:
        """As `Cluster.producer_id`."""
        ...

    def carry_out(self, topic: Topic, index: int, effect: Effect) -> None:
        """Elect, Resign, ChangeIsr, SetSync, Lock, Unlock."""
        ...


class ClusterHost:
    """The `Cluster` of a broker core, and the `ClusterMember` of a driver."""

    def __init__(
        self,
        me: BrokerId,
        driver: Driver,
        incarnation: str,
        codec: Codec,
        *,
        tls: Credentials | None = None,
        advertised: tuple[str, int] | None = None,
        history: "ClusterHistory | None" = None,
    ) -> None:
        self.driver = driver
        self.events: Counter[str] = Counter()
        """What replicas have told of, by kind."""
        self._me = me
        self._advertised = advertised
        self._history = history
        self._kinds: dict[bytes, FrameKind] = {}
        self._asked: dict[int, tuple[BrokerId, Answered]] = {}
        self._next_number = count(1).__next__
        self._breaking = False
        self._server: BrokerServer | None = None
        self.links = ClusterLinks(
            me,
            lambda: driver.cluster_id,
            incarnation,
            codec,
            tls=tls,
            connected=self.connected,
            disconnected=self.disconnected,
            received=lambda source, topic_id, index, message: self.receive(
                topic_id, index, source, message
            ),
            requested=self._requested,
            process_ended=self._process_ended,
            settled=self._settle,
            status=self.status_bytes,
        )

    async def start(self, server: "BrokerServer", client: tuple[str, int]) -> None:
        """Join the cluster; the internal listener listens already."""
        self._server = server
        history = self._history
        if history is not None:
            assert server.broker.replicas is not None
            server.broker.replicas.on_advance = history.advanced
        await self.driver.start(self, client, self._advertised or self.links.address)
        guard = server.broker.guard
        if guard is not None:
            await self.driver.secure(guard, self._settle)
        if history is not None:
            history.start(server.broker, self.cluster_id, server.address)

    async def before_close(self) -> None:
        """Publish what is left of the history, while clients are served."""
        if self._history is not None:
            await self._history.settle()

    async def close(self) -> None:
        """Leave: what we were original of is given up first."""
        await self.driver.close()
        await self.links.close()
        if self._history is not None:
            self._history.close()

    def flush(self) -> None:
        """Send what replicas told each other in this turn."""
        self.links.flush()
        if self._history is not None:
            self._history.flush()

    # -- what the core asks -----------------------------------------------------------------

    @property
    def cluster_id(self) -> str:
        """The same at every broker."""
        return self.driver.cluster_id

    @property
    def me(self) -> BrokerId:
        """This broker."""
        return self._me

    def is_sure(self) -> bool:
        """Whether our session lives for certain."""
        return self.driver.is_sure()

    def brokers(self) -> Sequence[BrokerAddress]:
        """Every broker that lives, ascending."""
        return self.driver.brokers()

    def may_have_ended(self, broker: BrokerId) -> bool:
        """Whether another broker's process has ended, or is being looked after."""
        return self.links.may_have_ended(broker)

    def view(self, topic: Topic, index: int) -> PartitionView | None:
        """The newest view of a partition."""
        return self.driver.view(topic, index)

    def create(self, topic: Topic, done: Done) -> None:
        """Make a topic."""
        self.driver.create(topic, self._then(done))

    def delete(self, topic: Topic, done: Done) -> None:
        """Delete a topic."""
        self.driver.delete(topic, self._then(done))

    def change(self, topic: Topic, done: Done) -> None:
        """Change a topic."""
        self.driver.change(topic, self._then(done))

    def learn(self, topics: Sequence[str], done: Callable[[Instant], None]) -> None:
        """Hear of every topic, and of these anew."""
        self.driver.learn(topics, lambda: self._turn(lambda replicas, now: done(now)))

    def producer_id(self, done: Callable[[int | Refusal], None]) -> None:
        """Hand out a producer id."""

        def given(result: int | Refusal) -> None:
            done(result)
            self._settle()

        self.driver.producer_id(given)

    def ask(
        self, to: BrokerId, question: Question, topic: Topic, index: int, value: int, done: Answered
    ) -> None:
        """Ask another broker."""
        if len(self._asked) >= QUESTIONS_MAX:
            done(Refused(ErrorCode.POLICY_VIOLATION, "too many questions wait for other brokers"))
            return
        number = self._next_number()
        if self.links.ask(to, FrameKind.ASK, Ask(number, question, topic.topic_id, index, value)):
            self._asked[number] = (to, done)
        else:
            done(_OUT_OF_REACH)

    def _requested(self, source: BrokerId, message: Ask | Told) -> None:
        """Another broker asks, or answers; `settled` of its link follows."""
        if isinstance(message, Told):
            waiting = self._asked.pop(message.number, None)
            if waiting is not None:
                error = ErrorCode(message.error)
                failed = Refused(error, message.message)
                result = failed if error is not ErrorCode.NONE else message.result
                self._work(lambda replicas, now: waiting[1](result))
            return
        number = message.number

        def answer(result: int | Refused) -> None:
            told = (
                Told(number, -1, result.error, result.message)
                if isinstance(result, Refused)
                else Told(number, result, ErrorCode.NONE, "")
            )
            self.links.ask(source, FrameKind.TOLD, told)

        self._work(
            lambda replicas, now: replicas.questions.answer(
                message.question, message.topic_id, message.index, message.value, answer, now
            )
        )

    def carry_out(self, topic: Topic, index: int, effect: Effect) -> None:
        """Send, note, or have the driver do it."""
        kind = type(effect)
        if kind is Tell:
            frame_kind = self._kinds.get(topic.topic_id)
            if frame_kind is None:
                assert self._server is not None
                frame_kind = MESSAGE_KINDS[mode_of(self._server.broker.topics, topic)]
                self._kinds[topic.topic_id] = frame_kind
            assert isinstance(effect, Tell)
            self.links.tell(effect.to, frame_kind, topic.topic_id, index, effect.message)
        elif kind is Note:
            assert isinstance(effect, Note)
            self._note(topic, index, effect.event)
        else:
            self.driver.carry_out(topic, index, effect)

    def break_links(self) -> None:
        """End every link, when what is under way in this turn is done."""
        if not self._breaking:
            self._breaking = True
            asyncio.get_running_loop().call_soon(self.links_broken)

    def links_broken(self) -> None:
        """End them, and tell."""
        self._breaking = False
        self.links.restart("a replica begins anew")
        self._turn(lambda replicas, now: replicas.lost.links_broken(now))

    def _note(self, topic: Topic, index: int, event: Event) -> None:
        self.events[type(event).__name__] += 1
        if isinstance(event, LostRange):
            certain = event.unclean or event.end > event.start
            level = logging.ERROR if certain else logging.WARNING
            _LOG.log(level, "%s-%d: %s", topic.name, index, _lost(event))
        often = isinstance(event, _OFTEN)
        _LOG.log(logging.DEBUG if often else logging.INFO, "%s-%d: %s", topic.name, index, event)
        if self._history is not None:
            self._history.noted(topic.name, index, event)

    def _then(self, done: Done) -> Done:
        def then(refusal: Refusal | None) -> None:
            done(refusal)
            self._settle()

        return then

    def _settle(self) -> None:
        if self._server is not None:
            self._server.after_turn()

    # -- what the driver and the links tell -------------------------------------------------

    def _turn(self, work: Callable[[Any, Any], None]) -> None:
        """Do something with the broker's replicas, and answer what has become possible."""
        if self._work(work):
            self._settle()

    def _work(self, work: Callable[[Any, Any], None]) -> bool:
        """Do something with the broker's replicas, unless it has failed; whether that was so."""
        server = self._server
        if server is None or server.failed.done():
            return False
        replicas = server.broker.replicas
        assert replicas is not None
        try:
            work(replicas, server.clock.now())
        except StorageError as error:
            server.fail(error)
            return False
        return True

    def topic_changed(self, topic: Topic) -> None:
        """A topic is there, or is another than before."""
        self._turn(lambda replicas, now: self._broker.topic_changed(topic, now))

    def topic_gone(self, topic_id: bytes) -> None:
        """A topic was deleted."""
        self._kinds.pop(topic_id, None)
        self._turn(lambda replicas, now: self._broker.topic_gone(topic_id, now))

    @property
    def _broker(self) -> Any:
        assert self._server is not None
        return self._server.broker

    def brokers_changed(self) -> None:
        """Brokers came or went."""
        self.links.know(self.driver.peers())
        self._turn(lambda replicas, now: replicas.upkeep.look_soon(now))

    def viewed(self, topic_id: bytes, index: int, view: PartitionView) -> None:
        """The view of a partition."""
        self._turn(lambda replicas, now: replicas.viewed(topic_id, index, view, now))

    def session_in_doubt(self, in_doubt: bool) -> None:
        """Whether the ZooKeeper session may have ended."""
        self._turn(lambda replicas, now: replicas.session_in_doubt(in_doubt))

    def session_lost(self) -> None:
        """The ZooKeeper session has ended."""
        _LOG.warning("the ZooKeeper session is lost: this broker is original of nothing")
        self._turn(lambda replicas, now: replicas.session_lost(now))

    def connected(self, broker: BrokerId) -> None:
        """There is a link to another broker."""
        self._turn(lambda replicas, now: replicas.connected(broker, now))

    def _process_ended(self, broker: BrokerId, incarnation: str) -> None:
        self.driver.process_ended(broker, incarnation)
        self._turn(lambda replicas, now: replicas.process_ended(broker, now))

    def disconnected(self, broker: BrokerId) -> None:
        """A link has ended."""
        for number, (to, done) in list(self._asked.items()):
            if to == broker:
                del self._asked[number]
                self._turn(partial(_unanswered, done))
        self._turn(lambda replicas, now: replicas.disconnected(broker, now))

    def locked(self, topic_id: bytes, index: int) -> None:
        """Somebody asks for a round."""
        self._turn(lambda replicas, now: replicas.locked(topic_id, index, now))

    def sync_end_seen(self, topic_id: bytes, index: int, end: int, epoch: int, round: int) -> None:
        """`syncEnd` was written."""
        self._turn(
            lambda replicas, now: replicas.sync_end_seen(topic_id, index, end, epoch, round, now)
        )

    def receive(
        self, topic_id: bytes, index: int, source: BrokerId, message: msgspec.Struct
    ) -> None:
        """A message came; `settled` of its link follows.  Raises RemoteProtocolError."""
        self._work(lambda replicas, now: replicas.receive(topic_id, index, source, message, now))

    # -- status -----------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """What `orderwire cluster status` shows of this broker."""
        assert self._server is not None
        broker = self._server.broker
        partitions = []
        for partition in broker.all_partitions():
            assert partition.replica is not None
            assert partition.mode is not None
            view = partition.replica.view
            partitions.append(
                {
                    "topic": partition.topic,
                    "partition": partition.index,
                    "mode": partition.mode.value,
                    "replicas": partition.of.replicas[partition.index],
                    "epoch": partition.leader_epoch,
                    "original": None if view is None else view.original,
                    "isr": () if view is None else view.isr,
                    "lost": [
                        {
                            "epoch": loss.epoch,
                            "from": loss.start,
                            "to": loss.end,
                            "unclean": loss.unclean,
                        }
                        for loss in (() if view is None else view.losses)
                    ],
                    "start_offset": partition.log.start_offset,
                    "end_offset": partition.log.end_offset,
                    "high_watermark": partition.high_watermark,
                    "taken_bytes": partition.taken_bytes,
                    "sent_bytes": partition.sent_bytes,
                    **partition.replica.status(),
                }
            )
        return {
            "broker": self._me,
            "cluster_id": self.cluster_id,
            "brokers": [
                {"id": one.broker_id, "host": one.host, "port": one.port} for one in self.brokers()
            ],
            "connected": self.links.reached,
            "events": dict(self.events),
            "links_ended": dict(self.links.ends),
            "malformed": dict(self.links.malformed),
            "scrub": broker.scrub.status(),
            "partitions": partitions,
        }

    def status_bytes(self) -> bytes:
        """The same as JSON."""
        return msgspec.json.encode(self.status())


def _unanswered(done: Answered, replicas: Any, now: Any) -> None:
    done(_OUT_OF_REACH)


def _lost(event: LostRange) -> str:
    if event.unclean:
        known = f"; committed were offsets below {event.end}" if event.end > event.start else ""
        return (
            f"an unclean election: who was in sync is gone, and what was committed from offset"
            f" {event.start} on is lost but for what is here{known}; epoch {event.epoch} goes on"
        )
    if event.end > event.start:
        return (
            f"offsets {event.start} … {event.end - 1} were committed and are lost: no replica in"
            f" sync has them; epoch {event.epoch} goes on at {event.start}"
        )
    return (
        f"every replica in sync ended without closing its log, and none waits for its disk: what"
        f" was committed from offset {event.start} on, if anything, is lost"
    )


def peer_of(internal: str, incarnation: str) -> Peer:
    """Read an internal listener's HOST:PORT.  Raises LocalProtocolError."""
    host, port = split_address(internal)
    return Peer(host, port, incarnation)
