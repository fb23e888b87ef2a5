"""Two ends of a link in one process, in a time of their own: what is sent arrives when it is told.

A `Network` carries datagrams between `End`s with the fates that a test decides.
"""

import heapq
import itertools
import struct
from collections.abc import Callable, Sequence

from orderwire.aio import frames
from orderwire.aio.frames import HEAD, HEAD_BYTES, Kind, Range
from orderwire.aio.lane import Lane
from orderwire.aio.link import Link
from orderwire.aio.outbound import Packet
from orderwire.kernel import Instant, ProcessId, RemoteProtocolError, ms

Fate = Callable[[int, int, bytes], Sequence[int]]
"""Sender, index of the datagram in this run, the datagram → delay of each copy."""


class Network:
    """A clock and what is under way."""

    def __init__(self, fate: Fate) -> None:
        self.now = ms(1_000)
        self.fate = fate
        self.sent: list[tuple[int, int, bytes]] = []
        """Instant, sender, datagram: all that was ever sent."""
        self.ends: dict[int, End] = {}
        self._under_way: list[tuple[int, int, int, bytes]] = []
        self._order = itertools.count()

    def send(self, source: int, to: int, data: bytes) -> None:
        for delay in self.fate(source, len(self.sent), data):
            heapq.heappush(self._under_way, (self.now + delay, next(self._order), to, data))
        self.sent.append((self.now, source, data))

    def run(self, until: int) -> None:
        """Let time pass, with everything that falls due in it."""
        while True:
            due = [
                (at, end.me)
                for end in self.ends.values()
                if (at := end.link.next_due(Instant(self.now))) is not None
            ]
            timer = min(due, default=None)
            if self._under_way and (timer is None or self._under_way[0][0] <= timer[0]):
                at, _, to, data = self._under_way[0]
                if at > until:
                    break
                heapq.heappop(self._under_way)
                self.now = max(self.now, at)
                self.ends[to].receive(data)
            elif timer is not None and timer[0] <= until:
                self.now = max(self.now, timer[0])
                self.ends[timer[1]].link.on_timer(Instant(self.now))
            else:
                break
        self.now = until


class End:
    """One end with one lane."""

    def __init__(
        self, network: Network, me: int, peer: int, lifetime_ns: int | None, session: int = 1
    ) -> None:
        self.me = ProcessId(me)
        self.network = network
        self.session = session
        self.lifetime_ns = lifetime_ns
        self.got: list[bytes] = []
        self.arrivals: list[int] = []
        self.lost: list[Range] = []
        self.malformed = 0
        self.restarts = 0
        self.link = Link(self.me, ProcessId(peer), session, self, monotonic_ns=lambda: network.now)
        self.lane: Lane = self.link.lane(7, lifetime_ns, self)
        network.ends[me] = self

    # What the link calls.

    def datagrams(self, to: ProcessId, data: list[bytes]) -> None:
        for each in data:
            self.network.send(self.me, to, each)

    def over_stream(self, to: ProcessId, data: bytes) -> bool:
        return False

    def take(self, source: ProcessId, pdus: list[memoryview], arrived: Instant) -> None:
        self.got.extend(map(bytes, pdus))
        self.arrivals.extend([arrived] * len(pdus))

    def lose(self, source: ProcessId, lost: list[Range]) -> None:
        self.lost.extend(lost)

    def settle(self) -> None:
        pass

    def has_room(self) -> None:
        pass

    def pack(self, lane: Lane) -> None:
        pass

    def restarted(self, source: ProcessId) -> None:
        self.restarts += 1

    # What an endpoint does.

    @property
    def lost_numbers(self) -> set[int]:
        return {number for each in self.lost for number in range(each.first, each.last + 1)}

    def send(self, *pdus: bytes, lifetime_ns: int | None = None) -> None:
        """Send these PDUs in one datagram, perhaps with a lifetime of their own."""
        out = self.lane.outbound
        now = Instant(self.network.now)
        told = 0 if self.lifetime_ns is None else now + self.lifetime_ns
        deadline = told if lifetime_ns is None else now + lifetime_ns
        first = out.next_number
        out.next_number += len(pdus)
        data = frames.data_datagram(self.lane.way, first, told, list(pdus))
        out.enqueue(Packet(first, out.next_number - 1, deadline, data, False))
        self.link.pump(self.lane, now)

    def receive(self, data: bytes) -> None:
        try:
            self._dispatch(memoryview(data))
        except (RemoteProtocolError, struct.error):
            self.malformed += 1

    def _dispatch(self, data: memoryview) -> None:
        kind, flags, _, _, count, session, target, first, last = HEAD.unpack_from(data)
        now = Instant(self.network.now)
        self.link.trip.unanswered = 0
        if kind == Kind.PING:
            self.link.answer(first)
        elif kind == Kind.PONG:
            self.link.pong(first)
        elif (session, target) != (self.link.peer_session, self.session):
            self.link.stale += 1
        elif kind == Kind.REPORT:
            self.link.report(self.lane, frames.parse_report(data, count, first, last), now)
        elif kind == Kind.GONE:
            self.link.gone(self.lane, frames.parse_gone(data, count))
        elif kind == Kind.DATA:
            self.link.data(self.lane, flags, count, first, last, data, HEAD_BYTES, now)
            self.link.after_batch(self.lane, now)


def pair(fate: Fate, lifetime_ns: int | None = None) -> tuple[Network, End, End]:
    """Return a network with a sender (0) and a receiver (1) that have met."""
    network = Network(fate)
    ends = End(network, 0, 1, lifetime_ns), End(network, 1, 0, lifetime_ns)
    meet(*ends)
    return network, *ends


def meet(one: End, two: End) -> None:
    """Say hello, as over a stream."""
    one.link.greet(two.session)
    two.link.greet(one.session)
