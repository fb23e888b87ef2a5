"""When a whole in-sync set is gone for ever: one of the others is put in its place.  [S004:4.8]

Whose log is the latest.  What was committed behind its S is lost but for what that log has, which
its replica tells before it goes on.  Somebody has to want it: Kafka's unclean election.
"""

from functools import partial
from itertools import product
from typing import TYPE_CHECKING

from orderwire.broker.cluster import Done, Question
from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.log import Refused
from orderwire.broker.partitions import Partition
from orderwire.broker.replication.effects import Replace
from orderwire.broker.replication.view import BrokerId, PartitionView
from orderwire.broker.topic_config import Refusal
from orderwire.broker.topics import Topic

if TYPE_CHECKING:
    from orderwire.broker.node import Broker
    from orderwire.broker.replicas import Replicas

_QUESTIONS = (Question.EPOCH, Question.LOG_END)
_NOT_OPEN = Refused(ErrorCode.REPLICA_NOT_AVAILABLE, "this broker's replica is not open")


def put_in_place(
    broker: "Broker", topic: Topic, index: int, done: Done, *, waits: bool = True
) -> None:
    """Find a successor and put it in place; done when somebody is original, if it `waits`.

    Refused when somebody is, or can be elected as usual, and when nobody lives who could.
    """
    replicas = broker.replicas
    view = None if replicas is None else replicas.cluster.view(topic, index)
    if replicas is None or (view is not None and view.original is not None):
        done(Refusal(ErrorCode.ELECTION_NOT_NEEDED, "somebody is original"))
        return
    living = {one.broker_id for one in replicas.cluster.brokers()}
    candidates = [BrokerId(each) for each in topic.replicas[index] if each in living]
    if view is None or not candidates:
        done(_nobody(topic, index, "none of its replicas' brokers lives"))
        return
    _Search(replicas, topic, index, view, candidates, done, waits=waits).begin()


def standing(partition: Partition, question: Question) -> int | Refused:
    """Which log is later shows by the epoch of its last batch, then by where it ends, as anywhere
    where logs are compared: what we have of an earlier epoch others may have gone on without."""
    replica = partition.replica
    if replica is None or replica.view is None or partition.given_up:
        return _NOT_OPEN
    if question is Question.LOG_END:
        return replica.log.end_offset
    epoch = replica.log.epochs.latest
    return -3 - epoch if replica.is_blank else epoch


class _Search:
    """Asks every candidate what it has."""

    def __init__(
        self,
        replicas: "Replicas",
        topic: Topic,
        index: int,
        view: PartitionView,
        candidates: list[BrokerId],
        done: Done,
        *,
        waits: bool,
    ) -> None:
        self._replicas = replicas
        self._topic = topic
        self._index = index
        self._view = view
        """As it was before anybody was asked: should it change, nothing is done."""
        self._candidates = candidates
        self._done = done
        self._waits = waits
        self._told: dict[tuple[BrokerId, Question], int | Refused] = {}

    def begin(self) -> None:
        """Ask them."""
        replicas, topic, index = self._replicas, self._topic, self._index
        for one, question in product(self._candidates, _QUESTIONS):
            if one == replicas.me:
                mine = replicas.found(topic.topic_id, index)
                self._answered(one, question, standing(mine, question) if mine else _NOT_OPEN)
            else:
                answered = partial(self._answered, one, question)
                replicas.cluster.ask(one, question, topic, index, 0, answered)

    def _answered(self, who: BrokerId, question: Question, result: int | Refused) -> None:
        self._told[who, question] = result
        if len(self._told) == len(self._candidates) * len(_QUESTIONS):
            self._decide()

    def _decide(self) -> None:
        view, topic, index = self._view, self._topic, self._index
        best: tuple[tuple[int, int], BrokerId] | None = None
        for one in self._candidates:
            epoch, end = (self._told[one, question] for question in _QUESTIONS)
            if isinstance(epoch, Refused) or isinstance(end, Refused):
                if one not in view.isr:
                    continue
                reason = f"broker {one} is in sync, lives, and does not say what it has"
                self._done(_nobody(topic, index, reason))
                return
            if one in view.isr and epoch >= -1:
                message = f"broker {one} is in sync and has all that is committed"
                self._done(Refusal(ErrorCode.ELECTION_NOT_NEEDED, message))
                return
            log = (epoch if epoch >= -1 else -3 - epoch, end)
            if best is None or log > best[0]:
                best = log, one
        if best is None:
            self._done(_nobody(topic, index, "no replica is open"))
            return
        if self._waits:
            self._replicas.when(topic, index, _has_original, self._done)
        wish = Replace(best[1], view.version, view.epoch)
        self._replicas.cluster.carry_out(topic, index, wish)


def _has_original(view: PartitionView) -> bool:
    return view.original is not None


def _nobody(topic: Topic, index: int, reason: str) -> Refusal:
    message = f"{topic.name}-{index}: {reason}"
    return Refusal(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, message)
