"""One peer: its lanes (a lane is one channel to one peer), window, one timer.

The link has no socket: it hands datagrams to a `Wire` and is handed what came.  The time is an
argument.
"""

from collections import deque
from collections.abc import Callable

from orderwire.aio import frames
from orderwire.aio.frames import Kind, Range, Report, Way
from orderwire.aio.lane import Lane, Receiver, Wire
from orderwire.aio.outbound import HEARTBEAT_PAUSE_MAX_NS, LOSSY_NS, Outbound, Packet
from orderwire.aio.roundtrip import RoundTrip
from orderwire.kernel import NS_PER_S, Instant, ProcessId

WINDOW_BYTES_MIN = 128 << 10
WINDOW_BYTES_START = 256 << 10
WINDOW_BYTES_MAX = 4 << 20
"""Bytes under way to one peer and not settled, at most."""

LANE_BYTES_MIN = 64 << 10
"""Of them, what a channel may always have: one that its peer does not answer stops no other."""

REPORT_BYTES = 32 << 10
REPORT_DATAGRAMS = 16
"""A report is due after so much was received without one."""

FORMER_MAX = 64
"""Incarnations of a peer that are remembered after they ended."""

SILENCE_NS = 10 * NS_PER_S
"""Default: a peer that says nothing for so long, though it is asked, is given up."""


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
        silence_ns: int = SILENCE_NS,
    ) -> None:
        self.me = me
        self.peer = peer
        self.session = session
        self.peer_session = 0
        """The peer's incarnation; 0: it has not said it yet."""
        self.first_session = 0
        """The first that we met."""
        self.former: deque[int] = deque(maxlen=FORMER_MAX)
        """Earlier ones: what they say late is refused."""
        self.lanes: dict[int, Lane] = {}
        self.trip = RoundTrip(silence_ns)
        self.window = WINDOW_BYTES_START
        self.flight_cost = 0
        self.restarts = 0
        """How often the peer came back as a new incarnation."""
        self.malformed = 0
        """Datagrams dropped as the peer's fault."""
        self.unclaimed = 0
        """Datagrams of channels that are not open here."""
        self.stale = 0
        """Datagrams of an earlier incarnation of the peer, or for one of ours."""
        self._wire = wire
        self._monotonic_ns = monotonic_ns
        self.stream_since = 0
        """When the present stream was opened."""
        self._receive_window = receive_window
        self._peer_window = WINDOW_BYTES_MAX
        self._threshold = WINDOW_BYTES_MAX
        self._cut_at = 0

    def lane(self, channel: int, lifetime_ns: int | None, receiver: Receiver) -> Lane:
        """Add a channel."""
        assert channel not in self.lanes, f"channel {channel} is open already"
        way = Way(self.me, self.session, self.peer_session, channel)
        lane = self.lanes[channel] = Lane(self, way, lifetime_ns, receiver)
        return lane

    # Sending.

    def pump(self, lane: Lane, now: Instant) -> None:
        """Send what waits, as far as the window allows, once the peer has said who it is."""
        out = lane.outbound
        if not self.peer_session:
            out.drop_expired(now)
            return
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
                if lane.header_only is not None:
                    doubtful = out.doubtful(now, self.trip.fastest_ns)
                    if doubtful is not None:
                        batch += self._notice(lane, doubtful, sure=False)
        if batch:
            self._wire.datagrams(self.peer, batch)

    def dropped(self, lane: Lane, packets: list[Packet]) -> None:
        """Tell the peer which copies were dropped before they were sent."""
        if lane.header_only is not None and self.peer_session:
            batch = [each for packet in packets for each in self._notice(lane, packet, sure=True)]
            if batch:
                self._wire.datagrams(self.peer, batch)

    def _notice(self, lane: Lane, packet: Packet, *, sure: bool) -> list[bytes]:
        assert lane.header_only is not None
        notice = frames.notice_datagram(packet.data, lane.header_only, sure=sure)
        if notice is None:
            return []
        lane.counters.notices += packet.last - packet.first + 1
        return [notice]

    def sent_to_all(self, lane: Lane, packet: Packet, now: Instant) -> None:
        """Note that this datagram goes out as a part of a multicast."""
        out = lane.outbound
        out.unsent = packet.last + 1
        out.last_deadline = max(out.last_deadline, packet.deadline)
        out.in_flight(packet, now)
        self.flight_cost += packet.cost

    def has_room(self) -> bool:
        """Whether a datagram could be sent at once."""
        return self.peer_session != 0 and self.flight_cost < self._room()

    def _room(self) -> int:
        return min(self.window, self._peer_window)

    def ping(self, now: Instant) -> None:
        """Measure the round-trip time."""
        self.trip.pinged(now)
        ping = frames.ping_datagram(Kind.PING, self.me, self.session, self._monotonic_ns())
        self._wire.datagrams(self.peer, [ping])

    # Receiving.  `data` begins with the head, which the caller has parsed.

    def greet(self, session: int) -> None:
        """The peer has said which incarnation it is; another one than before is met afresh."""
        before = self.peer_session
        if session == before:
            return
        self.peer_session = session
        if not before:
            self.first_session = session
            for lane in self.lanes.values():
                lane.meet(session)
            return
        self.former.append(before)
        self.restarts += 1
        for lane in self.lanes.values():
            lane.receiver.pack(lane)
            self.flight_cost -= lane.outbound.abandon()
            missing = lane.meet_again(session)
            lane.receiver.restarted(self.peer)
            self._lose(lane, missing)
            lane.receiver.has_room()

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
        if flags & frames.NOTICE:
            self._noticed(lane, flags, first, deadline, pdus, arrived)
            return
        if first == inbound.expected:
            inbound.expected = first + count
        elif first > inbound.expected:
            grace = inbound.grace_ns(arrived, self.trip.rtt_ns)
            if not inbound.skip_to(first, deadline, arrived, grace):
                counters.refused += count
                return
            inbound.expected = first + count
            if not grace:
                lane.report_now = True
        elif inbound.splits_too_often(first, count):
            counters.refused += count
            return
        else:
            offsets = inbound.fill(first, count, arrived, self.trip.fastest_ns)
            if len(offsets) < count:
                given_up = sum(
                    inbound.was_given_up(first + index)
                    for index in set(range(count)).difference(offsets)
                )
                counters.late += given_up
                if given_up and arrived <= deadline:
                    inbound.reordered_at = arrived  # it was under way after all
                counters.duplicate += count - len(offsets) - given_up
                pdus = [pdus[index] for index in offsets]
                if not pdus:
                    return
        inbound.unreported_bytes += len(data)
        inbound.unreported_datagrams += 1
        counters.received += len(pdus)
        lane.receiver.take(self.peer, pdus, arrived)

    def _noticed(
        self,
        lane: Lane,
        flags: int,
        first: int,
        deadline: int,
        pdus: list[memoryview],
        arrived: Instant,
    ) -> None:
        """Take notices of copies first …, which have been sent or dropped."""
        inbound = lane.inbound
        end = first + len(pdus)
        if end > inbound.expected:
            grace = inbound.grace_ns(arrived, self.trip.rtt_ns)
            if not inbound.skip_to(end, deadline, arrived, grace):
                return
            lane.report_now = True
        if flags & frames.SURE:
            lost = inbound.gone([Range(first, end - 1)])
            numbers = [number for each in lost for number in range(each.first, each.last + 1)]
            self._settle(lane, lost, [pdus[number - first] for number in numbers], arrived)
        else:
            inbound.note(first, pdus)
            self._conclude(lane, arrived)

    def _conclude(self, lane: Lane, now: Instant) -> None:
        """Let notices stand for the copies that cannot come in time any more."""
        if lane.inbound.notices:
            lost, notices = lane.inbound.conclude(now, self.trip.fastest_ns)
            self._settle(lane, lost, [memoryview(each) for each in notices], now)

    def _settle(
        self, lane: Lane, lost: list[Range], notices: list[memoryview], now: Instant
    ) -> None:
        self._lose(lane, lost)
        if notices:
            lane.receiver.take(self.peer, notices, now)

    def report(self, lane: Lane, report: Report, now: Instant) -> None:
        """Take a REPORT."""
        if report.missing:
            lane.outbound.lossy_until = now + LOSSY_NS
        self._peer_window = max(WINDOW_BYTES_MIN, report.window)
        freed, again, gone = lane.outbound.take_report(report, now, self.trip.fastest_ns)
        self.flight_cost -= freed
        self._grow(freed)
        if again:
            self._resend(lane, again, now)
        if gone:
            self._wire.datagrams(self.peer, [frames.gone_datagram(lane.way, gone)])
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
            if now - self._cut_at > self.trip.rtt_ns:
                self._cut_at = now
                self.window = self._threshold = max(WINDOW_BYTES_MIN, self.window * 7 // 10)

    def _grow(self, freed: int) -> None:
        if self.window < self._threshold:
            self.window += freed
        else:
            self.window += (64 << 10) * freed // self.window
        self.window = min(self.window, WINDOW_BYTES_MAX)

    def abandon(self, lane: Lane) -> None:
        """Give up what waits for this peer, which has been away for long, and what it owes us."""
        self.flight_cost -= lane.outbound.abandon()
        missing = [Range(gap.first, gap.last) for gap in lane.inbound.gaps]
        self._lose(lane, lane.inbound.gone(missing))
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
        pong = frames.ping_datagram(Kind.PONG, self.me, self.session, echoed)
        self._wire.datagrams(self.peer, [pong])

    def pong(self, echoed: int) -> None:
        """Take a PONG."""
        self.trip.measured(self._monotonic_ns() - echoed)

    # Time.

    def after_batch(self, lane: Lane, now: Instant) -> None:
        """Report when that is due.  The lane has been fed."""
        inbound = lane.inbound
        if (
            lane.report_now
            or inbound.unreported_bytes >= REPORT_BYTES
            or inbound.unreported_datagrams >= REPORT_DATAGRAMS
        ):
            self._report(lane, now, *inbound.missing(now, self.trip.rtt_ns, self.trip.fastest_ns))
        self._ping_when_due(now)

    def _report(self, lane: Lane, now: Instant, missing: list[Range], asked: int) -> None:
        lane.report_now = False
        lane.inbound.unreported_bytes = lane.inbound.unreported_datagrams = 0
        lane.counters.nacked += asked
        lane.counters.reports += 1
        self._wire.datagrams(self.peer, [self._report_datagram(lane, missing)])

    def _report_datagram(self, lane: Lane, missing: list[Range]) -> bytes:
        inbound = lane.inbound
        report = Report(inbound.settled, inbound.expected, self._receive_window, missing)
        return frames.report_datagram(lane.way, report)

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
                self._conclude(lane, now)
                missing, asked = inbound.missing(now, self.trip.rtt_ns, self.trip.fastest_ns)
                if asked or lost:
                    self._report(lane, now, missing, asked)
            freed = outbound.expire(now)
            self.flight_cost -= freed
            if freed or outbound.queue:
                self.pump(lane, now)
                lane.receiver.has_room()
            due = outbound.heartbeat_due(self.trip.rtt_ns)
            if due is not None and due <= now:
                self._heartbeat(lane, now)
                if not outbound.unsettled:
                    lane.receiver.has_room()
        if self._waits_for_peer():
            self._ping_when_due(now)

    def is_silent(self, now: Instant) -> bool:
        """Whether the peer has not said a word for so long that nobody should wait for it."""
        return self.peer_session != 0 and self._waits_for_peer() and self.trip.is_silent(now)

    def _ping_when_due(self, now: Instant) -> None:
        if now >= self.trip.due_at:
            self.ping(now)

    def _heartbeat(self, lane: Lane, now: Instant) -> None:
        out = lane.outbound
        out.heartbeat_sent(now)
        lane.counters.heartbeats += 1
        beat = frames.data_datagram(lane.way, out.unsent, out.last_deadline, [])
        self._wire.datagrams(self.peer, [beat])

    def _waits_for_peer(self) -> bool:
        return any(lane.outbound.untold or lane.outbound.queue for lane in self.lanes.values())

    def next_due(self, now: Instant) -> int | None:
        """When `on_timer` is next due."""
        waits = self.peer_session != 0 and self._waits_for_peer()
        due = self.trip.due_at if waits else None
        for lane in self.lanes.values():
            for at in (
                lane.inbound.next_due(self.trip.fastest_ns) if lane.inbound.gaps else None,
                lane.outbound.heartbeat_due(self.trip.rtt_ns),
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
