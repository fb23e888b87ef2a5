"""Fixed sequencer: one member numbers every message, one number for each destination.

Source: the methods PB and BB of Amoeba's group communication [K91].  PB: a sender hands its message
to the sequencer, which broadcasts it with its numbers.  BB: a sender broadcasts its message, and
the sequencer broadcasts numbers only, for many messages at once.  A destination k delivers in the
order of GSEQ_k and asks the sequencer's history for what it misses; GSEQ_k of a message that is
not for k is the number that the next one for k will have, so any PDU shows a gap.

Resilience r: r other members (the lowest) hold a message before anybody delivers it, so that r
crashes lose no order.  With r = 0 a sequencer may deliver in an order that dies with it.
Cost: 2 transmissions, 1 when the sequencer sends; r acknowledgements and an acceptance more.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from orderwire.kernel import Broadcast, Destinations, Effects, Instant, ProcessId, Send
from orderwire.ordering.total.flushing import Flushing, Message, merge_in_order
from orderwire.ordering.total.pdu import Numbers, number_at
from orderwire.ordering.total.settings import TotalSettings

STAMPS_MAX = 64
"""Stamps in one PDU, at most."""
ASKED_MAX = 256
"""Numbers in one request for what is missing, at most."""


class Request(msgspec.Struct, frozen=True, gc=False):
    """A message for the sequencer; in BB for all."""

    view: int
    message: Message
    level: int
    """GSEQ that its sender delivers next."""


class Stamp(msgspec.Struct, frozen=True, gc=False):
    """A message's place."""

    place: int
    """Among all messages of the view."""
    source: ProcessId
    serial: int
    destinations: Destinations
    gseq: Numbers
    """GSEQ_k: how many messages for k were numbered before, for every process id k."""


class Floors(msgspec.Struct, frozen=True, gc=False):
    """How far everything is, as the sequencer knows."""

    settled: int
    """Messages placed below it have been delivered by all their destinations."""
    accepted: int
    """Messages placed below it may be delivered."""
    done: Numbers
    """Of every source: its serials below it are settled."""


class Stamped(msgspec.Struct, frozen=True, gc=False):
    """A message with its place."""

    view: int
    stamp: Stamp
    message: Message
    floors: Floors


class Notice(msgspec.Struct, frozen=True, gc=False):
    """Stamps without their messages, and how far everything is."""

    view: int
    stamps: tuple[Stamp, ...]
    gseq: Numbers
    """GSEQ of the next message for each process id."""
    placed: int
    """Place of the next message."""
    floors: Floors
    need: Destinations = Destinations(0)
    """Who is to tell its level."""


class Level(msgspec.Struct, frozen=True, gc=False):
    """How far I am, and what I miss; to the sequencer."""

    view: int
    level: int
    held: int
    """I have every message placed below it."""
    gseqs: Numbers = ()
    """Numbers of messages to me that I miss."""
    places: Numbers = ()
    """Places that I miss, as one of the r."""


class _Entry:
    __slots__ = ("message", "stamp")

    def __init__(self, stamp: Stamp, message: Message | None) -> None:
        self.stamp = stamp
        self.message = message


class SequencerState(msgspec.Struct, frozen=True, gc=False):
    """What a member knows of the order when a view ends."""

    entries: tuple[tuple[int, Message], ...]
    waiting: tuple[Message, ...]


class FixedSequencer(Flushing):
    """One member; the sequencer is the lowest of the view."""

    NAME = "sequencer-pb"

    def __init__(
        self,
        me: ProcessId,
        settings: TotalSettings,
        *,
        joining: bool = False,
        sends_to_all: bool = False,
        resilience: int = 0,
    ) -> None:
        """`sends_to_all` is BB; `resilience` is r, at most all other members."""
        self._to_all = sends_to_all
        self._resilience = resilience
        super().__init__(me, settings, joining=joining)

    # ------------------------------------------------------------------ every member

    def _reset(self) -> None:
        self._sequencer = self._ids[0] if self._ids else self.me
        others = self._ids[1:]
        self._backups = others[: self._resilience]
        size = max(self._ids, default=self.me) + 1
        self._history: dict[int, _Entry] = {}
        """By place."""
        self._mine: dict[int, int] = {}
        """GSEQ here → place, of what is not delivered."""
        self._bodies: dict[tuple[int, int], Message] = {}
        """Messages by (source, serial) that have no stamp here."""
        self._where: dict[tuple[int, int], int] = {}
        """(source, serial) → place."""
        self._next = self._announced = 0
        """GSEQ to deliver next; that of the next message to me, as far as told."""
        self._held = self._placed = 0
        """Everything placed below it is here; place of the next message, as far as told."""
        self._floors = Floors(0, 0, (0,) * size)
        # The sequencer's own.
        self._gseq = [0] * size
        self._taken = [0] * size
        self._levels = [0] * size
        self._holds = dict.fromkeys(self._backups, 0)
        self._unstamped: list[Message] = []
        self._unsaid: list[Stamp] = []
        self._due = False
        self._sync_ns = self._settings.heartbeat_ns

    @property
    def _leads(self) -> bool:
        return self.me == self._sequencer

    def _offer(self, effects: Effects, message: Message, now: Instant) -> None:
        if self._leads:
            self._request(effects, message, now)
            return
        pdu = Request(self._view.number, message, self._next)
        effects.append(Broadcast(pdu) if self._to_all else Send(self._sequencer, pdu))
        self._set("retry", now + self._settings.control_ns)

    def _take(self, effects: Effects, source: ProcessId, pdu: Any, now: Instant) -> None:
        if isinstance(pdu, Request):
            if self._leads:
                self._level(source, pdu.level)
                self._request(effects, pdu.message, now)
            elif self._to_all:
                self._body(effects, pdu.message, now)
        elif isinstance(pdu, Level):
            if self._leads:
                self._level(source, pdu.level)
                self._hold(effects, source, pdu.held, now)
                self._number_all(effects, now)
                self._serve(effects, source, pdu)
        elif source == self._sequencer and not self._leads:
            if isinstance(pdu, Stamped):
                self._enter(effects, pdu.stamp, pdu.message, now)
                self._learn(effects, pdu.floors, now)
            elif isinstance(pdu, Notice):
                for stamp in pdu.stamps:
                    key = (stamp.source, stamp.serial)
                    body = self._bodies.get(key)
                    if stamp.source == self.me:
                        body = self._sent.get(stamp.serial, body)
                    self._enter(effects, stamp, body, now)
                self._announced = max(self._announced, number_at(pdu.gseq, self.me))
                self._placed = max(self._placed, pdu.placed)
                self._learn(effects, pdu.floors, now)
                if pdu.need >> self.me & 1:
                    self._tell(effects, now)

    def _body(self, effects: Effects, message: Message, now: Instant) -> None:
        """Keep a message until its stamp comes, or give it to the stamp that is here."""
        key = (message.source, message.serial)
        place = self._where.get(key)
        if place is not None:
            entry = self._history[place]
            if entry.message is None:
                entry.message = message
                self._advance(effects, now)
        elif (
            message.serial >= number_at(self._floors.done, message.source)
            and len(self._bodies) < self._settings.future_max
        ):
            self._bodies[key] = message

    def _enter(self, effects: Effects, stamp: Stamp, message: Message | None, now: Instant) -> None:
        """Put a stamp into the history, its message too if it is here."""
        me = self.me
        mine = stamp.destinations >> me & 1
        gseq = number_at(stamp.gseq, me)
        self._announced = max(self._announced, gseq + mine)
        self._placed = max(self._placed, stamp.place + 1)
        if stamp.place < self._floors.settled:
            return
        key = (stamp.source, stamp.serial)
        entry = self._history.get(stamp.place)
        if entry is None:
            entry = self._history[stamp.place] = _Entry(stamp, message)
            self._where[key] = stamp.place
            if mine and gseq >= self._next:
                self._mine[gseq] = stamp.place
        elif entry.message is None:
            entry.message = message
        if entry.message is not None:
            self._bodies.pop(key, None)
            if stamp.source == me:
                self._sent.pop(stamp.serial, None)
        self._advance(effects, now)

    def _learn(self, effects: Effects, floors: Floors, now: Instant) -> None:
        """Take how far everything is."""
        old = self._floors
        if floors.settled > old.settled or floors.accepted > old.accepted:
            for place in range(old.settled, floors.settled):
                entry = self._history.pop(place, None)
                if entry is not None:
                    self._where.pop((entry.stamp.source, entry.stamp.serial), None)
            self._floors = floors
            done = number_at(floors.done, self.me)
            for serial in [serial for serial in self._sent if serial < done]:
                del self._sent[serial]
            for key in [k for k in self._bodies if k[1] < number_at(floors.done, k[0])]:
                del self._bodies[key]
        self._advance(effects, now)

    def _advance(self, effects: Effects, now: Instant) -> None:
        """Deliver what is next, and say or ask what is due."""
        while (place := self._mine.get(self._next)) is not None:
            entry = self._history.get(place)
            if entry is None or entry.message is None or not self._is_accepted(place):
                break
            del self._mine[self._next]
            self._next += 1
            self._hand_out(effects, entry.message, now)
        if self._leads:
            self._levels[self.me] = self._next
            return
        if self.me in self._backups:
            held = max(self._held, self._floors.settled)
            while (e := self._history.get(held)) is not None and e.message is not None:
                held += 1
            if held > self._held:
                self._held = held
                self._due = True
                self._want_turn(effects)
        if self._misses():
            self._set("ask", now + self._settings.guard_ns)

    def _is_accepted(self, place: int) -> bool:
        return not self._backups or place < self._floors.accepted

    def _missing(self) -> Numbers:
        """Return which numbers of messages to me are missing, ascending."""
        found = []
        for gseq in range(self._next, self._announced):
            place = self._mine.get(gseq)
            if place is None or self._history[place].message is None:
                found.append(gseq)
                if len(found) == ASKED_MAX:
                    break
        return tuple(found)

    def _missing_places(self) -> Numbers:
        if self.me not in self._backups:
            return ()
        return tuple(
            place
            for place in range(self._held, min(self._placed, self._held + ASKED_MAX))
            if (entry := self._history.get(place)) is None or entry.message is None
        )

    def _misses(self) -> bool:
        return bool(self._missing() or self._missing_places())

    def _tell(self, effects: Effects, now: Instant) -> None:
        self._due = False
        pdu = Level(
            self._view.number, self._next, self._held, self._missing(), self._missing_places()
        )
        effects.append(Send(self._sequencer, pdu))

    def _on_timer(self, effects: Effects, name: str, now: Instant) -> None:
        if name == "retry" and self._sent and not self._leads:
            self._ask(1 << self._sequencer, now)
            for message in list(self._sent.values()):
                self._offer(effects, message, now)
        elif name == "ask" and self._misses():
            self._ask(1 << self._sequencer, now)
            self._tell(effects, now)
            self._set("ask", now + self._settings.nak_ns)
        elif name == "sync" and self._leads and self._floors.settled < self._placed:
            need = 0
            for place in range(self._floors.settled, self._placed):
                stamp = self._history[place].stamp
                need |= sum(1 << k for k in self._lacking(stamp))
            need |= sum(1 << k for k in self._backups if self._holds[k] < self._placed)
            self._ask(need, now)
            effects.append(Broadcast(self._notice((), need)))
            self._sync_ns = min(self._sync_ns * 3 // 2, self._settings.heartbeat_max_ns)
            self._set("sync", now + self._sync_ns)

    def _say(self, effects: Effects, now: Instant) -> None:
        if not self._leads:
            if self._due:
                self._tell(effects, now)
            return
        unsaid, self._unsaid = self._unsaid[:STAMPS_MAX], self._unsaid[STAMPS_MAX:]
        if unsaid or self._due:
            self._due = False
            effects.append(Broadcast(self._notice(tuple(unsaid), 0)))
        if self._unsaid:
            self._want_turn(effects)

    # ------------------------------------------------------------------ the sequencer

    def _request(self, effects: Effects, message: Message, now: Instant) -> None:
        """Number a message, and what has waited for it."""
        source, serial = message.source, message.serial
        if serial < self._taken[source]:
            place = self._where.get((source, serial))
            if place is None:
                effects.append(Send(source, self._notice((), 0)))
            elif source != self.me:
                self._repeat(effects, source, place)
            return
        if len(self._bodies) < self._settings.future_max:
            self._bodies[(source, serial)] = message
        self._number_all(effects, now)

    def _number_all(self, effects: Effects, now: Instant) -> None:
        """Number what is here without a gap, as far as the history has room."""
        for source in self._ids:
            while len(self._history) < self._settings.buffers:
                message = self._bodies.pop((source, self._taken[source]), None)
                if message is None:
                    break
                self._taken[source] += 1
                self._number_one(effects, message, now)

    def _number_one(self, effects: Effects, message: Message, now: Instant) -> None:
        stamp = Stamp(
            self._placed, message.source, message.serial, message.destinations, tuple(self._gseq)
        )
        for k in self._ids:
            if message.destinations >> k & 1:
                self._gseq[k] += 1
        if self._to_all and message.source != self.me:
            self._unsaid.append(stamp)
            self._want_turn(effects)
        else:
            effects.append(Broadcast(Stamped(self._view.number, stamp, message, self._floors)))
        self._enter(effects, stamp, message, now)
        self._raise_settled()
        self._set("sync", now + self._sync_ns)

    def _lacking(self, stamp: Stamp) -> list[ProcessId]:
        """Return which destinations have not told yet that they have delivered it."""
        return [
            k
            for k in self._ids
            if stamp.destinations >> k & 1 and self._levels[k] <= number_at(stamp.gseq, k)
        ]

    def _level(self, source: ProcessId, level: int) -> None:
        if level > self._levels[source]:
            self._levels[source] = level
            self._sync_ns = self._settings.heartbeat_ns
            self._raise_settled()

    def _raise_settled(self) -> None:
        floors = self._floors
        settled, done = floors.settled, list(floors.done)
        while (entry := self._history.get(settled)) is not None:
            stamp = entry.stamp
            if not self._is_accepted(settled) or self._lacking(stamp):
                break
            del self._history[settled]
            self._where.pop((stamp.source, stamp.serial), None)
            done[stamp.source] = stamp.serial + 1
            settled += 1
        if settled > floors.settled:
            self._floors = Floors(settled, floors.accepted, tuple(done))
            if settled == self._placed:
                self._clear("sync")

    def _hold(self, effects: Effects, source: ProcessId, held: int, now: Instant) -> None:
        if source in self._holds and held > self._holds[source]:
            self._holds[source] = held
            self._settle(effects, now)

    def _settle(self, effects: Effects, now: Instant) -> None:
        """Accept what the backups have."""
        accepted = min(self._holds.values(), default=self._placed)
        if accepted > self._floors.accepted:
            self._floors = msgspec.structs.replace(self._floors, accepted=accepted)
            if self._backups:
                self._due = True
                self._want_turn(effects)
            self._advance(effects, now)
        self._raise_settled()
        self._number_all(effects, now)

    def _notice(self, stamps: tuple[Stamp, ...], need: int) -> Notice:
        return Notice(
            self._view.number,
            stamps,
            tuple(self._gseq),
            self._placed,
            self._floors,
            Destinations(need),
        )

    def _serve(self, effects: Effects, source: ProcessId, pdu: Level) -> None:
        """Send from the history what a member misses."""
        wanted = set(pdu.gseqs)
        places = {
            place
            for place, entry in self._history.items()
            if entry.stamp.destinations >> source & 1
            and number_at(entry.stamp.gseq, source) in wanted
        }
        for place in sorted(places | set(pdu.places)):
            self._repeat(effects, source, place)

    def _repeat(self, effects: Effects, to: ProcessId, place: int) -> None:
        entry = self._history.get(place)
        if entry is not None and entry.message is not None:
            pdu = Stamped(self._view.number, entry.stamp, entry.message, self._floors)
            effects.append(Send(to, pdu))

    # ------------------------------------------------------------------ changes of views

    def _undelivered(self) -> Iterable[Message]:
        for place in self._mine.values():
            entry = self._history.get(place)
            if entry is not None and entry.message is not None:
                yield entry.message
        yield from self._bodies.values()

    def _state(self) -> SequencerState:
        entries = tuple(
            (place, entry.message)
            for place, entry in self._history.items()
            if entry.message is not None
        )
        return SequencerState(entries, tuple(self._sent.values()))

    def _merge(self, states: Mapping[int, SequencerState]) -> list[Message]:
        entries = {place: message for state in states.values() for place, message in state.entries}
        return merge_in_order(entries, [m for state in states.values() for m in state.waiting])
