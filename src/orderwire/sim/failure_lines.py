"""What of a run's messages lies behind failure lines, as its channel shows it.  [S003:eq.3]

The RST_ACKs of a recovery tell V, N and everybody's ACK, so whoever has heard the channel knows the
line of each source, and which messages are behind it.
"""

from orderwire.kernel import ProcessId
from orderwire.ordering.total.pdu import Data, Epoch, RstAck, number_at


class BehindLines:
    """Counts the messages behind the lines; it hears every PDU when the channel carries it.

    Changes of views are not counted: there every message of who has departed is, too.
    """

    def __init__(self) -> None:
        self._put: dict[ProcessId, dict[int, tuple[int, int]]] = {}
        """Source → TSEQ → (number of the message, how many destinations it has)."""
        self._acks: dict[Epoch, dict[ProcessId, RstAck]] = {}
        self._behind: dict[tuple[ProcessId, int], int] = {}

    @property
    def receipts(self) -> int:
        """Messages that were ever behind a line, each once at each of its destinations."""
        return sum(self._behind.values())

    def data(self, source: ProcessId, pdu: Data) -> None:
        """Note a message; NULLs are numbered too, and count as nothing."""
        if pdu.destinations:
            told = (pdu.number, pdu.destinations.bit_count())
            self._put.setdefault(source, {})[pdu.tseq] = told

    def ack(self, source: ProcessId, pdu: RstAck, members: int) -> None:
        """Note a RST_ACK; with the last of so many members the lines are known."""
        acks = self._acks.setdefault(pdu.epoch, {})
        if source in acks or not pdu.epoch[1]:
            return
        acks[source] = pdu
        if len(acks) < members:
            return
        for j, ack in acks.items():
            known_by_all = min(number_at(other.known.ack, j) for other in acks.values())
            # Go-back tells an N that is its line: what is behind will have other numbers.
            line = min(ack.known.tseq, max(ack.line, known_by_all))
            put = self._put.get(j, {})
            for tseq in [tseq for tseq in put if tseq >= line]:
                number, destinations = put[tseq]
                self._behind[j, number] = destinations
                if tseq >= ack.known.tseq:
                    del put[tseq]
