"""ST's data transfer: sending, accepting, stability, acknowledgement, delivery.

[S003:sec.3.2] [S003:sec.3.3]

What each member has heard rides on every PDU (ACK).  A message is pre-acknowledged when it and
every earlier PDU of its source is accepted by all its destinations (the stable prefix), and
acknowledged when all its destinations know that of each other.  `tachikawa_st` adds recovery.
"""

from collections import deque
from collections.abc import Iterable
from typing import ClassVar

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
    Data,
    Epoch,
    Member,
    Nak,
    Pdu,
    Rtx,
    Turn,
    number_at,
)
from orderwire.ordering.total.receipt import Place, Receipt
from orderwire.ordering.total.settings import Delivery, Stability, TotalSettings
from orderwire.ordering.total.streams import Streams

NEVER = Instant(1 << 62)
NAK_MAX = 256
"""PSEQ numbers of one source in one NAK, at most."""


class DataTransfer:
    """One member, as long as nothing is lost.  [S003:sec.3.2]"""

    RECEIPT: ClassVar[type[Receipt]] = Receipt

    def __init__(self, me: ProcessId, settings: TotalSettings, *, joining: bool = False) -> None:
        """Start in view 0, of all processes below `settings.members`; `joining`: in none yet."""
        self.me = me
        self._settings = settings
        self._two_phases = settings.delivery is Delivery.ACK
        self._acknowledges_all = settings.stability is Stability.ALL
        size = max(settings.members, me + 1)
        self._streams = Streams(size, settings.stability, witnesses=self._two_phases)
        self._receipt = self.RECEIPT(me, size)
        self._tseq = 0
        self._number = 0
        self._pseq = [0] * size
        self._sent: dict[int, Data] = {}
        """SL by TSEQ."""
        self._awaited: dict[int, int] = {}
        """TSEQ of SL → how many destinations have not told yet that they have it."""
        self._to: list[deque[int]] = [deque() for _ in range(size)]
        """TSEQs of SL by destination, ascending."""
        self._buffers = [settings.buffers] * size
        self._pending: deque[tuple[Multicast, int, Instant]] = deque()
        self._told: tuple[int, ...] = ()
        """ACK of my last PDU."""
        self.unread = 0
        """Messages handed out that the application has not taken yet: they hold buffers."""
        self._told_unread = 0
        """The same when I last told how many buffers are free."""
        self._suspected = 0
        """Sources of which something was told that has not come here: condition (2)."""
        self.epoch: Epoch = (0, 0)
        self._confirmed = not joining
        """Whether a majority has completed the epoch, so that its order cannot be lost."""
        self._heard = 0
        """Who has, as far as known, as a mask."""
        self._stopped = False
        self._joining = joining
        if joining:
            self._view = ChangeView(-1, ())
            self.epoch = (-1, 0)
        else:
            self._view = ChangeView(0, tuple([Member(k) for k in map(ProcessId, range(size))]))
            self._streams.set_members((1 << settings.members) - 1)
        # Deadlines.
        self._ack_at = self._hb_at = self._nak_at = NEVER
        self._hb_ns = settings.heartbeat_ns
        self._turn_wanted = self._poll_due = False
        self._repeated_at: dict[int, Instant] = {}
        self._asked = Asked(me, settings.fail_ns)
        self._last_null: Data | None = None
        """My last PDU, as long as that is a NULL."""
        self._told_again_at = Instant(-NEVER)

    # ------------------------------------------------------------------ contract

    def submit(self, command: Multicast | ChangeView, now: Instant) -> Effects:
        """Send a message, or change the view."""
        effects: Effects = []
        if isinstance(command, Multicast):
            self._multicast(effects, command, now)
        else:
            self._change_view(effects, command, now)
        self._rearm(now)
        return effects

    def receive(self, source: ProcessId, pdu: Pdu, now: Instant) -> Effects:
        """Take a PDU that the channel brought, my own ones too."""
        effects: Effects = []
        if self._stopped:
            return effects
        self._asked.heard(source)
        if isinstance(pdu, Data):
            self._receive_data(effects, source, pdu, now)
        else:
            self._receive_other(effects, source, pdu, now)
        if self._pending:  # What has come may have opened the window.
            self._send_pending(effects, now)
        self._rearm(now)
        return effects

    def turn(self, now: Instant) -> Effects:
        """Send the NULL that is due, if it still is: the channel is free.  See `Turn`."""
        effects: Effects = []
        if self._turn_wanted:
            self._turn_wanted = False
            if not self._is_recovering():
                self._build(effects, None, 0, now)
                self._rearm(now)
        return effects

    def wake(self, now: Instant) -> Effects:
        """Act on every deadline at or before `now`."""
        effects: Effects = []
        if self._stopped:
            return effects
        if self._nak_at <= now:
            self._nak_at = Instant(now + self._settings.nak_ns)
            effects += self.nak()
        if self._hb_at <= now:
            self._hb_ns = min(self._hb_ns * 3 // 2, self._settings.heartbeat_max_ns)
            self._hb_at = Instant(now + self._hb_ns)
            if self._is_unsettled():
                self._poll_due = True
                self._want_turn(effects)
                self._asked.ask(self._streams.ids, now)
            else:
                self._inquire(effects, now)
        if self._ack_at <= now:
            self._ack_at = NEVER
            self._want_turn(effects)
        self._asked.suspect(effects, now)
        self._rearm(now)
        return effects

    def next_deadline(self) -> Instant | None:
        """When `wake` is next due."""
        silent_at = self._asked.due_at()
        earliest = min(self._ack_at, self._hb_at, self._nak_at, silent_at or NEVER)
        return None if earliest >= NEVER else earliest

    def queued(self) -> list[Place]:
        """Return the places that are not delivered yet, in order."""
        return [*self._receipt.pre_acknowledged, *self._receipt.accepted]

    def waiting(self) -> Iterable[tuple[int, int]]:
        """Yield (source, number) of what is here and not delivered."""
        for place in self.queued():
            if place.message is not None:
                yield place.source, place.message.number

    @property
    def pending(self) -> int:
        """How many messages of the application wait for the window."""
        return len(self._pending)

    @property
    def wants_room_told(self) -> bool:
        """Whether the others know of fewer free buffers than there are again, by half or more."""
        return (
            2 * (self._told_unread - self.unread) >= self._settings.buffers
            and not self._is_recovering()
        )

    @property
    def has_sent_all(self) -> bool:
        """Whether all that was sent has been accepted by all its destinations."""
        return not (self._sent or self._pending)

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing waits here and everybody is known to have what I have sent."""
        if self._suspected or self._ack_at != NEVER:
            return False
        return not (self._is_unsettled() or self._is_recovering())

    @property
    def buffers_used(self) -> int:
        """How many places for messages are taken."""
        return self._receipt.places()

    @property
    def suspected(self) -> Destinations:
        """Sources of which others have told more than has come here: condition (2)."""
        return Destinations(self._suspected)

    # ------------------------------------------------------------------ sending  [S003:sec.3.2]

    def _multicast(self, effects: Effects, command: Multicast, now: Instant) -> None:
        if self._stopped:
            raise LocalProtocolError(f"process {self.me} is in no view any more")
        if not command.destinations:
            raise LocalProtocolError("a multicast needs at least one destination, got none")
        if command.destinations < 0 or command.destinations.bit_length() > len(self._pseq):
            raise LocalProtocolError(
                f"destinations {command.destinations:#x} name a process that was never a member"
            )
        if len(self._pending) >= self._settings.pending_max:
            raise LocalProtocolError(
                f"{len(self._pending)} messages wait for the window already, which is the most"
            )
        number = self._number
        self._number += 1
        effects.append(Indicate(Sent(number, now, command.destinations, 0)))
        self._pending.append((command, number, now))
        self._send_pending(effects, now)

    def _send_pending(self, effects: Effects, now: Instant) -> None:
        while self._pending and self.may_send():
            command, number, stamp = self._pending.popleft()
            mask, payload = self._on_the_wire(command)
            if mask:  # Else all its destinations have departed.
                self._build(effects, payload, mask, now, number, stamp)

    def _on_the_wire(self, command: Multicast) -> tuple[int, bytes]:
        """Return for whom the message is on the channel, and what it carries there."""
        return command.destinations & self._streams.members, command.payload

    def may_send(self) -> bool:
        """Whether the window is open."""
        if self._is_recovering():
            return False
        settings = self._settings
        ids = self._streams.ids
        fewest = min([self._buffers[k] for k in ids], default=0)
        return len(self._sent) < min(settings.window, fewest // (settings.headroom * len(ids)))

    def _build(
        self,
        effects: Effects,
        payload: bytes | None,
        mask: int,
        now: Instant,
        number: int = 0,
        stamp: Instant | None = None,
    ) -> None:
        """Send a DATA; without payload a NULL.  What is due to be told rides on it."""
        tseq = self._tseq
        pseq = tuple(self._pseq)
        ack = self._receipt.levels()
        free = max(0, self._settings.buffers - self._receipt.places() - self.unread)
        self._told_unread = self.unread
        data = Data(
            self.epoch,
            tseq,
            Destinations(mask),
            pseq,
            ack,
            free,
            self._poll_due,
            number,
            now if stamp is None else stamp,
            b"" if payload is None else payload,
        )
        self._tseq = tseq + 1
        streams = self._streams
        streams.header[self.me][tseq] = mask
        if mask:
            self._sent[tseq] = data
            group = streams.group(mask)
            self._awaited[tseq] = len(group)
            for k in group:
                self._pseq[k] += 1
                self._to[k].append(tseq)
        self._told = ack
        self._last_null = None if mask else data
        self._ack_at = NEVER
        self._poll_due = self._turn_wanted = False
        effects.append(Broadcast(data))
        raised = streams.raise_levels(self.me, ack, tseq)
        if raised:
            self._progress(effects, raised, now)

    def null(self, now: Instant, *, poll: bool = False) -> Effects:
        """Send a NULL at once."""
        effects: Effects = []
        if not self._is_recovering():
            self._poll_due = self._poll_due or poll
            self._build(effects, None, 0, now)
            self._rearm(now)
        return effects

    def _want_turn(self, effects: Effects) -> None:
        if not self._turn_wanted and not self._is_recovering():
            self._turn_wanted = True
            effects.append(Indicate(Turn()))

    # ------------------------------------------------------------------ receiving  [S003:sec.3.2]

    def _receive_data(self, effects: Effects, source: ProcessId, pdu: Data, now: Instant) -> None:
        if pdu.epoch != self.epoch:
            self._keep_future(source, pdu)
            return
        streams = self._streams
        if not streams.members >> source & 1:
            return
        receipt = self._receipt
        if pdu.tseq < receipt.treq[source]:
            return
        me = self.me
        raised = streams.raise_levels(source, pdu.ack, pdu.tseq) | 1 << source
        if not self._confirmed:
            self._confirm(effects, source, now)
        self._buffers[source] = pdu.buffers
        streams.header[source][pdu.tseq] = pdu.destinations
        mine = pdu.destinations >> me & 1
        if receipt.accept(source, pdu):
            self._lost(effects, now)
        else:
            self._suspected &= ~(1 << source)
        for k, (level, here) in enumerate(zip(pdu.ack, receipt.treq, strict=False)):
            if level > here and k != source:
                self._suspected |= 1 << k
        if (
            mine
            or (
                pdu.poll
                and (
                    self._told != receipt.levels()
                    or number_at(pdu.ack, me) < self._tseq
                    or self._told_unread > self.unread
                )
            )
            or (self._acknowledges_all and pdu.destinations)
        ):
            self._ack_due(now)
        self._progress(effects, raised, now)

    def _ack_due(self, now: Instant) -> None:
        if self._ack_at == NEVER and not self._is_recovering():
            self._ack_at = Instant(now + self._settings.ack_delay_ns)

    def _receive_rtx(self, effects: Effects, source: ProcessId, pdu: Rtx, now: Instant) -> None:
        if pdu.epoch != self.epoch:
            self._keep_future(source, pdu)
            return
        if not self._streams.members >> source & 1:
            return
        if not self._confirmed:
            self._confirm(effects, source, now)
        receipt = self._receipt
        if pdu.destinations >> self.me & 1:
            if receipt.fill(source, pdu):
                self._ack_due(now)
            elif self._is_recovering():
                receipt.hold(source, pdu)
        if pdu.tseq >= self._streams.stable[source]:
            self._streams.header[source][pdu.tseq] = pdu.destinations
        self._progress(effects, 1 << source, now)

    # ------------------------------------------------------------------ repeating  [S003:sec.3.3]

    def nak(self) -> Effects:
        """Ask for what is missing in empty places."""
        missing = tuple(
            (ProcessId(source), tuple(sorted(holes)[:NAK_MAX]))
            for source, holes in enumerate(self._receipt.holes)
            if holes
        )
        return [Broadcast(Nak(self.epoch, missing))] if missing else []

    def _receive_nak(self, effects: Effects, source: ProcessId, pdu: Nak, now: Instant) -> None:
        if pdu.epoch != self.epoch or self._is_recovering() or source >= len(self._to):
            return
        for asked, numbers in pdu.missing:
            if asked == self.me and not numbers:
                self._tell_again(effects, now)
            elif asked == self.me:
                wanted = set(numbers)
                for tseq in self._to[source]:
                    data = self._sent[tseq]
                    if data.pseq[source] in wanted:
                        self._repeat(effects, data, now)

    def _repeat(self, effects: Effects, data: Data, now: Instant) -> None:
        """Send a message again, not sooner than T_guard after the last time."""
        last = self._repeated_at.get(data.tseq)
        if last is None or now - last >= self._settings.guard_ns:
            self._repeated_at[data.tseq] = now
            again = (data.tseq, data.destinations, data.pseq, data.number, data.stamp, data.payload)
            effects.append(Broadcast(Rtx(self.epoch, *again)))

    def _is_unsettled(self) -> bool:
        """Whether something waits for what the others have to tell; an empty place is in RRL."""
        receipt = self._receipt
        return bool(self._sent or self._pending or receipt.accepted or receipt.pre_acknowledged)

    def _inquire(self, effects: Effects, now: Instant) -> None:
        """Ask those of whom others have told more for their last PDU, and nobody else.

        Nothing of mine waits, so no number is spent on it: a NULL would be missed by somebody too.
        """
        suspected = tuple(members_of(self._suspected))
        self._asked.excuse_all_but(suspected)
        self._asked.ask(suspected, now)
        others = tuple([(source, ()) for source in suspected if source != self.me])
        if others:
            effects.append(Broadcast(Nak(self.epoch, others)))
        if self._suspected >> self.me & 1:
            self._tell_again(effects, now)

    def _tell_again(self, effects: Effects, now: Instant) -> None:
        """Repeat my last PDU under its number if it is a NULL, else tell where I am by one."""
        last = self._last_null
        if last is None or last.epoch != self.epoch:
            self._ack_due(now)
        elif (
            self._ack_at == NEVER
            and not self._turn_wanted
            and now - self._told_again_at >= self._settings.guard_ns
        ):
            self._told_again_at = now
            effects.append(Broadcast(msgspec.structs.replace(last, poll=False)))

    def _rearm(self, now: Instant) -> None:
        """Set the timers that the state asks for, stop the others."""
        if self._is_recovering():
            self._ack_at = self._hb_at = self._nak_at = NEVER
            return
        if self._suspected or self._is_unsettled():
            if self._hb_at == NEVER:
                self._hb_at = Instant(now + self._hb_ns)
        else:
            self._hb_at = NEVER
            self._hb_ns = self._settings.heartbeat_ns
            self._asked.clear()
        if not self._receipt.has_holes():
            self._nak_at = NEVER
        elif self._nak_at == NEVER:
            self._nak_at = Instant(now + self._settings.nak_ns)

    # ------------------------------------------------------------------ progress  [S003:sec.3.3]

    def _progress(self, effects: Effects, raised: int, now: Instant) -> None:
        """Advance what the raised levels allow: SL, ST, pre-acknowledgement, delivery."""
        streams = self._streams
        moved = self._purge_sent() if raised >> self.me & 1 else False
        advanced = False
        mask = raised
        while mask:
            bit = mask & -mask
            mask ^= bit
            advanced |= streams.advance(bit.bit_length() - 1)
        if advanced and self._receipt.accepted:
            self._pre_acknowledge(effects, now)
        if self._receipt.pre_acknowledged:
            self._acknowledge(effects, now)
        self._tell_views(effects)
        if moved or advanced:
            self._hb_ns = self._settings.heartbeat_ns
            self._hb_at = NEVER

    def _purge_sent(self) -> bool:
        """Drop from SL what all its destinations have; say whether anything was dropped."""
        levels = self._streams.al[self.me]
        dropped = False
        for k in self._streams.ids:
            queue = self._to[k]
            level = levels[k]
            while queue and queue[0] < level:
                dropped |= self._told_by_one(queue.popleft())
        return dropped

    def _told_by_one(self, tseq: int) -> bool:
        left = self._awaited[tseq] - 1
        self._awaited[tseq] = left
        if left:
            return False
        del self._awaited[tseq], self._sent[tseq]
        self._repeated_at.pop(tseq, None)
        return True

    def _confirm(self, effects: Effects, source: ProcessId, now: Instant) -> None:
        """Note that `source` has completed the epoch; go on once a majority has."""
        self._heard |= 1 << source | 1 << self.me
        if 2 * (self._heard & self._streams.members).bit_count() > len(self._streams.ids):
            self._confirmed = True
            self._pre_acknowledge(effects, now)

    def _pre_acknowledge(self, effects: Effects, now: Instant) -> None:
        if not self._confirmed:
            return
        receipt = self._receipt
        accepted = receipt.accepted
        stable = self._streams.stable
        while accepted:
            place = accepted[0]
            message = place.message
            if message is None:
                return
            if not place.is_settled and message.tseq >= stable[place.source]:
                return
            accepted.popleft()
            if self._two_phases:
                place.awaited = [] if place.is_settled else self._witnesses(place, message)
                receipt.pre_acknowledged.append(place)
                self._ack_due(now)
            else:
                self._tell_views(effects, place.view)
                self._deliver(effects, message, place.source, now)

    def _witnesses(self, place: Place, message: Data | Rtx) -> list[tuple[int, int, int]]:
        """Return what must be heard before all destinations know of each other."""
        streams = self._streams
        group = streams.group(message.destinations)
        awaited = []
        for k in group:
            heard = streams.witness(place.source, k, message.tseq)
            awaited += [(k, other, heard) for other in group if other not in (k, self.me)]
        if not self._receipt.holes[place.source]:
            streams.trim(place.source, message.tseq)
        return awaited

    def _is_known_by_all(self, place: Place) -> bool:
        """Whether every destination knows that every other has accepted it."""
        al = self._streams.al
        members = self._streams.members
        awaited = place.awaited
        while awaited:
            k, other, heard = awaited[-1]
            if al[k][other] < heard and members >> k & members >> other & 1:
                return False
            awaited.pop()
        return True

    def _acknowledge(self, effects: Effects, now: Instant) -> None:
        queue = self._receipt.pre_acknowledged
        while queue and self._is_known_by_all(queue[0]):
            place = queue.popleft()
            assert place.message is not None
            self._tell_views(effects, place.view)
            self._deliver(effects, place.message, place.source, now)

    def _deliver(self, effects: Effects, message: Data | Rtx, source: int, now: Instant) -> None:
        effects.append(
            Indicate(
                Delivered(
                    source=ProcessId(source),
                    number=message.number,
                    stamp=message.stamp,
                    arrived=now,
                    payload=message.payload,
                    destinations=message.destinations,
                    control_bytes=message.control_bytes,
                )
            )
        )

    # ------------------------------------------------------------------ what recovery adds

    def _is_recovering(self) -> bool:
        """Whether nothing may be sent now."""
        raise NotImplementedError

    def _lost(self, effects: Effects, now: Instant) -> None:
        """Act on a message to me that is missing for certain: condition (1)."""
        raise NotImplementedError

    def _tell_views(self, effects: Effects, next_view: int | None = None) -> None:
        """Indicate what views have their place here."""
        raise NotImplementedError

    def _keep_future(self, source: ProcessId, pdu: Data | Rtx) -> None:
        """Keep a PDU of another epoch than mine for later, if it will be mine."""
        raise NotImplementedError

    def _receive_other(self, effects: Effects, source: ProcessId, pdu: Pdu, now: Instant) -> None:
        raise NotImplementedError

    def _change_view(self, effects: Effects, view: ChangeView, now: Instant) -> None:
        raise NotImplementedError
