"""Δ-causal multicast with tags of O(n): what the sender sent, what it knows two hops back, a hold.

Source: [A95], reconstructed from its abstract and from what S000 and S001 say of it.  V[k] → sent:
stamp of my last message to k.  R[j] → heard: V of the last message from j delivered here, with that
message itself.  A copy to d carries V and the column R[·][d].

A tag of two hops misses chains of three or more messages.  But no message is delivered before its
stamp + h, h = ⌈Δ/3⌉, so such a chain takes at least 3h ≥ Δ: by then, the message that it could
overtake has arrived or never will.

Promises what `jang_delta` promises; needs a lifetime, and each message waits for a third of it.
Cost: 2n stamps in a tag, n² in the state.
"""

from collections.abc import Iterable
from typing import TypeAlias

from orderwire.kernel import (
    Destinations,
    Effects,
    ProcessId,
    RemoteProtocolError,
    Send,
    members_of,
    read_varint,
)
from orderwire.ordering.causal_node import CausalNode, CausalPdu, Wait
from orderwire.ordering.settings import OrderingSettings
from orderwire.ordering.wire import (
    INTEGER_BYTES,
    HeadedCodec,
    decode_head,
    encode_head,
    encode_varint,
    payload_of,
)

Stamps: TypeAlias = tuple[tuple[int, int], ...]
"""(process, stamp), ascending."""

HOPS = 3
"""Messages of the shortest chain that a tag misses."""


class AdelsteinSinghalPdu(CausalPdu, frozen=True, gc=False):
    """One copy of a message, with its two vectors; dead stamps are left out."""

    sent: Stamps
    """V: the sender's last message to each process, before this one."""
    heard: Stamps
    """R[·][d]: of each process, the sender included, the last message to d that it knows of."""


def printed_bytes(pdu: AdelsteinSinghalPdu, settings: OrderingSettings) -> int:
    """Return the size of both vectors in the papers' layout, 8n, in bytes."""
    return 2 * INTEGER_BYTES * settings.members


class AdelsteinSinghal(CausalNode[AdelsteinSinghalPdu]):
    """Deliver in Δ-causal order, not before a third of the lifetime.

    Raises ValueError without a lifetime.
    """

    NAME = "adelstein-singhal"
    HOLDS = True

    def __init__(self, me: ProcessId, settings: OrderingSettings) -> None:
        super().__init__(me, settings)
        settings.require_lifetime(self.NAME)
        self._hold_ticks = -(-self._lifetime // HOPS)
        """h."""
        self._heard: list[dict[int, int]] = [{} for _ in range(self._members)]
        """R: process → destination → stamp."""
        self._sent = self._heard[me]
        """V, a row of R like the others."""

    def _send_copies(
        self,
        effects: Effects,
        number: int,
        stamp: int,
        destinations: Destinations,
        remote: int,
        payload: bytes,
    ) -> int:
        dead = self._dead_before()
        sent = tuple(sorted(item for item in self._sent.items() if item[1] >= dead))
        head = encode_head(stamp, number, destinations) + _encode_stamps(stamp, sent)
        control_bytes = 0
        for process in members_of(Destinations(remote)):
            heard = tuple(
                [
                    (other, last)
                    for other, row in enumerate(self._heard)
                    if (last := row.get(process, -1)) >= max(0, dead)
                ]
            )
            control = head + _encode_stamps(stamp, heard)
            control_bytes += len(control)
            pdu = AdelsteinSinghalPdu(number, stamp, destinations, control, payload, sent, heard)
            effects.append(Send(process, pdu))
        for process in members_of(Destinations(remote)):
            self._sent[process] = stamp
        return control_bytes

    def _waits(self, pdu: AdelsteinSinghalPdu) -> Iterable[Wait]:
        return pdu.heard

    def _held_until(self, pdu: AdelsteinSinghalPdu) -> int:
        """TS(m) + h."""
        return (pdu.stamp + self._hold_ticks) * self._tick_ns

    def _merge(self, source: ProcessId, pdu: AdelsteinSinghalPdu) -> None:
        """R[src] := max(R[src], V_m), m.D set to the stamp."""
        row = self._heard[source]
        for process, stamp in pdu.sent:
            if stamp > row.get(process, -1):
                row[process] = stamp
        others = pdu.destinations & ~self._me_bit & ~(1 << source)
        for process in members_of(Destinations(others)):
            row[process] = pdu.stamp


def _encode_stamps(stamp: int, stamps: Stamps) -> bytes:
    """Return a vector on the wire: count, then per stamp process and age (varints)."""
    out = bytearray(encode_varint(len(stamps)))
    for process, last in stamps:
        out += encode_varint(process)
        out += encode_varint(stamp - last)
    return bytes(out)


class AdelsteinSinghalCodec(HeadedCodec[AdelsteinSinghalPdu]):
    """The compact form: head, V, R[·][d], payload.  Ages are exact, in ticks."""

    def _parse(self, front: bytes, data: bytes | memoryview) -> AdelsteinSinghalPdu:
        stamp, number, destinations, at = decode_head(front, self._members)
        sent, at = self._parse_stamps(front, at, stamp)
        heard, at = self._parse_stamps(front, at, stamp)
        payload = payload_of(front, data, at)
        return AdelsteinSinghalPdu(number, stamp, destinations, front[:at], payload, sent, heard)

    def _parse_stamps(self, data: bytes, at: int, stamp: int) -> tuple[Stamps, int]:
        count, at = read_varint(data, at)
        if count > self._members:
            raise RemoteProtocolError(f"a vector of {count} in a group of {self._members}")
        stamps: list[tuple[int, int]] = []
        last = -1
        for _ in range(count):
            process, at = read_varint(data, at)
            age, at = read_varint(data, at)
            if not (last < process < self._members and 0 < age <= stamp):
                raise RemoteProtocolError(
                    f"process {process} behind {last}, {age} ticks before {stamp}, in a vector "
                    f"of a group of {self._members}"
                )
            stamps.append((process, stamp - age))
            last = process
        return tuple(stamps), at
