"""One member of a totally ordered group, on a 1C channel.  [S003:sec.3.2]

It runs the core: feeds it what the channel brings, applies its effects in order, keeps one timer.
What the application writes while the window is closed, or in one turn of the loop, goes into packs:
one PDU carries many messages to the same destinations.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, assert_never

import msgspec

from orderwire.aio.clock import GroupClock
from orderwire.aio.total_pack import PACK_MESSAGES_MAX, decode_pack, encode_pack
from orderwire.aio.total_port import ChannelPort
from orderwire.kernel import (
    NS_PER_S,
    NS_PER_US,
    Broadcast,
    Destinations,
    Effects,
    Indicate,
    Instant,
    LocalProtocolError,
    ProcessId,
    RemoteProtocolError,
    Send,
)
from orderwire.ordering.pdu import Delivered, Multicast, Sent
from orderwire.ordering.total.pdu import ChangeView, Excluded, Installed, Suspected, Turn
from orderwire.ordering.total.st_codec import HeaderLost, TachikawaSTCodec
from orderwire.ordering.total.tachikawa_st import TachikawaST

if TYPE_CHECKING:
    from orderwire.aio.total_trace import TotalTrace

_EARLY_NS = 200 * NS_PER_US
"""What is due this soon is done when the sockets have been read: loops know no shorter waits."""
EVERYBODY = -1
"""Destinations: all members of the view in which a message goes to the channel."""


class PackLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much waits, and how much travels together."""

    pack_bytes: int = 4_096
    """A pack is not larger, unless one message is."""
    queue_messages_max: int = 4_096
    """Messages that wait here before writers do."""
    queue_bytes_max: int = 4 << 20
    message_bytes_max: int = 48_000


class TotalMessage(msgspec.Struct, frozen=True, gc=False):
    """A message, in the order of all."""

    source: ProcessId
    number: int
    """How many messages its source had written before."""
    destinations: Destinations
    payload: bytes
    stamp: Instant
    """The source's clock when the message went to the channel, or began to wait for it."""


Told = Delivered | Installed | Excluded | Suspected


class TotalMember:
    """Runs one core on one port.

    `tell` gets what the core indicates; of `Delivered` the payload is a pack (`unpack`).
    """

    def __init__(
        self,
        core: TachikawaST,
        codec: TachikawaSTCodec,
        clock: GroupClock,
        limits: PackLimits,
        tell: Callable[[Told], None],
    ) -> None:
        self.core = core
        self.counters: Counter[str] = Counter()
        self.malformed: Counter[ProcessId] = Counter()
        """PDUs dropped as a peer's fault, by source."""
        self.limits = limits
        self.clock = clock
        self.now = clock.now
        self._codec = codec
        self._tell = tell
        self._port: ChannelPort | None = None
        self.trace: TotalTrace | None = None
        """Where it is recorded what this member does."""
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for = 0
        self._queue: deque[tuple[int, bytes]] = deque()
        self._queue_bytes = 0
        self._number = 0
        self._room = asyncio.Event()
        self._room.set()
        self._settling = self._turn = self._closed = False
        self.packs = 0
        """Packs given to the core."""

    def attach(self, port: ChannelPort) -> None:
        """Use this port from now on."""
        self._port = port

    def close(self) -> None:
        """Feed the core no more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._room.set()

    # ------------------------------------------------------------------ the application

    @property
    def waiting(self) -> int:
        """How many messages wait for the window."""
        return len(self._queue)

    @property
    def is_full(self) -> bool:
        """Whether writers are to wait."""
        return not self._room.is_set()

    async def room(self) -> None:
        """Wait until there is room for another message."""
        await self._room.wait()

    def write(self, payload: bytes, destinations: int) -> int:
        """Take a message to these, or EVERYBODY; return its number.  Raises LocalProtocolError.

        Without destinations, as all have departed, it has a number and goes nowhere.
        """
        if self._closed:
            raise LocalProtocolError("this member has left its group")
        size = len(payload)
        limits = self.limits
        if size > limits.message_bytes_max:
            raise LocalProtocolError(
                f"a message of {size} bytes, at most {limits.message_bytes_max}"
            )
        queue = self._queue
        if len(queue) >= limits.queue_messages_max or self._queue_bytes >= limits.queue_bytes_max:
            raise LocalProtocolError(
                f"{len(queue)} messages of {self._queue_bytes} bytes wait already: await room()"
            )
        number = self._number
        self._number = number + 1
        queue.append((destinations, payload))
        self._queue_bytes += size
        if len(queue) >= limits.queue_messages_max or self._queue_bytes >= limits.queue_bytes_max:
            self._room.clear()
        if not self._settling:
            self._settling = True
            self._loop.call_soon(self._settle_soon)
        return number

    def change_view(self, view: ChangeView) -> None:
        """Tell the core a view."""
        now = self.now()
        self._apply(self.core.submit(view, now))
        self._settle()

    def unread(self, packs: int) -> None:
        """Say how many packs the application has not taken yet: they hold buffers."""
        core = self.core
        core.unread = packs
        if not packs and core.wants_room_told:
            self._apply(core.null(self.now()))
            self._settle()

    # ------------------------------------------------------------------ the channel

    def on_pdu(self, source: ProcessId, data: bytes, csn: int, arrived: Instant) -> None:
        """Take a PDU of the channel."""
        try:
            pdu = self._codec.decode(source, data)
        except HeaderLost:
            self.counters["header lost"] += 1
            return
        except RemoteProtocolError:
            self.malformed[source] += 1
            return
        if self.trace is not None and self._port is not None and self._port.relay is not None:
            self.trace.received(source, pdu, self._port.relay[1], csn, self.now())
        effects = self.core.receive(source, pdu, arrived)
        if effects:
            self._apply(effects)

    def on_drained(self) -> None:
        """Act on what has come."""
        self._settle()

    def _settle_soon(self) -> None:
        self._settling = False
        self._settle()

    def _settle(self) -> None:
        """Give the core what it can take, do what is due, and send it all."""
        if self._closed:
            return
        core = self.core
        if self._queue:
            self._feed()
        deadline = core.next_deadline()
        if deadline is not None:
            now = self.now()
            if deadline <= now + _EARLY_NS:
                self._apply(core.wake(max(deadline, now)))
        if self._turn:
            self._turn = False
            self._apply(core.turn(self.now()))
        if self._port is not None:
            self._port.flush()
        self._rearm()

    def _feed(self) -> None:
        """Make packs of what waits, as long as the window takes them."""
        core, limits = self.core, self.limits
        queue = self._queue  # No view is installed while the core takes a message.
        first = self._number - len(queue)
        while queue and core.may_send():
            asked, payload = queue.popleft()
            size = len(payload)
            pack = [payload]
            while (
                queue
                and queue[0][0] == asked
                and size + len(queue[0][1]) <= limits.pack_bytes
                and len(pack) < PACK_MESSAGES_MAX
            ):
                payload = queue.popleft()[1]
                size += len(payload)
                pack.append(payload)
            self._queue_bytes -= size
            self.packs += 1
            now = self.now()
            effects: Effects = []
            mask = asked
            if asked == EVERYBODY:
                mask = sum(1 << member.process for member in core.view.members)
            if mask:
                effects = core.submit(Multicast(encode_pack(first, pack), Destinations(mask)), now)
            if self.trace is not None:
                self.trace.sent(first, [*map(len, pack)], mask, now)
            self._apply(effects)
            first += len(pack)
        core.await_window(bool(queue), self.now())
        if not self._room.is_set() and len(queue) * 2 <= limits.queue_messages_max:
            self._room.set()

    def _apply(self, effects: Effects) -> None:
        for effect in effects:
            if isinstance(effect, Broadcast):
                if self._port is not None:
                    self._port.send(self._codec.encode(effect.pdu))
            elif isinstance(effect, Indicate):
                indication = effect.indication
                if type(indication) is Turn:
                    self._turn = True
                elif type(indication) is not Sent:
                    if type(indication) is Installed:
                        self._strip(indication)
                    if self.trace is not None:
                        self.trace.told(indication, self.now())
                    self._tell(indication)
            elif isinstance(effect, Send):
                raise AssertionError("ST broadcasts only")
            else:
                assert_never(effect)

    def _strip(self, installed: Installed) -> None:
        """Take who has departed off the destinations of what waits: its id may be given again."""
        departed = sum(1 << process for process in installed.departed)
        if departed:
            self._queue = deque(
                (mask if mask == EVERYBODY else mask & ~departed, payload)
                for mask, payload in self._queue
            )

    def _rearm(self) -> None:
        """Make the timer fire no later than the core's next deadline."""
        deadline = self.core.next_deadline()
        if deadline is None:
            return
        if self._timer is not None:
            if self._armed_for <= deadline:
                return
            self._timer.cancel()
        self._armed_for = deadline
        wait_s = max(0, deadline - self.now()) / NS_PER_S
        self._timer = self._loop.call_later(wait_s, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._settle()


def unpack(delivered: Delivered) -> list[TotalMessage]:
    """Return the messages of a pack.  Raises RemoteProtocolError."""
    first, payloads = decode_pack(delivered.payload)
    source, destinations, stamp = delivered.source, delivered.destinations, delivered.stamp
    return [
        TotalMessage(source, number, destinations, payload, stamp)
        for number, payload in enumerate(payloads, first)
    ]
