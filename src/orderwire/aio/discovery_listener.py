"""Connections that others open: accepted, counted, and closed when nobody says who it is."""

import asyncio
import errno
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from functools import partial

from orderwire.aio.discovery_faults import Fault
from orderwire.aio.discovery_settings import TransportSettings, seconds
from orderwire.aio.discovery_stream import DiscoveryStream

_LOG = logging.getLogger(__name__)

_BACKLOG = 1_024
_ACCEPTS_MAX = 64
"""Connections accepted before others have their turn."""
_PAUSE_S = 0.1
"""How long nothing is accepted when the system has no more room."""
_GRACE_S = 0.2
"""How long a connection may take to say who it is, however many want to."""
_FULL = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_KEYS_MAX = 4_096
_OTHERS = "others"


class Tally(Counter[str]):
    """Counts by who it was; when there are too many of them, the rest is counted together."""

    def note(self, key: str, count: int = 1) -> int:
        """Count, and return how many that makes for this one."""
        if key not in self and len(self) >= _KEYS_MAX:
            key = _OTHERS
        self[key] += count
        return self[key]


class Listener:
    """One listening socket and the connections that came from it."""

    def __init__(
        self,
        listening: socket.socket,
        make: Callable[[], DiscoveryStream],
        settings: TransportSettings,
        context: ssl.SSLContext | None,
    ) -> None:
        self.refusals = Tally()
        """Connections refused or cut as the other side's fault, by host, and …"""
        self.faults: Counter[Fault] = Counter()
        """… by what it did."""
        self._listening = listening
        self._make = make
        self._settings = settings
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._open = 0
        self._unknown: dict[asyncio.Task[None] | DiscoveryStream, tuple[str, float]] = {}
        """Connections that have not said who they are, tasks while TLS begins: host, since when."""
        self.tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin to accept."""
        self._listening.listen(_BACKLOG)
        self._loop.add_reader(self._listening.fileno(), self._accept)

    async def close(self) -> None:
        """Accept nothing more; what is on its way in is dropped."""
        if self._listening.fileno() >= 0:
            self._loop.remove_reader(self._listening.fileno())
            self._listening.close()
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def opened(self, stream: DiscoveryStream) -> None:
        """Wait for this connection's hello."""
        assert stream.attempt is not None
        self._unknown.pop(stream.attempt, None)
        self._unknown[stream] = stream.source, stream.opened

    def known(self, stream: DiscoveryStream) -> None:
        """It has said who it is."""
        self._unknown.pop(stream, None)

    def gone(self, stream: DiscoveryStream) -> None:
        """It is closed."""
        self._unknown.pop(stream, None)
        self._open -= 1

    def refuse(self, host: str, fault: Fault, why: str) -> None:
        """Count and log why a connection is closed."""
        self.faults[fault] += 1
        count = self.refusals.note(host)
        if count.bit_count() == 1:  # the 1st, 2nd, 4th, …: a flood stays readable
            _LOG.warning("closed a connection of %s (%d so far): %s", host, count, why)

    def _accept(self) -> None:
        for number in range(_ACCEPTS_MAX):
            if len(self._unknown) >= self._settings.unknown_max:
                if number:  # Whether another one waits, the loop will tell.
                    return
                if not self._evict():
                    self._pause(_GRACE_S)
                    return
            try:
                accepted, name = self._listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _FULL:
                    _LOG.warning("no connection can be accepted: %s", error)
                    self._pause(_PAUSE_S)
                    return
                continue  # That one is gone already.
            host = str(name[0])
            accepted.setblocking(False)
            if self._open >= self._settings.inbound_max:
                accepted.close()
                self.refuse(host, Fault.TOO_MANY, f"{self._open} connections are open")
                continue
            self._open += 1
            stream = self._make()
            task = stream.attempt = self._loop.create_task(self._take(stream, accepted, host))
            self._unknown[task] = host, self._loop.time()
            self.tasks.add(task)
            task.add_done_callback(partial(self._taken, stream, accepted))

    def _pause(self, wait_s: float) -> None:
        """Let those that come wait in the kernel for so long."""
        self._loop.remove_reader(self._listening.fileno())
        self._loop.call_later(wait_s, self._accept_again)

    def _accept_again(self) -> None:
        if self._listening.fileno() >= 0:
            self._loop.add_reader(self._listening.fileno(), self._accept)

    def _evict(self) -> bool:
        """Close the connection that has said nothing for longest, if it had time to speak."""
        oldest, (host, since) = next(iter(self._unknown.items()))
        if self._loop.time() - since < _GRACE_S:
            return False
        del self._unknown[oldest]
        self.refuse(host, Fault.SILENT, "it said nothing, and others want to")
        if isinstance(oldest, DiscoveryStream):
            oldest.abort()
        else:
            oldest.cancel()
        return True

    async def _take(self, stream: DiscoveryStream, accepted: socket.socket, host: str) -> None:
        """Make a stream of an accepted connection, after the TLS handshake where there is one."""
        hello_s = seconds(self._settings.hello_ns)
        try:
            await self._loop.connect_accepted_socket(
                lambda: stream,
                accepted,
                ssl=self._context,
                ssl_handshake_timeout=hello_s if self._context is not None else None,
            )
        except OSError as error:
            why = f"no connection: {error or type(error).__name__}"
            self.refuse(host, Fault.UNPROTECTED, why)

    def _taken(
        self, stream: DiscoveryStream, accepted: socket.socket, task: "asyncio.Task[None]"
    ) -> None:
        """Forget a connection of which no stream came: its task may never have begun."""
        self.tasks.discard(task)
        self._unknown.pop(task, None)
        if not stream.was_opened:
            self._open -= 1
            accepted.close()
