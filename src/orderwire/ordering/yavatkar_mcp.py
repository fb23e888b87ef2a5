"""Δ-causal multicast with full tags: every live message of the past, named per destination.

Source: [Y92], of which only the abstract is known; its role in [S001:sec.3.2] is that of the
algorithm without a bound, MAX_CB = ∞.  The sets are those of `yoshimoto_maxcb`, never cut.

Promises what `jang_delta` promises and delivers at the same instants, at the price of larger tags.
Cost: what was sent in the last Δ, once per destination.  Without a lifetime nothing expires, so
each sender's newest message to a destination stands for its older ones, for which it waits; with
one, only in sets beyond `SET_MESSAGES_MAX`.
"""

from collections.abc import Iterable

from orderwire.kernel import Destinations, Effects, ProcessId, Send, members_of
from orderwire.ordering.causal_node import CausalNode, Wait
from orderwire.ordering.predecessor_sets import (
    PredecessorSets,
    PredecessorSetsCodec,
    PredecessorSetsPdu,
    Sendings,
    encode_sets,
    newest_per_sender,
    others_of,
    unite,
)
from orderwire.ordering.settings import OrderingSettings
from orderwire.ordering.wire import encode_head

SET_MESSAGES_MAX = 4_096
"""Messages to one destination that a set names before only the newest of each sender are kept."""


class YavatkarMcp(CausalNode[PredecessorSetsPdu]):
    """Deliver in Δ-causal order with full tags."""

    NAME = "yavatkar-mcp"

    def __init__(self, me: ProcessId, settings: OrderingSettings) -> None:
        super().__init__(me, settings)
        self._set_max = set_max(settings)
        self._sets = PredecessorSets()
        """CB, without what is addressed to me: that has been delivered here or has expired."""

    def _send_copies(
        self,
        effects: Effects,
        number: int,
        stamp: int,
        destinations: Destinations,
        remote: int,
        payload: bytes,
    ) -> int:
        """Piggyback CB, then record m."""
        self._sets.forget(self._dead_before())
        sets = self._sets.snapshot()
        control = encode_head(stamp, number, destinations) + encode_sets(stamp, sets)
        pdu = PredecessorSetsPdu(number, stamp, destinations, control, payload, sets)
        m = (stamp, int(self._me))
        for process in members_of(Destinations(remote)):
            effects.append(Send(process, pdu))
            self._keep(process, (m, *sets.get(process, ())))
        return len(control) * len(effects)

    def _waits(self, pdu: PredecessorSetsPdu) -> Iterable[Wait]:
        return [(sender, stamp) for stamp, sender in pdu.sets.get(self._me, ())]

    def _merge(self, source: ProcessId, pdu: PredecessorSetsPdu) -> None:
        """Unite the sets, with m itself."""
        own = self._sets
        for process, sendings in pdu.sets.items():
            if process != self._me:
                self._keep(process, unite(own.of(process), sendings))
        m = ((pdu.stamp, int(source)),)
        for process in others_of(pdu.destinations, source, self._me):
            self._keep(process, unite(m, own.of(process)))
        own.forget(self._dead_before())

    def _keep(self, process: int, sendings: Sendings) -> None:
        if len(sendings) > self._set_max:
            sendings = newest_per_sender(sendings)
        self._sets.replace(process, sendings)


def set_max(settings: OrderingSettings) -> int:
    """Return how many messages to one destination are named at most."""
    if settings.lifetime_ns is None:
        return settings.members
    return max(settings.members, SET_MESSAGES_MAX)


class YavatkarMcpCodec(PredecessorSetsCodec):
    """Sets of any size up to the limit."""

    def __init__(self, me: ProcessId, settings: OrderingSettings) -> None:
        super().__init__(me, settings, set_max(settings))
