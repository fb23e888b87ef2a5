"""One client's connection to a broker: frames in, replies out, in request order."""

from asyncio import BaseTransport, BufferedProtocol, Transport
from collections import deque
from typing import TYPE_CHECKING, cast

from orderwire.aio.broker_outbox import Outbox
from orderwire.aio.broker_tls_outbox import TlsOutbox
from orderwire.broker.log import StorageError
from orderwire.broker.replies import Client, Outcome, Reply
from orderwire.broker.requests.produce_run import produce_run
from orderwire.broker.wire.parts import FileSlice, joined
from orderwire.broker.wire.produce_run import ProduceShape
from orderwire.kernel import NS_PER_S, Instant
from orderwire.kernel.errors import RemoteProtocolError

if TYPE_CHECKING:
    from orderwire.aio.broker_server import BrokerServer

BUFFER_BYTES = 64 << 10
"""Receive buffer of a connection at rest."""
_GROW_AT_ONCE_BYTES = 1 << 20
"""A frame up to this size gets its buffer at once; a larger one as its bytes arrive."""
_LENGTH_BYTES = 4
_JOIN_BYTES_MAX = 64 << 10
"""Replies of one read up to this size leave as one piece: cheaper than a vector of many."""


class Slot:
    """The place of one reply in the order of a connection."""

    __slots__ = ("connection", "parks", "reply", "requests", "token")

    def __init__(
        self, connection: "Connection", token: int, *, parks: bool, requests: int = 1
    ) -> None:
        self.connection = connection
        self.token = token
        self.requests = requests
        """How many requests the reply answers."""
        self.parks = parks
        """Whether the connection takes no more requests until this one is answered."""
        self.reply: Reply | None = None

    def fill(self, reply: Reply) -> None:
        """Send the reply when those before it are sent."""
        self.reply = reply
        self.connection.filled(self)


class Connection(BufferedProtocol):
    """Parses every complete frame of a read, and sends the replies of a read together."""

    def __init__(self, server: "BrokerServer") -> None:
        self._server = server
        self._limits = server.limits
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._head = 0
        self._tail = 0
        self._need = _LENGTH_BYTES
        """Bytes from `_head` on that the next frame has, as far as known."""
        self._starved = True
        """Nothing complete is in the buffer."""
        self._slots: deque[Slot] = deque()
        self._waiting = 0
        """Requests that the slots stand for."""
        self._shape: ProduceShape | None = None
        """Of the newest requests that might have been a run."""
        self._out: list[Reply] = []
        self._held_bytes = 0
        """Bytes of replies that are ready and not yet in the outbox."""
        self._mute = 0
        """Requests that keep the connection from being parsed further."""
        self._reading = True
        self._ended = False
        """The peer will send no more: close when everything is answered."""
        self._closing = False
        """We take no more: close when everything is sent."""
        self._draining = False
        """The broker is stopping: what was taken is answered, nothing more is."""
        self._transport: Transport | None = None
        self._outbox: Outbox | TlsOutbox | None = None
        self.client = Client("", "", 0)
        self.opened = Instant(0)
        self.frame_since = Instant(0)
        """When the frame that is being received began."""
        self.last = Instant(0)
        """When bytes last went in or out."""
        self.served = 0
        """Requests answered or parked so far."""

    # -- asyncio's calls --------------------------------------------------------------------

    def connection_made(self, transport: BaseTransport) -> None:
        """Take the connection, or refuse it when there are too many."""
        self._transport = cast(Transport, transport)
        peer = self._transport.get_extra_info("peername") or ("",)
        own = self._transport.get_extra_info("sockname") or ("", 0)
        host, port = self._server.advertised_to(str(own[0]), int(own[1]))
        self.client = Client(
            str(peer[0]), host, port, self._server.login(), self._server.next_token()
        )
        self.opened = self.last = self.frame_since = self._server.clock.now()
        if not self._server.admit(self):
            self._transport.abort()
            return
        loop = self._server.loop
        if self._transport.get_extra_info("ssl_object") is not None:
            self._outbox = TlsOutbox(
                loop, self._transport, sent=self._sent, broken=self._send_failed
            )
        else:
            descriptor = self._transport.get_extra_info("socket").fileno()
            self._outbox = Outbox(loop, descriptor, sent=self._sent, broken=self._send_failed)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget what was under way."""
        if self._outbox is not None:
            self._outbox.close()
            self._outbox = None
            self._server.dismiss(self)
        self._forget_parked()
        for slot in self._slots:
            if slot.reply is None:
                self._server.forget(slot)
        self._slots.clear()
        self._waiting = 0
        self._transport = None

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go; of a large frame, no further than its end."""
        end = len(self._buffer)
        if self._need > BUFFER_BYTES:
            end = min(end, self._head + self._need)
        return self._buffer[self._tail : end]

    def buffer_updated(self, nbytes: int) -> None:
        """Parse what has come."""
        if self._tail == self._head:
            self.frame_since = self._server.clock.now()
        self._tail += nbytes
        self._starved = False
        self._run()
        self._server.after_turn()

    def pause_writing(self) -> None:
        """A transport that encrypts is full; the outbox looks for itself."""

    def resume_writing(self) -> None:
        """It has emptied."""
        if isinstance(self._outbox, TlsOutbox):
            self._outbox.resume()

    def eof_received(self) -> bool:
        """Close, after what was already asked for is answered."""
        self._ended = True
        self._forget_parked()
        if self._outbox is None:
            return False
        if isinstance(self._outbox, TlsOutbox):  # asyncio closes it in any case
            return False
        return bool(self._slots or self._outbox.backlog_bytes or not self._starved)

    # -- requests ---------------------------------------------------------------------------

    def _run(self) -> None:
        """Serve every complete frame, then send the replies and make room for more."""
        try:
            while not self._is_stopped() and not self._starved:
                self._serve_frames()
                self._flush()
            if self._outbox is not None and not self._closing:
                self._make_room()
        except (RemoteProtocolError, StorageError) as error:
            self._server.refused(self, error)
            self._flush()
            self.close()

    def _serve_frames(self) -> None:
        server = self._server
        serve = server.broker.serve
        limit = self._limits.request_bytes_max
        buffer = self._buffer
        while not self._is_stopped():
            have = self._tail - self._head
            if have < _LENGTH_BYTES:
                self._need = _LENGTH_BYTES
                self._starved = True
                return
            start = self._head + _LENGTH_BYTES
            size = int.from_bytes(buffer[self._head : start], "big", signed=True)
            if not 0 < size <= limit:
                raise RemoteProtocolError(f"a request of {size} bytes; expected 1 … {limit}")
            self._need = _LENGTH_BYTES + size
            if have < self._need:
                self._starved = True
                return
            self.last = self.frame_since = now = server.clock.now()
            if have >= 2 * self._need and self._serve_run(now):
                continue
            token = server.next_token()
            outcome = serve(buffer[start : start + size], self.client, token, now)
            self._head = start + size
            self._need = _LENGTH_BYTES
            self.served += 1
            if isinstance(outcome, Reply):
                self._take(outcome, token)
            elif outcome is Outcome.PARKED:
                self._mute += 1
                server.park(self._slot(token, parks=True))
            elif outcome is Outcome.PENDING:
                server.park(self._slot(token, parks=False))

    def _serve_run(self, now: Instant) -> bool:
        """Serve the requests from here on together that differ only in their records."""
        broker = self._server.broker
        head = self._head
        shape = self._shape
        if shape is None or not shape.fits(self._buffer, head):
            frame = self._buffer[head + _LENGTH_BYTES : head + self._need]
            shape = self._shape = broker.shape(frame)
            if shape is None:
                return False
        token = self._server.next_token()
        run = produce_run(
            broker,
            shape,
            self._buffer[: self._tail],
            head,
            now,
            token=token,
            client=self.client,
            requests_max=self._limits.pipelined_max - self._waiting,
            request_bytes_max=self._limits.request_bytes_max,
        )
        if run is None:
            self._shape = None  # the next one may be longer, hence of another shape
            return False
        self._head = run.end
        self._need = _LENGTH_BYTES
        self.served += run.requests
        if run.reply is not None:
            self._take(run.reply, token, run.requests)
        else:
            self._server.park(self._slot(token, parks=False, requests=run.requests))
        return True

    def _slot(self, token: int, *, parks: bool, requests: int = 1) -> Slot:
        slot = Slot(self, token, parks=parks, requests=requests)
        self._slots.append(slot)
        self._waiting += requests
        return slot

    def _take(self, reply: Reply, token: int, requests: int = 1) -> None:
        if reply.delay_ns:
            self._mute += 1
            self._server.fill_later(self._slot(token, parks=True), reply)
        elif reply.durable and self._server.holds_durable:
            slot = self._slot(token, parks=False, requests=requests)
            self._server.fill_when_durable(slot, reply)
        elif self._slots:
            self._slot(token, parks=False, requests=requests).reply = reply
            self._held_bytes += reply.length
        else:
            self._out.append(reply)
            self._held_bytes += reply.length

    def filled(self, slot: Slot) -> None:
        """Send what has become first in order, and go on with what was held up by it."""
        self.take_filled(slot)
        self.send_filled()

    def take_filled(self, slot: Slot) -> None:
        """Take what has become first in order; `send_filled` follows."""
        assert slot.reply is not None
        if self._outbox is None or self._closing:
            return
        self._held_bytes += slot.reply.length
        if slot.parks:
            slot.parks = False
            self._mute -= 1
        slots = self._slots
        while slots:
            reply = slots[0].reply
            if reply is None:
                break
            self._out.append(reply)
            self._waiting -= slots.popleft().requests

    def send_filled(self) -> None:
        """Send what was taken, in one piece, and parse on."""
        if self._outbox is not None and not self._closing:
            self._flush()
            self._go_on()

    def _is_stopped(self) -> bool:
        outbox = self._outbox
        return (
            self._mute > 0
            or self._closing
            or self._draining
            or outbox is None
            or self._waiting >= self._limits.pipelined_max
            or outbox.backlog_bytes + self._held_bytes > self._limits.backlog_bytes_max
        )

    def _go_on(self) -> None:
        """Parse on when nothing holds the connection up any more; close when all is done."""
        outbox = self._outbox
        if outbox is None or self._transport is None:
            return
        if self._closing:
            if outbox.backlog_bytes == 0:
                self._transport.close()
        elif not self._starved and not self._is_stopped():
            self._server.loop.call_soon(self._resume)
        elif self._ended and self._starved and not self._slots and outbox.backlog_bytes == 0:
            self._transport.close()

    def _resume(self) -> None:
        if self._outbox is not None and not self._is_stopped():
            self._run()
            self._server.after_turn()
            if self._ended:
                self._go_on()

    # -- sending ----------------------------------------------------------------------------

    def _flush(self) -> None:
        out = self._out
        if not out or self._outbox is None:
            return
        self._out = []
        is_over = out[-1].is_last
        if len(out) == 1:
            self._held_bytes -= out[0].length
            self._outbox.send(out[0].parts)
        else:
            length = sum(reply.length for reply in out)
            self._held_bytes -= length
            parts = [part for reply in out for part in reply.parts]
            if length <= _JOIN_BYTES_MAX and not any(isinstance(p, FileSlice) for p in parts):
                parts = [joined(parts)]
            self._outbox.send(parts)
        if is_over:
            self.close()

    def _sent(self) -> None:
        self.last = self._server.clock.now()
        self._go_on()

    def _send_failed(self, error: OSError) -> None:
        self.abort()

    # -- receiving --------------------------------------------------------------------------

    def _make_room(self) -> None:
        """See that the next read has somewhere to go, or stop reading."""
        have = self._tail - self._head
        if have == 0:
            self._head = self._tail = 0
        elif not self._starved:
            self._read_on(len(self.get_buffer(-1)) > 0)
            return
        elif self._head + self._need > len(self._buffer):
            self._rearrange(have)
        self._read_on(True)

    def _rearrange(self, have: int) -> None:
        """Bring the frame that has begun to the front of a buffer that is large enough for now.

        A frame of more than a mebibyte is not believed before its bytes come: the buffer doubles.
        """
        old = self._buffer
        size = len(old)
        if self._need > size and (have == size or size < _GROW_AT_ONCE_BYTES):
            grown = min(self._need, max(_GROW_AT_ONCE_BYTES, 2 * size))
            self._server.reserve(grown - size)
            self._buffer = memoryview(bytearray(grown))
        elif self._head == 0:
            return
        self._buffer[:have] = old[self._head : self._tail]
        self._head, self._tail = 0, have

    def _read_on(self, wanted: bool) -> None:
        if self._transport is None or wanted == self._reading or self._ended:
            return
        self._reading = wanted
        if wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    # -- the server's calls -----------------------------------------------------------------

    @property
    def buffer_bytes(self) -> int:
        """How large the receive buffer is."""
        return len(self._buffer)

    def overdue(self, now: Instant) -> str | None:
        """Say which time limit the client has exceeded, or None."""
        limits = self._limits
        if self.served == 0 and now - self.opened > limits.first_request_ns:
            return "no request since it was opened"
        have = self._tail - self._head
        if have and self._starved:
            granted_ns = limits.frame_ns + have * NS_PER_S // limits.frame_bytes_per_s_min
            if now - self.frame_since > granted_ns:
                return f"only {have} bytes of a request of {self._need} came in time"
        if not self._slots and now - self.last > limits.idle_ns:
            return "idle"
        return None

    def shrink(self, now: Instant) -> None:
        """Give a large buffer back when nothing is in it."""
        large = len(self._buffer) > BUFFER_BYTES
        if large and self._head == self._tail and now - self.last > self._limits.shrink_ns:
            self._server.reserve(BUFFER_BYTES - len(self._buffer))
            self._buffer = memoryview(bytearray(BUFFER_BYTES))
            self._head = self._tail = 0

    def close(self) -> None:
        """Take no more, and close when what was sent has left."""
        self._closing = True
        self._forget_parked()
        self._read_on(False)
        self._go_on()

    def drain(self) -> None:
        """Take no more requests; what was taken is still answered."""
        self._draining = True
        self._forget_parked()
        self._read_on(False)

    @property
    def backlog_bytes(self) -> int:
        """Reply bytes that the kernel has not taken yet."""
        return 0 if self._outbox is None else self._outbox.backlog_bytes

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def _forget_parked(self) -> None:
        kept: deque[Slot] = deque()
        for slot in self._slots:
            if slot.parks:
                self._server.forget(slot)
                self._mute -= 1
                self._waiting -= slot.requests
            else:
                kept.append(slot)
        self._slots = kept
