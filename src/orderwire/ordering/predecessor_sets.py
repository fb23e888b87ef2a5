"""CB: per destination, which messages of the causal past may still be undelivered there.

What the algorithms with full or bounded tags have in common: the sets, the PDU that carries them,
and how it looks on the wire.  [S001:sec.3.2]

    CB      count of destinations, then per destination, ascending:
              destination, count of messages           varints
              per message, newest first: age, sender   varints

Ages are exact, in ticks: of the first message of a destination against the stamp of the message
that carries the tag, of the others against the one before.  A rounded age would break the order,
because a stamp is also an identity.  [S000:dec.6]

All copies of a message carry the same sets, encoded once; destination j waits for CB[j].
"""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import TypeAlias

from orderwire.kernel import Destinations, ProcessId, RemoteProtocolError, members_of, read_varint
from orderwire.ordering.causal_node import CausalPdu
from orderwire.ordering.settings import OrderingSettings
from orderwire.ordering.wire import HeadedCodec, decode_head, encode_varint, payload_of

Sending: TypeAlias = tuple[int, int]
"""(stamp, sender): a message, in the order in which sets are cut."""
Sendings: TypeAlias = tuple[Sending, ...]
"""Messages to one destination, newest first."""
Sets: TypeAlias = Mapping[int, Sendings]
"""Destination → messages; destinations without any are left out."""

INTEGER_BYTES = 4
"""Every integer of the layout that the papers count with."""


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
    out = bytearray(encode_varint(len(sets)))
    for process in sorted(sets):
        sendings = sets[process]
        assert sendings, f"an empty set of process {process} on the wire"
        out += encode_varint(process)
        out += encode_varint(len(sendings))
        newer = stamp
        for sent, sender in sendings:
            out += encode_varint(newer - sent)
            out += encode_varint(sender)
            newer = sent
    return bytes(out)


def decode_sets(
    data: bytes, at: int, stamp: int, members: int, set_max: int
) -> tuple[dict[int, Sendings], int]:
    """Return the sets at this offset and the offset behind them.  Raises RemoteProtocolError."""
    count, at = read_varint(data, at)
    if count > members:
        raise RemoteProtocolError(f"sets of {count} processes in a group of {members}")
    sets: dict[int, Sendings] = {}
    last = -1
    for _ in range(count):
        process, at = read_varint(data, at)
        if not last < process < members:
            raise RemoteProtocolError(
                f"set of process {process} behind that of {last}, group of {members}"
            )
        last = process
        size, at = read_varint(data, at)
        if not 0 < size <= set_max:
            raise RemoteProtocolError(f"{size} messages to process {process}, at most {set_max}")
        sendings: list[Sending] = []
        newer = (stamp, -1)
        for _ in range(size):
            age, at = read_varint(data, at)
            sender, at = read_varint(data, at)
            sending = (newer[0] - age, sender)
            if not (sending < newer and sending[0] >= 0 and sender < members):
                raise RemoteProtocolError(
                    f"message of sender {sender}, {age} ticks before {newer}, group of {members}"
                )
            if sender == process:
                raise RemoteProtocolError(f"process {process} is to wait for its own message")
            sendings.append(sending)
            newer = sending
        sets[process] = tuple(sendings)
    return sets, at


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
