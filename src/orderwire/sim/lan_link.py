"""Frames on the links of one switch: two queues, two rates, and who is up.

A frame leaves its host when all before it have left, crosses the link and the switch, waits for
the port of its receiver and crosses that link.  What would not fit into a queue is dropped there.
"""

from collections import deque
from collections.abc import Callable
from heapq import heappush
from random import Random
from typing import Any, TypeAlias

from orderwire.sim.world import ARRIVAL, Entry, World

Frame: TypeAlias = tuple[int, int, int, Callable[[int, Any], None], Any]
"""Source, bytes on the wire, time on the wire in ns, what to do with the receiver, and an item."""

FRAME_BYTES_MIN = 84
"""Least that a frame takes on the wire, with preamble and gap."""

_UP = 0
_DOWN = 1
_SILENT = 2


class HostCounts:
    """What one host has sent, received and lost.  A frame lost on its way counts at its receiver.

    A multicast is one frame sent and one for every receiver.
    """

    __slots__ = (
        "dropped_at_host",
        "dropped_at_receiver",
        "dropped_at_switch",
        "dropped_while_down",
        "frames",
        "lost",
        "payload_bytes",
        "received",
        "received_bytes",
        "wire_bytes",
    )

    def __init__(self) -> None:
        self.frames = 0
        """Frames that the host wanted to send, those that its queue dropped included."""
        self.wire_bytes = 0
        """Their bytes on the wire."""
        self.payload_bytes = 0
        """Bytes of the datagrams and stream messages in them, once each."""
        self.received = 0
        """Frames handed over to this host; acknowledgements of a stream are among them."""
        self.received_bytes = 0
        self.dropped_at_host = 0
        self.dropped_at_switch = 0
        self.dropped_at_receiver = 0
        self.dropped_while_down = 0
        self.lost = 0
        """Frames to this host lost by chance."""


class Link:
    """The links, their queues and the states of the hosts."""

    def __init__(
        self,
        world: World,
        hosts: int,
        *,
        bits_per_s: int,
        host_queue_bytes: int | None,
        switch_queue_bytes: int | None,
        hop_ns: int,
        propagation_ns: int,
        loss_ratio: float,
        chance: Random,
    ) -> None:
        """`hop_ns` is from the end of a frame at its host to its queueing at the port."""
        self.world = world
        self.hosts = hosts
        self.bits_per_s = bits_per_s
        self.hop_ns = hop_ns
        self.propagation_ns = propagation_ns
        self.loss_ratio = loss_ratio
        self.uplink_free_ns = [0] * hosts
        """When each host's queue will have been sent."""
        self.port_free_ns = [0] * hosts
        """When the queue of each host's port will have been sent."""
        self.states = bytearray(hosts)
        """0 for a host that is up."""
        self.counts = [HostCounts() for _ in range(hosts)]
        self.host_queue_ns = self._queue_ns(host_queue_bytes)
        self._switch_queue_ns = self._queue_ns(switch_queue_bytes)
        self._queues: list[deque[tuple[int, int | None, Frame]]] = [deque() for _ in range(hosts)]
        """Frames of each host on their way to the switch: when, to whom and what.  The heap holds
        the first of them only, so it stays small however long the queues are."""
        self._draw = chance.random
        self._wire_ns: dict[int, int] = {}

    def _queue_ns(self, queue_bytes: int | None) -> int | None:
        return None if queue_bytes is None else queue_bytes * 8_000_000_000 // self.bits_per_s

    def wire_bytes(self, size_bytes: int) -> int:
        """Bytes on the wire of a frame with this many, overhead included."""
        return max(size_bytes, FRAME_BYTES_MIN)

    def wire_ns(self, size_bytes: int) -> int:
        """Nanoseconds that so many bytes take on a link, rounded down."""
        known = self._wire_ns.get(size_bytes)
        if known is None:
            known = self._wire_ns[size_bytes] = size_bytes * 8_000_000_000 // self.bits_per_s
        return known

    def is_down(self, host: int) -> bool:
        """Whether this host's process has ended and the next one not started."""
        return self.states[host] != _UP

    def is_silent(self, host: int) -> bool:
        """Whether this host is down and does not even answer with resets."""
        return self.states[host] == _SILENT

    def set_down(self, host: int, *, silent: bool) -> None:
        """Let this host receive nothing from now on."""
        assert not self.is_down(host), f"host {host} is down already"
        self.states[host] = _SILENT if silent else _DOWN

    def set_up(self, host: int) -> None:
        """Let this host receive again."""
        assert self.is_down(host), f"host {host} is up already"
        self.states[host] = _UP

    def send_frame(
        self,
        source: int,
        to: int | None,
        size_bytes: int,
        payload_bytes: int,
        act: Callable[[int, Any], None],
        item: Any,
    ) -> bool:
        """Queue one frame, to all others when `to` is None; `act(to, frame)` is its arrival.

        Returns False when the host's queue drops it.
        """
        size = size_bytes if size_bytes > FRAME_BYTES_MIN else FRAME_BYTES_MIN
        wire_ns = self.wire_ns(size)
        world = self.world
        now_ns = world.now_ns
        counts = self.counts[source]
        counts.frames += 1
        counts.wire_bytes += size
        counts.payload_bytes += payload_bytes
        free_ns = self.uplink_free_ns[source]
        end_ns = (free_ns if free_ns > now_ns else now_ns) + wire_ns
        if self.host_queue_ns is not None and end_ns - now_ns > self.host_queue_ns:
            counts.dropped_at_host += 1
            return False
        self.uplink_free_ns[source] = end_ns
        at_ns = end_ns + self.hop_ns
        queue = self._queues[source]
        queue.append((at_ns, to, (source, size, wire_ns, act, item)))
        if len(queue) == 1:
            first: Entry = (at_ns, ARRIVAL, world.sequence(), self._at_switch, source, None)
            heappush(world.heap, first)
        return True

    def _at_switch(self, source: int, _none: None) -> None:
        """Queue this host's next frame at the port of its receiver, or at all others'."""
        queue = self._queues[source]
        _, to, frame = queue.popleft()
        if queue:
            world, at_ns = self.world, queue[0][0]
            following: Entry = (at_ns, ARRIVAL, world.sequence(), self._at_switch, source, None)
            heappush(world.heap, following)
        if to is not None:
            self._forward(to, frame)
            return
        for other in range(self.hosts):
            if other != source:
                self._forward(other, frame)

    def _forward(self, to: int, frame: Frame) -> None:
        world = self.world
        now_ns = world.now_ns
        if self.loss_ratio and self._draw() < self.loss_ratio:
            self.counts[to].lost += 1
            return
        free_ns = self.port_free_ns[to]
        end_ns = (free_ns if free_ns > now_ns else now_ns) + frame[2]
        if self._switch_queue_ns is not None and end_ns - now_ns > self._switch_queue_ns:
            self.counts[to].dropped_at_switch += 1
            return
        self.port_free_ns[to] = end_ns
        heappush(
            world.heap,
            (end_ns + self.propagation_ns, ARRIVAL, world.sequence(), frame[3], to, frame),
        )
