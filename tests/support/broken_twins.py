"""Jang's algorithm with one step done wrong each, for the oracles to reject.

Names as in the `violated_by` fields of the test vectors, where those have one.
"""

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from orderwire.kernel import Effects, Instant, ProcessId
from orderwire.ordering.catalog import Algorithm
from orderwire.ordering.causal_node import CausalPdu
from orderwire.ordering.jang_delta_codec import Entries, JangDeltaPdu
from orderwire.ordering.jang_delta_reference import ControlInformation, JangDeltaReference
from orderwire.ordering.pdu import DiscardReason, Ordering
from orderwire.ordering.settings import OrderingSettings
from orderwire.sim.schedule import Schedule, ScheduledSend


class AnyCodec:
    """Carries what no correct process sends, such as equal stamps."""

    def __init__(self, me: ProcessId, settings: OrderingSettings) -> None:
        pass

    def encode(self, pdu: CausalPdu) -> bytes:
        return pickle.dumps(pdu)

    def decode(self, data: bytes | memoryview) -> Any:
        pdu = pickle.loads(data)
        assert isinstance(pdu, CausalPdu)
        return pdu


class ExactDuplicates(JangDeltaReference):
    """Not broken: knows a duplicate by its number, so that what was overtaken is delivered too.

    The watermark of the real algorithm takes an overtaken message for a duplicate, and the
    liveness check would reject the twin before the order check can.
    """

    def __init__(self, me: ProcessId, settings: OrderingSettings) -> None:
        super().__init__(me, settings)
        self.seen: set[tuple[int, int]] = set()

    def refuse(self, source: ProcessId, pdu: JangDeltaPdu) -> DiscardReason | None:
        if self.is_late(pdu.stamp):
            return DiscardReason.LATE
        if (source, pdu.number) in self.seen:
            return DiscardReason.DUPLICATE
        self.seen.add((source, pdu.number))
        return None


class ForgetsDelivered(ExactDuplicates):
    """As printed: CI := CI ∪ CI_m, and the message itself is never recorded."""

    def record_delivered(
        self, source: ProcessId, pdu: JangDeltaPdu, theirs: ControlInformation
    ) -> None:
        pass


class ClockStamps(ExactDuplicates):
    """As printed: τ := c_time, which can repeat."""

    def next_stamp(self) -> int:
        return self.now // self.settings.tick_ns


class PrintedLiteral(ForgetsDelivered, ClockStamps):
    """Both."""


class EliminatesFirst(ExactDuplicates):
    """Takes m.D out of CI before DC is extracted from it."""

    def extract_and_eliminate(self, others: set[int]) -> dict[int, list[tuple[int, int]]]:
        for group in self.entries.values():
            for undelivered in group.values():
                undelivered -= others
        return super().extract_and_eliminate(others)


class IgnoresEpsilon(ExactDuplicates):
    """Forgets an entry as soon as it is late by its own clock."""

    def is_dead(self, stamp: int) -> bool:
        return self.is_late(stamp)


class WaitsNonStrictly(ExactDuplicates):
    """Gives up on a message at its deadline, when a copy may still arrive in time."""

    def is_wait_over(self, stamp: int) -> bool:
        return self.lifetime is not None and stamp + self.lifetime <= self.tick()

    def next_deadline(self) -> Instant | None:
        deadline = super().next_deadline()
        return None if deadline is None else Instant(deadline - 1)


class FifoShortcut(ExactDuplicates):
    """Over FIFO channels: a later message of that sender is here, so the missing one is lost."""

    def __init__(self, me: ProcessId, settings: OrderingSettings) -> None:
        super().__init__(me, settings)
        self.newest_arrived = [-1] * settings.members

    def receive(self, source: ProcessId, pdu: JangDeltaPdu, now: Instant) -> Effects:
        self.newest_arrived[source] = max(self.newest_arrived[source], pdu.stamp)
        return super().receive(source, pdu, now)

    def is_settled(self, sender: int, stamp: int) -> bool:
        if self.newest_arrived[sender] > stamp and not any(
            source == sender and pdu.stamp == stamp for source, pdu, _ in self.buffer
        ):
            return True
        return super().is_settled(sender, stamp)


class DrainsInArrivalOrder(ExactDuplicates):
    """Delivers what is due at once in the order it arrived."""

    def choose(
        self, ready: list[tuple[ProcessId, JangDeltaPdu, Instant]]
    ) -> tuple[ProcessId, JangDeltaPdu, Instant]:
        return ready[0]


class DropsByStamp(ExactDuplicates):
    """Forgets what is more than Δ older than the message being sent, whatever clocks say."""

    def is_dead(self, stamp: int) -> bool:
        return self.lifetime is not None and stamp + self.lifetime < self.highest


class DropsByStampExactly(DropsByStamp):
    """The same, with what was delivered known one by one: S001's definition is kept, S000's not."""

    def __init__(self, me: ProcessId, settings: OrderingSettings) -> None:
        super().__init__(me, settings)
        self.done: set[tuple[int, int]] = set()

    def deliver(self, held: tuple[ProcessId, JangDeltaPdu, Instant], effects: Effects) -> None:
        self.done.add((held[0], held[1].stamp))
        super().deliver(held, effects)

    def is_delivered(self, sender: int, stamp: int) -> bool:
        return sender == self.me or (sender, stamp) in self.done


class DeliversLate(ExactDuplicates):
    """As printed: `if late then Discard`, and then goes on with the message all the same."""

    def receive(self, source: ProcessId, pdu: JangDeltaPdu, now: Instant) -> Effects:
        effects = super().receive(source, pdu, now)
        if self.is_late(pdu.stamp) and (source, pdu.number) not in self.seen:
            self.seen.add((source, pdu.number))
            self.buffer.append((source, pdu, self.now))
            effects += self.drain()
        return effects


class DropsLateWaiters(ExactDuplicates):
    """Throws away a message that waited when a late timer releases it after its deadline."""

    def drain(self) -> Effects:
        self.buffer = [held for held in self.buffer if not self.is_late(held[1].stamp)]
        return super().drain()


class MergesDiscarded(ExactDuplicates):
    """Learns from a message that it discards: dependencies that no delivery has made."""

    def receive(self, source: ProcessId, pdu: JangDeltaPdu, now: Instant) -> Effects:
        effects = super().receive(source, pdu, now)
        if self.is_late(pdu.stamp):
            self.merge(source, pdu)
        return effects


class PiggybacksFirst(JangDeltaReference):
    """Safe but larger: CI goes on the wire before m.D is taken out of it."""

    def extract_and_eliminate(self, others: set[int]) -> dict[int, list[tuple[int, int]]]:
        before = {k: {t: set(s) for t, s in group.items()} for k, group in self.entries.items()}
        waits = super().extract_and_eliminate(others)
        after, self.entries = self.entries, before
        self.before = super().snapshot()
        self.entries = after
        return waits

    def snapshot(self) -> dict[int, Entries]:
        return self.before


class UnitesEqualStamps(JangDeltaReference):
    """Safe but larger: union instead of intersection of what both sides know."""

    def merge_sender(
        self, mine: dict[int, set[int]] | None, theirs: dict[int, set[int]]
    ) -> dict[int, set[int]]:
        merged = super().merge_sender(mine, theirs)
        for stamp in set(mine or {}) & set(theirs):
            merged[stamp] = (mine or {})[stamp] | theirs[stamp]
        return merged


class _KeepsAll(set[int]):
    """Destinations out of which nobody is taken alone."""

    def discard(self, element: int) -> None:
        pass


class KeepsReceiver(JangDeltaReference):
    """Safe but larger: who delivers a message still names itself as one that may not have it."""

    def record_delivered(
        self, source: ProcessId, pdu: JangDeltaPdu, theirs: ControlInformation
    ) -> None:
        super().record_delivered(source, pdu, theirs)
        theirs[source][pdu.stamp] = _KeepsAll(theirs[source][pdu.stamp])


class KeepsExpiredNewest(JangDeltaReference):
    """Safe but larger: at least one entry per sender, as printed, though its time is over."""

    def drop_dead(self) -> None:
        newest = {sender: (max(group), group[max(group)]) for sender, group in self.entries.items()}
        super().drop_dead()
        for sender, (stamp, undelivered) in newest.items():
            if sender != self.me:
                self.entries.setdefault(sender, {}).setdefault(stamp, undelivered)


class KeepsNoneEmpty(JangDeltaReference):
    """Safe but larger: nothing is left that says of a sender how far it is known."""

    def drop_empty(self) -> None:
        for sender, group in list(self.entries.items()):
            for stamp in [stamp for stamp, undelivered in group.items() if not undelivered]:
                del group[stamp]
            if not group:
                del self.entries[sender]


class CoversNothing(JangDeltaReference):
    """Safe, and no larger: what a newer message of the same sender covers is gone by then."""

    def cover(self, group: dict[int, set[int]]) -> None:
        pass


@dataclass(frozen=True)
class Twin:
    """A twin and the schedules on which it goes wrong."""

    name: str
    create: Callable[[ProcessId, OrderingSettings], Ordering[Any]]
    breaks: str
    """The check that must reject it; empty: it is safe."""
    drawn: dict[str, Any]
    """Arguments of `draw_schedule`."""

    @property
    def algorithm(self) -> Algorithm:
        return Algorithm(name=self.name, summary=self.name, create=self.create, codec=AnyCodec)


ORDER = "causal-order"
TWINS = (
    Twin("jang-printed-literal+stamp-rule", ForgetsDelivered, ORDER, {}),
    Twin("jang-printed-literal", PrintedLiteral, ORDER, {}),
    Twin("jang-printed-one-object", ClockStamps, ORDER, {}),
    Twin("jang-printed-one-object-late", ClockStamps, "liveness", {}),
    Twin("jang-eliminates-first", EliminatesFirst, ORDER, {}),
    Twin("jang-eps0", IgnoresEpsilon, ORDER, {"skew_max": 15}),
    Twin("jang-wait-nonstrict", WaitsNonStrictly, ORDER, {}),
    Twin("jang-fifo-shortcut", FifoShortcut, ORDER, {"fifo_channels": True}),
    Twin("jang-arrival-order", DrainsInArrivalOrder, ORDER, {"granularities": (2, 5)}),
    Twin("jang-drop-by-stamp", DropsByStamp, ORDER, {"skew_max": 15}),
    Twin("jang-drop-by-stamp-exactly", DropsByStampExactly, ORDER, {"skew_max": 15}),
    Twin("jang-delivers-late", DeliversLate, "liveness", {}),
    Twin("jang-drops-late-waiters", DropsLateWaiters, "liveness", {"granularities": (2, 5)}),
    Twin("jang-merges-discarded", MergesDiscarded, "no-needless-waiting", {"skew_max": 15}),
    Twin("jang-unites", UnitesEqualStamps, "", {}),
    Twin("jang-piggybacks-first", PiggybacksFirst, "", {}),
    Twin("jang-covers-nothing", CoversNothing, "", {}),
    Twin("jang-keeps-receiver", KeepsReceiver, "", {}),
    Twin("jang-keeps-expired-newest", KeepsExpiredNewest, "", {}),
    Twin("jang-keeps-none-empty", KeepsNoneEmpty, "", {"lifetime": False}),
)

LET_THROUGH_BY_STAMP = Schedule(
    processes=3,
    lifetime=10,
    epsilon=10,
    clock_offsets=(0, 10, 10),
    sends=(
        ScheduledSend(id="m1", at=0, sender=1, to=(0, 2), arrive={0: 20, 2: 1}),
        ScheduledSend(id="m2", at=2, sender=2, to=(0,), arrive={0: 15}),
        ScheduledSend(id="m3", at=11, sender=1, to=(0,), arrive={0: 12}),
    ),
)
"""Process 0's clock is Δ behind: it can still deliver m1, which m3's stamp leaves behind by more
than Δ, so that who drops by stamps lets m3 through before it.  m2 follows m1 within Δ."""
