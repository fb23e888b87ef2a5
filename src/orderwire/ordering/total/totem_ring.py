"""Totem, single ring: who has the token numbers and broadcasts; what is missing rides on it.

Source: [A95T].  The token carries seq, the last number given; aru, up to which everybody has
everything as far as known; rtr, what somebody misses; fcc, how many messages the last rotation
broadcast.  Its holder repeats what it has of rtr, broadcasts what waits, corrects aru, and passes
the token on, again and again until it sees that the successor had it.

Agreed delivery: in the order of numbers, without a gap.  Safe delivery: also not before aru has
been that far on two visits of the token, so that everybody has it.
Cost: 1 transmission a message, and the hops of the token, shared by what its rotation broadcast.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from orderwire.kernel import Broadcast, Destinations, Effects, Instant, ProcessId, Send
from orderwire.ordering.total.flushing import Flushing, Message, merge_in_order
from orderwire.ordering.total.pdu import Numbers
from orderwire.ordering.total.settings import TotalSettings

RTR_MAX = 256
"""Numbers in a token's list of what is missing, at most."""
_NOBODY = ProcessId(-1)


class Regular(msgspec.Struct, frozen=True, gc=False):
    """A message with its number."""

    view: int
    seq: int
    message: Message


class Token(msgspec.Struct, frozen=True, gc=False):
    """The right to send."""

    view: int
    hop: int
    """How often it was passed on, so that an old copy is known."""
    seq: int
    """Number of the next message."""
    aru: int
    """Everybody has what is numbered below it."""
    lowered_by: ProcessId
    """Who has held aru down; -1: nobody."""
    rtr: Numbers
    fcc: int
    """Messages broadcast in the last rotation, repeated ones too."""


class TotemRing(Flushing):
    """One member; the ring is the view, ascending."""

    NAME = "totem"

    def __init__(
        self,
        me: ProcessId,
        settings: TotalSettings,
        *,
        joining: bool = False,
        is_safe: bool = False,
        hold_ns: int | None = None,
    ) -> None:
        """`hold_ns`: how long the first of the ring keeps a token that has nothing to do.

        None: T_hb, growing as it does; 0: it is passed on at once, for ever.
        """
        self._is_safe = is_safe
        self._hold_ns = settings.heartbeat_ns if hold_ns is None else hold_ns
        super().__init__(me, settings, joining=joining)
        if not joining and self._leads:
            self._set("hold", 0)
            self._token: Token | None = self._first_token()
            """The one that I hold."""

    def _reset(self) -> None:
        self._store: dict[int, Message] = {}
        """Messages by number that somebody may miss."""
        self._aru = self._next = 0
        """Everything numbered below it has come here; what to deliver next."""
        self._safe = self._told_aru = 0
        """aru of two visits; that of the last one."""
        self._hop = -1
        self._token = None
        self._passed: Token | None = None
        """The last one that I passed on."""
        self._broadcast = self._idle_hops = 0
        self._idle_ns = self._hold_ns
        self._resend_ns = self._settings.control_ns

    @property
    def _leads(self) -> bool:
        return bool(self._ids) and self._ids[0] == self.me

    @property
    def is_settled(self) -> bool:
        """Whether there is nothing left to do but to pass the token."""
        return super().is_settled and not self._store

    def _first_token(self) -> Token:
        return Token(self._view.number, 0, 0, 0, _NOBODY, (), 0)

    def _begin(self, effects: Effects, now: Instant) -> None:
        if self._leads:
            self._token = self._first_token()
            self._work(effects, now)

    def _may_send(self) -> bool:
        return False

    def _offer(self, effects: Effects, message: Message, now: Instant) -> None:
        raise AssertionError("messages are sent by who has the token")

    def _fill(self, effects: Effects, now: Instant) -> None:
        """Use the token if I hold it because there was nothing to do."""
        if self._pending and self._token is not None and self._target is None:
            self._work(effects, now)

    # ------------------------------------------------------------------

    def _take(self, effects: Effects, source: ProcessId, pdu: Any, now: Instant) -> None:
        passed = self._passed
        if isinstance(pdu, Regular):
            if passed is not None and pdu.seq >= passed.seq and source != self.me:
                self._seen_on()
            self._store_one(effects, pdu.seq, pdu.message, now)
        elif isinstance(pdu, Token) and pdu.hop > self._hop:
            self._seen_on()
            self._hop = pdu.hop
            self._token = pdu
            idle = pdu.fcc == 0 and pdu.aru == pdu.seq and not pdu.rtr and not self._pending
            if idle and self._leads and self._hold_ns and self._safe == pdu.seq:
                self._set("hold", now + self._idle_ns)
                self._idle_ns = min(self._idle_ns * 3 // 2, self._settings.heartbeat_max_ns)
            else:
                if not idle:
                    self._idle_ns = self._hold_ns
                self._work(effects, now)

    def _seen_on(self) -> None:
        """The successor has had my token."""
        self._passed = None
        self._clear("resend")
        self._resend_ns = self._settings.control_ns

    def _store_one(self, effects: Effects, seq: int, message: Message, now: Instant) -> None:
        if seq >= self._aru and seq not in self._store:
            self._store[seq] = message
            while self._aru in self._store:
                self._aru += 1
            self._advance(effects, now)

    def _advance(self, effects: Effects, now: Instant) -> None:
        end = min(self._aru, self._safe) if self._is_safe else self._aru
        while self._next < end:
            self._hand_out(effects, self._store[self._next], now)
            self._next += 1
        for seq in [seq for seq in self._store if seq < min(self._safe, self._next)]:
            del self._store[seq]

    def _work(self, effects: Effects, now: Instant) -> None:
        """Do what the token allows, and pass it on."""
        token = self._token
        assert token is not None
        self._token = None
        self._clear("hold")
        view, settings = self._view.number, self._settings
        sent = 0
        asked = []
        for seq in token.rtr:
            message = self._store.get(seq)
            if message is None:
                asked.append(seq)
            else:
                effects.append(Broadcast(Regular(view, seq, message)))
                sent += 1
        asked = [seq for seq in asked if seq >= token.aru]
        asked += [
            seq
            for seq in range(self._aru, min(token.seq, self._aru + RTR_MAX))
            if seq not in self._store and seq not in asked
        ]
        seq = token.seq
        room = min(settings.window, settings.window * len(self._ids) - token.fcc)
        if seq - token.aru >= settings.buffers:
            room = 0
        while self._pending and room > 0:
            message = self._pending.popleft()
            mask = message.destinations & self._mask
            if mask:
                room -= 1
                message = msgspec.structs.replace(
                    message, serial=self._serial, destinations=Destinations(mask)
                )
                self._serial += 1
                effects.append(Broadcast(Regular(view, seq, message)))
                self._store_one(effects, seq, message, now)
                seq += 1
                sent += 1
        aru, lowered_by = token.aru, token.lowered_by
        if self._aru < aru or lowered_by in (self.me, _NOBODY):
            aru = self._aru
            lowered_by = self.me if aru < seq else _NOBODY
        fcc = token.fcc + sent - self._broadcast
        self._broadcast = sent
        self._safe = max(self._safe, min(self._told_aru, token.aru))
        self._told_aru = aru
        self._advance(effects, now)
        index = self._ids.index(self.me)
        successor = self._ids[(index + 1) % len(self._ids)]
        passed = Token(
            view, token.hop + 1, seq, aru, lowered_by, tuple(asked[:RTR_MAX]), max(0, fcc)
        )
        self._passed = passed
        effects.append(Send(successor, passed))
        self._clear("resend")
        self._set("resend", now + self._resend_ns)

    def _on_timer(self, effects: Effects, name: str, now: Instant) -> None:
        if name == "hold" and self._token is not None:
            self._work(effects, now)
        elif name == "resend" and self._passed is not None:
            index = self._ids.index(self.me)
            successor = self._ids[(index + 1) % len(self._ids)]
            self._ask(1 << successor, now)
            effects.append(Send(successor, self._passed))
            self._resend_ns = min(2 * self._resend_ns, self._settings.heartbeat_max_ns)
            self._set("resend", now + self._resend_ns)

    # ------------------------------------------------------------------ changes of views

    def _undelivered(self) -> Iterable[Message]:
        for seq, message in self._store.items():
            if seq >= self._next:
                yield message

    def _state(self) -> tuple[tuple[int, Message], ...]:
        return tuple(sorted(self._store.items()))

    def _merge(self, states: Mapping[int, Any]) -> list[Message]:
        return merge_in_order({seq: m for state in states.values() for seq, m in state}, ())
