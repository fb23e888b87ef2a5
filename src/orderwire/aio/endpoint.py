"""One member's sockets: a UDP socket and a TCP listener at the same port, and its channels."""

import asyncio
import socket
import struct
import time
from collections.abc import Callable, Mapping
from typing import Self

from orderwire.aio import frames
from orderwire.aio.accepting import accept_no_more
from orderwire.aio.binding import EndpointSettings, bind
from orderwire.aio.channel import PDU_BYTES_MAX, Channel
from orderwire.aio.clock import GroupClock
from orderwire.aio.connections import Connections
from orderwire.aio.datagram import (
    Address,
    DatagramSocket,
    datagram_bytes,
    open_multicast_socket,
    send_multicasts_on,
)
from orderwire.aio.frames import HEAD, HEAD_BYTES, Kind
from orderwire.aio.impairment import DrawnFates, Fates, Impairer, Impairment
from orderwire.aio.lane import Counters, Lane
from orderwire.aio.link import WINDOW_BYTES_MAX, Link
from orderwire.aio.presence import Presence
from orderwire.aio.stream import Stream
from orderwire.kernel import NS_PER_S, Instant, LocalProtocolError, ProcessId, RemoteProtocolError

__all__ = ["PDU_BYTES_MAX", "Address", "Channel", "Counters", "Endpoint", "EndpointSettings"]

CHANNELS_MAX = 0xFFFF


class Endpoint:
    """A member's place on the network.  Make one with `await Endpoint.open(…)`."""

    def __init__(
        self,
        me: ProcessId,
        clock: GroupClock,
        settings: EndpointSettings,
        server: asyncio.Server,
        udp: socket.socket,
        offload: bool,
        impairment: Impairment | Fates | None,
    ) -> None:
        self.me = me
        self.clock = clock
        self.session = time.time_ns()
        """This incarnation: larger than that of any earlier one."""
        self.started: Instant = clock.now()
        """When this incarnation began."""
        self.settings = settings
        self.address: Address = udp.getsockname()
        self.unknown = 0
        """Datagrams of strangers, dropped."""
        self.multicasts = settings.multicast is not None
        self._loop = asyncio.get_running_loop()
        self._server = server
        self.connections = Connections(
            me,
            self.session,
            self.address[0],
            silence_s=settings.silence_s,
            known=lambda peer: self._links[peer].first_session,
            is_over=self._is_over,
            welcome=lambda peer, hello: self._presence.welcome(peer, hello),
            parted=lambda peer: self._presence.parted(peer),
            data=self._over_stream,
            settled=self._drained,
        )
        self._udp = DatagramSocket(
            udp,
            offload=offload,
            received=self._received,
            drained=self._drained,
            now=clock.now,
        )
        self._group: DatagramSocket | None = None
        self._impairer: Impairer | None = None
        if impairment is not None:
            fates = DrawnFates(impairment, me) if isinstance(impairment, Impairment) else impairment
            self._impairer = Impairer(fates, self._send_now, clock.monotonic_ns)
        self._links: dict[ProcessId, Link] = {}
        self._by_address: dict[Address, Link] = {}
        self._addresses: dict[ProcessId, Address] = {}
        self._channels: dict[int, Channel] = {}
        self._timers: dict[ProcessId, tuple[int, asyncio.TimerHandle]] = {}
        self._presence = Presence(
            self.session,
            clock,
            self._links,
            self._channels,
            read_all=self._udp.read_all,
            watch=self.watch,
        )
        self._dirty: dict[Lane, None] = {}
        self._dirty_groups: dict[Channel, None] = {}
        self._flushing = False
        self._touched: dict[Lane, None] = {}
        self._closing = False

    @classmethod
    async def open(
        cls,
        me: ProcessId,
        addresses: Mapping[ProcessId, Address],
        *,
        clock: GroupClock | None = None,
        settings: EndpointSettings | None = None,
        impairment: Impairment | Fates | None = None,
    ) -> Self:
        """Bind the member's own address (port 0: any free port) and connect to the others."""
        settings = settings or EndpointSettings()
        owner: list[Endpoint] = []
        server, udp, offload = await bind(
            addresses[me],
            offload=settings.offload,
            stream=lambda: Stream(owner[0].connections, silence_s=settings.silence_s),
        )
        endpoint = cls(me, clock or GroupClock(), settings, server, udp, offload, impairment)
        owner.append(endpoint)
        if settings.multicast is not None:
            endpoint._join_group(udp, settings.multicast)
        for peer in sorted(addresses):
            if peer != me:
                await endpoint.add_peer(peer, addresses[peer])
        return endpoint

    def _join_group(self, udp: socket.socket, group: Address) -> None:
        interface = self.settings.multicast_interface
        send_multicasts_on(udp, interface)
        self._group = DatagramSocket(
            open_multicast_socket(group, interface, offload=self._udp.offload),
            offload=self._udp.offload,
            received=self._received,
            drained=self._drained,
            now=self.clock.now,
        )

    async def add_peer(self, peer: ProcessId, address: Address) -> None:
        """Learn where this member is; the lower id of a pair connects to the higher.

        One that was removed may come back, elsewhere too: what is remembered of its earlier life
        tells the two apart.  Raises LocalProtocolError for a member that is known already, OSError
        for a host that is not.
        """
        found = await self._loop.getaddrinfo(
            *address, family=socket.AF_INET, type=socket.SOCK_DGRAM
        )
        self.add_peer_at(peer, (str(found[0][4][0]), int(found[0][4][1])))

    def add_peer_at(self, peer: ProcessId, resolved: Address) -> None:
        """Learn that this member is at a numeric IPv4 address.  Raises LocalProtocolError."""
        if peer in self._addresses or peer == self.me:
            raise LocalProtocolError(f"process {peer} is known already")
        link = self._links.get(peer) or self._new_link(peer)
        self._by_address[resolved] = link
        self._addresses[peer] = resolved
        for channel in self._channels.values():
            if channel.number not in link.lanes:
                channel.join(link, self._fit(peer))
        link.ping(self.clock.now())
        self.connections.add(peer, resolved)

    def remove_peer(self, peer: ProcessId) -> None:
        """Have nothing more to do with this member: it has left, or its place is another's.

        Raises LocalProtocolError for one that is not known.
        """
        if peer not in self._addresses:
            raise LocalProtocolError(f"process {peer} is not a peer")
        link = self._links[peer]
        self._presence.is_over(link)
        self.connections.remove(peer)
        address = self._addresses.pop(peer)
        if self._by_address.get(address) is link:
            del self._by_address[address]

    def _new_link(self, peer: ProcessId) -> Link:
        link = self._links[peer] = Link(
            self.me,
            peer,
            self.session,
            self,
            monotonic_ns=self.clock.monotonic_ns,
            receive_window=min(
                WINDOW_BYTES_MAX, self._udp.receive_bytes // max(2, len(self._links) + 1)
            ),
            silence_ns=self.settings.silence_ns,
        )
        return link

    @property
    def sends(self) -> int:
        """Calls that sent datagrams so far."""
        return self._udp.calls

    @property
    def peers(self) -> list[ProcessId]:
        """All other members that are there, ascending."""
        return sorted(self._addresses)

    @property
    def restarted(self) -> bool:
        """Whether some member has said that it knew an earlier incarnation of this one."""
        return self._presence.restarted

    @property
    def has_met_all(self) -> bool:
        """Whether every other member has said which incarnation it is."""
        return all(self._links[peer].peer_session for peer in self._addresses)

    def _is_over(self, peer: ProcessId, session: int) -> bool:
        """Whether a later incarnation has taken the place of this one.

        That may have ended before we heard of it: its late hello is older than the stream that
        stands.  Without such a stream an older one is believed: its clock may have been set back.
        """
        link = self._links[peer]
        return session in link.former or (
            session < link.peer_session and self.connections.is_connected(peer)
        )

    def link(self, peer: ProcessId) -> Link:
        """Return what is known about the way to this member."""
        return self._links[peer]

    def channel(self, number: int, lifetime_ns: int | None = None) -> Channel:
        """Open a channel; every member that uses it opens it under the same number.

        With a lifetime (ns) copies are repaired while they can be in time; without one until they
        have come.  Raises LocalProtocolError when the number is taken.
        """
        if not 0 <= number <= CHANNELS_MAX:
            raise LocalProtocolError(f"channel {number}, expected 0 to {CHANNELS_MAX}")
        if number in self._channels:
            raise LocalProtocolError(f"channel {number} is open already")
        channel = self._channels[number] = Channel(self, number, lifetime_ns)
        for peer in self.peers:
            channel.join(self._links[peer], self._fit(peer))
        return channel

    def _fit(self, peer: ProcessId) -> int:
        limit = self.settings.datagram_bytes_max
        return (limit or datagram_bytes(self._addresses[peer])) - HEAD_BYTES

    # Callbacks.

    def on_control(self, callback: Callable[[ProcessId, memoryview], None]) -> None:
        """Set who gets control messages: `callback(source, data)`, data valid until it returns."""
        self.connections.on_control = callback

    def on_connected(self, callback: Callable[[ProcessId], None]) -> None:
        """Set who learns that a stream to a member stands: after each (re)connection."""
        self.connections.on_connected = callback

    def on_disconnected(self, callback: Callable[[ProcessId], None]) -> None:
        """Set who learns that the stream to a member broke; it is tried again by itself."""
        self.connections.on_disconnected = callback

    def on_restarted(self, callback: Callable[[ProcessId], None]) -> None:
        """Set who learns that a member came back as a new incarnation: its copies count from 0."""
        self._presence.on_restarted = callback

    def callback_failed(self, error: Exception) -> None:
        """Report what a callback raised, without giving up the batch it was called in."""
        self._loop.call_exception_handler(
            {"message": "a receiver's callback failed", "exception": error}
        )

    # Control messages.

    def is_connected(self, peer: ProcessId) -> bool:
        """Whether the stream to this member stands."""
        return self.connections.is_connected(peer)

    def send_control(self, to: ProcessId, data: bytes) -> None:
        """Send a small message over the stream: reliable and in order while the stream stands.

        Before the first connection messages wait.  What was under way when a stream broke is gone:
        send the state again when `on_connected` tells of the next one.
        """
        self.connections.send_control(to, data)

    async def close(self) -> None:
        """Send what is packed and close in reverse order of opening.

        To be sure that all has arrived, `await channel.drain(empty=True)` first.
        """
        if self._closing:
            return
        self._flush()
        for link in self._links.values():
            link.farewell()
            for lane in link.lanes.values():
                lane.outbound.abandon()  # counted: it will not be sent again
        self._closing = True
        await self.connections.close()
        self._presence.close()
        for _, timer in self._timers.values():
            timer.cancel()
        for channel in self._channels.values():
            channel.close()
        if self._impairer is not None:
            self._impairer.close()
        if self._group is not None:
            self._group.close()
        self._udp.close()
        # And let the transports tell that they are closed, or their sockets are left to the
        # collector.
        await accept_no_more(self._server)

    # Sending: what channels and links call.

    def schedule(self, lane: Lane) -> None:
        """Pack and send this lane's PDUs when the loop turns."""
        self._dirty[lane] = None
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def schedule_group(self, channel: Channel) -> None:
        """Pack and send this channel's multicast when the loop turns."""
        self._dirty_groups[channel] = None
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if self._closing:
            return
        for channel in list(self._dirty_groups):
            channel.flush_group()
        self._dirty_groups.clear()
        dirty, self._dirty = self._dirty, {}
        now = self.clock.now()
        for lane in dirty:
            self._channels[lane.channel].seal(lane)
            lane.link.pump(lane, now)
            self.watch(lane.link, now)

    def watch(self, link: Link, now: Instant) -> None:
        """Make sure that this link's timer runs: something was sent."""
        if link.peer not in self._timers:
            self._arm(link, now)

    def datagrams(self, to: ProcessId, data: list[bytes]) -> None:
        """Send these datagrams to a peer; to one that was removed nothing is sent."""
        if to not in self._addresses:
            return
        if self._impairer is not None:
            self._impairer.datagrams(to, data)
        else:
            self._udp.send(data, self._addresses[to])

    def _send_now(self, to: ProcessId, data: list[bytes]) -> None:
        if not self._closing and to in self._addresses:
            self._udp.send(data, self._addresses[to])

    def multicast(self, data: bytes) -> None:
        """Send this datagram to the group."""
        group = self.settings.multicast
        assert group is not None
        if self._impairer is None:
            self._udp.send([data], group)
            return
        for peer in self.peers:  # each copy has its own fate
            self._impairer.datagrams(peer, [data])

    def over_stream(self, to: ProcessId, data: bytes) -> bool:
        """Send a datagram's content over the stream to a peer."""
        return self.connections.send_data(to, data)

    # Receiving.

    def _received(self, data: memoryview, address: Address, arrived: Instant) -> None:
        link = self._by_address.get(address)
        if link is None:
            if address != self.address:  # our own multicasts come back
                self.unknown += 1
            return
        try:
            self._dispatch(link, data, arrived)
        except (RemoteProtocolError, struct.error):
            link.malformed += 1

    def _dispatch(self, link: Link, data: memoryview, arrived: Instant) -> None:
        kind, flags, source, number, count, session, target, first, last = HEAD.unpack_from(data)
        if source != link.peer:
            raise RemoteProtocolError(f"process {source} at the address of {link.peer}")
        link.trip.unanswered = 0
        if kind == Kind.PING:
            link.answer(first)
            return
        if kind == Kind.PONG:
            link.pong(first)
            return
        if session != link.peer_session or (target != self.session and kind != Kind.MULTICAST):
            link.stale += 1
            return
        lane = link.lanes.get(number)
        if lane is None:
            link.unclaimed += 1
            return
        at = HEAD_BYTES
        if kind == Kind.REPORT:
            report = frames.parse_report(data, count, first, last)
            link.report(lane, report, arrived)
            if link.peer not in self._timers:
                self._arm(link, arrived)
            return
        if not self._channels[number].attached:
            link.unclaimed += 1
            return
        if kind == Kind.MULTICAST:
            mine, at = frames.multicast_first(data, first, self.me, self.session)
            if mine is None:
                return
            first = mine
        elif kind == Kind.GONE:
            link.gone(lane, frames.parse_gone(data, count))
            self._touched[lane] = None
            return
        elif kind != Kind.DATA:
            raise RemoteProtocolError(f"datagram of kind {kind:#x}")
        link.data(lane, flags, count, first, last, data, at, arrived)
        self._touched[lane] = None

    def _drained(self) -> None:
        if not self._touched:
            return
        touched, self._touched = self._touched, {}
        now = self.clock.now()
        for lane in touched:
            link = lane.link
            link.after_batch(lane, now)
            if lane.inbound.gaps:
                self._arm(link, now)
        channels = {lane.channel: None for lane in touched}
        for number in channels:
            self._channels[number].settle()

    # Timers: one per link.

    def _arm(self, link: Link, now: Instant) -> None:
        due = link.next_due(now)
        if due is None or self._closing:
            return
        armed = self._timers.get(link.peer)
        if armed is not None:
            if armed[0] <= due:
                return
            armed[1].cancel()
        wait_s = max(0, due - now) / NS_PER_S
        handle = self._loop.call_later(wait_s, self._on_timer, link, due)
        self._timers[link.peer] = (due, handle)

    def _on_timer(self, link: Link, due: int) -> None:
        del self._timers[link.peer]
        now = Instant(max(self.clock.now(), due))
        lost = [lane.counters.lost for lane in link.lanes.values()]
        link.on_timer(now)
        for lane, before in zip(link.lanes.values(), lost, strict=True):
            if lane.counters.lost != before:
                self._channels[lane.channel].settle()
        if link.is_silent(now):
            self.connections.cut(link.peer)
            self._presence.is_silent(link)
        self._arm(link, now)

    def _over_stream(self, peer: ProcessId, content: memoryview) -> None:
        link = self._links[peer]
        try:
            self._dispatch(link, content, self.clock.now())
        except (RemoteProtocolError, struct.error):
            link.malformed += 1
