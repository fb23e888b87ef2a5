"""Addresses: what they say about who can reach them, and their one way of writing."""

import asyncio
import contextlib
import ipaddress
import socket

from orderwire.kernel import LocalProtocolError

PORT_MAX = 65_535


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of HOST:PORT; an IPv6 address stands in brackets.

    Raises LocalProtocolError on anything else.
    """
    host, colon, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    bare = host[1:-1] if bracketed else host
    plain = bool(bare) and "[" not in bare and "]" not in bare
    if not (colon and plain and port.isascii() and port.isdigit()) or (":" in bare) != bracketed:
        raise LocalProtocolError(f"address {address!r}, expected HOST:PORT, as in 127.0.0.1:7400")
    if int(port) > PORT_MAX:
        raise LocalProtocolError(f"address {address!r} has a port above {PORT_MAX}")
    return bare, int(port)


def join_address(host: str, port: int) -> str:
    """Return HOST:PORT, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def looked_up(address: str) -> tuple[socket.AddressFamily, tuple[str, int]]:
    """Return the family and the number of the host, and the port; IPv4 where there is a choice.

    Raises LocalProtocolError on no address, OSError for a host that is not known.
    """
    host, port = split_address(address)
    with contextlib.suppress(ValueError):
        number = ipaddress.ip_address(host)
        # A number needs no resolver, nor the thread that asks it.
        return socket.AF_INET if number.version == 4 else socket.AF_INET6, (str(number), port)
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    family, _, _, _, where = min(found, key=lambda each: each[0] != socket.AF_INET)
    return family, (str(where[0]), port)


async def looked_up_ipv4(address: str) -> tuple[str, int]:
    """Return the IPv4 number of the host, and the port.  Raises as `looked_up` does."""
    family, (number, port) = await looked_up(address)
    if family != socket.AF_INET:
        raise LocalProtocolError(f"{address} is at {number}: expected an IPv4 address")
    return number, port


def is_bindable(host: str) -> bool:
    """Whether this machine has the numeric address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            return False
    return True


async def advertised(advertise: str, port: int) -> str:
    """Return the numeric address that others shall call, from `HOST` or `HOST:PORT`.

    `port` holds where none is given.  Raises LocalProtocolError for what nobody can call, OSError
    for a host that is not known.
    """
    with_port = ":" in advertise.rpartition("]")[2]
    _, (host, told) = await looked_up(advertise if with_port else f"{advertise}:{port}")
    if ipaddress.ip_address(host).is_unspecified or not told:
        raise LocalProtocolError(f"advertise={advertise!r} is no address that others can call")
    return join_address(host, told)


async def resolved(address: str) -> str:
    """Return the address with the host's number in place of its name: peers know it by that.

    Raises LocalProtocolError on no address, OSError for a host that is not known.
    """
    _, (host, port) = await looked_up(address)
    return join_address(host, port)
