"""Whether brokers that lead are still there, asked when a client wants to know who leads.

A client asks when its connection to a leader has just broken; that ours to it breaks, too, may be
seen a moment later.  Who would be told of the dead leader then asks again only after its own pause,
a second in librdkafka.  So a leader is named once it has answered since, or has not for a moment.
"""

from collections.abc import Callable

import msgspec

from orderwire.broker.cluster import Cluster, Question
from orderwire.broker.log import Refused
from orderwire.broker.replication.view import BrokerId
from orderwire.broker.topics import Topic
from orderwire.kernel import NS_PER_MS, Instant

HEAR_NS = 100 * NS_PER_MS
"""How long a broker's answer is waited for."""


class _Call(msgspec.Struct):
    """A broker is to be asked, about any partition that it should lead."""

    topic: Topic
    index: int
    heard: list[Callable[[], None]]
    asked_at: Instant
    """By the last who shares it."""


class Hearing:
    """At most one question to each broker is open; who comes meanwhile shares the next."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._since: dict[BrokerId, Instant] = {}
        """Since when a question has been open."""
        self._next: dict[BrokerId, _Call] = {}

    def is_silent(self, broker: BrokerId, now: Instant) -> bool:
        """Whether it does not answer: nobody waits for it, until it does."""
        since = self._since.get(broker)
        return since is not None and now >= since + HEAR_NS

    def ask(
        self, broker: BrokerId, topic: Topic, index: int, heard: Callable[[], None], now: Instant
    ) -> None:
        """Call back once a broker has answered a question asked from now on, or is out of reach."""
        if broker not in self._since:
            self._ask(broker, _Call(topic, index, [heard], now))
        elif broker in self._next:
            call = self._next[broker]
            call.heard.append(heard)
            call.asked_at = now
        else:
            self._next[broker] = _Call(topic, index, [heard], now)

    def _ask(self, broker: BrokerId, call: _Call) -> None:
        self._since[broker] = call.asked_at

        def told(result: int | Refused) -> None:  # whatever it says, it lives
            self._since.pop(broker, None)
            then = self._next.pop(broker, None)
            if then is not None:
                self._ask(broker, then)
            for heard in call.heard:
                heard()

        self._cluster.ask(broker, Question.START, call.topic, call.index, 0, told)
