"""The host of one core: feeds it, applies its effects in order, re-arms one timer."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar, assert_never, cast

from orderwire.aio.channel import Channel
from orderwire.aio.clock import GroupClock
from orderwire.kernel import (
    NS_PER_S,
    NS_PER_US,
    Broadcast,
    Core,
    Effects,
    Indicate,
    Input,
    Instant,
    LocalProtocolError,
    ProcessId,
    Received,
    RemoteProtocolError,
    Send,
    Woken,
    submitted,
)
from orderwire.ordering.pdu import Codec, Lost, Noticing

CommandT = TypeVar("CommandT")
PduT = TypeVar("PduT")
IndicationT = TypeVar("IndicationT")

_EARLY_NS = 100 * NS_PER_US
"""A timer this early counts as punctual; an earlier one is armed again."""


class Host(Generic[CommandT, PduT, IndicationT]):
    """Runs one core on one channel.

    Calls of `submit` from inside `tell` are allowed: their effects follow those being applied.
    `lost` makes the core's command for copies that the link gave up, `restarted` the one for a peer
    that is a new incarnation, where a core cares.  `record` gets every input just before the core
    does.
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
        restarted: Callable[[ProcessId], CommandT] | None = None,
        record: Callable[[Input], None] | None = None,
    ) -> None:
        self._core = core
        self._codec = codec
        self._channel = channel
        self._clock = clock
        self._tell = tell
        self._lost = lost
        self._restarted = restarted
        self._record = record
        self._pending: deque[tuple[Effects, Instant | None]] = deque()
        self._applying = False
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for = 0
        self._closed = False
        self.now = clock.now()
        """The instant of the input whose effects are being applied, or were last; never goes back.

        What was received together may come behind a later reading of the clock, as when a loss is
        told in between.  Cores take the latest, too.
        """
        self.malformed: dict[ProcessId, int] = {}
        """PDUs dropped as a peer's fault, by source."""
        if isinstance(core, Noticing):
            channel.notice_with(lambda data: codec.encode(core.loss_notice(codec.decode(data))))
        channel.attach(self._on_pdu, self._on_lost, self._rearm, self._on_restarted)

    def submit(
        self, command: CommandT, *, begun: bool = False, lifetime_ns: int | None = None
    ) -> None:
        """Give the core a command at the present instant.

        `lifetime_ns`: for so long what it sends is worth repairing, if less than the channel's.
        Raises LocalProtocolError, also when the channel keeps messages until they have come and is
        full: await `channel.drain()` before the next one.  What was `begun` goes on all the same.
        """
        channel = self._channel
        if self._closed:
            raise LocalProtocolError(f"the host of channel {channel.number} is closed")
        if channel.full and channel.lifetime_ns is None and not begun:
            raise LocalProtocolError(
                f"channel {channel.number} is full: await drain() before the next message"
            )
        now = self._clock.now()
        if now > self.now:
            self.now = now
        if self._record is not None:
            self._record(submitted(now, cast(Any, command)))
        until = None if lifetime_ns is None else Instant(now + lifetime_ns)
        self._apply(self._core.submit(command, now), until)
        self._rearm()

    def close(self) -> None:
        """Stop the timer and feed the core no more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._channel.detach()

    def _on_pdu(self, source: ProcessId, data: memoryview, arrived: Instant) -> None:
        if arrived > self.now:
            self.now = arrived
        if self._record is not None:
            self._record(Received(arrived, source, bytes(data)))
        try:
            effects = self._core.receive(source, self._codec.decode(data), arrived)
        except RemoteProtocolError:
            self.malformed[source] = self.malformed.get(source, 0) + 1
            return
        if effects:
            self._apply(effects)

    def _on_lost(self, source: ProcessId, first: int, last: int) -> None:
        self._learn(self._lost(source, first, last))

    def _on_restarted(self, peer: ProcessId) -> None:
        if self._restarted is not None:
            self._learn(self._restarted(peer))

    def _learn(self, command: CommandT) -> None:
        """Give the core a command that is the link's."""
        now = self._clock.now()
        if now > self.now:
            self.now = now
        if self._record is not None:
            self._record(submitted(now, cast(Any, command)))
        self._apply(self._core.submit(command, now))

    def _apply(self, effects: Effects, until: Instant | None = None) -> None:
        """Carry out effects, in order; those of a call from inside `tell` come after them.

        What is sent has this deadline, or the channel's.

        A chain of isinstance, not a match: every message passes here, and what the loop calls is
        bound beforehand.
        """
        pending = self._pending
        if self._applying:
            pending.append((effects, until))
            return
        self._applying = True
        send, encode, tell = self._channel.send, self._codec.encode, self._tell
        encoded_pdu: object = None
        encoded = b""
        try:
            while True:
                for effect in effects:
                    if isinstance(effect, Send):
                        if effect.pdu is not encoded_pdu:  # one PDU may go to many
                            encoded_pdu, encoded = effect.pdu, encode(effect.pdu)
                        send(effect.to, encoded, until, effect.via)
                    elif isinstance(effect, Indicate):
                        try:
                            tell(effect.indication)
                        except Exception as error:
                            self._failed(error)  # the effects behind it must not be lost for it
                    elif isinstance(effect, Broadcast):
                        self._channel.broadcast(encode(effect.pdu), until, effect.via)
                    else:
                        assert_never(effect)
                if not pending:
                    return
                effects, until = pending.popleft()
        finally:
            self._applying = False

    def _failed(self, error: Exception) -> None:
        self._loop.call_exception_handler(
            {"message": "telling the application failed", "exception": error}
        )

    def _rearm(self) -> None:
        """Make the timer fire no later than the core's next deadline.

        A timer that is armed for an earlier instant stays: it fires, finds nothing and moves on,
        which costs less than a new timer for every message.
        """
        deadline = self._core.next_deadline()
        if deadline is None or self._closed:
            return
        if self._timer is not None:
            if self._armed_for <= deadline:
                return
            self._timer.cancel()
        self._armed_for = deadline
        wait_s = max(0, deadline - self._clock.now()) / NS_PER_S
        self._timer = self._loop.call_later(wait_s, self._wake)

    def _wake(self) -> None:
        self._timer = None
        deadline = self._core.next_deadline()
        if deadline is None:
            return
        now = self._clock.now()
        if deadline <= now + _EARLY_NS:
            # Loops fire a hair early: the core's time must reach its own deadline.
            instant = Instant(max(deadline, now))
            if instant > self.now:
                self.now = instant
            if self._record is not None:
                self._record(Woken(instant))
            self._apply(self._core.wake(instant))
        self._rearm()
