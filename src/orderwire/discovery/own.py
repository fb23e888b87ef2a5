"""What a participant says of itself: its MAP, its version, its heartbeat counter."""

from collections import deque

from orderwire.discovery.commands import MapForm
from orderwire.discovery.effects import Address
from orderwire.discovery.messages import Carried, MapRecord, Row, Status
from orderwire.discovery.roster import Roster
from orderwire.discovery.settings import DELTAS_MAX, MAP_BYTES_MAX
from orderwire.kernel import LocalProtocolError


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
        self.left = False
        """Goodbye is said: that is final, and what everybody is told from now on. [R11.4 R17]"""
        self._hb = 0
        self._seq = 0

    def tell_whole(self) -> None:
        """Let what others are told be what is, without changes that lead to it."""
        if self.map is not self.told:
            self.told = self.map
            self.history.clear()

    def tell_change(self) -> tuple[int, bytes] | None:
        """Return the version told so far and the change to what is, which is told now.

        None when the change is too long to be sent: the others ask for the MAP. [R12]
        """
        base = self.told
        try:
            delta = self.form.difference(base.full, self.map.full)
        except LocalProtocolError:
            delta = None
        self.told = self.map
        if delta is None or len(delta) > MAP_BYTES_MAX:
            self.history.clear()
            return None
        self.history.append(delta)
        while sum(map(len, self.history)) > MAP_BYTES_MAX:
            self.history.popleft()
        return base.ver, delta

    def folded(self, record: MapRecord) -> MapRecord:
        """Return what is kept of a MAP: it whole, when its changes are many or longer than it."""
        if not record.deltas:
            return record
        changes = sum(map(len, record.deltas))
        if len(record.deltas) <= DELTAS_MAX and changes <= len(record.full):
            return record
        return self.form.shortened(record)

    def beat(self) -> None:
        """Give new evidence of life."""
        self._hb += 1

    def next_seq(self) -> int:
        """Return the number of the next broadcast."""
        self._seq += 1
        return self._seq

    def row(self) -> Row:
        """Return one's own header."""
        roster = self._roster
        assert roster.me is not None, "a participant without an id has no header"
        status = Status.LEFT if self.left else Status.LIVE
        there = not self.left
        return Row(roster.me, roster.inc, self.told.ver, self._hb, 0, self.address, status, there)

    def next_row(self) -> Row:
        """Return one's own header, as new evidence."""
        self.beat()
        return self.row()

    def carried(self) -> Carried:
        """Return one's own MAP with its header; of who has left it is the header alone."""
        return Carried(self.row(), MapRecord(0, b"") if self.left else self.told)
