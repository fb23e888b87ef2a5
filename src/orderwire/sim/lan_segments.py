"""Streams as TCP segments: slow start, AIMD, fast retransmit, time-outs, one ACK a segment.

A window of 64 kB, ten segments at first, no SACK: after three duplicate acknowledgements one
segment is sent again, and a partial acknowledgement shows the next hole (NewReno).  A time-out is
at least 200 ms, doubles, and goes back to the first byte that is not acknowledged.  The handshake
is the first round trip that is measured, as in present systems: where an application opens many
connections at once and then fills its own queue, the first time-outs are needless.  [S002:dec.9]
"""

from bisect import insort
from collections import deque
from typing import Any

from orderwire.sim.lan_link import Frame
from orderwire.sim.lan_streams import (
    MSS_BYTES,
    SYN_RETRY_NS,
    TCP_OVERHEAD_BYTES,
    Connection,
    Streams,
)
from orderwire.sim.world import TIMER

WINDOW_BYTES = 65_536
"""What a receiver lets a sender have under way."""
FIRST_WINDOW_BYTES = 10 * MSS_BYTES
RTO_MIN_NS = 200_000_000
RTO_MAX_NS = 60_000_000_000
DUPLICATES = 3
"""Duplicate acknowledgements that mean a loss."""


class _Half:
    """One direction of a connection: what its sender and its receiver know."""

    __slots__ = (
        "congestion",
        "deadline_ns",
        "deviation_ns",
        "duplicates",
        "early",
        "end",
        "messages",
        "next",
        "received",
        "recover",
        "recovering",
        "rto_ns",
        "smoothed_ns",
        "threshold",
        "timed",
        "timer",
        "unacknowledged",
        "unanswered_ns",
    )

    def __init__(self) -> None:
        self.messages: deque[tuple[int, Any]] = deque()
        """Where in the stream each message that was not handed over ends, and its item."""
        self.end = 0
        """Bytes of all messages so far."""
        self.next = 0
        self.unacknowledged = 0
        self.congestion = FIRST_WINDOW_BYTES
        self.threshold = WINDOW_BYTES
        self.duplicates = 0
        self.recovering = False
        self.recover = 0
        """Where the stream was when the last loss was seen."""
        self.rto_ns = SYN_RETRY_NS
        self.smoothed_ns = 0
        self.deviation_ns = 0
        self.timed: tuple[int, int] | None = None
        """Byte whose acknowledgement ends a measured round trip, and when it was sent."""
        self.deadline_ns: int | None = None
        self.timer = False
        """Whether an event looks after the deadline."""
        self.unanswered_ns = 0
        """Since when nothing new was acknowledged, while something is under way."""
        self.received = 0
        """Bytes received without a hole."""
        self.early: list[tuple[int, int]] = []
        """Pieces received behind a hole, sorted."""


class SegmentStreams(Streams):
    """Every segment and every acknowledgement is a frame."""

    def _half(self, connection: Connection, side: int) -> _Half:
        if connection.halves is None:
            connection.halves = (_Half(), _Half())
        half: _Half = connection.halves[side]
        return half

    def _begin(self, connection: Connection, side: int) -> None:
        trip_ns = self._world.now_ns - connection.asked_ns[side]
        if trip_ns < SYN_RETRY_NS:  # Later it may be the answer to either of two.
            self._measure(self._half(connection, side), trip_ns)
        super()._begin(connection, side)

    def _transmit(self, connection: Connection, side: int, payload_bytes: int, item: Any) -> None:
        half = self._half(connection, side)
        half.end += payload_bytes
        half.messages.append((half.end, item))
        self._send_more(connection, side, half)

    def _send_more(self, connection: Connection, side: int, half: _Half) -> None:
        """Send what the window lets through."""
        window = min(half.congestion, WINDOW_BYTES)
        if half.next == half.unacknowledged:
            half.unanswered_ns = self._world.now_ns
        while half.next < half.end:
            size = min(MSS_BYTES, half.end - half.next)
            under_way = half.next - half.unacknowledged
            if under_way and under_way + size > window:
                break
            end = half.next + size
            if half.timed is None:
                half.timed = (end, self._world.now_ns)
            self._send_segment(connection, side, half.next, end)
            half.next = end
        if half.deadline_ns is None and half.next > half.unacknowledged:
            self._set_deadline(connection, side, half)

    def _send_segment(self, connection: Connection, side: int, start: int, end: int) -> None:
        self._link.send_frame(
            connection.ends[side],
            connection.ends[1 - side],
            end - start + TCP_OVERHEAD_BYTES,
            0,
            self._segment_arrives,
            (connection, side, start, end),
        )

    def _segment_arrives(self, to: int, frame: Frame) -> None:
        source, (connection, side, start, end) = frame[0], frame[4]
        if not self._received(to, frame):
            return
        if not self._holds(to, source, connection):
            self._reset(to, source, connection)
            return
        if not connection.open[1 - side]:
            self._begin(connection, 1 - side)  # The acknowledgement of the handshake was lost.
        half = self._half(connection, side)
        if start > half.received:
            if (start, end) not in half.early:
                insort(half.early, (start, end))
        elif end > half.received:
            half.received = end
            early = half.early
            while early and early[0][0] <= half.received:
                half.received = max(half.received, early.pop(0)[1])
        self._link.send_frame(
            to,
            source,
            TCP_OVERHEAD_BYTES,
            0,
            self._acknowledgement_arrives,
            (connection, side, half.received),
        )
        messages = half.messages
        while messages and messages[0][0] <= half.received:
            self._deliver(to, source, messages.popleft()[1])
            if not self._holds(to, source, connection):
                return  # Whoever got it has left.

    def _acknowledgement_arrives(self, to: int, frame: Frame) -> None:
        source, (connection, side, acknowledged) = frame[0], frame[4]
        if not self._received(to, frame):
            return
        if not self._holds(to, source, connection):
            self._reset(to, source, connection)
            return
        half = self._half(connection, side)
        if acknowledged > half.unacknowledged:
            self._advance(connection, side, half, acknowledged)
        elif acknowledged == half.unacknowledged and half.next > acknowledged:
            half.duplicates += 1
            if half.recovering:
                half.congestion += MSS_BYTES
            elif half.duplicates == DUPLICATES and acknowledged >= half.recover:
                half.threshold = max((half.next - acknowledged) // 2, 2 * MSS_BYTES)
                half.congestion = half.threshold + DUPLICATES * MSS_BYTES
                half.recovering, half.recover = True, half.next
                self._repeat(connection, side, half)
        self._send_more(connection, side, half)

    def _advance(self, connection: Connection, side: int, half: _Half, acknowledged: int) -> None:
        """Take an acknowledgement of something new."""
        now_ns = self._world.now_ns
        newly = acknowledged - half.unacknowledged
        half.unacknowledged = acknowledged
        half.next = max(half.next, acknowledged)
        half.duplicates = 0
        half.unanswered_ns = now_ns
        if half.timed is not None and acknowledged >= half.timed[0]:
            self._measure(half, now_ns - half.timed[1])
            half.timed = None
        if half.recovering and acknowledged < half.recover:
            half.congestion = max(half.congestion - newly + MSS_BYTES, MSS_BYTES)
            self._repeat(connection, side, half)
        elif half.recovering:
            half.recovering = False
            half.congestion = half.threshold
        elif half.congestion < half.threshold:
            half.congestion += min(newly, MSS_BYTES)
        else:
            half.congestion += max(1, MSS_BYTES * MSS_BYTES // half.congestion)
        if half.next > acknowledged:
            self._set_deadline(connection, side, half)
        else:
            half.deadline_ns = None

    def _repeat(self, connection: Connection, side: int, half: _Half) -> None:
        """Send the first segment that is not acknowledged again; its round trip says nothing."""
        half.timed = None
        start = half.unacknowledged
        self._send_segment(connection, side, start, min(start + MSS_BYTES, half.next))

    def _measure(self, half: _Half, trip_ns: int) -> None:
        if half.smoothed_ns == 0:
            half.smoothed_ns, half.deviation_ns = trip_ns, trip_ns // 2
        else:
            off_ns = abs(half.smoothed_ns - trip_ns)
            half.deviation_ns = (3 * half.deviation_ns + off_ns) // 4
            half.smoothed_ns = (7 * half.smoothed_ns + trip_ns) // 8
        half.rto_ns = max(RTO_MIN_NS, half.smoothed_ns + 4 * half.deviation_ns)

    def _set_deadline(self, connection: Connection, side: int, half: _Half) -> None:
        half.deadline_ns = self._world.now_ns + half.rto_ns
        if not half.timer:
            half.timer = True
            self._world.at(half.deadline_ns, TIMER, self._look, connection, side)

    def _look(self, connection: Connection, side: int) -> None:
        """The deadline may have moved since this was planned, or nothing be under way."""
        half = self._half(connection, side)
        half.timer = False
        source, to = connection.ends[side], connection.ends[1 - side]
        if half.deadline_ns is None or not self._holds(source, to, connection):
            return
        if half.deadline_ns > self._world.now_ns:
            half.timer = True
            self._world.at(half.deadline_ns, TIMER, self._look, connection, side)
            return
        if self._world.now_ns - half.unanswered_ns >= self._give_up_ns:
            self._break(source, to, connection)
            self._reset(source, to, connection)
            return
        half.threshold = max((half.next - half.unacknowledged) // 2, 2 * MSS_BYTES)
        half.congestion = MSS_BYTES
        half.recovering, half.recover = False, half.next
        half.duplicates = 0
        half.timed = None
        half.rto_ns = min(2 * half.rto_ns, RTO_MAX_NS)
        half.next = half.unacknowledged
        unanswered_ns = half.unanswered_ns
        half.deadline_ns = None
        self._send_more(connection, side, half)
        half.timed = None
        half.unanswered_ns = unanswered_ns
