"""Work that belongs to one ZooKeeper session, and starts again with the next.

A hint says that something may have changed; a worker reads again, one piece at a time, and what
comes meanwhile makes it go round once more.  [S004:G14]
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

import msgspec

from orderwire.aio.zookeeper_client import Session, ZookeeperClient
from orderwire.aio.zookeeper_errors import (
    ZnodeFailure,
    ZookeeperRefused,
    ZookeeperUnavailable,
)
from orderwire.broker.coordination.layout import Malformed
from orderwire.kernel import NS_PER_MS, NS_PER_S

_LOG = logging.getLogger(__name__)
_DOUBLINGS_MAX = 16


class ScopeLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How hard ZooKeeper is asked."""

    asked_max: int = 64
    """Workers that ask at one time; each asks for a few things together."""
    retry_min_ns: int = 50 * NS_PER_MS
    retry_max_ns: int = 2 * NS_PER_S
    """Pause after what failed, doubling from the first to the second."""


class SessionScope:
    """What is at work in a session; all of it is cancelled when that ends."""

    def __init__(self, client: ZookeeperClient, limits: ScopeLimits | None = None) -> None:
        self.client = client
        self.limits = limits or ScopeLimits()
        self.live = False
        """Whether workers may ask in this session."""
        self.malformed = 0
        """Znodes that no correct broker writes, each time they were read."""
        self.malformed_last = ""
        self.failures = 0
        """Times that ZooKeeper did not answer, or refused."""
        self.trouble: str | None = None
        """Why ZooKeeper does not help at the moment."""
        self.slots = asyncio.Semaphore(self.limits.asked_max)
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def usable(self) -> bool:
        """Whether asking makes sense now."""
        return self.live and self.client.session is Session.CONNECTED

    def spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Start something that goes with the session."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def cancel(self) -> None:
        """End all that was started."""
        self.live = False
        for task in tuple(self._tasks):
            task.cancel()

    async def ended(self) -> None:
        """Wait until what was cancelled has ended."""
        if self._tasks:
            await asyncio.wait(tuple(self._tasks))

    def found_malformed(self, error: Malformed) -> None:
        """Count a znode that cannot be read, and tell of it when it is another than the last."""
        self.malformed += 1
        if str(error) != self.malformed_last:
            _LOG.error("ZooKeeper: %s", error)
        self.malformed_last = str(error)

    def failed(self, error: Exception) -> None:
        """Count an answer that did not come."""
        self.failures += 1
        if self.trouble is None and self.usable:
            _LOG.warning("ZooKeeper: %s", error)
        self.trouble = str(error)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:  # A fault of ours.
            context = {"message": "work on ZooKeeper failed", "exception": task.exception()}
            task.get_loop().call_exception_handler(context)


class Worker:
    """Does what is pending, piece by piece, while its scope is usable."""

    def __init__(self, scope: SessionScope) -> None:
        self.scope = scope
        self._task: asyncio.Task[None] | None = None

    def pending(self) -> bool:
        """Whether there is something to do."""
        raise NotImplementedError

    async def step(self) -> None:
        """Do one piece.  What it raises of ZooKeeper's makes it pending again by `missed`."""
        raise NotImplementedError

    def missed(self) -> None:
        """A piece was not done, or it is not known: look again."""
        raise NotImplementedError

    def kick(self) -> None:
        """Start, if there is something to do and it is not being done."""
        if self._task is None and self.scope.usable and self.pending():
            self._task = self.scope.spawn(self._run())

    async def _run(self) -> None:
        scope, failures = self.scope, 0
        me = asyncio.current_task()
        try:
            while self.pending():
                try:
                    async with scope.slots:
                        await self.step()
                    failures, scope.trouble = 0, None
                    continue
                except Malformed as error:
                    scope.found_malformed(error)
                    continue  # Until it is written again, which is a hint.
                except (ZookeeperUnavailable, ZookeeperRefused, ZnodeFailure) as error:
                    self.missed()
                    scope.failed(error)
                if not scope.usable:  # It is kicked when there is a connection again.
                    return
                limits = scope.limits
                pause_ns = min(limits.retry_min_ns << failures, limits.retry_max_ns)
                failures = min(failures + 1, _DOUBLINGS_MAX)
                await asyncio.sleep(pause_ns / NS_PER_S)
        finally:
            if self._task is me:
                self._task = None

    def abandon(self) -> None:
        """Forget the work at hand: the session that it was for is over."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
