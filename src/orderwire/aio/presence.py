"""Who is there: members that are met, come back as new incarnations, fall silent or are gone."""

import asyncio
import logging
from collections.abc import Callable, Mapping

from orderwire.aio.channel import Channel
from orderwire.aio.clock import GroupClock
from orderwire.aio.link import Link
from orderwire.aio.stream import Hello
from orderwire.kernel import Instant, ProcessId

_LOG = logging.getLogger(__name__)

GONE_AFTER_S = 3.0
"""A member whose stream stays broken for so long is gone: what has no lifetime and waits for it, or
is still to come from it, is given up, so that nobody waits for the dead.  If it comes back after
all, it is told what it lost.
"""


class Presence:
    """What an endpoint does when the stream to a member begins and ends.  Decision 0008.

    `read_all()` takes the datagrams that have arrived, `watch(link, now)` runs the link's timer.
    """

    def __init__(
        self,
        session: int,
        clock: GroupClock,
        links: Mapping[ProcessId, Link],
        channels: Mapping[int, Channel],
        *,
        read_all: Callable[[], None],
        watch: Callable[[Link, Instant], None],
    ) -> None:
        self.restarted = False
        """Whether some member has said that it knew an earlier incarnation of this one."""
        self.on_restarted: Callable[[ProcessId], None] | None = None
        self._session = session
        self._clock = clock
        self._links = links
        self._channels = channels
        self._read_all = read_all
        self._watch = watch
        self._loop = asyncio.get_running_loop()
        self._timers: dict[ProcessId, asyncio.TimerHandle] = {}

    def welcome(self, peer: ProcessId, hello: Hello) -> None:
        """Take a member's hello: its stream stands."""
        link = self._links[peer]
        if hello.known not in (0, self._session):
            self.restarted = True
        if link.peer_session not in (0, hello.session):
            self._read_all()  # what its earlier incarnation has sent comes first
        restarts = link.restarts
        link.greet(hello.session)
        if link.restarts != restarts:
            for channel in self._channels.values():
                channel.settle()
            if self.on_restarted is not None:
                self.on_restarted(peer)
        now = self._clock.now()
        link.stream_since = now
        link.trip.unanswered = 0  # a hello is a word: what was asked before it does not count
        link.ping(now)
        timer = self._timers.pop(peer, None)
        if timer is not None:
            timer.cancel()
        for lane in link.lanes.values():
            link.pump(lane, now)
            if lane.outbound.settled < lane.outbound.unsent:
                lane.outbound.resume()
                self._watch(link, now)

    def parted(self, peer: ProcessId) -> None:
        """The stream to a member has ended."""
        self._timers[peer] = self._loop.call_later(GONE_AFTER_S, self._is_gone, peer)

    def is_over(self, link: Link) -> None:
        """A member has left for good, as far as this link goes."""
        self._give_up(link)

    def is_silent(self, link: Link) -> None:
        """A member has not answered for too long."""
        link.trip.unanswered = 0
        _LOG.warning(
            "process %d says nothing although it is asked: what waits for it is given up", link.peer
        )
        self._give_up(link)

    def close(self) -> None:
        """Stop waiting for members to come back."""
        for timer in self._timers.values():
            timer.cancel()

    def _is_gone(self, peer: ProcessId) -> None:
        del self._timers[peer]
        self._give_up(self._links[peer])

    def _give_up(self, link: Link) -> None:
        """Give up what has no lifetime and waits for this member, or is missing from it."""
        for lane in link.lanes.values():
            channel = self._channels[lane.channel]
            if channel.lifetime_ns is None:
                channel.pack(lane)
                link.abandon(lane)
                channel.settle()
