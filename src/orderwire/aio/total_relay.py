"""The relay of a 1C channel: it puts the PDUs of all members in one order.  [S003:sec.2]

Members send it datagrams; it gives every PDU the next channel number, CSN, and sends it to all of
them, its sender too.  Who receives drops what is not greater than all before: so reordering on the
way is loss, and every member gets a part of one order.  ST decides without a leader, but it orders
through this one process: when it dies, a relay of another incarnation follows with the next view.
"""

import asyncio
import contextlib
import ipaddress
import logging
import secrets
import socket
import time
from collections import Counter
from random import Random
from typing import Self

import msgspec

from orderwire.aio.addresses import PORT_MAX, is_loopback
from orderwire.aio.datagram import (
    DATAGRAM_BYTES_MAX,
    Address,
    DatagramSocket,
    datagram_bytes,
    open_socket,
    send_multicasts_on,
)
from orderwire.aio.total_batch import Batch, Repeater
from orderwire.aio.total_frames import (
    BYE,
    DOWN_HEAD_BYTES,
    HELLO,
    PDU_HEAD_BYTES,
    UP,
    UP_HEAD_BYTES,
    Call,
    Refused,
    Welcome,
    decode_call,
    decode_pdus,
    decode_up,
    encode_down,
    encode_refused,
    encode_welcome,
    kind_of,
)
from orderwire.kernel import (
    GROUP_SIZE_MAX,
    NS_PER_MS,
    NS_PER_S,
    Instant,
    LocalProtocolError,
    RemoteProtocolError,
    stream,
)

_LOG = logging.getLogger(__name__)

LOOPBACK_DATAGRAM_BYTES = 8_192
"""Largest datagram on this machine: more would fill a receiver's buffer with few."""
DATAGRAM_BYTES_MIN = 256
RECEIVE_BYTES_MIN = 2_304
RECEIVE_BYTES_MAX = 1 << 30


class RelaySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a relay works.  Raises LocalProtocolError."""

    multicast: Address | None = None
    """Group and port to which it sends; None: to each member by itself."""
    multicast_interface: str = "127.0.0.1"
    datagram_bytes_max: int | None = None
    """None: 8,192 on this machine, else what the path takes unfragmented."""
    repeats: bool = True
    """Whether each datagram carries the PDUs of the one before once more: its loss is none then."""
    repeat_ns: int = 2 * NS_PER_MS
    """After this the last datagram is sent once more, when none has followed."""
    loss: float = 0.0
    """Share of all datagrams, up and down, that is lost on purpose."""
    seed: int = 0
    """Of what is lost: each member has its own streams."""
    receive_bytes: int | None = None
    """SO_RCVBUF; None: as much as the kernel gives."""
    members_max: int = 256
    silence_ns: int = 10 * NS_PER_S
    """A member that says nothing for so long is sent nothing, until it speaks again."""

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        if not 0.0 <= self.loss < 1.0:
            raise LocalProtocolError(f"loss={self.loss!r}, expected 0 to less than 1")
        refuse_datagram_bytes(self.datagram_bytes_max)
        if not 1 <= self.members_max <= GROUP_SIZE_MAX:
            raise LocalProtocolError(f"members_max={self.members_max}, expected 1 to 4096")
        refuse_receive_bytes(self.receive_bytes)
        refuse_multicast_interface(self.multicast_interface)
        if self.multicast is not None:
            host, port = self.multicast
            if not (_is_ipv4(host) and ipaddress.IPv4Address(host).is_multicast):
                raise LocalProtocolError(
                    f"{host!r} is no address of a multicast group: 224.0.0.0 to 239.255.255.255"
                )
            if not 0 < port <= PORT_MAX:
                raise LocalProtocolError(f"multicast group {host} needs a port: 1 to {PORT_MAX}")


class _Member:
    """What the relay knows of one."""

    __slots__ = ("address", "heard_ns", "incarnation", "last", "loss")

    def __init__(self, call: Call, address: Address, loss: Random) -> None:
        self.incarnation = call.incarnation
        self.address = address
        self.last = 0
        """The number of its last PDU."""
        self.heard_ns = time.monotonic_ns()
        self.loss = loss


class ChannelRelay:
    """One relay.  `counters` says what it has done, and what it has dropped by reason."""

    def __init__(self, udp: socket.socket, settings: RelaySettings, incarnation: int) -> None:
        self.settings = settings
        self.incarnation = incarnation
        host, port = udp.getsockname()[:2]
        self.address: Address = (host, port)
        self.counters: Counter[str] = Counter()
        self._members: dict[int, _Member] = {}
        """Who is here, by its id."""
        self._incarnations: dict[int, int] = {}
        """The newest incarnation of every id that was ever here."""
        self.reuses_ids = False
        """Whether a newer incarnation may follow: only where views say who is a member."""
        self._loop = asyncio.get_running_loop()
        self._socket = DatagramSocket(
            udp,
            offload=False,
            received=self._received,
            drained=self._drained,
            now=lambda: Instant(time.monotonic_ns()),
        )
        if settings.multicast is not None:
            send_multicasts_on(udp, settings.multicast_interface)
        size = settings.datagram_bytes_max
        if size is None:
            size = LOOPBACK_DATAGRAM_BYTES
            if not is_loopback(host):
                size = min(size, datagram_bytes(settings.multicast or (host, port)))
        self.datagram_bytes = size
        self._batch = self._new_batch()
        self._repeater = Repeater(self._loop, settings.repeat_ns, self._repeat)
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._sweep()

    def _new_batch(self) -> Batch:
        incarnation = self.incarnation
        return Batch(
            lambda first: encode_down(incarnation, first),
            self._send_all,
            head_bytes=DOWN_HEAD_BYTES,
            bytes_max=self.datagram_bytes,
            repeats=self.settings.repeats,
        )

    def renew(self, incarnation: int) -> None:
        """Begin again as another relay, that nobody has come to yet."""
        self.incarnation = incarnation
        self._members.clear()
        self._batch = self._new_batch()

    @classmethod
    async def open(
        cls,
        address: Address,
        settings: RelaySettings | None = None,
        *,
        incarnation: int | None = None,
    ) -> Self:
        """Bind a relay to this address; port 0 is a free one.

        `incarnation`: greater than that of every relay before it; None: by the clock.
        """
        settings = settings or RelaySettings()
        udp, _ = open_socket(address, offload=False)
        with contextlib.ExitStack() as stack:
            stack.callback(udp.close)
            limit_receive_buffer(udp, settings.receive_bytes)
            relay = cls(udp, settings, new_incarnation() if incarnation is None else incarnation)
            stack.pop_all()
        return relay

    @property
    def present(self) -> int:
        """Bit mask of the members that are here."""
        return sum(1 << member for member in self._members)

    @property
    def next_csn(self) -> int:
        """The number of the next PDU."""
        return self._batch.next_number

    async def close(self) -> None:
        """Stop."""
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        self._batch.flush()
        self._repeater.stop()
        self._socket.close()

    # ------------------------------------------------------------------ receiving

    def _received(self, data: memoryview, address: Address, _: Instant) -> None:
        try:
            kind = kind_of(data)
            if kind == UP:
                self._take(bytes(data), address)
            elif kind == HELLO:
                self._greet(decode_call(data), address)
            elif kind == BYE:
                self._part(decode_call(data), address)
            else:
                self.counters["not for a relay"] += 1
        except RemoteProtocolError as error:
            self.counters["malformed"] += 1
            _LOG.debug("from %s: %s", address, error)

    def _take(self, data: bytes, address: Address) -> None:
        up = decode_up(data)
        member = self._members.get(up.member)
        if member is None or member.address != address or member.incarnation != up.incarnation:
            self.counters["from nobody here"] += 1
            return
        if up.relay != self.incarnation:
            self.counters["for another relay"] += 1
            return
        if member.loss.random() < self.settings.loss:
            self.counters["lost on purpose"] += 1
            return
        pdus = decode_pdus(data, UP_HEAD_BYTES)
        skipped = member.last + 1 - up.first
        if skipped > 0:
            self.counters["copies"] += min(skipped, len(pdus))
            pdus = pdus[skipped:]
        elif skipped < 0:
            self.counters["missed"] -= skipped
        if not pdus:
            return
        number = up.member
        if any(source != number for source, _, _ in pdus):
            raise RemoteProtocolError(f"process {number} sends PDUs of others")
        member.last = up.first + max(skipped, 0) + len(pdus) - 1
        member.heard_ns = time.monotonic_ns()
        add = self._batch.add
        for _, begin, end in pdus:
            add(data[begin - PDU_HEAD_BYTES : end])

    def _greet(self, call: Call, address: Address) -> None:
        member = self._members.get(call.member)
        newest = self._incarnations.get(call.member, call.incarnation)
        why = ""
        if call.incarnation < newest:
            why = f"a newer process {call.member} is here"
        elif call.incarnation > newest and not self.reuses_ids:
            why = f"process {call.member} was here: its successor cannot know what it has sent"
        elif member is None and len(self._members) >= self.settings.members_max:
            why = f"{len(self._members)} members are here, which is the most"
        if why:
            self.counters["refused"] += 1
            self._socket.send([encode_refused(Refused(self.incarnation, why))], address)
            return
        is_new = member is None or member.incarnation != call.incarnation
        if is_new:
            loss = stream(self.settings.seed, f"channel/up/{call.member}")
            member = _Member(call, address, loss)
            self._members[call.member] = member
            self._incarnations[call.member] = call.incarnation
            _LOG.info("member %d is here, at %s", call.member, address)
        assert member is not None
        member.address = address
        member.heard_ns = time.monotonic_ns()
        settings = self.settings
        welcome = encode_welcome(
            Welcome(
                self.incarnation, settings.multicast, settings.loss, settings.seed, self.present
            )
        )
        # All hear at once of somebody new: they may be waiting for it.
        for each in self._members.values() if is_new else (member,):
            self._socket.send([welcome], each.address)

    def _part(self, call: Call, address: Address) -> None:
        member = self._members.get(call.member)
        if member is not None and (member.incarnation, member.address) == (
            call.incarnation,
            address,
        ):
            del self._members[call.member]

    def _sweep(self) -> None:
        """Forget who says nothing any more."""
        now = time.monotonic_ns()
        for number, member in list(self._members.items()):
            if now - member.heard_ns > self.settings.silence_ns:
                del self._members[number]
                self.counters["gone silent"] += 1
        self._sweep_timer = self._loop.call_later(
            self.settings.silence_ns / 4 / NS_PER_S, self._sweep
        )

    # ------------------------------------------------------------------ sending

    def _drained(self) -> None:
        self._batch.flush()

    def _send_all(self, datagram: bytes) -> None:
        self.counters["datagrams"] += 1
        if self.settings.multicast is not None:
            self._socket.send([datagram], self.settings.multicast)
        else:
            for member in self._members.values():
                self._socket.send([datagram], member.address)
        if self.settings.repeats:
            self._repeater.sent()

    def _repeat(self) -> None:
        self._batch.repeat()

    @property
    def send_errors(self) -> int:
        """Datagrams that the kernel did not take."""
        return self._socket.send_errors


def limit_receive_buffer(udp: socket.socket, size: int | None) -> None:
    """Make a socket's receive buffer this large, within what the kernel allows."""
    if size is not None:
        udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)


def refuse_datagram_bytes(size: int | None) -> None:
    """Raise LocalProtocolError where no datagram can be so large."""
    if size is not None and (
        type(size) is not int or not DATAGRAM_BYTES_MIN <= size <= DATAGRAM_BYTES_MAX
    ):
        raise LocalProtocolError(
            f"datagram_bytes_max={size!r}, expected {DATAGRAM_BYTES_MIN} to {DATAGRAM_BYTES_MAX}"
        )


def refuse_receive_bytes(size: int | None) -> None:
    """Raise LocalProtocolError where this can be no SO_RCVBUF."""
    if size is not None and (
        type(size) is not int or not RECEIVE_BYTES_MIN <= size <= RECEIVE_BYTES_MAX
    ):
        raise LocalProtocolError(
            f"receive_bytes={size!r}, expected {RECEIVE_BYTES_MIN} to {RECEIVE_BYTES_MAX}"
        )


def refuse_multicast_interface(address: str) -> None:
    """Raise LocalProtocolError where this is no address of an interface."""
    if not _is_ipv4(address):
        raise LocalProtocolError(
            f"multicast_interface={address!r} must be the IPv4 address of an interface"
        )


def _is_ipv4(host: str) -> bool:
    try:
        ipaddress.IPv4Address(host)
    except ValueError:
        return False
    return True


def new_incarnation() -> int:
    """Return a number that is greater than those of all before, on a clock that is not put back."""
    return time.time_ns() & ~0xFFFF | secrets.randbits(16)
