"""ST whose PDUs go through its codec, as on sockets: what follows a lost header is lost as well."""

from typing import Any, ClassVar

from orderwire.kernel import Broadcast, Effects, Instant, ProcessId
from orderwire.ordering.pdu import Multicast
from orderwire.ordering.total.pdu import ChangeView, Pdu
from orderwire.ordering.total.st_codec import HeaderLost, TachikawaSTCodec
from orderwire.ordering.total.tachikawa_st import TachikawaST


class WiredST(TachikawaST):
    """One member; the simulated channel carries PDUs, and members hear the bytes of them."""

    wire: ClassVar[dict[int, tuple[Pdu, bytes]]] = {}
    """PDU, which is kept so that its id stays its own, and what it is on the wire."""
    headers_lost: ClassVar[int] = 0
    followed: ClassVar[int] = 0
    """PDUs whose header was left out in part."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._codec = TachikawaSTCodec()

    def _on_wire(self, effects: Effects) -> Effects:
        for effect in effects:
            if isinstance(effect, Broadcast):
                data = self._codec.encode(effect.pdu)
                WiredST.followed += data[0] >> 4 & 1
                self.wire[id(effect.pdu)] = (effect.pdu, data)
        return effects

    def submit(self, command: Multicast | ChangeView, now: Instant) -> Effects:
        return self._on_wire(super().submit(command, now))

    def turn(self, now: Instant) -> Effects:
        return self._on_wire(super().turn(now))

    def wake(self, now: Instant) -> Effects:
        return self._on_wire(super().wake(now))

    def receive(self, source: ProcessId, pdu: Pdu, now: Instant) -> Effects:
        try:
            heard = self._codec.decode(source, self.wire[id(pdu)][1])
        except HeaderLost:
            WiredST.headers_lost += 1
            return []
        return self._on_wire(super().receive(source, heard, now))
