"""What a participant says of itself: its MAP, its version, its heartbeat counter."""

from collections import deque

from orderwire.discovery.commands import MapForm
from orderwire.discovery.effects import Address
from orderwire.discovery.messages import MapRecord, Row, Status
from orderwire.discovery.roster import Roster
from orderwire.discovery.settings import DELTAS_MAX


class Own:
    """One's own entry; only the participant itself changes it."""

    def __init__(self, address: Address, roster: Roster, form: MapForm) -> None:
        self.address = address
        self.form = form
        self._roster = roster
        self.map = MapRecord(0, b"")
        """As it is; version 0 before the start."""
        self.told = self.map
        """As the others have been told."""
        self.history: deque[bytes] = deque(maxlen=DELTAS_MAX)
        """The last changes; the newest leads to the version told."""
        self._hb = 0
        self._seq = 0

    def tell_whole(self) -> None:
        """Let what others are told be what is, without changes that lead to it."""
        if self.map is not self.told:
            self.told = self.map
            self.history.clear()

    def tell_change(self) -> tuple[int, bytes]:
        """Return the version told so far and the change to what is, which is told now."""
        base = self.told
        delta = self.form.difference(base.full, self.map.full)
        self.history.append(delta)
        self.told = self.map
        return base.ver, delta

    def beat(self) -> None:
        """Give new evidence of life."""
        self._hb += 1

    def next_seq(self) -> int:
        """Return the number of the next broadcast."""
        self._seq += 1
        return self._seq

    def row(self, *, status: Status = Status.LIVE) -> Row:
        """Return one's own header."""
        roster = self._roster
        assert roster.me is not None, "a participant without an id has no header"
        return Row(roster.me, roster.inc, self.told.ver, self._hb, 0, self.address, status, True)

    def next_row(self, *, status: Status = Status.LIVE) -> Row:
        """Return one's own header, as new evidence."""
        self.beat()
        return self.row(status=status)
