"""A worse network at the socket boundary: delay, loss, duplication, reordering, from one seed.

Applied to datagrams as they leave.  Streams are left alone: TCP heals loss by itself.
"""

import asyncio
import heapq
import itertools
import math
from collections.abc import Callable, Sequence
from enum import Enum
from random import Random
from typing import Protocol, assert_never

import msgspec

from orderwire.kernel import NS_PER_MS, NS_PER_S, ProcessId, stream

HELD_MAX = 65_536
"""Datagrams held back at a time; more are dropped."""

DELAY_MAX_NS = 60 * NS_PER_S


class Jitter(Enum):
    """How the part of a delay that varies is distributed; its mean is the same for all."""

    CONSTANT = "constant"
    UNIFORM = "uniform"
    """Between none and twice the mean."""
    EXPONENTIAL = "exponential"
    LOGNORMAL = "lognormal"
    """With a long tail: σ = 1."""


class Impairment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the network does to a datagram."""

    seed: int = 0
    delay_ms: float = 0.0
    """Delay that every datagram has."""
    jitter_mean_ms: float = 0.0
    """Mean of what comes on top, drawn per datagram: unequal delays reorder."""
    jitter: Jitter = Jitter.EXPONENTIAL
    loss_ratio: float = 0.0
    duplicate_ratio: float = 0.0
    """Share of the datagrams that come twice, the second with a delay of its own."""
    reorder_ratio: float = 0.0
    """Share of the datagrams that are held back by `reorder_ms` more."""
    reorder_ms: float = 5.0

    def __post_init__(self) -> None:
        """Refuse what is no probability or no delay."""
        for name in ("loss_ratio", "duplicate_ratio", "reorder_ratio"):
            value = getattr(self, name)
            if not 0.0 <= value <= 1.0:
                raise ValueError(f"{name}={value!r}, expected 0 to 1")
        for name in ("delay_ms", "jitter_mean_ms", "reorder_ms"):
            value = getattr(self, name)
            if not 0.0 <= value * NS_PER_MS <= DELAY_MAX_NS:
                raise ValueError(f"{name}={value!r}, expected 0 to {DELAY_MAX_NS // NS_PER_MS}")


class Fates(Protocol):
    """Decides what becomes of a datagram."""

    def fate(self, to: ProcessId, data: bytes) -> Sequence[int]:
        """Return the delay of each copy that arrives, in ns: none is a loss, two a duplicate."""
        ...


class DrawnFates:
    """Fates drawn from named streams, one per concern and destination."""

    def __init__(self, impairment: Impairment, me: ProcessId) -> None:
        self._impairment = impairment
        self._me = me
        self._streams: dict[tuple[ProcessId, str], Random] = {}

    def _draw(self, to: ProcessId, concern: str) -> Random:
        key = (to, concern)
        found = self._streams.get(key)
        if found is None:
            name = f"impairment/{self._me}/{to}/{concern}"
            found = self._streams[key] = stream(self._impairment.seed, name)
        return found

    def fate(self, to: ProcessId, data: bytes) -> Sequence[int]:
        """Draw the fate of one datagram."""
        impairment = self._impairment
        if impairment.loss_ratio and self._draw(to, "loss").random() < impairment.loss_ratio:
            return ()
        delays = [self._delay_ns(to)]
        if impairment.reorder_ratio:
            draw = self._draw(to, "reorder").random()
            if draw < impairment.reorder_ratio:
                delays[0] += round(impairment.reorder_ms * NS_PER_MS)
        if impairment.duplicate_ratio:
            draw = self._draw(to, "duplicate").random()
            if draw < impairment.duplicate_ratio:
                delays.append(self._delay_ns(to))
        return delays

    def _delay_ns(self, to: ProcessId) -> int:
        impairment = self._impairment
        mean = impairment.jitter_mean_ms
        if not mean:
            return round(impairment.delay_ms * NS_PER_MS)
        chance = self._draw(to, "delay")
        match impairment.jitter:
            case Jitter.CONSTANT:
                extra = mean
            case Jitter.UNIFORM:
                extra = chance.uniform(0.0, 2.0 * mean)
            case Jitter.EXPONENTIAL:
                extra = chance.expovariate(1.0 / mean)
            case Jitter.LOGNORMAL:
                extra = chance.lognormvariate(math.log(mean) - 0.5, 1.0)
            case _:
                assert_never(impairment.jitter)
        return min(DELAY_MAX_NS, round((impairment.delay_ms + extra) * NS_PER_MS))


class Impairer:
    """Holds datagrams back until their time has come.  One timer for all of them."""

    def __init__(
        self, fates: Fates, send: Callable[[ProcessId, list[bytes]], None], now: Callable[[], int]
    ) -> None:
        self._fates = fates
        self._send = send
        self._now = now
        self._held: list[tuple[int, int, ProcessId, bytes]] = []
        self._order = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for = 0
        self._loop = asyncio.get_running_loop()
        self.lost = 0
        self.duplicated = 0
        self.crowded_out = 0
        """Dropped because HELD_MAX datagrams were held already."""

    def datagrams(self, to: ProcessId, data: list[bytes]) -> None:
        """Send these datagrams over the worse network."""
        now = self._now()
        at_once = []
        for datagram in data:
            delays = self._fates.fate(to, datagram)
            if not delays:
                self.lost += 1
            self.duplicated += max(0, len(delays) - 1)
            for delay in delays:
                if delay <= 0:
                    at_once.append(datagram)
                elif len(self._held) >= HELD_MAX:
                    self.crowded_out += 1
                else:
                    heapq.heappush(self._held, (now + delay, next(self._order), to, datagram))
        if at_once:
            self._send(to, at_once)
        self._arm(now)

    def _arm(self, now: int) -> None:
        if not self._held:
            return
        due = self._held[0][0]
        if self._timer is not None:
            if self._armed_for <= due:
                return
            self._timer.cancel()
        self._armed_for = due
        self._timer = self._loop.call_later(max(0, due - now) / NS_PER_S, self._release)

    def _release(self) -> None:
        self._timer = None
        now = self._now()
        held = self._held
        while held and held[0][0] <= now:
            _, _, to, datagram = heapq.heappop(held)
            self._send(to, [datagram])
        self._arm(now)

    def close(self) -> None:
        """Drop what is held."""
        if self._timer is not None:
            self._timer.cancel()
        self._held.clear()
