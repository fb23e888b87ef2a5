"""Causal broadcast with a causal barrier: the direct predecessors of a message.

Source: [B98] (Baldoni, Prakash, Raynal, Singhal 1998, Δ-causal broadcast), with stamps instead of
counters and, with a lifetime, without the pairs that have expired.  Symbol: CB → barrier.

Cost: at most n pairs a message; by far the smallest where everything goes to everyone.  A message
to some only is in order, too, but the others wait for it until it has expired: without a lifetime,
for ever.  Assumes clocks within ε.
"""

from collections.abc import Iterable

from orderwire.kernel import Destinations, Effects, ProcessId, Send, members_of
from orderwire.ordering.causal_node import CausalNode, Wait
from orderwire.ordering.settings import OrderingSettings
from orderwire.ordering.tags_codec import PairsPdu, encode_pairs
from orderwire.ordering.wire import INTEGER_BYTES, encode_head


class BaldoniBroadcast(CausalNode[PairsPdu]):
    """Deliver m when its direct predecessors, CB_m, are settled."""

    NAME = "baldoni-broadcast"

    def __init__(self, me: ProcessId, settings: OrderingSettings) -> None:
        super().__init__(me, settings)
        self._barrier: dict[int, int] = {}
        """CB: per sender the stamp."""

    def _send_copies(
        self,
        effects: Effects,
        number: int,
        stamp: int,
        destinations: Destinations,
        remote: int,
        payload: bytes,
    ) -> int:
        """Send CB, then CB := {m}."""
        dead = self._dead_before()
        pairs = tuple([pair for pair in self._barrier.items() if pair[1] >= dead])
        control = encode_head(stamp, number, destinations) + encode_pairs(stamp, pairs)
        pdu = PairsPdu(number, stamp, destinations, control, payload, pairs)
        for process in members_of(Destinations(remote)):
            effects.append(Send(process, pdu))
        if remote:
            self._barrier = {self._me: stamp}
        return len(control) * len(effects)

    def _waits(self, pdu: PairsPdu) -> Iterable[Wait]:
        return pdu.pairs

    def _merge(self, source: ProcessId, pdu: PairsPdu) -> None:
        """CB := (CB without what m waits for, CB_m) ∪ {m}."""
        barrier = self._barrier
        for sender, stamp in pdu.pairs:
            if barrier.get(sender, stamp + 1) <= stamp:
                del barrier[sender]
        barrier[source] = pdu.stamp


def printed_bytes(pdu: PairsPdu, settings: OrderingSettings) -> int:
    """Size of CB in the papers' layout of 4-byte integers, in bytes: 4 + 8·|CB|."""
    return INTEGER_BYTES + 2 * INTEGER_BYTES * len(pdu.pairs)
