"""ST with one rule off.  [S003:sec.4.1]"""

import msgspec

from orderwire.kernel import Broadcast, Effects, Indicate, Instant, ProcessId
from orderwire.ordering.total.csn_pdu import PutAgain
from orderwire.ordering.total.pdu import Data, Record, number_at
from orderwire.ordering.total.receipt import Place, Receipt
from orderwire.ordering.total.st_csn import StCsn
from orderwire.ordering.total.tachikawa_st import TachikawaST


class NoPrefix(TachikawaST):
    """A message is stable when its own destinations have it, whatever was before it."""

    def _pre_acknowledge(self, effects: Effects, now: Instant) -> None:
        accepted = self._receipt.accepted
        levels = self._streams.al
        while accepted and self._confirmed:
            place = accepted[0]
            message = place.message
            if message is None or any(
                levels[place.source][k] <= message.tseq
                for k in self._streams.group(message.destinations)
            ):
                return
            accepted.popleft()
            if self._two_phases:
                place.awaited = self._witnesses(place, message)
                self._receipt.pre_acknowledged.append(place)
                self._ack_due(now)
            else:
                self._deliver(effects, message, place.source, now)


class PointInTheLog(TachikawaST):
    """Everything behind the first place that is behind the line is sorted: a place, not a line."""

    def _install(self, effects: Effects, record: Record, now: Instant) -> None:
        lines = dict(record.lines)
        before: dict[int, int] = dict.fromkeys(lines, 0)
        for place in self.queued():
            if place.message is None or place.message.tseq >= lines.get(ProcessId(place.source), 0):
                break
            before[place.source] = place.message.tseq + 1
        cut = tuple((source, before[source]) for source, _ in record.lines)
        super()._install(effects, msgspec.structs.replace(record, lines=cut), now)


class OwnOrder(TachikawaST):
    """The rank of the sources is the order in which I got their RST_PAK."""

    def _install(self, effects: Effects, record: Record, now: Instant) -> None:
        if self._last is not None and self._last.epoch == record.epoch:
            record = msgspec.structs.replace(record, order=self._last.order)
        super()._install(effects, record, now)


class _Unsorted(Receipt):
    def _sort(self, after: list[Place], order: tuple[ProcessId, ...]) -> list[Place]:
        return [place for place in after if place.source in order]


class NoSorting(TachikawaST):
    """What is behind the line stays as it came."""

    RECEIPT = _Unsorted


class _PassesHoles(Receipt):
    def level(self, source: int) -> int:
        return self.treq[source]

    def levels(self) -> tuple[int, ...]:
        return tuple(self.treq)


class AckPassesHoles(TachikawaST):
    """An empty place counts as accepted: no HACK."""

    RECEIPT = _PassesHoles


class _Refuses(Receipt):
    def accept(self, source: int, data: Data) -> bool:
        pseq = number_at(data.pseq, self._me)
        mine = data.destinations >> self._me & 1
        expected = self.preq[source]
        if data.tseq == self.treq[source] or (mine and pseq == expected):
            return super().accept(source, data)
        if pseq > expected and mine:
            self.held[source][pseq] = data
        return pseq > expected


class PrintedAcceptance(TachikawaST):
    """A PDU for others is accepted only right behind the last one accepted."""

    RECEIPT = _Refuses


class _HoldsNothing(Receipt):
    def accept(self, source: int, data: Data) -> bool:
        lost = super().accept(source, data)
        self.held[source].clear()
        return lost


class NoHeld(TachikawaST):
    """What arrives behind a gap is dropped: it must be repeated too."""

    RECEIPT = _HoldsNothing


class HardSuspicion(TachikawaST):
    """Condition (2) stops the group as condition (1) does, as printed."""

    def _receive_data(self, effects: Effects, source: ProcessId, pdu: Data, now: Instant) -> None:
        super()._receive_data(effects, source, pdu, now)
        if self._suspected:
            self._lost(effects, now)


class FlowOnTseq(TachikawaST):
    """The window counts TSEQ, so that NULLs close it, as printed."""

    def may_send(self) -> bool:
        if self._is_recovering():
            return False
        settings = self._settings
        ids = self._streams.ids
        fewest = min([self._buffers[k] for k in ids], default=0)
        oldest = min([self._streams.al[self.me][k] for k in ids], default=0)
        room = min(settings.window, fewest // (settings.headroom * len(ids)))
        return self._tseq < oldest + room


class Hasty(TachikawaST):
    """Hands out what a record has sorted although nobody else may have the record."""

    def _confirm(self, effects: Effects, source: ProcessId, now: Instant) -> None:
        self._confirmed = True


class TellsViewsEarly(TachikawaST):
    """A view is told when it is installed, whatever of the one before is still to be handed out."""

    def _tell_views(self, effects: Effects, next_view: int | None = None) -> None:
        effects.extend(map(Indicate, self._untold))
        self._untold.clear()


class OneIsEnough(StCsn):
    """A number is nobody's when one other has not heard it either."""

    def _note_blank(self, number: int, member: ProcessId) -> None:
        if member != self.me:
            self._names[number] = (self.epoch, None)


class NeverPutAgain(StCsn):
    """What nobody has heard is left to the next message of its source."""

    def _put_again(self, effects: Effects, null: int) -> None:
        pass


class PassesOnOneWord(StCsn):
    """A gap holds nothing for me when the sender of the next PDU says so of itself."""

    def _pass_over(self) -> bool:
        if not self._waiting:
            return False
        number, source, pdu = self._waiting[0]
        if number_at(pdu.pseq, self.me) != self._receipt.preq[source]:
            return False
        self._next = number
        return True


class CountsPutAgain(StCsn):
    """What is put again counts as evidence like what is new."""

    def _put_again(self, effects: Effects, null: int) -> None:
        told: Effects = []
        super()._put_again(told, null)
        for effect in told:
            assert isinstance(effect, Broadcast)
            assert isinstance(effect.pdu, PutAgain)
            effects.append(Broadcast(Data(*msgspec.structs.astuple(effect.pdu))))
