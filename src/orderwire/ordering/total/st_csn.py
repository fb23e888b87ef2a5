"""ST-CSN: ST over a channel that numbers its messages, as what the numbers are worth.

[S003:sec.4.1]

The relay of a real channel knows the order of what it passes on, and could tell it.  Then a gap is
seen at the next PDU, of whomever, and the place of what is missing is known, so there is no failure
line, no stop and no sorting (ordered unreliable multicast with drop detection).  Who has not heard
a number asks for it (`Blank`); who has it says what it is (`Named`, or the message itself), and
PDUs are taken in the order of the numbers.  Stability, acknowledgement and views are ST's.

- Messages take a number, NULLs and control PDUs do not: they are told how many messages were before
  them, so that no loss of theirs has to be mended.
- Who put a message answers for it; when asked again, another member does too, one after the other:
  who put it may not have heard its number.
- A number that no member has heard, as all say, is nobody's.  Its message has its place directly
  before the next one of its source that anybody has heard, which all see in its PSEQ.  While there
  there is none, its source puts it on the channel again.
- What is asked or answered is said when the channel takes it (`KeepPlace`), by what is known then.
- Nobody sends while `future_max` numbers are not settled with everybody, so that what a member may
  still ask for, however far behind it is, is kept.
"""

from bisect import bisect_left
from collections import deque
from typing import Any, ClassVar

import msgspec

from orderwire.kernel import Broadcast, Effects, Indicate, Instant, ProcessId
from orderwire.ordering.total.csn_pdu import (
    Blank,
    KeepPlace,
    Named,
    NumberedRtx,
    PutAgain,
    header_of,
)
from orderwire.ordering.total.pdu import (
    Data,
    Epoch,
    Header,
    Numbers,
    Record,
    RstAck,
    Rtx,
    number_at,
)
from orderwire.ordering.total.receipt import GapReceipt, Receipt
from orderwire.ordering.total.recovery import Collection
from orderwire.ordering.total.settings import TotalSettings
from orderwire.ordering.total.st_transfer import NAK_MAX, NEVER
from orderwire.ordering.total.tachikawa_st import TachikawaST


class _InOrder(GapReceipt):
    """It is given PDUs in the order of the channel, without gaps, unless the group has stopped."""

    def __init__(self, me: ProcessId, size: int) -> None:
        super().__init__(me, size)
        self.ahead = 0
        """Messages to me that wait for a number before theirs."""
        self.is_stopped = False

    def places(self) -> int:
        return super().places() + self.ahead

    def accept(self, source: int, data: Data) -> bool:
        if self.is_stopped or not data.destinations:
            # A NULL has no number, so what it shows to be missing has no place before it.
            return Receipt.accept(self, source, data)
        return super().accept(source, data)

    def accept_name(self, header: Header) -> None:
        """Take it as known that this message has its place here."""
        source, pseq = header.source, number_at(header.pseq, self._me)
        if pseq < self.preq[source]:
            return
        self.open_gap(source, pseq + (header.destinations >> self._me & 1))
        self.treq[source] = max(self.treq[source], header.tseq + 1)


class StCsn(TachikawaST):
    """One member.  [S003:sec.4.1]"""

    NAME = "st-csn"
    RECEIPT: ClassVar[type[Receipt]] = _InOrder
    _receipt: _InOrder

    def __init__(self, me: ProcessId, settings: TotalSettings, *, joining: bool = False) -> None:
        super().__init__(me, settings, joining=joining)
        self._arrived = 0
        """Number of the PDU that is being received."""
        self._top = 0
        """All numbers below it are taken, as far as is known here."""
        self._next = 0
        """All numbers below it are settled here."""
        self._base = 0
        """No message of the epoch has a number below it."""
        self._floor = 0
        """What has a number below it, and is of the epoch, is settled with everybody."""
        self._waiting: deque[tuple[int, ProcessId, Data]] = deque()
        """What has come and waits for a number before it, in the order of the channel."""
        self._names: dict[int, tuple[Epoch, Header | None]] = {}
        """What the numbers are that somebody may still ask for, with its epoch."""
        self._copies: dict[int, Rtx | None] = {}
        """Number that was told me and waits → its message to me, if that was sent again."""
        self._blank: dict[int, int] = {}
        """Number → who has said that it has not heard it, as a mask."""
        self._attempt = 0
        """How often the timer has asked: who answers changes with it."""
        self._place_kept = self._ask_due = self._nak_due = False
        self._owed: dict[int, bool] = {}
        """Number that I answer for next → whether its message is asked for, which is mine."""
        self._passed: set[int] = set()
        """Numbers that I have passed over, and am asked for."""
        self._owed_again: set[int] = set()
        """TSEQs of my messages that an empty place is kept for."""
        self._asked_below = 0
        """All numbers below it are settled here or were asked for."""
        self._blank_at = NEVER
        # Everybody behind the gap waits, and who is asked next may have it at hand.
        self._ask_again_ns = min(settings.nak_ns, 2 * settings.guard_ns or settings.nak_ns)
        self._answered: dict[int, tuple[Instant, bool]] = {}
        """Number → when it was last answered for, and whether by its message."""
        self._placed_below = 0
        """TSEQ from which on I have no number of what I have sent."""
        self._put: dict[int, int] = {}
        """TSEQ of what was put again → TSEQ of my next PDU then."""
        self._numbered: list[list[tuple[int, int]]] = [[] for _ in self._pseq]
        """By source, TSEQ of a PDU and the number that follows, ascending in both."""
        self._settled = [0] * len(self._pseq)
        """By member, below which number all is settled there."""

    # ------------------------------------------------------------------ contract

    def takes_number(self, pdu: object) -> bool:
        """Say whether the channel gives this PDU a number of its own: a message's first form."""
        return isinstance(pdu, Data) and pdu.destinations != 0

    def receive_numbered(self, source: ProcessId, pdu: Any, csn: int, now: Instant) -> Effects:
        """Take a PDU of this number; if it takes none, the next one that does has it."""
        effects: Effects = []
        if self._stopped:
            return effects
        self._arrived = csn
        if self.takes_number(pdu):
            self._top = csn + 1
            self._names[csn] = (pdu.epoch, header_of(source, pdu))
        else:
            self._top = max(self._top, csn)
        effects += self.receive(source, pdu, now)
        if max(self._next, self._asked_below) < self._top and not self._is_recovering():
            self._want_to_tell(effects)
        return effects

    def fill_place(self, now: Instant) -> Effects:
        """Ask or answer in the place that was kept for it, if there is still need: one PDU."""
        effects: Effects = []
        self._place_kept = False
        if not self._is_recovering():
            self._tell_due(effects, now)
            self._rearm(now)
        return effects

    def wake(self, now: Instant) -> Effects:
        """Act on every deadline at or before `now`."""
        effects: Effects = []
        if self._blank_at <= now:
            self._blank_at = Instant(now + self._ask_again_ns)
            self._ask_due = True
            self._asked.ask(self._streams.ids, now)
            self._want_to_tell(effects)
        return effects + super().wake(now)

    def next_deadline(self) -> Instant | None:
        """When `wake` is next due."""
        earliest = super().next_deadline()
        if self._blank_at == NEVER:
            return earliest
        return self._blank_at if earliest is None else min(earliest, self._blank_at)

    # ------------------------------------------------------------------ asking and answering

    def _want_to_tell(self, effects: Effects) -> None:
        """Keep a place for asking and answering: what is settled by then need not be told.

        What waits for a busy channel as a PDU goes stale: it is asked for again meanwhile, and
        answered again, which makes the channel busier still.
        """
        if not self._place_kept:
            self._place_kept = True
            effects.append(Indicate(KeepPlace()))

    def _tell_due(self, effects: Effects, now: Instant) -> None:
        """Send one PDU, and keep the next place for what else is due."""
        for tell in (self._tell_message, self._tell_names, self._tell_gaps, self._tell_passed):
            tell(effects, now)
            if effects:
                break
        if self._owed or self._owed_again or self._passed or self._has_gaps_to_tell():
            self._want_to_tell(effects)

    def _has_gaps_to_tell(self) -> bool:
        return self._ask_due or self._nak_due or max(self._next, self._asked_below) < self._top

    def _tell_message(self, effects: Effects, now: Instant) -> None:
        """Send a message of mine again: one whose number is asked for, else one for a place."""
        for number in sorted(number for number, whole in self._owed.items() if whole):
            _, header = self._names.get(number, (self.epoch, None))
            data = None if header is None else self._sent.get(header.tseq)
            if data is None:  # All its destinations have it by now.
                self._owed[number] = False
                continue
            del self._owed[number]
            self._answered[number] = now, True
            self._repeated_at[data.tseq] = now
            self._owed_again.discard(data.tseq)
            effects.append(Broadcast(NumberedRtx.of(data, number)))
            return
        while self._owed_again and not effects:
            tseq = min(self._owed_again)
            self._owed_again.discard(tseq)
            if tseq in self._sent:
                super()._repeat(effects, self._sent[tseq], now)

    def _tell_names(self, effects: Effects, now: Instant) -> None:
        names = []
        for number in sorted(number for number, whole in self._owed.items() if not whole):
            del self._owed[number]
            if self._base <= number < self._floor:
                continue
            epoch, header = self._names.get(number, (self.epoch, None))
            names.append((number, header if epoch == self.epoch else None))
            self._answered[number] = now, self._is_answered(number, now, whole=True)
        if names:
            effects.append(Broadcast(Named(self.epoch, tuple(names))))

    def _tell_gaps(self, effects: Effects, now: Instant) -> None:
        is_again, self._ask_due = self._ask_due, False
        self._attempt += is_again
        numbers = self._gaps(0 if is_again else self._asked_below)
        if is_again or self._blank_at == NEVER:
            # New gaps do not put off that old ones are asked for again.
            self._blank_at = Instant(now + self._ask_again_ns)
        self._asked_below = self._top
        if numbers:
            self._tell_blank(effects, numbers, self._attempt if is_again else 0)
        elif self._nak_due:
            self._nak_due = False
            self._nak_at = Instant(now + self._ask_again_ns)
            effects += super().nak()

    def _tell_passed(self, effects: Effects, now: Instant) -> None:
        passed = sorted(n for n in self._passed if n not in self._names)
        self._passed.clear()
        if passed:
            self._tell_blank(effects, tuple(passed), -1)

    def nak(self) -> Effects:
        """Ask for what is missing in empty places, when the channel is free."""
        effects: Effects = []
        self._nak_due = True
        self._want_to_tell(effects)
        return effects

    def _repeat(self, effects: Effects, data: Data, now: Instant) -> None:
        self._owed_again.add(data.tseq)
        self._want_to_tell(effects)

    def _gaps(self, low: int = 0) -> Numbers:
        """Return the lowest numbers from `low` on that are not settled and not named."""
        gaps = []
        for number in range(max(low, self._next), self._top):
            if number not in self._names:
                gaps.append(number)
                if len(gaps) == NAK_MAX:
                    break
        return tuple(gaps)

    def _receive_other(self, effects: Effects, source: ProcessId, pdu: Any, now: Instant) -> None:
        if isinstance(pdu, Blank | Named | NumberedRtx):
            if pdu.epoch != self.epoch or self._is_recovering():
                return
            self._receive_numbers(effects, source, pdu, now)
            if not isinstance(pdu, NumberedRtx):
                return
        super()._receive_other(effects, source, pdu, now)

    def _receive_numbers(
        self, effects: Effects, source: ProcessId, pdu: Blank | Named | NumberedRtx, now: Instant
    ) -> None:
        if not self._streams.members >> source & 1:
            return
        if isinstance(pdu, Blank):
            self._answer(effects, source, pdu, now)
        elif isinstance(pdu, Named):
            for number, header in pdu.names:
                self._name(number, header, now)
        else:
            self._name(pdu.csn, header_of(source, pdu), now, whole=True)
            if self._copies.get(pdu.csn, pdu) is None:
                self._copies[pdu.csn] = pdu
                self._receipt.ahead += 1
        self._advance(effects, now)

    def _name(
        self, number: int, header: Header | None, now: Instant, *, whole: bool = False
    ) -> None:
        self._answered[number] = now, whole or self._is_answered(number, now, whole=True)
        if not self._owed.get(number, True):
            del self._owed[number]
        if self._next <= number < self._top and number not in self._names:
            self._names[number] = (self.epoch, header)
            if header is not None and header.destinations >> self.me & 1:
                self._copies[number] = None

    def _answer(self, effects: Effects, asker: ProcessId, pdu: Blank, now: Instant) -> None:
        for number in pdu.numbers:
            if self._base <= number < self._floor:
                continue
            if number >= self._base and number not in self._names:
                self._note_blank(number, asker)
                if number < self._next and pdu.attempt >= 0:
                    self._passed.add(number)
            elif pdu.attempt >= 0 and asker != self.me:
                self._owe(number, asker, pdu.attempt, now)
        if self._owed or self._passed:
            self._want_to_tell(effects)

    def _owe(self, number: int, asker: ProcessId, attempt: int, now: Instant) -> None:
        """Answer for this number in my next place, if it is mine to answer for."""
        _, header = self._names.get(number, (self.epoch, None))
        is_mine = header is not None and header.source == self.me
        whole = is_mine and header is not None and bool(header.destinations >> asker & 1)
        if not is_mine:
            if attempt == 0 and header is not None and header.source != asker:
                return
            others = [k for k in self._streams.ids if k != asker]
            if not others or others[(number + attempt) % len(others)] != self.me:
                return
        if not self._is_answered(number, now, whole=whole):
            self._owed[number] = whole or self._owed.get(number, False)

    def _is_answered(self, number: int, now: Instant, *, whole: bool) -> bool:
        """Say whether somebody has answered for it within T_guard; whole: by its message."""
        last, was_whole = self._answered.get(number, (-NEVER, False))
        return now - last < self._settings.guard_ns and (was_whole or not whole)

    def _note_blank(self, number: int, member: ProcessId) -> None:
        """Note who has not heard it; when that is everybody, it is nobody's.

        Who finds that before it has said so itself has the last word.
        """
        mask = self._blank.get(number, 0) | 1 << member
        self._blank[number] = mask
        if not self._streams.members & ~(mask | 1 << self.me):
            self._names[number] = (self.epoch, None)
            if not mask >> self.me & 1:
                self._owed[number] = False

    def _tell_blank(self, effects: Effects, numbers: Numbers, attempt: int) -> None:
        for number in numbers:
            self._blank[number] = self._blank.get(number, 0) | 1 << self.me
        effects.append(Broadcast(Blank(self.epoch, numbers, attempt)))

    def may_send(self) -> bool:
        """Whether the window is open, and nobody is too far behind to be told what it misses."""
        return super().may_send() and self._top - self._floor < self._settings.future_max

    def _forget_below(self, number: int) -> None:
        """Answer for no number below this any more."""
        self._floor = number
        self._names = {n: name for n, name in self._names.items() if n >= number}
        self._answered = {n: at for n, at in self._answered.items() if n >= number}
        self._blank = {n: mask for n, mask in self._blank.items() if n >= number}
        for numbered in self._numbered:
            del numbered[: bisect_left(numbered, number, key=lambda entry: entry[1])]

    # ------------------------------------------------------------------ taking in order

    def _receive_data(self, effects: Effects, source: ProcessId, pdu: Data, now: Instant) -> None:
        recovering = self._is_recovering()
        if pdu.epoch == self.epoch and recovering:
            super()._receive_data(effects, source, pdu, now)
        elif pdu.epoch == self.epoch or (pdu.epoch > self.epoch and recovering):
            if len(self._waiting) < self._settings.future_max:
                self._waiting.append((self._arrived, source, pdu))
                self._receipt.ahead += self._is_mine(pdu)
            else:
                self._names.pop(self._arrived, None)
        if not recovering:
            self._advance(effects, now)

    def _is_mine(self, pdu: Data) -> bool:
        return pdu.epoch == self.epoch and bool(pdu.destinations >> self.me & 1)

    def _advance(self, effects: Effects, now: Instant) -> None:
        """Take everything up to the first number that is not settled.

        Everybody behind an empty place waits for it, so it is asked for at once.
        """
        waiting = self._waiting
        empty = sum(map(len, self._receipt.holes))
        while True:
            if waiting and waiting[0][0] <= self._next:
                csn, source, pdu = waiting.popleft()
                if pdu.destinations:
                    self._receipt.ahead -= self._is_mine(pdu)
                    self._next = max(self._next, csn + 1)
                super()._receive_data(effects, source, pdu, now)
                self._note_taken(effects, source, pdu)
            elif self._next < self._top and self._next in self._names:
                epoch, header = self._names[self._next]
                self._blank.pop(self._next, None)
                self._next += 1
                if header is not None and epoch == self.epoch:
                    self._take_name(effects, self._next - 1, header, now)
            elif not self._pass_over():
                break
        if sum(map(len, self._receipt.holes)) > empty:
            self._nak_at = now

    def _pass_over(self) -> bool:
        """Settle a gap that holds nothing for me, as later PDUs of everybody tell."""
        evidence: dict[int, int] = {}
        for _, source, pdu in self._waiting:
            if type(pdu) is not Data:
                continue
            evidence.setdefault(source, number_at(pdu.pseq, self.me))
            if source == self.me and self._unplaced(pdu.tseq):
                return False  # It may hold a message of mine for others, whose number I must know.
        preq = self._receipt.preq
        if not self._waiting or any(evidence.get(k) != preq[k] for k in self._streams.ids):
            return False
        for number in range(self._next, self._waiting[0][0]):
            self._blank.pop(number, None)
        self._next = self._waiting[0][0]
        return True

    def _take_name(self, effects: Effects, number: int, header: Header, now: Instant) -> None:
        """Take a message that did not come: its place is empty, or filled by its copy."""
        source = header.source
        copy: Data | Rtx | None = self._copies.pop(number, None)
        if copy is not None:
            self._receipt.ahead -= 1
        elif source == self.me:
            copy = self._sent.get(header.tseq)
        if header.tseq >= self._streams.stable[source]:
            self._streams.header[source][header.tseq] = header.destinations
        self._receipt.accept_name(header)
        self._suspected &= ~(1 << source)
        if header.destinations >> self.me & 1:
            if copy is not None:
                self._receipt.fill(source, copy)
            self._ack_due(now)
        if source == self.me:
            self._note_placed(header.tseq)
        self._progress(effects, 1 << source, now)

    def _note_taken(self, effects: Effects, source: ProcessId, pdu: Data) -> None:
        """Note what is known of its sender, once a PDU is taken in its place."""
        numbered = self._numbered[source]
        if type(pdu) is Data and (not numbered or numbered[-1][1] < self._next):
            numbered.append((pdu.tseq, self._next))
        settled = self._settled[source]
        for numbered, level in zip(self._numbered, pdu.ack, strict=False):
            # Who has taken a PDU of that source from `level - 1` on has settled what was before it.
            at = bisect_left(numbered, (level, 0))
            if at:
                settled = max(settled, numbered[at - 1][1])
        if settled > self._settled[source]:
            self._settled[source] = settled
            low = min([self._next, *(self._settled[k] for k in self._streams.ids)])
            if low > self._floor:
                self._forget_below(low)
        if source == self.me:
            if pdu.destinations:
                self._note_placed(pdu.tseq)
            else:
                self._put_again(effects, pdu.tseq)

    def _note_placed(self, tseq: int) -> None:
        """This message of mine has a number; those before it have one or their place before it."""
        self._placed_below = max(self._placed_below, tseq + 1)
        self._put = {t: put for t, put in self._put.items() if t > tseq}

    def _unplaced(self, end: int) -> list[int]:
        """Return the TSEQs below `end` of my messages that have no number and are awaited still."""
        return [tseq for tseq in self._sent if self._placed_below <= tseq < end]

    def _put_again(self, effects: Effects, null: int) -> None:
        """Put what I sent before this NULL once more, if it has no number: nobody has heard it."""
        for tseq in self._unplaced(null):
            if self._put.get(tseq, tseq) < null:
                self._put[tseq] = self._tseq
                again = msgspec.structs.astuple(self._sent[tseq])
                effects.append(Broadcast(PutAgain(*again)))

    def _tell_again(self, effects: Effects, now: Instant) -> None:
        """Mark it: how many messages were before it when it came first cannot be told from it."""
        told: Effects = []
        super()._tell_again(told, now)
        for effect in told:
            assert isinstance(effect, Broadcast)
            effects.append(Broadcast(PutAgain(*msgspec.structs.astuple(effect.pdu))))

    # ------------------------------------------------------------------ what recovery changes

    def _is_unsettled(self) -> bool:
        return self._next < self._top or super()._is_unsettled()

    def _rearm(self, now: Instant) -> None:
        super()._rearm(now)
        if self._is_recovering() or self._next == self._top:
            self._blank_at = NEVER
        elif self._blank_at == NEVER:
            self._blank_at = Instant(now + self._ask_again_ns)

    def _lost(self, effects: Effects, now: Instant) -> None:
        """Do nothing: what is missing is asked for by its number."""

    def _enter(
        self, effects: Effects, epoch: Epoch, members: int, joined: frozenset[int], now: Instant
    ) -> None:
        """Stop: what waits for a number before it is taken as ST takes what comes now."""
        receipt = self._receipt
        receipt.is_stopped = True
        receipt.ahead = 0
        self._copies.clear()
        self._owed.clear()
        self._owed_again.clear()
        self._passed.clear()
        self._ask_due = self._nak_due = False
        waiting, self._waiting = self._waiting, deque()
        for entry in waiting:
            _, source, pdu = entry
            if pdu.epoch == self.epoch:
                super()._receive_data(effects, source, pdu, now)
            else:
                self._waiting.append(entry)
        super()._enter(effects, epoch, members, joined, now)
        self._base = self._top

    def _final(self, collection: Collection) -> RstAck:
        """Note too that what is put in the new epoch has a number that nothing here has yet."""
        self._base = self._top
        return super()._final(collection)

    def _install_view(self, effects: Effects, record: Record) -> None:
        super()._install_view(effects, record)
        more = len(self._pseq) - len(self._settled)
        self._settled += [0] * more
        self._numbered += [[] for _ in range(more)]

    def _replay_future(self, effects: Effects, now: Instant) -> None:
        super()._replay_future(effects, now)
        due = [entry for entry in self._waiting if entry[2].epoch == self.epoch]
        if self._is_recovering():  # An epoch that others have completed: the next one has begun.
            self._waiting = deque(entry for entry in self._waiting if entry[2].epoch > self.epoch)
            for _, source, pdu in due:
                super()._receive_data(effects, source, pdu, now)
            return
        self._receipt.is_stopped = False
        self._waiting = deque(due)
        self._receipt.ahead = sum(self._is_mine(pdu) for _, _, pdu in due)
        self._next = self._floor = self._base
        self._names = {n: name for n, name in self._names.items() if n >= self._base}
        self._settled = [self._base] * len(self._settled)
        self._blank.clear()
        self._answered.clear()
        self._put.clear()
        self._placed_below = self._tseq
        for numbered in self._numbered:
            numbered.clear()
        self._advance(effects, now)
