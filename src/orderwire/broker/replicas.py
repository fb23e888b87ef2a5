"""The replicas at one broker: who asks them, when they are due, and what becomes of their effects.

A broker that is alone has none of this.
"""

import heapq
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import msgspec

from orderwire.broker.cluster import GROUPS_TOPIC, Cluster, Done
from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.log import Appended, LogConfig, LogDamaged, Refused
from orderwire.broker.lost_replicas import LostReplicas
from orderwire.broker.partitions import Partition
from orderwire.broker.questions import Questions
from orderwire.broker.refused_producers import Batch, RefusedProducers
from orderwire.broker.replication.effects import (
    Advance,
    Answer,
    Deposed,
    Effects,
    Note,
    Recovered,
    Sync,
)
from orderwire.broker.replication.replica import Replica
from orderwire.broker.replication.settings import (
    Coordination,
    Distribution,
    HolePolicy,
    Mode,
    OrphanPolicy,
    ReplicationSettings,
)
from orderwire.broker.replication.view import BrokerId, PartitionView
from orderwire.broker.settling import Settling
from orderwire.broker.topic_config import Refusal
from orderwire.broker.topics import Topic, TopicStore
from orderwire.broker.upkeep import Upkeep
from orderwire.broker.wire.parts import Buffer
from orderwire.kernel import NS_PER_MS, Instant

if TYPE_CHECKING:
    from orderwire.broker.node import Broker

ELECTIONS_MAX = 100
"""Requests that wait for one partition's original."""
_TOO_EARLY = Refused(
    ErrorCode.NOT_ENOUGH_REPLICAS, "an earlier batch of this producer was refused: send it first"
)
_IN_DOUBT = Refused(
    ErrorCode.NOT_LEADER_OR_FOLLOWER, "this broker does not know whether it is original still"
)


class ReplicaOf(msgspec.Struct, frozen=True, kw_only=True):
    """Which replica to open."""

    topic: Topic
    index: int
    log: LogConfig
    mode: Mode
    settings: ReplicationSettings
    damage: str | None = None
    """What was found wrong with it while it was open: to be set aside."""


DoAside: TypeAlias = Callable[
    [Callable[[], Any], Callable[[Any, Instant], None], Instant],
    None,
]
"""Does a job in another thread, begun now, and then something with its result, in ours."""
Fits: TypeAlias = Callable[[PartitionView], bool]
"""Whether a view is what somebody waits for."""
OpenReplica: TypeAlias = Callable[[ReplicaOf], Replica]
"""Opens (or makes) this broker's replica of one partition.  Raises StorageError."""


HELD_MAX = 1_000
"""Messages that wait for a replica to be open; more are dropped."""


class _Opening:
    """A replica that is about to be there."""

    def __init__(self, topic: Topic, index: int) -> None:
        self.topic = topic
        self.index = index
        self.begun = False
        self.gone = False
        """The topic was deleted meanwhile."""
        self.held: list[tuple[BrokerId, msgspec.Struct]] = []
        """What came for it."""


class Asker(Protocol):
    """A request that waits for replicas' answers."""

    def answered(self, position: int, result: Appended | Refused) -> None:
        """Take the answer that was asked for under this position."""
        ...


class Replicas:
    """Every replica at this broker."""

    def __init__(self, broker: "Broker", cluster: Cluster, open_replica: OpenReplica) -> None:
        self.cluster = cluster
        self.me = cluster.me
        self._broker = broker
        self._open = open_replica
        self._asked: dict[int, tuple[Asker, int, Partition, Batch | None]] = {}
        self.refused = RefusedProducers()
        """Whose batches were not taken here, and have to come again."""
        self._next_number = count(1).__next__
        self._due: list[tuple[Instant, int, Partition]] = []
        self._touched: dict[Partition, None] = {}
        """Whose next deadline may be another than is noted."""
        self._connected: set[BrokerId] = set()
        self._in_doubt = False
        self._opening: dict[tuple[bytes, int], _Opening] = {}
        self.creating: set[str] = set()
        """Topics that are being made because somebody asked for them."""
        self.questions = Questions(broker, self)
        """What brokers ask each other."""
        self.settling = Settling(broker, self)
        """Who waits for news."""
        self.upkeep = Upkeep(broker, self)
        """What is done without anybody asking."""
        self.lost = LostReplicas(broker, self)
        """Replicas whose files are damaged, until they are open again."""
        self._making = 0
        """Partitions of topics that are being made."""
        self._unready: dict[bytes, list[Callable[[], None]]] = {}
        self._elections: dict[tuple[bytes, int], list[tuple[Fits, Done]]] = {}
        """Who waits until another is original."""
        self._later: list[Callable[[Instant], None]] = []
        self._depth = 0
        self.on_advance: Callable[[Partition, int], None] | None = None
        """Told of every high watermark before it holds: of the partition and what it will be."""

    # -- requests ---------------------------------------------------------------------------

    def produce(
        self,
        partition: Partition,
        asker: Asker,
        position: int,
        connection: int,
        records: Buffer,
        acks: int,
        now: Instant,
    ) -> int:
        """Hand batches to a replica; returns the number to `forget` them by.

        `asker.answered` may be called before this returns.
        """
        assert partition.replica is not None
        number = self._next_number()
        batch = RefusedProducers.batch_of(records)
        if batch is not None and any(
            self.refused.is_too_early(topic, partition.index, batch, partition.log, now)
            for topic in (partition.of.topic_id, partition.topic)
        ):
            asker.answered(position, _TOO_EARLY)
            return number
        if self._in_doubt and self.is_original(partition):
            self._note_refused(partition, batch)
            asker.answered(position, _IN_DOUBT)
            return number
        self._asked[number] = (asker, position, partition, batch)
        partition.taken_bytes += memoryview(records).nbytes
        try:
            effects = partition.replica.produce(number, connection, records, acks, now)
        except LogDamaged as damage:
            self._broker.damaged(partition, damage)
            return number
        self.carry_out(partition, effects, now)
        return number

    def forget(self, partition: Partition, number: int) -> None:
        """Nobody waits for this answer any more."""
        asked = self._asked.pop(number, None)
        if asked is not None:
            self._note_refused(asked[2], asked[3])
            if partition.replica is not None:
                partition.replica.forget(number)

    def _note_refused(self, partition: Partition, batch: Batch | None) -> None:
        if batch is not None:
            self.refused.refused(partition.of.topic_id, partition.index, batch)

    def wanted(self, partition: Partition, now: Instant) -> None:
        """A fetch waits at this partition's high watermark."""
        if partition.replica is not None:
            self.have(partition, lambda it: it.wanted(now), now)

    def have(self, partition: Partition, act: Callable[[Replica], Effects], now: Instant) -> None:
        """Call a replica and do what it asks for; one that finds damage is given up."""
        if partition.replica is None or partition.given_up:
            return
        try:
            effects = act(partition.replica)
        except LogDamaged as damage:
            self._broker.damaged(partition, damage)
            return
        self.carry_out(partition, effects, now)

    def refuse_asked(self, partition: Partition, result: Refused) -> None:
        """Answer everything that a replica was asked and will not answer any more."""
        for number, asked in list(self._asked.items()):
            if asked[2] is partition and self._asked.pop(number, None) is not None:
                self._note_refused(asked[2], asked[3])
                asked[0].answered(asked[1], result)

    def carry_out(self, partition: Partition, effects: Effects, now: Instant) -> None:
        """Do what a replica asks for, in its order."""
        broker = self._broker
        self._depth += 1
        for effect in effects:
            kind = type(effect)
            if kind is Answer:
                asked = self._asked.pop(effect.token, None)  # type: ignore[union-attr]
                if asked is not None:
                    result = effect.result  # type: ignore[union-attr]
                    if type(result) is Refused:
                        self._note_refused(asked[2], asked[3])
                    asked[0].answered(asked[1], result)
            elif kind is Advance:
                if self.on_advance is not None:
                    self.on_advance(partition, effect.high_watermark)  # type: ignore[union-attr]
                broker.advance(partition, effect.high_watermark)  # type: ignore[union-attr]
                if partition.topic == GROUPS_TOPIC:
                    self.later(partial(broker.groups_advanced, partition))
            elif kind is Sync:
                broker.dirty(partition)
            else:
                self.cluster.carry_out(partition.of, partition.index, effect)
                if kind is Note and partition.topic == GROUPS_TOPIC:
                    event = type(effect.event)  # type: ignore[union-attr]
                    if event is Recovered:
                        self.later(partial(broker.groups_recovered, partition))
                    elif event is Deposed:
                        broker.groups_deposed(partition)
        self._depth -= 1
        self._touched[partition] = None
        if self.settling.misses_any:
            self.later(partial(self.settling.look, partition.topic_id, partition.index))
        while self._later and not self._depth:
            later, self._later = self._later, []
            for work in later:
                work(now)

    def later(self, work: Callable[[Instant], None]) -> None:
        """Do something when the effects that are being carried out are done: what a replica is
        asked meanwhile would overtake them."""
        self._later.append(work)

    # -- time -------------------------------------------------------------------------------

    def _arm(self) -> None:
        """Note when replicas are due that were asked anything: once a turn, not at each message."""
        for partition in self._touched:
            if partition.replica is None or not self._broker.has(partition):
                continue
            when = partition.replica.next_deadline()
            if when is not None and (partition.armed is None or when < partition.armed):
                partition.armed = when
                heapq.heappush(self._due, (when, self._next_number(), partition))
        self._touched.clear()

    def next_deadline(self) -> Instant | None:
        """When `wake` is next due."""
        if self._touched:
            self._arm()
        due = [each.next_deadline() for each in (self.questions, self.upkeep, self.settling)]
        if self._due:
            due.append(self._due[0][0])
        return min((each for each in due if each is not None), default=None)

    def wake(self, now: Instant) -> None:
        """Act on every deadline at or before `now`, each once."""
        self.questions.wake(now)
        self.upkeep.wake(now)
        self.settling.wake(now)
        self._arm()
        due = []
        while self._due and self._due[0][0] <= now:
            when, _, partition = heapq.heappop(self._due)
            if partition.armed == when:
                partition.armed = None
                due.append(partition)
        for partition in due:
            if partition.replica is not None and self._broker.has(partition):
                self.have(partition, lambda it: it.wake(now), now)

    # -- what the cluster tells -------------------------------------------------------------

    def open(self, topic: Topic, index: int, now: Instant) -> None:
        """Open this broker's replica of a partition, should it have one: aside, as soon as there is
        a view.  That says which epochs are over: only then are others heard.  [R2]"""
        if self.me not in topic.replicas[index] or self.lost.waits(topic.topic_id, index):
            return
        opening = self._opening.setdefault((topic.topic_id, index), _Opening(topic, index))
        if not opening.begun:
            opening.topic = topic
        self._begin_opening(topic.topic_id, index, now)

    def _begin_opening(self, topic_id: bytes, index: int, now: Instant) -> None:
        opening = self._opening.get((topic_id, index))
        if opening is None or opening.begun:
            return
        topic = opening.topic
        view = self.cluster.view(topic, index)
        if view is None:
            return
        opening.begun = True
        of = ReplicaOf(
            topic=topic,
            index=index,
            log=self._broker.log_config(topic),
            mode=mode_of(self._broker.topics, topic),
            settings=self._settings(topic, index),
            damage=self.lost.take_reason(topic.topic_id, index),
        )

        def job() -> tuple[Replica, Effects | LogDamaged]:
            replica = self._open(of)
            try:
                return replica, replica.viewed(view, now)
            except LogDamaged as damage:
                return replica, damage

        def opened(result: tuple[Replica, Effects | LogDamaged], then: Instant) -> None:
            self._opened(opening, of, *result, then)

        self._broker.aside(job, opened, now)

    def _opened(
        self,
        opening: "_Opening",
        of: ReplicaOf,
        replica: Replica,
        effects: Effects | LogDamaged,
        now: Instant,
    ) -> None:
        """Tell a replica that is open what is known, and what came meanwhile."""
        topic, index = opening.topic, opening.index
        del self._opening[topic.topic_id, index]
        if opening.gone:
            replica.close()
            self._broker.remove_logs(topic)
            return
        partition = Partition(topic, index, replica.log, replica, of.mode)
        self._broker.add(partition)
        if isinstance(effects, LogDamaged):
            self._broker.damaged(partition, effects)
            return
        self.carry_out(partition, effects, now)
        newest = self._broker.topics.by_id(topic.topic_id)
        if newest is not None and newest is not topic:
            self._broker.reconfigure(newest, now)
        view = self.cluster.view(partition.of, index)
        if view is not None:
            self.have(partition, lambda it: it.viewed(view, now), now)
        for broker in sorted(self._connected):
            if broker in partition.of.replicas[index]:
                self._connect(partition, broker, now)
        for source, message in opening.held:
            self._take(partition, source, message, now)

    def is_opening(self, topic_id: bytes) -> bool:
        """Whether a partition's files are being opened: what is there must stay until then."""
        return any(key[0] == topic_id for key in self._opening)

    def _settings(self, topic: Topic, index: int) -> ReplicationSettings:
        return msgspec.structs.replace(
            replication_settings(self._broker.topics, topic, len(topic.replicas[index])),
            flush=self._broker.settings.flush,
        )

    def configure(self, partition: Partition, now: Instant) -> None:
        """A partition's topic is configured otherwise than before, or has more partitions."""
        assert partition.replica is not None
        settings = self._settings(partition.of, partition.index)
        self.have(partition, lambda it: it.configure(settings, now), now)

    def topic_changed(self, before: Topic | None, topic: Topic, now: Instant) -> None:
        """A topic is there, or its partitions have other replicas than before."""
        self.upkeep.look_soon(now)
        if before is None:
            return
        for index, members in enumerate(before.replicas):
            partition = self._broker.partition(topic.name, index)
            if partition is None or partition.replica is None or self.me not in members:
                continue
            for other in sorted(self._connected & set(topic.replicas[index]) - set(members)):
                self._connect(partition, other, now)

    def _connect(self, partition: Partition, other: BrokerId, now: Instant) -> None:
        self.have(partition, lambda it: it.connected(other, now), now)

    def viewed(self, topic_id: bytes, index: int, view: PartitionView, now: Instant) -> None:
        """Take the view of a partition, here or elsewhere."""
        partition = self.found(topic_id, index)
        if partition is not None and partition.replica is not None:
            self.have(partition, lambda it: it.viewed(view, now), now)
            self._go_back(partition)
        self._begin_opening(topic_id, index, now)
        self._look_ready(topic_id)
        self.settling.look(topic_id, index, now)
        waiting = self._elections.pop((topic_id, index), [])
        if left := [each for each in waiting if not each[0](view)]:
            self._elections[topic_id, index] = left
        for fits, done in waiting:
            if fits(view):
                done(None)

    def _go_back(self, partition: Partition) -> None:
        """Consumers read no further than before what was lost; who waits there is told."""
        replica = partition.replica
        if replica is not None and replica.high_watermark < partition.high_watermark:
            partition.high_watermark = replica.high_watermark
            self._broker.parked.look_again(partition.waiting)

    def when(self, topic: Topic, index: int, fits: Fits, done: Done) -> None:
        """Call back when a partition's next view is such a one."""
        waiting = self._elections.setdefault((topic.topic_id, index), [])
        if len(waiting) >= ELECTIONS_MAX:
            done(Refusal(ErrorCode.POLICY_VIOLATION, "too many wait for this election already"))
        else:
            waiting.append((fits, done))

    def session_in_doubt(self, in_doubt: bool) -> None:
        """Take nothing as original while another may be: it is refused in its epoch, not lost, but
        who waits for it would wait in vain.  What was taken may still be committed: every member
        promises to this epoch then.  [R3, S004:4.6]"""
        self._in_doubt = in_doubt

    def session_lost(self, now: Instant) -> None:
        """Stop being original of anything, at once.  [S004:4.6]"""
        for partition in self._all():
            self.have(partition, lambda it: it.session_lost(now), now)

    def connected(self, other: BrokerId, now: Instant) -> None:
        """A connection to another broker is there."""
        self._connected.add(other)
        for partition in self._all():
            if other in partition.of.replicas[partition.index]:
                self.have(partition, lambda it: it.connected(other, now), now)

    def reaches(self, broker: BrokerId) -> bool:
        """Whether this is us, or there is a connection."""
        return broker == self.me or broker in self._connected

    def disconnected(self, other: BrokerId, now: Instant) -> None:
        """It broke, or the broker has gone."""
        self._connected.discard(other)
        for opening in self._opening.values():
            opening.held = [each for each in opening.held if each[0] != other]
        for partition in self._all():
            if other in partition.of.replicas[partition.index]:
                self.have(partition, lambda it: it.disconnected(other, now), now)

    def process_ended(self, other: BrokerId, now: Instant) -> None:
        """Its process is known to have ended: who waits for it can go on."""
        for partition in self._all():
            if other in partition.of.replicas[partition.index]:
                self.have(partition, lambda it: it.ended(other, now), now)

    def locked(self, topic_id: bytes, index: int, now: Instant) -> None:
        """Somebody asks for a round by `lock/<id>`."""
        partition = self.found(topic_id, index)
        if partition is not None and partition.replica is not None:
            self.have(partition, lambda it: it.locked(now), now)

    def sync_end_seen(
        self, topic_id: bytes, index: int, end: int, epoch: int, round_number: int, now: Instant
    ) -> None:
        """A partition's `syncEnd` was written."""
        partition = self.found(topic_id, index)
        if partition is not None and partition.replica is not None:
            self.have(partition, lambda it: it.sync_end_seen(end, epoch, round_number, now), now)

    def receive(
        self, topic_id: bytes, index: int, source: BrokerId, message: msgspec.Struct, now: Instant
    ) -> None:
        """Take a message of another broker's replica.  Raises RemoteProtocolError.

        Of a topic that we do not know (yet, or any more) it is dropped: the sender is told of us
        when we have opened it, by a new connection or by its own time limits.  While it is
        being opened the message waits.
        """
        partition = self.found(topic_id, index)
        if partition is not None and partition.replica is not None:
            self._take(partition, source, message, now)
            return
        opening = self._opening.get((topic_id, index))
        if opening is not None and len(opening.held) < HELD_MAX:
            opening.held.append((source, message))

    def _take(
        self, partition: Partition, source: BrokerId, message: msgspec.Struct, now: Instant
    ) -> None:
        self.have(partition, lambda it: it.receive(source, message, now), now)

    def make(self, topic: Topic, done: Done) -> None:
        """Have the cluster make a topic, unless that would be too many at once."""
        refusal = self._broker.topics.room_for(self._making + topic.partitions)
        if refusal is not None:
            done(refusal)
            return
        self._making += topic.partitions

        def made(refusal: Refusal | None) -> None:
            self._making -= topic.partitions
            done(refusal)

        self.cluster.create(topic, made)

    def gone(self, topic_id: bytes) -> None:
        """A topic was deleted: nobody waits for it any more."""
        self._unready.pop(topic_id, None)
        for key in [each for each in self._elections if each[0] == topic_id]:
            del self._elections[key]
        for key, opening in list(self._opening.items()):
            if key[0] == topic_id:
                opening.gone = True
                if not opening.begun:
                    del self._opening[key]

    def when_ready(self, topic: Topic, then: Callable[[], None]) -> None:
        """Call back when a new topic is known here and each partition has an original."""
        self._unready.setdefault(topic.topic_id, []).append(then)
        self._look_ready(topic.topic_id)

    def _look_ready(self, topic_id: bytes) -> None:
        waiting = self._unready.get(topic_id)
        topic = self._broker.topics.by_id(topic_id)
        if not waiting or topic is None:
            return
        for index in range(topic.partitions):
            view = self.cluster.view(topic, index)
            if view is None or view.original is None:
                return
        del self._unready[topic_id]
        for then in waiting:
            then()

    def is_original(self, partition: Partition) -> bool:
        """Whether we are original, as far as we know."""
        replica = partition.replica
        return replica is not None and replica.view is not None and replica.view.original == self.me

    def readers(self, partition: Partition) -> list[BrokerId]:
        """In-sync members that live, ascending."""
        replica = partition.replica
        if replica is None or replica.view is None:
            return []
        alive = {one.broker_id for one in self.cluster.brokers()}
        return [member for member in replica.view.isr if member in alive]

    def found(self, topic_id: bytes, index: int) -> Partition | None:
        """Return a partition that is here, by its topic's id."""
        topic = self._broker.topics.by_id(topic_id)
        return None if topic is None else self._broker.partition(topic.name, index)

    def _all(self) -> Iterator[Partition]:
        for partition in list(self._broker.all_partitions()):
            if partition.replica is not None:
                yield partition


def mode_of(topics: TopicStore, topic: Topic) -> Mode:
    """Which protocol a topic's replicas keep."""
    return Mode(topics.config(topic, "orderwire.mode"))


def replication_settings(topics: TopicStore, topic: Topic, replicas: int) -> ReplicationSettings:
    """Return what a topic's configuration means to its replicas."""

    def text(name: str) -> str:
        return topics.config(topic, f"orderwire.{name}")

    return ReplicationSettings(
        min_insync_replicas=min(int(topics.config(topic, "min.insync.replicas")), replicas),
        sync_interval_ns=int(text("sync.interval.ms")) * NS_PER_MS,
        sync_on_fetch=text("sync.on.fetch") == "true",
        eager_copy=text("eager.copy") == "true",
        round_timeout_ns=int(text("round.timeout.ms")) * NS_PER_MS,
        hole_timeout_ns=int(text("hole.timeout.ms")) * NS_PER_MS,
        hole_policy=HolePolicy(text("hole.policy")),
        orphan_policy=OrphanPolicy(text("orphan.policy")),
        distribution=Distribution(text("distribution")),
        coordination=Coordination(text("coordination")),
    )
