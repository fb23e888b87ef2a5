"""TO: every message is put in one order at everybody; who is no destination drops it then.

The paper's yardstick for ST: what the selection of destinations saves.  On the wire
each message is for all members; for whom it really is travels in front of its payload.
"""

import msgspec

from orderwire.kernel import (
    Destinations,
    Effects,
    Instant,
    ProcessId,
    RemoteProtocolError,
    read_varint,
    write_varint,
)
from orderwire.ordering.pdu import Multicast
from orderwire.ordering.total.pdu import Data, Pdu, Rtx
from orderwire.ordering.total.tachikawa_st import TachikawaST


class TotalTO(TachikawaST):
    """One member."""

    NAME = "total-to"

    def receive(self, source: ProcessId, pdu: Pdu, now: Instant) -> Effects:
        """Take a PDU; raises RemoteProtocolError if it does not say for whom it is."""
        if isinstance(pdu, Data | Rtx) and pdu.destinations:
            _inner_destinations(pdu.payload)
        return super().receive(source, pdu, now)

    def _on_the_wire(self, command: Multicast) -> tuple[int, bytes]:
        members = self._streams.members
        mask = command.destinations & members
        if not mask:
            return 0, b""
        inner = mask.to_bytes((mask.bit_length() + 7) // 8, "little")
        front = bytearray()
        write_varint(front, len(inner))
        return members, bytes(front) + inner + command.payload

    def _deliver(self, effects: Effects, message: Data | Rtx, source: int, now: Instant) -> None:
        mask, start = _inner_destinations(message.payload)
        if mask >> self.me & 1:
            own = msgspec.structs.replace(
                message,
                destinations=Destinations(mask),
                payload=message.payload[start:],
                control_bytes=message.control_bytes + start,
            )
            super()._deliver(effects, own, source, now)


def _inner_destinations(payload: bytes) -> tuple[int, int]:
    """Return for whom a message really is, and where its own payload begins."""
    size, at = read_varint(payload, 0)
    if at + size > len(payload):
        raise RemoteProtocolError(
            f"{size} bytes of destinations run past the end of {len(payload)} bytes of payload"
        )
    return int.from_bytes(payload[at : at + size], "little"), at + size
