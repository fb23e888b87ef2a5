"""What a cluster's brokers do by themselves: make copies that are missing, give partitions back to
their preferred originals, and, where a topic allows it, go on without those that are gone.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from orderwire.broker.partitions import Partition
from orderwire.broker.replication.view import BrokerId
from orderwire.broker.succession import put_in_place
from orderwire.broker.topic_config import Refusal
from orderwire.broker.topics import Topic
from orderwire.kernel import NS_PER_S, Instant

if TYPE_CHECKING:
    from orderwire.broker.node import Broker
    from orderwire.broker.replicas import Replicas

SETTLE_NS = NS_PER_S
"""Brokers and topics that have just come are left in peace for so long."""
PERIOD_NS = 5 * NS_PER_S
"""How often is looked, whatever is told."""
HAND_OVERS_MAX = 20
"""Partitions that are given to their preferred originals at a time."""
UNCLEAN_AFTER_NS = 10 * NS_PER_S
"""So long a partition of a topic that allows unclean elections is without an original before."""


class Upkeep:
    """Looks after partitions, now and then."""

    def __init__(self, broker: "Broker", replicas: "Replicas") -> None:
        self._broker = broker
        self._replicas = replicas
        self._look_at: Instant | None = None
        self._changing = False
        """Whether a change of a topic is under way."""
        self._elsewhere: dict[Partition, Instant] = {}
        """Since when we are original of what another should be, and could be."""
        self._bereft: dict[tuple[bytes, int], Instant] = {}
        """Since when nobody is original of what may be elected uncleanly."""

    def look_soon(self, now: Instant) -> None:
        """Something has changed: look when it has settled."""
        due = Instant(now + SETTLE_NS)
        if self._look_at is None or due < self._look_at:
            self._look_at = due

    def next_deadline(self) -> Instant | None:
        """When `wake` is next due."""
        return self._look_at

    def wake(self, now: Instant) -> None:
        """Look, when it is time."""
        if self._look_at is None or now < self._look_at:
            return
        after_ns = self._broker.settings.preferred_after_ns
        self._look_at = Instant(now + min(PERIOD_NS, after_ns or PERIOD_NS))
        self._fill_up(now)
        self._go_on_without(now)
        if after_ns:
            self._give_back(now, after_ns)

    def _give_back(self, now: Instant, after_ns: int) -> None:
        """Let originals be where they should: who has been in sync, and reached, for so long takes
        its partitions back, some at a time.  Who comes and goes gets nothing."""
        replicas = self._replicas
        before, self._elsewhere = self._elsewhere, {}
        given = 0
        for partition in self._broker.all_partitions():
            view = None if partition.replica is None else partition.replica.view
            if (
                view is None
                or view.original != replicas.me
                or view.preferred in (None, replicas.me)
                or view.preferred not in view.isr
                or not replicas.reaches(view.preferred)
            ):
                continue
            since = self._elsewhere[partition] = before.get(partition, now)
            if now - since >= after_ns and given < HAND_OVERS_MAX:
                given += 1
                self._elsewhere[partition] = now  # should it stay, it is asked as much later
                replicas.questions.hand_over(partition, now)

    def _is_first(self) -> bool:
        """Whether we are the first broker that lives, as far as we know."""
        cluster = self._replicas.cluster
        alive = [one.broker_id for one in cluster.brokers()]
        return bool(alive) and alive[0] == self._replicas.me and cluster.is_sure()

    def _go_on_without(self, now: Instant) -> None:
        """Where a topic allows it, put another in the place of an in-sync set that is gone.

        Whoever is in sync, lives and has what is committed is elected long before.
        """
        before, self._bereft = self._bereft, {}
        if not self._is_first():
            return
        topics = self._broker.topics
        for topic in topics:
            if topics.config(topic, "unclean.leader.election.enable") != "true":
                continue
            for index in range(topic.partitions):
                view = self._replicas.cluster.view(topic, index)
                if view is None or view.original is not None:
                    continue
                key = (topic.topic_id, index)
                since = self._bereft[key] = before.get(key, now)
                if now - since >= UNCLEAN_AFTER_NS:
                    self._bereft[key] = now
                    put_in_place(self._broker, topic, index, _later, waits=False)

    def _fill_up(self, now: Instant) -> None:
        """Give one topic the copies that it lacks.

        The first broker that lives does it for all; should another think that it is the first, the
        topic's version decides.  Each new replica takes what is committed before it is in sync
        [S004:R8], and the others go on meanwhile.
        """
        replicas, topics = self._replicas, self._broker.topics
        if self._changing or not self._is_first():
            return
        alive = [one.broker_id for one in replicas.cluster.brokers()]
        for topic in topics:
            filled = filled_up(topic, alive, topics)
            if filled is None:
                continue
            self._changing = True

            def done(refusal: Refusal | None) -> None:
                self._changing = False
                if refusal is None:
                    self.look_soon(now)

            replicas.cluster.change(filled, done)
            return


def _later(refusal: Refusal | None) -> None:
    """What cannot be done now may be at the next look."""


def filled_up(topic: Topic, alive: Sequence[BrokerId], topics: Iterable[Topic]) -> Topic | None:
    """Return the topic with more replicas, at those that live and have fewest; None: it lacks
    none, or nobody could take one."""
    if all(
        len(members) >= topic.replication or set(alive) <= set(members)
        for members in topic.replicas
    ):
        return None
    load = Counter(member for one in topics for members in one.replicas for member in members)
    replicas = []
    for members in topic.replicas:
        more = list(members)
        while len(more) < topic.replication:
            free = [(load[one], one) for one in alive if one not in more]
            if not free:
                break
            chosen = min(free)[1]
            load[chosen] += 1
            more.append(chosen)
        replicas.append(tuple(more))
    return msgspec.structs.replace(topic, replicas=tuple(replicas))
