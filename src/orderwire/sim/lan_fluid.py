"""Streams as a fluid: a message occupies the uplink and the port for the time of its bytes.

No segments, no acknowledgements, no loss: about a tenth of the events of `lan_segments`, and the
same times where queues are deep and links at least 100 Mbit/s.
"""

from heapq import heappush
from typing import Any

from orderwire.sim.lan_link import FRAME_BYTES_MIN, Frame
from orderwire.sim.lan_streams import MSS_BYTES, TCP_OVERHEAD_BYTES, Connection, Streams
from orderwire.sim.world import ARRIVAL, TIMER

PROBE_NS = 200_000_000
"""When a host that has not answered is tried again; doubled each time."""


class FluidStreams(Streams):
    """Messages in one piece; no queue drops them."""

    def _transmit(self, connection: Connection, side: int, payload_bytes: int, item: Any) -> None:
        link, world = self._link, self._world
        source, to = connection.ends[side], connection.ends[1 - side]
        segments = -(-payload_bytes // MSS_BYTES)
        size = payload_bytes + segments * TCP_OVERHEAD_BYTES
        assert size >= FRAME_BYTES_MIN
        wire_ns = size * 8_000_000_000 // link.bits_per_s
        counts = link.counts[source]
        counts.frames += segments
        counts.wire_bytes += size
        free_ns, now_ns = link.uplink_free_ns[source], world.now_ns
        start_ns = free_ns if free_ns > now_ns else now_ns
        link.uplink_free_ns[source] = start_ns + wire_ns
        first_ns = wire_ns if segments == 1 else link.wire_ns(MSS_BYTES + TCP_OVERHEAD_BYTES)
        message = (source, size, wire_ns, self._arrives, (connection, segments, item))
        at_ns = start_ns + first_ns + link.hop_ns
        heappush(world.heap, (at_ns, ARRIVAL, world.sequence(), self._at_port, to, message))

    def _at_port(self, to: int, message: Frame) -> None:
        """Its first segment is at the switch: the port is busy for all of them from here on."""
        link, world = self._link, self._world
        free_ns, now_ns = link.port_free_ns[to], world.now_ns
        end_ns = (free_ns if free_ns > now_ns else now_ns) + message[2]
        link.port_free_ns[to] = end_ns
        at_ns = end_ns + link.propagation_ns
        heappush(world.heap, (at_ns, ARRIVAL, world.sequence(), message[3], to, message))

    def _arrives(self, to: int, message: Frame) -> None:
        source, size, _, _, (connection, segments, item) = message
        counts = self._link.counts[to]
        if self._holds(to, source, connection):
            side = connection.side(to)
            if not connection.open[side]:
                self._begin(connection, side)
            counts.received += segments
            counts.received_bytes += size
            self._deliver(to, source, item)
        elif not self._link.is_silent(to):
            self._reset(to, source, connection)
        else:
            counts.dropped_while_down += segments
            self._begin_probing(connection, connection.side(source))

    def _begin_probing(self, connection: Connection, side: int) -> None:
        if not connection.probing[side]:
            connection.probing[side] = True
            since_ns = self._world.now_ns
            self._world.at(since_ns + PROBE_NS, TIMER, self._probe, connection, (side, 0, since_ns))

    def _probe(self, connection: Connection, what: tuple[int, int, int]) -> None:
        """Send what was not answered again, until somebody answers or it has been too long."""
        side, attempt, since_ns = what
        source, to = connection.ends[side], connection.ends[1 - side]
        if not self._holds(source, to, connection):
            return
        left_ns = since_ns + self._give_up_ns - self._world.now_ns
        if left_ns <= 0:
            self._break(source, to, connection)
            return
        self._control(source, to, self._probe_arrives, connection)
        at_ns = self._world.now_ns + min(PROBE_NS << (attempt + 1), left_ns)
        self._world.at(at_ns, TIMER, self._probe, connection, (side, attempt + 1, since_ns))

    def _probe_arrives(self, to: int, frame: Frame) -> None:
        source, connection = frame[0], frame[4]
        if self._received(to, frame) and not self._holds(to, source, connection):
            self._reset(to, source, connection)
