"""Discovery's network: messages to addresses over TCP, or TLS; what strangers may do is bounded."""

import asyncio
import contextlib
import ipaddress
import logging
import secrets
import socket
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from itertools import count
from typing import Self

from orderwire.aio.addresses import (
    advertised,
    is_bindable,
    is_loopback,
    join_address,
    looked_up,
    split_address,
)
from orderwire.aio.discovery_dialling import Dialler, Session
from orderwire.aio.discovery_faults import Fault, PeerFault, fault_of
from orderwire.aio.discovery_frames import VERSION, FrameKind, Hello
from orderwire.aio.discovery_link import Link
from orderwire.aio.discovery_listener import Listener, Tally
from orderwire.aio.discovery_settings import TransportSettings, seconds
from orderwire.aio.discovery_stream import DiscoveryStream
from orderwire.aio.discovery_tls import Credentials
from orderwire.discovery.effects import Address
from orderwire.kernel import LocalProtocolError, RemoteProtocolError

_LOG = logging.getLogger(__name__)

_TICK_S = 1.0
"""How often time limits of connections are looked at."""


class DiscoveryTransport:
    """One process's place in a domain.  Make one with `await DiscoveryTransport.open(…)`.

    Messages to one address arrive in order and at most once, urgent ones maybe earlier.  When
    `unreachable(address)` is told, what was posted there before and has not arrived may be gone.
    """

    def __init__(
        self,
        listener: socket.socket,
        address: Address,
        source: str,
        domain: str,
        settings: TransportSettings,
        credentials: Credentials | None,
    ) -> None:
        self.source = source
        """The host that our connections come from, and our other sockets bind; none in particular,
        as 0.0.0.0, where what we say that we are is another machine's to translate."""
        self._calls_from = None if ipaddress.ip_address(source).is_unspecified else source
        self.address = address
        """Where others reach us, and what they call us."""
        self.domain = domain
        self.settings = settings
        self.dropped = Tally()
        """Messages that were posted and never written, by address."""
        self.last_failure = ""
        """Which address could not be reached last, and why."""
        self.closing = False
        self._listener = Listener(
            listener,
            lambda: self._stream(None),
            settings,
            None if credentials is None else credentials.server,
        )
        self._credentials = credentials
        self._nonce = secrets.randbits(64)
        self.next_turn = count(1).__next__
        self._loop = asyncio.get_running_loop()
        self._dialler = Dialler(
            self._connect,
            connect_s=seconds(settings.connect_ns),
            attempt_s=seconds(settings.attempt_ns),
            attempts_max=settings.attempts_max,
            half_open_max=settings.half_open_max,
            waiting_max=settings.dialling_max,
        )
        self._links: dict[Address, Link] = {}
        self._streams: set[DiscoveryStream] = set()
        self._dirty: dict[Link, None] = {}
        self._held_bytes = 0
        self._waiting_bytes = 0
        """No less than what waits for all addresses."""
        self._ticker: asyncio.TimerHandle | None = None
        self._quiet = asyncio.Event()
        self._message: Callable[[Address, bytes | bytearray], None] | None = None
        self._unreachable: Callable[[Address], None] | None = None

    @classmethod
    async def open(
        cls,
        address: Address,
        *,
        domain: str,
        settings: TransportSettings | None = None,
        credentials: Credentials | None = None,
        advertise: Address | None = None,
        insecure: bool = False,
    ) -> Self:
        """Bind an address; port 0 is any free port.  Nothing is accepted before `start`.

        Others must reach it at `advertise`, a host with or without a port, which is needed where
        `address` is none in particular, as 0.0.0.0; what we send must come from that host.  Without
        credentials it listens on this machine only, unless `insecure`.

        Raises LocalProtocolError, and OSError when the address cannot be bound.
        """
        host, _ = split_address(address)
        if not (is_loopback(host) or credentials is not None or insecure):
            raise LocalProtocolError(
                f"{address} is reachable from other machines, and without TLS this listener neither"
                " encrypts nor authenticates: listen on 127.0.0.1, give the domain's credentials,"
                " or say insecure=True if you trust this network"
            )
        if not 0 < len(domain.encode()) <= 255:
            raise LocalProtocolError(f"domain {domain!r} must have 1 to 255 bytes")
        family, where = await looked_up(address)
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setblocking(False)
            listener.bind(where)
            bound_host, bound_port = listener.getsockname()[:2]
            is_any = ipaddress.ip_address(bound_host).is_unspecified
            source = bound_host
            if advertise is not None:
                known_as = await advertised(advertise, bound_port)
                host, _ = split_address(known_as)
                if is_any and is_bindable(host):
                    source = host
            elif is_any:
                raise LocalProtocolError(
                    f"{address} is no address that others can call: say with advertise which is"
                )
            else:
                known_as = join_address(bound_host, bound_port)
            settings = settings or TransportSettings()
            return cls(listener, known_as, source, domain, settings, credentials)
        except BaseException:
            listener.close()
            raise

    def start(
        self,
        message: Callable[[Address, bytes | bytearray], None],
        unreachable: Callable[[Address], None],
    ) -> None:
        """Accept connections and hand over what comes."""
        self._message = message
        self._unreachable = unreachable
        self._listener.start()

    def post(self, to: Address, message: bytes, *, urgent: bool = False) -> None:
        """Send a message to the process that listens there, connecting to it where needed.

        What it has to say is never refused here: `unreachable` tells of addresses that are none.
        """
        if len(message) > self.settings.message_bytes_max:
            raise LocalProtocolError(
                f"a message of {len(message)} bytes to {to};"
                f" at most {self.settings.message_bytes_max} are sent"
            )
        if self.closing:
            self.dropped.note(to)
            return
        if to == self.address:
            self.dropped.note(to)
            self._loop.call_soon(self._tell_unreachable, to)
            return
        link = self._link(to)
        link.post(message, urgent=urgent)
        self._waiting_bytes += len(message)
        if (
            link.outgoing.waiting_bytes > self.settings.waiting_bytes_max
            or self._waiting_bytes > self.settings.waiting_total_bytes_max
        ):
            self._make_room(link)

    def _make_room(self, link: Link) -> None:
        settings = self.settings
        while link.outgoing.waiting_bytes > settings.waiting_bytes_max:
            if not link.outgoing.drop_oldest():
                break
            self.dropped.note(link.address)
        waiting = {each: each.outgoing.waiting_bytes for each in self._links.values()}
        while sum(waiting.values()) > settings.waiting_total_bytes_max:
            largest = max(waiting, key=waiting.__getitem__)
            if not largest.outgoing.drop_oldest():
                break
            self.dropped.note(largest.address)
            waiting[largest] = largest.outgoing.waiting_bytes
        self._waiting_bytes = sum(waiting.values())

    @property
    def refusals(self) -> Tally:
        """Connections refused or cut as the other side's fault, by host."""
        return self._listener.refusals

    @property
    def faults(self) -> Counter[Fault]:
        """The same, by what the other side did."""
        return self._listener.faults

    @property
    def connections(self) -> list[Address]:
        """The addresses with which a connection stands, in ascending order."""
        return sorted(each.address for each in self._links.values() if each.chosen)

    @property
    def open_sockets(self) -> int:
        """Connections that are open or being opened, whatever for."""
        return len(self._streams) + len(self._listener.tasks) + self._dialler.half_open

    @property
    def held_bytes(self) -> int:
        """Bytes received of messages that are not whole."""
        return self._held_bytes

    async def close(self) -> None:
        """Write what was posted, say goodbye, and close; what takes too long is cut off."""
        if self.closing:
            return
        self.closing = True
        await self._listener.close()
        for link in list(self._links.values()):
            self.dirty(link)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds(self.settings.close_ns)):
                while self._links:
                    self._quiet.clear()
                    await self._quiet.wait()
        for link in list(self._links.values()):
            self._count_dropped(link, len(link.outgoing))
            link.abort()
        self._links.clear()
        for stream in list(self._streams):
            if stream.open:
                stream.abort()
        await self._dialler.close()
        if self._ticker is not None:
            self._ticker.cancel()
        # Let the transports tell that they are closed, or their sockets are left to the collector.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds(self.settings.close_ns)):
                while self._streams:
                    await asyncio.sleep(0)

    # Connecting and accepting.

    def _link(self, address: Address) -> Link:
        link = self._links.get(address)
        if link is None:
            link = self._links[address] = Link(self, self.address, address)
        return link

    def _stream(self, dialled: Address | None) -> DiscoveryStream:
        return DiscoveryStream(
            self,
            self._loop.time,
            dialled=dialled,
            message_bytes_max=self.settings.message_bytes_max,
            silence_s=seconds(self.settings.silence_ns),
        )

    async def _connect(self, address: Address, established: Callable[[], None]) -> None:
        try:
            host, port = _numeric(address)
        except LocalProtocolError as error:  # It came from a peer: no fault of the caller.
            raise OSError(str(error)) from None
        task = asyncio.current_task()
        assert task is not None

        def made() -> DiscoveryStream:
            stream = self._stream(address)
            stream.attempt = task
            return stream

        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        called = socket.socket(family, socket.SOCK_STREAM)
        try:
            called.setblocking(False)
            if self.settings.same_host and self._calls_from is not None:
                called.bind((self._calls_from, 0))
            await self._loop.sock_connect(called, (host, port))
        except BaseException:
            called.close()
            raise
        established()
        tls = self._credentials is not None
        await self._loop.create_connection(
            made,
            sock=called,
            ssl=self._credentials.client if self._credentials is not None else None,
            server_hostname=host if tls else None,
            ssl_handshake_timeout=seconds(self.settings.hello_ns) if tls else None,
        )

    # What streams tell.

    def stream_opened(self, stream: DiscoveryStream) -> None:
        """Take a connection: one that we dialled says hello first."""
        self._streams.add(stream)
        self._tick_later()
        if stream.dialled is None:
            self._listener.opened(stream)
            return
        link = self._links.get(stream.dialled)
        if link is None or link.session is None or stream.attempt not in link.session.attempts:
            stream.abort()
            return
        del link.session.attempts[stream.attempt]
        link.joined(stream)

    def stream_frame(
        self, stream: DiscoveryStream, kind: FrameKind, content: bytes | bytearray
    ) -> None:
        """Take one frame.  Raises RemoteProtocolError."""
        if stream.hello is None:
            self._take_hello(stream, Hello.decode(bytes(content)))
            return
        assert stream.peer is not None
        link = self._links.get(stream.peer)
        if link is None:
            raise RemoteProtocolError(f"{kind.name} from {stream.peer} after the end")
        if kind is FrameKind.MESSAGE:
            if link.chosen is not stream or stream.got_bye:
                raise RemoteProtocolError(
                    f"a message from {stream.peer} on a connection that is not the chosen one"
                )
            if self._message is not None:
                self._message(link.address, content)
        elif kind is FrameKind.CHOSEN:
            link.told(stream)
        elif kind in (FrameKind.BYE, FrameKind.END):
            link.bye(stream, ends=kind is FrameKind.END)
        else:
            raise RemoteProtocolError(f"{kind.name} from {stream.peer} after the hello")

    def _take_hello(self, stream: DiscoveryStream, hello: Hello) -> None:
        if hello.domain != self.domain:
            raise PeerFault(
                Fault.STRANGER, f"it is of domain {hello.domain!r}, we of {self.domain!r}"
            )
        if hello.to != self.address:
            raise PeerFault(Fault.STRANGER, f"it calls {hello.to}, we are {self.address}")
        if hello.address == self.address or hello.nonce == self._nonce:
            raise PeerFault(Fault.STRANGER, "it says that it is us")
        if stream.dialled is not None:
            if hello.address != stream.dialled:
                raise PeerFault(
                    Fault.STRANGER, f"it says at {stream.dialled} that it is {hello.address}"
                )
        else:
            try:
                host, _ = _numeric(hello.address)
            except LocalProtocolError as error:
                raise PeerFault(Fault.STRANGER, str(error)) from None
            if self.settings.same_host and host != stream.source:
                raise PeerFault(
                    Fault.STRANGER,
                    f"it says that it is {hello.address}, and comes from another host: that address"
                    " is not its own, or is translated on the way",
                )
            self._listener.known(stream)
        stream.hello = hello
        self._link(hello.address).greeted(stream)

    def stream_fed(self, stream: DiscoveryStream) -> None:
        """Count what is held of messages that are not whole."""
        held = stream.held_bytes
        self._held_bytes += held - stream.counted_bytes
        stream.counted_bytes = held
        if self._held_bytes > self.settings.held_bytes_max:
            why = f"{self._held_bytes} bytes of unfinished messages are held"
            self._cut(stream, Fault.OVERSIZED, why)

    def stream_ready(self, stream: DiscoveryStream) -> None:
        """Write on."""
        link = self._links.get(stream.peer or "")
        if link is not None and link.chosen is stream:
            link.pump()

    def stream_closed(self, stream: DiscoveryStream, error: Exception | None) -> None:
        """Forget a connection, and tell its link."""
        if stream not in self._streams:
            return
        self._streams.discard(stream)
        self._held_bytes -= stream.counted_bytes
        if stream.dialled is None:
            self._listener.gone(stream)
        if isinstance(error, RemoteProtocolError):
            self._listener.refuse(stream.source, fault_of(error), str(error))
        link = self._links.get(stream.peer or "")
        if link is not None:
            link.lost(stream, str(error or "") or "the other side closed the connection")

    def _cut(self, stream: DiscoveryStream, fault: Fault, why: str) -> None:
        """End a connection for the other side's fault."""
        self.stream_closed(stream, PeerFault(fault, why))
        stream.abort()

    # What links ask and tell.

    def greet(self, stream: DiscoveryStream, link: Link) -> None:
        """Say hello on this connection, unless that was said."""
        if not stream.greeted:
            stream.greeted = True
            hello = Hello(VERSION, self.domain, self.address, link.address, self._nonce, link.turn)
            stream.send(FrameKind.HELLO, hello.encode())

    def dial(self, link: Link, session: Session) -> None:
        """Begin to connect, now or when there is room for one more."""
        self._dialler.dial(link, session)

    def dirty(self, link: Link) -> None:
        """Write what waits for this address when the loop turns: one write for all of it."""
        if not self._dirty:
            self._loop.call_soon(self._flush)
        self._dirty[link] = None

    def _flush(self) -> None:
        dirty, self._dirty = self._dirty, {}
        for link in dirty:
            link.pump()

    def failed(self, link: Link, why: str, dropped: int) -> None:
        """Tell that an address cannot be reached."""
        self._count_dropped(link, dropped)
        self.last_failure = f"{link.address}: {why}"
        _LOG.debug("%s is unreachable: %s", link.address, why)
        self._tell_unreachable(link.address)

    def _count_dropped(self, link: Link, count: int) -> None:
        if count:
            self.dropped.note(link.address, count)

    def _tell_unreachable(self, address: Address) -> None:
        if self._unreachable is not None and not self.closing:
            self._unreachable(address)

    def ended(self, link: Link) -> None:
        """Forget a link of which nothing is left."""
        if self._links.get(link.address) is link:
            del self._links[link.address]
            self._quiet.set()

    # Time limits.

    def _tick_later(self) -> None:
        if self._ticker is None:
            self._ticker = self._loop.call_later(_TICK_S, self._tick)

    def _tick(self) -> None:
        self._ticker = None
        now = self._loop.time()
        for stream in list(self._streams):
            if stream.open:
                self._look_at(stream, now)
        if self._streams:
            self._tick_later()

    def _look_at(self, stream: DiscoveryStream, now: float) -> None:
        settings = self.settings
        link = self._links.get(stream.peer or "")
        if link is None or link.chosen is not stream:
            if now - stream.opened > seconds(settings.hello_ns):
                self._cut(stream, Fault.SILENT, "it did not say in time who it is")
            return
        held = stream.held_bytes
        if held:
            granted_s = seconds(settings.frame_ns) + held / settings.frame_bytes_per_s_min
            if now - stream.begun > granted_s:
                self._cut(stream, Fault.SLOW, f"only {held} bytes of a message came in time")
                return
        if stream.stuck_s(now) > seconds(settings.stuck_ns):
            self._cut(stream, Fault.SLOW, f"it takes nothing of {stream.unsent_bytes} bytes")
        elif stream.said_bye:
            if now - stream.used > seconds(settings.hello_ns):
                self._cut(stream, Fault.SILENT, "it did not answer BYE")
        elif now - stream.used > seconds(settings.idle_ns) and not link.outgoing:
            link.leave()


@lru_cache(4_096)
def _numeric(address: Address) -> tuple[str, int]:
    """Return host and port; names are refused: a peer shall not make us ask for them.

    Raises LocalProtocolError.
    """
    host, port = split_address(address)
    try:
        ipaddress.ip_address(host)
    except ValueError:
        raise LocalProtocolError(
            f"address {address!r} has no number of a host, as in 127.0.0.1:7400"
        ) from None
    return host, port
