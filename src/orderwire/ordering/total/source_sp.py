"""SP: each source's messages in the order of its sending, and no order among sources.

The service below ST [S003:sec.2], by the same PDUs: there is no failure line, no sorting and no
stop.  A gap is asked for (NAK) and filled (RTX), and only the source's own later messages wait.
"""

from collections import deque

from orderwire.kernel import Effects, Indicate, Instant
from orderwire.ordering.total.pdu import Record
from orderwire.ordering.total.receipt import GapReceipt, Place
from orderwire.ordering.total.tachikawa_st import TachikawaST


class SourceSP(TachikawaST):
    """One member.  [S003:sec.2]"""

    NAME = "source-sp"
    RECEIPT = GapReceipt

    def _install_view(self, effects: Effects, record: Record) -> None:
        super()._install_view(effects, record)
        self._receipt.view = 0  # Nothing waits here for what was sent in another view.

    def _tell_views(self, effects: Effects, next_view: int | None = None) -> None:
        """Indicate them at once: there is no place for them in orders of single sources."""
        effects.extend(map(Indicate, self._untold))
        self._untold.clear()

    def _pre_acknowledge(self, effects: Effects, now: Instant) -> None:
        if not self._confirmed:
            return
        receipt = self._receipt
        stable = self._streams.stable
        blocked, kept = 0, deque[Place]()
        for place in receipt.accepted:
            message = place.message
            if (
                blocked >> place.source & 1
                or message is None
                or message.tseq >= stable[place.source]
            ):
                blocked |= 1 << place.source
                kept.append(place)
            elif self._two_phases:
                place.awaited = self._witnesses(place, message)
                receipt.pre_acknowledged.append(place)
                self._ack_due(now)
            else:
                self._deliver(effects, message, place.source, now)
        receipt.accepted = kept

    def _acknowledge(self, effects: Effects, now: Instant) -> None:
        blocked, kept = 0, deque[Place]()
        for place in self._receipt.pre_acknowledged:
            if blocked >> place.source & 1 or not self._is_known_by_all(place):
                blocked |= 1 << place.source
                kept.append(place)
            else:
                assert place.message is not None
                self._deliver(effects, place.message, place.source, now)
        self._receipt.pre_acknowledged = kept
