"""What a connection still has to send: bytes in memory and runs of bytes in files.

It writes to the socket itself, through a descriptor of its own: memory with writev, files with
sendfile, in one order, without blocking.  asyncio's transport only receives.  That way nothing is
copied, the backlog is known exactly, and asyncio and uvloop behave alike.
"""

import errno
import os
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable

from orderwire.broker.wire.parts import Buffer, FileSlice, Part

SENDFILE_FROM_BYTES = 32 << 10
"""Shorter runs are read and joined with what stands around them: one system call less."""
_VECTORS_MAX = 256
"""Buffers in one writev; the kernel's limit is 1024."""
_TURN_BYTES_MAX = 2 << 20
"""Most bytes sent before other connections have their turn."""
_READ_BYTES = 256 << 10
"""Piece in which a file is read where sendfile cannot be used."""
_NO_SENDFILE = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})


class FileCut(OSError):
    """A file became shorter than the run that was promised from it."""


class Outbox:
    """An unbounded queue whose owner watches `backlog_bytes`."""

    def __init__(
        self,
        loop: AbstractEventLoop,
        descriptor: int,
        *,
        sent: Callable[[], None],
        broken: Callable[[OSError], None],
    ) -> None:
        """Send to a duplicate of this socket's descriptor; `sent` follows every progress."""
        self._loop = loop
        self._descriptor = os.dup(descriptor)
        self._sent = sent
        self._broken = broken
        self._queue: deque[Part] = deque()
        self._waiting = False
        self._use_sendfile = True
        self.backlog_bytes = 0
        """Bytes not yet taken by the kernel; file slices count but occupy no memory."""

    def send(self, parts: list[Part]) -> None:
        """Queue these parts and send what the kernel takes now."""
        if self._descriptor < 0:
            return
        for part in parts:
            size = len(part)
            if size == 0:
                continue
            if isinstance(part, FileSlice) and size < SENDFILE_FROM_BYTES:
                part = part.read()
                if len(part) != size:
                    self._fail(FileCut(errno.EIO, f"{len(part)} bytes left of {size}"))
                    return
            self._queue.append(part)
            self.backlog_bytes += size
        if not self._waiting:
            self._pump()

    def close(self) -> None:
        """Drop what is left and close the descriptor."""
        if self._descriptor < 0:
            return
        if self._waiting:
            self._loop.remove_writer(self._descriptor)
            self._waiting = False
        os.close(self._descriptor)
        self._descriptor = -1
        self._queue.clear()
        self.backlog_bytes = 0

    def _pump(self) -> None:
        left = _TURN_BYTES_MAX
        try:
            while self._queue and left > 0:
                first = self._queue[0]
                if isinstance(first, FileSlice):
                    left -= self._send_file(first, left)
                else:
                    left -= self._send_memory()
        except BlockingIOError:
            pass
        except InterruptedError:
            pass
        except OSError as error:
            self._fail(error)
            return
        self._watch(bool(self._queue))

    def _ready(self) -> None:
        self._pump()
        if self._descriptor >= 0:
            self._sent()

    def _watch(self, wanted: bool) -> None:
        if wanted and not self._waiting:
            self._loop.add_writer(self._descriptor, self._ready)
        elif self._waiting and not wanted:
            self._loop.remove_writer(self._descriptor)
        self._waiting = wanted

    def _send_memory(self) -> int:
        queue = self._queue
        vectors: list[Buffer] = []
        for part in queue:
            if isinstance(part, FileSlice) or len(vectors) == _VECTORS_MAX:
                break
            vectors.append(part)
        if len(vectors) == 1:
            count = os.write(self._descriptor, vectors[0])
        else:
            count = os.writev(self._descriptor, vectors)
        self.backlog_bytes -= count
        left = count
        while left:
            part = queue[0]
            size = len(part)
            if size > left:
                assert not isinstance(part, FileSlice)
                queue[0] = memoryview(part)[left:]
                break
            left -= size
            queue.popleft()
        return count

    def _send_file(self, run: FileSlice, limit: int) -> int:
        if not self._use_sendfile:
            self._read_file(run)
            return 0
        try:
            count = os.sendfile(self._descriptor, run.file, run.position, min(run.length, limit))
        except OSError as error:
            if error.errno not in _NO_SENDFILE:
                raise
            self._use_sendfile = False
            return 0
        if count == 0:
            raise FileCut(errno.EIO, f"the file ends {run.length} bytes before the run does")
        self.backlog_bytes -= count
        self._advance(run, count)
        return count

    def _read_file(self, run: FileSlice) -> None:
        data = os.pread(run.file, min(run.length, _READ_BYTES), run.position)
        if not data:
            raise FileCut(errno.EIO, f"the file ends {run.length} bytes before the run does")
        self._advance(run, len(data))
        self._queue.appendleft(data)

    def _advance(self, run: FileSlice, count: int) -> None:
        if count == run.length:
            self._queue.popleft()
        else:
            rest = run.length - count
            self._queue[0] = FileSlice(run.file, run.position + count, rest, run.owner)

    def _fail(self, error: OSError) -> None:
        self.close()
        self._broken(error)
