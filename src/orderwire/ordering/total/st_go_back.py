"""ST with go-back-n recovery: what is behind the failure line is sent again, by everybody.

The paper's yardstick for selective repetition.  The agreement is the same.  Then
everybody drops what it has behind the line, and each source sends it again in the new epoch, from
TSEQ = V on: their order is the new order of the channel, and nothing is sorted.  NULLs are not sent
again, so the numbers behind the line are given anew.
"""

import msgspec

from orderwire.kernel import Effects, Instant, ProcessId
from orderwire.ordering.pdu import Multicast
from orderwire.ordering.total.pdu import Data, Record, RstAck, number_at
from orderwire.ordering.total.receipt import Place, Receipt
from orderwire.ordering.total.recovery import Collection
from orderwire.ordering.total.settings import TotalSettings
from orderwire.ordering.total.tachikawa_st import TachikawaST


class _Rewinding(Receipt):
    """What is behind the line is dropped."""

    def cut(self, record: Record) -> list[Place]:
        lines = dict(record.departed) | dict(record.lines)
        before = [
            place
            for queue in (self.pre_acknowledged, self.accepted)
            for place in queue
            if place.message is not None
            and place.message.tseq < lines.get(ProcessId(place.source), 0)
        ]
        self.pre_acknowledged.clear()
        self.accepted.clear()
        self.holes = [{} for _ in self.treq]
        self.held = [{} for _ in self.treq]
        for source, sent, pseq in record.sent:
            self.treq[source] = self.hack[source] = sent
            self.preq[source] = number_at(pseq, self._me)
        return before


class StGoBack(TachikawaST):
    """One member."""

    NAME = "st-go-back"
    RECEIPT = _Rewinding

    def __init__(self, me: ProcessId, settings: TotalSettings, *, joining: bool = False) -> None:
        super().__init__(me, settings, joining=joining)
        self._told_by_all: dict[int, Data] = {}
        """What left SL and may be behind a line still: something before it may be missing."""

    def _told_by_one(self, tseq: int) -> bool:
        data = self._sent[tseq]
        if not super()._told_by_one(tseq):
            return False
        stable = self._streams.stable[self.me]
        if any(old < stable for old in self._told_by_all):
            self._told_by_all = {t: d for t, d in self._told_by_all.items() if t >= stable}
        self._told_by_all[tseq] = data
        return True

    def _final(self, collection: Collection) -> RstAck:
        """Tell N and D as they were at the line: from there on I send again."""
        final = super()._final(collection)
        first = self._sent.get(final.line)
        pseq = tuple(self._pseq) if first is None else first.pseq
        pseq += tuple(self._pseq[len(pseq) :])
        known = msgspec.structs.replace(final.known, tseq=final.line, pseq=pseq)
        return msgspec.structs.replace(final, known=known)

    def _agreed(self, collection: Collection) -> Record:
        """Take each source's own line: what nobody misses may still be sent again."""
        record = collection.record()
        lines = tuple((source, sent) for source, sent, _ in record.sent)
        return msgspec.structs.replace(record, lines=lines)

    def _to_repeat(self, collection: Collection) -> list[Data]:
        return []

    def _take_levels(self, collection: Collection) -> None:
        """Take nothing: what the others have told of what is sent again is void."""

    def _install(self, effects: Effects, record: Record, now: Instant) -> None:
        self._rewind(record)
        super()._install(effects, record, now)
        for source, sent, _ in record.sent:
            self._streams.rewind(source, sent)

    def _rewind(self, record: Record) -> None:
        """Put what I have sent behind my line in front of what waits to be sent."""
        for source, sent, pseq in record.sent:
            if source != self.me:
                continue
            gone = self._sent | self._told_by_all
            self._told_by_all.clear()
            for tseq in sorted((tseq for tseq in gone if tseq >= sent), reverse=True):
                data = gone[tseq]
                self._sent.pop(tseq, None)
                self._awaited.pop(tseq, None)
                command = Multicast(data.payload, data.destinations)
                self._pending.appendleft((command, data.number, data.stamp))
            for queue in self._to:
                while queue and queue[-1] >= sent:
                    queue.pop()
            self._tseq = sent
            self._pseq[: len(pseq)] = pseq
