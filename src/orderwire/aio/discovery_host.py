"""The host of one discovery core: feeds it, applies its effects in order, re-arms one timer."""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from orderwire.aio.discovery_listener import Tally
from orderwire.aio.discovery_transport import DiscoveryTransport
from orderwire.discovery import messages
from orderwire.discovery.effects import Address, DiscoveryEffects, Post
from orderwire.discovery.messages import Heartbeat, JoinAck, LeaveAck, NotMe, Renew
from orderwire.kernel import NS_PER_S, Instant, LocalProtocolError, RemoteProtocolError

CommandT = TypeVar("CommandT")
CommandT_contra = TypeVar("CommandT_contra", contravariant=True)
IndicationT = TypeVar("IndicationT")


class DiscoveryCore(Protocol[CommandT_contra]):
    """What a host can run: as `orderwire.kernel.Core`, with addresses in place of ids."""

    def submit(self, command: CommandT_contra, now: Instant) -> DiscoveryEffects:
        """Take a command from the application.  Raises LocalProtocolError."""
        ...

    def receive(self, source: Address, message: Any, now: Instant) -> DiscoveryEffects:
        """Take a message that the network brought at `now`.  Raises RemoteProtocolError."""
        ...

    def wake(self, now: Instant) -> DiscoveryEffects:
        """Act on every deadline at or before `now`."""
        ...

    def next_deadline(self) -> Instant | None:
        """When `wake` is next due."""
        ...


class Record(Protocol):
    """What is told of every message, for a trace."""

    def posted(self, now: Instant, message: Any, size_bytes: int) -> None:
        """This message left."""
        ...

    def heard(self, now: Instant, message: Any, size_bytes: int) -> None:
        """This message came, and was taken."""
        ...


def is_urgent(message: Any) -> bool:
    """Whether a message may overtake others to the same address.

    Those that carry no MAP and no change of one: the receiver takes them in any order. [FDP/1 R11]
    """
    if isinstance(message, JoinAck):
        return message.maps is None
    return isinstance(message, Heartbeat | NotMe | LeaveAck | Renew)


def monotonic_now() -> Instant:
    """Return the time that hosts give to cores: what cores are made with must fit it."""
    return Instant(time.monotonic_ns())


class DiscoveryHost(Generic[CommandT, IndicationT]):
    """Runs one core on one transport, on the monotonic clock.

    `tell(indication)` may call `submit`: those effects follow the ones being applied.
    `unreachable(address)` makes the core's command for an address that failed, where it cares.
    """

    def __init__(
        self,
        core: DiscoveryCore[CommandT],
        transport: DiscoveryTransport,
        tell: Callable[[IndicationT], None],
        *,
        unreachable: Callable[[Address], CommandT] | None = None,
        encode: Callable[[Any], bytes] = messages.encode,
        decode: Callable[[bytes | bytearray], Any] = messages.decode,
        urgent: Callable[[Any], bool] = is_urgent,
        record: Record | None = None,
    ) -> None:
        """Begin to accept; the core's first command is the caller's to submit."""
        self._core = core
        self.transport = transport
        self._tell = tell
        self._unreachable_command = unreachable
        self._encode = encode
        self._decode = decode
        self._urgent = urgent
        self.record = record
        self._loop = asyncio.get_running_loop()
        self._pending: deque[DiscoveryEffects] = deque()
        self._applying = False
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for = 0
        self._closed = False
        self._now = monotonic_now()
        self.malformed = Tally()
        """Messages dropped as a peer's fault, by the address that it has."""
        self.received: Counter[str] = Counter()
        """Messages by kind, and …"""
        self.posted: Counter[str] = Counter()
        """… messages sent."""
        transport.start(self._on_message, self._on_unreachable)

    @property
    def address(self) -> Address:
        """Where others reach the core."""
        return self.transport.address

    @property
    def hosts(self) -> "tuple[DiscoveryHost[CommandT, IndicationT], ...]":
        """The hosts that run the core: this one, and others where it has several transports."""
        return (self,)

    @property
    def now(self) -> Instant:
        """The core's time: nanoseconds of the monotonic clock; never goes back."""
        self._now = max(self._now, monotonic_now())
        return self._now

    def submit(self, command: CommandT) -> None:
        """Give the core a command at the present instant.  Raises LocalProtocolError."""
        if self._closed:
            raise LocalProtocolError(f"the discovery of {self.address} is closed")
        self._apply(self._core.submit(command, self.now))
        self._rearm()

    async def close(self) -> None:
        """Feed the core no more, write what it posted, and close the transport."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self.transport.close()

    def _on_message(self, source: Address, data: bytes | bytearray) -> None:
        if self._closed:
            return
        try:
            message = self._decode(data)
            effects = self._core.receive(source, message, self.now)
        except RemoteProtocolError:
            self.malformed.note(source)
            return
        self.received[type(message).__name__] += 1
        if self.record is not None:
            self.record.heard(self._now, message, len(data))
        self._apply(effects)
        self._rearm()

    def _on_unreachable(self, address: Address) -> None:
        if not self._closed and self._unreachable_command is not None:
            self._apply(self._core.submit(self._unreachable_command(address), self.now))
            self._rearm()

    def _apply(self, effects: DiscoveryEffects) -> None:
        """Carry out effects, in order; those of a call from inside `tell` come after them."""
        self._pending.append(effects)
        if self._applying:
            return
        self._applying = True
        try:
            while self._pending:
                for effect in self._pending.popleft():
                    if isinstance(effect, Post):
                        message = effect.message
                        self.posted[type(message).__name__] += 1
                        data = self._encode(message)
                        if self.record is not None:
                            self.record.posted(self._now, message, len(data))
                        self.transport.post(effect.to, data, urgent=self._urgent(message))
                    else:
                        try:
                            self._tell(effect.indication)
                        except Exception as error:
                            self._failed(error)  # the effects behind it must not be lost for it
        finally:
            self._applying = False

    def _failed(self, error: Exception) -> None:
        self._loop.call_exception_handler(
            {"message": "telling the application failed", "exception": error}
        )

    def _rearm(self) -> None:
        """Make the timer fire no later than the core's next deadline.

        One armed for an earlier instant stays: it fires, finds nothing, and moves on.
        """
        deadline = self._core.next_deadline()
        if deadline is None or self._closed:
            return
        if self._timer is not None:
            if self._armed_for <= deadline:
                return
            self._timer.cancel()
        self._armed_for = deadline
        wait_s = max(0, deadline - self.now) / NS_PER_S
        self._timer = self._loop.call_later(wait_s, self._wake)

    def _wake(self) -> None:
        self._timer = None
        deadline = self._core.next_deadline()
        if deadline is not None and deadline <= self.now:
            self._apply(self._core.wake(self.now))
        self._rearm()
