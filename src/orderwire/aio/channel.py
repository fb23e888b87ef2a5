"""A numbered lane between all members: numbers, packs and sends PDUs; hands over what comes."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from orderwire.aio import frames
from orderwire.aio.frames import COUNT_MAX, HEAD_BYTES, LENGTH_BYTES, Range, Way
from orderwire.aio.lane import Counters, Lane
from orderwire.aio.link import Link
from orderwire.aio.outbound import WAITING_BYTES_MAX, Packet
from orderwire.kernel import Instant, LocalProtocolError, ProcessId, Via

if TYPE_CHECKING:
    from orderwire.aio.endpoint import Endpoint

PDU_BYTES_MAX = 1 << 20
"""Largest encoded PDU; what does not fit a datagram goes over the stream."""

FULL_BYTES = WAITING_BYTES_MAX // 2
"""A channel with more waiting for one peer is full, until less than a quarter of it waits."""

BURST_BYTES = 64 << 10
"""Packed datagrams are sent before the loop turns once there are so many bytes."""

PduCallback = Callable[[ProcessId, memoryview, Instant], None]
LostCallback = Callable[[ProcessId, int, int], None]
RestartedCallback = Callable[[ProcessId], None]


class Channel:
    """One channel of an endpoint.  Make one with `Endpoint.channel`.

    With a lifetime, a copy is repaired while it can be in time and then given up; without one it is
    kept until the peer has it or is gone.  Copies are numbered per peer from 0, in the order of
    `send`, and from 0 again when the peer is a new incarnation: what was meant for the one before
    is not for it.
    """

    def __init__(self, endpoint: "Endpoint", number: int, lifetime_ns: int | None) -> None:
        self.number = number
        self.lifetime_ns = lifetime_ns
        self.full = False
        """Whether so much waits for some peer that no more should be sent: await `drain()`."""
        self._endpoint = endpoint
        self._lanes: dict[ProcessId, Lane] = {}
        self._group: list[bytes] = []
        self._group_bytes = 0
        self._group_fit = 0
        self._waiters: list[tuple[bool, asyncio.Future[None]]] = []
        self._on_pdu: PduCallback | None = None
        self._on_lost: LostCallback | None = None
        self._on_settled: Callable[[], None] | None = None
        self._on_restarted: RestartedCallback | None = None
        self._header_only: Callable[[memoryview], bytes] | None = None

    # For the user of the channel.

    def attach(
        self,
        on_pdu: PduCallback,
        on_lost: LostCallback,
        on_settled: Callable[[], None],
        on_restarted: RestartedCallback | None = None,
    ) -> None:
        """Set the receiver.  Until then what comes is left unanswered and comes again.

        `on_pdu(source, data, arrived)` gets every copy once (`data` is valid until it returns),
        `on_lost(source, first, last)` what the link gave up on, `on_settled()` follows each batch.
        `on_restarted(peer)` says that copies to and from this peer count from 0 again.
        """
        self._on_pdu, self._on_lost, self._on_settled = on_pdu, on_lost, on_settled
        self._on_restarted = on_restarted

    def notice_with(self, header_only: Callable[[memoryview], bytes]) -> None:
        """Let peers learn of copies that will not come in time from what this makes of a PDU.

        It comes to `on_pdu` in place of the copy, which counts as lost.  Decision 0013.
        """
        self._header_only = header_only
        for lane in self._lanes.values():
            lane.header_only = header_only

    def detach(self) -> None:
        """Receive nothing any more."""
        self._on_pdu = self._on_lost = self._on_settled = self._on_restarted = None

    @property
    def fit(self) -> int:
        """Bytes of one PDU that go into a datagram to any peer; 0 without peers."""
        return max(0, self._group_fit - LENGTH_BYTES)

    @property
    def attached(self) -> bool:
        """Whether there is a receiver."""
        return self._on_pdu is not None

    @property
    def peers(self) -> list[ProcessId]:
        """All members that were ever there, ascending."""
        return sorted(self._lanes)

    def counters(self, peer: ProcessId) -> Counters:
        """Return what was counted about this peer."""
        lane = self._lane(peer)
        out = lane.outbound
        lane.counters.sent = lane.sent_before + out.next_number + len(out.open) + len(self._group)
        lane.count()
        return lane.counters

    def send(
        self,
        to: ProcessId,
        data: bytes,
        deadline: Instant | None = None,
        via: Via = Via.DATAGRAM,
    ) -> None:
        """Send one PDU; it goes out when the loop turns, packed with others.

        Its deadline is the channel's lifetime from now, or the given one if that is earlier; then
        it is packed with others that have one of their own.
        Raises LocalProtocolError for an unknown peer, a PDU above PDU_BYTES_MAX, when the channel
        has no lifetime and WAITING_BYTES_MAX bytes wait for this peer, or has none and a deadline
        is given.
        """
        lane = self._lanes.get(to) or self._lane(to)
        if self._group:
            self._seal_group()
        out = lane.outbound
        size = len(data) + LENGTH_BYTES
        if via is not Via.DATAGRAM or size > out.fit:
            self._send_alone(lane, data, deadline, via)
            return
        if deadline is not out.deadline:
            self._open_until(lane, deadline)
        opened = out.open
        if not opened:
            self._endpoint.schedule(lane)
        elif out.open_bytes + size > out.fit or len(opened) == COUNT_MAX:
            self.seal(lane)
            self._check_waiting(lane)
            opened, out.deadline = out.open, deadline
            self._endpoint.schedule(lane)
        opened.append(data)
        out.open_bytes += size

    def broadcast(
        self, data: bytes, deadline: Instant | None = None, via: Via = Via.DATAGRAM
    ) -> None:
        """Send one PDU to every other member: as one multicast where the endpoint has a group.

        Raises LocalProtocolError as `send` does.
        """
        size = len(data) + LENGTH_BYTES
        if via is not Via.DATAGRAM or deadline is not None or size > self._group_fit:
            for peer in self._lanes:
                self.send(peer, data, deadline, via)
            return
        if self._group:
            if self._group_bytes + size > self._group_fit or len(self._group) == COUNT_MAX:
                self._seal_group()
                for lane in self._lanes.values():
                    self._check_waiting(lane)
        else:
            for lane in self._lanes.values():
                self.seal(lane)
            self._endpoint.schedule_group(self)
        self._group.append(data)
        self._group_bytes += size

    async def drain(self, *, empty: bool = False) -> None:
        """Wait until the channel is not full; with `empty` until the fate of every copy is known.

        It is known when the peer has it, or knows that it is lost.  A peer that does not answer is
        waited for until the copies' lifetime is over and HEARTBEATS_AWAITED heartbeats later;
        without a lifetime until it has been silent for too long, or gone for GONE_AFTER_S.
        """
        if not self.full:  # what is not packed yet counts as well: it may fill the channel up
            self.full = any(
                lane.outbound.queue_bytes + lane.outbound.open_bytes + self._group_bytes
                > FULL_BYTES
                for lane in self._lanes.values()
            )
        if not self._must_wait(empty):
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append((empty, waiter))
        await waiter

    def close(self) -> None:
        """Detach and end all waiting."""
        self.detach()
        for _, waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    # For the endpoint and its links.

    def join(self, link: Link, fit: int) -> None:
        """Add a peer; `fit` bytes of PDUs and lengths go into a datagram to it."""
        lane = link.lane(self.number, self.lifetime_ns, self)
        lane.outbound.fit = fit
        lane.header_only = self._header_only
        self._lanes[link.peer] = lane
        self._group_fit = min(each.outbound.fit for each in self._lanes.values())
        if self._endpoint.multicasts:
            self._group_fit -= frames.multicast_entry_bytes(len(self._lanes))

    def seal(self, lane: Lane) -> None:
        """Pack the open PDUs into a datagram that waits for its turn."""
        out = lane.outbound
        pdus = out.open
        if not pdus:
            return
        endpoint = self._endpoint
        first = out.next_number
        told = self._deadline()
        deadline = told if out.deadline is None else min(told, out.deadline)
        # What is told bounds the copies before these as well, which may live longer.
        data = frames.data_datagram(lane.way, first, told, pdus)
        out.next_number = first + len(pdus)
        out.open = []
        out.open_bytes = 0
        out.deadline = None
        self._enqueue(lane, Packet(first, out.next_number - 1, deadline, data, False))
        if out.queue_bytes >= BURST_BYTES:
            lane.link.pump(lane, endpoint.clock.now())

    def flush_group(self) -> None:
        """Send the open multicast."""
        if self._group:
            self._seal_group()

    def pack(self, lane: Lane) -> None:
        """Let everything that was written to this peer so far be in the lane's queue."""
        self.flush_group()
        self.seal(lane)

    def restarted(self, source: ProcessId) -> None:
        """Tell the receiver that this peer is a new incarnation."""
        if self._on_restarted is not None:
            self._on_restarted(source)

    def take(self, source: ProcessId, pdus: list[memoryview], arrived: Instant) -> None:
        """Hand over PDUs."""
        on_pdu = self._on_pdu
        if on_pdu is None:
            return
        for pdu in pdus:
            try:
                on_pdu(source, pdu, arrived)
            except Exception as error:
                self._endpoint.callback_failed(error)

    def lose(self, source: ProcessId, lost: list[Range]) -> None:
        """Tell the receiver what will never come."""
        if self._on_lost is not None:
            for first, last, _ in lost:
                self._on_lost(source, first, last)

    def settle(self) -> None:
        """Tell the receiver that a batch has ended."""
        if self._on_settled is not None:
            self._on_settled()

    def has_room(self) -> None:
        """Look whether somebody waits no longer."""
        if self.full:
            self.full = any(
                lane.outbound.queue_bytes > FULL_BYTES // 4 for lane in self._lanes.values()
            )
        if self._waiters:
            still = []
            for empty, waiter in self._waiters:
                if self._must_wait(empty):
                    still.append((empty, waiter))
                elif not waiter.done():
                    waiter.set_result(None)
            self._waiters = still

    # Inside.

    def _lane(self, peer: ProcessId) -> Lane:
        lane = self._lanes.get(peer)
        if lane is None:
            raise LocalProtocolError(
                f"process {peer} is not a peer of {self._endpoint.me}, "
                f"expected one of {sorted(self._lanes)}"
            )
        return lane

    def _deadline(self) -> int:
        return 0 if self.lifetime_ns is None else self._endpoint.clock.now() + self.lifetime_ns

    def _own(self, deadline: Instant) -> Instant:
        if self.lifetime_ns is None:
            raise LocalProtocolError(
                f"deadline {deadline} on channel {self.number}, which has no lifetime: what is kept"
                " until the peer has it has no deadline"
            )
        return deadline

    def _open_until(self, lane: Lane, deadline: Instant | None) -> None:
        """Let the open datagram be one for PDUs with, or without, a deadline of their own."""
        out = lane.outbound
        if deadline is None or out.deadline is None:
            self.seal(lane)
            out.deadline = None if deadline is None else self._own(deadline)
        else:
            out.deadline = max(out.deadline, deadline)

    def _must_wait(self, empty: bool) -> bool:
        if not empty:
            return self.full
        return bool(self._group) or any(
            out.open or out.queue or out.unsettled
            for out in (lane.outbound for lane in self._lanes.values())
        )

    def _enqueue(self, lane: Lane, packet: Packet) -> None:
        out = lane.outbound
        out.enqueue(packet)
        if out.queue_bytes > FULL_BYTES:
            self.full = True
            if self.lifetime_ns is not None:
                lane.link.dropped(lane, out.drop_oldest(WAITING_BYTES_MAX))

    def _check_waiting(self, lane: Lane) -> None:
        if self.lifetime_ns is None and lane.outbound.queue_bytes > WAITING_BYTES_MAX:
            raise LocalProtocolError(
                f"{lane.outbound.queue_bytes} bytes wait for process {lane.link.peer} on channel "
                f"{self.number}, more than WAITING_BYTES_MAX = {WAITING_BYTES_MAX}: await drain()"
            )

    def _send_alone(self, lane: Lane, data: bytes, deadline: Instant | None, via: Via) -> None:
        if len(data) > PDU_BYTES_MAX:
            raise LocalProtocolError(
                f"PDU of {len(data)} bytes is larger than PDU_BYTES_MAX = {PDU_BYTES_MAX}"
            )
        self._check_waiting(lane)
        self.seal(lane)
        out = lane.outbound
        out.open = [data]
        endpoint = self._endpoint
        first = out.next_number
        told = self._deadline()
        until = told if deadline is None else min(told, self._own(deadline))
        packed = frames.data_datagram(lane.way, first, told, [data])
        out.open = []
        out.next_number = first + 1
        streamed = via is Via.STREAM or len(packed) > HEAD_BYTES + out.fit
        self._enqueue(lane, Packet(first, first, until, packed, streamed))
        endpoint.schedule(lane)

    def _seal_group(self) -> None:
        endpoint = self._endpoint
        pdus, deadline = self._group, self._deadline()
        self._group, self._group_bytes = [], 0
        now = endpoint.clock.now()
        lanes = list(self._lanes.values())
        together = endpoint.multicasts and all(
            lane.link.has_room() and not lane.outbound.queue for lane in lanes
        )
        if together:
            way = Way(endpoint.me, endpoint.session, 0, self.number)
            firsts = [
                (lane.link.peer, lane.way.target, lane.outbound.next_number) for lane in lanes
            ]
            data = frames.multicast_datagram(way, firsts, deadline, pdus)
            endpoint.multicast(data)
        else:
            body = frames.data_body(pdus)
        for lane in lanes:
            out = lane.outbound
            first = out.next_number
            out.next_number = first + len(pdus)
            if together:
                packet = Packet(first, out.next_number - 1, deadline, data, False)
                lane.link.sent_to_all(lane, packet, now)
                endpoint.watch(lane.link, now)
                continue
            head = frames.data_head(lane.way, first, deadline, len(pdus))
            self._enqueue(lane, Packet(first, out.next_number - 1, deadline, head + body, False))
            lane.link.pump(lane, now)
            endpoint.watch(lane.link, now)
