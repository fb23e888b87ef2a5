"""CB: per destination, which messages of the causal past may still be undelivered there.

What the algorithms with full or bounded tags have in common: the sets, the PDU that carries them,
and how it looks on the wire: as `entries` of `tags_codec`.  [S001:sec.3.2]

All copies of a message carry the same sets, encoded once; destination j waits for CB[j].
"""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import TypeAlias

from orderwire.kernel import Destinations, ProcessId, RemoteProtocolError, members_of
from orderwire.ordering.causal_node import CausalPdu
from orderwire.ordering.settings import OrderingSettings
from orderwire.ordering.tags_codec import encode_entries, read_entries, turned_round
from orderwire.ordering.wire import INTEGER_BYTES, HeadedCodec, decode_head, payload_of

Sending: TypeAlias = tuple[int, int]
"""(stamp, sender): a message, in the order in which sets are cut."""
Sendings: TypeAlias = tuple[Sending, ...]
"""Messages to one destination, newest first."""
Sets: TypeAlias = Mapping[int, Sendings]
"""Destination → messages; destinations without any are left out."""


class PredecessorSetsPdu(CausalPdu, frozen=True, gc=False):
    """One copy of a message, with all of CB."""

    sets: Sets


def printed_bytes(pdu: PredecessorSetsPdu, settings: OrderingSettings) -> int:
    """Return the size of CB in the papers' layout, Σ (4 + 8 · messages), in bytes."""
    named = sum(map(len, pdu.sets.values()))
    return INTEGER_BYTES * (settings.members + 2 * named)


class PredecessorSets:
    """The sets that one process keeps."""

    def __init__(self) -> None:
        self._sets: dict[int, Sendings] = {}

    def forget(self, dead: int, gone: AbstractSet[Sending] = frozenset()) -> None:
        """Drop the messages stamped before `dead`, and these."""
        sets = self._sets
        for process, sendings in list(sets.items()):
            if sendings[-1][0] < dead or not gone.isdisjoint(sendings):
                kept = tuple([sent for sent in sendings if sent[0] >= dead and sent not in gone])
                if kept:
                    sets[process] = kept
                else:
                    del sets[process]

    def snapshot(self) -> dict[int, Sendings]:
        """Return the sets as a message carries them."""
        return self._sets.copy()

    def of(self, process: int) -> Sendings:
        """Return what may be undelivered at this process."""
        return self._sets.get(process, ())

    def largest(self) -> int:
        """Return how many messages the largest set has."""
        return max(map(len, self._sets.values()), default=0)

    def replace(self, process: int, sendings: Sendings) -> None:
        """Set what may be undelivered at this process."""
        self._sets[process] = sendings


def unite(mine: Sendings, theirs: Sendings) -> Sendings:
    """Return the messages of both, newest first."""
    if not mine or mine == theirs:
        return theirs
    if not theirs:
        return mine
    return tuple(sorted({*mine, *theirs}, reverse=True))


def newest_per_sender(sendings: Iterable[Sending]) -> Sendings:
    """Return the newest message of each sender: it waits for the older ones."""
    seen = 0
    kept = []
    for sending in sendings:
        bit = 1 << sending[1]
        if not seen & bit:
            seen |= bit
            kept.append(sending)
    return tuple(kept)


def encode_sets(stamp: int, sets: Sets) -> bytes:
    """Return CB on the wire, for a message with this stamp."""
    return encode_entries(
        stamp,
        turned_round(
            {process: [(k, sent) for sent, k in sendings] for process, sendings in sets.items()}
        ),
    )


def decode_sets(
    data: bytes, at: int, stamp: int, members: int, set_max: int
) -> tuple[dict[int, Sendings], int]:
    """Return the sets at this offset and the offset behind them.  Raises RemoteProtocolError."""
    entries, at = read_entries(data, at, stamp, members)
    messages = [(sent, k, mask) for k, group in entries.items() for sent, mask in group]
    messages.sort(reverse=True)
    sets: dict[int, list[Sending]] = {}
    """By the destination's bit."""
    for sent, sender, mask in messages:
        if not mask or mask >> sender & 1:
            raise RemoteProtocolError(
                f"message {sent} of sender {sender} may be undelivered at {mask:#x}: nobody, or "
                "its own sender"
            )
        sending = (sent, sender)
        while mask:
            bit = mask & -mask
            mask ^= bit
            known = sets.get(bit)
            if known is None:
                sets[bit] = [sending]
            else:
                known.append(sending)
    largest = max(map(len, sets.values()), default=0)
    if largest > set_max:
        raise RemoteProtocolError(f"{largest} messages to one process, at most {set_max}")
    return {bit.bit_length() - 1: tuple(sendings) for bit, sendings in sets.items()}, at


class PredecessorSetsCodec(HeadedCodec[PredecessorSetsPdu]):
    """The compact form."""

    def __init__(self, me: ProcessId, settings: OrderingSettings, set_max: int) -> None:
        super().__init__(me, settings)
        self._set_max = set_max

    def _parse(self, front: bytes, data: bytes | memoryview) -> PredecessorSetsPdu:
        stamp, number, destinations, at = decode_head(front, self._members)
        sets, at = decode_sets(front, at, stamp, self._members, self._set_max)
        payload = payload_of(front, data, at)
        return PredecessorSetsPdu(number, stamp, destinations, front[:at], payload, sets)


def others_of(mask: int, *without: int) -> Iterable[int]:
    """Yield the members of a bit mask without these, ascending."""
    for process in without:
        mask &= ~(1 << process)
    return members_of(Destinations(mask))
