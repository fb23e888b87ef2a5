"""The requests that wait at a broker: for data, for others, for another thread, for a deadline."""

import heapq
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from orderwire.broker.partitions import Parked
from orderwire.broker.replies import Reply, Request
from orderwire.kernel import Instant

if TYPE_CHECKING:
    from orderwire.broker.node import Broker

_STALE_DEADLINES_MAX = 1_024
"""Deadlines of requests that were answered before, beside those of twice the parked ones."""


class Aside(msgspec.Struct, frozen=True):
    """Something that takes long, and the answer that follows from it."""

    token: int
    job: Callable[[], bool]
    then: Callable[[bool], Reply]


class ParkedRequests:
    """Every request that is not answered yet, by its token."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._parked: dict[int, Request | Parked] = {}
        self._asides: list[Aside] = []
        self._deadlines: list[tuple[Instant, int]] = []
        self._woken: dict[int, Parked] = {}
        self._ready: list[tuple[int, Reply]] = []

    def __contains__(self, token: int) -> bool:
        """Whether a request still waits."""
        return token in self._parked

    def park(self, parked: Parked, deadline: Instant) -> None:
        """Keep a request until it can be answered, at most until its deadline."""
        self._parked[parked.token] = parked
        heapq.heappush(self._deadlines, (deadline, parked.token))
        if len(self._deadlines) > _STALE_DEADLINES_MAX + 2 * len(self._parked):
            self._deadlines = [each for each in self._deadlines if each[1] in self._parked]
            heapq.heapify(self._deadlines)

    def finish(self, parked: Parked, done: Reply) -> None:
        """Answer a request that was parked; later calls for it do nothing."""
        if self._parked.pop(parked.token, None) is not None:
            parked.leave()
            self._ready.append((parked.token, done))

    def look_again(self, waiting: Mapping[int, Parked]) -> None:
        """Let requests be tried before the next `ready`: what they wait for may be there."""
        self._woken.update(waiting)

    def forget(self, token: int) -> None:
        """Drop a request whose connection is gone."""
        parked = self._parked.pop(token, None)
        if parked is not None and not isinstance(parked, Request):
            parked.leave()

    # Without a deadline.

    def hold(self, parked: Parked) -> None:
        """Keep a request until it is answered, or parked by who serves it."""
        self._parked[parked.token] = parked

    def expect(self, request: Request) -> None:
        """Keep a join or sync until its coordinator answers it."""
        self._parked[request.token] = msgspec.structs.replace(request, body=None)

    def expected(self, token: int) -> Request | None:
        """Return a join or sync, if it still waits."""
        request = self._parked.get(token)
        assert request is None or isinstance(request, Request)
        return request

    def answer(self, token: int, done: Reply) -> None:
        """Answer a request, if it still waits."""
        if self._parked.pop(token, None) is not None:
            self._ready.append((token, done))

    def check_aside(
        self, request: Request, job: Callable[[], bool], then: Callable[[bool], Reply]
    ) -> None:
        """Keep a request until another thread has found out what would hold this one up."""
        self._parked[request.token] = msgspec.structs.replace(request, body=None)
        self._asides.append(Aside(request.token, job, then))

    # For the runtime.

    @property
    def has_ready(self) -> bool:
        """Whether `ready` may return something."""
        return bool(self._ready or self._woken)

    def ready(self) -> list[tuple[int, Reply]]:
        """Return replies that have become possible, and forget their requests."""
        while self._woken:
            woken, self._woken = self._woken, {}
            for token, parked in woken.items():
                if self._parked.get(token) is parked:
                    done = parked.attempt(self._broker, at_deadline=False)
                    if done is not None:
                        self.finish(parked, done)
        ready, self._ready = self._ready, []
        return ready

    def take_asides(self) -> list[Aside]:
        """Return the jobs for another thread; `aside_done` must follow each."""
        asides, self._asides = self._asides, []
        return asides

    def aside_done(self, aside: Aside, result: bool) -> None:
        """Answer the request that a job was for, unless its connection is gone."""
        if self._parked.pop(aside.token, None) is not None:
            self._ready.append((aside.token, aside.then(result)))

    def next_deadline(self) -> Instant | None:
        """When `wake` is next due."""
        return self._deadlines[0][0] if self._deadlines else None

    def wake(self, now: Instant) -> None:
        """Answer what has waited long enough with what there is."""
        while self._deadlines and self._deadlines[0][0] <= now:
            _, token = heapq.heappop(self._deadlines)
            parked = self._parked.get(token)
            if parked is not None and not isinstance(parked, Request):
                done = parked.attempt(self._broker, at_deadline=True)
                assert done is not None, "at its deadline a request is answered with what there is"
                self.finish(parked, done)
