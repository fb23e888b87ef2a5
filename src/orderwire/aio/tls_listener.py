"""Connections that begin with a TLS handshake: each counts from its first byte on.

asyncio's own server tells of one when its handshake is over: until then nobody would count them.
"""

import asyncio
import errno
import socket
import ssl
from asyncio import BufferedProtocol
from collections import Counter
from collections.abc import Callable
from functools import partial

_ACCEPTS_MAX = 64
"""Connections accepted before others have their turn."""
_PAUSE_S = 0.1
"""How long nothing is accepted when the system has no more room."""
_FULL = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class TlsListener:
    """A listening socket.  `handshakes` has those that are under way, by address."""

    def __init__(
        self,
        context: ssl.SSLContext,
        make: Callable[[], BufferedProtocol],
        *,
        may_enter: Callable[[str], bool],
        handshake_s: float,
    ) -> None:
        """`may_enter(address)` says whether another one is taken; it tells why not."""
        self.handshakes: Counter[str] = Counter()
        self._context = context
        self._make = make
        self._may_enter = may_enter
        self._handshake_s = handshake_s
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listening: socket.socket | None = None
        self.address = ("", 0)

    async def bind(self, host: str, port: int, backlog: int) -> None:
        """Take the address; `start` accepts.  Raises OSError."""
        found = await self._loop.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, name = found[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listening.bind(name)
            listening.listen(backlog)
            listening.setblocking(False)
        except OSError:
            listening.close()
            raise
        self._listening = listening
        bound = listening.getsockname()
        self.address = (str(bound[0]), int(bound[1]))

    def start(self) -> None:
        """Begin to accept."""
        assert self._listening is not None
        self._loop.add_reader(self._listening.fileno(), self._accept)

    def close(self) -> None:
        """Accept nothing more, and end handshakes."""
        if self._listening is not None:
            self._loop.remove_reader(self._listening.fileno())
            self._listening.close()
            self._listening = None
        for task in list(self._tasks):
            task.cancel()

    async def wait_closed(self) -> None:
        """Wait until no handshake is left."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_MAX):
            if self._listening is None:
                return
            try:
                accepted, name = self._listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _FULL:
                    self._loop.remove_reader(self._listening.fileno())
                    self._loop.call_later(_PAUSE_S, self._accept_again)
                    return
                continue  # that one is gone already
            host = str(name[0])
            if not self._may_enter(host):
                accepted.close()
                continue
            accepted.setblocking(False)
            self.handshakes[host] += 1
            task = self._loop.create_task(self._take(accepted))
            self._tasks.add(task)
            task.add_done_callback(partial(self._taken, host, accepted))

    def _accept_again(self) -> None:
        if self._listening is not None:
            self.start()

    async def _take(self, accepted: socket.socket) -> None:
        """The protocol hears of the connection when the handshake is over."""
        await self._loop.connect_accepted_socket(
            self._make,
            accepted,
            ssl=self._context,
            ssl_handshake_timeout=self._handshake_s,
        )

    def _taken(self, host: str, accepted: socket.socket, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        self.handshakes[host] -= 1
        if not self.handshakes[host]:
            del self.handshakes[host]
        if task.cancelled() or task.exception() is not None:  # nothing came of it
            accepted.close()
