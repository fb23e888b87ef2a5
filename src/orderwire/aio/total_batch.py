"""Numbered PDUs on their way: batched into datagrams, with what the former one carried if wanted.

A receiver takes only what has a greater number than all before.  So copies cost nothing but bytes,
and one datagram that is lost takes nothing with it when the next one carries its PDUs again.
"""

import asyncio
from collections.abc import Callable

from orderwire.kernel import NS_PER_S

BATCH_PDUS_MAX = 4_096


class Batch:
    """Collects PDUs and makes datagrams of them.

    `head(first)` returns the head of a datagram whose first PDU has that number; `send(data)` sends
    one.  Each is at most `bytes_max` long, unless one PDU alone is longer.
    """

    def __init__(
        self,
        head: Callable[[int], bytes],
        send: Callable[[bytes], None],
        *,
        head_bytes: int,
        bytes_max: int,
        repeats: bool,
    ) -> None:
        self._head = head
        self._send = send
        self._room = bytes_max - head_bytes
        self._repeats = repeats
        self._limit = self._room // 2 if repeats else self._room
        """Bytes of new PDUs in a datagram."""
        self._next = 1
        self._pdus: list[bytes] = []
        self._bytes = 0
        self._last: list[bytes] = []
        """What the last datagram carried for the first time, if it is to be repeated."""
        self.last_datagram = b""
        """To be sent once more when none follows it; empty when it has been."""

    def __len__(self) -> int:
        return len(self._pdus)

    @property
    def next_number(self) -> int:
        """The number of the next PDU that is added."""
        return self._next

    def add(self, pdu: bytes) -> None:
        """Put a PDU behind the others; what does not fit with it is sent."""
        size = len(pdu)
        if self._pdus and (self._bytes + size > self._limit or len(self._pdus) >= BATCH_PDUS_MAX):
            self.flush()
        self._pdus.append(pdu)
        self._bytes += size
        self._next += 1

    def flush(self) -> None:
        """Send what has been added."""
        pdus = self._pdus
        if not pdus:
            return
        first = self._next - len(pdus)
        if self._repeats:
            last = self._last
            room = self._room - self._bytes
            begin = len(last)
            while begin and len(last[begin - 1]) <= room:
                begin -= 1
                room -= len(last[begin])
            copies = last[begin:]
            datagram = self._head(first - len(copies)) + b"".join(copies) + b"".join(pdus)
            self._last = pdus
            self.last_datagram = datagram
        else:
            datagram = self._head(first) + b"".join(pdus)
        self._pdus = []
        self._bytes = 0
        self._send(datagram)

    def repeat(self) -> None:
        """Send the last datagram once more, unless that has been done."""
        datagram, self.last_datagram = self.last_datagram, b""
        if datagram:
            self._send(datagram)


class Repeater:
    """Sends a last datagram once more when none has followed it for a while."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, after_ns: int, repeat: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._after_s = after_ns / NS_PER_S
        self._repeat = repeat
        self._due_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def sent(self) -> None:
        """Note that a datagram has left."""
        self._due_s = self._loop.time() + self._after_s
        if self._timer is None:
            self._timer = self._loop.call_at(self._due_s, self._look)

    def stop(self) -> None:
        """Repeat nothing until another has left."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        if self._loop.time() < self._due_s:  # Others have left since.
            self._timer = self._loop.call_at(self._due_s, self._look)
        else:
            self._repeat()
