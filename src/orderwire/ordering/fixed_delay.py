"""Δ-causal order without tags: every message is delivered at its deadline, never before.

Source: [S001:sec.3.1].  TS(m) → stamp, Δ → lifetime.  Stamps grow along causality, so deadlines
do; a message that is not there at its deadline never comes.

Promises what `jang_delta` promises; needs a lifetime, and each message waits for all of it.
Cost: no control information but the head.
"""

from collections.abc import Iterable

from orderwire.kernel import Destinations, Effects, ProcessId, Send, members_of
from orderwire.ordering.causal_node import CausalNode, CausalPdu, Wait
from orderwire.ordering.settings import OrderingSettings
from orderwire.ordering.wire import HeadedCodec, decode_head, encode_head, payload_of


class FixedDelay(CausalNode[CausalPdu]):
    """Deliver each message at its stamp + Δ.  Raises ValueError without a lifetime."""

    NAME = "fixed-delay"
    HOLDS = True

    def __init__(self, me: ProcessId, settings: OrderingSettings) -> None:
        super().__init__(me, settings)
        settings.require_lifetime(self.NAME)

    def _send_copies(
        self,
        effects: Effects,
        number: int,
        stamp: int,
        destinations: Destinations,
        remote: int,
        payload: bytes,
    ) -> int:
        control = encode_head(stamp, number, destinations)
        pdu = CausalPdu(number, stamp, destinations, control, payload)
        for process in members_of(Destinations(remote)):
            effects.append(Send(process, pdu))
        return len(control) * len(effects)

    def _waits(self, pdu: CausalPdu) -> Iterable[Wait]:
        return ()

    def _held_until(self, pdu: CausalPdu) -> int:
        """[S001:sec.3.1] TS(m) + Δ."""
        return (pdu.stamp + self._lifetime) * self._tick_ns

    def _merge(self, source: ProcessId, pdu: CausalPdu) -> None:
        pass


class FixedDelayCodec(HeadedCodec[CausalPdu]):
    """The head and nothing else."""

    def _parse(self, front: bytes, data: bytes | memoryview) -> CausalPdu:
        stamp, number, destinations, at = decode_head(front, self._members)
        payload = payload_of(front, data, at)
        return CausalPdu(number, stamp, destinations, front[:at], payload)
