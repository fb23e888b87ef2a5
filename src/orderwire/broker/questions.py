"""What brokers ask each other of a partition, beside what its replicas tell each other."""

import heapq
from typing import TYPE_CHECKING

from orderwire.broker.cluster import Question, Told
from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.log import Refused
from orderwire.broker.partitions import Partition
from orderwire.broker.settling import Named
from orderwire.broker.succession import standing
from orderwire.kernel import NS_PER_MS, NS_PER_S, Instant

if TYPE_CHECKING:
    from orderwire.broker.node import Broker
    from orderwire.broker.replicas import Replicas

ASK_AGAIN_NS = 25 * NS_PER_MS
"""After so long a member that has not heard of a new log start is told, and asked, again."""
SPREAD_MAX_NS = 60 * NS_PER_S
"""Longest that members are waited for."""
_OF_THE_ORIGINAL = (Question.DELETE_RECORDS, Question.END, Question.HAND_OVER)
_NOT_ORIGINAL = Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this broker is not the original")
_NOT_IN_TIME = Refused(ErrorCode.REQUEST_TIMED_OUT, "not every replica has heard of it in time")


class _Spreading:
    """A new log start, until every in-sync member has it."""

    __slots__ = ("asked_at", "done", "knowing", "partition", "start", "until", "waiting")

    def __init__(self, partition: Partition, start: int, done: Told, until: Instant) -> None:
        self.partition = partition
        self.start = start
        self.done = done
        self.until = until
        self.knowing: set[int] = set()
        """Members that have it: a log's start only grows."""
        self.waiting = 0
        """Questions that are not answered."""
        self.asked_at = Instant(0)


class Questions:
    """Asks other brokers, and answers them."""

    def __init__(self, broker: "Broker", replicas: "Replicas") -> None:
        self._broker = broker
        self._replicas = replicas
        self._again: list[tuple[Instant, int, _Spreading]] = []
        self._count = 0

    # -- asked ------------------------------------------------------------------------------

    def answer(
        self, question: Question, topic_id: bytes, index: int, value: int, done: Told, now: Instant
    ) -> None:
        """Answer what another broker asks: once we have heard that we are original, if we are."""
        if question in _OF_THE_ORIGINAL:

            def go(then: Instant) -> None:
                self._answer(question, topic_id, index, value, done, then)

            if self._replicas.settling.wait([Named(topic_id, (index,))], go, now):
                return
        self._answer(question, topic_id, index, value, done, now)

    def _answer(
        self, question: Question, topic_id: bytes, index: int, value: int, done: Told, now: Instant
    ) -> None:
        partition = self._replicas.found(topic_id, index)
        if partition is None:
            done(Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this broker has no such replica"))
            return
        match question:
            case Question.DELETE_RECORDS:
                self.delete_records(partition, value, done, now)
            case Question.END:
                done(self._assigned_end(partition))
            case Question.START:
                done(partition.log.start_offset)
            case Question.HAND_OVER:
                done(self.hand_over(partition, now) or 0)
            case Question.EPOCH | Question.LOG_END:
                done(standing(partition, question))

    def _assigned_end(self, partition: Partition) -> int | Refused:
        """Where the log ends, if nobody can have taken over from us without our knowing."""
        replicas, replica = self._replicas, partition.replica
        if (
            replica is None
            or not replica.takes_produce
            or not replicas.is_original(partition)
            or not replicas.cluster.is_sure()
        ):
            return _NOT_ORIGINAL
        return replica.assigned_end

    def hand_over(self, partition: Partition, now: Instant) -> Refused | None:
        """As original, give a partition up to who is preferred; None: it has begun."""
        replicas, replica = self._replicas, partition.replica
        if replica is None or replica.view is None or not replicas.is_original(partition):
            return _NOT_ORIGINAL
        preferred = replica.view.preferred
        if preferred is None or preferred == replicas.me:
            return Refused(ErrorCode.ELECTION_NOT_NEEDED, "the preferred replica is original")
        if preferred not in replica.view.isr or not replicas.reaches(preferred):
            message = f"broker {preferred} is not in sync, or out of reach"
            return Refused(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, message)
        replicas.carry_out(partition, replica.hand_over(preferred, now), now)
        return None

    # -- asking -----------------------------------------------------------------------------

    def end_of(self, partition: Partition, done: Told, now: Instant) -> None:
        """Ask a partition's original where its log ends; once we have heard who that is."""
        named = [Named(partition.topic_id, (partition.index,))]
        if not self._replicas.settling.wait(named, lambda _: self._end_of(partition, done), now):
            self._end_of(partition, done)

    def _end_of(self, partition: Partition, done: Told) -> None:
        replica = partition.replica
        original = None if replica is None or replica.view is None else replica.view.original
        if original is None or original == self._replicas.me:
            done(_NOT_ORIGINAL)
        else:
            cluster = self._replicas.cluster
            cluster.ask(original, Question.END, partition.of, partition.index, 0, done)

    # -- a new log start --------------------------------------------------------------------

    def delete_records(self, partition: Partition, before: int, done: Told, now: Instant) -> None:
        """As original, forget records; done when every in-sync member that lives has forgotten
        them, too: whoever is elected later does not show them again."""
        result = self._broker.delete_records(partition, before, now)
        if isinstance(result, Refused):
            done(result)
            return
        self._spread(_Spreading(partition, result, done, Instant(now + SPREAD_MAX_NS)), now)

    def _spread(self, spreading: _Spreading, now: Instant) -> None:
        """Ask who is not known to have it; over the same connection it was told before."""
        partition = spreading.partition
        replicas = self._replicas
        if not (self._broker.has(partition) and replicas.is_original(partition)):
            spreading.done(_NOT_ORIGINAL)
            return
        members = [
            member
            for member in replicas.readers(partition)
            if member != replicas.me and member not in spreading.knowing
        ]
        if not members:
            spreading.done(spreading.start)
            return
        if now >= spreading.until:
            spreading.done(_NOT_IN_TIME)
            return
        spreading.asked_at = now
        spreading.waiting = len(members)
        for member in members:

            def told(result: int | Refused, member: int = member) -> None:
                spreading.waiting -= 1
                if isinstance(result, int) and result >= spreading.start:
                    spreading.knowing.add(member)
                if not spreading.waiting:
                    self._told(spreading)

            replicas.cluster.ask(member, Question.START, partition.of, partition.index, 0, told)

    def _told(self, spreading: _Spreading) -> None:
        members = self._replicas.readers(spreading.partition)
        if all(one in spreading.knowing for one in members if one != self._replicas.me):
            spreading.done(spreading.start)
            return
        self._count += 1
        due = Instant(spreading.asked_at + ASK_AGAIN_NS)
        heapq.heappush(self._again, (due, self._count, spreading))

    def next_deadline(self) -> Instant | None:
        """When `wake` is next due."""
        return self._again[0][0] if self._again else None

    def wake(self, now: Instant) -> None:
        """Tell and ask again those that did not know."""
        due = []
        while self._again and self._again[0][0] <= now:
            due.append(heapq.heappop(self._again)[2])
        for spreading in due:
            partition = spreading.partition
            if partition.replica is not None and self._broker.has(partition):
                effects = partition.replica.start_moved(now)
                self._replicas.carry_out(partition, effects, now)
            self._spread(spreading, now)
