"""An original's term: what it knows of its followers, and what is on its way to them.

Batches are pushed: an original that knows where each follower stands needs no request for the next
ones.  At most `FLIGHTS_MAX` messages to a follower are unanswered; what comes meanwhile goes
together in the next.  [S004:4.8]
"""

from collections import deque
from collections.abc import Collection, Iterable

from orderwire.broker.log import PartitionLog, Refused
from orderwire.broker.log.epochs import EpochHistory
from orderwire.broker.replication.active_standby_messages import (
    Follow,
    Lead,
    Position,
    Records,
    Stored,
)
from orderwire.broker.replication.effects import Effects, Tell
from orderwire.broker.replication.settings import ReplicationSettings
from orderwire.broker.replication.view import BrokerId
from orderwire.broker.wire.batch import walk
from orderwire.kernel import Instant

FLIGHTS_MAX = 4
COPY_BYTES = 1 << 20
"""Record bytes in one message to a follower that is behind, but for a single larger batch."""


class Follower:
    """What the original knows of one other replica."""

    __slots__ = (
        "acked",
        "attempt",
        "broker",
        "connected",
        "flights",
        "follows",
        "in_step_at",
        "lacks",
        "mark",
        "mark_at",
        "sent",
        "since",
        "told",
        "told_start",
    )

    def __init__(self, broker: BrokerId, now: Instant) -> None:
        self.broker = broker
        self.connected = False
        self.since = now
        """When that last changed, or the term began."""
        self.in_step_at = now
        """When it last had everything that was there then."""
        self.lacks = False
        """It has lost something that is committed."""
        self.mark = 0
        self.mark_at = now
        """Where our log ended at some time; having that, it was in step then."""
        self.begin(0)

    def begin(self, attempt: int) -> None:
        """Ask it again where it is; nothing is known until it answers."""
        self.attempt = attempt
        self.follows = False
        self.acked = -1
        """All below it will not forget."""
        self.sent = -1
        self.flights: deque[int] = deque()
        """Where each message that is on its way ends."""
        self.told = -1
        """The high watermark that it knows."""
        self.told_start = -1
        """And our log's start."""

    def heard(self, counts: int, end: int, now: Instant) -> None:
        """It has all below `counts`, and our log ends at `end`."""
        self.acked = max(self.acked, counts)
        while self.flights and self.flights[0] <= self.acked:
            self.flights.popleft()
        if self.acked >= end:
            self.in_step_at = now
        elif self.acked >= self.mark:
            self.in_step_at = max(self.in_step_at, self.mark_at)
        else:
            return
        self.mark, self.mark_at = end, now


class Term:
    """One epoch of ours."""

    def __init__(
        self,
        epoch: int,
        log: PartitionLog,
        settings: ReplicationSettings,
        others: Iterable[BrokerId],
        now: Instant,
        ended: Collection[BrokerId],
    ) -> None:
        """`ended` changes: whose process is known to have ended."""
        self.epoch = epoch
        self._ended = ended
        self.floor = log.end_offset
        """All that was ever committed lies below."""
        self.followers = {other: Follower(other, now) for other in others}
        self._log = log
        self.settings = settings
        self._attempts = 0
        self._copy_bytes = min(COPY_BYTES, settings.message_bytes_max)

    # Where a follower is.

    def widen(self, others: Iterable[BrokerId], now: Instant) -> list[Follower]:
        """Take who has a replica, too; returns those that are new."""
        new = [Follower(other, now) for other in others if other not in self.followers]
        self.followers.update((each.broker, each) for each in new)
        return new

    def ask(self, follower: Follower, now: Instant) -> Effects:
        """Begin anew with a replica that is connected."""
        if not follower.connected:
            follower.connected = True
            follower.since = now
        self._attempts += 1
        follower.begin(self._attempts)
        return [Tell(follower.broker, Lead(self.epoch, self._attempts))]

    def lose(self, follower: Follower, now: Instant) -> None:
        """Its connection is gone."""
        if follower.connected:
            follower.connected = False
            follower.since = now
        follower.begin(0)

    def place(self, follower: Follower, message: Position, high_watermark: int) -> Effects:
        """Tell it from where to follow."""
        start, end = self._log.start_offset, self._log.end_offset
        offset = common_end(
            self._log.epochs, end, message.history, message.end, empty=message.start >= message.end
        )
        anew = offset is None or not max(start, message.start) <= offset <= end
        if offset is None or anew:
            offset = self._log.first_base
        elif offset < end:
            inside = next(self._log.batches(offset, offset + 1)).base_offset
            anew = inside < offset and message.start >= message.end  # it ends inside a batch
            offset = inside
        follower.lacks = offset < high_watermark
        return [Tell(follower.broker, Follow(self.epoch, message.attempt, offset, anew))]

    def stored(self, follower: Follower, message: Stored, now: Instant) -> None:
        """It has more than before, or begins to follow."""
        if not follower.follows:
            follower.follows = True
            follower.sent = message.end
            follower.mark, follower.mark_at = self._log.end_offset, now
        follower.heard(message.counts, self._log.end_offset, now)

    # What goes to it.

    def appended(
        self, records: bytes, base: int, end: int, high_watermark: int, now: Instant
    ) -> Effects:
        """Send what was just appended to whoever has all before and room for more."""
        effects: Effects = []
        message: Records | None = None
        for follower in self.followers.values():
            if follower.acked >= base:
                follower.in_step_at = now
                follower.mark, follower.mark_at = end, now
            if not follower.follows or len(follower.flights) >= FLIGHTS_MAX:
                continue
            if follower.sent != base:
                effects += self.push(follower, high_watermark)
                continue
            if message is None or message.attempt != follower.attempt:
                message = Records(
                    self.epoch,
                    follower.attempt,
                    base,
                    high_watermark,
                    self._log.start_offset,
                    end,
                    records,
                )
            self._sent(follower, end, high_watermark)
            effects.append(Tell(follower.broker, message))
        return effects

    def push(self, follower: Follower, high_watermark: int) -> Effects:
        """Send what a follower has not got, from the log; or how far all have come.

        Raises LogDamaged.
        """
        effects: Effects = []
        log = self._log
        if not follower.follows:
            return effects
        while follower.sent < log.end_offset and len(follower.flights) < FLIGHTS_MAX:
            if follower.sent < log.start_offset and follower.sent < log.first_base:
                # Retention went past it: it has to begin anew.
                self._attempts += 1
                follower.begin(self._attempts)
                return [*effects, Tell(follower.broker, Lead(self.epoch, self._attempts))]
            records = log.copy(max(follower.sent, log.start_offset), self._copy_bytes)
            assert not isinstance(records, Refused), records
            end = _end_of(records)
            effects.append(self._message(follower, follower.sent, high_watermark, records))
            self._sent(follower, end, high_watermark)
        news = follower.told < high_watermark or follower.told_start < log.start_offset
        if news and not follower.flights:
            effects.append(self._message(follower, follower.sent, high_watermark, b""))
            self._told(follower, high_watermark)
        return effects

    def _sent(self, follower: Follower, end: int, high_watermark: int) -> None:
        follower.sent = end
        follower.flights.append(end)
        self._told(follower, high_watermark)

    def _told(self, follower: Follower, high_watermark: int) -> None:
        follower.told = high_watermark
        follower.told_start = self._log.start_offset

    def _message(
        self, follower: Follower, offset: int, high_watermark: int, records: bytes
    ) -> Tell:
        log = self._log
        return Tell(
            follower.broker,
            Records(
                self.epoch,
                follower.attempt,
                offset,
                high_watermark,
                log.start_offset,
                log.end_offset,
                records,
            ),
        )

    # Who is in sync.

    def everybody_has(self, members: Iterable[BrokerId], mine: int) -> int:
        """All below this offset is with each of these, as far as we know; ours is `mine`."""
        least = mine
        for member in members:
            follower = self.followers.get(member)
            if follower is not None and follower.acked < least:
                least = follower.acked
        return least

    def reachable(self, members: Iterable[BrokerId]) -> int:
        """How many of them we can talk to, with ourselves."""
        count = 0
        for member in members:
            follower = self.followers.get(member)
            count += follower is None or follower.connected
        return count

    def remaining(self, isr: tuple[BrokerId, ...], now: Instant | None) -> tuple[BrokerId, ...]:
        """The in-sync set without those that are too late; None: whoever is may still be.  [R5]

        It does not fall below `min_insync_replicas`: S does not advance there, so who is late has
        all that is committed and may still be elected.  But who has lost something goes.
        """
        left = list(isr)
        for member in isr:
            follower = self.followers.get(member)
            if follower is None:
                continue
            due = self._late_at(follower)
            late = due is not None and now is not None and due <= now
            if follower.lacks or (late and self._may_go(len(left))):
                left.remove(member)
        return tuple(left)

    def next_late(self, isr: tuple[BrokerId, ...]) -> Instant | None:
        """When the next member will be too late."""
        if not self._may_go(len(isr)):
            return None
        dues = [
            due
            for member in isr
            if member in self.followers
            and (due := self._late_at(self.followers[member])) is not None
        ]
        return min(dues, default=None)

    def joining(
        self, isr: tuple[BrokerId, ...], high_watermark: int, now: Instant
    ) -> tuple[BrokerId, ...]:
        """The in-sync set with those that have all that is, or may be, committed.  [R8]"""
        least = max(high_watermark, self.floor)
        oldest = now - self.settings.round_timeout_ns
        new = [
            follower.broker
            for follower in self.followers.values()
            if follower.broker not in isr
            and follower.follows
            and follower.acked >= least
            and (self._in_step(follower) or follower.in_step_at >= oldest)
        ]
        for broker in new:
            self.followers[broker].lacks = False
        return tuple(sorted({*isr, *new}))

    def _may_go(self, count: int) -> bool:
        return count > max(self.settings.min_insync_replicas, 1)

    def _late_at(self, follower: Follower) -> Instant | None:
        if not follower.connected:
            grace = 0 if follower.broker in self._ended else self.settings.link_grace_ns
            return Instant(follower.since + grace)
        if self._in_step(follower):
            return None
        return Instant(follower.in_step_at + self.settings.round_timeout_ns)

    def _in_step(self, follower: Follower) -> bool:
        return follower.follows and follower.acked >= self._log.end_offset


def common_end(
    mine: EpochHistory, my_end: int, theirs: list[tuple[int, int]], their_end: int, *, empty: bool
) -> int | None:
    """Where two logs part: the end of the newest epoch that both have.  [KIP-101, KIP-279]

    None when they have none; a log without batches agrees with any.
    """
    if empty:
        return their_end
    for number in range(len(theirs) - 1, -1, -1):
        epoch = theirs[number][0]
        ends = theirs[number + 1][1] if number + 1 < len(theirs) else their_end
        found, end = mine.end_of(epoch, my_end)
        if found == epoch:
            return min(end, ends)
    return None


def _end_of(records: bytes) -> int:
    """The offset behind these batches."""
    end = 0
    for _, header in walk(records):
        end = header.last_offset + 1
    return end
