"""Requests that come sooner than news: held for a moment, until this broker has heard.

A client asks who leads as soon as its connection to an original breaks, and an administrator goes
on with a new topic before every broker has heard of it.  Refused, a client pauses, some for a whole
second.  So what names a topic that is not known here waits until ZooKeeper has been asked; who asks
for leaders, until they have been heard; and what names a partition that nobody leads, or that we
lead and still recover, until somebody does.
"""

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from orderwire.broker.hearing import HEAR_NS, Hearing
from orderwire.broker.replication.settings import Mode
from orderwire.broker.replication.view import BrokerId
from orderwire.broker.topics import Topic, TopicStore
from orderwire.kernel import NS_PER_MS, NS_PER_S, Instant

if TYPE_CHECKING:
    from orderwire.broker.node import Broker
    from orderwire.broker.replicas import Replicas

HOLD_NS = NS_PER_S
"""A partition that nobody leads is waited for until so long after it was first missed: not once
more by each request.  ZooKeeper is waited for as long."""
HELD_MAX = 10_000
"""What may wait at once; more is served as it comes."""
HELD_BYTES_MAX = 64 << 20
"""And its bytes."""
_LOOK_NS = 25 * NS_PER_MS
"""How often it is looked at without news: whether a process lives is not told."""

_LANES = Mode.ACTIVE_ACTIVE_LANES.value

_Key: TypeAlias = tuple[bytes, int, bool]
"""A topic's id, a partition, and whether it is to be led here."""


class Named(msgspec.Struct, frozen=True, gc=False):
    """A topic that somebody names, by its name or id, and the partitions that it is about."""

    topic: str | bytes
    indexes: Collection[int] | None = ()
    """None: all that it has."""
    anew: bool = False
    """ZooKeeper is asked even if the topic is known: it may have changed meanwhile."""
    here: bool = True
    """Whether it is this broker that is to lead, should it be among those that do; False: its
    client only wants to know who does."""


def has_lanes(topics: TopicStore, topic: Topic) -> bool:
    """Whether every replica in sync of a topic's partitions is a leader of some clients."""
    return topics.config(topic, "orderwire.mode") == _LANES


class Lack:
    """What is to be waited for before something that was named is served."""

    __slots__ = ("bytes_held", "leaders", "leading", "missing", "named", "news", "unknown")

    def __init__(
        self, named: Sequence[Named], bytes_held: int, leading: set[BrokerId], news: int
    ) -> None:
        self.named = named
        self.bytes_held = bytes_held
        self.leading = leading
        """Brokers that could lead when we looked."""
        self.news = news
        """And how much we had heard of partitions."""
        self.unknown = False
        """ZooKeeper is to be asked."""
        self.leaders: dict[BrokerId, tuple[Topic, int]] = {}
        """Who is to be heard, and something that it should lead."""
        self.missing: set[_Key] = set()
        """The partitions that are worth waiting for."""

    def __bool__(self) -> bool:
        return self.unknown or bool(self.leaders) or bool(self.missing)


class _Waiting:
    """What goes on once nothing is missing."""

    __slots__ = ("is_over", "lack", "missing", "silent", "then", "until")

    def __init__(self, lack: Lack, then: Callable[[Instant], None], until: Instant) -> None:
        self.lack = lack
        self.then = then
        self.until = until
        """So long it waits for what it waits for now."""
        self.silent: set[BrokerId] = set()
        """Leaders that have not answered yet."""
        self.missing: set[_Key] = set()
        self.is_over = False


class Settling:
    """Who waits for news at this broker."""

    def __init__(self, broker: "Broker", replicas: "Replicas") -> None:
        self._broker = broker
        self._replicas = replicas
        self._missed: dict[_Key, Instant] = {}
        """Since when a partition has been missed that nobody leads."""
        self._waiting: dict[_Key, list[_Waiting]] = {}
        self._to_learn: list[_Waiting] = []
        """Who waits for the next question to ZooKeeper."""
        self._learning: list[_Waiting] = []
        """Who waits for the answer to this one."""
        self._asked_at: Instant | None = None
        self._hearing = Hearing(replicas.cluster)
        self._unheard: dict[_Waiting, None] = {}
        """Who waits for leaders' answers."""
        self._count = 0
        self._bytes = 0
        self._look_at: Instant | None = None
        self._news = 0
        """Counts what we have heard of partitions."""

    def lack(self, named: Sequence[Named], now: Instant, bytes_held: int = 0) -> Lack | None:
        """What there is to wait for, if there is room for who does."""
        if self._count >= HELD_MAX or self._bytes + bytes_held > HELD_BYTES_MAX:
            return None
        return self._look_for(named, now, bytes_held) or None

    def wait(
        self,
        named: Sequence[Named],
        then: Callable[[Instant], None],
        now: Instant,
        bytes_held: int = 0,
    ) -> bool:
        """Call back once what is named is known and led, or has been waited for long enough.

        False: there is nothing to wait for, or no room; it is not called then.  It may be called
        before this returns.
        """
        lack = self.lack(named, now, bytes_held)
        if lack is not None:
            self.wait_for(lack, then, now)
        return lack is not None

    def wait_for(self, lack: Lack, then: Callable[[Instant], None], now: Instant) -> None:
        """As `wait`, for what was lacking in this moment."""
        waiting = _Waiting(lack, then, Instant(now + HOLD_NS))
        self._take(waiting, now)
        if not lack.unknown:
            self._hear(waiting, now)
            return
        self._to_learn.append(waiting)
        if self._asked_at is None:
            self._ask(now)

    def _take(self, waiting: _Waiting, now: Instant) -> None:
        self._count += 1
        self._bytes += waiting.lack.bytes_held
        due = Instant(now + _LOOK_NS)
        self._look_at = due if self._look_at is None else min(self._look_at, due)

    def _go(self, waiting: _Waiting, now: Instant) -> None:
        if not waiting.is_over:
            waiting.is_over = True
            self._count -= 1
            self._bytes -= waiting.lack.bytes_held
            waiting.then(now)

    # -- topics -----------------------------------------------------------------------------

    def _topic(self, named: str | bytes) -> Topic | None:
        topics = self._broker.topics
        return topics.get(named) if isinstance(named, str) else topics.by_id(named)

    def _is_known(self, one: Named, topic: Topic | None) -> bool:
        if topic is None or not one.indexes:
            return topic is not None
        return all(index < topic.partitions for index in one.indexes)

    def _may_ask(self, now: Instant) -> bool:
        """Whether ZooKeeper is there: a question that is open for long says no."""
        return self._asked_at is None or now < self._asked_at + HOLD_NS

    def _ask(self, now: Instant) -> None:
        """Find out what there is by now; who comes meanwhile asks again."""
        self._asked_at = now
        self._learning, self._to_learn = self._to_learn, []
        names = {
            one.topic
            for waiting in self._learning
            for one in waiting.lack.named
            if isinstance(one.topic, str)
            and (one.anew or not self._is_known(one, self._topic(one.topic)))
        }
        self._replicas.cluster.learn(sorted(names), self._learnt)

    def _learnt(self, now: Instant) -> None:
        """What ZooKeeper has was told before."""
        self._asked_at = None
        learning, self._learning = self._learning, []
        if self._to_learn:
            self._ask(now)
        for waiting in learning:
            if not waiting.is_over:
                waiting.lack = self._look_again(waiting.lack, now)
                self._hear(waiting, now)

    # -- brokers ----------------------------------------------------------------------------

    def _hear(self, waiting: _Waiting, now: Instant) -> None:
        """Have those answer who would be named as leaders."""
        lack = waiting.lack
        if not lack.leaders:
            self._await(waiting, lack.missing, now)
            return
        waiting.silent = set(lack.leaders)
        waiting.until = Instant(now + HEAR_NS)
        self._unheard[waiting] = None
        for broker, (topic, index) in sorted(lack.leaders.items()):

            def heard(broker: BrokerId = broker) -> None:
                waiting.silent.discard(broker)
                if not waiting.silent and waiting in self._unheard:
                    del self._unheard[waiting]
                    self._settle(waiting, now)

            self._hearing.ask(broker, topic, index, heard, now)

    def _settle(self, waiting: _Waiting, now: Instant) -> None:
        """Wait for what nobody leads by now; nearly always nothing has changed meanwhile."""
        lack = waiting.lack
        if lack.missing or lack.news != self._news or lack.leading != self._leading():
            lack = self._look_again(lack, now)
        self._await(waiting, lack.missing, now)

    # -- partitions -------------------------------------------------------------------------

    def _look_for(self, named: Sequence[Named], now: Instant, bytes_held: int = 0) -> Lack:
        """One look at everything: refreshes name hundreds of topics."""
        leading = self._leading()
        lack = Lack(named, bytes_held, leading, self._news)
        leaders: dict[BrokerId, tuple[Topic, int]] = {}
        for one in named:
            topic = self._topic(one.topic)
            if one.anew or not self._is_known(one, topic):
                lack.unknown = True
            if topic is None:
                continue
            lanes = has_lanes(self._broker.topics, topic)
            for index in range(topic.partitions) if one.indexes is None else one.indexes:
                if not 0 <= index < topic.partitions:
                    continue
                found = self._leaders(topic, index, leading, lanes=lanes)
                if not one.here:
                    for broker in found:
                        if broker not in leaders:
                            leaders[broker] = topic, index
                if not self._is_ready(topic, index, found, here=one.here or not lanes):
                    key = topic.topic_id, index, one.here
                    if now < self._missed.setdefault(key, now) + HOLD_NS:
                        lack.missing.add(key)
        lack.unknown = lack.unknown and self._may_ask(now)
        lack.leaders = {
            broker: place
            for broker, place in leaders.items()
            if broker != self._replicas.me and not self._hearing.is_silent(broker, now)
        }
        return lack

    def _look_again(self, lack: Lack, now: Instant) -> Lack:
        return self._look_for(lack.named, now, lack.bytes_held)

    def _leading(self) -> set[BrokerId]:
        cluster = self._replicas.cluster
        alive = (one.broker_id for one in cluster.brokers())
        return {broker for broker in alive if not cluster.may_have_ended(broker)}

    def _leaders(
        self, topic: Topic, index: int, leading: set[BrokerId], *, lanes: bool
    ) -> Sequence[BrokerId]:
        """Whom clients may be told as leader."""
        view = self._replicas.cluster.view(topic, index)
        if view is None or view.original is None:
            return ()
        if lanes:
            return [member for member in view.isr if member in leading]
        return (view.original,) if view.original in leading else ()

    def _is_ready(
        self, topic: Topic, index: int, leaders: Sequence[BrokerId], *, here: bool
    ) -> bool:
        """Whether clients can be told who leads; `here`: that we do only if we are ready to."""
        if not here or self._replicas.me not in leaders:
            return bool(leaders)
        partition = self._broker.partition(topic.name, index)
        return (
            partition is not None
            and partition.replica is not None
            and partition.replica.takes_produce
        )

    def _is_led(self, topic: Topic, index: int, *, here: bool) -> bool:
        lanes = has_lanes(self._broker.topics, topic)
        leaders = self._leaders(topic, index, self._leading(), lanes=lanes)
        return self._is_ready(topic, index, leaders, here=here or not lanes)

    def _await(self, waiting: _Waiting, missing: set[_Key], now: Instant) -> None:
        if not missing:
            self._go(waiting, now)
            return
        waiting.missing = missing
        for key in missing:
            self._waiting.setdefault(key, []).append(waiting)

    @property
    def holds_any(self) -> bool:
        """Whether somebody waits."""
        return self._count > 0

    @property
    def misses_any(self) -> bool:
        """Whether `look` may find something."""
        return bool(self._missed)

    def look(self, topic_id: bytes, index: int, now: Instant) -> None:
        """There may be news of this partition."""
        self._news += 1
        for here in (False, True):
            self._look((topic_id, index, here), now)

    def _look(self, key: _Key, now: Instant) -> None:
        topic_id, index, here = key
        since = self._missed.get(key)
        if since is None:
            return
        topic = self._broker.topics.by_id(topic_id)
        is_led = topic is None or self._is_led(topic, index, here=here)
        if is_led:
            del self._missed[key]
        elif now < since + HOLD_NS:
            return
        for waiting in self._waiting.pop(key, ()):
            waiting.missing.discard(key)
            if not waiting.missing:
                self._go(waiting, now)

    # -- time -------------------------------------------------------------------------------

    def next_deadline(self) -> Instant | None:
        """When `wake` is next due."""
        return self._look_at

    def wake(self, now: Instant) -> None:
        """Look at everything that is missed, and go on with what has waited long enough."""
        if self._look_at is None or now < self._look_at:
            return
        for key in list(self._missed):
            self._look(key, now)
        for waiting in [*self._learning, *self._to_learn]:
            if now >= waiting.until:
                self._go(waiting, now)
        for waiting in [each for each in self._unheard if now >= each.until]:
            del self._unheard[waiting]
            self._settle(waiting, now)
        self._look_at = None
        if self._count or self._missed:
            self._look_at = Instant(now + (_LOOK_NS if self._count else HOLD_NS))
