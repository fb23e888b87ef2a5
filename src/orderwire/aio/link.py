"""One peer: its lanes (a lane is one channel to one peer), window, round-trip time, one timer.

The link has no socket: it hands datagrams to a `Wire` and is handed what came.  The time is an
argument.
"""

from collections import deque
from collections.abc import Callable
from typing import Protocol

import msgspec

from orderwire.aio import frames
from orderwire.aio.frames import Kind, Range, Report
from orderwire.aio.inbound import Inbound
from orderwire.aio.outbound import HEARTBEAT_PAUSE_MAX_NS, Outbound, Packet
from orderwire.kernel import NS_PER_MS, NS_PER_S, NS_PER_US, Instant, ProcessId

WINDOW_BYTES_MIN = 128 << 10
WINDOW_BYTES_START = 256 << 10
WINDOW_BYTES_MAX = 4 << 20
"""Bytes under way to one peer and not settled, at most."""

LANE_BYTES_MIN = 64 << 10
"""Of them, what a channel may always have: one that its peer does not answer stops no other."""

REPORT_BYTES = 32 << 10
REPORT_DATAGRAMS = 16
"""A report is due after so much was received without one."""

PING_PAUSE_NS = 1 * NS_PER_S
"""Between two measurements of the round-trip time, while there is traffic."""

FIRST_PING_PAUSE_NS = 50 * NS_PER_MS
"""The same while none has succeeded."""

RTT_START_NS = 10 * NS_PER_MS
RTT_MIN_NS = 100 * NS_PER_US
RTT_MAX_NS = 2 * NS_PER_S
RTT_SAMPLES = 8

ASK_GRACE_NS = 1 * NS_PER_MS
"""How long a gap may be mere reordering before it is asked for."""


class Counters(msgspec.Struct):
    """What one lane counted.  In copies (PDUs to or from one peer), unless it says otherwise."""

    sent: int = 0
    received: int = 0
    """Handed to the receiver, each once."""
    retransmitted: int = 0
    """Sent again."""
    nacked: int = 0
    """Asked for; a copy counts each time."""
    lost: int = 0
    """Given up and told to the receiver."""
    duplicate: int = 0
    """Had come before; dropped."""
    late: int = 0
    """Came after it was given up; dropped."""
    refused: int = 0
    """Dropped because too many gaps were open; comes again."""
    dropped: int = 0
    """Not sent: expired, or crowded out, while waiting for the window."""
    reports: int = 0
    """Reports sent, in datagrams."""
    heartbeats: int = 0
    """Heartbeats sent, in datagrams."""


class Receiver(Protocol):
    """Where a lane's copies go: a channel."""

    def take(self, source: ProcessId, pdus: list[memoryview], arrived: Instant) -> None:
        """Take PDUs, each for the first time."""
        ...

    def lose(self, source: ProcessId, lost: list[Range]) -> None:
        """Learn that these copies will never come."""
        ...

    def settle(self) -> None:
        """A batch of calls of the others has ended."""
        ...

    def has_room(self) -> None:
        """Something that waited for a window was sent or settled."""
        ...


class Wire(Protocol):
    """What a link sends through."""

    def datagrams(self, to: ProcessId, data: list[bytes]) -> None:
        """Send these; any may be lost."""
        ...

    def over_stream(self, to: ProcessId, data: bytes) -> bool:
        """Send a datagram's content over the stream; False when there is none."""
        ...


class Lane:
    """One channel to and from one peer."""

    __slots__ = ("channel", "counters", "inbound", "link", "outbound", "receiver", "report_now")

    def __init__(
        self, link: "Link", channel: int, lifetime_ns: int | None, receiver: Receiver
    ) -> None:
        self.link = link
        self.channel = channel
        self.receiver = receiver
        self.outbound = Outbound(lifetime_ns)
        self.inbound = Inbound()
        self.counters = Counters()
        self.report_now = False


class Link:
    """One peer.  Calls come with the present instant, which never decreases."""

    def __init__(
        self,
        me: ProcessId,
        peer: ProcessId,
        session: int,
        wire: Wire,
        *,
        monotonic_ns: Callable[[], int],
        receive_window: int = WINDOW_BYTES_MAX,
    ) -> None:
        self.me = me
        self.peer = peer
        self.session = session
        self.peer_session = 0
        """0: not heard of yet."""
        self.lanes: dict[int, Lane] = {}
        self.rtt_ns = RTT_START_NS
        self.fastest_ns = RTT_MIN_NS
        """Shortest of the last round trips: what can still be in time is judged by it."""
        self.window = WINDOW_BYTES_START
        self.flight_cost = 0
        self.restarts = 0
        """How often the peer came back as a new incarnation."""
        self.malformed = 0
        """Datagrams dropped as the peer's fault."""
        self.unclaimed = 0
        """Datagrams of channels that are not open here."""
        self.stale = 0
        """Datagrams of an earlier incarnation of the peer, or about one of ours."""
        self._wire = wire
        self._monotonic_ns = monotonic_ns
        self.stream_since = 0
        """When the present stream was opened."""
        self._receive_window = receive_window
        self._peer_window = WINDOW_BYTES_MAX
        self._threshold = WINDOW_BYTES_MAX
        self._cut_at = 0
        self._pinged_at = 0
        self._samples: deque[int] = deque(maxlen=RTT_SAMPLES)

    def lane(self, channel: int, lifetime_ns: int | None, receiver: Receiver) -> Lane:
        """Add a channel."""
        assert channel not in self.lanes, f"channel {channel} is open already"
        lane = self.lanes[channel] = Lane(self, channel, lifetime_ns, receiver)
        return lane

    # Sending.

    def pump(self, lane: Lane, now: Instant) -> None:
        """Send what waits, as far as the window allows."""
        out = lane.outbound
        if self.flight_cost >= self._room():
            self.flight_cost -= out.expire(now)
        batch: list[bytes] = []
        room = self._room()
        while self.flight_cost < room or out.flight_cost < LANE_BYTES_MIN:
            packet = out.next_packet(now)
            if packet is None:
                break
            out.in_flight(packet, now)
            self.flight_cost += packet.cost
            if packet.streamed:
                self._wire.over_stream(self.peer, packet.data)
            else:
                batch.append(packet.data)
        lane.counters.dropped = out.dropped
        if batch:
            self._wire.datagrams(self.peer, batch)

    def sent_to_all(self, lane: Lane, packet: Packet, now: Instant) -> None:
        """Note that this datagram goes out as a part of a multicast."""
        out = lane.outbound
        out.unsent = packet.last + 1
        out.last_deadline = max(out.last_deadline, packet.deadline)
        out.in_flight(packet, now)
        self.flight_cost += packet.cost

    def has_room(self) -> bool:
        """Whether a datagram could be sent at once."""
        return self.flight_cost < self._room()

    def _room(self) -> int:
        return min(self.window, self._peer_window)

    def ping(self, now: Instant) -> None:
        """Measure the round-trip time."""
        self._pinged_at = now
        head = frames.HEAD.pack(Kind.PING, 0, self.me, 0, 0, self.session, self._monotonic_ns(), 0)
        self._wire.datagrams(self.peer, [head])

    # Receiving.  `data` begins with the head, which the caller has parsed.

    def greet(self, session: int, *, certain: bool = False) -> bool:
        """Note the peer's incarnation; False when what it came with is of an earlier one.

        A stream's hello is `certain`: whoever stands at its other end is the present one.
        """
        if session == self.peer_session:
            return True
        if session < self.peer_session and not certain:
            self.stale += 1
            return False
        if self.peer_session:
            self.restarts += 1
            for lane in self.lanes.values():
                lane.inbound = Inbound()
        self.peer_session = session
        return True

    def data(
        self,
        lane: Lane,
        flags: int,
        count: int,
        first: int,
        deadline: int,
        data: memoryview,
        at: int,
        arrived: Instant,
    ) -> None:
        """Take a DATA datagram.  Raises RemoteProtocolError."""
        inbound = lane.inbound
        if count == 0:
            lane.report_now = True
            if first > inbound.expected:
                inbound.skip_to(first, deadline, arrived, 0)
            return
        pdus = frames.split(data, at, count, flags)
        counters = lane.counters
        if first == inbound.expected:
            inbound.expected = first + count
        elif first > inbound.expected:
            grace = max(ASK_GRACE_NS, self.rtt_ns // 4)
            if not inbound.skip_to(first, deadline, arrived, grace):
                counters.refused += count
                return
            inbound.expected = first + count
        elif inbound.splits_too_often(first, count):
            counters.refused += count
            return
        else:
            offsets = inbound.fill(first, count)
            if len(offsets) < count:
                given_up = sum(
                    inbound.was_given_up(first + index)
                    for index in set(range(count)).difference(offsets)
                )
                counters.late += given_up
                counters.duplicate += count - len(offsets) - given_up
                pdus = [pdus[index] for index in offsets]
                if not pdus:
                    return
        inbound.unreported_bytes += len(data)
        inbound.unreported_datagrams += 1
        counters.received += len(pdus)
        lane.receiver.take(self.peer, pdus, arrived)

    def report(self, lane: Lane, report: Report, now: Instant) -> None:
        """Take a REPORT."""
        if report.session != self.session:
            self.stale += 1
            return
        self._peer_window = max(WINDOW_BYTES_MIN, report.window)
        freed, again, gone = lane.outbound.take_report(report, now, self.fastest_ns)
        self.flight_cost -= freed
        self._grow(freed)
        if again:
            self._resend(lane, again, now)
        if gone:
            self._wire.datagrams(
                self.peer, [frames.gone_datagram(self.me, self.session, lane.channel, gone)]
            )
        self.pump(lane, now)
        lane.receiver.has_room()

    def _resend(self, lane: Lane, packets: list[Packet], now: Instant) -> None:
        batch = []
        for packet in packets:
            if packet.streamed:
                # A stream loses nothing while it stands: only a new one is given it again.
                if packet.sent_at > self.stream_since:
                    continue
                self._wire.over_stream(self.peer, packet.data)
            else:
                batch.append(packet.data)
            packet.sends += 1
            packet.sent_at = now
            lane.counters.retransmitted += packet.last - packet.first + 1
        if batch:
            self._wire.datagrams(self.peer, batch)
            if now - self._cut_at > self.rtt_ns:
                self._cut_at = now
                self.window = self._threshold = max(WINDOW_BYTES_MIN, self.window * 7 // 10)

    def _grow(self, freed: int) -> None:
        if self.window < self._threshold:
            self.window += freed
        else:
            self.window += (64 << 10) * freed // self.window
        self.window = min(self.window, WINDOW_BYTES_MAX)

    def abandon(self, lane: Lane) -> None:
        """Give up what waits for this peer, which has been away for long."""
        self.flight_cost -= lane.outbound.abandon()
        lane.counters.dropped = lane.outbound.dropped
        lane.receiver.has_room()

    def gone(self, lane: Lane, ranges: list[Range]) -> None:
        """Take a GONE."""
        self._lose(lane, lane.inbound.gone(ranges))

    def _lose(self, lane: Lane, lost: list[Range]) -> None:
        if lost:
            lane.counters.lost += sum(each.last - each.first + 1 for each in lost)
            lane.receiver.lose(self.peer, lost)

    def answer(self, echoed: int) -> None:
        """Take a PING."""
        head = frames.HEAD.pack(Kind.PONG, 0, self.me, 0, 0, self.session, echoed, 0)
        self._wire.datagrams(self.peer, [head])

    def pong(self, echoed: int) -> None:
        """Take a PONG."""
        sample = self._monotonic_ns() - echoed
        if not 0 <= sample <= RTT_MAX_NS:
            return
        sample = max(RTT_MIN_NS, sample)
        self.rtt_ns = (7 * self.rtt_ns + sample) // 8 if self._samples else sample
        self._samples.append(sample)
        self.fastest_ns = min(self._samples)

    # Time.

    def after_batch(self, lane: Lane, now: Instant) -> None:
        """Report when that is due.  The lane has been fed."""
        inbound = lane.inbound
        if (
            lane.report_now
            or inbound.unreported_bytes >= REPORT_BYTES
            or inbound.unreported_datagrams >= REPORT_DATAGRAMS
        ):
            self._report(lane, now, *inbound.missing(now, self.rtt_ns, self.fastest_ns))
        self._ping_when_due(now)

    def _report(self, lane: Lane, now: Instant, missing: list[Range], asked: int) -> None:
        lane.report_now = False
        lane.inbound.unreported_bytes = lane.inbound.unreported_datagrams = 0
        lane.counters.nacked += asked
        lane.counters.reports += 1
        self._wire.datagrams(self.peer, [self._report_datagram(lane, missing)])

    def _report_datagram(self, lane: Lane, missing: list[Range]) -> bytes:
        inbound = lane.inbound
        report = Report(
            inbound.settled, inbound.expected, self.peer_session, self._receive_window, missing
        )
        return frames.report_datagram(self.me, self.session, lane.channel, report)

    def farewell(self) -> None:
        """Tell the peer what has come before leaving, so that it does not wait to hear that."""
        for lane in self.lanes.values():
            inbound = lane.inbound
            if inbound.unreported_datagrams:
                missing = [Range(gap.first, gap.last) for gap in inbound.gaps]
                self._wire.over_stream(self.peer, self._report_datagram(lane, missing))

    def on_timer(self, now: Instant) -> None:
        """Do all that is due."""
        for lane in list(self.lanes.values()):
            inbound, outbound = lane.inbound, lane.outbound
            if inbound.gaps:
                lost = inbound.give_up(now)
                if lost:
                    self._lose(lane, lost)
                missing, asked = inbound.missing(now, self.rtt_ns, self.fastest_ns)
                if asked or lost:
                    self._report(lane, now, missing, asked)
            freed = outbound.expire(now)
            self.flight_cost -= freed
            if freed or outbound.queue:
                self.pump(lane, now)
                lane.receiver.has_room()
            due = outbound.heartbeat_due(self.rtt_ns)
            if due is not None and due <= now:
                self._heartbeat(lane, now)
                if not outbound.unsettled:
                    lane.receiver.has_room()
        if self._has_traffic():
            self._ping_when_due(now)

    def _ping_when_due(self, now: Instant) -> None:
        if now - self._pinged_at >= (PING_PAUSE_NS if self._samples else FIRST_PING_PAUSE_NS):
            self.ping(now)

    def _heartbeat(self, lane: Lane, now: Instant) -> None:
        out = lane.outbound
        out.heartbeat_sent(now)
        lane.counters.heartbeats += 1
        beat = frames.data_datagram(
            self.me, self.session, lane.channel, out.unsent, out.last_deadline, []
        )
        self._wire.datagrams(self.peer, [beat])

    def _has_traffic(self) -> bool:
        return any(
            lane.inbound.unreported_datagrams or lane.outbound.settled < lane.outbound.unsent
            for lane in self.lanes.values()
        )

    def next_due(self, now: Instant) -> int | None:
        """When `on_timer` is next due."""
        due: int | None = None
        for lane in self.lanes.values():
            for at in (
                lane.inbound.next_due(self.fastest_ns) if lane.inbound.gaps else None,
                lane.outbound.heartbeat_due(self.rtt_ns),
                _expiry(lane.outbound, now),
            ):
                if at is not None and (due is None or at < due):
                    due = at
        return due


def _expiry(out: Outbound, now: Instant) -> int | None:
    """When waiting or kept datagrams next expire, when somebody waits for the room."""
    if not out.queue and not out.flight:
        return None
    first = out.flight[0] if out.flight else out.queue[0]
    if first.deadline:
        return max(now, first.deadline + 1)
    return now + HEARTBEAT_PAUSE_MAX_NS if out.queue else None
