"""Causal multicast with a matrix of what was sent.

Source: [R91] (Raynal, Schiper, Toueg 1991), for point-to-point messages; here for multicast, with
stamps instead of counters and, with a lifetime, without the cells that have expired.  Symbols:
SENT[k][l] → stamp of the last message from k to l in the causal past, DLV[k] → delivered.

Cost: n² cells a message, all of them without a lifetime.  A message to oneself is not counted: the
published algorithm ends blocked by them.  Assumes clocks within ε.
"""

from collections.abc import Iterable

from orderwire.kernel import Destinations, Effects, ProcessId, Send, members_of
from orderwire.ordering.causal_node import CausalNode, Wait
from orderwire.ordering.settings import OrderingSettings
from orderwire.ordering.tags_codec import MatrixPdu, Row, encode_cells, join_parts
from orderwire.ordering.wire import INTEGER_BYTES, encode_head, encode_varint


class RaynalSchiperToueg(CausalNode[MatrixPdu]):
    """Deliver m at i when all that was sent to i before m, SENT_m[·][i], is settled."""

    NAME = "raynal-schiper-toueg"

    def __init__(self, me: ProcessId, settings: OrderingSettings) -> None:
        super().__init__(me, settings)
        self._sent: dict[int, Row] = {}
        """SENT.  A row is never changed in place, so a copy of this is a snapshot."""
        self._encoded: dict[int, tuple[Row, int, int, bytes]] = {}
        """Per row: what it was, its oldest and its newest stamp, its cells on the wire."""

    def _send_copies(
        self,
        effects: Effects,
        number: int,
        stamp: int,
        destinations: Destinations,
        remote: int,
        payload: bytes,
    ) -> int:
        """Send SENT as it is, then SENT[me][d] := stamp."""
        parts = self._encode_rows(stamp, self._dead_before())
        control = encode_head(stamp, number, destinations) + join_parts(parts)
        pdu = MatrixPdu(number, stamp, destinations, control, payload, self._sent.copy())
        for process in members_of(Destinations(remote)):
            effects.append(Send(process, pdu))
        self._record(self._me, stamp, remote)
        return len(control) * len(effects)

    def _encode_rows(self, stamp: int, dead: int) -> list[bytes]:
        """Forget the cells stamped before `dead`; return the rows on the wire."""
        parts: list[bytes] = []
        empty: list[int] = []
        for sender, row in self._sent.items():
            cached = self._encoded.get(sender)
            if cached is None or cached[0] is not row or cached[1] < dead:
                live = {column: cell for column, cell in row.items() if cell >= dead}
                if not live:
                    empty.append(sender)
                    continue
                cells = live.values()
                cached = (live, min(cells), max(cells), encode_cells(live))
                self._sent[sender] = live
                self._encoded[sender] = cached
            parts.append(encode_varint(sender) + encode_varint(stamp - cached[2]) + cached[3])
        for sender in empty:
            del self._sent[sender]
            self._encoded.pop(sender, None)
        return parts

    def _record(self, sender: int, stamp: int, remote: int) -> None:
        if remote:
            row = dict(self._sent.get(sender, {}))
            for process in members_of(Destinations(remote)):
                row[process] = stamp
            self._sent[sender] = row

    def _waits(self, pdu: MatrixPdu) -> Iterable[Wait]:
        me = self._me
        return [(sender, row[me]) for sender, row in pdu.rows.items() if me in row]

    def _merge(self, source: ProcessId, pdu: MatrixPdu) -> None:
        """Take the larger of each two cells, then SENT[source][d] := stamp for d in m.D."""
        sent = self._sent
        for sender, row in pdu.rows.items():
            mine = sent.get(sender)
            if mine is None:
                sent[sender] = row
            elif mine is not row and mine != row:
                known = mine.get
                newer = {column: cell for column, cell in row.items() if cell > known(column, -1)}
                if newer:
                    sent[sender] = {**mine, **newer}
        self._record(source, pdu.stamp, pdu.destinations & ~(1 << source))


def printed_bytes(pdu: MatrixPdu, settings: OrderingSettings) -> int:
    """Size of the matrix in the papers' layout of 4-byte integers, in bytes: 4n²."""
    return INTEGER_BYTES * settings.members**2
