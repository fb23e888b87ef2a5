"""Causal multicast with direct predecessors only.

Source: [P96] (Prakash, Raynal, Singhal 1996/97); the part about known deliveries is reconstructed.
Stamps instead of counters and, with a lifetime, without the pairs that have expired.  Symbols:
CB[k] → barriers (what k must have before the next message to it), K[k][l] → known (stamp of the
last message from l that k is known to have delivered).

Cost: at most n² pairs a message, the same for all its copies.  Assumes clocks within ε.
"""

from collections.abc import Iterable

from orderwire.kernel import Destinations, Effects, ProcessId, Send, members_of
from orderwire.ordering.causal_node import CausalNode, Wait
from orderwire.ordering.settings import OrderingSettings
from orderwire.ordering.tags_codec import (
    EntriesPdu,
    encode_entries,
    turned_round,
    waits_for,
)
from orderwire.ordering.wire import INTEGER_BYTES, encode_head


class PrakashRaynalSinghal(CausalNode[EntriesPdu]):
    """Deliver m at i when CB_m[i], its direct predecessors among those sent to i, is settled."""

    NAME = "prakash-raynal-singhal"

    def __init__(self, me: ProcessId, settings: OrderingSettings) -> None:
        super().__init__(me, settings)
        self._barriers: dict[int, dict[int, int]] = {}
        """CB: per destination, per sender the stamp.  CB[me] says what I have delivered last."""
        self._known: dict[int, dict[int, int]] = {}
        """K."""

    def _send_copies(
        self,
        effects: Effects,
        number: int,
        stamp: int,
        destinations: Destinations,
        remote: int,
        payload: bytes,
    ) -> int:
        """Send CB as it is; m covers all that was to be delivered before it at its destinations."""
        self._forget(self._dead_before())
        entries = turned_round({k: barrier.items() for k, barrier in self._barriers.items()})
        control = encode_head(stamp, number, destinations) + encode_entries(stamp, entries)
        pdu = EntriesPdu(number, stamp, destinations, control, payload, entries)
        for process in members_of(Destinations(remote)):
            effects.append(Send(process, pdu))
            self._barriers[process] = {self._me: stamp}
        return len(control) * len(effects)

    def _forget(self, dead: int) -> None:
        """Forget the pairs stamped before `dead`."""
        for process, barrier in list(self._barriers.items()):
            if barrier and min(barrier.values()) < dead:
                barrier = {sender: stamp for sender, stamp in barrier.items() if stamp >= dead}
                self._barriers[process] = barrier
            if not barrier:
                del self._barriers[process]

    def _waits(self, pdu: EntriesPdu) -> Iterable[Wait]:
        return waits_for(pdu.entries, self._me_bit)

    def _merge(self, source: ProcessId, pdu: EntriesPdu) -> None:
        """Merge CB_m and m itself, destination by destination.

        k in m.D:    CB[k] := (CB[k] ∪ {m}) without what m waits for there, CB_m[k]
        k = source:  CB_m[k] is what the source has delivered, K[k] := max(K[k], CB_m[k])
        else:        CB[k] := CB[k] ∪ CB_m[k]
        then CB[k] goes without what K[k] knows to be delivered.
        """
        barriers = self._barriers
        known = self._known
        source_bit = 1 << source
        addressed = pdu.destinations & ~source_bit
        at_source = known.setdefault(source, {})
        for sender, group in pdu.entries.items():
            for stamp, mask in group:
                if mask & source_bit and stamp > at_source.get(sender, -1):
                    at_source[sender] = stamp
                for process in members_of(Destinations(mask & addressed)):
                    barrier = barriers.get(process)
                    if barrier and barrier.get(sender, stamp + 1) <= stamp:
                        del barrier[sender]
                for process in members_of(Destinations(mask & ~addressed & ~source_bit)):
                    self._add(process, sender, stamp)
        for process in members_of(Destinations(addressed)):
            self._add(process, source, pdu.stamp)
        for sender, stamp in list(barriers.get(source, {}).items()):
            if at_source.get(sender, -1) >= stamp:
                del barriers[source][sender]

    def _add(self, process: int, sender: int, stamp: int) -> None:
        """Let this process need a message, unless it is known to have it or a later one."""
        known = self._known.get(process)
        if known and known.get(sender, -1) >= stamp:
            return
        barrier = self._barriers.get(process)
        if barrier is None:
            self._barriers[process] = {sender: stamp}
        elif stamp > barrier.get(sender, -1):
            barrier[sender] = stamp


def printed_bytes(pdu: EntriesPdu, settings: OrderingSettings) -> int:
    """Size of CB in the papers' layout of 4-byte integers, in bytes: Σ_k (4 + 8·|CB[k]|)."""
    pairs = sum(mask.bit_count() for group in pdu.entries.values() for _, mask in group)
    return INTEGER_BYTES * settings.members + 2 * INTEGER_BYTES * pairs
