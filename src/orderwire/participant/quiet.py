"""Keeping quiet after a restart: a participant that lost its memory must not write too early.

What it wrote in an earlier life may still be under way, and it no longer knows of it: what it
writes now could overtake that at a third member.  After Δ + ε every trace of the past has expired
everywhere, and it may write.  Until then its writers see no readers but its own.

A participant cannot know by itself that it was restarted.  Members that knew it tell it when they
meet.  While it has not met them all it must assume that one of them knew it.  Decision 0008.
"""

import asyncio

from orderwire.aio.endpoint import Endpoint
from orderwire.kernel import NS_PER_S, Instant
from orderwire.participant.matching import Matching


class Quiet:
    """Holds back the writers of those domains whose order needs it.

    `restarted` says for certain whether there was an earlier life within the last Δ + ε; None: the
    others tell.
    """

    def __init__(self, endpoint: Endpoint, matching: Matching, restarted: bool | None) -> None:
        self._endpoint = endpoint
        self._matching = matching
        self._restarted = restarted
        self._timers: dict[str, asyncio.TimerHandle] = {}

    @property
    def _is_first_life(self) -> bool:
        if self._restarted is not None:
            return not self._restarted
        return self._endpoint.has_met_all and not self._endpoint.restarted

    def begin(self, domain: str, quiet_ns: int) -> None:
        """Open a domain in which a restarted member keeps quiet for so long after its start."""
        until = Instant(self._endpoint.started + quiet_ns + 1)
        if self._is_first_life or self._endpoint.clock.now() >= until:
            return
        self._matching.hold(domain)
        self._arm(domain, until)

    def met(self) -> None:
        """Take notice that a member has said hello."""
        if self._timers and self._is_first_life:
            for domain in list(self._timers):
                self._end(domain)

    def close(self) -> None:
        """Stop waiting."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _arm(self, domain: str, until: Instant) -> None:
        wait_s = (until - self._endpoint.clock.now()) / NS_PER_S
        loop = asyncio.get_running_loop()
        self._timers[domain] = loop.call_later(max(0.0, wait_s), self._wake, domain, until)

    def _wake(self, domain: str, until: Instant) -> None:
        if self._endpoint.clock.now() >= until:
            self._end(domain)
        else:
            self._arm(domain, until)  # loops fire a hair early

    def _end(self, domain: str) -> None:
        self._timers.pop(domain).cancel()
        self._matching.release(domain)
