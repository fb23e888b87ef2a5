"""The UDP socket on the loop: runs in one call, fallback without segmentation, short drains."""

import asyncio
import errno
import socket
from typing import Any

import pytest
from endpoints import run, until

from orderwire.aio import datagram
from orderwire.aio.clock import GroupClock
from orderwire.aio.datagram import DATAGRAM_BYTES_MAX, DatagramSocket, datagram_bytes, open_socket
from orderwire.kernel import Instant

pytestmark = pytest.mark.network

LOOPBACK = ("127.0.0.1", 0)


class Refusing(socket.socket):
    """A socket of a kernel, or on a device, that cannot segment."""

    def sendmsg(self, *_: Any) -> int:
        raise OSError(errno.EIO, "no checksum offload")


class Peer:
    """A socket that keeps what it gets."""

    def __init__(self, udp: socket.socket, offload: bool) -> None:
        self.got: list[bytes] = []
        self.drains = 0
        self.address = udp.getsockname()
        self.socket = DatagramSocket(
            udp,
            offload=offload,
            received=lambda data, _address, _arrived: self.got.append(bytes(data)),
            drained=self.drained,
            now=GroupClock().now,
        )

    def drained(self) -> None:
        self.drains += 1


def padded(got: list[bytes], sent: list[bytes]) -> bool:
    """Whether these are the datagrams sent, perhaps padded with zeros."""
    return len(got) == len(sent) and all(
        a.startswith(b) and not a[len(b) :].strip(b"\0") for a, b in zip(got, sent, strict=True)
    )


SIZES = {
    "equal": [1_400] * 100,
    "a shorter last": [1_400] * 10 + [3],
    "nearly equal": [1_400, 1_390, 1_410, 1_200, 1_472] * 9,
    "wild": [1, 1_400, 700, 1_400, 60, 60, 61, 1_000, 9_000, 1],
    "one": [500],
    "large": [60_000] * 5,
}


@pytest.mark.parametrize("offload", [True, False])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_whatever_is_sent_arrives(sizes: list[int], offload: bool) -> None:
    async def test() -> None:
        one, two = (Peer(*open_socket(LOOPBACK, offload=offload)) for _ in range(2))
        sent = [bytes([index % 255 + 1]) * size for index, size in enumerate(sizes)]
        one.socket.send(list(sent), two.address)
        await until(lambda: len(two.got) >= len(sent), "all datagrams are there")
        assert padded(two.got, sent)
        assert one.socket.send_errors == 0
        if one.socket.offload and len(sent) >= 45 and max(sizes) < 2_000:
            assert one.socket.calls <= 4
        for each in (one, two):
            each.socket.close()

    run(test())


def test_a_kernel_that_cannot_segment_gets_datagrams_one_by_one() -> None:
    async def test() -> None:
        two = Peer(*open_socket(LOOPBACK))
        udp = Refusing(socket.AF_INET, socket.SOCK_DGRAM)
        udp.setblocking(False)
        udp.bind(LOOPBACK)
        one = Peer(udp, True)
        sent = [b"%d" % index * 100 for index in range(10)]
        one.socket.send(list(sent), two.address)
        assert one.socket.offload is False
        await until(lambda: len(two.got) == 10, "all datagrams are there")
        assert padded(two.got, sent)
        one.socket.close()
        two.socket.close()

    run(test())


def test_a_drain_ends_in_time_for_the_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datagram, "DRAIN_NS_MAX", 0)

    async def test() -> None:
        ticks = iter(range(1, 1_000))
        udp, _ = open_socket(LOOPBACK, offload=False)
        got: list[bytes] = []
        drains: list[int] = []
        slow = DatagramSocket(
            udp,
            offload=False,
            received=lambda data, _address, _arrived: got.append(bytes(data)),
            drained=lambda: drains.append(len(got)),
            now=lambda: Instant(next(ticks)),
        )
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for _ in range(10):
                sender.sendto(b"x", udp.getsockname())
        async with asyncio.timeout(10):
            while len(got) < 10:
                await asyncio.sleep(0)
        assert drains == list(range(1, 11))
        slow.close()

    run(test())


def test_loopback_takes_large_datagrams() -> None:
    assert datagram_bytes(("127.0.0.1", 9)) == DATAGRAM_BYTES_MAX


def test_what_the_kernel_does_not_take_counts_as_lost() -> None:
    async def test() -> None:
        one = Peer(*open_socket(LOOPBACK))
        one.socket.send([bytes(70_000)], ("127.0.0.1", 9))
        assert one.socket.send_errors == 1
        one.socket.close()

    run(test())
