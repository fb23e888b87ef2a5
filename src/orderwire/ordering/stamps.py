"""Stamps that strictly grow along happened-before.

The paper stamps with the clock, τ := c_time; two sends in one tick, a relay without delay or a
skewed clock then give equal or decreasing stamps along causality.  A hybrid stamp repairs that at
no cost on the wire: max(now, largest stamp used or delivered + 1).  [S000:dec.2]
"""

from orderwire.kernel import Destinations, Instant, ProcessId
from orderwire.ordering.settings import OrderingSettings


class StampClock:
    """One member's stamps and lifetimes, counted in ticks.

    A clock reading lies between two ticks: a stamp takes the tick before it, and a deadline of
    t ticks has passed when t is below the tick after it.  So deadlines are exact in nanoseconds.
    """

    def __init__(self, me: ProcessId, settings: OrderingSettings) -> None:
        assert 0 <= me < settings.members, f"process {me} in a group of {settings.members}"
        self.me = me
        self.settings = settings
        self.now = Instant(0)
        """The latest reading seen; an earlier one afterwards is taken for this one."""
        self.next_number = settings.first_number
        self._highest = -1
        tick_ns = settings.tick_ns
        lifetime_ns = settings.lifetime_ns
        self.lifetime_ticks = None if lifetime_ns is None else lifetime_ns // tick_ns
        self._future_ns = settings.epsilon_ns + settings.future_guard_ns

    def advance(self, now: Instant) -> Instant:
        """Take a clock reading; the clock never steps back."""
        if now > self.now:
            self.now = now
        return self.now

    def stamp_send(self, destinations: Destinations, now: Instant) -> tuple[int, int]:
        """Return number and stamp of the next message.  Raises LocalProtocolError."""
        settings = self.settings
        if destinations == 0 or destinations >> settings.members:
            raise settings.refuse_destinations(destinations)
        now = self.advance(now)
        if now < settings.quiet_until_ns:
            raise settings.refuse_quiet(now)
        self._highest = max(now // settings.tick_ns, self._highest + 1)
        number = self.next_number
        self.next_number += 1
        return number, self._highest

    def delivered(self, stamp: int) -> None:
        """Let later stamps be larger than that of a delivered message."""
        if stamp > self._highest:
            self._highest = stamp

    def is_late(self, stamp: int) -> bool:
        """Whether the deadline of a message with this stamp has passed: stamp + Δ < now."""
        if self.lifetime_ticks is None:
            return False
        return (stamp + self.lifetime_ticks) * self.settings.tick_ns < self.now

    def is_future(self, stamp: int) -> bool:
        """Whether a stamp is further ahead than ε and the guard allow."""
        return stamp * self.settings.tick_ns > self.now + self._future_ns

    def instant(self, stamp: int) -> Instant:
        """Return a stamp as an instant."""
        return Instant(stamp * self.settings.tick_ns)
