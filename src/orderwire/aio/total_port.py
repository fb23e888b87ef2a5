"""A member's end of a 1C channel: numbers what it sends, drops what does not increase."""

import asyncio
import contextlib
import logging
import socket
import time
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Self

import msgspec

from orderwire.aio.addresses import is_loopback, join_address
from orderwire.aio.datagram import (
    Address,
    DatagramSocket,
    datagram_bytes,
    open_multicast_socket,
    open_socket,
)
from orderwire.aio.total_batch import Batch, Repeater
from orderwire.aio.total_frames import (
    BYE,
    DOWN,
    DOWN_HEAD_BYTES,
    HELLO,
    PDU_BYTES_MAX,
    REFUSED,
    UP_HEAD_BYTES,
    WELCOME,
    Call,
    Up,
    Welcome,
    decode_down,
    decode_pdus,
    decode_refused,
    decode_welcome,
    encode_call,
    encode_pdu,
    encode_up,
    kind_of,
)
from orderwire.aio.total_relay import LOOPBACK_DATAGRAM_BYTES, limit_receive_buffer
from orderwire.kernel import (
    NS_PER_MS,
    NS_PER_S,
    Instant,
    LocalProtocolError,
    ProcessId,
    RemoteProtocolError,
    stream,
)

_LOG = logging.getLogger(__name__)


class Deaf(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An outage: a member hears nothing between these seconds after it was opened."""

    from_s: float
    until_s: float


class PortSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a member uses the channel."""

    datagram_bytes_max: int | None = None
    """None: 8,192 on this machine, else what the path takes unfragmented."""
    multicast_interface: str = "127.0.0.1"
    repeats: bool = True
    """Whether each datagram carries the PDUs of the one before once more: its loss is none then."""
    repeat_ns: int = 2 * NS_PER_MS
    """After this the last datagram is sent once more, when none has followed."""
    hello_ns: int = 1 * NS_PER_S
    """How often the relay is told that the member is here."""
    hello_first_ns: int = 50 * NS_PER_MS
    """The same until it has answered."""
    silence_ns: int = 5 * NS_PER_S
    """A relay that has not answered for so long is told of in the log."""
    receive_bytes: int | None = None
    """SO_RCVBUF; None: as much as the kernel gives."""
    outages: tuple[Deaf, ...] = ()


class ChannelPort:
    """One member's sockets.

    `received(source, pdu, csn, arrived)` gets every PDU of the channel that is not missed, in its
    order; `drained()` follows each run of them; `told()` follows what the relay has said.
    """

    def __init__(
        self,
        udp: socket.socket,
        me: ProcessId,
        incarnation: int,
        settings: PortSettings,
        *,
        received: Callable[[ProcessId, bytes, int, Instant], None],
        drained: Callable[[], None],
        told: Callable[[], None],
        now: Callable[[], Instant],
    ) -> None:
        self.me = me
        self.incarnation = incarnation
        self.settings = settings
        host, port = udp.getsockname()[:2]
        self.address: Address = (host, port)
        self.counters: Counter[str] = Counter()
        self.present = 0
        """Bit mask of the members that the relay has seen."""
        self.refused: str | None = None
        """Why there is no way onto the channel."""
        self.replaced: str | None = None
        """Why a fixed group can go on no more: another relay is where its own was."""
        self.relay: tuple[Address, int] | None = None
        """The relay and its incarnation, once it has answered."""
        self.last_csn = 0
        self._received = received
        self._drained = drained
        self._told = told
        self._now = now
        self._loop = asyncio.get_running_loop()
        self._began_s = self._loop.time()
        self._socket = DatagramSocket(
            udp, offload=False, received=self._datagram, drained=drained, now=now
        )
        self._address: Address | None = None
        self._wanted: int | None = None
        """The only incarnation that is listened to; None: that which answers first."""
        self._is_fixed = False
        """Whether no view will ever name another relay."""
        self._group: DatagramSocket | None = None
        self._group_address: Address | None = None
        self._loss = 0.0
        self._chance = Random()
        self._batch: Batch | None = None
        self._hello_timer: asyncio.TimerHandle | None = None
        self._is_heard = True
        """Whether the relay has said anything since the last hello."""
        self._heard_s = self._began_s
        self._is_missed = False
        self._repeater = Repeater(self._loop, settings.repeat_ns, self._repeat)

    @classmethod
    def open(
        cls,
        bind: Address,
        me: ProcessId,
        incarnation: int,
        settings: PortSettings | None = None,
        *,
        received: Callable[[ProcessId, bytes, int, Instant], None],
        drained: Callable[[], None],
        told: Callable[[], None],
        now: Callable[[], Instant],
    ) -> Self:
        """Bind a socket of this member; port 0 is a free one."""
        settings = settings or PortSettings()
        udp, _ = open_socket(bind, offload=False)
        with contextlib.ExitStack() as stack:
            stack.callback(udp.close)
            limit_receive_buffer(udp, settings.receive_bytes)
            port = cls(
                udp,
                me,
                incarnation,
                settings,
                received=received,
                drained=drained,
                told=told,
                now=now,
            )
            stack.pop_all()
        return port

    def use(self, relay: Address, incarnation: int | None = None) -> None:
        """Turn to this relay; only to this incarnation of it, if given.

        What was not sent yet is lost.
        """
        if (self._address, self._wanted) == (relay, incarnation):
            return
        self._address, self._wanted = relay, incarnation
        self._is_fixed = incarnation is None
        self._is_heard = True
        self.relay = None
        self.present = 0
        self.last_csn = 0
        self._batch = None
        self._repeater.stop()
        self._say_hello()

    def send(self, pdu: bytes) -> None:
        """Put a PDU on the channel; it leaves with `flush` at the latest.

        It is lost while there is no relay.  Raises LocalProtocolError when it is too large.
        """
        if len(pdu) > PDU_BYTES_MAX:
            raise LocalProtocolError(f"a PDU of {len(pdu)} bytes, at most {PDU_BYTES_MAX}")
        if self._batch is None:
            self.counters["unsent"] += 1
            return
        self._batch.add(encode_pdu(self.me, pdu))

    def flush(self) -> None:
        """Send what waits."""
        if self._batch is not None:
            self._batch.flush()

    def close(self) -> None:
        """Take leave of the relay and close the sockets."""
        if self._hello_timer is not None:
            self._hello_timer.cancel()
        self.flush()
        self._repeater.stop()
        if self.relay is not None:
            address, incarnation = self.relay
            self._socket.send(
                [encode_call(BYE, Call(incarnation, self.me, self.incarnation))], address
            )
        self._batch = None
        self._leave_group()
        self._socket.close()

    # ------------------------------------------------------------------ receiving

    def _datagram(self, data: memoryview, address: Address, arrived: Instant) -> None:
        if address != self._address:
            self.counters["of strangers"] += 1
            return
        self._is_heard = True
        try:
            kind = kind_of(data)
            if kind == DOWN:
                self._take(bytes(data), arrived)
            elif kind == WELCOME:
                self._welcome(decode_welcome(data), address)
            elif kind == REFUSED:
                refused = decode_refused(data)
                if self._wanted in (None, refused.relay):
                    self.refused = f"the relay refuses us: {refused.why}"
                    self._told()
            else:
                self.counters["not for a member"] += 1
        except RemoteProtocolError as error:
            self.counters["malformed"] += 1
            _LOG.debug("from %s: %s", address, error)

    def _take(self, data: bytes, arrived: Instant) -> None:
        relay, csn = decode_down(data)
        if self.relay is None or relay != self.relay[1]:
            self.counters["of another relay"] += 1
            return
        if (self._loss and self._chance.random() < self._loss) or self._is_deaf():
            self.counters["lost on purpose"] += 1
            return
        last = self.last_csn
        if csn > last + 1:
            self.counters["missed"] += csn - last - 1 if last else 0
        received = self._received
        for source, begin, end in decode_pdus(data, DOWN_HEAD_BYTES):
            if csn > last:
                self.last_csn = csn
                received(ProcessId(source), data[begin:end], csn, arrived)
            else:
                self.counters["copies"] += 1
            csn += 1

    def _is_deaf(self) -> bool:
        outages = self.settings.outages
        if not outages:
            return False
        at_s = self._loop.time() - self._began_s
        return any(outage.from_s <= at_s < outage.until_s for outage in outages)

    def _welcome(self, welcome: Welcome, address: Address) -> None:
        if self._wanted is None:
            self._wanted = welcome.relay
        if welcome.relay != self._wanted:
            self.counters["of another relay"] += 1
            if self._is_fixed and welcome.relay > self._wanted:
                self.replaced = (
                    f"the relay at {join_address(*address)} was started anew, and knows nothing of"
                    " this group"
                )
                self._told()
            return
        if self.relay is None and not self._attach(welcome, address):
            return
        self.present = welcome.present
        self._told()

    def _attach(self, welcome: Welcome, address: Address) -> bool:
        """Use this relay, if what it sends can be received."""
        incarnation = welcome.relay
        if welcome.multicast != self._group_address:
            self._leave_group()
            if welcome.multicast is not None:
                try:
                    self._join_group(welcome.multicast)
                except OSError as error:
                    self.refused = f"the relay sends by multicast, and we cannot receive: {error}"
                    _LOG.error("%s", self.refused)
                    self._told()
                    return False
        self.relay = (address, incarnation)
        self.refused = None
        self._loss = welcome.loss
        self._chance = stream(welcome.seed, f"channel/down/{self.me}")
        size = self.settings.datagram_bytes_max
        if size is None:
            size = LOOPBACK_DATAGRAM_BYTES
            if not is_loopback(address[0]):
                size = min(size, datagram_bytes(address))
        self._batch = Batch(
            lambda first: encode_up(Up(incarnation, self.me, self.incarnation, first)),
            self._send,
            head_bytes=UP_HEAD_BYTES,
            bytes_max=size,
            repeats=self.settings.repeats,
        )
        return True

    def _join_group(self, group: Address) -> None:
        udp = open_multicast_socket(group, self.settings.multicast_interface, offload=False)
        try:
            limit_receive_buffer(udp, self.settings.receive_bytes)
            self._group = DatagramSocket(
                udp,
                offload=False,
                received=self._datagram,
                drained=self._drained,
                now=self._now,
            )
        except BaseException:
            udp.close()
            raise
        self._group_address = group

    def _leave_group(self) -> None:
        if self._group is not None:
            self._group.close()
        self._group = self._group_address = None

    # ------------------------------------------------------------------ sending

    def _send(self, datagram: bytes) -> None:
        assert self.relay is not None
        self._socket.send([datagram], self.relay[0])
        if self.settings.repeats:
            self._repeater.sent()

    def _repeat(self) -> None:
        if self._batch is not None:
            self._batch.repeat()

    def _say_hello(self) -> None:
        if self._hello_timer is not None:
            self._hello_timer.cancel()
        if self._address is not None:
            self._watch(self._address)
            call = Call(self._wanted or 0, self.me, self.incarnation)
            self._socket.send([encode_call(HELLO, call)], self._address)
        settings = self.settings
        wait_ns = settings.hello_ns if self.relay is not None else settings.hello_first_ns
        self._hello_timer = self._loop.call_later(wait_ns / NS_PER_S, self._say_hello)

    def _watch(self, relay: Address) -> None:
        """Tell when the relay has fallen silent: nothing moves then, and nobody else says so."""
        now_s = self._loop.time()
        silence_ns = self.settings.silence_ns
        where = join_address(*relay)
        if self._is_heard:
            if self._is_missed:
                _LOG.warning("the relay at %s answers again", where)
            self._is_heard = self._is_missed = False
            self._heard_s = now_s
        elif not self._is_missed and now_s - self._heard_s >= silence_ns / NS_PER_S:
            self._is_missed = True
            _LOG.warning(
                "the relay at %s has not answered for %.1f s: nothing is sent or handed out until"
                " it does",
                where,
                now_s - self._heard_s,
            )


def monotonic_now() -> Instant:
    """Return the monotonic clock's time."""
    return Instant(time.monotonic_ns())
