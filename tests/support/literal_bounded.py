"""Bounded Jang word by word: the literal form of Jang's algorithm, and floors.  Slow.

After each change of CI, a destination that more than `floor_cap` entries name is taken out of the
oldest ones, and F[d] := max(F[d], the newest of them).  A copy to j carries F of the destinations
outside m.D and F[j], which the sender then forgets; the receiver waits until F[j] + Δ < now.
"""

from collections.abc import Mapping

from broken_twins import AnyCodec

from orderwire.kernel import Effects, Instant, ProcessId, Send
from orderwire.ordering.catalog import Algorithm
from orderwire.ordering.jang_delta_codec import JangDeltaPdu
from orderwire.ordering.jang_delta_reference import JangDeltaReference
from orderwire.ordering.pdu import OrderingCommand
from orderwire.ordering.settings import OrderingSettings


class LiteralBoundedPdu(JangDeltaPdu, frozen=True, gc=False):
    """One copy, with its floors."""

    floor: int
    floors: Mapping[int, int]


class LiteralBoundedJang(JangDeltaReference):
    """Cut what is oldest, and remember where the cut ends."""

    def __init__(self, me: ProcessId, settings: OrderingSettings) -> None:
        super().__init__(me, settings)
        self.floors: dict[int, int] = {}
        self.taken: dict[int, int] = {}
        self.told: dict[int, int] = {}

    def submit(self, command: OrderingCommand, now: Instant) -> Effects:
        effects = super().submit(command, now)
        return [
            Send(effect.to, self.with_floors(effect.to, effect.pdu))
            if isinstance(effect, Send)
            else effect
            for effect in effects
        ]

    def with_floors(self, process: ProcessId, pdu: JangDeltaPdu) -> LiteralBoundedPdu:
        fields = {name: getattr(pdu, name) for name in JangDeltaPdu.__struct_fields__}
        return LiteralBoundedPdu(**fields, floor=self.taken.get(process, -1), floors=self.told)

    def drop_dead(self) -> None:
        super().drop_dead()
        for process in [p for p, stamp in self.floors.items() if self.is_dead(stamp)]:
            del self.floors[process]

    def extract_and_eliminate(self, others: set[int]) -> dict[int, list[tuple[int, int]]]:
        self.taken = {p: self.floors.pop(p) for p in sorted(others) if p in self.floors}
        self.told = dict(self.floors)
        return super().extract_and_eliminate(others)

    def record_own(self, stamp: int, others: set[int]) -> None:
        super().record_own(stamp, others)
        self.cut()

    def merge(self, source: ProcessId, pdu: JangDeltaPdu) -> None:
        assert isinstance(pdu, LiteralBoundedPdu)
        super().merge(source, pdu)
        for process, stamp in pdu.floors.items():
            if process != self.me:
                self.floors[process] = max(stamp, self.floors.get(process, -1))
        self.cut()

    def cut(self) -> None:
        cap = self.settings.floor_cap
        if cap is None:
            return
        for process in range(self.settings.members):
            naming = sorted(
                (stamp, sender)
                for sender, group in self.entries.items()
                for stamp, undelivered in group.items()
                if process in undelivered
            )
            for stamp, sender in naming[: max(0, len(naming) - cap)]:
                self.entries[sender][stamp].discard(process)
                self.floors[process] = max(stamp, self.floors.get(process, -1))
        self.drop_empty()

    def is_ready(self, pdu: JangDeltaPdu) -> bool:
        assert isinstance(pdu, LiteralBoundedPdu)
        return super().is_ready(pdu) and (pdu.floor < 0 or self.is_wait_over(pdu.floor))

    def next_deadline(self) -> Instant | None:
        latest = []
        for _, pdu, _ in self.buffer:
            assert isinstance(pdu, LiteralBoundedPdu)
            open_waits = [stamp for k, stamp in pdu.waits if not self.is_delivered(k, stamp)]
            latest.append(max(*open_waits, pdu.floor, -1))
        if not latest or self.lifetime is None:
            return None
        return Instant((min(latest) + self.lifetime) * self.settings.tick_ns + 1)


LITERAL_BOUNDED = Algorithm(
    name="bounded-jang-literal",
    summary="Bounded Jang word by word.",
    create=LiteralBoundedJang,
    codec=AnyCodec,
)
