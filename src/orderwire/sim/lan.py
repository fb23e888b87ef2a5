"""One switch, n hosts, full-duplex links: queues that fill, drop and make everybody wait.

Source: [S002:sec.4] as the specification of the discovery system completes it.  Every host has an
output FIFO, every port of the switch another one; both drop what does not fit (tail drop).  A
queue is kept as the instant up to which it is busy, so a frame that arrives costs two events, one
that its own host drops none.  The switch stores and forwards.  A receiver may need time for each
datagram and hold only so many of them.

How protocols use it:

    lan = Lan(world, hosts, LanSettings(…), deliver, broken)
    lan.send_datagram(source, to, payload_bytes, item)   # may be lost
    lan.multicast(source, payload_bytes, item)           # a datagram to every other host
    lan.send_stream(source, to, payload_bytes, item)     # reliable and in order, or `broken`

Hosts are 0 … hosts − 1 (a bootstrap server is one of them); an item is anything, and is handed
over as it is: `deliver(to, source, item)`.  A pair of hosts shares one duplex connection, opened
by a handshake when the first of them sends.  `broken(source, to)` tells `source` that its
connection to `to` has ended, by a reset or because nobody answered for `give_up_ns`; what it had
sent and what was not handed over by then is lost, and the next `send_stream` opens a new one.
`down(host)` ends a host's process, `up(host)` starts the next one; `close(source, to)` ends a
connection.  `counts[host]` and `streams.opened` say what it cost.
"""

from collections.abc import Callable, Sequence
from heapq import heappush
from typing import Any, Literal, TypeAlias

import msgspec

from orderwire.kernel import stream
from orderwire.sim.lan_fluid import FluidStreams
from orderwire.sim.lan_link import Frame, HostCounts, Link
from orderwire.sim.lan_segments import SegmentStreams
from orderwire.sim.lan_streams import Streams
from orderwire.sim.world import ARRIVAL, World

Deliver: TypeAlias = Callable[[int, int, Any], None]
"""Called with the receiving host, the sending one and the item."""

UDP_OVERHEAD_BYTES = 66
"""Preamble, Ethernet, gap between frames, IP and UDP."""


class LanSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Links, queues and receivers.  [S002:tab.2]"""

    bits_per_s: int = 100_000_000
    """Rate of every link, in each direction."""
    host_queue_bytes: int | None = 150_000
    """Output FIFO of a host, in bytes on the wire; None is no limit.  The paper's table says
    150 Mbytes; its results are those of 150,000 bytes."""
    switch_queue_bytes: int | None = 150_000
    """FIFO of each port of the switch, in bytes on the wire; None is no limit."""
    switch_ns: int = 5_000
    propagation_ns: int = 1_000
    """Of each of the two links on the way."""
    loss_ratio: float = 0.0
    """Probability that a frame is lost on its way, independently of all others."""
    service_ns: int = 0
    """Time that a receiver needs for one datagram; streams are not charged."""
    receive_buffer: int | None = None
    """Most datagrams that wait at a receiver that needs time; None is no limit."""
    streams: Literal["fluid", "segments"] = "fluid"
    """How connections are modelled: a message as one piece, or TCP segment by segment.  Use
    segments at 10 Mbit/s and less, for small queues and for loss."""
    give_up_ns: int = 10_000_000_000
    """How long a connection goes without an answer before it is broken."""


class Lan(Link):
    """The switch and its hosts: datagrams, multicasts and streams."""

    def __init__(
        self,
        world: World,
        hosts: int,
        settings: LanSettings,
        deliver: Deliver,
        broken: Callable[[int, int], None] | None = None,
        *,
        seed: int = 0,
    ) -> None:
        """`deliver` gets every item; `broken` is asked for as soon as streams are used."""
        super().__init__(
            world,
            hosts,
            bits_per_s=settings.bits_per_s,
            host_queue_bytes=settings.host_queue_bytes,
            switch_queue_bytes=settings.switch_queue_bytes,
            hop_ns=settings.propagation_ns + settings.switch_ns,
            propagation_ns=settings.propagation_ns,
            loss_ratio=settings.loss_ratio,
            chance=stream(seed, "lan/loss"),
        )
        self.settings = settings
        self._deliver = deliver
        self._served_ns = [0] * hosts
        model = FluidStreams if settings.streams == "fluid" else SegmentStreams
        self.streams: Streams = model(self, deliver, broken, give_up_ns=settings.give_up_ns)
        """The connections; `streams.opened` counts them."""
        self._buffer_ns = (
            None
            if settings.receive_buffer is None
            else settings.receive_buffer * settings.service_ns
        )
        self._arrive = self._queue_at_receiver if settings.service_ns else self._hand_over

    def send_datagram(self, source: int, to: int, payload_bytes: int, item: Any) -> bool:
        """Send one datagram; return whether the host's own queue had room for it."""
        return self.send_frame(
            source, to, payload_bytes + UDP_OVERHEAD_BYTES, payload_bytes, self._arrive, item
        )

    def send_datagrams(
        self, source: int, to: int, payload_bytes: int, items: Sequence[Any], offered: int
    ) -> None:
        """Send datagrams of one size in one instant: the first of `offered`, as far as they fit.

        `items` needs to hold `room` of them only; the rest is counted as dropped by the host.
        """
        size = self.wire_bytes(payload_bytes + UDP_OVERHEAD_BYTES)
        wire_ns = self.wire_ns(size)
        now_ns = self.world.now_ns
        free_ns = max(self.uplink_free_ns[source], now_ns)
        counts = self.counts[source]
        counts.frames += offered
        counts.wire_bytes += offered * size
        counts.payload_bytes += offered * payload_bytes
        counts.dropped_at_host += offered - len(items)
        arrive, hop_ns = self._arrive, self.hop_ns
        queue = self._queues[source]
        idle = not queue
        for item in items:
            free_ns += wire_ns
            queue.append((free_ns + hop_ns, to, (source, size, wire_ns, arrive, item)))
        if idle and queue:
            self.world.at(queue[0][0], ARRIVAL, self._at_switch, source)
        assert self.host_queue_ns is None or free_ns - now_ns <= self.host_queue_ns or not items, (
            f"{len(items)} datagrams do not fit into the queue of host {source}"
        )
        self.uplink_free_ns[source] = free_ns

    def room(self, source: int, payload_bytes: int) -> int | None:
        """Return how many datagrams of this size fit into the host's queue now; None is any."""
        if self.host_queue_ns is None:
            return None
        backlog_ns = max(0, self.uplink_free_ns[source] - self.world.now_ns)
        size = self.wire_bytes(payload_bytes + UDP_OVERHEAD_BYTES)
        return max(0, self.host_queue_ns - backlog_ns) // self.wire_ns(size)

    def multicast(self, source: int, payload_bytes: int, item: Any) -> bool:
        """Send one datagram to every other host: one frame up, one down each port."""
        return self.send_frame(
            source, None, payload_bytes + UDP_OVERHEAD_BYTES, payload_bytes, self._arrive, item
        )

    def send_stream(self, source: int, to: int, payload_bytes: int, item: Any) -> None:
        """Send one message on the connection of this pair, which is opened if there is none."""
        assert not self.states[source], f"host {source} is down"
        assert payload_bytes > 0, f"a message of {payload_bytes} bytes"
        assert source != to, f"host {source} sends to itself"
        self.counts[source].payload_bytes += payload_bytes
        self.streams.send(source, to, payload_bytes, item)

    def close(self, source: int, to: int) -> None:
        """End the connection of this pair, if there is one; the other end is told `broken`."""
        self.streams.close(source, to)

    def down(self, host: int, *, silent: bool = False) -> None:
        """End this host's process: its peers see resets, or nothing at all when `silent`."""
        self.set_down(host, silent=silent)
        self.streams.down(host, silent=silent)

    def up(self, host: int) -> None:
        """Start the next process of this host; it has no connection yet."""
        self.set_up(host)

    def _queue_at_receiver(self, to: int, frame: Frame) -> None:
        """Let the datagram wait for its turn at the receiver, or drop it."""
        now_ns = self.world.now_ns
        served_ns = max(self._served_ns[to], now_ns)
        if self._buffer_ns is not None and served_ns - now_ns > self._buffer_ns:
            self.counts[to].dropped_at_receiver += 1
            return
        self._served_ns[to] = served_ns = served_ns + self.settings.service_ns
        world = self.world
        heappush(world.heap, (served_ns, ARRIVAL, world.sequence(), self._hand_over, to, frame))

    def _hand_over(self, to: int, frame: Frame) -> None:
        if self.states[to]:
            self.counts[to].dropped_while_down += 1
            return
        counts = self.counts[to]
        counts.received += 1
        counts.received_bytes += frame[1]
        self._deliver(to, frame[0], frame[4])


__all__ = ["Deliver", "Frame", "HostCounts", "Lan", "LanSettings"]
