"""The host of one core: feeds it, applies its effects in order, re-arms one timer."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar, assert_never

from orderwire.aio.clock import GroupClock
from orderwire.aio.endpoint import Channel
from orderwire.kernel import (
    NS_PER_S,
    NS_PER_US,
    Broadcast,
    Core,
    Effects,
    Indicate,
    Instant,
    ProcessId,
    RemoteProtocolError,
    Send,
)
from orderwire.ordering.pdu import Codec, Lost

CommandT = TypeVar("CommandT")
PduT = TypeVar("PduT")
IndicationT = TypeVar("IndicationT")

_EARLY_NS = 100 * NS_PER_US
"""A timer this early counts as punctual; an earlier one is armed again."""


class Host(Generic[CommandT, PduT, IndicationT]):
    """Runs one core on one channel.

    Calls of `submit` from inside `tell` are allowed: their effects follow those being applied.
    """

    def __init__(
        self,
        core: Core[CommandT, PduT],
        codec: Codec[PduT],
        channel: Channel,
        clock: GroupClock,
        tell: Callable[[IndicationT], None],
        *,
        lost: Callable[[ProcessId, int, int], CommandT] = Lost,  # type: ignore[assignment]
    ) -> None:
        self._core = core
        self._codec = codec
        self._channel = channel
        self._clock = clock
        self._tell = tell
        self._lost = lost
        self._pending: deque[Any] = deque()
        self._applying = False
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for: Instant | None = None
        self._closed = False
        self.malformed: dict[ProcessId, int] = {}
        """PDUs dropped as a peer's fault, by source."""
        channel.attach(self._on_pdu, self._on_lost, self._rearm)

    def submit(self, command: CommandT) -> None:
        """Give the core a command at the present instant.  Raises LocalProtocolError."""
        assert not self._closed, "host is closed"
        self._apply(self._core.submit(command, self._clock.now()))
        self._rearm()

    def close(self) -> None:
        """Stop the timer and feed the core no more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._channel.detach()

    def _on_pdu(self, source: ProcessId, data: memoryview, arrived: Instant) -> None:
        try:
            effects = self._core.receive(source, self._codec.decode(data), arrived)
        except RemoteProtocolError:
            self.malformed[source] = self.malformed.get(source, 0) + 1
            return
        if effects:
            self._apply(effects)

    def _on_lost(self, source: ProcessId, first: int, last: int) -> None:
        self._apply(self._core.submit(self._lost(source, first, last), self._clock.now()))

    def _apply(self, effects: Effects) -> None:
        pending = self._pending
        pending.extend(effects)
        if self._applying:
            return
        self._applying = True
        channel = self._channel
        codec = self._codec
        try:
            while pending:
                effect = pending.popleft()
                match effect:
                    case Indicate(indication):
                        self._tell(indication)
                    case Send(to, pdu, via):
                        channel.send(to, codec.encode(pdu), via=via)
                    case Broadcast(pdu, via):
                        channel.broadcast(codec.encode(pdu), via=via)
                    case _:
                        assert_never(effect)
        finally:
            self._applying = False

    def _rearm(self) -> None:
        """Make the timer fire no later than the core's next deadline."""
        deadline = self._core.next_deadline()
        if deadline is None or self._closed:
            return
        if self._timer is not None:
            assert self._armed_for is not None
            if self._armed_for <= deadline:
                return
            self._timer.cancel()
        self._armed_for = deadline
        wait_s = max(0, deadline - self._clock.now()) / NS_PER_S
        self._timer = self._loop.call_later(wait_s, self._wake)

    def _wake(self) -> None:
        self._timer = None
        deadline = self._core.next_deadline()
        now = self._clock.now()
        if deadline is not None and deadline <= now + _EARLY_NS:
            self._apply(self._core.wake(Instant(max(deadline, now))))
        self._rearm()
