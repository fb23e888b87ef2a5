"""How an address is called: a second attempt soon after the first, so many at a time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

_LAG = 0.25
"""A timer that is later than this share of its time says that the process was held up."""
_GRANTS_MAX = 3
"""How often that grants the time once more."""


class Session:
    """All that one link does to connect, until it is or gives up."""

    def __init__(self) -> None:
        self.attempts: dict[asyncio.Task[None], None] = {}
        """Attempts that have neither brought a connection nor failed."""
        self.begun = 0
        """Attempts so far."""
        self.established = False
        """The other side's kernel has answered: more attempts would bring nothing more."""
        self.ended = False
        self.timers: list[asyncio.TimerHandle] = []
        self.queue: dict[Session, Caller] = {}
        """Where it waits for room, if it does."""

    @property
    def busy(self) -> bool:
        """Whether something may still come of it."""
        return not self.begun or bool(self.attempts)

    def end(self) -> None:
        """Stop what is under way."""
        self.ended = True
        self.queue.pop(self, None)
        for timer in self.timers:
            timer.cancel()
        for task in list(self.attempts):
            task.cancel()
        self.attempts.clear()


class Caller(Protocol):
    """The link that calls."""

    address: str

    @property
    def has_candidates(self) -> bool:
        """Whether connections stand that one could be chosen of."""
        ...

    def attempt_failed(self, why: str) -> None:
        """One attempt has failed."""
        ...

    def give_up(self, why: str) -> None:
        """It took too long."""
        ...


class Dialler:
    """Runs the sessions of all links: different addresses in parallel, never one after the other.

    `connect(address, established)` makes one connection, and calls `established` when the kernel
    has; it raises OSError where that fails.
    """

    def __init__(
        self,
        connect: Callable[[str, Callable[[], None]], Awaitable[None]],
        *,
        connect_s: float,
        attempt_s: float,
        attempts_max: int,
        half_open_max: int,
        waiting_max: int,
    ) -> None:
        self._connect = connect
        self._connect_s = connect_s
        self._attempt_s = attempt_s
        self._attempts_max = attempts_max
        self._half_open_max = half_open_max
        self._waiting_max = waiting_max
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._queue: dict[Session, Caller] = {}
        """Those that wait for room, the first first."""

    @property
    def half_open(self) -> int:
        """Attempts under way."""
        return len(self._tasks)

    @property
    def waiting(self) -> int:
        """Sessions that wait for room."""
        return len(self._queue)

    def dial(self, link: Caller, session: Session) -> None:
        """Begin, or wait until there is room; where too many wait already, the link gives up."""
        if len(self._tasks) < self._half_open_max:
            self._begin(link, session)
        elif len(self._queue) < self._waiting_max:
            self._queue[session] = link
            session.queue = self._queue
        else:
            self._loop.call_soon(self._refuse, link, session)

    def _refuse(self, link: Caller, session: Session) -> None:
        if not (session.ended or link.has_candidates):
            link.give_up(f"{self._waiting_max} other addresses wait to be called")

    def _begin(self, link: Caller, session: Session) -> None:
        self._watch(link, session, _GRANTS_MAX)
        if link.has_candidates:  # The other side was quicker; only if nothing comes of it.
            self._attempt_in(self._attempt_s, link, session)
        else:
            self._attempt(link, session)

    def _watch(self, link: Caller, session: Session, grants: int) -> None:
        due = self._loop.time() + self._connect_s
        session.timers.append(self._loop.call_at(due, self._late, link, session, due, grants))

    def _late(self, link: Caller, session: Session, due: float, grants: int) -> None:
        """Give up, unless it was us who had no time: then answers may wait to be read."""
        if grants and self._loop.time() - due > self._connect_s * _LAG:
            self._watch(link, session, grants - 1)
        else:
            self._loop.call_soon(self._give_up, link, session)

    def _give_up(self, link: Caller, session: Session) -> None:
        """Who accepts and is slow to speak gets as long as others do."""
        if not (session.ended or session.established or link.has_candidates):
            link.give_up(f"no answer within {self._connect_s:g} s")

    def _attempt_in(self, wait_s: float, link: Caller, session: Session) -> None:
        due = self._loop.time() + wait_s
        session.timers.append(self._loop.call_at(due, self._again, link, session, due, wait_s))

    def _again(self, link: Caller, session: Session, due: float, wait_s: float) -> None:
        """Attempt once more, after what the loop has in hand: it may be the answer."""
        if self._loop.time() - due > wait_s * _LAG:
            self._attempt_in(wait_s, link, session)  # It was us who had no time.
        else:
            self._loop.call_soon(self._attempt, link, session)

    def _attempt(self, link: Caller, session: Session) -> None:
        if session.ended or session.established:
            return
        if session.begun and len(self._tasks) >= self._half_open_max:
            return  # First attempts of others come first.
        session.begun += 1
        task = self._loop.create_task(self._try(link, session))
        session.attempts[task] = None
        self._tasks.add(task)
        task.add_done_callback(self._done)

    async def _try(self, link: Caller, session: Session) -> None:
        why = ""
        if session.begun < self._attempts_max:
            self._attempt_in(self._attempt_s * 2 ** (session.begun - 1), link, session)

        def established() -> None:
            session.established = True

        try:
            await self._connect(link.address, established)
        except OSError as error:
            why = str(error) or type(error).__name__
        task = asyncio.current_task()
        assert task is not None
        if task in session.attempts:
            del session.attempts[task]
            link.attempt_failed(why or "the connection broke at once")

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._loop.call_exception_handler(
                {"message": "connecting failed", "exception": task.exception()}
            )
        while self._queue and len(self._tasks) < self._half_open_max:
            session = next(iter(self._queue))
            self._begin(self._queue.pop(session), session)

    async def close(self) -> None:
        """End all attempts."""
        self._queue.clear()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
