"""Changes that the cluster carries out: a request waits until each of its parts is done."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias
from zlib import crc32

import msgspec

from orderwire.broker.cluster import GROUPS_TOPIC, Done, placed
from orderwire.broker.coordinators import GROUPS_CONFIGS
from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.replication.view import BrokerId
from orderwire.broker.replies import Outcome, Reply, Request, reply
from orderwire.broker.topic_config import Refusal
from orderwire.broker.topics import Topic
from orderwire.kernel import NS_PER_MS, NS_PER_S, Instant

if TYPE_CHECKING:
    from orderwire.broker.node import Broker

_WAIT_MAX_NS = 60 * NS_PER_S
_TIMED_OUT = Refusal(ErrorCode.REQUEST_TIMED_OUT, "the cluster has not carried it out in time")

Step: TypeAlias = Callable[[Done], None]
"""Begins a change; what it is given is called once it is carried out, or refused."""
Part: TypeAlias = Step | Refusal | None
"""One of a request's parts: to be done, refused already, or done already."""


class Changing:
    """A request whose parts are being carried out."""

    def __init__(
        self,
        broker: "Broker",
        request: Request,
        parts: Sequence[Part],
        respond: Callable[[list[Refusal | None]], msgspec.Struct],
    ) -> None:
        self._broker = broker
        self._request = request
        self._respond = respond
        self._results: list[Refusal | None] = []
        self._missing: set[int] = set()
        self._begun = False
        steps: list[tuple[int, Step]] = []
        for position, part in enumerate(parts):
            if callable(part):
                self._results.append(_TIMED_OUT)
                self._missing.add(position)
                steps.append((position, part))
            else:
                self._results.append(part)
        for position, step in steps:
            step(partial(self._done, position))
        self._begun = True

    @property
    def token(self) -> int:
        """The runtime's name for the request."""
        return self._request.token

    def reply(self) -> Reply | None:
        """The reply, when every part is done."""
        if self._missing:
            return None
        return reply(self._request, self._respond(self._results))

    def _done(self, position: int, refusal: Refusal | None) -> None:
        if position not in self._missing:
            return
        self._missing.discard(position)
        self._results[position] = refusal
        done = self.reply()
        if done is not None and self._begun:
            self._broker.parked.finish(self, done)

    def attempt(self, broker: "Broker", *, at_deadline: bool) -> Reply | None:
        """Answer what is not done with a timeout."""
        if at_deadline:
            self._missing.clear()
        return self.reply()

    def leave(self) -> None:
        """What was begun goes on."""


def carried_out(
    broker: "Broker",
    request: Request,
    parts: Sequence[Part],
    respond: Callable[[list[Refusal | None]], msgspec.Struct],
    timeout_ms: int,
    now: Instant,
) -> Reply | Outcome:
    """Answer when every part is carried out, or the time is over."""
    changing = Changing(broker, request, parts, respond)
    done = changing.reply()
    if done is not None:
        return done
    wait_ns = min(max(timeout_ms, 1) * NS_PER_MS, _WAIT_MAX_NS)
    broker.parked.park(changing, Instant(now + wait_ns))
    return Outcome.PARKED


def creation(broker: "Broker", topic: Topic) -> Step:
    """Make a topic in the cluster; done when it is known here and can be written to."""
    replicas = broker.replicas
    assert replicas is not None

    def begin(done: Done) -> None:
        def made(refusal: Refusal | None) -> None:
            if refusal is not None:
                done(refusal)
            else:
                replicas.when_ready(topic, lambda: done(None))

        replicas.make(topic, made)

    return begin


def with_replicas(
    broker: "Broker", topic: Topic, replication: int, assigned: Sequence[Sequence[int]] = ()
) -> Topic | Refusal:
    """Say where the partitions of a topic go, as many copies as asked for (−1: the default, or as
    many as brokers live; the rest follows when others come).

    What replicas must agree on is written into the topic: brokers may have other defaults.
    """
    assert broker.replicas is not None
    agreed = {
        name: value
        for name, value in broker.settings.topics.configs.items()
        if name.startswith("orderwire.") or name == "min.insync.replicas"
    }
    topic = msgspec.structs.replace(topic, configs=agreed | topic.configs)
    alive = [one.broker_id for one in broker.replicas.cluster.brokers()]
    if assigned:
        for members in assigned:
            if not members or len(set(members)) != len(members) or not set(members) <= set(alive):
                message = f"replicas {list(members)}: the brokers that live are {alive}"
                return Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
        chosen = tuple(tuple(BrokerId(one) for one in members) for members in assigned)
        return msgspec.structs.replace(topic, replicas=topic.replicas + chosen)
    if replication == -1:
        wanted = topic.replication or broker.settings.replication
        topic = msgspec.structs.replace(topic, replication=wanted)
        replication = min(wanted, len(alive))
    if not 1 <= replication <= len(alive):
        message = f"replication factor {replication}: {len(alive)} brokers live"
        return Refusal(ErrorCode.INVALID_REPLICATION_FACTOR, message)
    turn = crc32(topic.name.encode()) % len(alive)
    first = len(topic.replicas)
    spread = placed(alive[turn:] + alive[:turn], topic.partitions - first, replication, first)
    return msgspec.structs.replace(topic, replicas=topic.replicas + spread)


def of_the_cluster(broker: "Broker", name: str) -> Refusal | None:
    """Refuse what a client wants to do to the topic that keeps the groups: they would be lost."""
    if broker.replicas is None or name != GROUPS_TOPIC:
        return None
    return Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, "the cluster's own topic")


def made_by_itself(broker: "Broker", name: str, now: Instant) -> Topic | Refusal:
    """Make a topic because somebody asks for it.

    In a cluster that takes time: it is begun, and the client is told to ask again.
    """
    replicas = broker.replicas
    if replicas is None:
        made = broker.topics.create(name, -1, {})
        if isinstance(made, Topic):
            broker.open_partitions(made, now)
        return made
    partitions, configs = -1, dict[str, str]()
    if name == GROUPS_TOPIC:
        partitions, configs = broker.settings.group_partitions, GROUPS_CONFIGS
    checked = broker.topics.create(name, partitions, configs, dry_run=True)
    if isinstance(checked, Refusal):
        return checked
    topic = with_replicas(broker, checked, -1)
    if isinstance(topic, Refusal):
        return topic
    if name not in replicas.creating:
        replicas.creating.add(name)
        replicas.make(topic, lambda _: replicas.creating.discard(name))
    return Refusal(ErrorCode.LEADER_NOT_AVAILABLE, "the topic is being made")
