"""ElectLeaders: let partitions' preferred replicas be their originals, or go on without those that
are gone for ever.
"""

from functools import partial
from typing import TYPE_CHECKING

from orderwire.broker.cluster import Done, Question
from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.log import Refused
from orderwire.broker.replication.view import PartitionView
from orderwire.broker.replies import Outcome, Reply, Request, reply
from orderwire.broker.requests.changes import Part, carried_out
from orderwire.broker.requests.permission import Operation, may_cluster
from orderwire.broker.succession import put_in_place
from orderwire.broker.topic_config import Refusal
from orderwire.broker.topics import Topic
from orderwire.broker.wire.generated.elect_leaders import (
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from orderwire.kernel import Instant

if TYPE_CHECKING:
    from orderwire.broker.node import Broker

_PREFERRED = 0
_UNCLEAN = 1


def elect_leaders(broker: "Broker", request: Request, now: Instant) -> Reply | Outcome:
    """Have originals give partitions to who is preferred; without a list, all that are elsewhere.

    An unclean election puts a replica in the place of an in-sync set that is gone; without a list,
    in all partitions that have no original.
    """
    body = request.body
    if not may_cluster(broker, request, Operation.ALTER):
        error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return reply(request, ElectLeadersResponse(error_code=error))
    kind = body.election_type if request.version >= 1 else _PREFERRED
    if kind not in (_PREFERRED, _UNCLEAN):
        error = ErrorCode.INVALID_REQUEST
        return reply(request, ElectLeadersResponse(error_code=error))
    if body.topic_partitions is None:
        asked = [
            (topic.name, index) for topic in broker.topics for index in range(topic.partitions)
        ]
        parts = [_begun(broker, kind, *each, now) for each in asked]
        kept = [
            number
            for number, part in enumerate(parts)
            if not isinstance(part, Refusal) or part.error is not ErrorCode.ELECTION_NOT_NEEDED
        ]
        asked, parts = [asked[number] for number in kept], [parts[number] for number in kept]
    else:
        asked = [(one.topic, index) for one in body.topic_partitions for index in one.partitions]
        parts = [_begun(broker, kind, *each, now) for each in asked]

    def respond(results: list[Refusal | None]) -> ElectLeadersResponse:
        found: dict[str, list[PartitionResult]] = {}
        for (name, index), refusal in zip(asked, results, strict=True):
            result = PartitionResult(index, ErrorCode.NONE, None)
            if refusal is not None:
                result = PartitionResult(index, refusal.error, refusal.message)
            found.setdefault(name, []).append(result)
        return ElectLeadersResponse(
            replica_election_results=[
                ReplicaElectionResult(name, some) for name, some in found.items()
            ]
        )

    return carried_out(broker, request, parts, respond, body.timeout_ms, now)


def _begun(broker: "Broker", kind: int, name: str, index: int, now: Instant) -> Part:
    topic = broker.topics.get(name)
    if topic is None or not broker.exists(name, index):
        return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no {name}-{index}")
    view = None if broker.replicas is None else broker.replicas.cluster.view(topic, index)
    stays = broker.replicas is None or (view is not None and view.original is not None)
    if kind == _UNCLEAN:
        if stays:
            return Refusal(ErrorCode.ELECTION_NOT_NEEDED, "somebody is original")
        return partial(put_in_place, broker, topic, index)
    if stays and (view is None or _as_preferred(view)):
        return Refusal(ErrorCode.ELECTION_NOT_NEEDED, "the preferred replica is original")
    if view is None or view.original is None or view.preferred not in view.isr:
        message = f"{name}-{index}: the preferred replica is not in sync, or nobody is original"
        return Refusal(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, message)
    return _Asking(broker, topic, index, now)


def _as_preferred(view: PartitionView) -> bool:
    return view.original == view.preferred


class _Asking:
    """One partition's original is asked, and waited for."""

    def __init__(self, broker: "Broker", topic: Topic, index: int, now: Instant) -> None:
        self._broker = broker
        self._topic = topic
        self._index = index
        self._now = now

    def __call__(self, done: Done) -> None:
        """Begin."""
        replicas = self._broker.replicas
        assert replicas is not None
        view = replicas.cluster.view(self._topic, self._index)
        original = None if view is None else view.original

        def told(result: int | Refused) -> None:
            if isinstance(result, Refused):
                done(Refusal(result.error, result.message))

        replicas.when(self._topic, self._index, _as_preferred, done)
        if original == replicas.me:
            partition = self._broker.partition(self._topic.name, self._index)
            assert partition is not None
            told(replicas.questions.hand_over(partition, self._now) or 0)
        elif original is not None:
            replicas.cluster.ask(original, Question.HAND_OVER, self._topic, self._index, 0, told)
