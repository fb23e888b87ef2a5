"""A simulated 1C channel: one PDU at a time, in one order, to everybody who does not miss it.

C1: one serial order; C2: a receiver gets a part of it, in that order; C3: what a sender puts after
it has heard a PDU stands after that PDU, and its queue is first in, first out.
[S003:sec.2]

A PDU to one member takes the channel as long as one to all, and only that member gets it.
"""

import heapq
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeAlias, runtime_checkable

import msgspec

from orderwire.kernel import Broadcast, Effects, Instant, ProcessId, Send
from orderwire.kernel.chance import stream

_Queued: TypeAlias = tuple[ProcessId | None, Any]
"""(to one member or to all, PDU)."""


class SerialCore(Protocol):
    """A protocol that runs on such a channel."""

    def submit(self, command: Any, now: Instant) -> Effects:
        """Take a command of the application."""
        ...

    def receive(self, source: ProcessId, pdu: Any, now: Instant) -> Effects:
        """Take a PDU."""
        ...

    def turn(self, now: Instant) -> Effects:
        """Return what is to be sent now that the channel is free."""
        ...

    def wake(self, now: Instant) -> Effects:
        """Act on deadlines."""
        ...

    def next_deadline(self) -> Instant | None:
        """Return the next one."""
        ...


@runtime_checkable
class NumberedCore(SerialCore, Protocol):
    """A protocol that is also told the channel's numbers; the channel counts what takes one."""

    def takes_number(self, pdu: Any) -> bool:
        """Say whether the channel gives this PDU a number of its own."""
        ...

    def receive_numbered(self, source: ProcessId, pdu: Any, csn: int, now: Instant) -> Effects:
        """Take a PDU that has the number `csn`; if it takes none, the next one that does has it."""
        ...

    def fill_place(self, now: Instant) -> Effects:
        """Return what goes into the place that was kept, now that it is due: one PDU at most."""
        ...


class Outage(msgspec.Struct, frozen=True):
    """A receiver is deaf for a while: its buffers overrun."""

    process: ProcessId
    start_ns: int
    end_ns: int


class ChannelSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How good the channel is.  Raises ValueError."""

    slot_ns: int
    """How long one PDU takes."""
    loss: float = 0.0
    """f: probability that a receiver misses a PDU."""
    loss_until_ns: int | None = None
    """Nothing is lost later, apart from outages; None: for ever."""
    own_loss: bool = True
    """Whether a sender may miss its own PDUs."""
    lag_ns: int = 0
    """A receiver takes a PDU at most this much after it was on the channel."""
    spared: tuple[type, ...] = ()
    """Kinds of PDUs that are never lost."""
    outages: tuple[Outage, ...] = ()

    def __post_init__(self) -> None:
        if self.slot_ns < 1:
            raise ValueError(f"slot_ns={self.slot_ns} is not positive")
        if not 0.0 <= self.loss < 1.0:
            raise ValueError(f"loss={self.loss} is not within 0 … 1")


class SerialChannel:
    """The channel, its members and the time.

    `turn_form` is the indication with which a core asks for a turn, `place_form` that with which a
    numbered one keeps a place in its queue for what it says then; every other one, and every PDU
    that is put, is shown to `on_indication` and `on_put`.
    """

    def __init__(
        self,
        settings: ChannelSettings,
        seed: int | str,
        turn_form: type,
        on_indication: Callable[[ProcessId, Any, Instant], None],
        on_put: Callable[[ProcessId, Any, Instant], None],
        on_receive: Callable[[ProcessId, ProcessId, Any, int, Instant], None] | None = None,
        place_form: type | None = None,
    ) -> None:
        """`on_receive` is told (receiver, source, PDU, how many PDUs were put before it, time)."""
        self._settings = settings
        self._turn_form = turn_form
        self._place_form = place_form
        self._on_indication = on_indication
        self._on_put = on_put
        self._on_receive = on_receive
        self._access = stream(seed, "access")
        self._loss = stream(seed, "loss")
        self._lag = stream(seed, "lag")
        self.now = Instant(0)
        self.cores: dict[ProcessId, SerialCore] = {}
        self._numbered: dict[ProcessId, NumberedCore] = {}
        self._csn = 0
        self._queues: dict[ProcessId, deque[_Queued]] = {}
        self._heard_at: dict[ProcessId, int] = {}
        self._wake_at: dict[ProcessId, int] = {}
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._serial = 0
        self._busy = False
        self.put = 0
        """How many PDUs the channel has carried."""
        self.lost = 0
        """How many receipts were missed."""

    def add(self, process: ProcessId, core: SerialCore) -> None:
        """Let a process take part from now on."""
        self.cores[process] = core
        if isinstance(core, NumberedCore):
            self._numbered[process] = core
        self._queues[process] = deque()
        self._heard_at[process] = self.now
        self._rearm(process)

    def remove(self, process: ProcessId) -> None:
        """Stop a process; what it has not put is gone."""
        self.cores.pop(process, None)
        self._numbered.pop(process, None)
        self._queues.pop(process, None)

    def at(self, when: int, action: Callable[[], None]) -> None:
        """Run an action at that time."""
        self._serial += 1
        heapq.heappush(self._events, (max(when, self.now), self._serial, action))

    def submit(self, process: ProcessId, command: Any) -> None:
        """Give a process a command; nothing when it has stopped."""
        core = self.cores.get(process)
        if core is not None:
            self._apply(process, core.submit(command, self.now))

    def run(self, until_ns: int) -> None:
        """Let everything happen that happens by then."""
        while self._events and self._events[0][0] <= until_ns:
            when, _, action = heapq.heappop(self._events)
            self.now = Instant(when)
            action()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is on its way and no timer runs."""
        return not self._events

    def waiting(self, process: ProcessId) -> int:
        """Return how many PDUs wait in a sender's access queue."""
        return len(self._queues.get(process, ()))

    # ------------------------------------------------------------------

    def _apply(self, process: ProcessId, effects: Effects) -> None:
        self._apply_effects(process, effects)
        self._rearm(process)
        self._serve()

    def _apply_effects(self, process: ProcessId, effects: Effects) -> None:
        queue = self._queues[process]
        for effect in effects:
            if isinstance(effect, Broadcast):
                queue.append((None, effect.pdu))
            elif isinstance(effect, Send):
                queue.append((effect.to, effect.pdu))
            elif type(effect.indication) in (self._turn_form, self._place_form):
                queue.append((None, type(effect.indication)))
            else:
                self._on_indication(process, effect.indication, self.now)

    def _rearm(self, process: ProcessId) -> None:
        core = self.cores.get(process)
        due = None if core is None else core.next_deadline()
        if due is None or self._wake_at.get(process) == due:
            return
        self._wake_at[process] = due
        self.at(due, lambda: self._wake(process, due))

    def _wake(self, process: ProcessId, due: int) -> None:
        if self._wake_at.get(process) == due:
            del self._wake_at[process]
        core = self.cores.get(process)
        if core is None:
            return
        deadline = core.next_deadline()
        if deadline is not None and deadline <= self.now:
            self._apply(process, core.wake(self.now))
        else:
            self._rearm(process)

    def _serve(self) -> None:
        """Put the next PDU if the channel is free: random access among those who have one."""
        while not self._busy:
            ready = [process for process, queue in self._queues.items() if queue]
            if not ready:
                return
            process = ready[self._access.randrange(len(ready))] if len(ready) > 1 else ready[0]
            queue = self._queues[process]
            to, pdu = queue.popleft()
            if pdu is self._turn_form:
                self._take_turn(process, queue)
                continue
            if pdu is self._place_form:
                pdu = self._fill_place(process)
                if pdu is None:
                    continue
            self._busy = True
            self.put += 1
            self._on_put(process, pdu, self.now)
            carried = partial(self._carried, process, to, pdu, self._csn)
            numbered = self._numbered.get(process)
            if numbered is not None and numbered.takes_number(pdu):
                self._csn += 1
            self.at(self.now + self._settings.slot_ns, carried)
            return

    def _take_turn(self, process: ProcessId, queue: deque[_Queued]) -> None:
        """Let the core say what it sends, once nothing that it sent before waits any more."""
        if any(pdu is not self._turn_form for _, pdu in queue):
            if all(pdu is not self._turn_form for _, pdu in queue):
                queue.append((None, self._turn_form))
            return
        self._apply_effects(process, self.cores[process].turn(self.now))
        self._rearm(process)

    def _fill_place(self, process: ProcessId) -> Any:
        """Return the PDU for a place that a core has kept; None if it needs it no more."""
        effects = self._numbered[process].fill_place(self.now)
        pdus = [effect.pdu for effect in effects if isinstance(effect, Broadcast)]
        assert len(pdus) <= 1
        self._apply_effects(process, [e for e in effects if not isinstance(e, Broadcast)])
        self._rearm(process)
        return pdus[0] if pdus else None

    def _carried(self, source: ProcessId, to: ProcessId | None, pdu: Any, csn: int) -> None:
        self._busy = False
        settings = self._settings
        place = self.put - 1
        clean = settings.loss_until_ns is not None and self.now >= settings.loss_until_ns
        chance = 0.0 if clean or isinstance(pdu, settings.spared) else settings.loss
        for process in self.cores if to is None else (to,) if to in self.cores else ():
            own = process == source and not settings.own_loss
            if chance and self._loss.random() < chance and not own:
                self.lost += 1
                continue
            when = self.now
            if settings.lag_ns:
                when = Instant(when + self._lag.randrange(settings.lag_ns))
            when = Instant(max(when, self._heard_at[process]))
            if self._is_deaf(process, when) and not own:
                self.lost += 1
                continue
            self._heard_at[process] = when
            if when == self.now:
                self._hand(process, source, pdu, place, csn)
            else:
                self.at(when, partial(self._hand, process, source, pdu, place, csn))
        self._serve()

    def _is_deaf(self, process: ProcessId, when: int) -> bool:
        return any(
            outage.process == process and outage.start_ns <= when < outage.end_ns
            for outage in self._settings.outages
        )

    def _hand(self, process: ProcessId, source: ProcessId, pdu: Any, place: int, csn: int) -> None:
        core = self.cores.get(process)
        if core is not None:
            if self._on_receive is not None:
                self._on_receive(process, source, pdu, place, self.now)
            numbered = self._numbered.get(process)
            if numbered is None:
                self._apply(process, core.receive(source, pdu, self.now))
            else:
                self._apply(process, numbered.receive_numbered(source, pdu, csn, self.now))
