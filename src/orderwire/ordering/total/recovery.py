"""Recovery: collecting what everybody has, and what all compute from it.

[S003:sec.4.1] [S003:sec.4.3] [S003:dec.1]
"""

from collections.abc import Iterable, Mapping

from orderwire.kernel import ProcessId, members_of
from orderwire.ordering.total.pdu import (
    Control,
    Data,
    Epoch,
    Has,
    Header,
    Known,
    Numbers,
    Record,
    RstAck,
    number_at,
)

_NOTHING = Has(0)


def has_of(known: Known, source: int) -> Has:
    """Return what the teller of `known` has of a source."""
    return known.has[source] if source < len(known.has) else _NOTHING


class Collection:
    """The RST_PAK and RST_ACK of the epoch that is being started."""

    def __init__(self, me: ProcessId, epoch: Epoch, mask: int, joined: frozenset[int]) -> None:
        self._me = me
        self.epoch = epoch
        self.mask = mask
        self.members = tuple(members_of(mask))
        self.joined = joined
        """Who is not in the installed view; a newcomer itself does not know of others."""
        self.paks: dict[int, Known] = {}
        self.acks: dict[int, RstAck] = {}
        self.order: list[ProcessId] = []
        """ORDR."""

    @property
    def changes_view(self) -> bool:
        """Whether this epoch begins a view."""
        return self.epoch[1] == 0

    def store(self, source: ProcessId, pdu: Control) -> None:
        """Take one; a RST_ACK counts as the RST_PAK too."""
        if source not in self.paks:
            self.order.append(source)
        if source not in self.acks:
            self.paks[source] = pdu.known
        if isinstance(pdu, RstAck):
            self.acks.setdefault(source, pdu)

    def need(self, *, acks: bool) -> int:
        """Return whose PDU of this phase is missing, as a mask."""
        here: Mapping[int, object] = self.acks if acks else self.paks
        return sum(1 << member for member in self.members if member not in here)

    def agrees(self, own: Record | None) -> bool:
        """Whether all RST_PAK are here, from members that have completed the same epochs."""
        if len(self.paks) < len(self.members):
            return False
        if not self.changes_view:
            return True
        if own is None:
            told = [known.record.epoch for known in self.paks.values() if known.record is not None]
            return len(set(told)) <= 1
        return all(
            member in self.joined
            if (record := self.paks[member].record) is None
            else record.epoch == own.epoch
            for member in self.members
        )

    def missing(self, known: Mapping[int, Known], pseq: Numbers) -> dict[int, frozenset[int]]:
        """Return which of my messages each member misses, by their PSEQ for it."""
        return {
            k: frozenset(has_of(told, self._me).missing(number_at(pseq, k)))
            for k, told in known.items()
        }

    def line(self, sent: Iterable[Data], pseq: Numbers, tseq: int) -> int:
        """V: my first message that a destination misses, by all RST_PAK; N when none is."""
        missing = self.missing(self.paks, pseq)
        return min((data.tseq for data in sent if _is_missed(data, missing)), default=tseq)

    def to_repeat(self, sent: Iterable[Data], pseq: Numbers) -> list[Data]:
        """Return my messages that a destination misses, by all RST_ACK."""
        missing = self.missing({k: ack.known for k, ack in self.acks.items()}, pseq)
        return [data for data in sent if _is_missed(data, missing)]

    def record(self) -> Record:
        """Compute what all members compute from the same RST_ACKs."""
        told = {k: self.acks[k].known for k in self.members}
        old = [k for k in self.members if not self.changes_view or told[k].record is not None]
        lines = tuple(
            (j, max(self.acks[j].line, min((number_at(told[k].ack, j) for k in old), default=0)))
            for j in self.members
        )
        sent = tuple((j, told[j].tseq, told[j].pseq) for j in self.members)
        headers = [header for k in self.members for header in told[k].headers]
        departed = tuple(
            (source, _departed_line(source, headers, {k: told[k] for k in old}))
            for source in sorted({header.source for header in headers})
        )
        return Record(self.epoch, lines, departed, sent, self.acks[self.members[0]].order)


def _is_missed(data: Data, missing: Mapping[int, frozenset[int]]) -> bool:
    return any(
        data.destinations >> k & 1 and data.pseq[k] in numbers for k, numbers in missing.items()
    )


def _departed_line(source: ProcessId, headers: list[Header], told: Mapping[int, Known]) -> int:
    """Return the first TSEQ of a departed source whose header shows that somebody misses something.

    Who hears its PSEQ for k, one more when k is a destination, knows that k should have that much.
    """
    has = {k: has_of(known, source).first_missing() for k, known in told.items()}
    own = sorted((h for h in headers if h.source == source), key=lambda header: header.tseq)
    for header in own:
        for k, first_missing in has.items():
            if number_at(header.pseq, k) + (header.destinations >> k & 1) > first_missing:
                return header.tseq
    return own[-1].tseq + 1
