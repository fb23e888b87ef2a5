"""Requests that are held until this broker has heard of what they name."""

from typing import TYPE_CHECKING

import msgspec

from orderwire.broker.replicas import Replicas
from orderwire.broker.replies import Reply, Request
from orderwire.broker.requests import HANDLERS
from orderwire.broker.requests.naming import named
from orderwire.kernel import Instant

if TYPE_CHECKING:
    from orderwire.broker.node import Broker


class _Held:
    """One request; its frame is copied, as its body has views into the receive buffer."""

    def __init__(self, broker: "Broker", request: Request, frame: memoryview, at: int) -> None:
        self._broker = broker
        self._frame = memoryview(bytearray(frame))
        self._at = at
        self._request = msgspec.structs.replace(request, body=None)
        self._is_gone = False

    @property
    def token(self) -> int:
        """The runtime's name for the request."""
        return self._request.token

    def serve(self, now: Instant) -> None:
        """Do what it asks for, unless its connection is gone."""
        if self._is_gone:
            return
        request, broker = self._request, self._broker
        body, _ = request.api.decode_request(self._frame, self._at, request.version)
        request = msgspec.structs.replace(request, body=body)
        outcome = HANDLERS[request.api.key](broker, request, now)
        if isinstance(outcome, Reply):
            broker.parked.answer(request.token, outcome)

    def attempt(self, broker: "Broker", *, at_deadline: bool) -> Reply | None:
        """Who waits for news has time limits of its own."""
        return None

    def leave(self) -> None:
        """Its connection is gone."""
        self._is_gone = True


def holds(
    broker: "Broker",
    replicas: Replicas,
    request: Request,
    frame: memoryview,
    at: int,
    now: Instant,
) -> bool:
    """Whether a request is kept for a moment; its body begins in the frame at `at`."""
    names = named(broker, request)
    lack = replicas.settling.lack(names, now, len(frame)) if names else None
    if lack is None:
        return False
    held = _Held(broker, request, frame, at)
    broker.parked.hold(held)
    replicas.settling.wait_for(lack, held.serve, now)
    return True
