"""Δ-causal multicast with minimal control information, in its fast form.

Source: [S000:sec.4], as corrected in [S000:dec.1] to [S000:dec.7].  Symbols: τ → stamp,
Δ → lifetime, CI → entries ("this message may still be undelivered at these destinations"),
DC_m[j] → waits (what copy j of m must wait for), DLV[k] → delivered (stamp of the last message
from k here).

The promise [S000:def.2]: a message that arrives by its deadline, stamp + Δ, is delivered by its
deadline, every other one is discarded; of two delivered messages with a common destination, the
one that happened before the other is delivered first.  Without a lifetime: causal order over links
that lose nothing; a lost message then blocks what depends on it.

Fast form: per sender an immutable tuple of (stamp, bit mask); a snapshot is a shallow copy shared
by all copies of a message.  Same tags as the literal form (`jang_delta_reference`), bit for bit.
Cost: CI O(n²) pairs at worst, in practice what was sent in the last Δ and is not known to have
been delivered.  Assumes clocks within ε.
"""

from collections.abc import Iterable

from orderwire.kernel import Destinations, Effects, ProcessId, Send, members_of
from orderwire.ordering.causal_node import CausalNode, Wait
from orderwire.ordering.jang_delta_codec import Entries, JangDeltaPdu, Layout, join_waits
from orderwire.ordering.jang_delta_entries import KnownUndelivered
from orderwire.ordering.settings import OrderingSettings
from orderwire.ordering.wire import encode_head


class JangDelta(CausalNode[JangDeltaPdu]):
    """Deliver in Δ-causal order.  [S000:sec.4.5]"""

    NAME = "jang-delta"

    def __init__(self, me: ProcessId, settings: OrderingSettings) -> None:
        super().__init__(me, settings)
        self._layout = Layout(settings)
        self._known = KnownUndelivered(me, send_empty=settings.send_empty_entries)
        """CI."""

    def _send_copies(
        self,
        effects: Effects,
        number: int,
        stamp: int,
        destinations: Destinations,
        remote: int,
        payload: bytes,
    ) -> int:
        """[S000:sec.4.5] Extract DC, then eliminate, then piggyback CI, then record m."""
        known = self._known
        waits = known.extract(remote, self._dead_before())
        snapshot = known.snapshot()
        head = encode_head(stamp, number, destinations) + self._layout.encode_entries(
            stamp, snapshot
        )
        if not waits:
            control = head + b"\x00"
            pdu = JangDeltaPdu(number, stamp, destinations, control, payload, snapshot, ())
            for process in members_of(Destinations(remote)):
                effects.append(Send(process, pdu))
            control_bytes = len(control) * len(effects)
        else:
            common = (number, stamp, destinations)
            parts = self._layout.encode_waits(stamp, [(k, wait) for k, wait, _ in waits])
            control_bytes = _append_copies(
                effects, common, snapshot, head, waits, parts, payload, remote
            )
        known.record_own(stamp, remote)
        return control_bytes

    def _waits(self, pdu: JangDeltaPdu) -> Iterable[Wait]:
        return pdu.waits

    def _merge(self, source: ProcessId, pdu: JangDeltaPdu) -> None:
        self._known.merge(source, pdu.stamp, pdu.destinations, pdu.entries)


def _append_copies(
    effects: Effects,
    common: tuple[int, int, Destinations],
    snapshot: dict[int, Entries],
    head: bytes,
    taken: list[tuple[int, int, int]],
    encoded: tuple[list[bytes], int],
    payload: bytes,
    remote: int,
) -> int:
    """Append one Send per destination, each with its own DC; return their control bytes.

    Copies with the same dependencies share one PDU.
    """
    encoded_waits, packed = encoded
    everything = tuple([(sender, wait) for sender, wait, _ in taken])
    # Destination's bit → bit set of the dependencies that it does not have.
    lacking: dict[int, int] = {}
    for index, (_, _, mask) in enumerate(taken):
        missing = remote & ~mask
        while missing:
            bit = missing & -missing
            missing ^= bit
            lacking[bit] = lacking.get(bit, 0) | 1 << index
    shared: dict[int, JangDeltaPdu] = {}
    control_bytes = 0
    while remote:
        bit = remote & -remote
        remote ^= bit
        pattern = lacking.get(bit, 0)
        pdu = shared.get(pattern)
        if pdu is None:
            waits = everything
            parts = encoded_waits
            if pattern & (pattern - 1):
                kept = [index for index in range(len(taken)) if not pattern >> index & 1]
                waits = tuple([everything[index] for index in kept])
                parts = [encoded_waits[index] for index in kept]
            elif pattern:  # In a broadcast group: all but the destination's own message.
                index = pattern.bit_length() - 1
                waits = everything[:index] + everything[index + 1 :]
                parts = encoded_waits[:index] + encoded_waits[index + 1 :]
            control = head + join_waits(parts, packed)
            pdu = shared[pattern] = JangDeltaPdu(*common, control, payload, snapshot, waits)
        control_bytes += len(pdu.control)
        effects.append(Send(ProcessId(bit.bit_length() - 1), pdu))
    return control_bytes
