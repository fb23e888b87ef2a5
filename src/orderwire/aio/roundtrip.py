"""Pings to one peer: how long the way there and back takes, and whether anybody answers."""

from collections import deque

from orderwire.kernel import NS_PER_MS, NS_PER_S, NS_PER_US, Instant

PING_PAUSE_NS = 1 * NS_PER_S
"""Between two measurements, while there is traffic."""

FIRST_PING_PAUSE_NS = 50 * NS_PER_MS
"""The same before the way is known."""

FIRST_SAMPLES = 4
"""So many measurements make it known; until then the shortest counts.

The first meet processes that are still starting: one of them taken for the way itself would let
lost copies wait many times as long as it takes to repair them, for as long as it is remembered.
"""

SILENT_PINGS = 4
"""So many pings, at least, must have gone unanswered before a peer counts as silent.

Time alone does not do: a process that was stopped itself finds that much time has passed.
"""

RTT_START_NS = 10 * NS_PER_MS
RTT_MIN_NS = 100 * NS_PER_US
RTT_MAX_NS = 2 * NS_PER_S
RTT_SAMPLES = 8


class RoundTrip:
    """What pings tell about one peer.  No I/O and no clock: the link passes the time."""

    __slots__ = (
        "_pause_ns",
        "_pinged_at",
        "_samples",
        "_silence_ns",
        "_since",
        "fastest_ns",
        "rtt_ns",
        "unanswered",
    )

    def __init__(self, silence_ns: int) -> None:
        self.rtt_ns = RTT_START_NS
        """Smoothed."""
        self.fastest_ns = RTT_MIN_NS
        """Shortest of the last: what can still be in time is judged by it."""
        self.unanswered = 0
        """Pings sent since the peer was last heard; who hears it sets 0."""
        self._silence_ns = silence_ns
        self._pause_ns = min(PING_PAUSE_NS, silence_ns // SILENT_PINGS)
        self._pinged_at = 0
        self._since = 0
        self._samples: deque[int] = deque(maxlen=RTT_SAMPLES)

    @property
    def due_at(self) -> int:
        """When the next ping is due, if there is traffic."""
        is_known = len(self._samples) >= FIRST_SAMPLES
        return self._pinged_at + (self._pause_ns if is_known else FIRST_PING_PAUSE_NS)

    def pinged(self, now: Instant) -> None:
        """Note that a ping is sent."""
        if not self.unanswered:
            self._since = now
        self.unanswered += 1
        self._pinged_at = now

    def measured(self, sample_ns: int) -> None:
        """Take how long a ping and its answer took."""
        if not 0 <= sample_ns <= RTT_MAX_NS:
            return
        sample_ns = max(RTT_MIN_NS, sample_ns)
        self._samples.append(sample_ns)
        self.fastest_ns = min(self._samples)
        if len(self._samples) <= FIRST_SAMPLES:
            self.rtt_ns = self.fastest_ns
        else:
            self.rtt_ns = (7 * self.rtt_ns + sample_ns) // 8

    def is_silent(self, now: Instant) -> bool:
        """Whether the peer has been asked for so long, and so often, without a word."""
        return self.unanswered >= SILENT_PINGS and now - self._since >= self._silence_ns
