"""Δ-causal multicast with bounded tags: at most MAX_CB messages named per destination.

Source: [S001:sec.3.2].  Symbols: TS(m) → stamp, Δ → lifetime, CB → sets ("these messages of my
causal past may still be undelivered there"), MAX_CB → `OrderingSettings.max_cb`.

A set of fewer than MAX_CB messages is complete: dead ones aside, none has ever been cut from it.
One of MAX_CB may have lost older ones; what they were is unknown, but all expire.

`YoshimotoMaxCb` is the paper's algorithm: a set is all live messages of the past, cut to the newest
MAX_CB; behind a full set, a message waits until its newest has expired.

`YoshimotoMaxCbOldest` has tags of the same size and far shorter waits: of each sender the newest
message stands for the older ones, a message sent to a destination stands for all that it waits for
there, and a full set is waited for as usual, and until its oldest has expired: what was cut is not
newer.  [S001:dec.1]

Both promise what `jang_delta` promises; they need a lifetime.  Cost: n · MAX_CB pairs at most, in
state and on the wire.  The sets forget only what has expired, or what newer messages replace: a
set from which anything else is taken would look complete.
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
    unite,
)
from orderwire.ordering.settings import OrderingSettings
from orderwire.ordering.wire import encode_head


class YoshimotoMaxCb(CausalNode[PredecessorSetsPdu]):
    """Deliver in Δ-causal order with bounded tags, as published.  [S001:sec.3.2]

    Raises ValueError without a lifetime.
    """

    NAME = "yoshimoto-maxcb"
    HOLDS = True

    def __init__(self, me: ProcessId, settings: OrderingSettings) -> None:
        super().__init__(me, settings)
        settings.require_lifetime(self.NAME)
        self._max_cb = settings.max_cb
        self._sets = PredecessorSets()
        """CB."""

    def _send_copies(
        self,
        effects: Effects,
        number: int,
        stamp: int,
        destinations: Destinations,
        remote: int,
        payload: bytes,
    ) -> int:
        """[S001:sec.3.2] Piggyback CB, then record m."""
        self._sets.forget(self._dead_before())
        sets = self._sets.snapshot()
        control = encode_head(stamp, number, destinations) + encode_sets(stamp, sets)
        pdu = PredecessorSetsPdu(number, stamp, destinations, control, payload, sets)
        for process in members_of(Destinations(remote)):
            effects.append(Send(process, pdu))
            self._sets.replace(process, self._with_own(sets.get(process, ()), stamp))
        return len(control) * len(effects)

    def _waits(self, pdu: PredecessorSetsPdu) -> Iterable[Wait]:
        return [(sender, stamp) for stamp, sender in pdu.sets.get(self._me, ())]

    def _held_until(self, pdu: PredecessorSetsPdu) -> int:
        """[S001:sec.3.2] Behind a full set, until everything that may be missing has expired."""
        sendings = pdu.sets.get(self._me, ())
        if len(sendings) < self._max_cb:
            return 0
        return (self._newest_cut(sendings) + self._lifetime) * self._tick_ns + 1

    def _merge(self, source: ProcessId, pdu: PredecessorSetsPdu) -> None:
        """[S001:sec.3.2] Unite the sets, with m itself; keep the newest."""
        own = self._sets
        theirs = pdu.sets
        addressed = self._addressed(source, pdu)
        for process, sendings in theirs.items():
            if not addressed >> process & 1 and self._keeps(process):
                own.replace(process, self._cut(unite(own.of(process), sendings)))
        m = ((pdu.stamp, int(source)),)
        for process in members_of(Destinations(addressed)):
            sendings = unite(m, unite(own.of(process), theirs.get(process, ())))
            own.replace(process, self._cut(sendings))

    def _addressed(self, source: ProcessId, pdu: PredecessorSetsPdu) -> int:
        """Return where m itself may still be undelivered."""
        return pdu.destinations & ~(1 << source)

    def _keeps(self, process: int) -> bool:
        """Whether to keep a set for this process."""
        return True

    def _with_own(self, sendings: Sendings, stamp: int) -> Sendings:
        """Return a set after a message of my own."""
        return self._cut(((stamp, int(self._me)), *sendings))

    def _cut(self, sendings: Sendings) -> Sendings:
        """Return the newest MAX_CB."""
        return sendings[: self._max_cb]

    def _newest_cut(self, sendings: Sendings) -> int:
        """Return a stamp that no message cut from this full set exceeds."""
        return sendings[0][0]


class YoshimotoMaxCbOldest(YoshimotoMaxCb):
    """The same tags, waited for less: the oldest-kept rule.  [S001:dec.1]"""

    NAME = "yoshimoto-maxcb-oldest"

    def _addressed(self, source: ProcessId, pdu: PredecessorSetsPdu) -> int:
        # What was for me has been delivered here or has expired: nobody needs to tell me.
        return pdu.destinations & ~(1 << source) & ~self._me_bit

    def _keeps(self, process: int) -> bool:
        return process != self._me

    def _with_own(self, sendings: Sendings, stamp: int) -> Sendings:
        return ((stamp, int(self._me)),)

    def _cut(self, sendings: Sendings) -> Sendings:
        return newest_per_sender(sendings)[: self._max_cb]

    def _newest_cut(self, sendings: Sendings) -> int:
        return sendings[-1][0]


class YoshimotoMaxCbCodec(PredecessorSetsCodec):
    """Sets of at most MAX_CB messages."""

    def __init__(self, me: ProcessId, settings: OrderingSettings) -> None:
        super().__init__(me, settings, settings.max_cb)
