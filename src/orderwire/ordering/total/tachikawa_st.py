"""ST: every message to any subset of a group, in one order at all that have it, over a 1C channel.

Source: [S003] as corrected (ST-C).  The channel puts all PDUs in one order and hands every member
a part of it: PDUs are lost, never altered or reordered, a sender's own PDUs come back like all.

While nothing is lost, messages are delivered in the order of the channel (`st_transfer`).  Who
finds that it misses a message stops the group: everybody tells what it has (RST_PAK), tells it
again once nothing can be on the way any more (RST_ACK), and all compute the same: the failure line
V_j of each source j.  What is before the line is delivered in the order of the channel, what is
behind it is put in the order (source, PSEQ), with an empty place for each message that its source
will repeat.  [S003:sec.4.1] [S003:sec.4.3]

A change of views is such a recovery among the members of the new view; it starts with the record
of the last epoch that anybody has completed [S003:dec.1].  So that one of them has it, nobody
hands out what the record has sorted before a majority of the view is heard in the new epoch; and
a view needs a majority of every view since the last that a majority of its members has installed.

The promise: what two members deliver in common they deliver in the same order, and all these
orders fit into one; per source, in the order of sending; a message is delivered nowhere before all
its destinations have it.
"""

from collections import deque

import msgspec

from orderwire.kernel import (
    GROUP_SIZE_MAX,
    Broadcast,
    Destinations,
    Effects,
    Indicate,
    Instant,
    LocalProtocolError,
    ProcessId,
    RemoteProtocolError,
    members_of,
)
from orderwire.ordering.total.pdu import (
    ChangeView,
    Control,
    Data,
    Epoch,
    Excluded,
    Header,
    Installed,
    Known,
    Nak,
    Pdu,
    Record,
    Rst,
    RstAck,
    RstPak,
    Rtx,
    number_at,
)
from orderwire.ordering.total.receipt import without
from orderwire.ordering.total.recovery import Collection
from orderwire.ordering.total.settings import TotalSettings
from orderwire.ordering.total.st_transfer import NEVER, DataTransfer


class TachikawaST(DataTransfer):
    """One member.  [S003:sec.3.2]"""

    NAME = "tachikawa-st"

    def __init__(self, me: ProcessId, settings: TotalSettings, *, joining: bool = False) -> None:
        super().__init__(me, settings, joining=joining)
        self._views: dict[int, ChangeView] = {}
        """Views told and not installed yet."""
        self._collection: Collection | None = None
        """Of phase R."""
        self._current: Control | None = None
        """CUR."""
        self._last: RstAck | None = None
        """LAST: my RST_ACK of the epoch that I am in."""
        self._untold: deque[Installed] = deque()
        """Views installed, before whose place something is left to hand out."""
        self._is_awaited = False
        """Whether messages of the application wait outside for the window."""
        self._record = None if joining else Record((0, 0), (), (), (), ())
        """REC; a newcomer has none."""
        self._future: deque[tuple[ProcessId, Data | Rtx]] = deque()
        self._early: dict[ProcessId, Control] = {}
        """Control PDUs of a view that was not told here yet."""
        self._ctl_at = NEVER
        self._control_sent_at = self._last_sent_at = Instant(-NEVER)

    @property
    def view(self) -> ChangeView:
        """The installed view."""
        return self._view

    @property
    def record(self) -> Record | None:
        """What the last recovery that was completed here computed."""
        return self._record

    @property
    def is_recovering(self) -> bool:
        """Whether the group has stopped, as far as this member knows."""
        return self._collection is not None

    def wake(self, now: Instant) -> Effects:
        """Act on every deadline at or before `now`."""
        effects: Effects = []
        if self._ctl_at <= now:
            effects += self.repeat_control(now)
        return effects + super().wake(now)

    def next_deadline(self) -> Instant | None:
        """When `wake` is next due."""
        earliest = super().next_deadline()
        if self._ctl_at == NEVER:
            return earliest
        return self._ctl_at if earliest is None else min(earliest, self._ctl_at)

    # ------------------------------------------------------------------ starting

    def _is_recovering(self) -> bool:
        return self._collection is not None or self._joining or self._stopped

    def _lost(self, effects: Effects, now: Instant) -> None:
        if not self._is_recovering():
            effects.append(Broadcast(Rst(self._next_epoch())))
            self._enter_next(effects, now)

    def _next_epoch(self) -> Epoch:
        return (self.epoch[0], self.epoch[1] + 1)

    def _enter_next(self, effects: Effects, now: Instant) -> None:
        if not self._is_recovering():
            self._enter(effects, self._next_epoch(), self._streams.members, frozenset(), now)

    def _enter(
        self, effects: Effects, epoch: Epoch, members: int, joined: frozenset[int], now: Instant
    ) -> None:
        """Stop, and tell what is here."""
        self._collection = Collection(self.me, epoch, members, joined)
        self._turn_wanted = self._poll_due = False
        self._tell(effects, RstPak(epoch, Destinations(0), self._known()), now)

    def _tell(self, effects: Effects, pdu: Control, now: Instant) -> None:
        self._current = pdu
        self._control_sent_at = now
        self._ctl_at = Instant(now + self._settings.control_ns)
        effects.append(Broadcast(pdu))

    def _known(self) -> Known:
        collection = self._collection
        assert collection is not None
        receipt = self._receipt
        record, headers = None, []
        if collection.changes_view:
            record = self._record
            departed = self._streams.members & ~collection.mask
            headers = [
                Header(source, message.tseq, message.destinations, message.pseq)
                for source in members_of(departed)
                for message in receipt.undelivered(source)
            ]
        has = tuple([receipt.has(source) for source in range(len(self._pseq))])
        return Known(has, tuple(self._pseq), self._tseq, receipt.levels(), record, tuple(headers))

    def repeat_control(self, now: Instant) -> Effects:
        """Send my control PDU again, and say whose is missing."""
        collection, current = self._collection, self._current
        if collection is None or current is None:
            return []
        need = collection.need(acks=isinstance(current, RstAck))
        self._asked.ask(members_of(need), now)
        effects: Effects = []
        self._tell(effects, msgspec.structs.replace(current, need=Destinations(need)), now)
        return effects

    # ------------------------------------------------------------------ collecting

    def _receive_other(self, effects: Effects, source: ProcessId, pdu: Pdu, now: Instant) -> None:
        if isinstance(pdu, Rtx):
            self._receive_rtx(effects, source, pdu, now)
        elif isinstance(pdu, Nak):
            self._receive_nak(effects, source, pdu, now)
        elif isinstance(pdu, RstPak | RstAck):
            self._receive_control(effects, source, pdu, now)
        elif pdu.epoch == self._next_epoch() and self._streams.members >> source & 1:
            self._enter_next(effects, now)

    def _receive_control(
        self, effects: Effects, source: ProcessId, pdu: Control, now: Instant
    ) -> None:
        epoch = pdu.epoch
        if epoch == self._next_epoch() and self._streams.members >> source & 1:
            self._enter_next(effects, now)
        collection = self._collection
        if collection is None or epoch != collection.epoch:
            if epoch == self.epoch and pdu.need >> self.me & 1:
                self._repeat_last(effects, now)
            elif epoch[0] > max([self._view.number, *self._views]) and source < GROUP_SIZE_MAX:
                self._early[source] = pdu
            return
        if source not in collection.members:
            return
        record = pdu.known.record
        self._check_sent(source, number_at(pdu.known.pseq, self.me))
        is_behind = record is not None and self._is_behind(record)
        if record is not None and is_behind:
            for other, _, pseq in record.sent:
                self._check_sent(other, number_at(pseq, self.me))
        collection.store(source, pdu)
        if record is not None and is_behind:
            self._adopt(effects, record, now)
        elif pdu.need >> self.me & 1:
            self._repeat_current(effects, now)
        self._proceed(effects, now)

    def _check_sent(self, source: ProcessId, sent: int) -> None:
        """Refuse a source that says it has sent me more than its window lets it.

        A place is made for each of these messages.
        """
        receipt = self._receipt
        expected = receipt.preq[source] if source < len(receipt.preq) else 0
        if sent - expected > self._settings.window:
            raise RemoteProtocolError(
                f"process {source} has sent message {sent} here, {expected} is expected and"
                f" {self._settings.window} may be on their way"
            )

    def _repeat_last(self, effects: Effects, now: Instant) -> None:
        """Help somebody who is still completing the epoch that I am in."""
        last = self._last
        if (
            last is not None
            and last.epoch == self.epoch
            and now - self._last_sent_at >= self._settings.guard_ns
        ):
            self._last_sent_at = now
            effects.append(Broadcast(last))

    def _repeat_current(self, effects: Effects, now: Instant) -> None:
        current = self._current
        if current is not None and now - self._control_sent_at >= self._settings.guard_ns:
            self._tell(effects, msgspec.structs.replace(current, need=Destinations(0)), now)

    def _proceed(self, effects: Effects, now: Instant) -> None:
        """Go on when everybody's PDU of this phase is here."""
        collection = self._collection
        if collection is None:
            return
        if isinstance(self._current, RstPak) and collection.agrees(self._record):
            self._tell(effects, self._final(collection), now)
        if isinstance(self._current, RstAck) and not collection.need(acks=True):
            self._complete(effects, now)

    def _final(self, collection: Collection) -> RstAck:
        """Read again what is here: nothing of the old epoch can arrive any more."""
        line = collection.line(self._sent.values(), tuple(self._pseq), self._tseq)
        return RstAck(
            collection.epoch, Destinations(0), self._known(), line, tuple(collection.order)
        )

    # ------------------------------------------------------------------ completing

    def _complete(self, effects: Effects, now: Instant) -> None:
        """All members have the same RST_ACKs, so all do the same."""
        collection = self._collection
        assert collection is not None
        assert isinstance(self._current, RstAck)
        record = self._agreed(collection)
        again = self._to_repeat(collection)
        self._last = msgspec.structs.replace(self._current, need=Destinations(0))
        self._collection = self._current = None
        self._ctl_at = NEVER
        self._install(effects, record, now)
        raised = self._streams.members
        self._take_levels(collection)
        self._told = ()
        for data in again:
            self._repeat(effects, self._sent.get(data.tseq, data), now)
        self._ack_due(now)
        self._progress(effects, raised, now)
        self._replay_future(effects, now)
        self._send_pending(effects, now)

    def _agreed(self, collection: Collection) -> Record:
        """Compute what all members compute."""
        return collection.record()

    def _to_repeat(self, collection: Collection) -> list[Data]:
        """Return my messages that a destination misses."""
        return collection.to_repeat(self._sent.values(), tuple(self._pseq))

    def _take_levels(self, collection: Collection) -> None:
        """Take what the RST_ACKs tell like what any PDU tells."""
        for process, ack in collection.acks.items():
            known = ack.known
            self._streams.raise_levels(process, known.ack, known.tseq - 1)

    def _install(self, effects: Effects, record: Record, now: Instant) -> None:
        """Deliver what is before the line, sort the rest, enter the epoch and its view."""
        for place in self._receipt.cut(record):
            assert place.message is not None
            self._tell_views(effects, place.view)
            self._deliver(effects, place.message, place.source, now)
        self.epoch = record.epoch
        self._record = record
        self._suspected = 0
        self._asked.clear()
        self._heard = 0
        self._confirmed = False
        if record.epoch[1] == 0:
            self._install_view(effects, record)
        for source, line in record.lines:
            self._streams.settle(source, line)
        self._confirm(effects, self.me, now)

    def _install_view(self, effects: Effects, record: Record) -> None:
        old = self._streams.members
        view = self._views[record.epoch[0]]
        self._views = {n: v for n, v in self._views.items() if n > view.number}
        new = sum(1 << member.process for member in view.members)
        self._view = view
        for process in members_of(old & ~new):
            self._forget(process)
        self._streams.set_members(new)
        joined = tuple(members_of(new & ~old))
        for process in joined:
            self._buffers[process] = self._settings.buffers
            for source, sent, _ in record.sent:
                self._streams.al[source][process] = sent
        departed = tuple(members_of(old & ~new))
        self._receipt.view = view.number
        self._untold.append(Installed(view.number, view.members, joined, departed))
        self._tell_views(effects)

    def may_send(self) -> bool:
        """Whether the window is open; what is sent belongs to a view that has been told here."""
        return not self._untold and super().may_send()

    def await_window(self, is_awaited: bool, now: Instant) -> None:
        """Say whether messages wait outside until `may_send`: the others are asked for room."""
        if is_awaited != self._is_awaited:
            self._is_awaited = is_awaited
            if not self._stopped:
                self._rearm(now)

    def _is_unsettled(self) -> bool:
        return self._is_awaited or super()._is_unsettled()

    def _tell_views(self, effects: Effects, next_view: int | None = None) -> None:
        """Indicate the views that nothing is left before, or that are due before `next_view`."""
        while self._untold:
            number = self._untold[0].number
            if next_view is None:
                if any(place.view < number for place in self.queued()):
                    return
            elif next_view < number:
                return
            effects.append(Indicate(self._untold.popleft()))

    def _forget(self, process: ProcessId) -> None:
        """Go on without a member that has departed."""
        self._streams.forget(process)
        self._receipt.forget(process)
        self._receipt.strip(process)
        for tseq in self._to[process]:
            self._told_by_one(tseq)
        self._to[process].clear()
        bit = 1 << process
        for tseq, data in self._sent.items():
            self._sent[tseq] = without(data, bit)
        self._pseq[process] = 0
        # What waits is for who has departed, not for a successor with its id.
        for index, (command, number, stamp) in enumerate(self._pending):
            if command.destinations & bit:
                others = Destinations(command.destinations & ~bit)
                command = msgspec.structs.replace(command, destinations=others)
                self._pending[index] = (command, number, stamp)

    def _keep_future(self, source: ProcessId, pdu: Data | Rtx) -> None:
        collection = self._collection
        if (
            collection is not None
            and self.epoch < pdu.epoch <= collection.epoch
            and len(self._future) < self._settings.future_max
        ):
            self._future.append((source, pdu))

    def _replay_future(self, effects: Effects, now: Instant) -> None:
        """Take what was sent in the epoch that has just begun here."""
        future, self._future = self._future, deque()
        for source, pdu in future:
            if isinstance(pdu, Data):
                self._receive_data(effects, source, pdu, now)
            else:
                self._receive_rtx(effects, source, pdu, now)

    # ------------------------------------------------------------------ views  [S003:dec.1]

    def _change_view(self, effects: Effects, view: ChangeView, now: Instant) -> None:
        if self._stopped or view.number <= max([self._view.number, *self._views]):
            return
        ids = [member.process for member in view.members]
        if len(set(ids)) < len(ids) or not all(0 <= k < GROUP_SIZE_MAX for k in ids):
            raise LocalProtocolError(
                f"view {view.number} has members {ids}: not different ids below {GROUP_SIZE_MAX}"
            )
        if self.me not in ids:
            self._stopped = True
            self._collection = self._current = None
            self._ack_at = self._hb_at = self._nak_at = self._ctl_at = NEVER
            effects.append(Indicate(Excluded(view.number, len(self._pending))))
            return
        self._refuse_reuse(view)
        self._joining = False
        self._views[view.number] = view
        self._grow(max(ids) + 1)
        members = sum(1 << k for k in ids)
        joined = frozenset(members_of(members & ~self._streams.members))
        self._enter(effects, (view.number, 0), members, joined, now)
        early, self._early = self._early, {}
        for source, pdu in early.items():
            self._receive_control(effects, source, pdu, now)

    def _refuse_reuse(self, view: ChangeView) -> None:
        installed = {member.process: member.incarnation for member in self._view.members}
        for member in view.members:
            if installed.get(member.process, member.incarnation) != member.incarnation:
                raise LocalProtocolError(
                    f"view {view.number} gives process {member.process} to incarnation"
                    f" {member.incarnation} while incarnation {installed[member.process]} is in"
                    f" view {self._view.number}: a view without it must be installed first"
                )

    def _grow(self, size: int) -> None:
        more = size - len(self._pseq)
        if more > 0:
            self._pseq += [0] * more
            self._buffers += [self._settings.buffers] * more
            self._to += [deque() for _ in range(more)]
            self._streams.grow(size)
            self._receipt.grow(size)

    def _is_behind(self, record: Record) -> bool:
        """Whether others have completed an epoch that I was still collecting."""
        if self._record is not None and record.epoch <= self._record.epoch:
            return False
        number, recovery = record.epoch
        if number in self._views:
            return True
        return recovery > 0 and number == self._view.number

    def _adopt(self, effects: Effects, record: Record, now: Instant) -> None:
        """Complete that epoch from its record, and tell anew what is here."""
        collection = self._collection
        assert collection is not None
        self._install(effects, record, now)
        self._replay_future(effects, now)
        collection.joined = frozenset(members_of(collection.mask & ~self._streams.members))
        self._tell(effects, RstPak(collection.epoch, Destinations(0), self._known()), now)
