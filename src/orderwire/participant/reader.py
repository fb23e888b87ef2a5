"""Readers: a bounded queue with a stated policy, handed over by iterator or by callback."""

import asyncio
import contextlib
import inspect
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from typing import TYPE_CHECKING, Any, Self

from msgspec.structs import replace

from orderwire.kernel import NS_PER_S, NS_PER_US, LocalProtocolError
from orderwire.participant.samples import MemberChange, ReaderCounters, Sample
from orderwire.participant.topics import Decode, Pattern

if TYPE_CHECKING:
    from orderwire.participant.topic_domain import TopicDomain

_LOG = logging.getLogger(__name__)

QUEUE_SAMPLES_MAX = 65_536
"""Default limit of a reader's queue."""

TURN_S = 0.005
"""Whoever gets samples without a pause for so long gives the loop its turn: protocols go on.

Counting samples would not do: a flood brings more of them in one turn than any count.
"""
FULL_TURN_S = 0.05
"""The same while the queue is more than half full: what comes meanwhile waits in the kernel."""

RUN_SAMPLES_MAX = 16
"""Samples between two looks at the clock, while callbacks return quickly."""
RUN_NS = 50 * NS_PER_US

EXPIRY_PAUSE_S = 0.05
"""How often those who wait for an empty queue look whether something in it has expired."""

Callback = Callable[[Sample], None] | Callable[[Sample], Awaitable[None]]
ErrorHandler = Callable[[Exception, Sample], None]


class Overflow(Enum):
    """What happens to a sample that finds the queue full.  Each one is counted and announced.

    Holding up the writers is a choice with `SelectiveTotal` alone, where a reader without gaps is
    the point: one slow reader slows the others down.
    """

    DROP_OLDEST = "drop-oldest"
    """Remove the oldest sample: what is handed over stays fresh."""
    DROP_NEWEST = "drop-newest"
    """Refuse the new sample: what was queued is kept."""
    HOLD = "hold"
    """Drop nothing, take nothing more: buffers fill, and writers to this participant wait."""


class Reader:
    """Reads the topics that match its pattern.  Make one with `participant.reader(…)`.

    `async for sample in reader` or a callback hands over every sample, in the domain's order.  A
    sample that outlives its lifetime in the queue is never handed over: it counts as expired.

    Each reader has a queue of its own.  Two readers in one process have what they share in one
    order, but the one may be handed a message long before the other: who wants the order over
    several topics reads them with one reader and a pattern.
    """

    def __init__(
        self,
        domain: "TopicDomain",
        pattern: Pattern,
        *,
        decode: Decode | None,
        callback: Callback | None,
        on_error: ErrorHandler | None,
        in_thread: bool,
        own: bool,
        queue_samples_max: int,
        overflow: Overflow,
    ) -> None:
        self.pattern = pattern
        self.counters = ReaderCounters()
        self.closed = False
        self._lost = ""
        self._domain = domain
        self._clock = domain.clock
        self._lifetime_ns = domain.order.lifetime_ns
        self._decode = decode
        self._callback = callback
        self._on_error = on_error
        self._own = own
        self._limit = queue_samples_max
        self._overflow = overflow
        self._queue: deque[Any] = deque()
        """Samples, and between them changes of the members, where they are wanted."""
        self._wants_changes = False
        self._gaps_told = 0
        self._drop_told_at = self._expiry_told_at = 1
        self._turn_ends = 0.0
        self._waiter: asyncio.Future[None] | None = None
        self._idle: list[asyncio.Future[None]] = []
        self._matched: list[tuple[int, asyncio.Future[None]]] = []
        self._loop = asyncio.get_running_loop()
        self._pumping = False
        self._task: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "orderwire-reader") if in_thread else None
        self._awaits = callback is not None and _is_coroutine_function(callback)

    # For the application.

    @property
    def pending(self) -> int:
        """Samples that wait to be handed over."""
        return len(self._queue)

    @property
    def matched(self) -> int:
        """How many topics of other members, and of this one, it reads now; each member's count."""
        return len(self._domain.matching.matches_of(self))

    @property
    def incompatible(self) -> list[str]:
        """Sentences on topics that the pattern names but whose writers chose another order."""
        return [
            f"{self._domain.members[member]} writes {name!r} as {domain},"
            f" this reader asks for {self.domain_key}"
            for member, name, domain in self._domain.matching.incompatible_with(self)
        ]

    async def wait_matched(self, count: int = 1, timeout_s: float | None = None) -> None:
        """Wait until it reads at least `count` topics.  Raises TimeoutError, which says what is."""
        if self.matched >= count:
            return
        waiter = self._loop.create_future()
        self._matched.append((count, waiter))
        try:
            async with asyncio.timeout(timeout_s):
                await waiter
        except TimeoutError:
            raise TimeoutError(
                f"{self.pattern!r} matches {self.matched} topics after {timeout_s} s, waited for"
                f" {count}. {' '.join(self.incompatible)}".rstrip()
            ) from None

    def __aiter__(self) -> Self:
        self._refuse_mixed_use()
        return self

    async def __anext__(self) -> Sample:
        """Return the next sample; ends when the reader is closed and its queue is empty.

        Raises LocalProtocolError then, if it was not we who closed it.
        """
        if self._loop.time() > self._turn_ends:
            await asyncio.sleep(0)
            self._turn_ends = self._loop.time() + self._turn_s()
        while True:
            sample: Sample | None = self._next()
            if sample is not None:
                return sample
            if self._lost:
                raise LocalProtocolError(self._lost)
            if self.closed:
                raise StopAsyncIteration
            await self._wait()
            self._turn_ends = self._loop.time() + TURN_S

    def events(self) -> AsyncIterator[Sample | MemberChange]:
        """Hand out the samples, and between them who enters and leaves the group, from now on.

        Members' changes have their place in the order, the same for all who are in the group then.
        Who asks for events reads by them alone.  Raises LocalProtocolError for other orders than
        `SelectiveTotal`, which have no group.
        """
        self._refuse_mixed_use()
        if not self._domain.tells_changes:
            raise LocalProtocolError(
                f"the reader of {self.pattern.text!r} has no events but its samples: members come"
                " and go at a place in the order with SelectiveTotal() alone"
            )
        self._wants_changes = True
        return self._events()

    async def _events(self) -> AsyncIterator[Sample | MemberChange]:
        with contextlib.suppress(StopAsyncIteration):
            while True:
                yield await self.__anext__()

    async def read(self, timeout_s: float | None = None) -> Sample:
        """Return the next sample.  Raises TimeoutError, and LocalProtocolError once closed."""
        self._refuse_mixed_use()
        try:
            async with asyncio.timeout(timeout_s):
                return await self.__anext__()
        except StopAsyncIteration:
            raise LocalProtocolError(
                f"the reader of {self.pattern.text!r} is closed and has nothing left"
            ) from None

    def read_nowait(self) -> Sample | None:
        """Return the next sample if there is one."""
        self._refuse_mixed_use()
        sample: Sample | None = self._next()
        return sample

    async def drain(self) -> None:
        """Wait until everything delivered so far has been handed over, expired or dropped."""
        self.expire()
        while self._queue or self._pumping:
            idle = self._loop.create_future()
            self._idle.append(idle)
            while not idle.done():
                await asyncio.wait([idle], timeout=EXPIRY_PAUSE_S)
                self.expire()

    def close(self) -> None:
        """Read no more.  What waits in the queue can still be taken; callbacks get it too."""
        if not self.closed:
            self.closed = True
            self._domain.matching.remove_reader(self)
            self._domain.forget_reader(self)
            self._wake()
            for _, waiter in self._matched:
                waiter.cancel()
            if self._thread is not None and not self._pumping:
                self._thread.shutdown(wait=False)

    def lose(self, why: str) -> None:
        """Close it, and say why where the next sample is waited for."""
        self._lost = why
        for _, waiter in self._matched:
            if not waiter.done():
                waiter.set_exception(LocalProtocolError(why))
        self.close()

    def abandon(self) -> None:
        """Stop calling back; what waits is counted as abandoned."""
        with contextlib.suppress(IndexError):
            while True:  # one by one: a thread may be taking them, too
                self._queue.popleft()
                self.counters.abandoned += 1
        if self._task is not None:
            self._task.cancel()

    async def stopped(self) -> None:
        """Wait until a closed reader's callback has been called for the last time."""
        if self._callback is not None:
            await self.drain()

    # For the domain.

    @property
    def label(self) -> str:
        """Label of the order it reads in."""
        return self._domain.order.label

    @property
    def holds(self) -> bool:
        """Whether its queue is full and nothing may be dropped."""
        return self._overflow is Overflow.HOLD and len(self._queue) >= self._limit

    @property
    def finished(self) -> bool:
        """Whether it is closed and has handed over everything."""
        return self.closed and not self._queue and not self._pumping

    @property
    def domain_key(self) -> str:
        """The ordering domain it reads in."""
        return self._domain.key

    def wants(self, name: str, *, own: bool) -> bool:
        """Whether it reads this topic; `own` says that this participant writes it."""
        return (self._own or not own) and self.pattern.matches(name)

    def matches_changed(self) -> None:
        """The writers that it matches are other ones now."""
        if self._matched:
            matched = self.matched
            for count, waiter in self._matched:
                if matched >= count and not waiter.done():
                    waiter.set_result(None)
            self._matched = [entry for entry in self._matched if not entry[1].done()]

    def put(self, samples: Sequence[Sample]) -> None:
        """Queue samples whose turn has come."""
        queue = self._queue
        self.counters.delivered += len(samples)
        if len(queue) + len(samples) <= self._limit or self._overflow is Overflow.HOLD:
            queue.extend(samples)
        else:
            for sample in samples:
                self._put_tightly(sample)
        if self._callback is not None:
            if not self._pumping:
                self._pumping = True
                self._loop.call_soon(self._pump)
        elif self._waiter is not None:
            self._wake()

    def tell_change(self, change: MemberChange) -> None:
        """Queue a change of the members, if it is wanted: then there is no callback."""
        if self._wants_changes:
            self._queue.append(change)
            self._wake()

    def _put_tightly(self, sample: Sample) -> None:
        """Queue a sample, or drop one, when the queue is full or nearly so."""
        queue = self._queue
        if len(queue) >= self._limit:
            if self._overflow is Overflow.DROP_NEWEST:
                self._drop()
                return
            try:
                queue.popleft()
            except IndexError:
                pass  # a thread has just taken the only one
            else:
                self._drop()
        queue.append(sample)

    def expire(self) -> None:
        """Count what outlived its lifetime though nobody reads; a callback does so by itself."""
        queue, lifetime_ns = self._queue, self._lifetime_ns
        if self._callback is None and lifetime_ns is not None:
            now = self._clock.now()
            while queue and now > _expires(queue[0], lifetime_ns):
                queue.popleft()
                self._expire()
            if not queue:
                self._tell_idle()

    def _drop(self) -> None:
        counters = self.counters
        counters.dropped += 1
        if counters.dropped == self._drop_told_at:
            self._drop_told_at *= 4
            _LOG.warning(
                "reader of %r is too slow: its queue of %d samples is full, %d dropped so far (%s)",
                self.pattern.text,
                self._limit,
                counters.dropped,
                self._overflow.value,
            )

    def _expire(self) -> None:
        counters = self.counters
        counters.expired += 1
        if counters.expired == self._expiry_told_at:
            self._expiry_told_at *= 4
            _LOG.warning(
                "reader of %r is too slow: samples outlived their lifetime in its queue, %d so far",
                self.pattern.text,
                counters.expired,
            )

    # Handing over.

    def _next(self) -> Any:
        """Take the next sample that has not expired and can be decoded."""
        queue, counters = self._queue, self.counters
        lifetime_ns = self._lifetime_ns
        while True:
            try:
                sample = queue.popleft()
            except IndexError:
                self._tell_idle()
                return None
            if self._wants_changes and isinstance(sample, MemberChange):
                return sample
            if lifetime_ns is not None and self._clock.now() > _expires(sample, lifetime_ns):
                self._expire()
                continue
            if self._decode is not None:
                data = sample.data
                try:
                    sample = replace(sample, data=self._decode(data))
                except Exception:
                    counters.undecodable += 1
                    _LOG.exception("cannot decode %d bytes of topic %r", len(data), sample.topic)
                    continue
            counters.handed_over += 1
            gaps = counters.dropped + counters.expired + counters.undecodable
            if gaps != self._gaps_told:
                sample = replace(sample, dropped_before=gaps - self._gaps_told)
                self._gaps_told = gaps
            return sample

    async def _wait(self) -> None:
        if self._waiter is not None:
            raise LocalProtocolError(
                f"the reader of {self.pattern.text!r} is being read by another task already: make"
                " a reader for each, or hand samples on from one"
            )
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _tell_idle(self) -> None:
        if self._idle and not self._pumping:
            idle, self._idle = self._idle, []
            for waiter in idle:
                if not waiter.done():
                    waiter.set_result(None)

    def _refuse_mixed_use(self) -> None:
        if self._callback is not None:
            raise LocalProtocolError(
                f"the reader of {self.pattern.text!r} has a callback, which gets its samples:"
                " leave the callback out to iterate"
            )

    # Callbacks.

    def _pump(self) -> None:
        """Hand over to the callback, where it belongs."""
        if self._awaits:
            self._task = self._loop.create_task(self._pump_awaiting())
        elif self._thread is not None:
            running = self._loop.run_in_executor(self._thread, self._pump_blocking)
            running.add_done_callback(lambda _: self._pumped())
        else:
            if self._call_for_a_turn():
                self._loop.call_soon(self._pump)
            else:
                self._pumped()

    def _call_for_a_turn(self) -> bool:
        """Hand over to a function; return whether more waits, for the next turn of the loop."""
        queue, counters, monotonic_ns = self._queue, self.counters, self._clock.monotonic_ns
        callback: Any = self._callback
        plain = self._lifetime_ns is None and self._decode is None
        looked = monotonic_ns()
        turn_ends = looked + round(self._turn_s() * NS_PER_S)
        run = 1
        while True:
            for _ in range(run):
                # Most samples go on as they are; `_next` would find no more to do.
                sample: Sample | None
                if plain and queue and counters.dropped == self._gaps_told:
                    sample = queue.popleft()
                    counters.handed_over += 1
                else:
                    sample = self._next()
                    if sample is None:
                        return False
                try:
                    callback(sample)
                except Exception as error:
                    self._failed(error, sample)
            now = monotonic_ns()
            if now > turn_ends:
                return True
            run = min(2 * run, RUN_SAMPLES_MAX) if now - looked < RUN_NS else 1
            looked = now

    def _turn_s(self) -> float:
        """How long the loop may wait for its turn."""
        return TURN_S if 2 * len(self._queue) <= self._limit else FULL_TURN_S

    def _pump_blocking(self) -> None:
        while (sample := self._next()) is not None:
            self._call(sample)

    async def _pump_awaiting(self) -> None:
        callback: Any = self._callback
        turn_ends = self._loop.time() + self._turn_s()
        while (sample := self._next()) is not None:
            try:
                await callback(sample)
            except Exception as error:
                self._failed(error, sample)
            if self._loop.time() > turn_ends:
                await asyncio.sleep(0)
                turn_ends = self._loop.time() + self._turn_s()
        self._pumped()

    def _call(self, sample: Sample) -> None:
        callback: Any = self._callback
        try:
            callback(sample)
        except Exception as error:
            self._failed(error, sample)

    def _failed(self, error: Exception, sample: Sample) -> None:
        self.counters.failed += 1
        if self._on_error is not None:
            self._on_error(error, sample)
        else:
            _LOG.error(
                "callback of the reader of %r failed on %s/%d: %r",
                self.pattern.text,
                sample.source,
                sample.number,
                error,
                exc_info=error,
            )

    def _pumped(self) -> None:
        if self._queue:  # something came while the callback was being left
            self._loop.call_soon(self._pump)
            return
        self._pumping = False
        self._tell_idle()
        if self.closed and self._thread is not None:
            self._thread.shutdown(wait=False)


def _expires(sample: Sample, lifetime_ns: int) -> int:
    """Return the last instant at which a sample may be handed over, in a domain with this Δ."""
    own_ns = sample.lifetime_ns
    return sample.stamp + (lifetime_ns if own_ns is None else own_ns)


def _is_coroutine_function(callback: Callback) -> bool:
    return inspect.iscoroutinefunction(callback) or inspect.iscoroutinefunction(
        getattr(callback, "__call__", None)  # noqa: B004 - an object whose __call__ awaits
    )
