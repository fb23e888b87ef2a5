"""Addresses of discovery: one way of writing, names only at the edge, IPv4 and IPv6."""

import asyncio
import socket

import pytest
from discovery_net import Place, in_virtual_time, until

from orderwire.aio.addresses import join_address, resolved, split_address
from orderwire.kernel import LocalProtocolError


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [("127.0.0.1:7400", "127.0.0.1", 7_400), ("[::1]:1", "::1", 1), ("name:0", "name", 0)],
)
def test_there_and_back(address: str, host: str, port: int) -> None:
    assert split_address(address) == (host, port)
    assert join_address(host, port) == address


@pytest.mark.parametrize(
    "address", ["", "host", "host:", ":1", "host:x", "::1:7400", "[host]:1", "h:65536", "h:²"]
)
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(LocalProtocolError, match="address"):
        split_address(address)


def test_names_become_numbers_of_ipv4_where_there_is_a_choice() -> None:
    assert asyncio.run(resolved("localhost:7400")) == "127.0.0.1:7400"
    assert asyncio.run(resolved("[::1]:7400")) == "[::1]:7400"


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as tried:
            tried.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.network
@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")
def test_messages_over_ipv6() -> None:
    async def work() -> None:
        places = [await Place.open("[::1]:0") for _ in range(2)]
        places[0].post(places[1], b"m")
        await until(lambda: places[1].got == [(places[0].address, b"m")])
        assert places[0].address.startswith("[::1]:")
        await asyncio.gather(*(place.transport.close() for place in places))

    in_virtual_time(work)


@pytest.mark.network
def test_a_name_to_listen_at_becomes_a_number() -> None:
    async def work() -> None:
        place = await Place.open("localhost:0")
        assert place.address.startswith("127.0.0.1:")
        await place.transport.close()

    in_virtual_time(work)
