"""Two phases, led by the sender: offer to the destinations, collect their replies, decide.

What Skeen's agreement and the accept of Delta-4 have in common.  A sender has one message at a time
under way, so that its messages are decided in the order of their sending.  A destination that waits
long for a decision replies again, and is told it.
"""

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, TypeAlias

import msgspec

from orderwire.kernel import Broadcast, Destinations, Effects, Instant, ProcessId, Send, members_of
from orderwire.ordering.total.flushing import Flushing, Message

Stamp: TypeAlias = tuple[int, int]
"""(clock, process), compared as pairs are."""


class Offer(msgspec.Struct, frozen=True, gc=False):
    """First phase."""

    view: int
    message: Message
    attempt: int
    """How often it was offered before."""
    need: Destinations
    """Who is to reply."""
    clock: int
    settled: int
    """The sender's messages below this serial are delivered by all their destinations."""


class Reply(msgspec.Struct, frozen=True, gc=False):
    """A destination has it; to the sender."""

    view: int
    serial: int
    attempt: int
    proposal: Stamp
    level: int
    """All messages of that sender to me below this serial are delivered here."""


class Decision(msgspec.Struct, frozen=True, gc=False):
    """Second phase."""

    view: int
    serial: int
    attempt: int
    stamp: Stamp
    settled: int
    need: Destinations = Destinations(0)
    """Who is to tell its level."""


class Held:
    """A message at a destination."""

    __slots__ = ("attempt", "decided", "message", "place", "proposal")

    def __init__(self, message: Message, attempt: int, proposal: Stamp, place: int) -> None:
        self.message = message
        self.attempt = attempt
        self.proposal = proposal
        """The final stamp, once decided."""
        self.place = place
        """Where its last offer stood among what I have received."""
        self.decided = False


class TwoPhase(Flushing):
    """One member."""

    def _reset(self) -> None:
        self._clock = self._place = 0
        self._held: dict[tuple[int, int], Held] = {}
        """By (source, serial)."""
        self._log: list[Held] = []
        """Delivered, and perhaps not everywhere, in order."""
        self._level: dict[int, int] = {}
        """Source → serial below which I have delivered everything of its."""
        self._remind_ns = 2 * self._settings.control_ns
        # The sender's own.
        self._attempt = 0
        self._retry_ns = self._settings.control_ns
        self._replies: dict[int, Stamp] = {}
        self._decisions: dict[int, tuple[Decision, Message]] = {}
        """By serial, what is not settled."""
        self._levels: dict[int, int] = {}
        self._settled = 0

    # ------------------------------------------------------------------ the sender

    @property
    @abstractmethod
    def _all_reply_at_once(self) -> bool:
        """Whether all destinations must have the same attempt."""

    def _may_send(self) -> bool:
        return not self._sent and len(self._decisions) < self._settings.buffers

    def _fill(self, effects: Effects, now: Instant) -> None:
        super()._fill(effects, now)
        if self._pending and not self._sent and self._target is None and self._decisions:
            self._set("settle", now + self._settings.control_ns)

    def _offer(self, effects: Effects, message: Message, now: Instant) -> None:
        self._attempt = 0
        self._retry_ns = self._settings.control_ns
        self._replies = {}
        self._send_offer(effects, message, message.destinations, now)

    def _send_offer(self, effects: Effects, message: Message, need: int, now: Instant) -> None:
        view, attempt = self._view.number, self._attempt
        effects.append(
            Broadcast(Offer(view, message, attempt, Destinations(need), self._clock, self._settled))
        )
        self._clear("retry")
        self._set("retry", now + self._retry_ns)

    def _retry(self, effects: Effects, now: Instant) -> None:
        self._retry_ns = self._later(self._retry_ns)
        for message in self._sent.values():
            self._attempt += 1
            if self._all_reply_at_once:
                self._replies = {}
            need = sum(1 << k for k in members_of(message.destinations) if k not in self._replies)
            self._ask(need, now)
            self._send_offer(effects, message, need, now)

    def _later(self, wait_ns: int) -> int:
        """Twice as late, up to a limit: on a full channel answers come after the next question."""
        return min(2 * wait_ns, max(self._settings.heartbeat_max_ns, wait_ns))

    def _receive_reply(
        self, effects: Effects, source: ProcessId, reply: Reply, now: Instant
    ) -> None:
        if reply.level > self._levels.get(source, 0):
            self._levels[source] = reply.level
            self._raise_settled()
        message = self._sent.get(reply.serial)
        if message is None:
            known = self._decisions.get(reply.serial)
            if known is not None and self._levels.get(source, 0) <= reply.serial:
                effects.append(Send(source, known[0]))
            return
        if self._all_reply_at_once and reply.attempt != self._attempt:
            return
        self._replies[source] = reply.proposal
        if all(k in self._replies for k in members_of(message.destinations)):
            self._decide(effects, message, now)

    def _decide(self, effects: Effects, message: Message, now: Instant) -> None:
        stamp = max(self._replies.values())
        decision = Decision(self._view.number, message.serial, self._attempt, stamp, self._settled)
        del self._sent[message.serial]
        self._decisions[message.serial] = (decision, message)
        self._clear("retry")
        effects.append(Broadcast(decision))
        self._clock = max(self._clock, stamp[0])
        self._receive_decision(effects, self.me, decision, now)

    def _raise_settled(self) -> None:
        for serial in sorted(self._decisions):
            if any(
                self._levels.get(k, 0) <= serial
                for k in members_of(self._decisions[serial][1].destinations)
            ):
                break
            del self._decisions[serial]
            self._settled = serial + 1

    # ------------------------------------------------------------------ a destination

    def _take(self, effects: Effects, source: ProcessId, pdu: Any, now: Instant) -> None:
        if isinstance(pdu, Offer):
            self._drop_settled(source, pdu.settled)
            self._receive_offer(effects, source, pdu, now)
        elif isinstance(pdu, Reply):
            self._receive_reply(effects, source, pdu, now)
        elif isinstance(pdu, Decision):
            self._drop_settled(source, pdu.settled)
            if source != self.me:
                self._receive_decision(effects, source, pdu, now)
            if pdu.need >> self.me & 1:
                self._reply(effects, source, pdu.serial, pdu.attempt, (0, 0), now)

    def _receive_offer(
        self, effects: Effects, source: ProcessId, offer: Offer, now: Instant
    ) -> None:
        message = offer.message
        if not message.destinations >> self.me & 1:
            return
        key = (source, message.serial)
        self._place += 1
        self._clock = max(self._clock, offer.clock)
        held = self._held.get(key)
        if held is None:
            if message.serial < self._level.get(source, 0):
                return
            self._clock += 1
            held = Held(message, offer.attempt, (self._clock, self.me), self._place)
            self._held[key] = held
            self._set("remind", now + self._remind_ns)
        elif not held.decided:
            held.attempt, held.place = offer.attempt, self._place
        if offer.need >> self.me & 1 and not held.decided:
            self._reply(effects, source, message.serial, offer.attempt, held.proposal, now)
        self._advance(effects, now)

    def _reply(
        self,
        effects: Effects,
        source: ProcessId,
        serial: int,
        attempt: int,
        proposal: Stamp,
        now: Instant,
    ) -> None:
        reply = Reply(self._view.number, serial, attempt, proposal, self._level.get(source, 0))
        if source == self.me:
            self._receive_reply(effects, source, reply, now)
        else:
            effects.append(Send(source, reply))

    def _receive_decision(
        self, effects: Effects, source: ProcessId, decision: Decision, now: Instant
    ) -> None:
        self._clock = max(self._clock, decision.stamp[0])
        held = self._held.get((source, decision.serial))
        if held is not None and not held.decided:
            held.decided = True
            held.proposal = decision.stamp
            self._remind_ns = 2 * self._settings.control_ns
            self._advance(effects, now)

    @abstractmethod
    def _first(self) -> Held:
        """Return what is to be delivered next, of what is held."""

    def _advance(self, effects: Effects, now: Instant) -> None:
        while self._held:
            held = self._first()
            if not held.decided:
                return
            message = held.message
            del self._held[(message.source, message.serial)]
            self._log.append(held)
            self._level[message.source] = message.serial + 1
            if message.source == self.me:
                self._levels[self.me] = message.serial + 1
                self._raise_settled()
            self._hand_out(effects, message, now)

    def _drop_settled(self, source: ProcessId, settled: int) -> None:
        if any(h.message.source == source and h.message.serial < settled for h in self._log):
            self._log = [
                h for h in self._log if h.message.source != source or h.message.serial >= settled
            ]

    def _on_timer(self, effects: Effects, name: str, now: Instant) -> None:
        if name == "retry":
            self._retry(effects, now)
        elif name == "remind" and self._held:
            for (source, serial), held in list(self._held.items()):
                if not held.decided and source != self.me:
                    self._ask(1 << source, now)
                    self._reply(
                        effects, ProcessId(source), serial, held.attempt, held.proposal, now
                    )
            self._remind_ns = self._later(self._remind_ns)
            self._set("remind", now + self._remind_ns)
        elif name == "settle" and self._decisions and self._pending and not self._sent:
            serial = min(self._decisions)
            decision, message = self._decisions[serial]
            need = sum(
                1 << k for k in members_of(message.destinations) if self._levels.get(k, 0) <= serial
            )
            self._ask(need, now)
            effects.append(Broadcast(msgspec.structs.replace(decision, need=Destinations(need))))
            self._set("settle", now + self._settings.control_ns)

    def _undelivered(self) -> Iterable[Message]:
        for held in self._held.values():
            yield held.message
