"""What the rivals of ST share: requests, timers, and a change of views that empties the group.

A change of views is a flush: every member stops and tells what it has and what it knows of the
order; from the same reports all compute the same list and deliver what of it they have not
delivered.  Each view then starts from nothing.  Nobody hands out what a flush has ordered, and
nobody forgets it, before everybody is heard in the new view: so it cannot be lost with a member
that was the first to enter, and all have it when the first one delivers it.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from orderwire.kernel import (
    Broadcast,
    Destinations,
    Effects,
    Indicate,
    Instant,
    LocalProtocolError,
    ProcessId,
    members_of,
)
from orderwire.ordering.pdu import Delivered, Multicast, Sent
from orderwire.ordering.total.asked import Asked
from orderwire.ordering.total.pdu import (
    ChangeView,
    Excluded,
    Installed,
    Member,
    Turn,
)
from orderwire.ordering.total.settings import TotalSettings


class Message(msgspec.Struct, frozen=True, gc=False):
    """An application's message."""

    source: ProcessId
    number: int
    """How many messages its source had sent before."""
    serial: int
    """How many of them in this view."""
    destinations: Destinations
    stamp: Instant
    payload: bytes
    control_bytes: int = 0


class Flush(msgspec.Struct, frozen=True, gc=False):
    """This view begins; this is what I have."""

    view: int
    need: Destinations
    """Whose Flush the sender has not received yet."""
    installed: int
    """The view that the sender is in; -1 when it joins."""
    kept: tuple[Message, ...]
    """What the flush before `installed` ordered, as long as somebody may not know it."""
    state: Any
    """What the protocol needs to merge; None from one that joins."""


class Flushed(msgspec.Struct, frozen=True, gc=False):
    """I am in this view."""

    view: int
    need: Destinations
    """Who was not heard in it."""


class Flushing(ABC):
    """One member of a group whose order somebody else than ST makes."""

    NAME = "flushing"

    def __init__(self, me: ProcessId, settings: TotalSettings, *, joining: bool = False) -> None:
        """Start in view 0, of all processes below `settings.members`; `joining`: in none yet."""
        self.me = me
        self._settings = settings
        ids = () if joining else tuple(map(ProcessId, range(settings.members)))
        self._view = ChangeView(-1 if joining else 0, tuple([Member(k) for k in ids]))
        self._ids: tuple[ProcessId, ...] = ids
        self._mask = sum(1 << k for k in ids)
        self._number = self._serial = 0
        self._pending: deque[Message] = deque()
        """Own messages that are not sent in this view yet."""
        self._sent: dict[int, Message] = {}
        """Own messages, by serial, that are sent and not in the order yet, as far as known."""
        self._last: dict[int, int] = {}
        """Source → number of the last message of its that was delivered here."""
        self._timers: dict[str, Instant] = {}
        self._asked = Asked(me, settings.fail_ns)
        self._turn_wanted = self._stopped = False
        self._target: ChangeView | None = ChangeView(-1, ()) if joining else None
        """The view that is being flushed for; a newcomer waits for its first."""
        self._flushes: dict[int, Flush] = {}
        self._early: dict[ProcessId, Flush] = {}
        self._own_flush: Flush | None = None
        self._kept: tuple[Message, ...] = ()
        self._unheard = 0
        self._confirmed = True
        self._held_back: list[Message | ChangeView] = []
        self._told_members = self._mask
        self._flush_ns = settings.control_ns
        self._answered_at = Instant(-(1 << 62))
        self._reset()

    # ------------------------------------------------------------------ contract

    def submit(self, command: Multicast | ChangeView, now: Instant) -> Effects:
        """Send a message, or change the view."""
        effects: Effects = []
        if isinstance(command, Multicast):
            self._multicast(effects, command, now)
        else:
            self._change_view(effects, command, now)
        self._fill(effects, now)
        return effects

    def receive(self, source: ProcessId, pdu: Any, now: Instant) -> Effects:
        """Take a PDU that the channel brought, my own broadcasts too."""
        effects: Effects = []
        if self._stopped:
            return effects
        self._asked.heard(source)
        if isinstance(pdu, Flush):
            self._receive_flush(effects, source, pdu, now)
        elif self._target is None and pdu.view == self._view.number and self._mask >> source & 1:
            self._heard(effects, source, now)
            if not isinstance(pdu, Flushed):
                self._take(effects, source, pdu, now)
            elif pdu.need >> self.me & 1 and source != self.me:
                self._answer(effects, Flushed(pdu.view, Destinations(0)), now)
        self._fill(effects, now)
        return effects

    def turn(self, now: Instant) -> Effects:
        """Send what is to be said as late as possible."""
        effects: Effects = []
        if self._turn_wanted:
            self._turn_wanted = False
            if self._target is None and not self._stopped:
                self._say(effects, now)
        return effects

    def wake(self, now: Instant) -> Effects:
        """Act on every deadline at or before `now`."""
        effects: Effects = []
        for name in sorted(name for name, due in self._timers.items() if due <= now):
            del self._timers[name]
            if name == "flush":
                self._repeat_flush(effects, now)
            elif name == "flushed":
                self._repeat_flushed(effects, now)
            else:
                self._on_timer(effects, name, now)
        self._asked.suspect(effects, now)
        self._fill(effects, now)
        return effects

    def next_deadline(self) -> Instant | None:
        """When `wake` is next due."""
        due = list(self._timers.values())
        silent_at = self._asked.due_at()
        if silent_at is not None:
            due.append(silent_at)
        return min(due, default=None)

    @property
    def view(self) -> ChangeView:
        """The installed view."""
        return self._view

    @property
    def is_recovering(self) -> bool:
        """Whether this member has stopped for a change of views."""
        return self._target is not None

    @property
    def is_settled(self) -> bool:
        """Whether there is nothing left to do."""
        return (
            self._target is None
            and not self._pending
            and not self._sent
            and not self._held_back
            and not self._unheard
            and not any(True for _ in self.waiting())
        )

    @property
    def buffers_used(self) -> int:
        """How many messages wait here to be delivered."""
        return sum(1 for _ in self.waiting())

    def waiting(self) -> Iterable[tuple[int, int]]:
        """Yield (source, number) of what is here and not delivered."""
        for message in self._held_back:
            if isinstance(message, Message) and self._is_new(message):
                yield message.source, message.number
        yield from [(m.source, m.number) for m in self._undelivered() if self._is_new(m)]

    # ------------------------------------------------------------------ what a protocol adds

    @abstractmethod
    def _reset(self) -> None:
        """Start a view from nothing."""

    def _begin(self, effects: Effects, now: Instant) -> None:  # noqa: B027
        """Act on having entered a view."""

    @abstractmethod
    def _offer(self, effects: Effects, message: Message, now: Instant) -> None:
        """Send an own message; it is in `_sent` already."""

    def _may_send(self) -> bool:
        return len(self._sent) < self._settings.window

    @abstractmethod
    def _take(self, effects: Effects, source: ProcessId, pdu: Any, now: Instant) -> None:
        """Take a PDU of this view."""

    @abstractmethod
    def _on_timer(self, effects: Effects, name: str, now: Instant) -> None:
        """Act on one of the protocol's timers, which has run out and is gone."""

    def _say(self, effects: Effects, now: Instant) -> None:  # noqa: B027
        """Send what a turn was wanted for."""

    @abstractmethod
    def _undelivered(self) -> Iterable[Message]:
        """Yield what is here and not handed out."""

    @abstractmethod
    def _state(self) -> Any:
        """Return what `_merge` needs of me."""

    @abstractmethod
    def _merge(self, states: Mapping[int, Any]) -> list[Message]:
        """Put everything that these members know into one order: the same at all who do it."""

    # ------------------------------------------------------------------ for a protocol

    def _set(self, name: str, due: int) -> None:
        """Start a timer unless it runs."""
        self._timers.setdefault(name, Instant(due))

    def _clear(self, name: str) -> None:
        self._timers.pop(name, None)

    def _want_turn(self, effects: Effects) -> None:
        if not self._turn_wanted:
            self._turn_wanted = True
            effects.append(Indicate(Turn()))

    def _ask(self, mask: int, now: Instant) -> None:
        """Note that these owe me a PDU."""
        self._asked.ask(members_of(mask), now)

    def _hand_out(self, effects: Effects, message: Message, now: Instant) -> None:
        """Deliver a message if it is for me and new, once the view's order cannot be lost."""
        if self._confirmed:
            self._deliver(effects, message, now)
        else:
            self._held_back.append(message)

    # ------------------------------------------------------------------

    def _is_new(self, message: Message) -> bool:
        return (
            message.destinations >> self.me & 1 == 1
            and self._last.get(message.source, -1) < message.number
        )

    def _deliver(self, effects: Effects, message: Message, now: Instant) -> None:
        if not self._is_new(message):
            return
        self._last[message.source] = message.number
        effects.append(
            Indicate(
                Delivered(
                    source=message.source,
                    number=message.number,
                    stamp=message.stamp,
                    arrived=now,
                    payload=message.payload,
                    destinations=message.destinations,
                    control_bytes=message.control_bytes,
                )
            )
        )

    def _multicast(self, effects: Effects, command: Multicast, now: Instant) -> None:
        if self._stopped:
            raise LocalProtocolError(f"process {self.me} is in no view any more")
        if command.destinations <= 0:
            raise LocalProtocolError("a multicast needs at least one destination, got none")
        if len(self._pending) >= self._settings.pending_max:
            raise LocalProtocolError(
                f"{len(self._pending)} messages wait for the window already, which is the most"
            )
        number = self._number
        self._number += 1
        effects.append(Indicate(Sent(number, now, command.destinations, 0)))
        self._pending.append(
            Message(self.me, number, 0, command.destinations, now, command.payload)
        )

    def _fill(self, effects: Effects, now: Instant) -> None:
        """Send what waits, as far as the window allows."""
        while self._pending and self._target is None and not self._stopped and self._may_send():
            message = self._pending.popleft()
            mask = Destinations(message.destinations & self._mask)
            if mask:  # Else all its destinations have departed.
                message = msgspec.structs.replace(message, serial=self._serial, destinations=mask)
                self._sent[self._serial] = message
                self._serial += 1
                self._offer(effects, message, now)

    # ------------------------------------------------------------------ views

    def _change_view(self, effects: Effects, view: ChangeView, now: Instant) -> None:
        known = self._view.number if self._target is None else self._target.number
        if self._stopped or view.number <= max(known, self._view.number):
            return
        if self.me not in [member.process for member in view.members]:
            self._stopped = True
            self._timers.clear()
            effects.append(Indicate(Excluded(view.number, len(self._pending) + len(self._sent))))
            return
        self._target = view
        self._timers.clear()
        self._turn_wanted = False
        state = None if self._view.number < 0 else self._state()
        self._own_flush = Flush(view.number, Destinations(0), self._view.number, self._kept, state)
        self._flushes = {self.me: self._own_flush}
        early, self._early = self._early, {}
        self._flush_ns = self._settings.control_ns
        self._timers["flush"] = Instant(now + self._flush_ns)
        effects.append(Broadcast(self._own_flush))
        for source, pdu in early.items():
            self._receive_flush(effects, source, pdu, now)
        self._complete(effects, now)

    def _receive_flush(self, effects: Effects, source: ProcessId, pdu: Flush, now: Instant) -> None:
        target = self._target
        own = self._own_flush
        if target is not None and pdu.view == target.number:
            if source in [member.process for member in target.members]:
                self._flushes.setdefault(source, pdu)
                if pdu.need >> self.me & 1 and own is not None and source != self.me:
                    self._answer(effects, own, now)
                self._complete(effects, now)
        elif target is None and own is not None and pdu.view == own.view:
            if pdu.need >> self.me & 1:
                self._answer(effects, own, now)
        elif pdu.view > max(self._view.number, -1 if target is None else target.number):
            self._early[source] = pdu

    def _answer(self, effects: Effects, pdu: Flush | Flushed, now: Instant) -> None:
        if now - self._answered_at >= self._settings.guard_ns:
            self._answered_at = now
            effects.append(Broadcast(pdu))

    def _repeat_flush(self, effects: Effects, now: Instant) -> None:
        target, own = self._target, self._own_flush
        if target is None or own is None:
            return
        need = [m.process for m in target.members if m.process not in self._flushes]
        mask = Destinations(sum(1 << k for k in need))
        self._ask(mask, now)
        effects.append(Broadcast(msgspec.structs.replace(own, need=mask)))
        self._set("flush", now + self._settings.control_ns)

    def _repeat_flushed(self, effects: Effects, now: Instant) -> None:
        if self._unheard:
            self._ask(self._unheard, now)
            effects.append(Broadcast(Flushed(self._view.number, Destinations(self._unheard))))
            self._flush_ns = min(2 * self._flush_ns, self._settings.heartbeat_max_ns)
            self._set("flushed", now + self._flush_ns)

    def _complete(self, effects: Effects, now: Instant) -> None:
        """Once every member's Flush is here, do what all do."""
        view = self._target
        if view is None or len(self._flushes) < len(view.members) or view.number < 0:
            return
        top = max(flush.installed for flush in self._flushes.values())
        those = {k: f for k, f in sorted(self._flushes.items()) if f.installed == top}
        kept = max((flush.kept for flush in those.values()), key=len)
        states = {k: flush.state for k, flush in those.items() if flush.state is not None}
        merged: list[Message] = []
        seen: set[tuple[int, int]] = set()
        for message in (*kept, *self._merge(states)):
            if (message.source, message.number) not in seen:
                seen.add((message.source, message.number))
                merged.append(message)
        self._install(effects, view, merged, seen, now)

    def _install(
        self,
        effects: Effects,
        view: ChangeView,
        merged: list[Message],
        seen: set[tuple[int, int]],
        now: Instant,
    ) -> None:
        self._view, self._target = view, None
        self._ids = tuple(sorted(member.process for member in view.members))
        self._mask = sum(1 << k for k in self._ids)
        self._kept = tuple(merged)
        self._timers.clear()
        self._asked.clear()
        left = [*self._sent.values(), *self._pending]
        self._pending = deque([m for m in left if (m.source, m.number) not in seen])
        self._sent = {}
        self._serial = 0
        self._reset()
        # What was held back in the old view may be nowhere else: its end must not lose it.
        held = [what for what in self._held_back if isinstance(what, Message)]
        first = {(m.source, m.number): m for m in reversed((*held, *merged))}
        order = dict.fromkeys((m.source, m.number) for m in (*held, *merged))
        self._held_back = [*(first[key] for key in order), view]
        self._unheard = self._mask
        self._confirmed = False
        effects.append(Broadcast(Flushed(view.number, Destinations(0))))
        self._set("flushed", now + self._settings.control_ns)
        self._heard(effects, self.me, now)
        self._begin(effects, now)

    def _heard(self, effects: Effects, source: ProcessId, now: Instant) -> None:
        """Note that `source` is in this view; hand out once a majority is."""
        if not self._unheard >> source & 1:
            return
        self._unheard &= ~(1 << source)
        if not self._unheard:
            self._kept = ()
            self._clear("flushed")
            self._confirmed = True
            held, self._held_back = self._held_back, []
            for what in held:
                if isinstance(what, Message):
                    self._deliver(effects, what, now)
                else:
                    self._indicate_view(effects, what)

    def _indicate_view(self, effects: Effects, view: ChangeView) -> None:
        old, new = self._told_members, sum(1 << m.process for m in view.members)
        self._told_members = new
        joined, departed = tuple(members_of(new & ~old)), tuple(members_of(old & ~new))
        effects.append(Indicate(Installed(view.number, view.members, joined, departed)))


def merge_in_order(entries: Mapping[int, Message], waiting: Iterable[Message]) -> list[Message]:
    """Put numbered messages in their order, and those without a number where FIFO wants them."""
    own: dict[int, deque[Message]] = {}
    for message in sorted(waiting, key=lambda m: (m.source, m.number)):
        own.setdefault(message.source, deque()).append(message)
    merged: list[Message] = []
    for place in sorted(entries):
        message = entries[place]
        queue = own.get(message.source, deque())
        while queue and queue[0].number <= message.number:
            merged.append(queue.popleft())
        merged.append(message)
    for source in sorted(own):
        merged += own[source]
    return merged
