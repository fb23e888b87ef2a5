"""The algorithms beside Jang's with one step done wrong each.

Names as in the `violated_by` fields of the test vectors, where those have one, without the bound.
"""

from collections.abc import Iterable

from broken_twins import ORDER, Twin

from orderwire.kernel import Effects, Instant, ProcessId, members_of
from orderwire.kernel.ids import Destinations
from orderwire.ordering.adelstein_singhal import HOPS, AdelsteinSinghal
from orderwire.ordering.causal_node import CausalNode, Held, PduT, Wait
from orderwire.ordering.pdu import DiscardReason
from orderwire.ordering.prakash_raynal_singhal import PrakashRaynalSinghal
from orderwire.ordering.predecessor_sets import PredecessorSetsPdu, Sending, unite
from orderwire.ordering.rodrigues_deadline import RodriguesDeadline, RodriguesDeadlinePdu
from orderwire.ordering.settings import OrderingSettings
from orderwire.ordering.tags_codec import EntriesPdu
from orderwire.ordering.yavatkar_mcp import YavatkarMcp
from orderwire.ordering.yoshimoto_maxcb import YoshimotoMaxCbOldest


class ExactDuplicates(CausalNode[PduT]):
    """Not broken: knows a duplicate by its number, so that what was overtaken is delivered too.

    The watermark of the real node takes an overtaken message for a duplicate, and the liveness
    check would reject the twin before the order check can.
    """

    def __init__(self, me: ProcessId, settings: OrderingSettings) -> None:
        super().__init__(me, settings)
        self.seen: set[tuple[int, int]] = set()

    def receive(self, source: ProcessId, pdu: PduT, now: Instant) -> Effects:
        if (source, pdu.number) in self.seen:
            return self._discard(source, pdu, DiscardReason.DUPLICATE)
        self.seen.add((source, pdu.number))
        watermark = self._delivered[source]
        self._delivered[source] = min(watermark, pdu.stamp - 1)
        effects = super().receive(source, pdu, now)
        self._delivered[source] = max(watermark, self._delivered[source])
        return effects


class CoversWithoutFloor(ExactDuplicates[PredecessorSetsPdu], YoshimotoMaxCbOldest):
    """Takes what a delivered message covers out of a set, which then looks complete."""

    def _merge(self, source: ProcessId, pdu: PredecessorSetsPdu) -> None:
        others = pdu.destinations & ~self._me_bit & ~(1 << source)
        for process in members_of(Destinations(others)):
            covered = set(pdu.sets.get(process, ()))
            kept = tuple([sent for sent in self._sets.of(process) if sent not in covered])
            self._sets.replace(process, self._cut(unite(((pdu.stamp, int(source)),), kept)))
        for k, sendings in pdu.sets.items():
            if k != self._me and not others >> k & 1:
                self._sets.replace(k, self._cut(unite(self._sets.of(k), sendings)))


class DropsByStamp(ExactDuplicates[PredecessorSetsPdu], YoshimotoMaxCbOldest):
    """Forgets what is more than Δ older than the message being sent, whatever clocks say."""

    def _dead_before(self) -> int:
        return self._highest - self._lifetime


class TwoHopsWithoutHold(ExactDuplicates[PduT], AdelsteinSinghal):
    """Delivers at once, h = 0, although a chain of three messages is in no tag."""

    def __init__(self, me: ProcessId, settings: OrderingSettings) -> None:
        super().__init__(me, settings)
        self._hold_ticks = 0


class TwoHopsHoldTooShort(TwoHopsWithoutHold[PduT]):
    """Holds for less than a third: a chain of three may be faster than the direct message."""

    def __init__(self, me: ProcessId, settings: OrderingSettings) -> None:
        super().__init__(me, settings)
        self._hold_ticks = -(-self._lifetime // HOPS) - 1


class RoundsDown(ExactDuplicates[PredecessorSetsPdu], YavatkarMcp):
    """Waits for stamps that were made coarser on the wire, downwards."""

    GRANULE = 4

    def _waits(self, pdu: PredecessorSetsPdu) -> Iterable[Wait]:
        for sender, stamp in super()._waits(pdu):
            yield sender, stamp - stamp % self.GRANULE


class RoundsUp(ExactDuplicates[PredecessorSetsPdu], YavatkarMcp):
    """Safe, but it waits for what was never sent: the next message or its expiry ends that."""

    def _waits(self, pdu: PredecessorSetsPdu) -> Iterable[Wait]:
        for sender, stamp in super()._waits(pdu):
            yield sender, min(-(-stamp // 4) * 4, pdu.stamp - 1)


class CoversShorterLives(RodriguesDeadline):
    """Lets a message stand for all it follows, also for those that live longer."""

    def _record(self, sending: Sending, shortfall: int, remote: int) -> None:
        super()._record(sending, shortfall, remote)
        for process in members_of(Destinations(remote)):
            self._sets.replace(process, (sending,))


class OvertakesUnseen(RodriguesDeadline):
    """Delivers at its own deadline, and lets what it has overtaken follow."""

    def _deliver(
        self, source: ProcessId, pdu: RodriguesDeadlinePdu, arrived: Instant, effects: Effects
    ) -> None:
        watermarks = self._delivered.copy()
        super()._deliver(source, pdu, arrived, effects)
        watermarks[source] = self._delivered[source]
        self._delivered = watermarks


class WaitsPastItsDeadline(RodriguesDeadline):
    """Waits for all that it follows, also for what lives longer than it does itself."""

    def _due(self, held: Held[RodriguesDeadlinePdu]) -> int:
        shortfalls = held.pdu.shortfalls
        latest = max(
            (sending[0] - shortfalls.get(sending, 0) for sending in self._open(held.pdu)),
            default=None,
        )
        return 0 if latest is None else (latest + self._lifetime) * self._tick_ns + 1


class KnowsNoDeliveries(PrakashRaynalSinghal):
    """Safe but larger: CB without K, what others are known to have delivered."""

    def _merge(self, source: ProcessId, pdu: EntriesPdu) -> None:
        """What the source has, it may lack as well as anybody else: CB[k] ∪ CB_m[k]."""
        before = dict(self._barriers.get(source, {}))
        super()._merge(source, pdu)
        self._known.clear()
        theirs = [
            (sender, stamp)
            for sender, group in pdu.entries.items()
            for stamp, mask in group
            if mask >> source & 1
        ]
        for sender, stamp in (*before.items(), *theirs):
            self._add(source, sender, stamp)


OWN = {"own_lifetimes": True}
BOUNDED_TWINS = (
    Twin("maxcb-cover-nofloor", CoversWithoutFloor, ORDER, {}),
    Twin("maxcb-drop-by-stamp", DropsByStamp, ORDER, {"skew_max": 15}),
    Twin("triangle-h0", TwoHopsWithoutHold, ORDER, {}),
    Twin("full-rounds-down", RoundsDown, ORDER, {}),
    Twin("full-rounds-up", RoundsUp, "no-needless-waiting", {}),
    Twin("rodrigues-covers", CoversShorterLives, ORDER, OWN),
    Twin("rodrigues-overtakes-unseen", OvertakesUnseen, ORDER, OWN),
    Twin("rodrigues-waits-past-its-deadline", WaitsPastItsDeadline, "liveness", OWN),
    Twin("prakash-knows-no-deliveries", KnowsNoDeliveries, "", {}),
)
