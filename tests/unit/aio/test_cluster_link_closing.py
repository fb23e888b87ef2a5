"""A link between brokers whose transport closes before it is told."""

import asyncio
from typing import Any

from orderwire.aio.cluster_frames import VERSION, Hello
from orderwire.aio.cluster_link import Link


class Closing(asyncio.Transport):
    """Raises at a write, as uvloop's does once it is closing."""

    def __init__(self) -> None:
        super().__init__()
        self.closing = False
        self.written: list[bytes] = []

    def is_closing(self) -> bool:
        return self.closing

    def write(self, data: Any) -> None:
        assert not self.closing, "unable to perform operation on a closing transport"
        self.written.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None:
        self.closing = True


async def exchange() -> list[bytes]:
    hello = Hello(VERSION, "c", 1, "i", 1, 2)
    link = Link(
        hello=hello,
        greeted=lambda *_: None,
        received=lambda *_: None,
        settled=lambda: None,
        ended=lambda *_: None,
    )
    transport = Closing()
    link.connection_made(transport)
    link.send(b"first")
    link.flush()
    transport.closing = True
    link.send(b"second")
    link.flush()
    link.greet(hello)
    link.hello = hello
    link._look()
    link.connection_lost(None)
    return transport.written


def test_nothing_is_written_to_a_transport_that_closes() -> None:
    written = asyncio.run(exchange())
    assert b"first" in written
    assert b"second" not in written
